//! What include/corewise_abi.h says is what the pages are.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_abi::claim::ClaimPage;
use corewise_abi::progress::ProgressPage;
use corewise_abi::turn::{MOST_WINDOWS, Turn, Window};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Compiles a program of `source`, C or C++ by its extension, and gives what it prints.
fn output_of(name: &str, source: &str, flags: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    std::fs::write(&file, source).unwrap();
    let program = folder.path().join("program");
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let tool = cc::Build::new()
        .cpp(name.ends_with("cpp"))
        .opt_level(0)
        .target(&target)
        .host(&target)
        .cargo_metadata(false)
        .get_compiler();
    let compiled = Command::new(tool.path())
        .args(flags)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .arg(&program)
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// A C program that prints `name offset` of each field of each page, and the pages' sizes.
fn printer(pages: &[(&str, Vec<&str>)]) -> String {
    let mut source =
        String::from("#include \"corewise_abi.h\"\n#include <stdio.h>\nint main(void) {\n");
    for (page, fields) in pages {
        for field in fields {
            let path = match *field {
                "magic" | "version" | "size" | "features" => format!("header.{field}"),
                _ => (*field).to_owned(),
            };
            source += &format!(
                "    printf(\"{page}.{field} %zu\\n\", offsetof(struct corewise_{page}_page, {path}));\n"
            );
        }
        source += &format!("    printf(\"{page} %zu\\n\", sizeof(struct corewise_{page}_page));\n");
    }
    source + "    return 0;\n}\n"
}

fn expected() -> BTreeMap<String, usize> {
    let claim = ClaimPage::layout().map(|(name, at)| (format!("claim.{name}"), at));
    let progress = ProgressPage::layout().map(|(name, at)| (format!("progress.{name}"), at));
    let sizes = [
        ("claim".to_owned(), size_of::<ClaimPage>()),
        ("progress".to_owned(), size_of::<ProgressPage>()),
    ];
    claim.chain(progress).chain(sizes).collect()
}

fn read(output: &str) -> BTreeMap<String, usize> {
    let pairs = output.lines().filter_map(|line| line.split_once(' '));
    pairs
        .map(|(name, at)| (name.to_owned(), at.parse().unwrap()))
        .collect()
}

fn pages() -> [(&'static str, Vec<&'static str>); 2] {
    [
        ("claim", ClaimPage::layout().map(|(name, _)| name).collect()),
        (
            "progress",
            ProgressPage::layout().map(|(name, _)| name).collect(),
        ),
    ]
}

#[test]
fn every_field_has_the_same_offset_in_c() {
    let output = output_of("layout.c", &printer(&pages()), &["-std=c11"]);
    assert_eq!(read(&output), expected());
}

#[test]
fn every_field_has_the_same_offset_in_cpp() {
    let output = output_of("layout.cpp", &printer(&pages()), &["-std=c++17"]);
    assert_eq!(read(&output), expected());
}

/// A page as its bytes: what a program in another language maps.
fn bytes_of(page: &ClaimPage) -> Vec<u8> {
    let start = std::ptr::from_ref(page).cast::<u8>();
    let last = ClaimPage::layout().map(|(_, at)| at).max().unwrap();
    let used = last + MOST_WINDOWS * size_of::<[u64; 2]>();
    #[allow(unsafe_code, reason = "a test that looks at the page's bytes")]
    // SAFETY: the page lives across the call, is longer than `used`, has no padding before there, and
    // nobody writes it meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(start, used) };
    bytes.to_vec()
}

#[test]
fn c_reads_what_rust_has_granted() {
    let page = Box::new(ClaimPage::new());
    page.initialise(4711);
    page.grant(2, [0]);
    let window = |begin_ns, end_ns| Window { begin_ns, end_ns };
    page.set_turn(Some(&Turn {
        epoch_ns: 5_000,
        period_ns: 100,
        windows: vec![window(10, 20), window(60, 90)],
    }));
    page.grant(3, [1, 63, 64, 4095]);
    let bytes: Vec<String> = bytes_of(&page).iter().map(u8::to_string).collect();
    let source = format!(
        r#"#include "corewise_abi.h"
#include <stdio.h>
static const union {{
    unsigned char bytes[832];
    struct corewise_claim_page page;
}} given = {{ {{ {} }} }};
int main(void) {{
    uint64_t set[COREWISE_CPU_WORDS], word = corewise_abi_word(&given.page);
    uint32_t generation = 0;
    printf("claim %d\n", corewise_abi_is_claim(&given.page));
    printf("manager %d\n", (int)given.page.manager_pid);
    printf("state %u\n", (unsigned)corewise_abi_state(&given.page));
    printf("generation %u\n", (unsigned)corewise_abi_generation(word));
    printf("threads %u\n", (unsigned)corewise_abi_threads(word));
    printf("read %d\n", corewise_abi_cpus(&given.page, set, COREWISE_CPU_WORDS, &generation));
    printf("of %u\n", (unsigned)generation);
    for (unsigned cpu = 0; cpu < COREWISE_MAX_CPUS; cpu++)
        if (set[cpu / 64] >> cpu % 64 & 1)
            printf("cpu %u\n", cpu);
    printf("windows %u\n", (unsigned)given.page.turn_windows);
    printf("epoch %u\n", (unsigned)given.page.turn_epoch_ns);
    printf("period %u\n", (unsigned)given.page.turn_period_ns);
    printf("second %u\n", (unsigned)given.page.turn_window[1][0]);
    return 0;
}}
"#,
        bytes.join(",")
    );
    let output = output_of("reads.c", &source, &["-std=c11"]);
    let lines: Vec<&str> = output.lines().collect();
    let said = [
        "claim 1",
        "manager 4711",
        "state 1",
        "generation 2",
        "threads 3",
    ];
    assert_eq!(lines[..5], said);
    let set = ["read 1", "of 2", "cpu 1", "cpu 63", "cpu 64", "cpu 4095"];
    assert_eq!(lines[5..11], set);
    let turn = ["windows 2", "epoch 5000", "period 100", "second 60"];
    assert_eq!(lines[11..], turn);
}
