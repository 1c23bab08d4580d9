//! GPTQ, as AutoGPTQ and GPTQModel write it.

use serde_json::Value;

use super::{Convention, PLAIN, Part, integers, not_converted, of_weight};
use crate::checkpoint::config::Modules;
use crate::checkpoint::words::Packing;

pub const CONVENTION: Convention = Convention {
    name: "GPTQ",
    methods: &["gptq"],
    endings: &[
        of_weight(".qweight", Part::Codes),
        of_weight(".scales", Part::Scale),
        of_weight(".qzeros", Part::Zero),
        of_weight(".g_idx", Part::GroupIndex),
    ],
    packing: Some(Packing::Inputs),
    scheme: |section, _| integers(section, section.value.get("sym").and_then(Value::as_bool)),
    ignored: |section| {
        let mut modules = not_converted(section, "modules_to_not_convert")?;
        let rules = section.value.get("dynamic").and_then(Value::as_object);
        for rule in rules.into_iter().flat_map(|rules| rules.keys()) {
            if let Some(regex) = rule.strip_prefix("-:") {
                modules.push(Modules::parse(&format!("re:{regex}"))?);
            }
        }
        Ok(modules)
    },
    zero_offset: |section| match section.and_then(|section| section.text("checkpoint_format")) {
        Some("gptq_v2") => 0,
        _ => 1,
    },
    doc: "`qweight` is `[K · bits / 32, N]`, the first input channel in the lowest bits. `qzeros` stores each zero point less \
          one, unless `checkpoint_format` is `gptq_v2`; `g_idx` says the group of each input channel.",
    ..PLAIN
};
