//! What metrics are computed from. Each kind is gathered in one pass over the data, in f64; a metric is then a formula
//! of a few numbers.

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
    Pair(&'a Pair),
    Logits(&'a Logits),
    Choice(&'a Choice),
    Decisions(&'a Decisions),
    Gain(&'a Gain),
    Growth(&'a Growth),
    History(&'a History),
    RoundTrip(&'a RoundTrip<'a>),
    Threshold(&'a Threshold),
}

impl Evidence<'_> {
    /// Elements (rows, for logits and choices) behind the metrics.
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

    /// NaN and infinite elements of the reference's side and of the candidate's.
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

impl<'a> From<&'a Pair> for Evidence<'a> {
    fn from(pair: &'a Pair) -> Self {
        Self::Pair(pair)
    }
}

impl<'a> From<&'a Logits> for Evidence<'a> {
    fn from(logits: &'a Logits) -> Self {
        Self::Logits(logits)
    }
}

impl<'a> From<&'a Gain> for Evidence<'a> {
    fn from(gain: &'a Gain) -> Self {
        Self::Gain(gain)
    }
}

impl<'a> From<&'a Growth> for Evidence<'a> {
    fn from(growth: &'a Growth) -> Self {
        Self::Growth(growth)
    }
}

impl<'a> From<&'a Choice> for Evidence<'a> {
    fn from(choice: &'a Choice) -> Self {
        Self::Choice(choice)
    }
}

impl<'a> From<&'a RoundTrip<'a>> for Evidence<'a> {
    fn from(trip: &'a RoundTrip<'a>) -> Self {
        Self::RoundTrip(trip)
    }
}

impl<'a> From<&'a Threshold> for Evidence<'a> {
    fn from(threshold: &'a Threshold) -> Self {
        Self::Threshold(threshold)
    }
}

impl<'a> From<&'a Decisions> for Evidence<'a> {
    fn from(decisions: &'a Decisions) -> Self {
        Self::Decisions(decisions)
    }
}

impl<'a> From<&'a History> for Evidence<'a> {
    fn from(history: &'a History) -> Self {
        Self::History(history)
    }
}
