//! Shares of a plan.

use std::collections::HashSet;

use ulplab::record::Phase;
use ulplab::run::partition::{Partition, PartitionArg, Share, WINDOW, cost};
use ulplab::run::plan::{Cell, Plan, RecipePlan};

fn plan(windows: usize, costs: &[u64]) -> Plan {
    let recipe = |(at, cost): (usize, &u64)| RecipePlan {
        name: format!("r{at}"),
        phases: vec![Phase::Local],
        windows: None,
        cost: *cost,
    };
    Plan {
        phases: vec![Phase::Local],
        windows: (0..windows).map(|window| format!("w{window}")).collect(),
        recipes: costs.iter().enumerate().map(recipe).collect(),
    }
}

/// Sizes that coincide, one share, more shares than cells, one cell that outweighs all others, and a plan without cells.
#[test]
fn every_cell_is_in_one_share() {
    for (windows, costs) in [
        (1, &[1][..]),
        (4, &[1; 51]),
        (7, &[3, 1, 1]),
        (3, &[1000, 1, 1, 1]),
        (0, &[1]),
    ] {
        let plan = plan(windows, costs);
        let cells = plan.cells();
        for n in [1, 2, 3, 4, 8, 64] {
            for make in [Partition::Slice, Partition::Hash] {
                let shares = (1..=n).map(|m| make(Share { m, n }).of(&plan, &cells).unwrap());
                let mut ids: Vec<&str> = shares.flatten().map(|cell| cell.id.as_str()).collect();
                let mut all: Vec<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
                ids.sort_unstable();
                all.sort_unstable();
                assert_eq!(ids, all, "{windows} windows, {costs:?}, {n} shares");
            }
        }
    }
}

/// More shares than cases leave some empty.
#[test]
fn every_case_of_an_operation_is_in_one_share() {
    let mut plan = plan(5, &[1; 3]);
    for (recipe, name) in plan
        .recipes
        .iter_mut()
        .zip(["rope.simple", "rope.fast", "top_k.simple"])
    {
        recipe.name = name.into();
    }
    let cells = plan.cells();
    for n in [1, 2, 7] {
        let share = |m| {
            let text = format!("op:rope:{m}/{n}");
            let Ok(PartitionArg::Given(partition)) = text.parse() else {
                panic!("{text}")
            };
            partition.of(&plan, &cells).unwrap()
        };
        let shares: Vec<Vec<&Cell>> = (1..=n).map(share).collect();
        assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), 10);
        let windows = |share: &Vec<&Cell>| share.iter().map(|cell| cell.window).collect::<HashSet<_>>();
        let all: Vec<HashSet<usize>> = shares.iter().map(windows).collect();
        assert_eq!(all.iter().map(HashSet::len).sum::<usize>(), 5, "a case is in one share");
    }
    for wrong in ["op:rope:0/2", "op:rope:3/2", "op:rope:", "op::1/2", "op:"] {
        assert!(wrong.parse::<PartitionArg>().is_err(), "{wrong}");
    }
}

fn slices<'a>(plan: &Plan, cells: &'a [Cell], n: usize) -> Vec<Vec<&'a Cell>> {
    let slice = |m| Partition::Slice(Share { m, n }).of(plan, cells).unwrap();
    (1..=n).map(slice).collect()
}

/// Cells and windows of a share.
fn work(share: &[&Cell]) -> u64 {
    let windows: HashSet<usize> = share.iter().map(|cell| cell.window).collect();
    cost(share.iter().copied()) + WINDOW * windows.len() as u64
}

/// The largest share is near the mean, and never larger than if every n-th cell were dealt to it.
#[test]
fn slices_are_balanced_by_cost() {
    for (windows, costs) in [
        (4, vec![1; 51]),
        (4, [vec![3], vec![1; 50]].concat()),
        (4, [vec![3], vec![1; 6]].concat()),
        (300, vec![5, 1, 1]),
        (6, vec![1; 4]),
    ] {
        let plan = plan(windows, &costs);
        let cells = plan.cells();
        for n in [2, 3, 4, 8] {
            let slices = slices(&plan, &cells, n);
            let largest = slices.iter().map(|slice| work(slice)).max().unwrap();
            let every = |m| cells.iter().skip(m).step_by(n).collect::<Vec<_>>();
            let strided = (0..n).map(|m| work(&every(m))).max().unwrap();
            let what = format!("{windows} windows of {} cells, {n} slices: {largest}", costs.len());
            assert!(largest <= strided, "{what}, but every n-th cell {strided}");
            let mean = (cost(&cells) + WINDOW * windows as u64).div_ceil(n as u64);
            let most = costs.iter().max().unwrap();
            assert!(largest <= mean + mean / 4 + most + WINDOW, "{what}, mean {mean}");
            let ordered = |slice: &Vec<&Cell>| slice.is_sorted_by_key(|cell| cell.window);
            assert!(slices.iter().all(ordered), "{what}: not in the order of the plan");
        }
    }
}

/// Windows that are small enough stay whole: what is computed once of each is computed once.
#[test]
fn small_windows_are_not_cut() {
    let plan = plan(64, &[1; 3]);
    let cells = plan.cells();
    for slice in slices(&plan, &cells, 4) {
        assert!(
            slice
                .chunk_by(|a, b| a.window == b.window)
                .all(|window| window.len() == 3)
        );
    }
}

#[test]
fn hashes_stay_when_cells_are_added() {
    let (small, large) = (plan(5, &[1; 3]), plan(9, &[1; 8]));
    let (few, many) = (small.cells(), large.cells());
    for m in 1..=4 {
        let share = Partition::Hash(Share { m, n: 4 });
        let after = share.of(&large, &many).unwrap();
        for cell in share.of(&small, &few).unwrap() {
            assert!(after.iter().any(|other| other.id == cell.id), "{}", cell.id);
        }
    }
    // As another implementation has it: the first 8 bytes of the blake3 as a little-endian number, modulo N.
    let mut one = plan(1, &[1]);
    (one.recipes[0].name, one.windows[0]) = ("e4m3".into(), "draw-1".into());
    let cells = one.cells();
    assert_eq!(cells[0].id, "e4m3/local/draw-1");
    let holds = |m: &usize| {
        !Partition::Hash(Share { m: *m, n: 1000 })
            .of(&one, &cells)
            .unwrap()
            .is_empty()
    };
    assert_eq!((1..=1000).filter(holds).collect::<Vec<_>>(), [59]);
}
