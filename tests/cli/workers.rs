//! Processes that share a sweep.

use std::ffi::OsString;
use std::path::Path;

use ulplab::ops;
use ulplab::run::partition::{Partition, Share};
use ulplab::studies::kernels::Devices;
use ulplab::studies::kernels::workers::{LONGEST, MOST_SHARES, cards, pieces};
use ulplab::studies::processes::{arguments, threads_of};

#[test]
fn a_worker_is_told_the_same_but_for_its_share() {
    let own = "kernels mutants kernels --jobs=4 --set tokens=64 --out runs/a --resume --devices all --seed 7 --json";
    let piece = Partition::Op("rope".into(), Share { m: 2, n: 3 });
    let own: Vec<OsString> = own.split(' ').map(OsString::from).collect();
    let told = arguments(&own, Path::new("runs/b"), &piece);
    let want =
        "kernels mutants kernels --set tokens=64 --seed 7 --jobs 1 --no-progress --out runs/b --partition op:rope:2/3";
    assert_eq!(told.join(&OsString::from(" ")), OsString::from(want));
}

#[test]
fn the_longest_are_shared_among_gpus() {
    let of = |op: &str, m, n| Partition::Op(op.into(), Share { m, n });
    assert_eq!(
        pieces(&["linear", "rope"], 2, 0),
        [of("linear", 1, 2), of("linear", 2, 2), of("rope", 1, 1)]
    );
    assert_eq!(
        pieces(&["linear", "rope"], 1, 0),
        [of("linear", 1, 1), of("rope", 1, 1)]
    );
    assert_eq!(
        pieces(&["linear", "rope"], 1, 1),
        [of("linear", 1, 1), of("rope", 1, 1)]
    );
}

#[test]
fn few_operations_with_faults_have_work_for_all_processes() {
    let count = |ops: &[&str], cards, planting| pieces(ops, cards, planting).len();
    assert_eq!(count(&["rope"], 1, 6), 6);
    assert_eq!(count(&["rope", "rmsnorm"], 2, 6), 6);
    assert_eq!(count(&["rope"], 2, 20), MOST_SHARES);
    assert_eq!(count(&["linear", "rope"], 4, 2), 5);
}

#[test]
fn processes_share_the_cores() {
    assert_eq!(
        [(32, 16), (64, 32), (16, 8)].map(|(cores, processes)| threads_of(cores, processes)),
        [6; 3]
    );
    assert_eq!(
        [(16, 1), (2, 8), (1, 1)].map(|(cores, processes)| threads_of(cores, processes)),
        [16, 2, 2]
    );
}

#[test]
fn the_longest_are_operations() {
    for op in LONGEST {
        ops::find(op).unwrap();
    }
}

#[test]
fn cards_are_those_that_are_visible() {
    let two = |devices: &str| cards(&devices.parse().unwrap(), 2).map(|cards| cards.len());
    assert_eq!(two("all").unwrap(), 2);
    assert_eq!(two("1").unwrap(), 1);
    assert!(two("0,2").unwrap_err().to_string().contains("no GPU 2"));
    assert_eq!(cards(&Devices::All, 1).unwrap(), [None]);
    assert!("0,0".parse::<Devices>().unwrap_err().contains("twice"));
    assert!("first".parse::<Devices>().is_err());
}
