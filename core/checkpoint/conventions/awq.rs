//! AWQ, as AutoAWQ writes it (`gemm`).

use serde_json::Value;

use super::{Convention, PLAIN, Part, integers, of_weight};
use crate::checkpoint::words::Packing;

pub const CONVENTION: Convention = Convention {
    name: "AWQ",
    methods: &["awq"],
    endings: &[
        of_weight(".qweight", Part::Codes),
        of_weight(".scales", Part::Scale),
        of_weight(".qzeros", Part::Zero),
    ],
    packing: Some(Packing::Outputs),
    folds: true,
    scheme: |section, _| {
        let zeros = section.value.get("zero_point").and_then(Value::as_bool);
        integers(section, zeros.map(|zeros| !zeros))
    },
    doc: "`qweight` is `[K, N / 8]`: a word holds eight output channels in the order 0, 2, 4, 6, 1, 3, 5, 7, the first in the \
          lowest bits, and so does a word of `qzeros`.",
    ..PLAIN
};
