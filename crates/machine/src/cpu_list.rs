//! The kernel's lists of CPUs: `0-3,8,10-11`.

/// Numbers above this are refused: Linux is built for at most 8,192 CPUs, and a list is data from
/// outside that must not make us allocate without bound.
const MAX_CPU: u32 = 65_535;

/// The CPUs of a list, ascending and each once; `None` where it is no list. An empty text is an
/// empty list. The rare `0-31:2/8` (groups) is understood, as the kernel's own parser does.
pub fn parse(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.trim().is_empty()) {
        let (range, group) = match part.trim().split_once(':') {
            Some((range, group)) => (range, Some(group)),
            None => (part.trim(), None),
        };
        let (first, last) = match range.split_once('-') {
            Some((a, b)) => (a.parse().ok()?, b.parse().ok()?),
            None => {
                let cpu: u32 = range.parse().ok()?;
                (cpu, cpu)
            }
        };
        if first > last || last > MAX_CPU {
            return None;
        }
        let (used, size): (u32, u32) = match group {
            Some(g) => {
                let (used, size) = g.split_once('/')?;
                (used.parse().ok()?, size.parse().ok()?)
            }
            None => (1, 1),
        };
        if size == 0 || used > size {
            return None;
        }
        cpus.extend((first..=last).filter(|cpu| (cpu - first) % size < used));
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// The list as the kernel writes it. `cpus` must ascend.
pub fn format(cpus: &[u32]) -> String {
    let mut text = String::new();
    let mut rest = cpus;
    while let Some(&first) = rest.first() {
        let mut run = 1;
        while rest.get(run) == Some(&(first + run as u32)) {
            run += 1;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&first.to_string());
        if run > 1 {
            text.push('-');
            text.push_str(&(first + run as u32 - 1).to_string());
        }
        rest = &rest[run..];
    }
    text
}

/// The CPUs that are in both lists, which must ascend.
pub(crate) fn intersect(a: &[u32], b: &[u32]) -> Vec<u32> {
    a.iter()
        .copied()
        .filter(|cpu| b.binary_search(cpu).is_ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse("\n"), Some(vec![]));
        assert_eq!(parse("5,1,1-2"), Some(vec![1, 2, 5]));
        assert_eq!(parse("0-7:2/4"), Some(vec![0, 1, 4, 5]));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["a", "3-1", "1-", "-1", "0-4294967295", "0-7:5/4", "0-7:1/0"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_written_list_reads_back() {
        for text in ["0", "0-1023", "0-3,8,10-11", "1,3,5", ""] {
            assert_eq!(format(&parse(text).unwrap()), text);
        }
    }
}
