//! Partitions of the cells (units of work) of a run into shares, for independent processes that work on the same run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::fmt;
use std::str::FromStr;

use super::plan::{Cell, Plan};
use ulplab_core::error::{Error, Result, did_you_mean};

/// Numbers of pieces per share that [`slices`] tries, to find the partition whose largest share is smallest. More pieces make
/// shares more even, but then more shares repeat the common work of a window.
const PIECES: [u64; 4] = [1, 2, 4, 8];

/// Estimated work that a share does once for each of its windows: computing the reference's outputs, or the inputs of a case.
pub const WINDOW: u64 = 1;

/// Largest number of shares. A larger number is taken for a mistake: each share would take memory, and most would be empty.
pub const MOST_SHARES: usize = 1 << 20;

/// Share `m` of `n`; both numbers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub m: usize,
    pub n: usize,
}

/// A rule that assigns cells to shares, and the selected share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Shares of about equal cost. Cells of the same window are in the same share where possible, because they have common work.
    Slice(Share),
    /// Shares by a hash of the cell's id: adding cells to the plan does not move a cell to another share.
    Hash(Share),
    /// The cells of one operation, limited to a share of the operation's cases. The planted faults of the operation are divided
    /// in the same way.
    Op(String, Share),
}

/// A `--partition` argument.
#[derive(Clone, Debug)]
pub enum PartitionArg {
    Given(Partition),
    /// A partition by `slice` or `hash`; the scheduler's environment variables give the share.
    FromEnvironment(fn(Share) -> Partition),
}

impl Share {
    /// The single share of an undivided plan.
    pub const WHOLE: Self = Self { m: 1, n: 1 };

    /// Returns every `n`-th item of a list, beginning with item `m`.
    pub fn of<T>(self, all: &[T]) -> impl Iterator<Item = &T> {
        all.iter().skip(self.m - 1).step_by(self.n)
    }

    /// Parses `M/N`; `None` unless 1 ≤ M ≤ N ≤ [`MOST_SHARES`].
    fn parse(text: &str) -> Option<Self> {
        let (m, n) = text.split_once('/')?;
        let (m, n) = (m.parse().ok()?, n.parse().ok()?);
        (1 <= m && m <= n && n <= MOST_SHARES).then_some(Self { m, n })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.m, self.n)
    }
}

impl FromStr for PartitionArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.splitn(3, ':').collect();
        let given = match parts[..] {
            ["slice"] => return Ok(Self::FromEnvironment(Partition::Slice)),
            ["hash"] => return Ok(Self::FromEnvironment(Partition::Hash)),
            ["slice", share] => Share::parse(share).map(Partition::Slice),
            ["hash", share] => Share::parse(share).map(Partition::Hash),
            ["op", op] if !op.is_empty() => Some(Partition::Op(op.into(), Share::WHOLE)),
            ["op", op, share] if !op.is_empty() => Share::parse(share).map(|share| Partition::Op(op.into(), share)),
            _ => None,
        };
        given.map(Self::Given).ok_or_else(|| {
            format!(
                "'{text}' is not a partition: expected slice:M/N or hash:M/N with 1 <= M <= N <= {MOST_SHARES}; slice or hash \
                 alone, to take M and N from the scheduler's environment; op:NAME for the cells of an operation; or op:NAME:M/N \
                 for a share of its cases"
            )
        })
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
    /// Returns the cells of this share, in the order of the plan. With `slice` or `hash`, each cell of the plan is in exactly one
    /// share; a share may be empty.
    ///
    /// # Errors
    /// Returns an error if the operation that the partition names has no cells; the error suggests the nearest name.
    pub fn of<'a>(&self, plan: &Plan, cells: &'a [Cell]) -> Result<Vec<&'a Cell>> {
        match self {
            Self::Slice(Share { m, n }) => Ok(slices(plan, cells, *n).swap_remove(m - 1)),
            Self::Hash(Share { m, n }) => Ok(cells.iter().filter(|cell| hashed(&cell.id, *n) == m - 1).collect()),
            Self::Op(op, Share { m, n }) => {
                let mut here: Vec<&Cell> = cells.iter().filter(|cell| cell.kernel().0 == op).collect();
                if here.is_empty() {
                    let ops = cells.iter().map(|cell| cell.kernel().0);
                    let near = did_you_mean(op, ops);
                    let message = format!("--partition {self}: there is no cell of '{op}'{near}");
                    return Err(Error::Usage(message));
                }
                // Keep all cells of a case in one share: the inputs of the case are then computed once. Neighbouring cases cost
                // about the same: assign cases to the shares in turn.
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

/// Returns the total estimated cost of the cells.
pub fn cost<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> u64 {
    cells.into_iter().map(|cell| cell.cost).sum()
}

/// Returns the cells of each of `n` shares. Tries several numbers of pieces, and takes the partition whose largest share is
/// smallest.
fn slices<'a>(plan: &Plan, cells: &'a [Cell], n: usize) -> Vec<Vec<&'a Cell>> {
    let by_case = plan.by_case();
    // Cases of different operations may have the same name: also group by operation.
    let group = |cell: &'a Cell| (cell.window, if by_case { cell.kernel().0 } else { "" });
    let mut sorted: Vec<&Cell> = cells.iter().collect();
    sorted.sort_by_key(|cell| group(cell));
    let windows: Vec<&[&Cell]> = sorted.chunk_by(|a, b| group(a) == group(b)).collect();
    let all = cost(cells);
    let ways = PIECES.iter();
    let ways = ways.map(|pieces| dealt(&windows, all.div_ceil(pieces * n as u64), n));
    let (_, mut shares) = ways.min_by_key(|(largest, _)| *largest).expect("there is a way");
    let place = |cell: &&Cell| std::ptr::from_ref::<Cell>(cell).addr();
    shares.iter_mut().for_each(|share| share.sort_by_key(place));
    shares
}

/// Divides cells into `n` shares of about equal work. Cuts windows into pieces of about `most` units of work. Assigns the pieces,
/// largest first, each to the share with the least work so far: the greedy rule known as LPT (longest processing time). Returns
/// the estimated work of the largest share, and the cells of all shares.
fn dealt<'a>(windows: &[&[&'a Cell]], most: u64, n: usize) -> (u64, Vec<Vec<&'a Cell>>) {
    let mut pieces: Vec<(u64, usize, Vec<&Cell>)> = Vec::new();
    for (number, window) in windows.iter().enumerate() {
        let whole = cost(window.iter().copied());
        let cuts = whole.div_ceil(most.max(1)).max(1);
        let (mut before, mut last) = (0, None);
        for cell in *window {
            // Cut the window's work into `cuts` equal pieces. A cell belongs to the piece that contains the middle of the cell's
            // work.
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
    // The sort is stable: pieces of equal work keep the order of the plan.
    pieces.sort_by_key(|(work, ..)| Reverse(*work));
    let mut least: BinaryHeap<Reverse<(u64, usize)>> = (0..n).map(|share| Reverse((0, share))).collect();
    let mut shares = vec![(HashSet::new(), Vec::new()); n];
    for (work, window, piece) in pieces {
        let Reverse((load, share)) = least.pop().expect("there is a share");
        let (windows, cells) = &mut shares[share];
        // Subtract the work `WINDOW` if the share already has a piece of this window: the share computes the window's inputs only
        // once.
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

/// Returns the index, from 0, of the share that a cell id belongs to. There are `n` shares.
fn hashed(id: &str, n: usize) -> usize {
    let digest = blake3::hash(id.as_bytes());
    let head = digest.as_bytes().first_chunk().expect("a digest has 32 bytes");
    (u64::from_le_bytes(*head) % n as u64) as usize
}
