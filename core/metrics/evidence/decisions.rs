//! Decisions of gates and of the banks behind them, row by row.

/// One decision, and how clear it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decided {
    /// Whether the gate is open.
    pub open: bool,
    /// Has no meaning if the gate is shut.
    pub bank: u8,
    /// By how much the gate's logit is away from its threshold, and the largest logit of a bank from the next.
    pub margins: [f64; 2],
}

impl Decided {
    /// Whether both do the same with the core.
    pub fn agrees(self, other: Self) -> bool {
        self.open == other.open && (!self.open || self.bank == other.bank)
    }
}

/// How decisions of a candidate agree with those of the reference.
///
/// A decision falls otherwise if the gate does, or if both gates are open and the banks differ. What the reference's
/// margin of it was tells whether it was a near-tie. If a margin of the reference is not finite, every metric is NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Decisions {
    /// Margins above this are to be safe.
    margin: f64,
    /// Number of rows with a decision.
    pub rows: u64,
    /// Margins of the reference that are not finite.
    pub nonfinite: u64,
    pub(in crate::metrics) same_gate: u64,
    pub(in crate::metrics) both_open: u64,
    pub(in crate::metrics) same_bank: u64,
    /// Decisions that fell otherwise outside the margin.
    pub(in crate::metrics) outside: u64,
    /// The reference's margins of all that fell otherwise.
    overturned: Vec<f64>,
}

impl Decisions {
    /// No decisions yet. Flips of decisions whose margin in the reference is above `margin`, in units of logits, are
    /// counted separately.
    pub fn new(margin: f64) -> Self {
        Self {
            margin,
            rows: 0,
            nonfinite: 0,
            same_gate: 0,
            both_open: 0,
            same_bank: 0,
            outside: 0,
            overturned: Vec::new(),
        }
    }

    /// Adds the decision of a row: `want` is the reference's, `got` the candidate's.
    pub fn add(&mut self, want: Decided, got: Decided) {
        self.rows += 1;
        self.nonfinite += want.margins.iter().filter(|margin| !margin.is_finite()).count() as u64;
        self.same_gate += u64::from(want.open == got.open);
        if want.open && got.open {
            self.both_open += 1;
            self.same_bank += u64::from(want.bank == got.bank);
        }
        if !want.agrees(got) {
            let margin = want.margins[usize::from(want.open == got.open)];
            self.outside += u64::from(margin > self.margin);
            self.overturned.push(margin);
        }
    }

    /// The median of the overturned margins; 0 of none.
    pub(in crate::metrics) fn median(&self) -> f64 {
        crate::metrics::upper_median(self.overturned.clone()).unwrap_or(0.0)
    }

    pub(in crate::metrics) fn largest(&self) -> f64 {
        self.overturned.iter().copied().fold(0.0, f64::max)
    }

    /// The value of a metric: none without rows, NaN where the reference is not finite.
    pub(in crate::metrics) fn judge(&self, metric: impl FnOnce(&Self) -> Option<f64>) -> Option<f64> {
        match self.rows {
            0 => None,
            _ if self.nonfinite > 0 => Some(f64::NAN),
            _ => metric(self),
        }
    }
}
