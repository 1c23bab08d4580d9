//! Checks that the files of a checkpoint are complete, and that its configuration is understood and agrees with the tensor names.

use super::{Check, Finding, Severity};
use crate::checkpoint::config::Section;
use crate::checkpoint::conventions::{CHECKPOINTS, Convention, gptq};
use ulplab_core::list::distinct;

pub const FILES: Check = Severity::Error.check(
    "files",
    "Every tensor of the index is in the file that the index names, and the reverse; every file is whole.",
);
pub const CONFIGURATION: Check = Severity::NotJudged.check(
    "configuration",
    "Everything that the configuration says of quantization is understood, the method before all; what is not cannot be compared \
     with the tensors, and nothing that it may excuse is an error.",
);
pub const CONVENTION: Check = Severity::Error.check(
    "convention",
    "The method that the configuration names is the one whose names the tensors have, and `config.json` says the same as \
     `hf_quant_config.json`.",
);

/// Returns a finding for a configuration key that cannot be interpreted; `why` becomes the text of the finding.
pub fn not_understood(section: &Section, why: impl Into<String>) -> Finding {
    let expected = "what docs/checkpoints.md lists";
    Finding::new(&CONFIGURATION, (section.file, ""), why, expected)
}

/// Checks that the quantization method of each configuration section is known and belongs to `names`, the convention (AWQ, GPTQ,
/// …) that the tensor names follow. Two sections must agree on algorithm and group size.
pub fn conventions(sections: &[Section], names: Option<&'static Convention>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for section in sections {
        let mut known = CHECKPOINTS.iter().filter(|convention| convention.states(section));
        let found = format!("method '{}'", section.method);
        let mut add = |check, found: String, expected: String| {
            findings.push(Finding::new(check, (section.file, ""), found, expected));
        };
        match (known.next(), names) {
            (None, _) => {
                let found = match section.method.as_str() {
                    "" => "key 'quantization_config.quant_method' is missing".into(),
                    _ => found,
                };
                let methods = CHECKPOINTS.iter().flat_map(|known| known.methods);
                let methods: Vec<&str> = distinct(methods.copied());
                add(&CONFIGURATION, found, format!("one of {}", methods.join(", ")));
            }
            // AutoRound can also write formats other than GPTQ and AWQ: report such a format as not understood.
            (Some(_), Some(names)) if !names.states(section) && gptq::stores_otherwise(section) => {
                let packing = section.text("packing_format").unwrap_or_default();
                let found = format!("{found} with packing_format '{packing}'");
                let expected = "a form of GPTQ or AWQ: of others nothing is known but their tensors";
                add(&CONFIGURATION, found, expected.into());
            }
            (Some(known), Some(names)) if !names.states(section) => {
                let found = format!("{found}, but the tensors are named as by {}", names.name);
                add(&CONVENTION, found, format!("tensors as {} names them", known.name));
            }
            (Some(_), None) => {
                let found = format!("{found}, but no tensor is quantized");
                add(&CONVENTION, found, "quantized tensors".into());
            }
            _ => {}
        }
    }
    if let [one, other] = sections {
        for key in ["quant_algo", "kv_cache_quant_algo", "group_size"] {
            if let (Some(a), Some(b)) = (one.value.get(key), other.value.get(key))
                && a != b
            {
                let (found, expected) = (format!("'{key}' is {b}"), format!("{a}, as {} says", one.file));
                findings.push(Finding::new(&CONVENTION, (other.file, ""), found, expected));
            }
        }
    }
    findings
}
