//! A matrix by its names, types and shapes, held against what the configuration says.

use safetensors::Dtype;

use super::checks::{Finding, files, names, scales, values};
use super::config::{Modules, Scheme, Section};
use super::conventions::Convention;
use super::matrix::{Chosen, Reading, choose};
use super::parts::{Parts, module};
use super::subject::Subject;
use super::words::is_words;
use super::{Report, Unread};
use crate::tensorfile::Tensor;

/// Tensors of integers that belong to models, not to quantization.
const INTEGERS: &[&str] = &["tid2eid", "position_ids", "num_batches_tracked", "inv_freq"];

/// What the configuration says that is understood.
pub struct Stated<'a> {
    /// The sections of the convention.
    pub sections: Vec<&'a Section>,
    /// The modules that they leave unquantized.
    pub ignored: Vec<Modules>,
    /// Added to stored zero points.
    offset: i32,
}

impl<'a> Stated<'a> {
    /// Reads the sections of a convention.
    pub fn new(sections: &'a [Section], convention: &Convention, findings: &mut Vec<Finding>) -> Self {
        let sections: Vec<&Section> = sections
            .iter()
            .filter(|section| convention.methods.contains(&section.method.as_str()))
            .collect();
        let mut ignored = Vec::new();
        for section in &sections {
            match (convention.ignored)(section) {
                Ok(modules) => ignored.extend(modules),
                Err(why) => findings.push(not_understood(section, &why)),
            }
        }
        let offset = (convention.zero_offset)(sections.first().copied());
        Self {
            sections,
            ignored,
            offset,
        }
    }

    fn scheme(&self, convention: &Convention, module: &str, findings: &mut Vec<Finding>) -> Option<Scheme> {
        let mut found = None;
        for section in &self.sections {
            match (convention.scheme)(section, module) {
                Ok(scheme) => found = found.or(scheme),
                // The same for every matrix.
                Err(why) => {
                    let finding = not_understood(section, &why);
                    let known = |other: &Finding| other.check == finding.check && other.found == finding.found;
                    if !findings.iter().any(known) {
                        findings.push(finding);
                    }
                }
            }
        }
        found
    }

    /// Judges the names, types, shapes and scales of a matrix, and returns it if its values can be read.
    pub fn subject<'p>(
        &self,
        name: &'p str,
        parts: &'p Parts<'p>,
        convention: &Convention,
        report: &mut Report,
    ) -> Option<Subject<'p>> {
        let scheme = self
            .scheme(convention, module(name), &mut report.findings)
            .filter(|_| parts.is_quantized());
        if !parts.is_whole() {
            report.plain += parts.codes.iter().filter(|codes| codes.is_floating()).count();
            report.findings.extend(scales::values(
                name,
                &Parts {
                    activations: parts.activations.clone(),
                    ..Parts::default()
                },
                false,
            ));
            match parts.codes.filter(|codes| !codes.is_floating()) {
                Some(codes) => lonely(name, &codes, parts, convention, report),
                None if names::is_stray(parts) => report.findings.extend(names::parts(name, parts, convention, None)),
                None => report.plain += parts.beside().count(),
            }
            return None;
        }
        let symmetric = scheme.and_then(|scheme| scheme.symmetric);
        report.findings.extend(names::parts(name, parts, convention, symmetric));
        let codes = parts.codes?;
        if let Some(why) = beyond(parts, scheme) {
            report.unread.push(Unread {
                tensor: codes.name.into(),
                why,
            });
            return None;
        }
        let Chosen { reading, not } = match choose(parts, convention, scheme, self.offset) {
            Ok(chosen) => chosen,
            Err(misfit) => {
                report.findings.push(names::misfit(name, misfit));
                return None;
            }
        };
        if let Some(scheme) = not {
            let found = format!(
                "{} {:?} with scales {:?}, read as {}",
                codes.dtype,
                codes.shape,
                parts.scale?.shape,
                reading.format()
            );
            report.findings.push(Finding::new(
                &names::STATED_FORMAT,
                (codes.name, name),
                found,
                scheme.words(),
            ));
        }
        let powers = matches!(&reading, Reading::Bytes { format, .. } if format.scaling.is_some_and(|scaling| scaling.scale.kind() == "e8m0"));
        let found = scales::values(name, parts, powers);
        let sound = found.is_empty();
        report.findings.extend(found);
        if let Reading::Words { words, offset, .. } = &reading {
            report
                .findings
                .extend(values::words(name, parts, words, *offset, symmetric));
        }
        match reading.open() {
            Ok(opened) => Some(Subject {
                name,
                parts,
                reading,
                opened,
            }),
            Err(why) => {
                // Scales with a sign were found above.
                if sound {
                    report.findings.push(Finding::new(
                        &names::SHAPE,
                        (codes.name, name),
                        why,
                        "codes and scales that can be read",
                    ));
                }
                None
            }
        }
    }
}

fn not_understood(section: &Section, why: &str) -> Finding {
    Finding::new(
        &files::CONFIGURATION,
        (section.file, ""),
        why,
        "what docs/checkpoints.md lists",
    )
}

/// Codes without scales: a fault, numbers of another kind, or not understood.
fn lonely(name: &str, codes: &Tensor, parts: &Parts, convention: &Convention, report: &mut Report) {
    let fp8 = matches!(codes.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2);
    let last = codes.name.rsplit('.').next().unwrap_or(codes.name);
    let is_code = fp8 || ["weight", "weight_packed", "qweight"].contains(&last) || last.ends_with("_blocks");
    if is_code || parts.beside().next().is_some() {
        report.findings.extend(names::parts(name, parts, convention, None));
    } else if INTEGERS.contains(&last) || matches!(codes.dtype, Dtype::I64 | Dtype::BOOL) {
        report.plain += 1;
    } else {
        let why = format!(
            "{} {:?} without scales, under a name of no part of {}",
            codes.dtype, codes.shape, convention.name
        );
        report.unread.push(Unread {
            tensor: codes.name.into(),
            why,
        });
    }
}

/// Why a matrix is of a kind that is not read, if it is.
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
