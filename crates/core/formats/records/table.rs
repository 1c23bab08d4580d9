//! Table of the KV-cache records, one entry per record.

use super::{KvRecord, Place, Segment};
use crate::formats::element::{BF16, E2M1, E4M3, Element};
use crate::formats::f32_scale::{ACT_QUANT_F32, VLLM_MLA};
use crate::formats::nvfp4::{FLASHINFER, V41};
use crate::formats::power::{ACT_QUANT, FLASHMLA_V41, FP4_ACT_QUANT, NEAREST};
use crate::formats::scale::Scale;

const fn at(region: usize, offset: usize, bytes: usize) -> Place {
    Place { region, offset, bytes }
}

const fn plain(name: &'static str, channels: (usize, usize), element: &'static Element, codes: Place) -> Segment {
    Segment {
        name,
        channels,
        element,
        codes,
        scales: None,
    }
}

/// Returns a segment of the first `channels` channels, scaled in blocks.
const fn scaled(
    name: &'static str,
    channels: usize,
    element: &'static Element,
    codes: Place,
    scales: (usize, Scale, Place),
) -> Segment {
    Segment {
        scales: Some(scales),
        ..plain(name, (0, channels), element, codes)
    }
}

/// Returns the segment of the 448 channels without position encoding, scaled in blocks.
const fn nope(element: &'static Element, codes: Place, scales: (usize, Scale, Place)) -> Segment {
    scaled("nope", 448, element, codes, scales)
}

/// Returns the segment of the 64 channels that RoPE rotates, stored in bf16.
const fn rope(codes: Place) -> Segment {
    plain("rope", (448, 512), &BF16, codes)
}

/// All KV-cache records.
#[rustfmt::skip]
pub const RECORDS: &[&KvRecord] = &[
    &KvRecord {
        name: "v4_fp8",
        doc: "DeepSeek-V4 FP8 KV (fp8_ds_mla): 448 e4m3 in blocks of 64 with power-of-two scales, rope in bf16",
        source: "FlashMLA \"MODEL1\", vLLM, SGLang",
        dim: 512, bytes: 584, regions: &[576, 8], align: 576,
        segments: &[
            nope(&E4M3, at(0, 0, 448), (64, Scale::E8m0(&ACT_QUANT), at(1, 0, 7))),
            rope(at(0, 448, 128)),
        ],
        padding: &[at(1, 7, 1)],
    },
    &KvRecord {
        name: "v4_nvfp4",
        doc: "DeepSeek-V4 NVFP4 KV: 448 e2m1 in blocks of 16 with e4m3 scales and no global scale, rope in bf16",
        source: "FlashInfer nvfp4_quantize_pack_sparse_mla_cache",
        dim: 512, bytes: 384, regions: &[352, 32], align: 1,
        segments: &[
            nope(&E2M1, at(0, 0, 224), (16, Scale::E4m3(&FLASHINFER), at(1, 0, 28))),
            rope(at(0, 224, 128)),
        ],
        padding: &[at(1, 28, 4)],
    },
    &KvRecord {
        name: "v4_mxfp4",
        doc: "DeepSeek-V4 MXFP4 KV: 448 e2m1 in blocks of 32 with e8m0 scales (nearest power), rope in bf16",
        source: "SGLang mxfp4_k_cache",
        dim: 512, bytes: 368, regions: &[368], align: 1,
        segments: &[
            nope(&E2M1, at(0, 0, 224), (32, Scale::E8m0(&NEAREST), at(0, 224, 14))),
            rope(at(0, 240, 128)),
        ],
        padding: &[at(0, 238, 2)],
    },
    &KvRecord {
        name: "v41_mxfp8",
        doc: "DeepSeek-V4.1 MXFP8 KV: 512 e4m3, rope included, in blocks of 32 with e8m0 scales of at least 2^-13",
        source: "FlashMLA \"V41\", vLLM, SGLang",
        dim: 512, bytes: 528, regions: &[512, 16], align: 512,
        segments: &[scaled("kv", 512, &E4M3, at(0, 0, 512), (32, Scale::E8m0(&FLASHMLA_V41), at(1, 0, 16)))],
        padding: &[],
    },
    &KvRecord {
        name: "v41_fp4",
        doc: "DeepSeek-V4.1 FP4 KV: 512 e2m1, rope included, in blocks of 16 with e4m3 scales of at least 2^-9",
        source: "FlashMLA \"V41_FP4\", SGLang",
        dim: 512, bytes: 288, regions: &[256, 32], align: 256,
        segments: &[scaled("kv", 512, &E2M1, at(0, 0, 256), (16, Scale::E4m3(&V41), at(1, 0, 32)))],
        padding: &[],
    },
    &KvRecord {
        name: "v32_fp8",
        doc: "DeepSeek-V3.2 FP8 KV: e4m3 in 4 tiles of 128 with f32 scales, rope in bf16. It holds 512 channels \
              without position; DeepSeek-V4's 448 are zero-padded",
        source: "vLLM concat_and_cache_ds_mla, FlashMLA",
        dim: 512, bytes: 656, regions: &[656], align: 1,
        segments: &[
            nope(&E4M3, at(0, 0, 448), (128, Scale::F32(&VLLM_MLA), at(0, 512, 16))),
            rope(at(0, 528, 128)),
        ],
        padding: &[at(0, 448, 64)],
    },
    &KvRecord {
        name: "v4_bf16",
        doc: "DeepSeek-V4 KV unquantized: 512 bf16",
        source: "DeepSeek's inference code",
        dim: 512, bytes: 1024, regions: &[1024], align: 1,
        segments: &[plain("kv", (0, 512), &BF16, at(0, 0, 1024))],
        padding: &[],
    },
    &KvRecord {
        name: "index_fp8",
        doc: "indexer key in FP8: 128 e4m3 with one f32 scale, a power of two",
        source: "vLLM indexer_k_quant_and_cache with ue8m0 scales, DeepGEMM fp8_paged_mqa_logits",
        dim: 128, bytes: 132, regions: &[128, 4], align: 1,
        segments: &[scaled("key", 128, &E4M3, at(0, 0, 128), (128, Scale::F32(&ACT_QUANT_F32), at(1, 0, 4)))],
        padding: &[],
    },
    &KvRecord {
        name: "index_mxfp4",
        doc: "indexer key in MXFP4: 128 e2m1 in blocks of 32 with e8m0 scales",
        source: "DeepSeek fp4_act_quant, vLLM use_fp4_indexer_cache",
        dim: 128, bytes: 68, regions: &[64, 4], align: 1,
        segments: &[scaled("key", 128, &E2M1, at(0, 0, 64), (32, Scale::E8m0(&FP4_ACT_QUANT), at(1, 0, 4)))],
        padding: &[],
    },
];
