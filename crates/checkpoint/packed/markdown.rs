//! Writes `docs/quantized-files.md` from the table of conventions.

use std::fmt::Write;

use super::FILE_NAMES;

const INTRODUCTION: &str = "# Quantized tensors in files

This page says how `quantize` writes a tensor in a format, and lists the names and types by which quantized tensors in files are known.

<!-- packed::markdown() writes this page from the table in crates/checkpoint/packed/conventions.rs; change that, then run the tests with ULPLAB_BLESS=1. -->

`quantize`, `dequantize`, `inspect` and `compare` read `.safetensors`, `.npy`, and folders of shards: `model.safetensors`, or
what `model.safetensors.index.json` names, or every `*.safetensors` of the folder.

## One matrix at a time

The last dimension of a tensor is K, which is cut into blocks; the one before it is rows; those before them number
matrices, as the experts of a layer. A matrix is quantized on its own: blocks and tiles never reach into the next, a layout
of scales gives one buffer for each matrix, one after another, and a scale that a tensor shares (`t:f32`) is one for each
matrix. A tensor of one dimension is a matrix of one row. What a tensor `w` of shape `[8, 96, 2560]` becomes in NVFP4:

| tensor | type | shape |
| --- | --- | --- |
| `w.data` | U8, two codes in a byte, the first in the low half | `[8, 96, 1280]` |
| `w.scale` | F8_E4M3 | `[8, 96, 160]`; with `--layout blocked_128x4` `[8, 20480]` |
| `w.global` | F32 | `[8]` |

One scale for all matrices of a tensor is read too.

## NaN and infinities

A NaN or an infinity makes its block NaN, and every element that shares a scale with it. `quantize` counts them, says how
many elements come back as NaN or infinite, and writes number and first place into the metadata. A matrix that would become
wholly NaN, though it is not, is an error unless `--allow-nonfinite` is given. `dequantize` counts what comes back.
`inspect` counts elements that decode to NaN as such, and as neither largest codes nor zero. Next to the source it
counts as clipped what lies further above the largest value of its block than half the last step.

## Whose files are recognised

Codes and scales are recognised by the endings of their names. If types and shapes say the format too, no `--format` is
needed; `--format` and `--rule` override both. `fp8_token`, `int8_token` and their twins
`fp8_out_channel` and `int8_out_channel` have a scale per row, which is an output channel of a weight.
Scales in bf16 and f16 are read as the f32 numbers that they are. Tensors with zero points are refused.

| written by | codes | scales | global scale | the tensor itself | formats recognised from types and shapes |
| --- | --- | --- | --- | --- | --- |
";

const END: &str = "
`gpt-oss` stores codes as `[experts, rows, K / 32, 16]`, sixteen bytes for each scale. What a global scale means follows from
its name: `w_scale_2` is by the rule `modelopt`, `w_global_scale` next to `w_packed` by `vllm`, `w.per_tensor_scale` by
`torchao`. Of scales in another order than row-major `--layout` says the order.
";

/// Returns the text of `docs/quantized-files.md`.
pub fn markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    for convention in FILE_NAMES {
        let (writer, kinds) = (convention.writer, convention.kinds);
        let name = |ending: &str| format!("`w{ending}`");
        let formats: Vec<String> = kinds.iter().map(|kind| format!("`{}`", kind.format)).collect();
        let formats = match (formats.is_empty(), writer) {
            (false, _) => formats.join(", "),
            (true, "ulplab") => "all; its metadata say which".into(),
            (true, _) => "none: `--format` is needed".into(),
        };
        let global = convention.global.map_or("none".into(), name);
        let [codes, scale, own] = [convention.codes, convention.scale, convention.own].map(name);
        let _ = writeln!(out, "| {writer} | {codes} | {scale} | {global} | {own} | {formats} |");
    }
    out + END
}
