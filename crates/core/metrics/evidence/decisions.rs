//! Decisions of Swap-FFN, a model that exchanges vectors with banks of memory. For each row (one vector), the model decides if
//! the gate is open, i.e. if it exchanges the vector, and selects the bank.

/// Decision of one row of Swap-FFN: its gate (open or closed), its memory bank, and the margins of the logits that decide both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decided {
    /// True if the gate is open.
    pub open: bool,
    /// The selected bank; meaningless if the gate is closed.
    pub bank: u8,
    /// Distance of the gate's logit from its threshold, and distance of the largest bank logit from the second largest.
    pub margins: [f64; 2],
}

impl Decided {
    /// True if both decisions have the same effect: the same bank, or both gates closed.
    pub fn agrees(self, other: Self) -> bool {
        self.open == other.open && (!self.open || self.bank == other.bank)
    }
}

/// Agreement of a candidate's decisions with those of the reference.
///
/// A decision flips if the gates differ, or if both gates are open and the banks differ. The reference's margin shows whether the
/// flip was a near-tie. If a margin of the reference is not finite, every metric is NaN.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// Margin, in units of logits, above which a decision is expected not to flip.
    margin: f64,
    /// Number of compared rows; each row has one decision.
    pub rows: u64,
    /// Number of margins of the reference that are not finite.
    pub nonfinite: u64,
    pub(in crate::metrics) same_gate: u64,
    pub(in crate::metrics) both_open: u64,
    pub(in crate::metrics) same_bank: u64,
    /// Number of flipped decisions whose margin is above `margin`.
    pub(in crate::metrics) outside: u64,
    /// Margins, in the reference's logits, of all flipped decisions.
    overturned: Vec<f64>,
}

impl Decisions {
    /// Creates evidence without rows. If a decision flips although its margin in the reference is above `margin` (in units of
    /// logits), [`Decisions::add`] counts it in `outside`.
    pub fn new(margin: f64) -> Self {
        Self {
            margin,
            ..Self::default()
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

    /// Returns the median margin of flipped decisions; 0 if nothing flipped.
    pub(in crate::metrics) fn median(&self) -> f64 {
        crate::metrics::upper_median(self.overturned.clone()).unwrap_or(0.0)
    }

    pub(in crate::metrics) fn largest(&self) -> f64 {
        self.overturned.iter().copied().fold(0.0, f64::max)
    }
}
