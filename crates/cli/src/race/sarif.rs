//! Races in the Static Analysis Results Interchange Format (SARIF 2.1.0, OASIS), which editors and code hosts
//! show beside the source. Written by hand over `serde_json`: the crate for it generates its types from the
//! schema with a dozen build dependencies, for the few that are wanted here.

use corewise_analyses::race::lines::Place;
use corewise_analyses::race::report::{Memory, Report, Side};
use corewise_analyses::race::text;
use serde_json::{Value, json};

/// What there is to say of a run, beside its races.
pub(crate) struct Ran<'a> {
    /// The command as a person would type it.
    pub(crate) line: &'a str,
    /// What the program exited with.
    pub(crate) code: i32,
    /// What was given up, a sentence each.
    pub(crate) losses: &'a [String],
}

/// A log of one run.
pub(crate) fn sarif(races: &[Report], ran: &Ran<'_>) -> String {
    let notes = ran
        .losses
        .iter()
        .map(|loss| json!({ "level": "warning", "message": { "text": loss } }));
    let log = json!({
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "corewise race",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": [{
                    "id": "data-race",
                    "shortDescription": { "text": "Two threads access the same memory, one of them writes, and nothing orders them." },
                }],
            } },
            "invocations": [{
                "commandLine": ran.line,
                "exitCode": ran.code,
                "executionSuccessful": true,
                "toolExecutionNotifications": notes.collect::<Vec<_>>(),
            }],
            "results": races.iter().map(result).collect::<Vec<_>>(),
        }],
    });
    format!("{log}\n")
}

fn result(race: &Report) -> Value {
    let [one, other] = &race.sides;
    let mut stacks = vec![
        stack(&text::heading(one), &one.stack),
        stack(&text::heading(other), &other.stack),
    ];
    if let Memory::Block { allocated, .. } = &race.memory {
        stacks.push(stack("the block was allocated", allocated));
    }
    json!({
        "ruleId": "data-race",
        "ruleIndex": 0,
        "level": "error",
        "message": { "text": format!(
            "Data race on {}: {}, unordered with {}.",
            text::memory(race),
            text::heading(one),
            text::heading(other),
        ) },
        "locations": [first(one)],
        "relatedLocations": [first(other)],
        "stacks": stacks,
        "partialFingerprints": { "places/v1": text::summary(race) },
    })
}

/// Where an access was made, with what it was.
fn first(side: &Side) -> Value {
    let mut location = side.stack.first().map_or_else(|| json!({}), location);
    location["message"] = json!({ "text": text::heading(side) });
    location
}

fn stack(what: &str, places: &[Place]) -> Value {
    let frames = places
        .iter()
        .map(|place| json!({ "location": location(place), "module": place.module }));
    json!({ "message": { "text": what }, "frames": frames.collect::<Vec<_>>() })
}

fn location(place: &Place) -> Value {
    let logical = json!([{ "name": place.function, "kind": "function" }]);
    match (place.file.as_str(), place.line) {
        ("", _) | (_, 0) => json!({ "logicalLocations": logical }),
        (file, line) => json!({
            "physicalLocation": {
                "artifactLocation": { "uri": uri(file) },
                "region": { "startLine": line },
            },
            "logicalLocations": logical,
        }),
    }
}

/// A path as RFC 3986 has it.
fn uri(path: &str) -> String {
    let mut uri = match path.starts_with('/') {
        true => "file://".to_owned(),
        false => String::new(),
    };
    for byte in path.bytes() {
        match byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            true => uri.push(char::from(byte)),
            false => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_names_both_places_and_what_was_given_up_is_a_notification() {
        let side = |function: &str, line| Side {
            what: "write",
            bytes: 4,
            stack: vec![Place {
                function: function.to_owned(),
                file: "/src/a file.c".to_owned(),
                line,
                ..Place::default()
            }],
            ..Side::default()
        };
        let race = Report {
            pid: 1,
            address: 16,
            sides: [side("one", 3), side("two", 0)],
            memory: Memory::Unknown,
            seen: 1,
        };
        let losses = ["3 accesses were not compared".to_owned()];
        let ran = Ran {
            line: "./a",
            code: 0,
            losses: &losses,
        };
        let log: Value = serde_json::from_str(&sarif(&[race], &ran)).unwrap();
        assert_eq!(log["version"], "2.1.0");
        let run = &log["runs"][0];
        let result = &run["results"][0];
        let physical = &result["locations"][0]["physicalLocation"];
        assert_eq!(
            physical["artifactLocation"]["uri"],
            "file:///src/a%20file.c"
        );
        assert_eq!(physical["region"]["startLine"], 3);
        // Without a line there is no place in a file, and a line of 0 would be against the schema.
        let related = &result["relatedLocations"][0];
        assert!(related.get("physicalLocation").is_none(), "{related}");
        assert_eq!(related["logicalLocations"][0]["name"], "two");
        let notes = &run["invocations"][0]["toolExecutionNotifications"];
        assert_eq!(notes[0]["message"]["text"], losses[0]);
    }
}
