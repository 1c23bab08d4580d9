//! Shares of a plan, for processes that work on a run side by side and know nothing of each other.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::fmt;
use std::str::FromStr;

use super::plan::{Cell, Plan};
use ulplab_core::error::{Error, Result, did_you_mean};

/// How finely a plan is cut at most: into so many pieces for each share. Finer pieces make shares more even, and make more of them
/// compute the same windows; the best of these is taken.
const PIECES: [u64; 4] = [1, 2, 4, 8];

/// Estimated work on a window that is done once for all its cells in a share: what the reference computes, or the inputs of a case.
const WINDOW: u64 = 1;

/// More shares are a slip: each would take memory, and most would be empty.
pub const MOST_SHARES: usize = 1 << 20;

/// One of `n` shares; both numbers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub m: usize,
    pub n: usize,
}

/// A share of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Shares of about equal cost, which keep the cells of a window together.
    Slice(Share),
    /// Cells by a hash of their id, so that a cell stays in its share when others are added to the plan.
    Hash(Share),
    /// The cells of an operation, or a share of its cases, and of the faults that are planted in it.
    Op(String, Share),
}

/// A partition as the user writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Given(Partition),
    /// `slice` or `hash`, whose share the scheduler's environment tells.
    FromEnvironment(Rule),
}

/// How cells are dealt to shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Slice,
    Hash,
}

impl Share {
    /// The only share.
    pub const WHOLE: Self = Self { m: 1, n: 1 };

    /// Its part of a list, dealt in turn.
    pub fn of<T>(self, all: &[T]) -> impl Iterator<Item = &T> {
        all.iter().skip(self.m - 1).step_by(self.n)
    }
}

impl FromStr for Share {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (m, n) = text.split_once('/').ok_or(())?;
        let [m, n] = [m, n].map(str::parse);
        match (m, n) {
            (Ok(m), Ok(n)) if 1 <= m && m <= n && n <= MOST_SHARES => Ok(Self { m, n }),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.m, self.n)
    }
}

impl Rule {
    /// The partition of a share by this rule.
    pub fn share(self, share: Share) -> Partition {
        match self {
            Self::Slice => Partition::Slice(share),
            Self::Hash => Partition::Hash(share),
        }
    }
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is no partition: expected slice:M/N or hash:M/N with 1 <= M <= N <= {MOST_SHARES}; slice or hash alone, to \
                 take M and N from the scheduler's environment; op:NAME for the cells of an operation; or op:NAME:M/N for a share of \
                 its cases"
            )
        };
        let (kind, rest) = text
            .split_once(':')
            .map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        let rule = match kind {
            "slice" => Rule::Slice,
            "hash" => Rule::Hash,
            "op" => {
                let rest = rest.unwrap_or_default();
                let (op, share) = match rest.split_once(':') {
                    Some((op, share)) => (op, share.parse().map_err(|()| wrong())?),
                    None => (rest, Share::WHOLE),
                };
                return match op {
                    "" => Err(wrong()),
                    op => Ok(Self::Given(Partition::Op(op.into(), share))),
                };
            }
            _ => return Err(wrong()),
        };
        let Some(rest) = rest else {
            return Ok(Self::FromEnvironment(rule));
        };
        let share = rest.parse().map_err(|()| wrong())?;
        Ok(Self::Given(rule.share(share)))
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slice(share) => write!(f, "slice:{share}"),
            Self::Hash(share) => write!(f, "hash:{share}"),
            Self::Op(op, Share::WHOLE) => write!(f, "op:{op}"),
            Self::Op(op, share) => write!(f, "op:{op}:{share}"),
        }
    }
}

impl Partition {
    /// Its cells, in the order of the plan. Every cell is in one share of `slice` and in one of `hash`; a share may be empty.
    ///
    /// # Errors
    /// An operation of which there is no cell; the error names the nearest.
    pub fn of<'a>(&self, plan: &Plan, cells: &'a [Cell]) -> Result<Vec<&'a Cell>> {
        match self {
            Self::Slice(Share { m, n }) => Ok(slices(plan, cells, *n).swap_remove(m - 1)),
            Self::Hash(Share { m, n }) => Ok(cells.iter().filter(|cell| hashed(&cell.id, *n) == m - 1).collect()),
            Self::Op(op, Share { m, n }) => {
                let mut here: Vec<&Cell> = cells.iter().filter(|cell| cell.kernel().0 == op).collect();
                if here.is_empty() {
                    let ops = cells.iter().map(|cell| cell.kernel().0);
                    let near = did_you_mean(op, ops);
                    return Err(Error::Usage(format!(
                        "--partition {self}: there is no cell of '{op}'{near}"
                    )));
                }
                // What is made once for a case is made in one share. Cases of a kind have neighbouring numbers, and take about as long.
                let mut cases: Vec<usize> = here.iter().map(|cell| cell.window).collect();
                cases.sort_unstable();
                cases.dedup();
                let dealt = |cell: &Cell| cases.binary_search(&cell.window).expect("it is one of them") % n == m - 1;
                here.retain(|cell| dealt(cell));
                Ok(here)
            }
        }
    }
}

/// The sum of their costs.
pub fn cost<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> u64 {
    cells.into_iter().map(|cell| cell.cost).sum()
}

/// The cells of each of `n` shares: those among some ways to cut the plan whose largest share is least.
fn slices<'a>(plan: &Plan, cells: &'a [Cell], n: usize) -> Vec<Vec<&'a Cell>> {
    let by_case = plan.by_case();
    // Cases of different operations may have the same name.
    let group = |cell: &'a Cell| (cell.window, if by_case { cell.kernel().0 } else { "" });
    let mut sorted: Vec<&Cell> = cells.iter().collect();
    sorted.sort_by_key(|cell| group(cell));
    let windows: Vec<&[&Cell]> = sorted.chunk_by(|a, b| group(a) == group(b)).collect();
    let all = cost(cells);
    let ways = PIECES
        .iter()
        .map(|pieces| dealt(&windows, all.div_ceil(pieces * n as u64), n));
    let (_, mut shares) = ways.min_by_key(|(largest, _)| *largest).expect("there is a way");
    let place = |cell: &&Cell| std::ptr::from_ref::<Cell>(cell).addr();
    shares.iter_mut().for_each(|share| share.sort_by_key(place));
    shares
}

/// The shares, and the estimated work of the largest, if windows are cut into pieces of about `most`. Pieces are dealt largest first,
/// each to the share with the least work so far: the greedy rule known as LPT.
fn dealt<'a>(windows: &[&[&'a Cell]], most: u64, n: usize) -> (u64, Vec<Vec<&'a Cell>>) {
    let mut pieces: Vec<(u64, usize, Vec<&Cell>)> = Vec::new();
    for (number, window) in windows.iter().enumerate() {
        let whole = cost(window.iter().copied());
        let cuts = whole.div_ceil(most.max(1)).max(1);
        let (mut before, mut last) = (0, None);
        for cell in *window {
            // The middle of the cell decides, so that pieces are even.
            let piece = (2 * before + cell.cost) * cuts / (2 * whole).max(1);
            before += cell.cost;
            if last.replace(piece) != Some(piece) {
                pieces.push((WINDOW, number, Vec::new()));
            }
            let (work, _, here) = pieces.last_mut().expect("a piece was begun");
            *work += cell.cost;
            here.push(*cell);
        }
    }
    // The sort is stable, so that equal pieces keep the order of the plan.
    pieces.sort_by_key(|(work, ..)| Reverse(*work));
    let mut least: BinaryHeap<Reverse<(u64, usize)>> = (0..n).map(|share| Reverse((0, share))).collect();
    let mut shares = vec![(HashSet::new(), Vec::new()); n];
    for (work, window, piece) in pieces {
        let Reverse((load, share)) = least.pop().expect("there is a share");
        let (windows, cells) = &mut shares[share];
        // Its share may have begun the window with another piece.
        let again = if windows.insert(window) { 0 } else { WINDOW };
        least.push(Reverse((load + work - again, share)));
        cells.extend(piece);
    }
    let largest = least.into_iter().map(|Reverse((load, _))| load).max();
    (
        largest.unwrap_or(0),
        shares.into_iter().map(|(_, cells)| cells).collect(),
    )
}

/// Which of `n` shares, counted from 0, has the cell of that id.
fn hashed(id: &str, n: usize) -> usize {
    let digest = blake3::hash(id.as_bytes());
    let head = digest.as_bytes().first_chunk().expect("a digest has 32 bytes");
    (u64::from_le_bytes(*head) % n as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::plan::RecipePlan;
    use ulplab_core::record::Phase;

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
                let Ok(Asked::Given(partition)) = text.parse() else {
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
            assert!(wrong.parse::<Asked>().is_err(), "{wrong}");
        }
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
        assert_eq!(hashed("e4m3/local/draw-1", 1000), 58);
    }
}
