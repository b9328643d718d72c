//! What of the hardware can be set.

use super::may_write;
use crate::Root;
use crate::control::registers::{self, Register};
use crate::control::{Resctrl, duty_cycle, prefetch, resctrl_files};
use crate::frequency::domains;
use crate::sensors::{Tried, cause};
use crate::sysfs::CPUS;

pub(super) fn frequency(root: &Root) -> Tried {
    let all = domains(root);
    let file = all
        .first()
        .map(|domain| format!("{}/scaling_max_freq", domain.folder))
        .filter(|file| root.exists(file))
        .ok_or_else(|| format!("no cpufreq driver ({CPUS}/cpu*/cpufreq is not there)"))?;
    let together = match all.len() {
        1 => "of all CPUs together".to_owned(),
        n => format!("of {n} groups of CPUs"),
    };
    may_write(root, &file)
        .map(|()| format!("the highest frequency {together}: {file} and its kin"))
        .map_err(|why| format!("{file} cannot be written ({why}): needs root"))
}

pub(super) fn duty_cycle(root: &Root) -> Tried {
    match duty_cycle::by(root)? {
        duty_cycle::By::Clock => register(root, Register::ClockModulation)
            .map(|how| format!("for how much of the time each core runs, in eighths: {how}")),
        duty_cycle::By::Powerclamp { folder, most } => {
            let file = format!("{folder}/cur_state");
            may_write(root, &file)
                .map(|()| {
                    format!(
                        "for how much of the time all CPUs idle together, up to {most} %: {file}"
                    )
                })
                .map_err(|why| format!("{file} cannot be written ({why}): needs root"))
        }
    }
}

pub(super) fn prefetchers(root: &Root) -> Tried {
    let which = prefetch::register(root)?;
    register(root, which).map(|how| format!("each core's prefetchers: {how}"))
}

/// Tries to read a register of the first CPU that has a file of them.
fn register(root: &Root, register: Register) -> Tried {
    let cpus = registers::cpus(root);
    let first = cpus
        .first()
        .ok_or("no /dev/cpu/*/msr: needs the kernel's msr module (modprobe msr)")?;
    let (file, number) = (
        format!("{}/{first}/msr", registers::FOLDER),
        register.number(),
    );
    may_write(root, &file)
        .map_err(|why| format!("{file} cannot be written ({why}): needs root (CAP_SYS_RAWIO)"))?;
    registers::read(&root.path(&file), register)
        .map(|_| format!("register {number:#x} through {file} and its kin"))
        .map_err(|e| format!("register {number:#x} cannot be read through {file} ({}): the processor, or the hypervisor, does not have it", cause(&e)))
}

pub(super) fn cache_share(root: &Root) -> Tried {
    let ways = Resctrl::find(root)?.ways();
    let ways = ways.ok_or("the processor shares out memory bandwidth only")?;
    groups(root).map(|how| format!("{ways} parts of each L3 cache, by program: {how}"))
}

pub(super) fn bandwidth_share(root: &Root) -> Tried {
    Resctrl::find(root)?.bandwidth()?;
    groups(root).map(|how| format!("memory bandwidth of each L3 cache, by program: {how}"))
}

fn groups(root: &Root) -> Tried {
    let folder = resctrl_files::FOLDER;
    may_write(root, folder)
        .map(|()| format!("groups made in {folder}"))
        .map_err(|why| format!("no group can be made in {folder} ({why}): needs root"))
}
