//! What the manager has been told for people who ask it: the runtimes that follow, and how turns are kept.

use corewise_abi::message::{MAX_NAME, MAX_TEXT, MOST_NAMES, ToManager, TurnsBy, features};

/// What was said last, to the manager that there is now.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Whether it understands: an older one is told nothing.
    hears: bool,
    /// `None`: nothing yet.
    follows: Option<Vec<&'static str>>,
    /// Whether it understands whether the program spins.
    hears_of_spinning: bool,
    spins: bool,
    hears_of_turns: bool,
    /// `None`: nothing yet.
    turns_by: Option<TurnsBy>,
}

impl Said {
    /// To a manager with these feature bits nothing has been said yet.
    pub(super) fn to(manager: u64) -> Said {
        Said {
            hears: manager & features::FOLLOWS != 0,
            follows: None,
            hears_of_spinning: manager & features::SPINS != 0,
            spins: false,
            hears_of_turns: manager & features::TURNS_BY != 0,
            turns_by: None,
        }
    }

    /// What is to be said when turns are kept `by` this: nothing unless it is news.
    pub(super) fn turns(&mut self, by: TurnsBy) -> Option<ToManager> {
        let by = TurnsBy {
            means: by.means.map(|name| cut(&name, MAX_NAME)),
            why_not: by.why_not.map(|why| cut(&why, MAX_TEXT)),
        };
        if !self.hears_of_turns || self.turns_by.as_ref() == Some(&by) {
            return None;
        }
        self.turns_by = Some(by.clone());
        Some(ToManager::TurnsBy(by))
    }

    /// What is to be said when the program `spins`, or does not: nothing unless it is news.
    pub(super) fn spinning(&mut self, spins: bool) -> Option<ToManager> {
        let news = self.hears_of_spinning && self.spins != spins;
        self.spins = spins;
        news.then_some(ToManager::Spins(spins))
    }

    /// What is to be said when these runtimes `follow`, and those `stay`: nothing unless it is news.
    pub(super) fn next(&mut self, follow: Vec<&'static str>, stay: &[String]) -> Option<ToManager> {
        if !self.hears || self.follows.as_ref() == Some(&follow) {
            return None;
        }
        let said = ToManager::Follows {
            runtimes: names(follow.iter().copied()),
            stay: names(stay.iter().map(String::as_str)),
        };
        self.follows = Some(follow);
        Some(said)
    }
}

/// As many as a message should have, none too long.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> Vec<String> {
    all.take(MOST_NAMES)
        .map(|name| cut(name, MAX_NAME))
        .collect()
}

fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_said_once_and_again_when_it_has_changed() {
        let mut said = Said::to(features::FOLLOWS);
        let stay = ["rayon".to_owned()];
        let first = said.next(vec![], &stay);
        assert!(matches!(first, Some(ToManager::Follows { runtimes, stay })
            if runtimes.is_empty() && stay == ["rayon"]));
        assert_eq!(said.next(vec![], &stay), None);
        assert!(said.next(vec!["libgomp"], &stay).is_some());
        assert_eq!(said.next(vec!["libgomp"], &stay), None);
    }

    #[test]
    fn a_manager_that_does_not_understand_it_is_told_nothing() {
        let mut said = Said::to(features::RULE);
        assert_eq!(said.next(vec!["libgomp"], &[]), None);
    }

    #[test]
    fn that_it_spins_is_said_once_to_a_manager_that_understands() {
        let mut said = Said::to(features::SPINS);
        assert_eq!(said.spinning(false), None);
        assert_eq!(said.spinning(true), Some(ToManager::Spins(true)));
        assert_eq!(said.spinning(true), None);
        assert_eq!(said.spinning(false), Some(ToManager::Spins(false)));
        assert_eq!(Said::to(features::FOLLOWS).spinning(true), None);
    }

    #[test]
    fn how_turns_are_kept_is_said_once_and_again_when_other_means_are_used() {
        let mut said = Said::to(features::TURNS_BY);
        let by = |means: &str, why: Option<&str>| TurnsBy {
            means: Some(means.to_owned()),
            why_not: why.map(str::to_owned),
        };
        assert!(said.turns(by("ptrace", None)).is_some());
        assert_eq!(said.turns(by("ptrace", None)), None);
        let why = "é".repeat(MAX_TEXT);
        let Some(ToManager::TurnsBy(second)) = said.turns(by("cpu.idle", Some(&why))) else {
            panic!("nothing is said");
        };
        assert_eq!(second.means.as_deref(), Some("cpu.idle"));
        assert_eq!(second.why_not.map(|why| why.len()), Some(MAX_TEXT));
        assert_eq!(said.turns(by("cpu.idle", Some(&why))), None);
        assert_eq!(Said::to(features::WAITS).turns(by("ptrace", None)), None);
    }

    #[test]
    fn long_names_are_cut_to_what_a_message_has_room_for() {
        let mut said = Said::to(features::FOLLOWS);
        let stay = vec!["ü".repeat(MAX_NAME); 1_000];
        let Some(ToManager::Follows { stay, .. }) = said.next(vec![], &stay) else {
            panic!("nothing is said");
        };
        assert_eq!(stay.len(), MOST_NAMES);
        assert!(stay.iter().all(|name| name.len() <= MAX_NAME));
    }
}
