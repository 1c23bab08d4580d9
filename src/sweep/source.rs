//! Where the numbers of a round trip and the scores of a recall come from.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Exp1, StandardNormal, StandardUniform, StudentT};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::experiment::Kind;

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
    /// What passes at these sites of the model on each window of text; values are means over the layers, and each layer
    /// has its own beside them. Of a recall: what is selected there.
    Site(String),
}

impl Origin {
    /// Whether an experiment of that kind can use it.
    pub fn suits(&self, kind: Kind) -> bool {
        match (kind, self) {
            (Kind::Model | Kind::Kernels, _) => false,
            (_, Self::Site(_)) => true,
            (Kind::Recall, origin) => matches!(origin, Self::Vectors { .. }),
            (Kind::RoundTrip, origin) => !matches!(origin, Self::Vectors { .. }),
        }
    }

    /// What is wrong with its numbers, for draws with so many columns.
    pub fn check(&self, cols: usize) -> Result<(), String> {
        match *self {
            Self::StudentT(nu) if !(nu > 0.0 && nu.is_finite()) => {
                Err(format!("student_t = {nu}: degrees of freedom are above 0"))
            }
            Self::OutlierChannels { share, factor } if !(0.0..=1.0).contains(&share) || !factor.is_finite() => Err(
                format!("outlier_channels: share {share} is not within 0 and 1, or factor {factor} is not finite"),
            ),
            Self::Vectors { channels, top } if channels == 0 || top == 0 || top >= cols => Err(format!(
                "vectors: {channels} channels, top {top}: at least one of each, and fewer than the {cols} entries"
            )),
            _ => Ok(()),
        }
    }
}

/// A stream of random numbers that depends on nothing but the seed and what it is for.
pub fn stream(seed: u64, purpose: &str) -> ChaCha8Rng {
    ChaCha8Rng::from_seed(*blake3::hash(format!("{seed}/{purpose}").as_bytes()).as_bytes())
}

/// N(0, 1).
pub fn gaussian(rng: &mut ChaCha8Rng, len: usize) -> Vec<f32> {
    StandardNormal.sample_iter(rng).take(len).collect()
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
        Origin::Vectors { .. } | Origin::Site(_) => Vec::new(),
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
