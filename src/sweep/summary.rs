//! Statistics over the windows of a run.

use serde::{Deserialize, Serialize};

use crate::record::Phase;

/// One metric at one site, over the windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub recipe: String,
    pub phase: Phase,
    pub layer: Option<u32>,
    pub site: String,
    pub metric: String,
    pub windows: u32,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
    /// 95 % percentile-bootstrap interval of the mean over windows; equal to `mean` for one window.
    pub ci_low: f64,
    pub ci_high: f64,
}
