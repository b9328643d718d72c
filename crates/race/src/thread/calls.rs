//! The functions of a thread that have begun and not ended: with them, its accesses say how it came there.

use super::{Thread, stack};

/// Calls deeper than this are not told apart.
const DEEPEST: usize = 1 << 15;
/// Calls that there is room for at first.
const FRAMES: usize = 1 << 7;
/// Depths of the machine's stack that are further apart than this are of different stacks (coroutines,
/// signal stacks): no call is taken for gone by them.
const SAME_STACK: usize = 64 << 20;

/// A function that has begun and not ended.
#[derive(Clone, Copy, Default)]
pub(super) struct Frame {
    /// Where it was called.
    code: u64,
    /// How deep the machine's stack was.
    depth: usize,
    /// The number of the stack with this frame; 0: not asked for yet.
    context: u32,
}

/// What was ignored before a function began, which is the last of so many.
pub(super) struct Aside {
    frames: usize,
    ignored: u32,
    orders_ignored: u32,
}

/// Room for some.
pub(super) fn room() -> Vec<Frame> {
    vec![Frame::default(); FRAMES]
}

impl Thread {
    /// The number of the stack of calls.
    pub(super) fn context(&mut self) -> u32 {
        let len = self.len;
        if len == 0 {
            return 0;
        }
        let known = self.frames[len - 1].context;
        if known != 0 {
            return known;
        }
        let from = (0..len)
            .rev()
            .find(|index| self.frames[*index].context != 0)
            .map_or(0, |index| index + 1);
        let mut outer = match from {
            0 => 0,
            from => self.frames[from - 1].context,
        };
        for frame in &mut self.frames[from..len] {
            let number = self.process.search.called(frame.code, outer);
            if number == 0 {
                break;
            }
            outer = number;
            frame.context = number;
        }
        outer
    }

    /// A function begins.
    #[inline(always)]
    pub(crate) fn enter(&mut self, code: u64, depth: usize) {
        // Functions that were left without their hook (`longjmp`, exceptions) are deeper, or as deep.
        while self.len > 0 {
            let top = self.frames[self.len - 1].depth;
            if top > depth || depth - top > SAME_STACK {
                break;
            }
            self.len -= 1;
            self.beyond = 0;
        }
        if self.len < self.frames.len() || self.deeper() {
            self.frames[self.len] = Frame {
                code,
                depth,
                context: 0,
            };
            self.len += 1;
        } else {
            self.beyond += 1;
        }
    }

    /// Makes room for more frames. False: there is enough, or something of ours is in the middle of something.
    #[cold]
    fn deeper(&mut self) -> bool {
        let more = self.frames.len() < DEEPEST && self.busy <= stack();
        if more {
            self.quietly(|thread| {
                let frames = 2 * thread.frames.len();
                thread.frames.resize(frames, Frame::default());
            });
        }
        more
    }

    /// A function ends.
    #[inline(always)]
    pub(crate) fn exit(&mut self) {
        if self.beyond > 0 {
            self.beyond -= 1;
        } else {
            self.len = self.len.saturating_sub(1);
            if !self.aside.is_empty() {
                self.ignore_again();
            }
        }
    }

    /// Nothing is ignored in the function that began last, nor in what it calls.
    pub(crate) fn set_ignoring_aside(&mut self) {
        self.quietly(|thread| {
            thread.aside.push(Aside {
                frames: thread.len,
                ignored: std::mem::take(&mut thread.ignored),
                orders_ignored: std::mem::take(&mut thread.orders_ignored),
            });
        });
    }

    /// The functions are gone in which nothing was ignored, or some of them.
    #[cold]
    fn ignore_again(&mut self) {
        while let Some(aside) = self.aside.pop_if(|aside| self.len < aside.frames) {
            self.ignored = aside.ignored;
            self.orders_ignored = aside.orders_ignored;
        }
    }
}
