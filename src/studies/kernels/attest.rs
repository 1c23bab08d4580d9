//! Attestations: results of kernels on a GPU, stored in the repository. A machine without a GPU can check that the kernels are
//! still those that were verified.

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
use crate::entries::entries;
use crate::json::keys;
use crate::ops;
use crate::provenance;
use crate::run::runs::slug;
use crate::run::verdict::Status;
use crate::run::{Run, seal};
use crate::shipped;
use ulplab_core::atomic::write_atomic;
use ulplab_core::error::{Error, Exit, Result, refuse};
use ulplab_core::input;
use ulplab_core::metrics::{BOUND_RATIO, VIOLATIONS};
use ulplab_core::text::shown;
use ulplab_operations::ops::Case;

use rewritten::digests;
pub use rewritten::{Made, Now, Rewritten, store_digests};

/// Name of the attestation file in a device's folder.
pub const FILE: &str = "kernels.json";

/// All kernels that were verified on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attestation {
    /// Name of the GPU.
    pub device: String,
    /// The verified kernel files, by operation.
    pub ops: BTreeMap<String, VerifiedFile>,
}

/// The state of a kernel file when it was verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifiedFile {
    /// Start time of the run, in RFC 3339.
    pub at: String,
    /// CUDA version of the driver.
    pub driver: String,
    /// Architecture of the GPU, e.g. `sm_90a`.
    pub arch: String,
    pub nvrtc: String,
    pub flags: Vec<String>,
    /// blake3 digest of the `.cu` file and of all files that it includes.
    pub kernels: String,
    /// blake3 digest of the source text that makes the operation's cases, bounds and verdicts.
    pub judgement: String,
    pub variants: BTreeMap<String, VariantResult>,
    /// Digests of the machine code, launches, inputs and verdicts that the verified source text gave. If a changed text gives the
    /// same digests, the kernels still count as verified.
    pub digests: Option<Digests>,
    /// Results of planted faults, by `VARIANT MUTANT`: the first check that noticed the fault, or an empty text if none did.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mutants: BTreeMap<String, String>,
}

/// Results of a variant in the verified run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantResult {
    pub cases: usize,
    pub bound_ratio: Option<f64>,
    /// Measured times by case and metric.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Attestation {
    /// Makes the attestation of a complete run on a device, with the version of this machine's NVRTC. The attestation contains
    /// the operations whose variants all ran on every case without any violation, and whose gates pass.
    pub fn of(run: &Run, sources: &[Source], device: &Device, results: &[MutantResult]) -> Result<Self> {
        let (major, minor) = Toolkit::open()?.version;
        let verified = |source: &Source| {
            let variants = source.header.variants.iter();
            let variants = variants.map(|variant| (variant.name.clone(), VariantResult::of(run, source, variant)));
            let planted = results.iter().filter_map(|result| {
                let (op, variant) = result.kernel.split_once('.')?;
                let name = format!("{variant} {}", result.mutant);
                (op == source.op).then(|| (name, result.killed.clone().unwrap_or_default()))
            });
            let verified = VerifiedFile {
                at: run.manifest.started_at.clone(),
                driver: device.driver.clone(),
                arch: device.arch.clone(),
                nvrtc: format!("{major}.{minor}"),
                flags: FLAGS.iter().map(ToString::to_string).collect(),
                kernels: source.digest().to_hex().to_string(),
                judgement: provenance::judgement(&source.op).unwrap_or_default().into(),
                variants: variants.filter(|(_, shown)| shown.cases > 0).collect(),
                mutants: planted.collect(),
                digests: None,
            };
            (source.op.clone(), verified)
        };
        let right = sources.iter().filter(|source| is_right(run, source));
        Ok(Self {
            device: device.name.clone(),
            ops: right.map(verified).collect(),
        })
    }

    /// Reads all attestations in a folder that has one folder per device.
    pub fn read_all(folder: &Path) -> Result<Vec<(PathBuf, Self)>> {
        let devices = entries(folder, "read")?.into_iter();
        let files = devices.map(|device| device.join(FILE)).filter(|file| file.is_file());
        let read = |file: PathBuf| Self::read(&file).map(|found| (file, found));
        files.map(read).collect()
    }

    pub fn read(file: &Path) -> Result<Self> {
        let wrong = |why: String| Error::data(file, why);
        let found: Self = seal::read_json(&input::bytes(file)?, None).map_err(wrong)?;
        found.implausible().map_or(Ok(found), |why| Err(wrong(why)))
    }

    /// Writes the entries of this attestation to the device's file in `folder`, and keeps the entries of other operations in the
    /// file. Returns the path of the file.
    pub fn write(self, folder: &Path) -> Result<PathBuf> {
        let folder = folder.join(slug(&self.device.to_lowercase().replace("nvidia ", "")));
        std::fs::create_dir_all(&folder).map_err(Error::io(&folder, "create"))?;
        let file = folder.join(FILE);
        let mut all = match file.is_file() {
            true => Self::read(&file)?,
            false => Self::default(),
        };
        all.device = self.device;
        for (op, mut verified) in self.ops {
            // If this run planted no faults, keep the stored results of planted faults, unless the kernels or the code that
            // checks them changed.
            if let Some(before) = all.ops.get(&op).filter(|_| verified.mutants.is_empty())
                && (&before.kernels, &before.judgement) == (&verified.kernels, &verified.judgement)
            {
                verified.mutants.clone_from(&before.mutants);
            }
            all.ops.insert(op, verified);
        }
        write_atomic(&file, |out| out.write_all(&seal::json(&keys(&all))))?;
        Ok(file)
    }
}

/// True if the run is complete and ran all variants of a file on every case without any violation, and all gates of the file's
/// operation pass (except gates for other devices).
fn is_right(run: &Run, source: &Source) -> bool {
    let cases = ops::find(&source.op).map(|op| op.cases());
    let ran = |variant: &Variant| {
        let cell = |case: &Case| format!("{}/local/{}", source.full_name(&variant.name), case.name);
        let mut cells = cases.iter().flatten().map(cell);
        cells.all(|cell| run.manifest.cells.contains(&cell))
    };
    let of_op = |kernel: &str| kernel.split_once('.').is_some_and(|(op, _)| op == source.op);
    let mut verdicts = run.verdicts.iter().filter(|verdict| of_op(&verdict.recipe));
    let judged = verdicts.all(|verdict| matches!(verdict.status, Status::Pass | Status::NotForDevice));
    // A kernel with a violation is not verified, even if no gate checks violations.
    let mut records = run.records.iter().filter(|record| of_op(&record.recipe));
    let wrong = records.any(|record| record.metric == VIOLATIONS.name && record.value != 0.0);
    run.manifest.complete && cases.is_ok() && judged && !wrong && source.header.variants.iter().all(ran)
}

impl VariantResult {
    /// Collects the results of a variant from the records of a run.
    fn of(run: &Run, source: &Source, variant: &Variant) -> Self {
        let kernel = source.full_name(&variant.name);
        let (mut cases, mut found) = (HashSet::new(), Self::default());
        for record in run.records.iter().filter(|record| record.recipe == kernel) {
            cases.insert(&record.window);
            if record.metric == BOUND_RATIO.name {
                let most = found.bound_ratio.unwrap_or(record.value);
                found.bound_ratio = Some(most.max(record.value));
            }
            if record.site == TIME {
                // Round to four significant digits: the times of two runs differ by more than this rounding.
                let rounded = format!("{:.3e}", record.value).parse().unwrap_or(record.value);
                let times = found.times.entry(record.window.clone()).or_default();
                times.insert(record.metric.clone(), rounded);
            }
        }
        found.cases = cases.len();
        found
    }
}

/// An attestation, and the file that it was read from.
type Attested = (PathBuf, Attestation);

/// Returns the entries of an operation in all attestations.
fn verified<'a>(attestations: &'a [Attested], op: &str) -> impl Iterator<Item = &'a VerifiedFile> + Clone {
    let of_devices = attestations.iter();
    of_devices.filter_map(move |(_, attestation)| attestation.ops.get(op))
}

/// Returns a message for each kernel file whose present state no device has verified, with the changes since the newest
/// attestation.
pub fn changed(sources: &[Source], attestations: &[Attested], now: &Now) -> Vec<String> {
    let finding = |source: &Source| {
        let (mut verified, now) = (verified(attestations, &source.op), now.get(&source.op));
        let what = match verified.clone().max_by_key(|verified| &verified.at) {
            _ if verified.any(|verified| differences(source, verified, now).is_empty()) => return None,
            None => "was never verified on a GPU".into(),
            Some(newest) => {
                let what = differences(source, newest, now).join(", ");
                format!("{what} since it was verified on {}", newest.at)
            }
        };
        Some(format!("{}: {what}", source.path.display()))
    };
    sources.iter().filter_map(finding).collect()
}

/// Returns a message for each attested operation without a kernel file in the tree.
fn missing(sources: &[Source], attestations: &[Attested]) -> Vec<String> {
    let of_file = |(file, attestation): &Attested| {
        let (file, ops) = (file.display(), attestation.ops.keys());
        let gone = ops.filter(|op| !sources.iter().any(|source| source.op == **op));
        let finding = |op| format!("{file}: '{op}' is attested, but there is no such kernel");
        gone.map(finding).collect::<Vec<_>>()
    };
    attestations.iter().flat_map(of_file).collect()
}

fn differences(source: &Source, verified: &VerifiedFile, now: Option<&Made>) -> Vec<String> {
    let mut found = Vec::new();
    match verified.digests.as_ref().zip(now) {
        _ if verified.has_texts_of(source) => {}
        Some((then, Ok(now))) => found.extend(then.differences(now)),
        Some((_, Err(why))) => found.push(format!("its text changed, and its digests cannot be made ({why})")),
        None if verified.has_judgement_of(source) => found.push("the kernel changed".into()),
        None if verified.has_text_of(source) => found.push("its cases, bounds or judgement changed".into()),
        None => found.extend(["the kernel changed", "its cases, bounds or judgement changed"].map(String::from)),
    }
    if verified.flags != FLAGS {
        let (then, now) = (verified.flags.join(" "), FLAGS.join(" "));
        found.push(format!("the flags changed from {then} to {now}"));
    }
    // Skip variants for another architecture than the attested GPU's: they cannot run on that GPU.
    let runs = |variant: &&Variant| variant.is_for(&verified.arch) || verified.variants.contains_key(&variant.name);
    let variants = || source.header.variants.iter().filter(runs);
    let missing = variants().find(|variant| !verified.variants.contains_key(&variant.name));
    found.extend(missing.map(|variant| format!("variant '{}' was not run", variant.name)));
    let cases = ops::find(&source.op).map_or_else(|_| Vec::new(), |op| op.cases());
    let cases: HashSet<String> = cases.into_iter().map(|case| case.name).collect();
    for mutant in &source.header.mutants {
        for variant in variants().filter(|variant| mutant.is_of(&variant.name)) {
            let fault = format!("{} {}", variant.name, mutant.name);
            let wrong = match verified.mutants.get(&fault).map(String::as_str) {
                None => "was not planted".into(),
                Some("") => "went unnoticed".into(),
                Some(killed) if noticed(killed, &cases) => continue,
                Some(killed) => format!("was noticed by '{killed}', which is no check of a case"),
            };
            found.push(format!("fault '{fault}' {wrong}"));
        }
    }
    found
}

/// True if `killed`, the stored result of a planted fault, names the check that noticed the fault: it must have the form
/// `CASE: N of M OUTPUT`, with a case in `cases` and N above 0.
fn noticed(killed: &str, cases: &HashSet<String>) -> bool {
    let Some((case, rest)) = killed.split_once(": ") else {
        return false;
    };
    let count = rest.split_once(' ').map(|(count, rest)| (count.parse::<f64>(), rest));
    let wrong = matches!(count, Some((Ok(count), rest)) if count > 0.0 && rest.starts_with("of "));
    cases.contains(case) && wrong
}

/// Returns the shipped folder with the attestations.
fn results() -> Result<PathBuf> {
    const RESULTS: &str = "experiments/results";
    let none = || format!("no folder {RESULTS}; name one: `ulplab kernels attest --check DIR`");
    shipped::find(RESULTS).ok_or_else(|| Error::Setup(none()))
}

/// Runs `ulplab kernels attest --check`: compares the kernels in the tree with their attestations.
pub fn gate(folder: Option<&Path>) -> Result<Exit> {
    let (sources, broken) = Source::read_good(&super::folder()?, &ops::COMPOSITIONS)?;
    let folder = folder.map_or_else(results, |folder| Ok(folder.into()))?;
    let attestations = Attestation::read_all(&folder)?;
    let why =
        format_args!("the folder has no attestation: expected <device>/{FILE}, which `ulplab kernels attest` writes");
    refuse(attestations.is_empty(), why).map_err(|why| Error::data(&folder, why))?;
    let held = Held::new(&sources, &attestations, missing(&sources, &attestations))?;
    held.show(["PASS", "FAIL", "NOT JUDGED"], "");
    Ok(match held.exit() {
        // A kernel file could not be read, so not all files were compared.
        _ if broken => Exit::Usage,
        exit => exit,
    })
}

/// Compares the compiled files with their attestations. The verdict is ATTESTED instead of PASS, since no kernel was run. If
/// `whole` is false, only a part of the experiment was selected: the exit code for success is then `NotJudged`, not `Pass`.
pub fn hold(sources: &[Source], whole: bool, json: bool) -> Result<Exit> {
    let attestations = Attestation::read_all(&results()?)?;
    let held = Held::new(sources, &attestations, Vec::new())?;
    if json {
        for finding in &held.findings {
            outln!("{}", serde_json::json!({"type": "attestation", "what": finding}));
        }
        outln!("{}", serde_json::json!({"type": "attested", "device": held.whole()}));
    } else {
        let selected = match whole {
            true => "",
            false => ", and the others were not selected",
        };
        held.show(["ATTESTED", "NOT ATTESTED", "NOT BY ONE DEVICE"], selected);
    }
    Ok(match held.exit() {
        Exit::Pass if !whole => Exit::NotJudged,
        exit => exit,
    })
}

/// The result of comparing kernel files with the attestations of each device.
struct Held<'a> {
    files: usize,
    /// Messages about kernels whose present state no device has verified, and about attested kernels that are not in the tree.
    findings: Vec<String>,
    /// For each device: its name, its attestation file, and the kernel files whose present state it has not verified.
    devices: Vec<(&'a str, &'a Path, Vec<String>)>,
}

impl<'a> Held<'a> {
    fn new(sources: &[Source], attestations: &'a [Attested], missing: Vec<String>) -> Result<Self> {
        refuse(sources.is_empty(), "there are no kernels").map_err(Error::NothingSelected)?;
        let now = digests(&Rewritten::all(sources, attestations))?;
        let of = |one: &'a Attested| {
            let findings = changed(sources, std::slice::from_ref(one), &now);
            (one.1.device.as_str(), one.0.as_path(), findings)
        };
        Ok(Self {
            files: sources.len(),
            findings: [changed(sources, attestations, &now), missing].concat(),
            devices: attestations.iter().map(of).collect(),
        })
    }

    /// Returns the name of a device that verified the present state of every file; `None` if no single device did.
    fn whole(&self) -> Option<&str> {
        let mut devices = self.devices.iter();
        Some(devices.find(|(.., findings)| findings.is_empty())?.0)
    }

    /// Returns PASS only if one device verified all kernels: results from several devices do not show that the kernels work
    /// together.
    fn exit(&self) -> Exit {
        match (self.findings.is_empty(), self.whole()) {
            (false, _) => Exit::GateFailed,
            (true, Some(_)) => Exit::Pass,
            (true, None) => Exit::NotJudged,
        }
    }

    /// Prints a line for each unverified or missing file, and the verdict with the number of verified files. The verdict is one
    /// of three texts: `attested` if one device verified all files, `patchy` if only several devices together did, and `broken`
    /// if a file is unverified or missing.
    fn show(&self, [attested, broken, patchy]: [&str; 3], more: &str) {
        let (all, findings) = (self.files, &self.findings);
        findings.iter().for_each(|finding| outln!("FAIL {}", shown(finding)));
        if let (true, Some(device)) = (self.findings.is_empty(), self.whole()) {
            let device = shown(device);
            outln!("{attested}: {all} of {all} files of kernels are unchanged since {device} verified them{more}");
            return;
        }
        for (device, file, findings) in &self.devices {
            let paths = findings.iter().filter_map(|finding| finding.split(": ").next());
            let names: Vec<&str> = paths.filter_map(|path| Path::new(path).file_name()?.to_str()).collect();
            let (held, file) = (all.saturating_sub(findings.len()), file.display());
            let others = match names.is_empty() {
                true => String::new(),
                false => format!("; not {}", names.join(", ")),
            };
            outln!("{}: {held} of {all} ({file}){others}", shown(device));
        }
        let good = all.saturating_sub(self.findings.len());
        let verdict = match self.findings.is_empty() {
            false => format!("{broken}: {good} of {all} files of kernels are unchanged since a device verified them"),
            true => {
                format!(
                    "{patchy}: each of {all} files of kernels is unchanged since a device verified it, and no device saw all"
                )
            }
        };
        outln!("{verdict}{more}");
    }
}
