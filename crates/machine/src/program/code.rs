//! Does a program wait here? A look at the machine code around the place where a thread is.
//!
//! A wait that keeps the CPU has one of three shapes, and ordinary work has none of them:
//! - a loop with the processor's hint for waiting loops (PAUSE on x86, YIELD or ISB on Arm);
//! - a loop that only loads and compares, whose every address stays the same from turn to turn:
//!   it can end only by what somebody else stores;
//! - the system call `sched_yield`.
//!
//! The loop must be tight: lock algorithms with a hint in a large loop that also works are left
//! alone, except at the hint itself, where the time is indeed spent waiting.

/// Bytes before the place that [`waits_at`] looks at.
pub(super) const BEFORE: usize = 64;
/// Bytes from the place on that [`waits_at`] looks at.
pub(super) const AFTER: usize = 96;

/// Whether the thread at `code[at]` is in a wait that keeps the CPU. `bits` is 32 or 64. `code`
/// may be shorter than [`BEFORE`] and [`AFTER`] say, at the edges of what is mapped.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
pub(super) fn waits_at(code: &[u8], at: usize, bits: u32) -> bool {
    x86::waits_at(code, at, bits)
}

/// Whether the thread at `code[at]` is in a wait that keeps the CPU.
#[cfg(target_arch = "aarch64")]
pub(super) fn waits_at(code: &[u8], at: usize, _bits: u32) -> bool {
    arm::waits_at(code, at)
}

/// Whether the thread at `code[at]` is in a wait: not known on this architecture.
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
pub(super) fn waits_at(_code: &[u8], _at: usize, _bits: u32) -> bool {
    false
}

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
mod x86 {
    use iced_x86::{
        Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
        OpAccess, Register,
    };

    const PAUSE: [u8; 2] = [0xf3, 0x90];
    /// `mov $24, %eax; syscall`, as C libraries make the call.
    const SCHED_YIELD: [u8; 7] = [0xb8, 0x18, 0, 0, 0, 0x0f, 0x05];

    pub(super) fn waits_at(code: &[u8], at: usize, bits: u32) -> bool {
        let near = |before: usize, after: usize| {
            &code[at.saturating_sub(before)..(at + after).min(code.len())]
        };
        // The processor is interrupted just before or just after the hint: that is where the
        // waiting loop spends its time.
        if near(2, 0) == PAUSE || near(0, 2) == PAUSE {
            return true;
        }
        if bits == 64 && near(12, 12).windows(7).any(|w| w == SCHED_YIELD) {
            return true;
        }
        let Some((start, end)) = loop_around(code, at, bits) else {
            return false;
        };
        is_wait(&code[start..end], bits)
    }

    /// The first loop that closes after `at` and contains it, as offsets into `code`.
    fn loop_around(code: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
        let mut decoder = Decoder::with_ip(bits, &code[at..], at as u64, DecoderOptions::NONE);
        while decoder.can_decode() {
            let instruction = decoder.decode();
            match instruction.flow_control() {
                FlowControl::Next => {}
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    let target = instruction.near_branch_target();
                    if target <= at as u64 {
                        return Some((target as usize, instruction.next_ip() as usize));
                    }
                    if instruction.flow_control() == FlowControl::UnconditionalBranch {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        None
    }

    /// Whether a loop's body has the hint, or can only be ended by another thread's store.
    fn is_wait(body: &[u8], bits: u32) -> bool {
        let mut info = InstructionInfoFactory::new();
        let mut written: Vec<Register> = Vec::new();
        let mut read_first: Vec<Register> = Vec::new();
        let mut loads = false;
        let mut pure = true;
        let mut decoder = Decoder::with_ip(bits, body, 0, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return false;
            }
            if instruction.mnemonic() == Mnemonic::Pause {
                return true;
            }
            let used = info.info(&instruction);
            for memory in used.used_memory() {
                match memory.access() {
                    OpAccess::Read | OpAccess::CondRead => loads = true,
                    OpAccess::NoMemAccess => {}
                    _ => pure = false,
                }
            }
            for register in used.used_registers() {
                let whole = register.register().full_register();
                let access = register.access();
                let reads = matches!(
                    access,
                    OpAccess::Read
                        | OpAccess::CondRead
                        | OpAccess::ReadWrite
                        | OpAccess::ReadCondWrite
                );
                if reads && !written.contains(&whole) {
                    read_first.push(whole);
                }
            }
            for register in used.used_registers() {
                let access = register.access();
                if !matches!(access, OpAccess::Read | OpAccess::CondRead) {
                    written.push(register.register().full_register());
                }
            }
        }
        // A register that is read before it is written, and written, carries something from one
        // turn to the next: a counter or a pointer, that is, work.
        pure && loads && !written.iter().any(|r| read_first.contains(r))
    }
}

#[cfg(any(target_arch = "aarch64", test))]
mod arm {
    const YIELD: u32 = 0xd503_203f;
    const ISB: u32 = 0xd503_3fdf;
    /// `mov w8, #124` or `mov x8, #124`, then `svc #0`: `sched_yield`.
    const SCHED_YIELD: [[u32; 2]; 2] = [[0x5280_0f88, 0xd400_0001], [0xd280_0f88, 0xd400_0001]];

    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code))]
    pub(super) fn waits_at(code: &[u8], at: usize) -> bool {
        let phase = at % 4;
        let words: Vec<u32> = code[phase..]
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let here = (at - phase) / 4;
        let hint = |word: &u32| *word == YIELD || *word == ISB;
        let near = &words[here.saturating_sub(1)..(here + 1).min(words.len())];
        if near.iter().any(hint) {
            return true;
        }
        let near = &words[here.saturating_sub(3)..(here + 3).min(words.len())];
        if near.windows(2).any(|w| SCHED_YIELD.iter().any(|y| w == y)) {
            return true;
        }
        for (index, word) in words.iter().enumerate().skip(here) {
            if let Some(back) = backward_branch(*word) {
                let Some(start) = index.checked_sub(back) else {
                    return false;
                };
                return start <= here && words[start..index].iter().any(hint);
            }
        }
        false
    }

    /// How many instructions a conditional or unconditional branch goes back.
    fn backward_branch(word: u32) -> Option<usize> {
        let offset = if word >> 26 == 0b00_0101 {
            ((word << 6) as i32) >> 6
        } else if word >> 24 == 0b0101_0100 || (word >> 25) & 0x3f == 0b01_1010 {
            // b.cond, cbz, cbnz
            ((word << 8) as i32) >> 13
        } else if (word >> 25) & 0x3f == 0b01_1011 {
            // tbz, tbnz
            ((word << 13) as i32) >> 18
        } else {
            return None;
        };
        usize::try_from(-offset).ok().filter(|o| *o > 0)
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn a_loop_with_the_hint_waits_on_arm() {
            // ldr w0,[x1]; yield; cbz w0, back to ldr; ret
            let words: [u32; 4] = [0xb940_0020, super::YIELD, 0x34ff_ffc0, 0xd65f_03c0];
            let code: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            assert!(super::waits_at(&code, 0));
            assert!(super::waits_at(&code, 8));
            assert!(!super::waits_at(&code[8..], 4));
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn waits_everywhere(code: &[u8], places: &[usize]) -> bool {
        places.iter().all(|at| waits_at(code, *at, 64))
    }

    fn waits_anywhere(code: &[u8], places: &[usize]) -> bool {
        places.iter().any(|at| waits_at(code, *at, 64))
    }

    #[test]
    fn a_loop_with_pause_waits() {
        // 0: mov (%rdi),%eax; 2: test %eax,%eax; 4: jne out; 6: pause; 8: jmp 0; a: ret
        let code = [
            0x8b, 0x07, 0x85, 0xc0, 0x75, 0x04, 0xf3, 0x90, 0xeb, 0xf6, 0xc3,
        ];
        assert!(waits_everywhere(&code, &[0, 2, 4, 6, 8]));
    }

    #[test]
    fn a_counting_loop_with_pause_waits() {
        // 0: cmp %ecx,(%rdi); 2: jne out; 4: pause; 6: inc %rax; 9: cmp %rdx,%rax; c: jne 0; ret
        let code = [
            0x39, 0x0f, 0x75, 0x0b, 0xf3, 0x90, 0x48, 0xff, 0xc0, 0x48, 0x39, 0xd0, 0x75, 0xf2,
            0xc3,
        ];
        assert!(waits_everywhere(&code, &[0, 2, 4, 6, 9, 12]));
    }

    #[test]
    fn a_loop_that_only_loads_the_same_place_waits() {
        // 0: mov (%rdi),%eax; 2: test %eax,%eax; 4: je 0; 6: ret
        let code = [0x8b, 0x07, 0x85, 0xc0, 0x74, 0xfa, 0xc3];
        assert!(waits_everywhere(&code, &[0, 2, 4]));
        assert!(!waits_at(&code, 6, 64));
    }

    #[test]
    fn a_loop_over_an_array_works() {
        // 0: add (%rdi),%eax; 2: add $4,%rdi; 6: cmp %rsi,%rdi; 9: jne 0; ret
        let code = [
            0x03, 0x07, 0x48, 0x83, 0xc7, 0x04, 0x48, 0x39, 0xf7, 0x75, 0xf5, 0xc3,
        ];
        assert!(!waits_anywhere(&code, &[0, 2, 6, 9]));
    }

    #[test]
    fn a_loop_that_searches_memory_works() {
        // 0: inc %rax; 3: cmpb $0,(%rax); 6: jne 0; ret
        let code = [0x48, 0xff, 0xc0, 0x80, 0x38, 0x00, 0x75, 0xf8, 0xc3];
        assert!(!waits_anywhere(&code, &[0, 3, 6]));
    }

    #[test]
    fn a_linked_list_walk_works() {
        // 0: mov (%rdi),%rdi; 3: test %rdi,%rdi; 6: jne 0; ret
        let code = [0x48, 0x8b, 0x3f, 0x48, 0x85, 0xff, 0x75, 0xf8, 0xc3];
        assert!(!waits_anywhere(&code, &[0, 3, 6]));
    }

    #[test]
    fn a_loop_that_stores_works() {
        // 0: mov %eax,(%rdi); 2: cmp (%rsi),%eax; 4: jne 0; ret
        let code = [0x89, 0x07, 0x3b, 0x06, 0x75, 0xfa, 0xc3];
        assert!(!waits_anywhere(&code, &[0, 2, 4]));
    }

    #[test]
    fn yielding_waits_at_the_return_of_its_call() {
        // mov $24,%eax; syscall; cmp $-4095,%rax; ret
        let code = [
            0xb8, 0x18, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0xc3,
        ];
        assert!(waits_at(&code, 7, 64));
        let mut other = code;
        other[1] = 0x17;
        assert!(!waits_at(&other, 7, 64));
    }

    #[test]
    fn edges_of_mapped_code_are_no_trouble() {
        assert!(!waits_at(&[0x90], 0, 64));
        assert!(!waits_at(&[0xf3], 0, 64));
        assert!(!waits_at(&[], 0, 64));
    }
}
