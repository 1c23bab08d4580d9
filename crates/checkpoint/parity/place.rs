//! Describes the positions of faulty entries: ranges of rows and columns, or every n-th row or column.

use std::collections::BTreeSet;

/// Function `([row, column], [rows, columns]) -> [row, column]` that maps an entry of a matrix to the entry that is read instead.
/// The result may lie outside of the matrix.
pub type Origin = fn([usize; 2], [usize; 2]) -> [usize; 2];

/// Flat index of an entry of a matrix of size `[rows, cols]`; `None` if the entry is outside.
pub fn index_of([r, c]: [usize; 2], [rows, cols]: [usize; 2]) -> Option<usize> {
    (r < rows && c < cols).then_some(r * cols + c)
}

/// Number of hits (faulty entries) in each row and each column.
#[derive(Clone, Debug, Default)]
pub struct Hits {
    pub rows: Vec<u32>,
    pub cols: Vec<u32>,
}

/// Pattern of the rows (or of the columns) that contain faulty entries.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    All,
    Range(usize, usize),
    /// Indices whose remainder modulo the first field is in the list.
    Every(usize, Vec<usize>),
    /// No pattern: a flag for each index, true if it has faulty entries.
    Some(Vec<bool>),
}

/// The rows and columns of a matrix that contain faulty entries.
#[derive(Clone, Debug)]
pub struct Place {
    rows: Part,
    cols: Part,
    size: (usize, usize),
}

impl Hits {
    pub fn new(rows: usize, cols: usize) -> Self {
        Self {
            rows: vec![0; rows],
            cols: vec![0; cols],
        }
    }

    pub fn add(&mut self, r: usize, c: usize) {
        self.rows[r] += 1;
        self.cols[c] += 1;
    }

    /// Adds the counts of `other`, which is about the same matrix. An empty `self` means that all counts are 0.
    pub fn merge(mut self, other: Self) -> Self {
        if self.rows.is_empty() {
            return other;
        }
        self.rows.iter_mut().zip(&other.rows).for_each(|(a, b)| *a += b);
        self.cols.iter_mut().zip(&other.cols).for_each(|(a, b)| *a += b);
        self
    }

    pub fn place(&self) -> Place {
        let size = (self.rows.len(), self.cols.len());
        Place {
            rows: part(&self.rows),
            cols: part(&self.cols),
            size,
        }
    }
}

/// Finds the simplest pattern of indices (all, a range, every n-th) that fits the indices with faulty entries.
fn part(hits: &[u32]) -> Part {
    let n = hits.len();
    // Ignore rows with less than 1/50 of the faulty entries of the worst row: they belong to another fault.
    let least = hits.iter().copied().max().unwrap_or(0) / 50;
    let hit: Vec<usize> = (0..n).filter(|i| hits[*i] > least).collect();
    let (Some(&first), Some(&last)) = (hit.first(), hit.last()) else {
        return Part::All;
    };
    if hit.len() * 10 > n * 7 {
        return Part::All;
    }
    if (last - first + 1) * 6 <= hit.len() * 10 {
        return Part::Range(first, last);
    }
    let moduli = (2..=64)
        .chain([96, 128, 192, 256, 384, 512, 1024])
        .filter(|m| m * 2 <= n);
    for modulus in moduli {
        let residues: BTreeSet<usize> = hit.iter().map(|i| i % modulus).collect();
        let members: usize = residues.iter().map(|residue| (n - residue).div_ceil(modulus)).sum();
        if residues.len() * 2 <= modulus && residues.len() <= 32 && hit.len() * 10 >= members * 6 {
            return Part::Every(modulus, Vec::from_iter(residues));
        }
    }
    Part::Some(hits.iter().map(|hits| *hits > least).collect())
}

impl Part {
    fn contains(&self, i: usize) -> bool {
        match self {
            Self::All => true,
            Self::Range(first, last) => (*first..=*last).contains(&i),
            Self::Every(modulus, residues) => residues.contains(&(i % modulus)),
            Self::Some(hit) => hit[i],
        }
    }

    fn len(&self, n: usize) -> usize {
        (0..n).filter(|i| self.contains(*i)).count()
    }

    fn text(&self, n: usize, unit: &str) -> Option<String> {
        match self {
            Self::All => None,
            Self::Range(a, b) if a == b && b + 1 == n => Some(format!("the last {unit}")),
            Self::Range(a, b) if a == b => Some(format!("{unit} {a}")),
            Self::Range(a, b) if b + 1 == n => Some(format!("the last {} {unit}s", b - a + 1)),
            Self::Range(0, b) => Some(format!("the first {} {unit}s", b + 1)),
            Self::Range(a, b) => Some(format!("{unit}s {a} to {b}")),
            Self::Every(modulus, residues) => Some(match &residues[..] {
                [one] if *modulus == 2 => format!("every second {unit}, from {unit} {one} on"),
                [one] => format!("one {unit} of every {modulus}, from {unit} {one} on"),
                [a, .., b] if b - a + 1 == residues.len() => format!("{unit}s {a} to {b} of every {modulus}"),
                many => {
                    let list: Vec<String> = many.iter().map(ToString::to_string).collect();
                    format!("{unit}s {} of every {modulus}", list.join(", "))
                }
            }),
            Self::Some(hit) => {
                let count = hit.iter().filter(|hit| **hit).count();
                Some(format!("{count} of {n} {unit}s"))
            }
        }
    }
}

impl Place {
    /// Number of entries of the matrix in these rows and columns.
    pub fn len(&self) -> usize {
        self.rows.len(self.size.0) * self.cols.len(self.size.1)
    }

    pub fn contains(&self, r: usize, c: usize) -> bool {
        self.rows.contains(r) && self.cols.contains(c)
    }

    /// Describes the rows and columns in words that follow "in", e.g. "rows 0 to 7"; `None` for the whole matrix.
    pub fn text(&self, row: &str, column: &str) -> Option<String> {
        let rows = self.rows.text(self.size.0, row).filter(|_| self.size.0 > 1);
        let cols = self.cols.text(self.size.1, column).filter(|_| self.size.1 > 1);
        match (rows, cols) {
            (Some(rows), Some(cols)) => Some(format!("{rows}, {cols}")),
            (rows, cols) => rows.or(cols),
        }
    }
}
