//! Compares the error of the rule that made the bytes with the error of the best rule of the format on the same values.

use super::maker::name;
use super::problem::{Source, largest, spread};
use super::{Diagnosis, StoredBytes};
use crate::packed::{Grid, reach};
use ulplab_core::formats::{Encoded, Format, GlobalScale, Group};

/// Approximate number of elements on which the errors of all rules are compared.
const ELEMENTS: usize = 1 << 18;
/// A rule is far worse than the best rule if its relative L2 error is more than `FAR` times as large.
const FAR: f64 = 1.5;

/// Errors of the rule that made the bytes, and of the best rule of the format.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Name of the rule that made the bytes.
    pub rule: String,
    /// Relative L2 error of the rule that made the bytes.
    pub error: f64,
    /// Name of the rule with the smallest error.
    pub best: String,
    /// Relative L2 error of the best rule.
    pub best_error: f64,
    /// Number of blocks whose largest element is clipped (reduced by more than half a step) by the rule that made the bytes.
    pub clipped: usize,
    /// Number of blocks in the rows that were compared.
    pub blocks: usize,
}

impl Cost {
    /// True if the rule that made the bytes is far worse than the best rule: its relative L2 error is more than [`FAR`] times as
    /// large, or the rule clips most blocks and has a larger error. If the best rule has an error of 0, the values were already
    /// in the format; the larger error then counts only if the rule clips a block.
    ///
    /// The limits come from measurements of formats up to 6 bits on ten distributions (normal, uniform, heavy tails, outliers,
    /// tiny, large, …). Rules that clip most blocks are far worse: the rule `vllm` of MX formats has 1.7 to 14 times the best
    /// error and clips 75 to 98 % of blocks, `nearest` has 2.1 to 3.8 times the best error. Rules with a lower limit for scales
    /// are far worse on numbers of 10⁻⁶. `floor` is far worse on uniform numbers (2.1 times). A rule that differs only in
    /// rounding is not far worse.
    pub fn is_far(&self) -> bool {
        let clips = 2 * self.clipped > self.blocks && self.error > self.best_error;
        clips || self.error > FAR * self.best_error && (self.best_error > 0.0 || self.clipped > 0)
    }

    /// Returns the text of the warning that the rule has a far larger error than the best rule.
    pub fn words(&self) -> String {
        let (rule, best) = (&self.rule, &self.best);
        let share = 100.0 * self.clipped as f64 / self.blocks.max(1) as f64;
        format!(
            "the rule {rule} clips the largest element of {share:.3} % of blocks; its relative L2 error is {:.3e}, that of {best} \
             {:.3e}; name the rule if it is meant",
            self.error, self.best_error
        )
    }
}

/// The rows on which the rules are compared, and the stored global scales of these rows.
struct Rows {
    x: Vec<f32>,
    globals: Vec<f32>,
    /// Largest magnitude of the whole tensor; 0 if the format has no global scale for the tensor.
    amax: f32,
}

impl Rows {
    /// Reads all rows of a small tensor, or a sample of groups of rows that share scales. `None` if the rows of one group have
    /// too many elements.
    fn new(source: Source, cols: usize, stored: &StoredBytes, format: &Format) -> Option<Self> {
        let rows = source.elements() / cols;
        let height = match format.scaling?.group {
            Group::Tile { rows, .. } => rows,
            Group::Token => 1,
            Group::Column | Group::Tensor => rows.max(1),
        };
        if height.saturating_mul(cols) > 16 * ELEMENTS {
            return None;
        }
        let tiles = spread(rows.div_ceil(height), (ELEMENTS / (height * cols)).max(1));
        let (mut x, mut globals) = (Vec::new(), Vec::new());
        let of_rows = format.global == Some(Group::Token);
        for tile in tiles {
            let tile = tile * height..rows.min((tile + 1) * height);
            x.extend(source.read(tile.start * cols, tile.len() * cols));
            globals.extend(stored.global.get(tile).filter(|_| of_rows).into_iter().flatten());
        }
        if !of_rows {
            globals.clone_from(&stored.global);
        }
        let whole = (0..rows).map(|row| largest(source.read(row * cols, cols).into_iter()));
        let amax = match format.global {
            Some(Group::Tensor) => largest(whole),
            _ => 0.0,
        };
        Some(Self { x, globals, amax })
    }

    /// Quantizes and decodes the rows with the rule of a format.
    fn rounded(&self, cols: usize, format: &Format, global: GlobalScale) -> Vec<f32> {
        let encoded: Encoded = format.encode(&self.x, cols, global);
        let mut y = vec![0.0; self.x.len()];
        format.decode(&encoded, &mut y);
        y
    }
}

/// Relative L2 error over all pairs of finite elements, in f64.
fn relative_l2(x: &[f32], y: &[f32]) -> f64 {
    let (mut off, mut all) = (0.0, 0.0);
    for (x, y) in x.iter().zip(y).map(|(x, y)| (f64::from(*x), f64::from(*y))) {
        if x.is_finite() && y.is_finite() {
            off += (x - y) * (x - y);
            all += x * x;
        }
    }
    if all > 0.0 { (off / all).sqrt() } else { 0.0 }
}

/// Compares the error of the rule that reproduces all bytes with that of the best rule. `None` if no rule reproduces them, or if
/// the format has only one rule.
pub fn measure(source: Source, cols: usize, stored: &StoredBytes, diagnosis: &Diagnosis) -> Option<Cost> {
    let made = diagnosis.exact.first().filter(|_| diagnosis.findings.is_empty())?;
    let format = &made.format;
    let rules = format.by_rules();
    if rules.len() < 2 || source.elements() == 0 {
        return None;
    }
    let rows = Rows::new(source, cols, stored, format)?;
    let y = rows.rounded(cols, format, GlobalScale::Stored(&rows.globals));
    let error = relative_l2(&rows.x, &y);
    let others = rules.iter().map(|rule| {
        let global = match rule.global {
            Some(Group::Tensor) => GlobalScale::Amax(rows.amax),
            _ => GlobalScale::Own,
        };
        (rule, relative_l2(&rows.x, &rows.rounded(cols, rule, global)))
    });
    let (best, best_error) = others.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let (x, y) = (format.rotated(&rows.x), format.rotated(&y));
    let grid = Grid::new(format, x.len() / cols, cols);
    let most = reach(format);
    let is_clipped = |group: &usize| {
        let at = grid.elements(*group).max_by(|a, b| x[*a].abs().total_cmp(&x[*b].abs()));
        at.is_some_and(|at| y[at] != 0.0 && y[at].is_finite() && x[at].is_finite() && (x[at] / y[at]).abs() > most)
    };
    Some(Cost {
        rule: made.name(),
        error,
        best: name(best),
        best_error,
        clipped: (0..grid.groups()).filter(is_clipped).count(),
        blocks: grid.groups(),
    })
}
