//! `corewise machine`: what this machine is, what we may use of it, what can be read and set here.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use corewise_machine::effective::{EffectiveCpus, LimitValue};
use corewise_machine::sensors::{self, Facility};
use corewise_machine::topology::{Kind, Object};
use corewise_machine::{Root, Topology, cpu_list, effective_cpus};
use serde::Serialize;

mod drawing;
mod hardware;

use drawing::Drawing;
use hardware::Hardware;

/// Show the machine: its topology, the CPUs that may be used and why no more, what its hardware says, its
/// sensors and controls with the reason where one is missing.
#[derive(clap::Args, Debug)]
pub(crate) struct MachineArgs {
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,

    /// Show another machine's topology: a file of hwloc's XML (lstopo FILE.xml), or hwloc's synthetic
    /// notation such as "package:4 numa:1 l3:1 core:6 pu:1". All its CPUs count as usable; it has no
    /// sensors and no controls, unless there is --root.
    #[arg(long, value_name = "FILE.xml|SYNTHETIC")]
    topology: Option<String>,

    /// The other machine's sensors and controls: a folder that holds its `proc`, `sys` and `dev`, or what of
    /// them was copied.
    #[arg(long, value_name = "FOLDER", requires = "topology")]
    root: Option<PathBuf>,

    /// Draw the topology, with frequency and temperature of each CPU where they are known, and whether it may
    /// be used.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs the subcommand.
///
/// # Errors
/// When the topology or the CPUs that may be used cannot be read, or the output not be written.
pub(crate) fn run(args: MachineArgs) -> Result<ExitCode> {
    let report = match &args.topology {
        None => Report::of_this_machine()?,
        Some(description) => Report::of_another(topology(description)?, args.root.map(Root::at)),
    };
    if let Some(path) = &args.svg {
        let drawing = Drawing {
            topology: &report.topology,
            allowed: &report.effective_cpus.cpus.cpus,
            hardware: &report.hardware,
        };
        std::fs::write(path, drawing.svg())
            .with_context(|| format!("the picture cannot be written to {}", path.display()))?;
    }
    let text = match args.json {
        true => serde_json::to_string(&report)? + "\n",
        false => report.text(std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())),
    };
    crate::output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn topology(description: &str) -> Result<Topology> {
    let file = Path::new(description);
    let is_xml = file.extension().is_some_and(|e| e == "xml");
    if !is_xml && !file.is_file() {
        return Ok(Topology::from_synthetic(description)?);
    }
    let xml = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the topology in {description}"))?;
    Topology::from_xml(&xml).with_context(|| format!("in {description}"))
}

/// What `--json` prints. Its keys are relied upon: add, never rename.
#[derive(Debug, Serialize)]
struct Report {
    effective_cpus: Effective,
    sensors: Vec<Facility>,
    controls: Vec<Facility>,
    hardware: Hardware,
    topology: Topology,
}

#[derive(Debug, Serialize)]
struct Effective {
    /// How many threads these CPUs can run at once.
    threads: u32,
    #[serde(flatten)]
    cpus: EffectiveCpus,
}

impl Report {
    fn of_this_machine() -> Result<Self> {
        let root = Root::system();
        let cpus = effective_cpus(&root, None)?;
        Ok(Self {
            effective_cpus: Effective {
                threads: cpus.threads(),
                cpus,
            },
            sensors: sensors::sensors(&root),
            controls: sensors::controls(&root),
            hardware: Hardware::read(&root),
            topology: Topology::this_machine()?,
        })
    }

    /// `root`: where its files are, if there are any.
    fn of_another(topology: Topology, root: Option<Root>) -> Self {
        let cpus = EffectiveCpus {
            cpus: topology.cpus().to_vec(),
            quota: None,
            count: topology.cpus().len() as f64,
            limits: Vec::new(),
        };
        Self {
            effective_cpus: Effective {
                threads: cpus.threads(),
                cpus,
            },
            sensors: root.as_ref().map(sensors::sensors).unwrap_or_default(),
            controls: root.as_ref().map(sensors::controls).unwrap_or_default(),
            hardware: root.as_ref().map(Hardware::read).unwrap_or_default(),
            topology,
        }
    }

    fn text(&self, colour: bool) -> String {
        let mut text = format!(
            "Topology of {}\n  {}\n",
            self.topology.origin,
            self.topology.summary()
        );
        tree(&self.topology.root, 1, &mut text);
        self.effective_text(&mut text);
        let hardware = self.hardware.text();
        if !hardware.is_empty() {
            let _ = write!(text, "\nHardware now\n{hardware}");
        }
        for (title, list) in [("Sensors", &self.sensors), ("Controls", &self.controls)] {
            if !list.is_empty() {
                // Writing to a String does not fail.
                let _ = write!(text, "\n{title}\n{}\n", table(list, colour));
            }
        }
        text
    }

    fn effective_text(&self, text: &mut String) {
        let Effective { threads, cpus } = &self.effective_cpus;
        let quota = match cpus.quota {
            Some(quota) => format!(", of whose time a quota allows {quota:.2} CPUs"),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "\nEffective CPUs\n  room for {} on {}{quota}",
            counted(*threads as usize, "thread", "threads"),
            named(&cpus.cpus),
        );
        for limit in &cpus.limits {
            let unknown = match limit.value {
                LimitValue::Unknown => "unknown: ",
                _ => "",
            };
            let _ = writeln!(text, "  - {unknown}{} ({})", limit.why, limit.source);
        }
    }
}

/// Packages, NUMA nodes and L3 caches, one a line. What is smaller is counted, not drawn: a machine
/// of 128 cores should fit on a screen.
fn tree(object: &Object, depth: usize, text: &mut String) {
    let name = match object.kind {
        Kind::Package => Some("package"),
        Kind::NumaNode => Some("NUMA node"),
        Kind::L3 => Some("L3"),
        _ => None,
    };
    let mut below = depth;
    if let Some(name) = name {
        let _ = write!(text, "{:width$}{name}", "", width = depth * 2);
        if let Some(index) = object.os_index {
            let _ = write!(text, " {index}");
        }
        if let Some(size) = object.size_bytes {
            let _ = write!(text, " ({})", bytes(size));
        }
        let _ = writeln!(text, ": {}", named(&object.cpus));
        below += 1;
    }
    for child in &object.children {
        tree(child, below, text);
    }
}

/// `CPU 3`, `CPUs 0-7`.
fn named(cpus: &[u32]) -> String {
    let list = cpu_list::format(cpus);
    match cpus.len() {
        0 => "no CPU".into(),
        1 => format!("CPU {list}"),
        _ => format!("CPUs {list}"),
    }
}

fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A size in the largest binary unit of which it holds at least one.
fn bytes(size: u64) -> String {
    let mut value = size as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    match value.fract() < 0.05 {
        true => format!("{value:.0} {unit}"),
        false => format!("{value:.1} {unit}"),
    }
}

/// Name, whether it is there, and why. As wide as the terminal; colour goes to terminals only.
fn table(list: &[Facility], colour: bool) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    for facility in list {
        let (word, shade) = match facility.available {
            true => ("yes", Color::Green),
            false => ("no", Color::Yellow),
        };
        let word = match colour {
            true => Cell::new(word).fg(shade),
            false => Cell::new(word),
        };
        table.add_row([
            Cell::new(format!(" {}", facility.name)),
            word,
            Cell::new(&facility.why),
        ]);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(description: &str) -> Report {
        Report::of_another(topology(description).unwrap(), None)
    }

    #[test]
    fn another_machine_is_drawn_down_to_its_caches() {
        let text = report("package:2 numa:1 l3:2 core:3 pu:1").text(false);
        assert!(
            text.contains("12 CPUs: 2 packages, 2 NUMA nodes, 4 L3, 12 cores"),
            "{text}"
        );
        assert!(text.contains("\n  package 1: CPUs 6-11\n"), "{text}");
        assert!(text.contains(": CPUs 9-11\n"), "{text}");
        assert!(
            text.contains("room for 12 threads on CPUs 0-11\n"),
            "{text}"
        );
    }

    #[test]
    fn the_json_has_the_keys_that_others_rely_on() {
        let value = serde_json::to_value(Report::of_this_machine().unwrap()).unwrap();
        let effective = &value["effective_cpus"];
        assert!(effective["count"].as_f64().unwrap() > 0.0);
        assert!(effective["threads"].as_u64().unwrap() >= 1);
        assert!(!effective["cpus"].as_array().unwrap().is_empty());
        assert!(effective.get("quota").is_some());
        assert!(effective["limits"].is_array());
        for list in ["sensors", "controls"] {
            for facility in value[list].as_array().unwrap() {
                assert!(facility["name"].is_string());
                assert!(facility["available"].is_boolean());
                assert!(!facility["why"].as_str().unwrap().is_empty());
            }
        }
        assert_eq!(value["topology"]["root"]["kind"], "machine");
    }

    #[test]
    fn text_without_colour_has_no_escapes() {
        let text = Report::of_this_machine().unwrap().text(false);
        assert!(!text.contains('\x1b'));
        assert!(text.contains("\nSensors\n") && text.contains("\nControls\n"));
    }

    #[test]
    fn a_missing_file_and_a_bad_description_are_errors() {
        let missing = format!("{:#}", topology("/no/such.xml").unwrap_err());
        assert!(missing.contains("/no/such.xml"), "{missing}");
        assert!(topology("gibberish").is_err());
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(2 << 20), "2 MiB");
        assert_eq!(bytes(7_342_338_048), "6.8 GiB");
    }
}
