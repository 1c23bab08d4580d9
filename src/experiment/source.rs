//! Where the numbers of a round trip, the scores of a recall, the inputs of a recurrence and the weights of Swap-FFN come from.

use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, StandardUniform, StudentT};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Kind;
use crate::studies::swap_ffn::Sizes;
use ulplab_core::random::gaussian;

/// More channels of a state are a slip.
const MOST_CHANNELS: usize = 1024;

/// A kind of numbers, under the name its records have as site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub name: String,
    pub from: Origin,
}

/// How a source's numbers come about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Origin {
    /// N(0, 1).
    Gaussian,
    /// Density e^−|x| / 2.
    Laplace,
    /// Student's t with so many degrees of freedom; of 2 or fewer the variance is infinite.
    StudentT(f64),
    /// N(0, 1), with a share of the channels `factor` times as large.
    OutlierChannels { share: f64, factor: f64 },
    /// Of a recall: scores of queries and entries of so many N(0, 1) channels, of which the `top` are selected.
    Vectors { channels: usize, top: usize },
    /// Of a recurrence: linear attention with a state of so many key and value channels a head.
    LinearAttention {
        op: Attention,
        gate: Gate,
        state: [usize; 2],
    },
    /// Of a recurrence: a diagonal state-space model of so many states a head.
    DiagonalSsm { poles: Poles, states: usize },
    /// Of Swap-FFN: a model of these sizes, with weights as before training.
    SwapFfn(Sizes),
    /// What passes at these sites of the model on each window of text; values are means over the layers, and each layer
    /// has its own beside them. Of a recall: what is selected there.
    Site(String),
}

/// Which linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// The gated delta rule: one decay a head.
    Gdn,
    /// Kimi delta attention: one decay a key channel.
    Kda,
    /// One decay a head and no delta rule.
    SimpleGla,
}

/// How log decays are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// All 0: nothing decays.
    None,
    /// Exponentially, with this mean below 0.
    Mean(f64),
    /// This bound below 0 times the sigmoid of N(0, 1).
    Bound(f64),
}

/// How the factors a of a state-space model are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Poles {
    /// N(0, 1) times this.
    Normal(f64),
    /// Uniformly between 0 and this.
    Uniform(f64),
    /// 1 − a log-uniformly between these.
    BelowOne([f64; 2]),
}

impl Origin {
    /// Whether an experiment of that kind can use it.
    pub fn suits(&self, kind: Kind) -> bool {
        match (kind, self) {
            (Kind::Model | Kind::Kernels, _) => false,
            (Kind::RoundTrip | Kind::Recall, Self::Site(_)) => true,
            (Kind::Recall, origin) => matches!(origin, Self::Vectors { .. }),
            (Kind::Recurrence, origin) => origin.is_recurrence(),
            (Kind::SwapFfn, origin) => matches!(origin, Self::SwapFfn(_)),
            (Kind::RoundTrip, origin) => {
                !matches!(origin, Self::Vectors { .. } | Self::SwapFfn(_)) && !origin.is_recurrence()
            }
        }
    }

    fn is_recurrence(&self) -> bool {
        matches!(self, Self::LinearAttention { .. } | Self::DiagonalSsm { .. })
    }

    /// What is wrong with its numbers, for draws with so many columns.
    pub fn check(&self, cols: usize) -> Result<(), String> {
        match *self {
            Self::SwapFfn(ref sizes) => sizes.check().map_err(|message| format!("swap_ffn: {message}")),
            Self::StudentT(nu) if !(nu > 0.0 && nu.is_finite()) => {
                Err(format!("student_t = {nu}: degrees of freedom are above 0"))
            }
            Self::OutlierChannels { share, factor } if !(0.0..=1.0).contains(&share) || !factor.is_finite() => Err(
                format!("outlier_channels: share {share} is not within 0 and 1, or factor {factor} is not finite"),
            ),
            Self::Vectors { channels, top } if channels == 0 || top == 0 || top >= cols => Err(format!(
                "vectors: {channels} channels, top {top}: at least one of each, and fewer than the {cols} entries"
            )),
            Self::LinearAttention { state: [k, v], .. }
                if !(1..=MOST_CHANNELS).contains(&k) || !(1..=MOST_CHANNELS).contains(&v) =>
            {
                Err(format!(
                    "linear_attention: state = [{k}, {v}], expected 1 to {MOST_CHANNELS} channels each"
                ))
            }
            Self::LinearAttention {
                gate: Gate::Mean(g) | Gate::Bound(g),
                ..
            } if !(g < 0.0 && g.is_finite()) => {
                Err(format!("linear_attention: gate {g}, expected a log decay below 0"))
            }
            Self::DiagonalSsm { states, .. } if !(1..=MOST_CHANNELS).contains(&states) => Err(format!(
                "diagonal_ssm: states = {states}, expected 1 to {MOST_CHANNELS}"
            )),
            Self::DiagonalSsm { poles, .. } if !poles.are_stable() => Err(format!(
                "diagonal_ssm: {poles:?}, expected numbers above 0 that leave |a| below 1"
            )),
            _ => Ok(()),
        }
    }
}

impl Poles {
    /// Whether they are numbers that keep states bounded; of a normal distribution, but for one in 10⁹.
    fn are_stable(self) -> bool {
        match self {
            Self::Normal(size) => size > 0.0 && size <= 1.0 / 6.0,
            Self::Uniform(most) => most > 0.0 && most < 1.0,
            Self::BelowOne([least, most]) => 0.0 < least && least <= most && most < 1.0,
        }
    }
}

/// `[rows, cols]` numbers of a distribution, row-major; none of what is not a distribution.
pub fn draw(origin: &Origin, [rows, cols]: [usize; 2], rng: &mut ChaCha8Rng) -> Vec<f32> {
    let len = rows * cols;
    match *origin {
        Origin::Gaussian => gaussian(rng, len),
        Origin::Laplace => {
            let signed = |rng: &mut ChaCha8Rng| {
                let size: f32 = Exp1.sample(rng);
                let negative: bool = StandardUniform.sample(rng);
                if negative { -size } else { size }
            };
            (0..len).map(|_| signed(rng)).collect()
        }
        Origin::StudentT(nu) => {
            let student = StudentT::new(nu).expect("degrees of freedom are checked");
            (0..len).map(|_| student.sample(rng) as f32).collect()
        }
        Origin::OutlierChannels { share, factor } => {
            let factors = outliers(cols, share, factor as f32, rng);
            let mut values = gaussian(rng, len);
            for row in values.chunks_exact_mut(cols) {
                row.iter_mut().zip(&factors).for_each(|(x, factor)| *x *= factor);
            }
            values
        }
        Origin::Vectors { .. }
        | Origin::LinearAttention { .. }
        | Origin::DiagonalSsm { .. }
        | Origin::SwapFfn(_)
        | Origin::Site(_) => Vec::new(),
    }
}

/// A factor for each channel: `factor` for the channels with the smallest of as many random keys, 1 for the others.
fn outliers(cols: usize, share: f64, factor: f32, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let count = (share * cols as f64).round() as usize;
    let mut keys: Vec<(u64, usize)> = StandardUniform.sample_iter(rng).take(cols).zip(0..).collect();
    keys.sort_unstable();
    let mut factors = vec![1.0; cols];
    keys[..count].iter().for_each(|&(_, channel)| factors[channel] = factor);
    factors
}
