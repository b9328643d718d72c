use super::*;

fn load(text: &str) -> Result<SimMachine, Error> {
    SimMachine::from_toml(text, |file| Err::<String, _>(format!("no {file} here")))
}

const SMALL: &str =
    "name = \"m\"\ntopology = { synthetic = \"[numa] package:1 l3:1 core:2 pu:1\" }\n";

#[test]
fn a_small_file_has_the_usual_costs() {
    let machine = load(SMALL).unwrap();
    assert_eq!(machine.cpus(), 2);
    assert_eq!(machine.costs, Costs::default());
    assert_eq!(machine.distance(0, 1), Distance::L3);
    assert_eq!(machine.distance(1, 1), Distance::Same);
    assert_eq!(machine.distance(1, 2), Distance::Remote);
}

#[test]
fn what_the_file_says_counts() {
    let text = format!(
        "{SMALL}smt = 0.5\nl3_bytes = 1000\n[costs]\nswitch_ns = 7\n[node]\nbandwidth_bytes_per_s = 2e9\n"
    );
    let machine = load(&text).unwrap();
    assert_eq!((machine.smt, machine.l3_bytes), (0.5, 1000));
    assert_eq!(machine.costs.switch_ns, 7);
    assert_eq!(machine.nodes.len(), 1);
    assert_eq!(machine.nodes[0].bandwidth_bytes_per_s, 2e9);
}

#[test]
fn impossible_machines_are_refused_with_key_and_line() {
    let bad = [
        ("smt = 0.0", "line 3: `smt`"),
        ("smt = 1.5", "line 3: `smt`"),
        ("smt = nan", "line 3: `smt`"),
        ("[costs]\ntick_ns = 0", "line 4: `costs.tick_ns`"),
        (
            "[costs]\nswitch_ns = 1000000000000",
            "line 4: `costs.switch_ns`",
        ),
        ("[costs]\nyield_ns = 0", "line 4: `costs.yield_ns`"),
        ("[costs]\nswtch_ns = 1", "line 4"),
        (
            "[node]\nbandwidth_bytes_per_s = 0",
            "line 4: `node.bandwidth_bytes_per_s`",
        ),
        (
            "[node]\nbandwidth_bytes_per_s = -1",
            "line 4: `node.bandwidth_bytes_per_s`",
        ),
        (
            "[node]\nbandwidth_bytes_per_s = 1e9\nremote_factor = 0.5",
            "line 5: `node.remote_factor`",
        ),
        (
            "[[nodes]]\nbandwidth_bytes_per_s = 1e9\n[[nodes]]\nbandwidth_bytes_per_s = 1e9",
            "2 are described, the topology has 1",
        ),
    ];
    for (more, expected) in bad {
        let error = load(&format!("{SMALL}{more}\n")).unwrap_err().to_string();
        assert!(error.contains(expected), "{more}: {error}");
    }
}

#[test]
fn impossible_topologies_are_refused() {
    let bad = [
        ("{ synthetic = \"core:0\" }", "line 2: `topology`"),
        (
            "{ synthetic = \"core:5000 pu:1\" }",
            "5000 CPUs are more than 4096",
        ),
        ("{ xml = \"none.xml\" }", "no none.xml here"),
        ("{ xnl = \"none.xml\" }", "line 2"),
        ("3", "line 2"),
    ];
    for (topology, expected) in bad {
        let error = load(&format!("name = \"m\"\ntopology = {topology}\n"));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{topology}: {error}");
    }
    assert!(load("").unwrap_err().to_string().contains("topology") || load("").is_err());
    let gaps = "name = \"m\"\ntopology = { synthetic = \"core:2 pu:1(indexes=0,2)\" }\n";
    assert!(load(gaps).is_err(), "CPUs must be numbered without gaps");
}

#[test]
fn a_refill_costs_by_distance_and_what_the_caches_hold() {
    let costs = Costs::default();
    let refill = |distance, bytes| costs.refill_ns(distance, bytes, 1 << 20, 32 << 20);
    assert_eq!(refill(Distance::L2, 1 << 30), 0);
    assert_eq!(refill(Distance::L3, 1 << 30), 1024 * 40);
    assert_eq!(refill(Distance::Node, 64 << 10), 64 * 100);
    assert!(refill(Distance::Remote, 1 << 30) > refill(Distance::Node, 1 << 30));
}

#[test]
fn decisions_see_the_cpus_that_may_be_used() {
    let machine = SimMachine::flat(4);
    let seen = machine.to_decide(&[1, 2, 9].into_iter().collect());
    assert_eq!(seen.allowed.to_string(), "1-2");
    assert_eq!(seen.capacity, 2.0);
    assert_eq!(seen.places.len(), 4);
}
