//! Which processor this is, as `/proc/cpuinfo` says it.

use crate::Root;

/// The first value of a key.
fn said<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == key).then(|| value.trim())
    })
}

/// The model number of an Intel processor of family 6; why it is none.
pub(crate) fn intel(root: &Root) -> Result<u32, String> {
    let text = root
        .read("/proc/cpuinfo")
        .map_err(|e| format!("/proc/cpuinfo cannot be read: {e}"))?;
    if said(&text, "vendor_id") != Some("GenuineIntel") {
        return Err("known for Intel processors only".into());
    }
    let family = said(&text, "cpu family");
    if family != Some("6") {
        return Err("known for Intel processors of family 6 only".into());
    }
    said(&text, "model")
        .and_then(|model| model.parse().ok())
        .ok_or_else(|| "/proc/cpuinfo does not say which model this processor is".into())
}

/// Whether the processor has a feature, by its name in `flags`.
pub(crate) fn has(root: &Root, flag: &str) -> bool {
    let text = root.read("/proc/cpuinfo").unwrap_or_default();
    said(&text, "flags").is_some_and(|flags| flags.split(' ').any(|f| f == flag))
}
