//! Debian's source packages, fetched when an experiment needs them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::experiment::Context;

/// A source package (of bookworm, or `NAME@SUITE`), unpacked into a folder of its name: fetched with apt,
/// whose own lists and sources stay as they are. Of large ones, only the parts that match these patterns of
/// paths.
///
/// # Errors
/// If it cannot be fetched or unpacked.
pub fn source(context: &Context, folder: &Path, name: &str, parts: &[&str]) -> Result<()> {
    let (name, suite) = name.split_once('@').unwrap_or((name, "bookworm"));
    let unpacked = folder.join(name);
    if unpacked.is_dir() {
        return Ok(());
    }
    context.say(format!("fetching Debian's source package {name}"));
    let own = tempfile::tempdir()?;
    for below in ["state/lists/partial", "cache/archives/partial", "got"] {
        fs::create_dir_all(own.path().join(below))?;
    }
    let list = own.path().join("sources.list");
    fs::write(
        &list,
        format!(
            "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {suite} main\n"
        ),
    )?;
    let apt = |words: &[&str]| -> Result<bool> {
        let place =
            |name: &str, below: &str| format!("{name}={}", own.path().join(below).display());
        let status = Command::new("apt-get")
            .args(["-q", "-o", &place("Dir::Etc::SourceList", "sources.list")])
            .args([
                "-o",
                "Dir::Etc::SourceParts=/dev/null",
                "-o",
                "APT::Sandbox::User=root",
            ])
            .args([
                "-o",
                &place("Dir::State", "state"),
                "-o",
                &place("Dir::Cache", "cache"),
            ])
            .args(words)
            .current_dir(own.path().join("got"))
            .stdout(std::process::Stdio::null())
            .status()
            .context("there is no apt-get: this experiment needs Debian's source packages")?;
        Ok(status.success())
    };
    if !apt(&["update"])? {
        bail!("Debian's lists of packages could not be fetched: is a network there?");
    }
    // Debian's own changes are not used: what apt has checked of the original archive is enough.
    apt(&["source", "--download-only", name])?;
    let part = folder.join(format!("{name}.part"));
    let _ = fs::remove_dir_all(&part);
    fs::create_dir_all(&part)?;
    let orig = fs::read_dir(own.path().join("got"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let name = path.to_string_lossy();
            name.contains(".orig.tar.") && !name.ends_with(".asc")
        })
        .with_context(|| {
            format!("the original archive of Debian's source package {name} could not be fetched")
        })?;
    let unpack = Command::new("tar")
        .arg("-xf")
        .arg(&orig)
        .arg("-C")
        .arg(&part)
        .args(if parts.is_empty() {
            &[][..]
        } else {
            &["--wildcards"]
        })
        .args(parts)
        .status()?;
    if !unpack.success() {
        bail!("{} cannot be unpacked", orig.display());
    }
    // Most have all in one folder.
    let inside: Vec<_> = fs::read_dir(&part)?.collect::<std::io::Result<_>>()?;
    match inside.as_slice() {
        [one] if one.file_type()?.is_dir() => {
            fs::rename(one.path(), &unpacked)?;
            fs::remove_dir(&part)?;
        }
        _ => fs::rename(&part, &unpacked)?,
    }
    Ok(())
}
