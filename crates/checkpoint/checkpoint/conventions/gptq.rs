//! GPTQ checkpoints, as AutoGPTQ, GPTQModel and AutoRound write them.

use serde_json::Value;

use super::{Convention, PLAIN, Packing, Part, integers, not_converted, number, of_weight};
use crate::checkpoint::config::{Modules, Scheme, Section, given};

pub const CONVENTION: Convention = Convention {
    name: "GPTQ",
    methods: &["gptq", "auto-round"],
    endings: &[
        of_weight(".qweight", Part::Codes),
        of_weight(".scales", Part::Scale),
        of_weight(".qzeros", Part::Zero),
        of_weight(".g_idx", Part::GroupIndex),
    ],
    packing: Some(Packing::Inputs),
    schemes: &[|section, module| {
        if section.method == "auto-round" {
            return auto_round(section, module, "gptq");
        }
        let own = rule(section, module)?
            .filter(|(quantized, _)| *quantized)
            .map(|(_, own)| own);
        integers(section, own, symmetric(section, own))
    }],
    targets: |section, module| Ok(rule(section, module)?.and_then(|(quantized, _)| (!quantized).then_some(false))),
    ignored: |section| match section.method.as_str() {
        "auto-round" => wide(section),
        _ => not_converted(section, "modules_to_not_convert"),
    },
    zero_offset: |section| {
        let text = |key| section.and_then(|section| section.text(key));
        match (text("checkpoint_format"), text("packing_format")) {
            (Some("gptq_v2"), _) | (_, Some("auto_round" | "auto_round:gptqmodel")) => 0,
            _ => 1,
        }
    },
    doc: "`qweight` is `[K · bits / 32, N]`, the first input channel in the lowest bits. `qzeros` stores each zero point less \
          one, unless `checkpoint_format` is `gptq_v2`; `g_idx` says the group of each input channel. Of the rules of `dynamic` the \
          first that matches a module counts.",
    ..PLAIN
};

/// Finds the first rule of `dynamic` that matches a module. Returns true if this rule quantizes the module, and the keys of the
/// rule; `None` if no rule matches.
fn rule<'s>(section: &'s Section, module: &str) -> Result<Option<(bool, &'s Value)>, String> {
    let Some(rules) = given(&section.value, "dynamic") else {
        return Ok(None);
    };
    let wrong = || format!("key 'dynamic' is {rules}, expected an object");
    for (rule, own) in rules.as_object().ok_or_else(wrong)? {
        let (quantized, regex) = match (rule.strip_prefix("-:"), rule.strip_prefix("+:")) {
            (Some(regex), _) => (false, regex),
            (_, Some(regex)) => (true, regex),
            _ => (true, rule.as_str()),
        };
        if Modules::parse(&format!("re:{regex}"))?.has(module)? {
            return Ok(Some((quantized, own)));
        }
    }
    Ok(None)
}

/// True if AutoRound states a packing format other than that of GPTQ or AWQ.
pub fn stores_otherwise(section: &Section) -> bool {
    let stated = section.text("packing_format");
    let packing = stated.filter(|_| section.method == "auto-round");
    packing.is_some_and(|packing| packing != "auto_round" && !packing.contains("gptq") && !packing.contains("awq"))
}

/// Reads the scheme that AutoRound states for a module. `packing` is the convention that packs the words: `awq`, or else GPTQ.
pub fn auto_round(section: &Section, module: &str, packing: &str) -> Result<Option<Scheme>, String> {
    let known = match packing {
        "awq" => ["auto_round:auto_awq", "auto_round:awq", "auto_awq"],
        _ => ["auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round"],
    };
    let found = section.text("packing_format");
    if !found.is_some_and(|format| known.contains(&format)) {
        let known = known.join(", ");
        return Err(format!("key 'packing_format' is {found:?}, expected one of {known}"));
    }
    if let Some(other) = section.text("data_type").filter(|other| *other != "int") {
        return Err(format!("key 'data_type' is '{other}', expected int"));
    }
    let own = section.value.get("extra_config").and_then(|layers| layers.get(module));
    integers(section, own, symmetric(section, own))
}

/// Returns the key `sym` of the module's own entry, or else of the whole section; true means that there are no zero points.
fn symmetric(section: &Section, own: Option<&Value>) -> Option<bool> {
    let of = |place: &Value| place.get("sym").and_then(Value::as_bool);
    own.and_then(of).or_else(|| of(&section.value))
}

/// Modules that AutoRound leaves unquantized: modules with 16 bits or more, and modules in `modules_to_not_convert`.
pub fn wide(section: &Section) -> Result<Vec<Modules>, String> {
    let layers = section.value.get("extra_config").and_then(Value::as_object);
    let mut modules = not_converted(section, "modules_to_not_convert")?;
    for (name, layer) in layers.into_iter().flatten() {
        if number(layer, "bits")?.is_some_and(|bits| bits >= 16) {
            modules.push(Modules::Named(name.clone()));
        }
    }
    Ok(modules)
}
