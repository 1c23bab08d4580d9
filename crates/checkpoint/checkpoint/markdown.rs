//! Writes `docs/checkpoints.md` from the lists of conventions and checks.

use std::fmt::Write;

use super::checks::CHECKS;
use super::conventions::{CHECKPOINTS, Part};
use crate::checkpoint::Convention;
use ulplab_core::list::distinct;

const INTRODUCTION: &str = "# Quantized checkpoints

This page lists the conventions of quantized checkpoints that `ulplab inspect` reads, and all that it checks in them.

<!-- checkpoint::markdown() writes this page from the lists in crates/checkpoint/checkpoint; change those, then run the tests with ULPLAB_BLESS=1. -->

`ulplab inspect CHECKPOINT` tells whether a quantized checkpoint is whole and plausible before it is served. CHECKPOINT is a folder
with `config.json` and safetensors files; `--as checkpoint` judges a single file in the same way, and `--as tensors` shows the
statistics of the tensors of a folder. `--source FOLDER` has the tensors before they were quantized: then there is an SQNR
for each matrix, and the rule that made its bytes where one did. The source of a matrix may have another prefix (one prefix for each), be
transposed, be one of a stack of experts, be rows of a fused matrix, or be quantized itself, and the reverse; the report names it. Files are
mapped, and one batch of matrices is in memory at a time.

Exit codes: 100 with at least one error, else 4 if something was not judged or nothing is quantized, else 0; warnings change none. 2 is bad
usage, or a file that cannot be read at all.

## Conventions

The convention is that which explains most matrices by names, types and shapes; one that the configuration names, if it explains
any. `quant_method` of `quantization_config` in `config.json` names it, and `hf_quant_config.json`. Where names and configuration
disagree, the names are followed and the disagreement is an error. A method that is not in the table (bitsandbytes, torchao, EXL3, MLX)
is not understood: names then mean nothing, and only files, and NaN and infinity, are looked at.

| convention | `quant_method` | codes | scales | global scale | zero points | remarks |
| --- | --- | --- | --- | --- | --- | --- |
";

const CHECKS_BEGIN: &str = "
Scales of activations (`input_scale`, `activation_scale`, `pre_quant_scale`) and of KV caches (`k_scale`, `v_scale`, `kv_scale`) belong to
no convention alone. Integers in words are read with 4
and 8 bits. Zero points beside codes in bytes, other widths, and codes under other names are listed as not understood.

## Checks

| check | finding | what holds |
| --- | --- | --- |
";

/// Returns the text of `docs/checkpoints.md`.
pub fn markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    for convention in CHECKPOINTS {
        let Convention { name, methods, doc, .. } = convention;
        let methods: Vec<String> = methods.iter().map(|method| format!("`{method}`")).collect();
        let methods = methods.join(", ");
        let [codes, scale, global, zero] =
            [Part::Codes, Part::Scale, Part::Global, Part::Zero].map(|part| named(convention, part));
        let _ = writeln!(
            out,
            "| {name} | {methods} | {codes} | {scale} | {global} | {zero} | {doc} |"
        );
    }
    out += CHECKS_BEGIN;
    for check in CHECKS {
        let _ = writeln!(out, "| `{}` | {} | {} |", check.name, check.severity.name(), check.doc);
    }
    out
}

/// Names that a convention gives to a part of the matrix `w.weight`.
fn named(convention: &Convention, part: Part) -> String {
    let of_part = convention.all_endings().filter(|(_, of, _)| *of == part);
    let names = of_part.map(|(ending, _, own)| match own {
        "" => format!("`w.weight{ending}`"),
        _ => format!("`w{ending}`"),
    });
    // Drop duplicates: two file conventions may give a part the same name.
    match &distinct(names)[..] {
        [] => "none".into(),
        names => names.join(", "),
    }
}
