//! What the hardware says now.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use corewise_decide::reading::CpuHeat;
use corewise_machine::Root;
use corewise_machine::energy::EnergyReader;
use corewise_machine::frequency::{CpuFrequency, FrequencyReader};
use corewise_machine::heat::HeatReader;
use corewise_machine::throttling::{CpuThrottling, throttling};
use serde::Serialize;

/// How long energy is counted for a mean power.
const COUNTED: Duration = Duration::from_millis(100);

/// What the sensors of the hardware say, by CPU; empty where there are none.
#[derive(Debug, Default, Serialize)]
pub(super) struct Hardware {
    pub(super) frequencies: Vec<CpuFrequency>,
    pub(super) temperatures: Vec<CpuHeat>,
    pub(super) throttling: Vec<CpuThrottling>,
    /// Mean power of a tenth of a second.
    pub(super) power: Vec<Power>,
}

/// What a part of the machine used.
#[derive(Debug, Serialize)]
pub(super) struct Power {
    pub(super) domain: String,
    pub(super) watts: f64,
}

impl Hardware {
    /// Reads them. Takes a tenth of a second where energy is counted.
    pub(super) fn read(root: &Root) -> Hardware {
        Hardware {
            frequencies: FrequencyReader::open(root).read(),
            temperatures: HeatReader::open(root).read(),
            throttling: throttling(root),
            power: power(root),
        }
    }

    /// One line each, with two spaces before; nothing where there is nothing.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        if let Some((least, most)) = span(self.frequencies.iter().map(|f| f.now_hz as f64 / 1e9)) {
            let _ = writeln!(text, "  frequency {least:.2} to {most:.2} GHz");
        }
        // Of several that are as hot, the first.
        let hottest = self.temperatures.iter().rev();
        let hottest = hottest.max_by(|a, b| a.celsius.total_cmp(&b.celsius));
        if let (Some((least, most)), Some(heat)) =
            (span(self.temperatures.iter().map(|h| h.celsius)), hottest)
        {
            let limit = heat.slows_at.map_or_else(String::new, |limit| {
                format!(", which is slowed down from {limit:.0} °C on")
            });
            let cpu = heat.cpu;
            let _ = writeln!(
                text,
                "  temperature {least:.0} to {most:.0} °C, the most at CPU {cpu}{limit}"
            );
        }
        let most = self.throttling.iter().rev().max_by_key(|t| t.core_events);
        if let Some(most) = most.filter(|t| t.core_events > 0) {
            let seconds = most.core_ns.map_or_else(String::new, |ns| {
                format!(", {:.1} s altogether", ns as f64 / 1e9)
            });
            let (cpu, events) = (most.cpu, most.core_events);
            let _ = writeln!(
                text,
                "  slowed down for heat since boot: CPU {cpu} the most, {events} times{seconds}"
            );
        }
        let each: Vec<String> = self
            .power
            .iter()
            .map(|power| format!("{} {:.1} W", power.domain, power.watts))
            .collect();
        if !each.is_empty() {
            let _ = writeln!(text, "  power {}", each.join(", "));
        }
        text
    }
}

fn power(root: &Root) -> Vec<Power> {
    let mut reader = EnergyReader::open(root);
    let before = reader.read();
    if before.is_empty() {
        return Vec::new();
    }
    let start = Instant::now();
    std::thread::sleep(COUNTED);
    let after = reader.read().into_iter();
    let seconds = start.elapsed().as_secs_f64();
    after
        .zip(before)
        .map(|(after, before)| Power {
            watts: (after.joules - before.joules) / seconds,
            domain: after.domain,
        })
        .collect()
}

/// The least and the most; `None` of nothing.
fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |span, value| {
        let (least, most) = span.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    })
}
