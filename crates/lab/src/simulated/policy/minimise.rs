//! Making a case smaller while it still shows what it shows.

use anyhow::Result;

use super::cases::{Case, Kind, Made};

/// The smallest case that `shows` the same: fewer programs, shorter ones, all from the beginning, in one
/// session, on fewer CPUs; whichever of these still shows it.
pub(super) fn minimise(case: &Case, shows: &dyn Fn(&Case) -> Result<bool>) -> Result<Case> {
    let mut small = case.clone();
    loop {
        let mut found = None;
        for candidate in smaller(&small) {
            if candidate.programs.iter().any(|p| p.kind.ends()) && shows(&candidate)? {
                found = Some(candidate);
                break;
            }
        }
        match found {
            Some(candidate) => small = candidate,
            None => return Ok(small),
        }
    }
}

/// What is a little smaller, the boldest first.
fn smaller(case: &Case) -> Vec<Case> {
    let mut all = Vec::new();
    for index in 0..case.programs.len() {
        let mut programs = case.programs.clone();
        programs.remove(index);
        all.push(case.with(programs));
    }
    let mut change = |index: usize, to: Option<Made>| {
        if let Some(made) = to.filter(|made| *made != case.programs[index]) {
            let mut programs = case.programs.clone();
            programs[index] = made;
            all.push(case.with(programs));
        }
    };
    for (index, made) in case.programs.iter().enumerate() {
        let with = |kind: Kind| Made {
            kind,
            ..made.clone()
        };
        change(
            index,
            Some(Made {
                start_ms: 0,
                ..made.clone()
            }),
        );
        change(
            index,
            Some(Made {
                session: 0,
                ..made.clone()
            }),
        );
        change(index, made.kind.shorter().map(with));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let case = (0..100)
            .map(Case::random)
            .find(|case| case.programs.len() > 3)
            .unwrap();
        let word = case.programs.iter().find(|p| p.kind.ends()).unwrap();
        let word = word.kind.word();
        let small = minimise(&case, &|case| {
            Ok(case.programs.iter().any(|p| p.kind.word() == word))
        });
        let small = small.unwrap();
        assert_eq!(small.programs.len(), 1);
        assert_eq!(small.programs[0].start_ms, 0);
        assert_eq!(small.programs[0].kind.shorter(), None);
    }
}
