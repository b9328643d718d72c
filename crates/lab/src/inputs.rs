//! Made inputs: always the same bytes, kept in `.inputs` between runs.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// What an input is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Words of a fixed vocabulary, the frequent ones much more frequent, in lines: compresses
    /// about as well as prose.
    Text,
    /// Moving pictures with noise, 352 × 288 at 25 a second, as y4m (planar 4:2:0).
    Video,
}

/// The file with this input of `megabytes` (10⁶ bytes, about), made first where it is missing.
pub fn input(folder: &Path, kind: Kind, megabytes: u64) -> Result<PathBuf> {
    let name = match kind {
        Kind::Text => format!("text-{megabytes}.txt"),
        Kind::Video => format!("video-{megabytes}.y4m"),
    };
    let path = folder.join(name);
    if path.exists() {
        return Ok(path);
    }
    // Under another name until it is whole, so that a half-made one is never used.
    let part = path.with_extension(format!("part-{}", std::process::id()));
    let make = || -> std::io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&part)?);
        match kind {
            Kind::Text => text(&mut file, megabytes * 1_000_000)?,
            Kind::Video => video(&mut file, megabytes * 1_000_000)?,
        }
        file.flush()?;
        fs::rename(&part, &path)
    };
    make().with_context(|| format!("could not make the input {}", path.display()))?;
    Ok(path)
}

fn text(out: &mut impl Write, bytes: u64) -> std::io::Result<()> {
    const WORDS: usize = 20_000;
    let mut random = fastrand::Rng::with_seed(1);
    let vocabulary = (0..WORDS)
        .map(|_| {
            (0..random.usize(2..10))
                .map(|_| char::from(random.u8(b'a'..=b'z')))
                .collect::<String>()
        })
        .collect::<Vec<_>>();
    let (mut written, mut column) = (0, 0);
    while written < bytes {
        // Rank r with a probability of about 1/r, as in a natural language.
        let rank = (WORDS as f64).powf(random.f64()) as usize - 1;
        let word = &vocabulary[rank.min(WORDS - 1)];
        column += word.len() + 1;
        let end = if column > 72 { '\n' } else { ' ' };
        if end == '\n' {
            column = 0;
        }
        write!(out, "{word}{end}")?;
        written += word.len() as u64 + 1;
    }
    Ok(())
}

fn video(out: &mut impl Write, bytes: u64) -> std::io::Result<()> {
    const WIDTH: usize = 352;
    const HEIGHT: usize = 288;
    let frames = (bytes as usize).div_ceil(WIDTH * HEIGHT * 3 / 2);
    let mut random = fastrand::Rng::with_seed(2);
    writeln!(out, "YUV4MPEG2 W{WIDTH} H{HEIGHT} F25:1 Ip A1:1 C420jpeg")?;
    let mut picture = vec![0_u8; WIDTH * HEIGHT * 3 / 2];
    for frame in 0..frames {
        let (luma, chroma) = picture.split_at_mut(WIDTH * HEIGHT);
        for (at, value) in luma.iter_mut().enumerate() {
            let (x, y) = (at % WIDTH, at / WIDTH);
            // Two patterns that move against each other: motion to search for.
            let stripes = (x + 3 * frame) / 8 % 16 * 8;
            let rings = (x.abs_diff(176).pow(2) + y.abs_diff(144).pow(2)) / (200 + frame) % 64;
            *value = (stripes + rings + 16) as u8;
            *value = value.wrapping_add(random.u8(..8));
        }
        for (at, value) in chroma.iter_mut().enumerate() {
            *value = (96 + (at + frame) / 16 % 64) as u8;
        }
        writeln!(out, "FRAME")?;
        out.write_all(&picture)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_always_the_same_and_made_once() {
        for kind in [Kind::Text, Kind::Video] {
            let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let [first, second] = folders.each_ref().map(|folder| {
                let path = input(folder.path(), kind, 1).unwrap();
                let bytes = fs::read(&path).unwrap();
                assert!(bytes.len() >= 1_000_000);
                assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
                (path, bytes)
            });
            assert!(first.1 == second.1);
            fs::write(&first.0, "kept").unwrap();
            input(folders[0].path(), kind, 1).unwrap();
            assert_eq!(fs::read(&first.0).unwrap(), b"kept");
        }
    }

    #[test]
    fn a_video_is_whole_frames_under_one_header() {
        let mut bytes = Vec::new();
        video(&mut bytes, 1_000_000).unwrap();
        let header = bytes.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        assert_eq!((bytes.len() - header) % (6 + 352 * 288 * 3 / 2), 0);
    }
}
