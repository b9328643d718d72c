//! What is mounted where, and which of it can be seen. Pure: text in, answers out.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) id: u32,
    pub(crate) parent: u32,
    /// Where it is mounted, as seen from this process's root.
    pub(crate) point: PathBuf,
    /// `ext4`, `tmpfs`, `proc`, …
    pub(crate) fs_type: String,
    pub(crate) read_only: bool,
    pub(crate) nosuid: bool,
    pub(crate) noexec: bool,
}

/// A line that is not of the form that proc(5) describes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("mountinfo, line {line}: expected \"ID PARENT MAJ:MIN ROOT POINT OPTIONS ... - TYPE ...\"")]
pub(crate) struct ParseError {
    line: usize,
}

/// Reads the text of a mountinfo file.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Mount>, ParseError> {
    text.split(|&b| b == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(i, line)| parse_line(line).ok_or(ParseError { line: i + 1 }))
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let mut fields = line.split(|&b| b == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let _device = fields.next()?;
    let _root = fields.next()?;
    let point = unescape(fields.next()?);
    let options = fields.next()?;
    // Zero or more optional fields, a lone dash, the type.
    fields.find(|f| *f == b"-")?;
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let has = |name: &[u8]| options.split(|&b| b == b',').any(|o| o == name);
    Some(Mount {
        id,
        parent,
        point,
        fs_type,
        read_only: has(b"ro"),
        nosuid: has(b"nosuid"),
        noexec: has(b"noexec"),
    })
}

/// Undoes the kernel's `\040` for a space and its kin.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut i = 0;
    while i < field.len() {
        let octal = field.get(i + 1..i + 4).and_then(|d| {
            d.iter().try_fold(0u32, |n, &b| {
                (b'0'..=b'7')
                    .contains(&b)
                    .then(|| n * 8 + u32::from(b - b'0'))
            })
        });
        match octal.and_then(|n| u8::try_from(n).ok()) {
            Some(byte) if field[i] == b'\\' => {
                out.push(byte);
                i += 4;
            }
            _ => {
                out.push(field[i]);
                i += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// The mounts that a path can reach, parents before children: those that lie under another mount
/// (mounted over at the same place, or above) are left out.
pub(crate) fn visible(mounts: &[Mount]) -> Vec<Mount> {
    let mut seen: Vec<Mount> = mounts
        .iter()
        .filter(|m| reached_by(mounts, &m.point).is_some_and(|r| r.id == m.id))
        .cloned()
        .collect();
    seen.sort_by_key(|m| m.point.components().count());
    seen
}

/// The mount in which `path` lies, found as the kernel walks: at each component, cross into
/// whatever is mounted there.
pub(crate) fn reached_by<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let mut current = mounts.iter().find(|m| {
        m.point == Path::new("/") && (m.parent == m.id || !mounts.iter().any(|p| p.id == m.parent))
    })?;
    let mut prefixes: Vec<&Path> = path.ancestors().collect();
    prefixes.reverse();
    for prefix in prefixes {
        while let Some(child) = mounts.iter().find(|m| {
            m.parent == current.id
                && m.id != current.id
                && m.point.as_os_str().as_bytes() == prefix.as_os_str().as_bytes()
        }) {
            current = child;
        }
    }
    Some(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACKED: &[u8] = b"\
22 27 0:21 / /proc rw,relatime - proc proc rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=1k
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
29 25 0:27 / /dev/shm ro,nosuid,noexec shared:7 master:2 - tmpfs tmpfs rw
30 27 8:1 / /mnt/two\\040words rw - vfat /dev/sda1 rw
40 27 8:2 / /mnt rw - xfs /dev/sdb rw
";

    #[test]
    fn fields_and_escapes_are_read() {
        let mounts = parse(STACKED).unwrap();
        assert_eq!(mounts.len(), 7);
        assert_eq!(mounts[5].point, Path::new("/mnt/two words"));
        assert_eq!(mounts[5].fs_type, "vfat");
        assert!(mounts[4].read_only && mounts[4].nosuid && mounts[4].noexec);
        assert!(!mounts[0].read_only && !mounts[0].nosuid);
    }

    #[test]
    fn a_mount_covered_by_another_is_left_out() {
        let mounts = parse(STACKED).unwrap();
        let ids: Vec<u32> = visible(&mounts).iter().map(|m| m.id).collect();
        // 25 lies under 29; 30 lies under 40, which was mounted over its parent folder.
        assert_eq!(ids, [27, 22, 24, 40, 29]);
    }

    #[test]
    fn a_path_belongs_to_the_deepest_mount_above_it() {
        let mounts = parse(STACKED).unwrap();
        let at = |p: &str| reached_by(&mounts, Path::new(p)).unwrap().id;
        assert_eq!(at("/dev/shm/x"), 29);
        assert_eq!(at("/home/u"), 27);
        assert_eq!(at("/mnt/two words/f"), 40);
    }

    #[test]
    fn a_broken_line_is_named() {
        let error = parse(b"22 27 0:21 / /proc rw - proc proc rw\nnonsense\n").unwrap_err();
        assert_eq!(error.line, 2);
    }
}
