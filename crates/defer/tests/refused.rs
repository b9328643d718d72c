//! What `#[deferred]` does not allow is a compile error that says why, where it stands.

#[test]
fn what_is_not_allowed_is_said_where_it_stands() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
