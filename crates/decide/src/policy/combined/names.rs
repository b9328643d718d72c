//! Names with `*` in them, which stands for any text.

/// Whether a name fits.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(head) else {
        return false;
    };
    // What comes after the star may begin anywhere in what is left.
    let begins = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    begins.into_iter().any(|at| fits(rest, &name[at..]))
}

/// Whether there is a name that both fit.
pub(super) fn overlap(a: &str, b: &str) -> bool {
    let (first_a, first_b) = (a.chars().next(), b.chars().next());
    match (first_a, first_b) {
        (None, None) => true,
        // The star is nothing, or takes one more letter of the other.
        (Some('*'), _) => {
            overlap(&a[1..], b) || first_b.is_some_and(|c| overlap(a, &b[c.len_utf8()..]))
        }
        (_, Some('*')) => overlap(b, a),
        (Some(x), Some(y)) => x == y && overlap(&a[x.len_utf8()..], &b[y.len_utf8()..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("a*", "abc"),
            ("*c", "abc"),
            ("a*c*", "abcé"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "ab"), ("a*b", "a"), ("*b", "bc"), ("", "a")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn who_fits_two_patterns_shows_that_they_overlap(
            a in "[ab*é]{0,6}", b in "[ab*é]{0,6}", name in "[abé]{0,5}",
        ) {
            if fits(&a, &name) && fits(&b, &name) {
                prop_assert!(overlap(&a, &b));
            }
            prop_assert_eq!(overlap(&a, &b), overlap(&b, &a));
        }

        #[test]
        fn a_pattern_without_stars_overlaps_where_it_fits(a in "[ab*]{0,6}", name in "[ab]{0,5}") {
            prop_assert_eq!(overlap(&a, &name), fits(&a, &name));
        }
    }
}
