//! The evidence from which metrics are computed. Each kind is gathered in one pass over the data, in f64; a metric is then
//! a formula of a few numbers.

mod choice;
mod decisions;
mod logits;
mod moments;
mod pair;
mod round_trip;
mod threshold;
mod ulps;

pub use choice::Choice;
pub use decisions::{Decided, Decisions};

pub use logits::Logits;
pub use pair::{Pair, Worst, unravel};
pub use round_trip::RoundTrip;
pub use threshold::Threshold;
pub use ulps::{Bits, Ulps, ordered};

use super::{Gain, Growth, History};

/// Any kind of evidence.
#[derive(Clone, Copy, Debug)]
pub enum Evidence<'a> {
    /// Two tensors.
    Pair(&'a Pair),
    /// Logits of two models at the same positions.
    Logits(&'a Logits),
    /// Two top-k selections.
    Choice(&'a Choice),
    /// Decisions of gates and banks.
    Decisions(&'a Decisions),
    /// Errors before and after a layer.
    Gain(&'a Gain),
    /// An error as a function of the number of steps.
    Growth(&'a Growth),
    /// The history of decisions.
    History(&'a History),
    /// A tensor stored in a format and read back.
    RoundTrip(&'a RoundTrip<'a>),
    /// Errors of scores relative to their spread.
    Threshold(&'a Threshold),
}

impl Evidence<'_> {
    /// Number of elements (rows, for logits and choices) behind the metrics.
    pub fn n(self) -> u64 {
        match self {
            Self::Pair(pair) => pair.n,
            Self::Logits(logits) => logits.rows,
            Self::Choice(choice) => choice.rows,
            Self::Decisions(decisions) => decisions.rows,
            Self::Gain(gain) => gain.n,
            Self::Growth(growth) => growth.points.len() as u64,
            Self::History(history) => history.cores,
            Self::RoundTrip(trip) => trip.pair.n,
            Self::Threshold(threshold) => threshold.rows,
        }
    }

    /// NaN and infinite elements of the reference and of the candidate.
    pub fn nonfinite(self) -> (u64, u64) {
        match self {
            Self::Pair(pair) => (pair.nonfinite_want, pair.nonfinite_got),
            Self::Logits(logits) => (logits.nonfinite_want, logits.nonfinite_got),
            Self::Choice(choice) => (choice.nonfinite, 0),
            Self::Decisions(decisions) => (decisions.nonfinite, 0),
            Self::RoundTrip(trip) => (trip.pair.nonfinite_want, trip.pair.nonfinite_got),
            Self::Threshold(threshold) => (threshold.nonfinite, 0),
            Self::Gain(_) | Self::Growth(_) | Self::History(_) => (0, 0),
        }
    }
}

/// The name of a kind of evidence, and what it consists of.
macro_rules! kinds {
    ($($kind:ident: $of:ty,)*) => {$(
        impl<'a> From<&'a $of> for Evidence<'a> {
            fn from(evidence: &'a $of) -> Self {
                Self::$kind(evidence)
            }
        }
    )*};
}

kinds! {
    Pair: Pair,
    Logits: Logits,
    Choice: Choice,
    Decisions: Decisions,
    Gain: Gain,
    Growth: Growth,
    History: History,
    RoundTrip: RoundTrip<'a>,
    Threshold: Threshold,
}
