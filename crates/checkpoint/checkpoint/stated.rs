//! Checks names, types and shapes of a matrix against the statements of the configuration.

use safetensors::Dtype;

use super::Report;
use super::checks::{Finding, files, names, scales, values};
use super::config::{Inputs, Modules, Scheme, Section};
use super::conventions::{Convention, PLAIN};
use super::matrix::{Reading, choose};
use super::parts::{Matrices, Parts, module};
use super::subject::Subject;
use super::words::{is_words, shown};
use ulplab_core::tensorfile::Tensor;

/// Names of index tables and buffers, which belong to the model and not to its quantization.
const INTEGERS: &[&str] = &["tid2eid", "position_ids", "num_batches_tracked", "inv_freq"];

/// The statements of the configuration that could be interpreted.
pub struct Stated<'a> {
    /// The convention that assigns tensors to matrices; without a convention, each tensor is a matrix of its own.
    pub convention: &'static Convention,
    /// The sections of the configuration that state a method of this convention.
    pub sections: Vec<&'a Section>,
    /// The modules that the configuration leaves unquantized.
    ignored: Vec<Modules>,
    /// True if every list of unquantized modules was understood.
    whole: bool,
    /// True if the configuration states only unknown methods. Tensor names then do not tell codes from scales.
    unknown: bool,
}

impl<'a> Stated<'a> {
    /// Reads the sections of a convention, and adds a finding for each list of unquantized modules that cannot be interpreted.
    /// `convention` is `None` if no convention is known for the stated method, or if nothing is quantized.
    pub fn new(sections: &'a [Section], convention: Option<&'static Convention>, findings: &mut Vec<Finding>) -> Self {
        let unknown = convention.is_none() && !sections.is_empty();
        let convention = convention.unwrap_or(&PLAIN);
        let sections: Vec<&Section> = sections.iter().filter(|section| convention.states(section)).collect();
        let (mut ignored, mut whole) = (Vec::new(), true);
        for section in &sections {
            match (convention.ignored)(section) {
                Ok(modules) => ignored.extend(modules),
                Err(why) => {
                    findings.push(files::not_understood(section, why));
                    whole = false;
                }
            }
        }
        Self {
            convention,
            sections,
            ignored,
            whole,
            unknown,
        }
    }

    /// True if the configuration leaves a module unquantized; `None` if a list of unquantized modules was not understood.
    pub fn leaves_out(&self, module: &str) -> Option<bool> {
        let has: Vec<_> = self.ignored.iter().map(|modules| modules.has(module)).collect();
        match has.contains(&Ok(true)) {
            true => Some(true),
            false => (self.whole && has.iter().all(Result::is_ok)).then_some(false),
        }
    }

    /// True if the configuration names a module as quantized; `None` if it does not list quantized modules, or cannot be
    /// interpreted.
    pub fn targets(&self, module: &str) -> Option<bool> {
        let mut sections = self.sections.iter();
        sections.find_map(|section| (self.convention.targets)(section, module).ok()?)
    }

    /// Collects all schemes that the configuration states for a module.
    ///
    /// # Errors
    /// Returns the section and the reason if a statement is not understood.
    pub fn schemes(&self, module: &str) -> Result<Vec<Scheme>, (&'a Section, String)> {
        let mut found = Vec::new();
        for section in &self.sections {
            for statement in self.convention.schemes {
                found.extend(statement(section, module).map_err(|why| (*section, why))?);
            }
            let expressions = self.ignored.iter();
            for modules in expressions.filter(|modules| matches!(modules, Modules::Matching(_))) {
                modules.has(module).map_err(|why| (*section, why))?;
            }
        }
        Ok(found)
    }

    /// Possible names of the static activation scale that a module needs; `None` if the configuration does not state them.
    pub fn inputs(&self, module: &str) -> Inputs {
        let schemes = self.schemes(module).ok()?;
        schemes.iter().find_map(|scheme| scheme.inputs)
    }

    /// Returns all matrices whose values can be read.
    pub fn subjects<'p>(&self, matrices: &'p Matrices<'p>) -> Vec<Subject<'p>> {
        let mut report = Report::default();
        let subject = |(name, parts): (&'p String, &'p Parts)| self.subject(name, parts, &mut report);
        matrices.iter().filter_map(subject).collect()
    }

    /// Checks the names, types, shapes and scales of a matrix, and reports findings. Returns the matrix if its values can be
    /// read.
    pub fn subject<'p>(&self, name: &'p str, parts: &'p Parts<'p>, report: &mut Report) -> Option<Subject<'p>> {
        let schemes = match self.schemes(module(name)) {
            Ok(schemes) => schemes,
            Err((section, why)) => {
                // Report the finding only once, even if it applies to every matrix.
                let finding = files::not_understood(section, why);
                let known = |other: &Finding| other.check == finding.check && other.found == finding.found;
                if !report.findings.iter().any(known) {
                    report.findings.push(finding);
                }
                if let Some(codes) = parts.codes.filter(|_| parts.is_whole()) {
                    report.leave_unread(&codes, "what the configuration says of it is not understood");
                    return None;
                }
                Vec::new()
            }
        };
        let scheme = schemes.first().copied();
        if !parts.is_whole() {
            report.plain += parts.codes.iter().filter(|codes| codes.is_floating()).count();
            report.findings.extend(scales::values(name, parts, false));
            match parts.codes.filter(|codes| !codes.is_floating()) {
                Some(codes) => self.lonely(name, &codes, parts, report),
                None if names::is_stray(parts) => {
                    report.findings.extend(names::parts(name, parts, self.convention, None))
                }
                None => report.plain += parts.without_codes().count(),
            }
            return None;
        }
        let symmetric = scheme.and_then(|scheme| scheme.symmetric);
        report
            .findings
            .extend(names::parts(name, parts, self.convention, symmetric));
        let codes = parts.codes?;
        if let Some(why) = beyond(parts, scheme) {
            report.leave_unread(&codes, why);
            return None;
        }
        let offset = (self.convention.zero_offset)(self.sections.first().copied());
        let (reading, not) = match choose(parts, self.convention, scheme, offset) {
            Ok(chosen) => chosen,
            Err(misfit) => {
                report.findings.push(Finding::of_flaw(&names::SHAPE, &misfit, name));
                return None;
            }
        };
        let others = schemes.iter().skip(1).copied();
        let others = others.filter(|other| scheme.is_some_and(|scheme| not.is_none() && !scheme.agrees(other)));
        for scheme in not.into_iter().chain(others) {
            let (scales, read) = (parts.scale?.shape, reading.format());
            let found = format!("{} with scales {scales:?}, read as {read}", shown(&codes));
            let subject = (codes.name, name);
            report
                .findings
                .push(Finding::new(&names::STATED_FORMAT, subject, found, scheme.words()));
        }
        let scaling = reading.of_bytes().and_then(|format| format.scaling);
        let powers = scaling.is_some_and(|scaling| scaling.scale.kind() == "e8m0");
        report.findings.extend(scales::values(name, parts, powers));
        if let Reading::Words(words) = &reading {
            report.findings.extend(values::words(name, parts, words, symmetric));
        }
        // Do not read a matrix with E4M3 scales that have a sign bit: the finding about sign bits was added above.
        let is_signed = matches!(&reading, Reading::Bytes { opened, .. } if opened.check().is_err());
        (!is_signed).then_some(Subject { name, parts, reading })
    }

    /// Classifies an integer or FP8 tensor without scales: a quantized matrix that lacks its scales (a finding), integers of the
    /// model, or unknown.
    fn lonely(&self, name: &str, codes: &Tensor, parts: &Parts, report: &mut Report) {
        let fp8 = matches!(codes.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2);
        let last = codes.name.rsplit('.').next().unwrap_or(codes.name);
        let is_code = fp8 || ["weight", "weight_packed", "qweight"].contains(&last) || last.ends_with("_blocks");
        let found = format!("{} {:?}", codes.dtype, codes.shape);
        if self.unknown {
            report.leave_unread(codes, format!("{found}, under a method that is not understood"));
        } else if is_code || parts.without_codes().next().is_some() {
            report.findings.extend(names::parts(name, parts, self.convention, None));
        } else if INTEGERS.contains(&last) || matches!(codes.dtype, Dtype::I64 | Dtype::BOOL) {
            report.plain += 1;
        } else {
            let name = self.convention.name;
            report.leave_unread(
                codes,
                format!("{found} without scales, under a name of no part of {name}"),
            );
        }
    }
}

/// Returns the reason that a matrix cannot be read: codes in words that have neither 4 nor 8 bits, or zero points of codes in
/// bytes. `None` if it can be read.
fn beyond(parts: &Parts, scheme: Option<Scheme>) -> Option<String> {
    let words = parts.codes.is_some_and(|codes| is_words(&codes));
    if let (Some(scheme), true) = (scheme, words)
        && ![4, 8].contains(&scheme.bits)
    {
        return Some(format!("codes of {} bits in words; 4 and 8 bits are read", scheme.bits));
    }
    let zeros = parts.zero.is_some_and(|zero| zero.bytes.iter().any(|byte| *byte != 0));
    (zeros && !words).then(|| "zero points beside codes in bytes".into())
}
