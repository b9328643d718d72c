//! `corewise machine`.

use crate::common::{Place, json, stderr};

/// A folder with the files of another machine: two CPUs, the first of which is too hot.
fn another(place: &Place) {
    let write = |path: &str, content: &str| {
        let path = place.path().join("other").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    write("sys/class/hwmon/hwmon0/name", "coretemp\n");
    for cpu in 0..2 {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        write(&format!("{folder}/physical_package_id"), "0\n");
        write(&format!("{folder}/core_id"), &format!("{cpu}\n"));
        let stem = format!("sys/class/hwmon/hwmon0/temp{cpu}");
        write(&format!("{stem}_label"), &format!("Core {cpu}\n"));
        write(&format!("{stem}_input"), &format!("{}000\n", 85 - 40 * cpu));
        write(&format!("{stem}_max"), "80000\n");
        let frequency = format!("sys/devices/system/cpu/cpufreq/policy{cpu}");
        write(&format!("{frequency}/affected_cpus"), &format!("{cpu}\n"));
        write(&format!("{frequency}/scaling_cur_freq"), "1900000\n");
    }
}

#[test]
fn another_machine_is_drawn_with_what_its_files_say() {
    let place = Place::new();
    another(&place);
    let args = [
        "machine",
        "--topology",
        "core:2 pu:1",
        "--root",
        "other",
        "--svg",
        "machine.svg",
    ];
    let output = place.corewise(&args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains(
            "temperature 45 to 85 °C, the most at CPU 0, which is slowed down from 80 °C on"
        ),
        "{text}"
    );
    let svg = std::fs::read_to_string(place.path().join("machine.svg")).unwrap();
    assert!(
        svg.contains("CPU 0; runs at 1.90 GHz; 85 °C; is slowed down from 80 °C on"),
        "{svg}"
    );
    let value = json(&place.corewise(&[&args[..5], &["--json"]].concat()));
    assert_eq!(value["hardware"]["temperatures"][1]["celsius"], 45.0);
    assert_eq!(
        value["hardware"]["frequencies"][0]["now_hz"],
        1_900_000_000_u64
    );
    let available = |list: &str, name: &str| {
        let list = value[list].as_array().unwrap().clone();
        let found = list.into_iter().find(|f| f["name"] == name).unwrap();
        found["available"].as_bool().unwrap()
    };
    assert!(available("sensors", "core-temperature") && !available("sensors", "throttling"));
    assert!(!available("controls", "prefetchers"));
}

#[test]
fn this_machine_is_drawn_too_and_a_picture_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    let output = place.corewise(&["machine", "--svg", "this.svg"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let svg = std::fs::read_to_string(place.path().join("this.svg")).unwrap();
    assert!(svg.starts_with("<?xml") && svg.contains("CPU 0"), "{svg}");
    let output = place.corewise(&["machine", "--svg", "no/such/folder.svg"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no/such/folder.svg"));
}
