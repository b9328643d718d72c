//! Reading a machine file.

use super::{Costs, Error, HeatModel, MAX_CPUS, Node, Scheduler, SimMachine};
use corewise_decide::status::CpuPlace;
use corewise_machine::Topology;
use corewise_machine::topology::Kind;
use serde::Deserialize;
use std::fmt::Display;
use toml::de::{DeTable, DeValue};

/// A node's memory where nothing is said: about two channels of DDR4.
pub(super) const BANDWIDTH_BYTES_PER_S: f64 = 30e9;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    topology: Shape,
    #[serde(default)]
    costs: Costs,
    #[serde(default = "no_effect")]
    smt: f64,
    node: Option<Memory>,
    #[serde(default)]
    nodes: Vec<Memory>,
    heat: Option<HeatModel>,
    #[serde(default)]
    scheduler: Scheduler,
    l2_bytes: Option<u64>,
    l3_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum Shape {
    Xml(String),
    Synthetic(String),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    bandwidth_bytes_per_s: f64,
    #[serde(default = "no_effect")]
    remote_factor: f64,
}

fn no_effect() -> f64 {
    1.0
}

impl SimMachine {
    /// One from a machine file's text. `xml` gives the text of an XML file that it names.
    ///
    /// The file: `name`; `topology = { synthetic = "package:4 …" }` or `{ xml = "FILE" }`; and optionally
    /// `scheduler` (see [`Scheduler`]), `smt`, `l2_bytes` and `l3_bytes` (where hwloc does not say them), `[costs]`
    /// (see [`Costs`]), `[heat]` (see [`HeatModel`]), `[node]` for all NUMA nodes or `[[nodes]]` for each:
    /// `bandwidth_bytes_per_s`, `remote_factor`.
    ///
    /// # Errors
    /// [`Error`] with key, line and reason: no TOML, an unknown key, an XML that is not there, a topology
    /// that hwloc refuses, no CPU or more than [`MAX_CPUS`], CPU numbers with gaps, a value out of range.
    pub fn from_toml<E: Display>(
        text: &str,
        xml: impl Fn(&str) -> Result<String, E>,
    ) -> Result<SimMachine, Error> {
        let file: File = toml::from_str(text).map_err(|e| Error::Toml {
            line: e.span().map(|span| line_at(text, span.start)),
            why: e.message().to_owned(),
        })?;
        let lines = Lines(text);
        let topology = file.topology.build(&lines, &xml)?;
        let machine = file.with(&topology, &lines)?;
        Ok(machine)
    }
}

impl Shape {
    fn build<E: Display>(
        &self,
        lines: &Lines<'_>,
        xml: impl Fn(&str) -> Result<String, E>,
    ) -> Result<Topology, Error> {
        let refused = |why: String| Error::Topology {
            line: lines.of(&["topology"]),
            why,
        };
        let topology = match self {
            Shape::Xml(file) => {
                let text = xml(file).map_err(|e| refused(format!("cannot read {file}: {e}")))?;
                Topology::from_xml(&text).map_err(|e| refused(format!("{file}: {e}")))?
            }
            Shape::Synthetic(text) => {
                Topology::from_synthetic(text).map_err(|e| refused(e.to_string()))?
            }
        };
        let cpus = topology.places().len();
        if cpus > MAX_CPUS as usize {
            return Err(refused(format!("{cpus} CPUs are more than {MAX_CPUS}")));
        }
        let places = topology.places();
        let gap = (0..).zip(&places).find(|(at, place)| *at != place.cpu);
        match gap {
            Some((at, _)) => Err(refused(format!(
                "there is no CPU {at}: CPUs must be numbered from 0 without gaps"
            ))),
            None => Ok(topology),
        }
    }
}

impl File {
    fn with(self, topology: &Topology, lines: &Lines<'_>) -> Result<SimMachine, Error> {
        let places: Vec<CpuPlace> = topology.places().iter().map(CpuPlace::from).collect();
        let nodes = places
            .iter()
            .map(|p| p.node as usize + 1)
            .max()
            .unwrap_or(1);
        let memories = self.memories(nodes, lines)?;
        if !(self.smt > 0.0 && self.smt <= 1.0) {
            return Err(lines.refuse(&["smt"], format!("{} is not above 0, up to 1", self.smt)));
        }
        if let Some((key, why)) = self.costs.wrong() {
            return Err(lines.refuse(&["costs", key], why));
        }
        if let Some((key, why)) = self.heat.as_ref().and_then(HeatModel::wrong) {
            return Err(lines.refuse(&["heat", key], why));
        }
        if let Scheduler::Solaris { quantum_ns } = self.scheduler
            && !(1_000_000..=1_000_000_000).contains(&quantum_ns)
        {
            let why = format!("{quantum_ns} is not between 1000000 and 1000000000");
            return Err(lines.refuse(&["scheduler", "solaris", "quantum_ns"], why));
        }
        let size = |kind| topology.objects(kind).first().and_then(|o| o.size_bytes);
        let has_l3 = topology.count(Kind::L3) > 0 || self.l3_bytes.is_some_and(|bytes| bytes > 0);
        let l3 = self.l3_bytes.or(size(Kind::L3));
        Ok(SimMachine {
            name: self.name,
            places,
            has_l3,
            costs: self.costs,
            smt: self.smt,
            nodes: memories,
            l2_bytes: self.l2_bytes.or(size(Kind::L2)).unwrap_or(1 << 20),
            heat: self.heat,
            scheduler: self.scheduler,
            l3_bytes: if has_l3 { l3.unwrap_or(16 << 20) } else { 0 },
        })
    }

    fn memories(&self, nodes: usize, lines: &Lines<'_>) -> Result<Vec<Node>, Error> {
        let one = self.node.unwrap_or(Memory {
            bandwidth_bytes_per_s: BANDWIDTH_BYTES_PER_S,
            remote_factor: 1.0,
        });
        let (all, key) = match self.nodes.len() {
            0 => (vec![one; nodes], "node"),
            said if said == nodes => (self.nodes.clone(), "nodes"),
            said => {
                let why = format!("{said} are described, the topology has {nodes}");
                return Err(lines.refuse(&["nodes"], why));
            }
        };
        for memory in &all {
            let bandwidth = memory.bandwidth_bytes_per_s;
            if !(1e6..=1e15).contains(&bandwidth) {
                let why = format!("{bandwidth} bytes a second are not between 1e6 and 1e15");
                return Err(lines.refuse(&[key, "bandwidth_bytes_per_s"], why));
            }
            let factor = memory.remote_factor;
            if !(1.0..=100.0).contains(&factor) {
                let why = format!("{factor} is not between 1 and 100");
                return Err(lines.refuse(&[key, "remote_factor"], why));
            }
        }
        let node = |memory: &Memory| Node {
            bandwidth_bytes_per_s: memory.bandwidth_bytes_per_s,
            remote_factor: memory.remote_factor,
        };
        Ok(all.iter().map(node).collect())
    }
}

/// Where keys stand in a file.
struct Lines<'a>(&'a str);

impl Lines<'_> {
    fn refuse(&self, path: &[&str], why: String) -> Error {
        Error::Value {
            key: path.join("."),
            line: self.of(path),
            why,
        }
    }

    /// The line, from 1, of the value at that path; of the last table on it that the file has.
    fn of(&self, path: &[&str]) -> Option<usize> {
        let table = DeTable::parse(self.0).ok()?;
        let mut at = None;
        let mut inside = Some(table.get_ref());
        for key in path {
            let Some(value) = inside.and_then(|table| table.get(*key)) else {
                break;
            };
            at = Some(line_at(self.0, value.span().start));
            inside = match value.get_ref() {
                DeValue::Table(table) => Some(table),
                _ => None,
            };
        }
        at
    }
}

fn line_at(text: &str, byte: usize) -> usize {
    let before = text.as_bytes().get(..byte).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|b| **b == b'\n').count()
}
