//! Reports as people read them.

use super::lines::Place;
use super::report::{Memory, Report, Side, Thread};
use std::fmt::Write as _;

/// A report in a few lines.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    let [one, other] = &report.sides;
    line(
        &mut text,
        0,
        &format!("data race on {} (process {})", memory(report), report.pid),
    );
    for (side, relation) in [(one, ""), (other, "unordered with ")] {
        line(&mut text, 1, &format!("{relation}{}", heading(side)));
        stack(&mut text, &side.stack);
        if !side.locks.is_empty() {
            line(&mut text, 2, &format!("holding {}", side.locks.join(", ")));
        }
    }
    if let Memory::Block {
        allocated,
        thread,
        again,
        ..
    } = &report.memory
    {
        let since = match again {
            true => " (freed, and now another's)",
            false => "",
        };
        line(
            &mut text,
            1,
            &format!("the block was allocated by {}{since}", named(thread)),
        );
        stack(&mut text, allocated);
    }
    for thread in threads(report) {
        if !thread.created.is_empty() {
            line(
                &mut text,
                1,
                &format!("{} was created by thread {}", named(thread), thread.parent),
            );
            stack(&mut text, &thread.created);
        }
    }
    text
}

/// What memory it is that was accessed.
pub fn memory(report: &Report) -> String {
    match &report.memory {
        Memory::Variable {
            name, offset: 0, ..
        } => name.clone(),
        Memory::Variable { name, offset, .. } => format!("{name}+{offset}"),
        Memory::Block { bytes, offset, .. } => {
            format!(
                "0x{:x}, {offset} bytes inside a block of {bytes}",
                report.address
            )
        }
        Memory::Descriptor(number) => format!("file descriptor {number}"),
        Memory::Unknown => format!("0x{:x}", report.address),
    }
}

/// One line that says the race.
pub fn summary(report: &Report) -> String {
    let place = |side: &Side| side.stack.first().map_or("?".to_owned(), place);
    format!(
        "{} and {}",
        place(&report.sides[0]),
        place(&report.sides[1])
    )
}

fn threads(report: &Report) -> Vec<&Thread> {
    let mut threads: Vec<_> = report.sides.iter().map(|side| &side.thread).collect();
    threads.sort();
    threads.dedup();
    threads
}

/// What a side did, and who it was.
pub fn heading(side: &Side) -> String {
    let bytes = match side.bytes {
        1 => "1 byte".to_owned(),
        bytes => format!("{bytes} bytes"),
    };
    format!("{} of {bytes} by {}", side.what, named(&side.thread))
}

fn named(thread: &Thread) -> String {
    match (thread.index, thread.name.as_str()) {
        (0, "") => "the main thread".to_owned(),
        (index, "") => format!("thread {index} (tid {})", thread.tid),
        (index, name) => format!("thread {index} '{name}' (tid {})", thread.tid),
    }
}

fn stack(text: &mut String, places: &[Place]) {
    for (index, at) in places.iter().enumerate() {
        line(text, 2, &format!("#{index} {}", place(at)));
    }
    if places.is_empty() {
        line(text, 2, "(where is not known)");
    }
}

fn place(place: &Place) -> String {
    match (place.line, place.file.as_str()) {
        (0, _) | (_, "") => format!("{} ({}+0x{:x})", place.function, place.module, place.offset),
        (line, file) => format!("{} {file}:{line}", place.function),
    }
}

fn line(text: &mut String, depth: usize, what: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}{what}", "  ".repeat(depth));
}
