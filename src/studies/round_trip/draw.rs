//! Distributions of random numbers, which an experiment stores in formats and reads back.

use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, StandardUniform, StudentT};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use ulplab_core::random::gaussian;

/// The origin of a source's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Numbers {
    /// N(0, 1).
    Gaussian,
    /// Density e^−|x| / 2.
    Laplace,
    /// Student's t with this many degrees of freedom; with 2 or fewer the variance is infinite.
    StudentT(f64),
    /// N(0, 1), with the fraction `share` of the channels multiplied by `factor`.
    OutlierChannels { share: f64, factor: f64 },
    /// Tensors at these sites of the model, on each window of text. Results are given for each layer and as means over the
    /// layers.
    Site(String),
}

impl Numbers {
    /// Returns the pattern of sites if the numbers are from the model, else `None`.
    pub fn site(&self) -> Option<&str> {
        match self {
            Self::Site(at) => Some(at),
            _ => None,
        }
    }

    pub fn is_site(&self) -> bool {
        self.site().is_some()
    }

    /// Returns an error if a parameter of the distribution is out of range.
    pub fn check(&self) -> Result<(), String> {
        match *self {
            Self::StudentT(nu) if !(nu > 0.0 && nu.is_finite()) => {
                Err(format!("student_t = {nu}: degrees of freedom are above 0"))
            }
            Self::OutlierChannels { share, factor } if !(0.0..=1.0).contains(&share) || !factor.is_finite() => Err(
                format!("outlier_channels: share {share} is not within 0 and 1, or factor {factor} is not finite"),
            ),
            _ => Ok(()),
        }
    }
}

/// Makes `[rows, cols]` random numbers of a distribution, row-major; `None` for sites of a model, whose numbers are recorded.
pub fn draw(numbers: &Numbers, [rows, cols]: [usize; 2], rng: &mut ChaCha8Rng) -> Option<Vec<f32>> {
    let len = rows * cols;
    Some(match *numbers {
        Numbers::Gaussian => gaussian(rng, len),
        Numbers::Laplace => {
            let signed = |rng: &mut ChaCha8Rng| {
                let size: f32 = Exp1.sample(rng);
                let negative: bool = StandardUniform.sample(rng);
                if negative { -size } else { size }
            };
            (0..len).map(|_| signed(rng)).collect()
        }
        Numbers::StudentT(nu) => {
            let student = StudentT::new(nu).expect("degrees of freedom are checked");
            (0..len).map(|_| student.sample(rng) as f32).collect()
        }
        Numbers::OutlierChannels { share, factor } => {
            let factors = outliers(cols, share, factor as f32, rng);
            let mut values = gaussian(rng, len);
            for row in values.chunks_exact_mut(cols) {
                row.iter_mut().zip(&factors).for_each(|(x, factor)| *x *= factor);
            }
            values
        }
        Numbers::Site(_) => return None,
    })
}

/// Returns a factor for each channel: `factor` for outliers, 1 for the others. Outliers are a random choice of the fraction
/// `share` of all channels: those with the smallest random keys.
fn outliers(cols: usize, share: f64, factor: f32, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let count = (share * cols as f64).round() as usize;
    let mut keys: Vec<(u64, usize)> = StandardUniform.sample_iter(rng).take(cols).zip(0..).collect();
    keys.sort_unstable();
    let mut factors = vec![1.0; cols];
    keys[..count].iter().for_each(|&(_, channel)| factors[channel] = factor);
    factors
}
