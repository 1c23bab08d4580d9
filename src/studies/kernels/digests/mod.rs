//! Digests of everything that an attestation (the stored result of a run on a GPU) depends on. An attestation stays valid if
//! source text changes, as long as machine code, launches and verdicts stay the same.

mod answers;
mod checks;
mod code;
mod launches;

pub use answers::of as of_case;

use std::collections::BTreeMap;

use blake3::Hasher;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::power::WHOLE;
use super::units::Launched;
use super::volume;
use crate::backend::cuda::plan::SMS;
use crate::backend::cuda::toolkit::Unit;
use crate::backend::cuda::{Plan, Source, Toolkit};
use crate::ops;
use ulplab_core::error::{Error, Result, counted};
use ulplab_operations::ops::{Case, Data};

/// Digests of a kernel file, and of its operation's judgement (the code that makes inputs, bounds and verdicts).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digests {
    pub code: Option<CodeDigests>,
    /// Digest of the launches on all cases, by variant.
    pub launches: BTreeMap<String, String>,
    pub judgement: Option<JudgementDigests>,
}

/// Digests of the machine code of a kernel file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeDigests {
    /// Digest of the compiler's library.
    pub compiler: String,
    /// Digest of the machine code, by entry point.
    pub entries: BTreeMap<String, String>,
    /// For each planted fault, the digests of the entry points that it changes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub faults: BTreeMap<String, BTreeMap<String, String>>,
}

/// Digests of inputs and verdicts. Timed cases are left out: they take minutes, and their outputs are checked by the same code as
/// those of other cases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgementDigests {
    /// Digest of the verdicts that the checking code shared by all operations gives on small fixed outputs.
    pub checks: String,
    /// Digest of the inputs and digest of the verdicts, by case.
    pub cases: BTreeMap<String, [String; 2]>,
}

impl Digests {
    /// Returns the digests of launches, without digests of machine code and of verdicts.
    ///
    /// # Errors
    /// Returns an error if a launch of the header cannot be planned.
    pub fn of_launches(source: &Source, arch: &str) -> Result<Self> {
        let wrong = |why: String| Error::data(&source.path, why);
        let cases = ops::find(&source.op).map_err(wrong)?.cases();
        let mut all = Self::default();
        for variant in source.variants_for(arch) {
            let mut digest = Digest::default();
            for case in &cases {
                if let Some(plan) = Plan::new(variant, case, SMS).map_err(wrong)? {
                    digest.text(&case.name).text(launches::of(case, &plan));
                }
            }
            all.launches.insert(variant.name.clone(), digest.finish());
        }
        Ok(all)
    }

    /// True if both optional parts, code and judgement, are present.
    pub fn are_complete(&self) -> bool {
        self.code.is_some() && self.judgement.is_some()
    }

    /// Returns the differences between these digests and `now`, the digests of the present source, as clauses of a sentence.
    /// Machine code and verdicts are compared only if `self` and `now` both have their digests.
    pub fn differences(&self, now: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if let (Some(then), Some(now)) = (&self.code, &now.code) {
            found.extend(then.differences(now));
        }
        let changed = changes(&self.launches, &now.launches);
        found.extend(named("launches of variant", "changed", &changed.other));
        if let (Some(then), Some(now)) = (&self.judgement, &now.judgement) {
            found.extend(then.differences(now));
        }
        found
    }
}

impl CodeDigests {
    /// Compiles the entry points that a file launches, without a fault and with each planted fault. If the earlier digests `then`
    /// list the entry points that a fault changes, only these are compiled with the fault.
    ///
    /// # Errors
    /// Returns an error if the file does not compile.
    pub fn new(source: &Source, arch: &str, toolkit: &Toolkit, then: Option<&Self>) -> Result<Self> {
        let launched = Launched::all(source, arch, true, &|_, _| true);
        let wanted = |unit: &Unit| {
            let known = unit.fault.zip(then);
            let known = known.and_then(|(fault, then)| then.faults.get(&fault.name));
            known.is_none_or(|entries| unit.entry.is_empty() || entries.contains_key(unit.entry))
        };
        let units: Vec<Unit> = launched.iter().flat_map(Launched::units).filter(wanted).collect();
        let compile = |unit: &Unit| {
            let cubin = toolkit.compile_without_lines(*unit)?;
            let mut entries = code::of(&cubin.bytes).map_err(|why| Error::data(&source.path, why))?;
            // Drop entry points that no variant launches: a file that is compiled as a whole may contain some.
            entries.retain(|name, _| launched[0].entries.contains(name));
            Ok((unit.fault.map(|fault| fault.name.clone()), entries))
        };
        let compiled = units.par_iter().map(compile).collect::<Result<Vec<_>>>()?;
        let mut all = Self {
            compiler: toolkit.digest()?,
            ..Self::default()
        };
        for (_, entries) in compiled.iter().filter(|(fault, _)| fault.is_none()) {
            all.entries.extend(entries.clone());
        }
        for (fault, mut entries) in compiled {
            let Some(fault) = fault else { continue };
            entries.retain(|name, digest| all.entries.get(name) != Some(digest));
            all.faults.entry(fault).or_default().extend(entries);
        }
        Ok(all)
    }

    fn differences(&self, now: &Self) -> Vec<String> {
        if self.compiler != now.compiler {
            return vec!["another build of NVRTC compiled it, so that machine code cannot be compared".into()];
        }
        let Changes { gone, new, other } = changes(&self.entries, &now.entries);
        let faults = changes(&self.faults, &now.faults).other;
        let all = [
            named("machine code of", "changed", &other),
            named("entry point", "is gone", &gone),
            named("entry point", "was not run", &new),
            named("machine code of fault", "changed", &faults),
        ];
        all.into_iter().flatten().collect()
    }
}

impl JudgementDigests {
    /// Makes the digests of all cases except the timed ones: of their inputs, and of the verdicts on correct and wrong outputs.
    ///
    /// # Errors
    /// Returns an error if the inputs of a case cannot be made.
    pub fn new(source: &Source, data: &Data) -> Result<Self> {
        let wrong = |why: String| Error::data(&source.path, why);
        let op = ops::find(&source.op).map_err(wrong)?;
        // The checks of the operations in `WHOLE` run a whole model, so only one wrong output is checked.
        let whole = WHOLE.contains(&op.name());
        let mut cases = op.cases();
        cases.retain(|case| !case.timed);
        let smallest = cases.iter().min_by(|a, b| volume(a).total_cmp(&volume(b)));
        let guarded = smallest.map(|case| case.name.clone()).filter(|_| !whole);
        let of_case = |case: &Case| -> Result<(String, [String; 2])> {
            let problem = ops::problem_with(op, case, data).map_err(wrong)?;
            let guarded = guarded.as_ref() == Some(&case.name);
            Ok((case.name.clone(), answers::of(case, problem, whole, guarded)))
        };
        Ok(Self {
            checks: checks::all(),
            cases: cases.par_iter().map(of_case).collect::<Result<_>>()?,
        })
    }

    fn differences(&self, now: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.checks != now.checks {
            found.push("checks that all operations share changed".into());
        }
        let Changes { gone, new, other } = changes(&self.cases, &now.cases);
        for (at, what) in ["inputs of case", "verdicts on case"].into_iter().enumerate() {
            let differs = |case: &&str| self.cases[*case][at] != now.cases[*case][at];
            let changed: Vec<&str> = other.iter().copied().filter(differs).collect();
            found.extend(named(what, "changed", &changed));
        }
        found.extend(named("case", "is gone", &gone));
        found.extend(named("case", "was not run", &new));
        found
    }
}

/// Names whose digests are gone, new, or changed.
struct Changes<'a> {
    gone: Vec<&'a str>,
    new: Vec<&'a str>,
    other: Vec<&'a str>,
}

fn changes<'a, T: PartialEq>(then: &'a BTreeMap<String, T>, now: &'a BTreeMap<String, T>) -> Changes<'a> {
    let without = |own: &'a BTreeMap<String, T>, other: &BTreeMap<String, T>| {
        let names = own.keys().filter(|name| !other.contains_key(*name));
        names.map(String::as_str).collect()
    };
    let differs = |name: &&String| now.get(*name).is_some_and(|now| *now != then[*name]);
    let other = then.keys().filter(differs);
    Changes {
        gone: without(then, now),
        new: without(now, then),
        other: other.map(String::as_str).collect(),
    }
}

/// Returns a text such as `launches of variant 'a' and 2 others changed`; `None` without names.
fn named(what: &str, verb: &str, names: &[&str]) -> Option<String> {
    let (first, rest) = names.split_first()?;
    let others = match rest.len() {
        0 => String::new(),
        count => format!(" and {}", counted(count, "other")),
    };
    Some(format!("{what} '{first}'{others} {verb}"))
}

/// Hashes numbers and texts, each with its length, so that two different sequences never hash the same bytes.
#[derive(Default)]
pub struct Digest(Hasher);

impl Digest {
    /// Adds bytes, after their number.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len());
        self.0.update(bytes);
        self
    }

    /// Adds a text, after its length in bytes.
    pub fn text(&mut self, text: impl AsRef<str>) -> &mut Self {
        self.bytes(text.as_ref().as_bytes())
    }

    /// Adds a number as eight bytes, little-endian.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.0.update(&(count as u64).to_le_bytes());
        self
    }

    /// Adds a list of sizes, after their number.
    pub fn counts(&mut self, counts: &[usize]) -> &mut Self {
        self.count(counts.len());
        counts.iter().fold(self, |digest, count| digest.count(*count))
    }

    /// Adds the bits of numbers, after their count. All NaNs are added with the same bits.
    pub fn numbers(&mut self, numbers: impl ExactSizeIterator<Item = f64>) -> &mut Self {
        self.count(numbers.len());
        let number = |number: f64| if number.is_nan() { f64::NAN } else { number };
        let bytes: Vec<u8> = numbers.flat_map(|x| number(x).to_le_bytes()).collect();
        self.0.update(&bytes);
        self
    }

    /// Returns the digest of everything added: 32 hexadecimal digits.
    pub fn finish(&self) -> String {
        self.0.finalize().to_hex()[..32].to_string()
    }
}
