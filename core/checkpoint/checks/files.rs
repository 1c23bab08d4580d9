//! Files and configuration.

use super::{Check, Finding, error};
use crate::checkpoint::config::Section;
use crate::checkpoint::conventions::{CONVENTIONS, Convention};
use crate::tensorfile::Flaw;

pub const FILES: Check = error(
    "files",
    "Every tensor of the index is in the file that the index names, and the reverse; every file is whole.",
);
pub const CONFIGURATION: Check = error(
    "configuration",
    "Everything that the configuration says of quantization is understood; what is not cannot be compared with the tensors.",
);
pub const CONVENTION: Check = error(
    "convention",
    "The method that the configuration names is the one whose names the tensors have, and `config.json` says the same as \
     `hf_quant_config.json`.",
);

/// A finding for each flaw.
pub fn files(flaws: &[Flaw]) -> Vec<Finding> {
    let finding = |flaw: &Flaw| Finding::new(&FILES, (&flaw.subject, ""), &flaw.found, &flaw.expected);
    flaws.iter().map(finding).collect()
}

/// Whether sections name conventions that exist, the same, and that of the tensors.
pub fn conventions(sections: &[Section], names: Option<&'static Convention>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for section in sections {
        let known = CONVENTIONS
            .iter()
            .find(|convention| convention.methods.contains(&section.method.as_str()));
        let found = format!("method '{}'", section.method);
        let mut add = |found: String, expected: String| {
            findings.push(Finding::new(&CONVENTION, (section.file, ""), found, expected));
        };
        match (known, names) {
            (None, _) => {
                let methods: Vec<&str> = CONVENTIONS
                    .iter()
                    .flat_map(|convention| convention.methods)
                    .copied()
                    .collect();
                add(found, format!("one of {}", methods.join(", ")));
            }
            (Some(known), Some(names)) if known.name != names.name => {
                add(
                    format!("{found}, but the tensors are named as by {}", names.name),
                    format!("tensors as {} names them", known.name),
                );
            }
            (Some(_), None) => add(
                format!("{found}, but no tensor is quantized"),
                "quantized tensors".into(),
            ),
            _ => {}
        }
    }
    if let [one, other] = sections {
        for key in ["quant_algo", "kv_cache_quant_algo", "group_size"] {
            if let (Some(a), Some(b)) = (one.value.get(key), other.value.get(key))
                && a != b
            {
                let found = format!("'{key}' is {b}");
                findings.push(Finding::new(
                    &CONVENTION,
                    (other.file, ""),
                    found,
                    format!("{a}, as {} says", one.file),
                ));
            }
        }
    }
    findings
}
