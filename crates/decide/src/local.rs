//! The local part of policies: where a program's threads run within its claim.

use crate::cpus::CpuSet;
use crate::status::LocalRule;

/// The CPUs of each of `threads` (in the order of their creation) within a claim of `cpus`; `None`
/// where the rule leaves them where they are.
///
/// [`LocalRule::OneEach`] is the mapping of the example in section 2.1 of REEact's paper: a CPU for
/// each thread, and threads for which none is left share from the first CPU on.
pub fn place(rule: LocalRule, cpus: &CpuSet, threads: usize) -> Option<Vec<CpuSet>> {
    if cpus.is_empty() {
        return None;
    }
    match rule {
        LocalRule::Leave => None,
        LocalRule::Whole => Some(vec![cpus.clone(); threads]),
        LocalRule::OneEach => {
            let each: Vec<CpuSet> = cpus.iter().map(|cpu| CpuSet::from_iter([cpu])).collect();
            Some(each.into_iter().cycle().take(threads).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_without_a_cpu_of_their_own_share_from_the_first_one_on() {
        let cpus: CpuSet = (11..16).collect();
        let places = place(LocalRule::OneEach, &cpus, 7).unwrap();
        let places: Vec<String> = places.iter().map(CpuSet::to_string).collect();
        assert_eq!(places, ["11", "12", "13", "14", "15", "11", "12"]);
    }

    #[test]
    fn nobody_is_placed_nowhere() {
        assert_eq!(place(LocalRule::Whole, &CpuSet::new(), 3), None);
    }
}
