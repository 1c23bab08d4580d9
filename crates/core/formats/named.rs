//! Formats that have names.

/// A name for a format string.
#[derive(Debug)]
pub struct Named {
    /// The name, e.g. `nvfp4`.
    pub name: &'static str,
    /// The format string it stands for.
    pub format: &'static str,
    /// One line with the block size, the scales and the library that uses it.
    pub doc: &'static str,
}

/// All named formats.
pub const FORMATS: &[Named] = &[
    Named {
        name: "bf16",
        format: "bf16",
        doc: "bfloat16; infinities and NaN are preserved",
    },
    Named {
        name: "f16",
        format: "f16",
        doc: "IEEE half; overflow gives infinity",
    },
    Named {
        name: "e4m3",
        format: "e4m3",
        doc: "unscaled FP8 cast; values and infinities saturate at 448; NaN is preserved",
    },
    Named {
        name: "e5m2",
        format: "e5m2",
        doc: "unscaled FP8 cast; values and infinities saturate at 57344; NaN is preserved",
    },
    Named {
        name: "fp8_b64",
        format: "e4m3/b64:e8m0(act_quant)",
        doc: "DeepSeek act_quant in blocks of 64, used for the KV channels without position",
    },
    Named {
        name: "fp8_b128",
        format: "e4m3/b128:e8m0(act_quant)",
        doc: "DeepSeek act_quant in blocks of 128, used for every FP8 linear input",
    },
    Named {
        name: "fp8_b128_f32",
        format: "e4m3/b128:f32(deepgemm)",
        doc: "FP8 in blocks of 128 with f32 scales, like DeepGEMM's activations",
    },
    Named {
        name: "fp8_b128x128",
        format: "e4m3/b128x128:f32(deepgemm)",
        doc: "FP8 in tiles of 128 × 128 with f32 scales, like DeepSeek's weights",
    },
    Named {
        name: "fp8_out_channel",
        format: "e4m3/token:f32",
        doc: "FP8 with one f32 scale per output channel of a weight `[out, in]` (a row), like compressed-tensors' weights",
    },
    Named {
        name: "fp8_column",
        format: "e4m3/column:f32",
        doc: "FP8 with one f32 scale per column: per channel of keys, per input channel of a weight `[out, in]`",
    },
    Named {
        name: "fp8_token",
        format: "e4m3/token:f32(vllm)",
        doc: "FP8 with one f32 scale per token, like vLLM's dynamic quantization",
    },
    Named {
        name: "fp8_tensor",
        format: "e4m3/t:f32",
        doc: "FP8 with one f32 scale per tensor",
    },
    Named {
        name: "mxfp8",
        format: "e4m3/b32:e8m0",
        doc: "OCP MXFP8 with cuBLAS's scales: nothing saturates",
    },
    Named {
        name: "mxfp8_floor",
        format: "e4m3/b32:e8m0(floor)",
        doc: "OCP MXFP8 with the scales of OCP MX v1.0 §6.3",
    },
    Named {
        name: "mxfp6_e2m3",
        format: "e2m3/b32:e8m0",
        doc: "OCP MXFP6 with three mantissa bits: nothing saturates",
    },
    Named {
        name: "mxfp6_e3m2",
        format: "e3m2/b32:e8m0",
        doc: "OCP MXFP6 with two mantissa bits: nothing saturates",
    },
    Named {
        name: "mxint8",
        format: "mxint8/b32:e8m0(floor)",
        doc: "OCP MXINT8 with the scales of OCP MX v1.0 §6.3",
    },
    Named {
        name: "mxfp4",
        format: "e2m1/b32:e8m0(fp4_act_quant)",
        doc: "OCP MXFP4 with DeepSeek's scales: nothing saturates",
    },
    Named {
        name: "mxfp4_floor",
        format: "e2m1/b32:e8m0(floor)",
        doc: "OCP MXFP4 with the scales of OCP MX v1.0 §6.3",
    },
    Named {
        name: "nvfp4",
        format: "e2m1/b16:e4m3/t:f32",
        doc: "NVFP4 with block scales and a global scale per tensor, by TransformerEngine's rule",
    },
    Named {
        name: "nvfp4_token",
        format: "e2m1/b16:e4m3/token:f32",
        doc: "NVFP4 with block scales and a global scale per token, by TransformerEngine's rule",
    },
    Named {
        name: "nvfp4_single",
        format: "e2m1/b16:e4m3",
        doc: "NVFP4 with block scales only, like FlashInfer with global scale 1",
    },
    Named {
        name: "nvfp4_2d",
        format: "e2m1/b16x16:e4m3/t:f32",
        doc: "NVFP4 in tiles of 16 × 16, like TransformerEngine's weights (which repeat each scale 16 times)",
    },
    Named {
        name: "nvfp4_46",
        format: "e2m1/b16:e4m3(te46_mse_256)/t:f32",
        doc: "NVFP4 with four-over-six: each block's largest value maps to 6 or 4, whichever has the smaller error",
    },
    Named {
        name: "nvfp4_search",
        format: "e2m1/b16:e4m3(search)/t:f32",
        doc: "NVFP4 with the best of 17 scales for each block",
    },
    Named {
        name: "nvfp4_rht",
        format: "rht16/e2m1/b16:e4m3/t:f32",
        doc: "NVFP4 with randomly rotated channels, like TransformerEngine's weight gradients",
    },
    Named {
        name: "fp4_deepgemm",
        format: "e2m1(deepgemm)/b32:f32(deepgemm)",
        doc: "FP4 in blocks of 32 with f32 scales and ties to zero, like DeepGEMM's cast",
    },
    Named {
        name: "int8_token",
        format: "int8/token:f32",
        doc: "symmetric INT8 with one f32 scale amax/127 per token",
    },
    Named {
        name: "int8_out_channel",
        format: "int8/token:f32",
        doc: "symmetric INT8 with one f32 scale amax/127 per output channel of a weight `[out, in]` (a row)",
    },
    Named {
        name: "int4_b32",
        format: "int4/b32:f32",
        doc: "symmetric INT4 with one f32 scale amax/7 per 32 channels",
    },
    Named {
        name: "int4_g128",
        format: "int4/b128:f16",
        doc: "symmetric INT4 with one f16 scale amax/7 per 128 channels",
    },
    Named {
        name: "kivi2_g32",
        format: "uint2/b32:f16(kivi)",
        doc: "INT2 with f16 scale and minimum per 32 channels of a token, like KIVI's values",
    },
    Named {
        name: "kivi4_g32",
        format: "uint4/b32:f16(kivi)",
        doc: "INT4 with f16 scale and minimum per 32 channels of a token, like KIVI's values",
    },
    Named {
        name: "kivi2_key_g32",
        format: "uint2/b32x1:f16(kivi)",
        doc: "INT2 with f16 scale and minimum per 32 tokens of a channel, like KIVI's keys",
    },
    Named {
        name: "kivi4_key_g32",
        format: "uint4/b32x1:f16(kivi)",
        doc: "INT4 with f16 scale and minimum per 32 tokens of a channel, like KIVI's keys",
    },
    Named {
        name: "awq4_g128",
        format: "uint4/b128:f16(awq)",
        doc: "INT4 with f16 scale and integer zero point per 128 channels, like AutoAWQ",
    },
    Named {
        name: "gptq4_g128",
        format: "uint4/b128:f16(gptq)",
        doc: "INT4 with f16 scale and integer zero point per 128 channels, like GPTQ without error feedback",
    },
    Named {
        name: "gptq3_g128",
        format: "uint3/b128:f16(gptq)",
        doc: "INT3 with f16 scale and integer zero point per 128 channels, like GPTQ without error feedback",
    },
    Named {
        name: "hqq4_g64",
        format: "uint4/b64:f16(hqq)",
        doc: "INT4 with f16 scale and zero point per 64 channels, like HQQ without optimization",
    },
    Named {
        name: "nf4",
        format: "nf4/b64:f32(bitsandbytes)",
        doc: "NF4 with one f32 scale per 64 channels, like bitsandbytes without double quantization",
    },
];
