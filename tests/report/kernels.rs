//! What reports show of kernels and of peers next to them.

use super::shown as report;
use ulplab::record::{Phase, Record};
use ulplab::run::ceilings::Ceilings;
use ulplab::run::summary::summarize;
use ulplab::run::{RecipeInfo, Run};
use ulplab::studies::kernels::peers::Peers;

use super::synthetic;

/// A peer and a limit that were timed on a card called `card`.
fn peers() -> Peers {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.json");
    let text = r#"{"device": "card", "method": 2, "peers": {"rope/bf16.forward.t1": {"name": "a <peer>", "us_cold": 25.0, "us_graph": 3}},
        "limits": {"rope/bf16.forward.t1": {"name": "limit: 16 rows a block", "us_cold": 9.0}}}"#;
    std::fs::write(&file, text).unwrap();
    Peers::read(&file).unwrap()
}

/// A kernel that takes 10 µs cold on two cases, beside a peer of 25 µs on the first.
fn run() -> Run {
    let peers = peers();
    let mut records = Vec::new();
    for case in ["bf16.forward.t1", "bf16.forward.t1024"] {
        let blank = Record::blank(&format!("rope.simple/local/{case}"), "rope.simple", Phase::Local, case);
        let record = |site: &str, metric: &str, value| Record {
            site: site.into(),
            metric: metric.into(),
            value,
            n: 1,
            ..blank.clone()
        };
        records.extend([record("x", "violations", 0.0), record("time", "us_cold", 10.0)]);
        let beside = peers.beside("rope", case, 10.0);
        records.extend(beside.map(|beside| record(beside.output, beside.metric.name, beside.value)));
    }
    let mut run = synthetic::small();
    run.manifest.experiment.head.kind = "kernels".into();
    run.manifest.experiment.head.gates.clear();
    run.manifest.experiment.body.clear();
    run.manifest.recipes = vec![RecipeInfo {
        name: "rope.simple".into(),
        doc: "one thread for each pair".into(),
        ..RecipeInfo::default()
    }];
    run.manifest.peers = peers.names();
    run.summaries = summarize(&records);
    run.verdicts.clear();
    run.records = records;
    run
}

#[test]
fn peers_stand_beside_kernels() {
    let run = run();
    let page = report::html(&run);
    for shown in [
        "<th>of limit</th>",
        "<th>× peer</th>",
        "<td>0.900</td>",
        "<td>2.50</td><td>a &#60;peer&#62;</td>",
        "<td>—</td><td>—</td>",
    ] {
        assert!(page.contains(shown), "{shown}");
    }
    let text = report::terminal(&run, 120, false);
    assert!(text.contains("× peer") && text.contains("2.50"), "{text}");
}

#[test]
fn times_for_a_terminal_say_what_they_are_shares_of() {
    let mut run = run();
    run.manifest.ceilings = Some(Ceilings {
        copy_gb_s: 4270.0,
        matmul_tflop_s: None,
        e4m3_tflop_s: None,
    });
    let text = ulplab::studies::kernels::times(&run);
    for shown in ["cold µs", "2.50", "a <peer>", "copy 4270 GB/s, no cuBLASLt"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    assert!(report::html(&run).contains("In this run: copy 4270 GB/s"));
    run.records.clear();
    assert_eq!(ulplab::studies::kernels::times(&run), "nothing was timed\n");
}

#[test]
fn a_cell_has_a_line_of_its_own() {
    let run = run();
    let cell = "rope.simple/local/bf16.forward.t1";
    let records: Vec<Record> = run
        .records
        .iter()
        .filter(|record| record.cell == cell)
        .cloned()
        .collect();
    assert_eq!(
        ulplab::studies::kernels::line(&records),
        None,
        "no percentiles are known"
    );
    let more = ["us_cold_p10", "us_cold_p90"].map(|metric| Record {
        metric: metric.into(),
        value: 11.0,
        ..records[1].clone()
    });
    let all: Vec<Record> = records.into_iter().chain(more).collect();
    assert_eq!(
        ulplab::studies::kernels::line(&all).as_deref(),
        Some("rope.simple bf16.forward.t1: cold µs 10 (11–11), limit µs 9, of limit 0.900, peer µs 25, × peer 2.50")
    );
}

#[test]
fn peers_of_another_card_are_refused() {
    let peers = peers();
    assert!(peers.check_device("card").is_ok());
    let error = peers.check_device("other").unwrap_err().to_string();
    for word in ["peers.json: device", "'card'", "'other'"] {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn nothing_is_said_of_peers_where_there_are_none() {
    let mut run = run();
    run.manifest.peers.clear();
    run.records
        .retain(|record| !record.metric.ends_with("_peer") && !record.metric.ends_with("_limit"));
    run.summaries = summarize(&run.records);
    assert!(!report::html(&run).contains("<th>× peer</th>"));
    assert!(!report::terminal(&run, 120, false).contains("peer"));
}
