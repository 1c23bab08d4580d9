//! A stored run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::experiment::Experiment;
use super::invocation::Invocation;
use super::summary::Summary;
use crate::backend::cuda::time::Ceilings;
use crate::gate::{Outcome, Verdict};
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
    /// The command that asked for it.
    pub invocation: Invocation,
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
    /// Ids of the cells that are measured.
    pub cells: Vec<String>,
    /// Ids of the cells that the experiment plans and that are not measured, as they were not selected.
    pub left_out: Vec<String>,
    /// Recipes that cannot run, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hindered: BTreeMap<String, Hindrance>,
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

/// Why a recipe cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hindrance {
    /// It is for another device than this one.
    OtherDevice(String),
    /// What it needs is not here.
    Missing(String),
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

impl Run {
    pub fn outcome(&self) -> Outcome {
        let Manifest { complete, left_out, .. } = &self.manifest;
        Outcome::of(&self.verdicts, *complete, left_out.is_empty())
    }
}
