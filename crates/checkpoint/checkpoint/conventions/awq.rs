//! AWQ checkpoints, as AutoAWQ writes them with `version` = `gemm`.

use serde_json::Value;

use super::{Convention, PLAIN, Packing, Part, gptq, integers, of_weight, within};

pub const CONVENTION: Convention = Convention {
    name: "AWQ",
    methods: &["awq", "auto-round"],
    endings: &[
        of_weight(".qweight", Part::Codes),
        of_weight(".scales", Part::Scale),
        of_weight(".qzeros", Part::Zero),
    ],
    packing: Some(Packing::Outputs),
    folds: true,
    schemes: &[|section, module| {
        if section.method == "auto-round" {
            return gptq::auto_round(section, module, "awq");
        }
        let zeros = section.value.get("zero_point").and_then(Value::as_bool);
        integers(section, None, zeros.map(|zeros| !zeros))
    }],
    // AutoAWQ skips a module if a listed name occurs anywhere in the name of the module.
    ignored: |section| match section.method.as_str() {
        "auto-round" => gptq::wide(section),
        _ => within(section, "modules_to_not_convert"),
    },
    doc: "`qweight` is `[K, N / 8]`: a word holds eight output channels in the order 0, 2, 4, 6, 1, 3, 5, 7, the first in the \
          lowest bits, and so does a word of `qzeros`.",
    ..PLAIN
};
