//! What GPU runs showed of kernels, kept in the repository: on any machine it tells whether the kernels in the tree are the
//! ones that were verified.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::kernels::TIME;
use super::run::Run;
use crate::atomic::write_atomic;
use crate::backend::cuda::Source;
use crate::backend::cuda::toolkit::FLAGS;
use crate::error::{Error, Result};
use crate::kernels;

/// Its file in the folder of a device.
pub const FILE: &str = "kernels.json";

/// All that was verified on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attestation {
    /// Card and driver.
    pub device: String,
    /// By operation.
    pub ops: BTreeMap<String, Verified>,
}

/// A file of kernels as it was when it was verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// Of the run: commit, time, NVRTC.
    pub commit: Option<String>,
    pub at: String,
    pub nvrtc: String,
    pub flags: Vec<String>,
    /// blake3 of the `.cu` and all it includes.
    pub kernels: String,
    /// blake3 of the cases, bounds and judgement.
    pub judgement: String,
    pub variants: BTreeMap<String, Shown>,
    /// Planted faults and the first check that each failed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mutants: BTreeMap<String, String>,
}

/// What a variant showed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    pub cases: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_ratio: Option<f64>,
    /// By case.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Attestation {
    /// Of a run whose gates pass: operations of which every variant was run on every case.
    pub fn of(run: &Run, sources: &[Source], nvrtc: &str) -> Self {
        let mut all = Self {
            device: run.manifest.device.clone(),
            ..Self::default()
        };
        for source in sources {
            let Ok(op) = kernels::find(&source.op) else { continue };
            let names = source
                .header
                .variants
                .iter()
                .map(|variant| format!("{}.{}", source.op, variant.name));
            let cells = names.flat_map(|name| {
                op.cases()
                    .into_iter()
                    .map(move |case| format!("{name}/local/{}", case.name))
            });
            if !cells.into_iter().all(|cell| run.manifest.cells.contains(&cell)) {
                continue;
            }
            let failed = run
                .verdicts
                .iter()
                .any(|verdict| !verdict.pass && verdict.recipe.starts_with(&format!("{}.", source.op)));
            if failed {
                continue;
            }
            let variants = source.header.variants.iter().map(|variant| {
                (
                    variant.name.clone(),
                    shown(run, &format!("{}.{}", source.op, variant.name)),
                )
            });
            all.ops.insert(
                source.op.clone(),
                Verified {
                    commit: run.manifest.commit.clone(),
                    at: run.manifest.started_at.clone(),
                    nvrtc: nvrtc.into(),
                    flags: FLAGS.iter().map(ToString::to_string).collect(),
                    kernels: source.digest().to_hex().to_string(),
                    judgement: kernels::digest(op).to_hex().to_string(),
                    variants: variants.filter(|(_, shown)| shown.cases > 0).collect(),
                    mutants: BTreeMap::new(),
                },
            );
        }
        all
    }

    /// All in a folder of devices' folders.
    pub fn read_all(folder: &Path) -> Result<Vec<(PathBuf, Self)>> {
        let entries = std::fs::read_dir(folder).map_err(Error::io(folder, "read"))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path().join(FILE)))
            .filter(|file| file.is_file())
            .collect();
        files.sort();
        files
            .into_iter()
            .map(|file| Ok((file.clone(), Self::read(&file)?)))
            .collect()
    }

    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).map_err(Error::io(file, "read"))?;
        serde_json::from_str(&text).map_err(|error| Error::data(file, error.to_string()))
    }

    /// Puts these operations in the place of those in the folder's file, and keeps its others.
    pub fn write(self, folder: &Path) -> Result<PathBuf> {
        let slug: String = self
            .device
            .split(',')
            .next()
            .unwrap_or_default()
            .to_lowercase()
            .replace("nvidia ", "");
        let folder = folder.join(slug.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        std::fs::create_dir_all(&folder).map_err(Error::io(&folder, "create"))?;
        let file = folder.join(FILE);
        let mut all = if file.is_file() {
            Self::read(&file)?
        } else {
            Self::default()
        };
        all.device = self.device;
        for (op, mut verified) in self.ops {
            // Faults were planted in the same kernels if nothing changed since.
            let before = all
                .ops
                .get(&op)
                .filter(|before| before.kernels == verified.kernels && before.judgement == verified.judgement);
            if let Some(before) = before.filter(|_| verified.mutants.is_empty()) {
                verified.mutants.clone_from(&before.mutants);
            }
            all.ops.insert(op, verified);
        }
        write_atomic(&file, |out| {
            serde_json::to_writer_pretty(&mut *out, &all)?;
            out.write_all(b"\n")
        })?;
        Ok(file)
    }
}

fn shown(run: &Run, kernel: &str) -> Shown {
    let records = || run.records.iter().filter(|record| record.recipe == kernel);
    let cases: std::collections::BTreeSet<&str> = records().map(|record| record.window.as_str()).collect();
    let ratios = records()
        .filter(|record| record.metric == "bound_ratio")
        .map(|record| record.value);
    let mut times: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for record in records().filter(|record| record.site == TIME) {
        // Four digits are more than two runs agree on.
        let rounded = format!("{:.3e}", record.value).parse().unwrap_or(record.value);
        times
            .entry(record.window.clone())
            .or_default()
            .insert(record.metric.clone(), rounded);
    }
    Shown {
        cases: cases.len(),
        bound_ratio: ratios.reduce(f64::max),
        times,
    }
}

/// What is in the tree and not attested as it is: kernel by kernel, with what changed.
pub fn changed(sources: &[Source], attestations: &[(PathBuf, Attestation)]) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources {
        let verified: Vec<&Verified> = attestations
            .iter()
            .filter_map(|(_, attestation)| attestation.ops.get(&source.op))
            .collect();
        let current = |verified: &&&Verified| differences(source, verified).is_empty();
        if verified.iter().find(current).is_some() {
            continue;
        }
        let what = match verified.first() {
            None => "was never verified on a GPU".into(),
            Some(verified) => format!(
                "{} since it was verified on {}",
                differences(source, verified).join(", "),
                verified.at
            ),
        };
        findings.push(format!("{}: {what}", source.path.display()));
    }
    for (file, attestation) in attestations {
        for op in attestation
            .ops
            .keys()
            .filter(|op| !sources.iter().any(|source| source.op == **op))
        {
            findings.push(format!(
                "{}: '{op}' is attested, and there is no such kernel",
                file.display()
            ));
        }
    }
    findings
}

fn differences(source: &Source, verified: &Verified) -> Vec<String> {
    let mut found = Vec::new();
    if verified.kernels != source.digest().to_hex().as_str() {
        found.push("the kernel changed".into());
    }
    if verified.flags != FLAGS {
        found.push(format!(
            "the flags changed from {} to {}",
            verified.flags.join(" "),
            FLAGS.join(" ")
        ));
    }
    let judgement = kernels::find(&source.op).map(|op| kernels::digest(op).to_hex().to_string());
    if judgement.as_ref() != Ok(&verified.judgement) {
        found.push("its cases, bounds or judgement changed".into());
    }
    let runs = |variant: &&crate::backend::cuda::Variant| variant.arch.is_none();
    let missing = source
        .header
        .variants
        .iter()
        .filter(runs)
        .find(|variant| !verified.variants.contains_key(&variant.name));
    found.extend(missing.map(|variant| format!("variant '{}' was not run", variant.name)));
    found
}
