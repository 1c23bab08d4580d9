//! A stored run: its manifest, records, summaries and verdicts.

pub mod ceilings;
pub mod definitions;
pub mod folder;
pub mod invocation;
pub mod lines;
pub mod loss;
pub mod partition;
pub mod plan;
pub mod runs;
pub mod scheduler;
pub mod seal;
pub mod session;
pub mod store;
pub mod summary;
pub mod table;
pub mod verdict;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::experiment::Experiment;
use crate::json::unlike_default;
use ceilings::Ceilings;
use invocation::Invocation;
use plan::{Cell, Plan};
use summary::Summary;
use ulplab_core::error::refuse;
use ulplab_core::list::grouped;
use ulplab_core::record::Record;
use verdict::{Outcome, Verdict};

/// Groups items by recipe, and keeps the order of the items. Callers look up a recipe without a scan of all items.
pub fn by_recipe<T>(all: &[T], recipe: impl Fn(&T) -> &str) -> HashMap<&str, Vec<&T>> {
    grouped(all.iter().map(|one| (recipe(one), one))).into_iter().collect()
}

/// Identity of a run: all inputs needed to reproduce the run's numbers. The manifest's file is written once and never changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub schema: u32,
    /// Version of ulplab.
    pub version: String,
    /// Commit of the working tree that contains the experiment, with `+` behind it if there were uncommitted changes; `None`
    /// outside git.
    pub commit: Option<String>,
    pub program: Program,
    pub experiment: Experiment,
    /// The planned cells (units of work), as determined by the experiment's study (kind of experiment).
    pub plan: Plan,
    /// Command line that began the run.
    #[serde(serialize_with = "unlike_default")]
    pub invocation: Invocation,
    /// Digest of the inputs, see [`identity`](Self::identity). Runs with the same fingerprint measure the same thing.
    pub fingerprint: String,
    /// Name and blake3 of every data file read.
    pub data: Vec<(String, String)>,
    pub device: String,
    /// Number of threads of the process that began the run.
    pub threads: usize,
    /// Time at which the run began, in RFC 3339.
    pub started_at: String,
    /// Seconds in which at least one process worked on the run. Derived when a run is read, and not part of the file.
    #[serde(skip)]
    pub seconds: f64,
    /// Ids of the cells that are measured, in the order of the plan.
    pub cells: Vec<String>,
    /// Ids of planned cells that were not selected, and so are not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Recipes that cannot run, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hindered: BTreeMap<String, Hindrance>,
    /// Remarks about tensors and keys of the model's files that the model does not use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    pub recipes: Vec<RecipeInfo>,
    /// Number of tokens in the model's vocabulary, if the model predicts tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
    /// For kernels: name of the peer (external implementation) that was timed on each `op/case`. The metric `us_peer` has its
    /// time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<String, String>,
    /// For kernels: the measured peak rates that times are compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceilings: Option<Ceilings>,
    /// True if the records of every cell were present when the run was read; not part of the file.
    #[serde(skip)]
    pub complete: bool,
}

/// The program that measured a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Digest of the sources that affect results.
    pub sources: String,
    /// Commit of the program's sources, with `+` behind it if there were uncommitted changes; `None` if unknown.
    pub commit: Option<String>,
    /// Widest SIMD instruction set of the machine. Results do not depend on it.
    pub vectors: String,
}

impl Program {
    /// Returns the digest of the sources, shortened for a sentence.
    pub fn short(&self) -> String {
        self.sources.chars().take(12).collect()
    }
}

impl Manifest {
    /// Selects the given cells; the other cells of the plan become [`left_out`](Self::left_out).
    pub fn keep(&mut self, cells: &[Cell]) {
        let kept: HashSet<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
        let planned = self.plan.cells().into_iter().map(|cell| cell.id);
        (self.cells, self.left_out) = planned.partition(|id| kept.contains(id.as_str()));
    }

    /// Returns the blake3 of all inputs that determine the content of the cells: version, sources of the program, commit,
    /// experiment with its seed, plan, data, device, selected cells, planted fault.
    pub fn identity(&self) -> String {
        let origin = (&self.version, &self.commit, &self.experiment, &self.plan, &self.data);
        let parts = (
            (origin, &self.program.sources),
            &self.device,
            &self.cells,
            &self.left_out,
            &self.invocation.mutant,
        );
        let mut digest = blake3::Hasher::new();
        serde_json::to_writer(&mut digest, &parts).expect("plain data has a form in JSON");
        digest.finalize().to_hex().to_string()
    }

    /// Checks that the manifest agrees with itself: the listed cells are the cells of the plan, and the fingerprint matches the
    /// content. The error names the mistake.
    pub fn check(&self) -> Result<(), String> {
        let (mut cells, mut left_out) = (self.cells.iter().peekable(), self.left_out.iter().peekable());
        let mut seen = HashSet::new();
        for planned in self.plan.cells() {
            let listed = cells.next_if_eq(&&planned.id).is_some() || left_out.next_if_eq(&&planned.id).is_some();
            let plans = format!("its experiment plans the cell '{}'", planned.id);
            refuse(!listed, format_args!("{plans}, which is not in its list at that place"))?;
            refuse(!seen.insert(planned.id), format_args!("{plans} twice"))?;
        }
        if let Some(id) = cells.chain(left_out).next() {
            let message = format!("it lists the cell '{id}' twice, or its experiment does not plan that cell");
            return Err(message);
        }
        let identity = self.identity();
        let found = &self.fingerprint;
        let why = format_args!("its fingerprint is {found}, but its content has {identity}");
        refuse(identity != *found, why)
    }

    /// Describes how another run differs from this one, with both values if they are short; empty for the same run.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let or_none = |text: &Option<String>| text.clone().unwrap_or("none".into());
        let short = |of: &Self| {
            [
                ("version of ulplab", of.version.clone()),
                ("program, by the digest of its sources", of.program.short()),
                ("commit", or_none(&of.commit)),
                ("seed", of.experiment.seed.to_string()),
                ("device", of.device.clone()),
                ("planted fault", or_none(&of.invocation.mutant)),
            ]
        };
        let pairs = short(self).into_iter().zip(short(other));
        let mut differences: Vec<String> = pairs
            .filter(|(a, b)| a != b)
            .map(|((what, a), (_, b))| format!("another {what} ({a}, here {b})"))
            .collect();
        let mut reseeded = other.experiment.clone();
        reseeded.head.seed = self.experiment.seed;
        if self.experiment != reseeded {
            differences.push("another experiment".into());
        }
        if self.data != other.data {
            differences.push(format!("another data ({})", self.changed_data(other).join(", ")));
        }
        if (&self.cells, &self.left_out) != (&other.cells, &other.left_out) {
            differences.push("another selection of cells".into());
        }
        differences
    }

    /// Describes up to four data files that differ in another run.
    fn changed_data(&self, other: &Self) -> Vec<String> {
        const SHOWN: usize = 4;
        let [then, now] = [self, other].map(|run| run.data.iter().cloned().collect::<HashMap<_, _>>());
        let changed = self.data.iter().filter_map(|(name, digest)| match now.get(name) {
            None => Some(format!("{name} is not among them here")),
            Some(now) => (now != digest).then(|| format!("{name} changed")),
        });
        let new = other.data.iter().filter(|(name, _)| !then.contains_key(name));
        let all = changed.chain(new.map(|(name, _)| format!("{name} is new here")));
        let mut all: Vec<String> = all.collect();
        let more = all.len().saturating_sub(SHOWN);
        all.truncate(SHOWN);
        all.extend((more > 0).then(|| format!("{more} more")));
        all.extend(all.is_empty().then(|| "their order".into()));
        all
    }
}

/// The reason why a recipe cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hindrance {
    /// The recipe needs another device than this one.
    OtherDevice(String),
    /// Something that the recipe needs is missing.
    Missing(String),
}

/// Returns the current time in RFC 3339, to the second.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Description of a recipe for reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecipeInfo {
    pub name: String,
    #[serde(default)]
    pub doc: String,
    #[serde(default)]
    pub noise: bool,
    #[serde(flatten)]
    pub bytes: CacheBytes,
}

/// Sizes of a recipe's caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheBytes {
    /// Bytes of one cached vector that attention reads. If the recipe rounds only the keys of the indexer (which selects
    /// positions for sparse attention), bytes of one such key. `None` if layers differ in this size, or if the recipe rounds
    /// nothing.
    #[serde(rename = "bytes_per_vector")]
    pub vector: Option<f64>,
    /// Bytes per token of context in the growing caches of all layers. A cache that the recipe does not round counts as bf16.
    /// Caches that stop growing are not counted. `None` if the recipe rounds no cache.
    #[serde(rename = "bytes_per_token")]
    pub token: Option<f64>,
    /// Bytes per token, divided by the bytes per token of the same caches in bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_bf16: Option<f64>,
}

/// A run with the summaries and verdicts that are computed from its records: the input of reports.
#[derive(Clone, Debug)]
pub struct Run {
    pub manifest: Manifest,
    pub records: Vec<Record>,
    pub summaries: Vec<Summary>,
    pub verdicts: Vec<Verdict>,
}

impl Run {
    /// Returns the number of measured cells: all selected cells, unless the run ended early because its gates were decided.
    pub fn cells(&self) -> usize {
        let measured = || self.records.iter().map(|record| record.cell.as_str());
        match self.manifest.invocation.until_decided {
            true => measured().collect::<HashSet<_>>().len(),
            false => self.manifest.cells.len(),
        }
    }

    pub fn outcome(&self) -> Outcome {
        let Manifest { complete, left_out, .. } = &self.manifest;
        let blind = || self.manifest.invocation.strict && loss::blind(self).is_some();
        match Outcome::from_verdicts(&self.verdicts, *complete, left_out.is_empty()) {
            Outcome::Pass | Outcome::PartlyJudged if blind() => Outcome::NotJudged,
            outcome => outcome,
        }
    }
}
