//! Attestations: results of kernels on a GPU, kept in the repository. Any machine compares them with the kernels in the tree.

mod inputs;
mod plausible;
mod rewritten;

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::TIME;
use super::digests::Digests;
use super::mutants::MutantResult;
use crate::backend::cuda::toolkit::FLAGS;
use crate::backend::cuda::{Device, Source, Toolkit, Variant};
use crate::ops;
use crate::provenance;
use crate::run::runs::slug;
use crate::run::verdict::{Status, Verdict};
use crate::run::{Run, seal};
use crate::shipped;
use ulplab_core::atomic::write_atomic;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::input;
use ulplab_core::metrics::{BOUND_RATIO, VIOLATIONS};
use ulplab_core::record::Record;
use ulplab_core::text::shown;

use rewritten::digests;
pub use rewritten::{Made, Now, Rewritten, store_digests};

/// Its file in the folder of a device.
pub const FILE: &str = "kernels.json";

/// All that was verified on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attestation {
    /// The card.
    pub device: String,
    /// By operation.
    pub ops: BTreeMap<String, VerifiedFile>,
}

/// A file of kernels in the state in which it was verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifiedFile {
    /// RFC 3339.
    pub at: String,
    /// Version of CUDA that the driver was for.
    pub driver: String,
    /// Architecture of the card, e.g. `sm_90a`.
    pub arch: String,
    pub nvrtc: String,
    pub flags: Vec<String>,
    /// blake3 of the `.cu` and all it includes.
    pub kernels: String,
    /// blake3 of the cases, bounds and judgement.
    pub judgement: String,
    pub variants: BTreeMap<String, VariantResult>,
    /// Digests of what its kernels are given, launched and answered, made when neither text had changed since: a judgement of another
    /// text with the same digests is the same judgement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<Digests>,
    /// Planted faults, as `variant mutant`, and the first check that noticed each; empty if none did.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mutants: BTreeMap<String, String>,
}

/// Compiler and card that kernels are verified with.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The card.
    pub device: String,
    /// Version of CUDA that the driver is for.
    pub driver: String,
    /// Architecture of the card, e.g. `sm_90a`.
    pub arch: String,
    /// Version of the compiler.
    pub nvrtc: String,
}

impl Machine {
    /// A card, with the compiler that is here.
    pub fn new(device: &Device) -> Result<Self> {
        let (major, minor) = Toolkit::open()?.version;
        Ok(Self {
            device: device.name.clone(),
            driver: device.driver.clone(),
            arch: device.arch.clone(),
            nvrtc: format!("{major}.{minor}"),
        })
    }
}

/// Results of a variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantResult {
    pub cases: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_ratio: Option<f64>,
    /// By case.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Attestation {
    /// The attestation of a complete run: the operations whose variants were all run on every case without any finding, and
    /// whose gates pass.
    pub fn of(run: &Run, sources: &[Source], machine: &Machine, results: &[MutantResult]) -> Self {
        let mut all = Self {
            device: machine.device.clone(),
            ..Self::default()
        };
        if !run.manifest.complete {
            return all;
        }
        for source in sources {
            let Ok(op) = ops::find(&source.op) else { continue };
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
            let prefix = format!("{}.", source.op);
            let holds = |verdict: &&Verdict| matches!(verdict.status, Status::Pass | Status::NotForDevice);
            let mut verdicts = run
                .verdicts
                .iter()
                .filter(|verdict| verdict.recipe.starts_with(&prefix));
            let judged = verdicts.all(|verdict| holds(&verdict));
            let kernel = |variant: &str| format!("{}.{variant}", source.op);
            // By any gates, a kernel in which a check found something is not verified.
            let of_op = |record: &&Record| record.recipe.split_once('.').is_some_and(|(op, _)| op == source.op);
            let mut records = run.records.iter().filter(of_op);
            let wrong = records.any(|record| record.metric == VIOLATIONS.name && record.value != 0.0);
            if !judged || wrong {
                continue;
            }
            let variants = source.header.variants.iter();
            let variants = variants.map(|variant| (variant.name.clone(), variant_result(run, &kernel(&variant.name))));
            let planted = results.iter().filter_map(|result| {
                let (op, variant) = result.kernel.split_once('.')?;
                let name = format!("{variant} {}", result.mutant);
                (op == source.op).then(|| (name, result.killed.clone().unwrap_or_default()))
            });
            let verified = VerifiedFile {
                at: run.manifest.started_at.clone(),
                driver: machine.driver.clone(),
                arch: machine.arch.clone(),
                nvrtc: machine.nvrtc.clone(),
                flags: FLAGS.iter().map(ToString::to_string).collect(),
                kernels: source.digest().to_hex().to_string(),
                judgement: provenance::judgement(&source.op).unwrap_or_default().into(),
                variants: variants.filter(|(_, shown)| shown.cases > 0).collect(),
                mutants: planted.collect(),
                digests: None,
            };
            all.ops.insert(source.op.clone(), verified);
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
        let wrong = |why: String| Error::data(file, why);
        let found: Self = seal::read_json(&input::bytes(file)?, None).map_err(wrong)?;
        match found.implausible() {
            None => Ok(found),
            Some(why) => Err(wrong(why)),
        }
    }

    /// Replaces these operations in the folder's file, and keeps its others.
    pub fn write(self, folder: &Path) -> Result<PathBuf> {
        let folder = folder.join(slug(&self.device.to_lowercase().replace("nvidia ", "")));
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
        write_atomic(&file, |out| out.write_all(&seal::json(&all)))?;
        Ok(file)
    }
}

fn variant_result(run: &Run, kernel: &str) -> VariantResult {
    let records = || run.records.iter().filter(|record| record.recipe == kernel);
    let cases: std::collections::BTreeSet<&str> = records().map(|record| record.window.as_str()).collect();
    let ratios = records()
        .filter(|record| record.metric == BOUND_RATIO.name)
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
    VariantResult {
        cases: cases.len(),
        bound_ratio: ratios.reduce(f64::max),
        times,
    }
}

/// Kernels of the tree that are not attested in their present state, with the changes of each.
pub fn changed(sources: &[Source], attestations: &[(PathBuf, Attestation)], now: &Now) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources {
        let verified: Vec<&VerifiedFile> = attestations
            .iter()
            .filter_map(|(_, attestation)| attestation.ops.get(&source.op))
            .collect();
        let now = now.get(&source.op);
        let current = |verified: &&&VerifiedFile| differences(source, verified, now).is_empty();
        if verified.iter().find(current).is_some() {
            continue;
        }
        let newest = verified.iter().max_by(|a, b| a.at.cmp(&b.at));
        let what = match newest {
            None => "was never verified on a GPU".into(),
            Some(verified) => format!(
                "{} since it was verified on {}",
                differences(source, verified, now).join(", "),
                verified.at
            ),
        };
        findings.push(format!("{}: {what}", source.path.display()));
    }
    findings
}

/// Attested kernels that are not in the tree.
fn missing(sources: &[Source], attestations: &[(PathBuf, Attestation)]) -> Vec<String> {
    let mut findings = Vec::new();
    for (file, attestation) in attestations {
        for op in attestation
            .ops
            .keys()
            .filter(|op| !sources.iter().any(|source| source.op == **op))
        {
            findings.push(format!(
                "{}: '{op}' is attested, but there is no such kernel",
                file.display()
            ));
        }
    }
    findings
}

fn differences(source: &Source, verified: &VerifiedFile, now: Option<&Made>) -> Vec<String> {
    let mut found = Vec::new();
    let cases: HashSet<String> = ops::find(&source.op).map_or_else(
        |_| HashSet::new(),
        |op| op.cases().into_iter().map(|case| case.name).collect(),
    );
    match verified.digests.as_ref().zip(now) {
        _ if verified.has_texts_of(source) => {}
        Some((then, Ok(now))) => found.extend(then.differences(now)),
        Some((_, Err(why))) => found.push(format!("its text changed, and its digests cannot be made ({why})")),
        None if verified.has_judgement_of(source) => found.push("the kernel changed".into()),
        None if verified.has_text_of(source) => found.push("its cases, bounds or judgement changed".into()),
        None => found.extend(["the kernel changed", "its cases, bounds or judgement changed"].map(String::from)),
    }
    if verified.flags != FLAGS {
        found.push(format!(
            "the flags changed from {} to {}",
            verified.flags.join(" "),
            FLAGS.join(" ")
        ));
    }
    // Variants for another architecture did not run on the card.
    let runs = |variant: &&Variant| variant.is_for(&verified.arch) || verified.variants.contains_key(&variant.name);
    let missing = source
        .header
        .variants
        .iter()
        .filter(runs)
        .find(|variant| !verified.variants.contains_key(&variant.name));
    found.extend(missing.map(|variant| format!("variant '{}' was not run", variant.name)));
    for mutant in &source.header.mutants {
        for variant in source
            .header
            .variants
            .iter()
            .filter(runs)
            .filter(|variant| mutant.is_of(&variant.name))
        {
            let name = format!("{} {}", variant.name, mutant.name);
            match verified.mutants.get(&name) {
                None => found.push(format!("fault '{name}' was not planted")),
                Some(killed) if killed.is_empty() => found.push(format!("fault '{name}' went unnoticed")),
                Some(killed) if !noticed(killed, &cases) => {
                    found.push(format!(
                        "fault '{name}' was noticed by '{killed}', which is no check of a case"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    found
}

/// True if a text names what noticed a fault: `CASE: N of M OUTPUT`.
fn noticed(killed: &str, cases: &HashSet<String>) -> bool {
    let Some((case, rest)) = killed.split_once(": ") else {
        return false;
    };
    let count = rest.split_once(' ').map(|(count, rest)| (count.parse::<f64>(), rest));
    let wrong = matches!(count, Some((Ok(count), rest)) if count > 0.0 && rest.starts_with("of "));
    cases.contains(case) && wrong
}

/// Folder of the attestations.
fn results() -> Result<PathBuf> {
    const RESULTS: &str = "experiments/results";
    shipped::find(RESULTS).ok_or_else(|| {
        Error::Setup(format!(
            "no folder {RESULTS}; name one: `ulplab kernels attest --check DIR`"
        ))
    })
}

/// `ulplab kernels attest --check`: compares the kernels in the tree with their attestations.
pub fn gate(folder: Option<&Path>) -> Result<Exit> {
    let (sources, broken) = Source::read_good(&super::folder()?, &ops::COMPOSITIONS)?;
    let folder = folder.map_or_else(results, |folder| Ok(folder.into()))?;
    let attestations = Attestation::read_all(&folder)?;
    if attestations.is_empty() {
        let why =
            format!("the folder has no attestation: expected <device>/{FILE}, which `ulplab kernels attest` writes");
        return Err(Error::data(&folder, why));
    }
    let now = digests(&Rewritten::all(&sources, &attestations))?;
    let held = Held::new(&sources, &attestations, &now, missing(&sources, &attestations))?;
    held.show(["PASS", "FAIL", "NOT JUDGED"], "");
    Ok(match held.exit() {
        // Nothing can be said of a file that cannot be read.
        _ if broken => Exit::Usage,
        exit => exit,
    })
}

/// Compares the compiled files with their attestations. The word is ATTESTED instead of PASS, since no kernel was run. If `whole`
/// is false, only a part of the experiment was selected, and the exit code is that of NOT JUDGED instead of that of PASS.
pub fn hold(sources: &[Source], whole: bool, json: bool) -> Result<Exit> {
    let attestations = Attestation::read_all(&results()?)?;
    let now = digests(&Rewritten::all(sources, &attestations))?;
    let held = Held::new(sources, &attestations, &now, Vec::new())?;
    if json {
        for finding in &held.findings {
            outln!("{}", serde_json::json!({"type": "attestation", "what": finding}));
        }
        outln!("{}", serde_json::json!({"type": "attested", "device": held.whole()}));
    } else {
        let selected = if whole {
            ""
        } else {
            ", and the others were not selected"
        };
        held.show(["ATTESTED", "NOT ATTESTED", "NOT BY ONE DEVICE"], selected);
    }
    Ok(match held.exit() {
        Exit::Pass if !whole => Exit::NotJudged,
        exit => exit,
    })
}

/// Files of kernels, held against what each device saw of them.
struct Held<'a> {
    files: usize,
    /// Kernels that no device verified as they are, and attestations without a file.
    findings: Vec<String>,
    /// Each device with its file, and the files of kernels that it did not see as they are.
    devices: Vec<(&'a str, &'a Path, Vec<String>)>,
}

impl<'a> Held<'a> {
    fn new(
        sources: &[Source],
        attestations: &'a [(PathBuf, Attestation)],
        now: &Now,
        missing: Vec<String>,
    ) -> Result<Self> {
        if sources.is_empty() {
            return Err(Error::NothingSelected("there are no kernels".into()));
        }
        let of = |one: &'a (PathBuf, Attestation)| {
            let findings = changed(sources, std::slice::from_ref(one), now);
            (one.1.device.as_str(), one.0.as_path(), findings)
        };
        Ok(Self {
            files: sources.len(),
            findings: [changed(sources, attestations, now), missing].concat(),
            devices: attestations.iter().map(of).collect(),
        })
    }

    /// The device that saw every file as it is.
    fn whole(&self) -> Option<&str> {
        let mut devices = self.devices.iter();
        devices
            .find(|(.., findings)| findings.is_empty())
            .map(|(device, ..)| *device)
    }

    /// A patchwork of devices says nothing of the kernels together.
    fn exit(&self) -> Exit {
        match (self.findings.is_empty(), self.whole()) {
            (false, _) => Exit::GateFailed,
            (true, Some(_)) => Exit::Pass,
            (true, None) => Exit::NotJudged,
        }
    }

    /// Prints what does not hold, a line each, and the verdict with its count: the first word if one device saw all, the second if
    /// something does not hold, the third if no device saw all.
    fn show(&self, words: [&str; 3], more: &str) {
        self.findings
            .iter()
            .for_each(|finding| outln!("FAIL {}", shown(finding)));
        let all = self.files;
        if let (true, Some(device)) = (self.findings.is_empty(), self.whole()) {
            outln!(
                "{}: {all} of {all} files of kernels are unchanged since {} verified them{more}",
                words[0],
                shown(device)
            );
            return;
        }
        for (device, file, findings) in &self.devices {
            let names = findings
                .iter()
                .map(|finding| finding.split(": ").next().unwrap_or_default());
            let names: Vec<&str> = names.filter_map(|path| Path::new(path).file_name()?.to_str()).collect();
            let (held, file) = (all.saturating_sub(findings.len()), file.display());
            let others = match names.is_empty() {
                true => String::new(),
                false => format!("; not {}", names.join(", ")),
            };
            outln!("{}: {held} of {all} ({file}){others}", shown(device));
        }
        let good = all.saturating_sub(self.findings.len());
        match self.findings.is_empty() {
            false => outln!(
                "{}: {good} of {all} files of kernels are unchanged since a device verified them{more}",
                words[1]
            ),
            true => outln!(
                "{}: each of {all} files of kernels is unchanged since a device verified it, and no device saw all{more}",
                words[2]
            ),
        }
    }
}
