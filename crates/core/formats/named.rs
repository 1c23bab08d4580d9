//! Named formats: short names of format strings.

/// Short name of a format string.
#[derive(Debug)]
pub struct Named {
    /// The name, e.g. `nvfp4`.
    pub name: &'static str,
    /// The format string behind the name.
    pub format: &'static str,
    /// One line with the block size, the scales and the library that uses the format.
    pub doc: &'static str,
}

const fn named(name: &'static str, format: &'static str, doc: &'static str) -> Named {
    Named { name, format, doc }
}

/// All named formats.
#[rustfmt::skip]
pub const FORMATS: &[Named] = &[
    named("bf16", "bf16", "bfloat16; infinities and NaN are preserved"),
    named("f16", "f16", "IEEE half; overflow gives infinity"),
    named("e4m3", "e4m3", "unscaled FP8 cast; values and infinities saturate at 448; NaN is preserved"),
    named("e5m2", "e5m2", "unscaled FP8 cast; values and infinities saturate at 57344; NaN is preserved"),
    named("fp8_b64", "e4m3/b64:e8m0(act_quant)",
        "DeepSeek act_quant in blocks of 64, used for the KV channels without position"),
    named("fp8_b128", "e4m3/b128:e8m0(act_quant)",
        "DeepSeek act_quant in blocks of 128, used for every FP8 linear input"),
    named("fp8_b128_f32", "e4m3/b128:f32(deepgemm)",
        "FP8 in blocks of 128 with f32 scales, like DeepGEMM's activations"),
    named("fp8_b128x128", "e4m3/b128x128:f32(deepgemm)",
        "FP8 in tiles of 128 × 128 with f32 scales, like DeepSeek's weights"),
    named("fp8_out_channel", "e4m3/token:f32",
        "FP8 with one f32 scale per output channel of a weight `[out, in]` (a row), like compressed-tensors' weights"),
    named("fp8_column", "e4m3/column:f32",
        "FP8 with one f32 scale per column: per channel of keys, per input channel of a weight `[out, in]`"),
    named("fp8_token", "e4m3/token:f32(vllm)", "FP8 with one f32 scale per token, like vLLM's dynamic quantization"),
    named("fp8_tensor", "e4m3/t:f32", "FP8 with one f32 scale per tensor"),
    named("mxfp8", "e4m3/b32:e8m0", "OCP MXFP8 with cuBLAS's scales: nothing saturates"),
    named("mxfp8_floor", "e4m3/b32:e8m0(floor)", "OCP MXFP8 with the scales of OCP MX v1.0 §6.3"),
    named("mxfp6_e2m3", "e2m3/b32:e8m0", "OCP MXFP6 with three mantissa bits: nothing saturates"),
    named("mxfp6_e3m2", "e3m2/b32:e8m0", "OCP MXFP6 with two mantissa bits: nothing saturates"),
    named("mxint8", "mxint8/b32:e8m0(floor)", "OCP MXINT8 with the scales of OCP MX v1.0 §6.3"),
    named("mxfp4", "e2m1/b32:e8m0(fp4_act_quant)", "OCP MXFP4 with DeepSeek's scales: nothing saturates"),
    named("mxfp4_floor", "e2m1/b32:e8m0(floor)", "OCP MXFP4 with the scales of OCP MX v1.0 §6.3"),
    named("nvfp4", "e2m1/b16:e4m3/t:f32",
        "NVFP4 with block scales and a global scale per tensor, by TransformerEngine's rule"),
    named("nvfp4_token", "e2m1/b16:e4m3/token:f32",
        "NVFP4 with block scales and a global scale per token, by TransformerEngine's rule"),
    named("nvfp4_single", "e2m1/b16:e4m3", "NVFP4 with block scales only, like FlashInfer with global scale 1"),
    named("nvfp4_2d", "e2m1/b16x16:e4m3/t:f32",
        "NVFP4 in tiles of 16 × 16, like TransformerEngine's weights (which repeat each scale 16 times)"),
    named("nvfp4_46", "e2m1/b16:e4m3(te46_mse_256)/t:f32",
        "NVFP4 with four-over-six: each block's largest value maps to 6 or 4, whichever has the smaller error"),
    named("nvfp4_search", "e2m1/b16:e4m3(search)/t:f32", "NVFP4 with the best of 17 scales for each block"),
    named("nvfp4_rht", "rht16/e2m1/b16:e4m3/t:f32",
        "NVFP4 with randomly rotated channels, like TransformerEngine's weight gradients"),
    named("fp4_deepgemm", "e2m1(deepgemm)/b32:f32(deepgemm)",
        "FP4 in blocks of 32 with f32 scales and ties to zero, like DeepGEMM's cast"),
    named("int8_token", "int8/token:f32", "symmetric INT8 with one f32 scale amax/127 per token"),
    named("int8_out_channel", "int8/token:f32",
        "symmetric INT8 with one f32 scale amax/127 per output channel of a weight `[out, in]` (a row)"),
    named("int4_b32", "int4/b32:f32", "symmetric INT4 with one f32 scale amax/7 per 32 channels"),
    named("int4_g128", "int4/b128:f16", "symmetric INT4 with one f16 scale amax/7 per 128 channels"),
    named("kivi2_g32", "uint2/b32:f16(kivi)",
        "INT2 with f16 scale and minimum per 32 channels of a token, like KIVI's values"),
    named("kivi4_g32", "uint4/b32:f16(kivi)",
        "INT4 with f16 scale and minimum per 32 channels of a token, like KIVI's values"),
    named("kivi2_key_g32", "uint2/b32x1:f16(kivi)",
        "INT2 with f16 scale and minimum per 32 tokens of a channel, like KIVI's keys"),
    named("kivi4_key_g32", "uint4/b32x1:f16(kivi)",
        "INT4 with f16 scale and minimum per 32 tokens of a channel, like KIVI's keys"),
    named("awq4_g128", "uint4/b128:f16(awq)",
        "INT4 with f16 scale and integer zero point per 128 channels, like AutoAWQ"),
    named("gptq4_g128", "uint4/b128:f16(gptq)",
        "INT4 with f16 scale and integer zero point per 128 channels, like GPTQ without error feedback"),
    named("gptq3_g128", "uint3/b128:f16(gptq)",
        "INT3 with f16 scale and integer zero point per 128 channels, like GPTQ without error feedback"),
    named("hqq4_g64", "uint4/b64:f16(hqq)",
        "INT4 with f16 scale and zero point per 64 channels, like HQQ without optimization"),
    named("nf4", "nf4/b64:f32(bitsandbytes)",
        "NF4 with one f32 scale per 64 channels, like bitsandbytes without double quantization"),
];
