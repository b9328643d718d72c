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

/// What to do about a race.
const HELP: &str = "Have both accesses made under a common lock, make them atomic, or let one come before the other \
                    by a join, condition, semaphore or barrier. The stacks show how each thread came there.";

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
                    "name": "DataRace",
                    "shortDescription": { "text": "Data race" },
                    "fullDescription": { "text": "Two threads access the same memory, one of them writes, and nothing orders them." },
                    "help": { "text": HELP },
                    "defaultConfiguration": { "level": "error" },
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
        // Reading and writing in one line, as in `counter++`, are two races.
        "partialFingerprints": { "places/v1": format!("{} and {}: {}", one.what, other.what, text::summary(race)) },
    })
}

/// Where an access was made, with what it was. Code hosts refuse a whole log where one result is in no file: so this
/// is the innermost place whose line is known, or else the program's or library's file.
fn first(side: &Side) -> Value {
    let lined = side.stack.iter().find(|place| has_line(place));
    let mut found = lined
        .or(side.stack.first())
        .map_or_else(|| json!({}), location);
    if let (None, Some(place)) = (lined, side.stack.first())
        && !place.module.is_empty()
    {
        let file = json!({ "artifactLocation": { "uri": uri(&place.module) } });
        found["physicalLocation"] = file;
    }
    found["message"] = json!({ "text": text::heading(side) });
    found
}

fn has_line(place: &Place) -> bool {
    !place.file.is_empty() && place.line > 0
}

fn stack(what: &str, places: &[Place]) -> Value {
    let frames = places
        .iter()
        .map(|place| json!({ "location": location(place), "module": place.module }));
    json!({ "message": { "text": what }, "frames": frames.collect::<Vec<_>>() })
}

fn location(place: &Place) -> Value {
    let logical = json!([{ "name": place.function, "kind": "function" }]);
    match has_line(place) {
        false => json!({ "logicalLocations": logical }),
        true => json!({
            "physicalLocation": {
                "artifactLocation": { "uri": uri(&place.file) },
                "region": { "startLine": place.line },
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

    fn place(function: &str, line: u32) -> Place {
        Place {
            function: function.to_owned(),
            file: "/src/a file.c".to_owned(),
            line,
            module: "/bin/a".to_owned(),
            ..Place::default()
        }
    }

    fn race(stacks: [Vec<Place>; 2]) -> Report {
        Report {
            pid: 1,
            address: 16,
            sides: stacks.map(|stack| Side {
                what: "write",
                bytes: 4,
                stack,
                ..Side::default()
            }),
            memory: Memory::Unknown,
            seen: 1,
        }
    }

    #[test]
    fn every_result_is_in_a_file_and_in_a_line_of_it_where_one_is_known() {
        let without = vec![place("inner", 0)];
        let deeper = vec![place("inner", 0), place("outer", 7)];
        let ran = Ran {
            line: "./a",
            code: 0,
            losses: &[],
        };
        let log = sarif(&[race([without, deeper])], &ran);
        let log: Value = serde_json::from_str(&log).unwrap();
        let result = &log["runs"][0]["results"][0];
        let file = &result["locations"][0]["physicalLocation"];
        assert_eq!(file["artifactLocation"]["uri"], "file:///bin/a");
        // A region without a line, or with a line of 0, would be against the schema.
        assert!(file.get("region").is_none(), "{file}");
        let line = &result["relatedLocations"][0]["physicalLocation"]["region"];
        assert_eq!(line["startLine"], 7);
    }

    #[test]
    fn a_result_names_both_places_and_what_was_given_up_is_a_notification() {
        let race = race([vec![place("one", 3)], vec![place("two", 0)]]);
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
        let related = &result["relatedLocations"][0];
        assert_eq!(related["logicalLocations"][0]["name"], "two");
        let notes = &run["invocations"][0]["toolExecutionNotifications"];
        assert_eq!(notes[0]["message"]["text"], losses[0]);
    }
}
