//! A stored run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::experiment::Experiment;
use super::summary::Summary;
use crate::backend::cuda::time::Ceilings;
use crate::gate::Verdict;
use crate::record::Record;

/// What a run was: enough to make every number of it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub schema: u32,
    /// Version of ulplab.
    pub version: String,
    /// Commit of the working tree, if it is one, with `+` behind it when there were uncommitted changes.
    pub commit: Option<String>,
    pub experiment: Experiment,
    /// blake3 of the experiment, the datasets and the seed: runs with the same one measure the same thing.
    pub fingerprint: String,
    /// Name and blake3 of every data file read.
    pub data: Vec<(String, String)>,
    pub device: String,
    pub threads: usize,
    /// RFC 3339.
    pub started_at: String,
    /// Seconds spent so far, all sessions of a resumed run together.
    pub seconds: f64,
    /// Ids of all cells of the plan.
    pub cells: Vec<String>,
    pub recipes: Vec<RecipeInfo>,
    /// Of kernels: by `op/case`, whose time `us_peer` is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<String, String>,
    /// Of kernels: what their times are shares of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceilings: Option<Ceilings>,
    /// Whether every cell is there. A run that was interrupted or killed says false.
    pub complete: bool,
}

/// What a report says of a recipe besides its errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecipeInfo {
    pub name: String,
    pub doc: String,
    pub noise: bool,
    /// Bytes of one KV vector in the cache, if the recipe stores it in one format in all layers.
    pub bytes_per_vector: Option<f64>,
    /// Bytes the growing caches of all layers take per token of context.
    pub bytes_per_token: Option<f64>,
}

/// A run with all that was derived from it: what reports see.
#[derive(Clone, Debug)]
pub struct Run {
    pub manifest: Manifest,
    pub records: Vec<Record>,
    pub summaries: Vec<Summary>,
    pub verdicts: Vec<Verdict>,
}
