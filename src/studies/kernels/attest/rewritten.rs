//! Kernel files whose text changed after a device verified them. If the digests of machine code, launches and verdicts are
//! unchanged, the file still counts as verified.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::inputs::with_data;
use super::{Attestation, VerifiedFile};
use crate::backend::cuda::{Source, Toolkit};
use crate::json::keys;
use crate::ops::{COMPOSITIONS, Data};
use crate::provenance;
use crate::run::seal;
use crate::studies::kernels::NO_MODEL;
use crate::studies::kernels::digests::{CodeDigests, Digests, JudgementDigests};
use ulplab_core::atomic::write_atomic;
use ulplab_core::error::{Exit, Result};
use ulplab_core::text::shown;

/// A kernel file and its entry in an attestation. After the verification, the kernels' text changed, or the text of the judgement
/// (the code that makes the operation's cases, bounds and verdicts).
pub struct Rewritten<'a> {
    source: &'a Source,
    verified: &'a VerifiedFile,
}

impl<'a> Rewritten<'a> {
    pub(super) fn all(sources: &'a [Source], attestations: &'a [(PathBuf, Attestation)]) -> Vec<Self> {
        let of = |source: &'a Source| {
            let mut verified = super::verified(attestations, &source.op);
            let verified = match verified.clone().any(|verified| verified.has_texts_of(source)) {
                true => return None,
                false => verified.find(|verified| verified.digests.is_some())?,
            };
            Some(Self { source, verified })
        };
        sources.iter().filter_map(of).collect()
    }

    /// True if the text of the judgement (the code that makes cases, bounds and verdicts) differs from the verified text.
    pub fn has_other_judgement(&self) -> bool {
        !self.verified.has_judgement_of(self.source)
    }

    /// Makes digests of the file as it is now: of the launches; of the machine code if the kernels' text changed; and of the
    /// verdicts if the text of the checking code changed.
    ///
    /// # Errors
    /// Returns an error if a file's text changed and the compiler is missing, or a case cannot be made.
    pub fn digests(&self, data: &Data) -> Result<Digests> {
        let Self { source, verified } = self;
        let mut now = Digests::of_launches(source, &verified.arch)?;
        if !verified.has_text_of(source) {
            let then = verified.digests.as_ref().and_then(|digests| digests.code.as_ref());
            now.code = Some(CodeDigests::new(source, &verified.arch, &Toolkit::open()?, then)?);
        }
        if self.has_other_judgement() {
            now.judgement = Some(JudgementDigests::new(source, data)?);
        }
        Ok(now)
    }
}

/// Digests of a kernel file as it is now, if its text has changed since its verification; or the reason why they could not be
/// computed.
pub type Made = std::result::Result<Digests, String>;

/// Results of [`Rewritten::digests`] for all kernel files whose text has changed since their verification, by operation.
pub type Now = BTreeMap<String, Made>;

/// Makes the digests of kernel files whose text changed after their verification. The data of the shipped experiment is read only
/// if the text of some operation's checking code changed.
pub(super) fn digests(files: &[Rewritten]) -> Result<Now> {
    let all = |data: &Data| {
        let made = |file: &Rewritten| file.digests(data).map_err(|why| why.to_string());
        Ok(files.iter().map(|file| (file.source.op.clone(), made(file))).collect())
    };
    match files.iter().any(Rewritten::has_other_judgement) {
        // If the data of the shipped experiment cannot be read, store this error for every rewritten file instead of returning
        // it, so that files with unchanged texts are still compared.
        true => with_data(all).or_else(|why| {
            let failed = |file: &Rewritten| (file.source.op.clone(), Err(why.to_string()));
            Ok(files.iter().map(failed).collect())
        }),
        false => all(&Data::new(0, &NO_MODEL)),
    }
}

impl VerifiedFile {
    /// True if the verified text of the kernels equals the present text of the file.
    pub(super) fn has_text_of(&self, source: &Source) -> bool {
        self.kernels == source.digest().to_hex().as_str()
    }

    /// True if the text of the operation's checking code (cases, bounds and verdicts) is the verified text.
    pub(super) fn has_judgement_of(&self, source: &Source) -> bool {
        provenance::judgement(&source.op) == Some(&self.judgement)
    }

    pub(super) fn has_texts_of(&self, source: &Source) -> bool {
        self.has_text_of(source) && self.has_judgement_of(source)
    }

    /// Stores the present digests of a file and returns an empty list, if the file's texts are unchanged or its digests equal the
    /// verified digests. Otherwise stores nothing, and returns the differences.
    fn renew(&mut self, source: &Source, data: &Data) -> Result<Vec<String>> {
        let same = self.has_texts_of(source);
        let known = match &self.digests {
            Some(digests) if same && digests.are_complete() => return Ok(Vec::new()),
            None if !same => return Ok(vec!["its text changed, and there are no digests of then".into()]),
            known => known.clone().unwrap_or_default(),
        };
        let file = Rewritten { source, verified: self };
        let now = file.digests(data)?;
        let found = known.differences(&now);
        if !same && !found.is_empty() {
            return Ok(found);
        }
        let code = match now.code.or(known.code) {
            Some(code) => code,
            None => CodeDigests::new(source, &self.arch, &Toolkit::open()?, None)?,
        };
        let judgement = match now.judgement.or(known.judgement) {
            Some(judgement) => judgement,
            None => JudgementDigests::new(source, data)?,
        };
        self.kernels = source.digest().to_hex().to_string();
        self.judgement = provenance::judgement(&source.op).unwrap_or_default().into();
        self.digests = Some(Digests {
            code: Some(code),
            launches: now.launches,
            judgement: Some(judgement),
        });
        Ok(Vec::new())
    }
}

/// Stores the present digests of all kernel files that still count as verified: files with unchanged texts, and files with
/// changed texts but unchanged digests. Prints a line for each file.
///
/// # Errors
/// Returns an error if an attestation cannot be read or written, the compiler is missing, or a case cannot be made.
pub fn store_digests(folder: Option<&Path>) -> Result<Exit> {
    with_data(|data| store(folder, data))
}

fn store(folder: Option<&Path>, data: &Data) -> Result<Exit> {
    let (sources, broken) = Source::read_good(&super::super::folder()?, &COMPOSITIONS)?;
    let folder = folder.map_or_else(super::results, |folder| Ok(folder.into()))?;
    let mut changed = false;
    for (file, mut attestation) in Attestation::read_all(&folder)? {
        for source in &sources {
            let Some(verified) = attestation.ops.get_mut(&source.op) else {
                continue;
            };
            let start = std::time::Instant::now();
            let found = verified.renew(source, data)?;
            let seconds = start.elapsed().as_secs_f64();
            match &found[..] {
                [] => outln!("{}: stored in {seconds:.1} s", shown(&source.op)),
                found => outln!("{}: {}", shown(&source.op), found.join(", ")),
            }
            changed |= !found.is_empty() && verified.digests.is_some();
            write_atomic(&file, |out| out.write_all(&seal::json(&keys(&attestation))))?;
        }
        outln!("{}: written", file.display());
    }
    Ok(if broken { Exit::Usage } else { Exit::judged(!changed) })
}
