//! Evidence: the sums and counts from which metrics are computed. One pass over the data gathers them in f64; a metric is then a
//! formula of a few numbers.

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
pub(super) use logits::{Row, largest};
pub use pair::{Pair, Worst, unravel};
pub use round_trip::RoundTrip;
pub use threshold::Threshold;
pub use ulps::{Bits, Ulps, ordered};

use super::{Gain, Growth, History};

/// A number that converts exactly to f64.
pub trait Number: Copy + Into<f64> {}

impl<T: Copy + Into<f64>> Number for T {}

/// Sums and counts of one kind, from which formulas compute metrics.
pub trait Evidence {
    /// Returns the formula of a metric; `None` if the metric is not computed from this kind of evidence.
    fn formula(eval: Eval) -> Option<fn(&Self) -> Option<f64>>;

    /// Number of elements (rows, for logits and choices) from which the metrics are computed.
    fn n(&self) -> u64;

    /// Numbers of NaN and infinite elements of the reference and of the candidate.
    fn nonfinite(&self) -> (u64, u64);

    /// Returns the element with the largest error; `None` if the evidence has no such element, as for logits and selections.
    fn worst(&self) -> Option<Worst>;

    /// Evaluates a formula. Returns NaN if an element is not finite, and `None` if there are no elements.
    fn judge<V: Into<Option<f64>>>(&self, metric: impl FnOnce(&Self) -> V) -> Option<f64> {
        match (self.nonfinite(), self.n()) {
            ((0, 0), 0) => None,
            ((0, 0), _) => metric(self).into(),
            _ => Some(f64::NAN),
        }
    }

    /// Returns the mean over all elements, given their sum.
    fn mean(&self, sum: f64) -> Option<f64> {
        self.judge(|_| sum / self.n() as f64)
    }
}

/// Declares the kinds of evidence. An entry is: doc, name, type, and expressions for the number of elements, the numbers of
/// non-finite elements, and the worst element.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($type:ty) as $it:ident: $n:expr, $nonfinite:expr, $worst:expr;)*) => {
        /// Formula of a metric; the variant is the kind of evidence (sums and counts) that the formula reads. A formula returns
        /// `None` if the metric is not defined.
        #[derive(Clone, Copy, Debug)]
        pub enum Eval {
            $($(#[$doc])* $kind(fn(&$type) -> Option<f64>),)*
            /// No formula: the kernel runner measures the metric, or a separate function computes it, e.g. one in
            /// [`flips`](super::flips).
            Kernel,
        }

        $(
            #[allow(unused_variables, reason = "some kinds have no element that is not finite, and no worst one")]
            impl Evidence for $type {
                fn formula(eval: Eval) -> Option<fn(&Self) -> Option<f64>> {
                    match eval {
                        Eval::$kind(formula) => Some(formula),
                        _ => None,
                    }
                }

                fn n(&self) -> u64 {
                    let $it = self;
                    $n
                }

                fn nonfinite(&self) -> (u64, u64) {
                    let $it = self;
                    $nonfinite
                }

                fn worst(&self) -> Option<Worst> {
                    let $it = self;
                    $worst
                }
            }
        )*
    };
}

kinds! {
    /// Two tensors of the same shape.
    Pair(Pair) as pair: pair.n, (pair.nonfinite_want, pair.nonfinite_got), pair.worst;
    /// Logits of two models at the same positions.
    Logits(Logits) as logits: logits.rows, (logits.nonfinite_want, logits.nonfinite_got), None;
    /// Two top-k selections.
    Choice(Choice) as choice: choice.rows, (choice.nonfinite, 0), None;
    /// Decisions of gates and banks.
    Decisions(Decisions) as decisions: decisions.rows, (decisions.nonfinite, 0), None;
    /// Relative errors before and after a layer.
    Gain(Gain) as gain: gain.n, (0, 0), None;
    /// Relative errors after increasing numbers of steps of a recurrence.
    Growth(Growth) as growth: growth.points.len() as u64, (0, 0), None;
    /// Agreement of all decisions of a Swap-FFN model, up to this step, with the reference's decisions.
    History(History) as history: history.cores, (0, 0), None;
    /// A tensor stored in a format and read back.
    RoundTrip(RoundTrip<'_>) as trip: trip.pair.n, (trip.pair.nonfinite_want, trip.pair.nonfinite_got), None;
    /// Errors of scores relative to the spread of the scores.
    Threshold(Threshold) as threshold: threshold.rows, (threshold.nonfinite, 0), None;
}
