//! Parsers of the files that /proc has for each thread: by hand, because they run for each thread
//! at each sample.

/// What `schedstat` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SchedStat {
    /// Time on a CPU, in nanoseconds; up to one tick late while the thread runs.
    pub(super) run_ns: u64,
    /// Time runnable without a CPU, in nanoseconds; the present wait is added when it ends.
    pub(super) cpu_wait_ns: u64,
}

/// Parses `/proc/PID/task/TID/schedstat`: three numbers, of which the first two are times.
pub(super) fn schedstat(text: &[u8]) -> Option<SchedStat> {
    let mut fields = text.split(|b| *b == b' ' || *b == b'\n');
    Some(SchedStat {
        run_ns: number(fields.next()?)?,
        cpu_wait_ns: number(fields.next()?)?,
    })
}

/// What `stat` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The state's letter, such as `R`, `S` or `Z`.
    pub(crate) state: u8,
    /// The parent process.
    pub(crate) ppid: i32,
    /// Time in user mode, in clock ticks.
    pub(crate) user_ticks: u64,
    /// Time in the kernel, in clock ticks.
    pub(crate) system_ticks: u64,
    /// When the thread started, in clock ticks since boot.
    pub(crate) start_ticks: u64,
}

/// Parses `/proc/PID/task/TID/stat`. The name may hold spaces and parentheses, so the fields are
/// counted from the last parenthesis.
pub(crate) fn stat(text: &[u8]) -> Option<Stat> {
    let end = text.iter().rposition(|b| *b == b')')?;
    let mut fields = text.get(end + 2..)?.split(|b| *b == b' ');
    let state = *fields.next()?.first()?;
    let ppid = i32::try_from(number(fields.next()?)?).ok()?;
    // state is field 3 in proc(5); utime is 14, stime 15, starttime 22.
    let mut rest = fields.skip(9);
    let user_ticks = number(rest.next()?)?;
    let system_ticks = number(rest.next()?)?;
    let start_ticks = number(rest.nth(6)?)?;
    Some(Stat {
        state,
        ppid,
        user_ticks,
        system_ticks,
        start_ticks,
    })
}

/// Finds voluntary and involuntary switches in `/proc/PID/task/TID/status`, where they stand at
/// the end.
pub(super) fn switches(text: &[u8]) -> Option<(u64, u64)> {
    let mut voluntary = None;
    for line in text.rsplit(|b| *b == b'\n') {
        if let Some(value) = line.strip_prefix(b"voluntary_ctxt_switches:") {
            voluntary = Some(number(value)?);
            break;
        }
    }
    for line in text.rsplit(|b| *b == b'\n') {
        if let Some(value) = line.strip_prefix(b"nonvoluntary_ctxt_switches:") {
            return Some((voluntary?, number(value)?));
        }
    }
    None
}

/// Finds the migrations in `/proc/PID/task/TID/sched` (a file that kernels without
/// `CONFIG_SCHED_DEBUG` lack).
pub(super) fn migrations(text: &[u8]) -> Option<u64> {
    let key = b"se.nr_migrations";
    let at = text.windows(key.len()).position(|w| w == key)?;
    let line = text.get(at..)?.split(|b| *b == b'\n').next()?;
    let colon = line.iter().position(|b| *b == b':')?;
    number(line.get(colon + 1..)?)
}

/// A decimal number with blanks around it.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, digit| {
        let digit = digit.checked_sub(b'0').filter(|d| *d < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_gives_run_and_wait() {
        let read = schedstat(b"139327 3680265 3\n").unwrap();
        assert_eq!((read.run_ns, read.cpu_wait_ns), (139_327, 3_680_265));
        assert_eq!(schedstat(b"nonsense"), None);
        assert_eq!(schedstat(b""), None);
    }

    #[test]
    fn stat_survives_names_with_parentheses_and_spaces() {
        let line = b"9193 (a) R 7 (b) S 9192 9183 3807 0 -1 4194304 116 0 0 0 25 31 0 0 20 0 1 0 \
                     90138 3133440 418";
        let read = stat(line).unwrap();
        assert_eq!((read.state, read.ppid), (b'S', 9192));
        assert_eq!((read.user_ticks, read.system_ticks), (25, 31));
        assert_eq!(read.start_ticks, 90138);
    }

    #[test]
    fn switches_are_found_at_the_end_of_status() {
        let text = b"Name:\tx\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(switches(text), Some((150, 545)));
        assert_eq!(switches(b"Name:\tx\n"), None);
    }

    #[test]
    fn migrations_are_found_in_sched() {
        let text = b"x (1, #threads: 1)\n---\nse.nr_migrations      :        17\nnr_switches : 3\n";
        assert_eq!(migrations(text), Some(17));
        assert_eq!(migrations(b"nothing"), None);
    }

    #[test]
    fn numbers_that_overflow_are_refused() {
        assert_eq!(number(b" 18446744073709551615\n"), Some(u64::MAX));
        assert_eq!(number(b"18446744073709551616"), None);
        assert_eq!(number(b"-1"), None);
    }
}
