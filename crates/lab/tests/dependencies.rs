//! Every dependency has a licence that deny.toml allows, and comes from where deny.toml lets it come
//! from. This is the part of cargo-deny that needs neither it (five minutes to build) nor a network.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, LicenseReq, ParseMode};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The packages that are built here, as cargo describes them.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {said}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// The requirements of `licenses.allow` in deny.toml: a licence each, some with an exception.
fn allowed() -> Vec<LicenseReq> {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let deny: toml::Value = toml::from_str(&text).unwrap();
    let allow = deny["licenses"]["allow"].as_array().unwrap();
    allow
        .iter()
        .flat_map(|name| {
            let expression = Expression::parse(name.as_str().unwrap()).unwrap();
            let requirements = expression.requirements();
            requirements.map(|one| one.req.clone()).collect::<Vec<_>>()
        })
        .collect()
}

/// Whether one can choose among what the expression offers so that everything chosen is allowed.
fn is_allowed(licence: &str, allowed: &[LicenseReq]) -> bool {
    match Expression::parse_mode(licence, ParseMode::LAX) {
        Ok(expression) => expression.evaluate(|wanted| allowed.contains(wanted)),
        Err(_) => false,
    }
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let allowed = allowed();
    let packages = packages();
    assert!(packages.len() > 10, "cargo metadata lists the dependencies");
    let wrong = packages
        .iter()
        .filter(|package| !is_allowed(package["license"].as_str().unwrap_or(""), &allowed))
        .map(|package| {
            format!(
                "{} {}: {}",
                package["name"], package["version"], package["license"]
            )
        })
        .collect::<Vec<_>>();
    assert!(
        wrong.is_empty(),
        "licences that deny.toml does not allow: {wrong:#?}"
    );
}

#[test]
fn every_dependency_comes_from_crates_io_or_this_repository() {
    let wrong = packages()
        .iter()
        .filter(|package| !matches!(package["source"].as_str(), None | Some(CRATES_IO)))
        .map(|package| format!("{} from {}", package["name"], package["source"]))
        .collect::<Vec<_>>();
    assert!(
        wrong.is_empty(),
        "sources that deny.toml does not allow: {wrong:#?}"
    );
}

#[test]
fn a_choice_of_licences_is_allowed_where_one_of_them_is() {
    let allowed = allowed();
    assert!(is_allowed("MIT OR GPL-3.0-only", &allowed));
    assert!(is_allowed("MIT/Apache-2.0", &allowed));
    assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0", &allowed));
    assert!(!is_allowed("GPL-2.0-or-later", &allowed));
    assert!(!is_allowed("MIT AND GPL-3.0-only", &allowed));
    assert!(!is_allowed("", &allowed));
}
