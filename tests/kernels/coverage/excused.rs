//! Which sizes launches are not asked about, and which combinations of decisions have no case, each with the reason.

/// Sizes that are only what cases have, and why.
pub(super) const FIXED: &[(&str, &[&str], &str)] = &[
    ("record_read", &["C"], RECORDS),
    ("record_write", &["C"], RECORDS),
    ("wgmma", &["N"], "kernels are made for one width each"),
];

const RECORDS: &str = "records have 512 channels, and those of an index 128";

/// Combinations without a case: the variant or its operation, a condition that holds for the smallest sizes that have them, and the reason.
pub(super) const EXCUSED: &[(&str, &str, &str)] = &[
    (
        "compressor.simple",
        "B > 65535",
        "a second round over rows does not depend on how wide they are: 70,000 rows of four channels have it",
    ),
    (
        "delta_decode",
        "B > 65535 && B <= 131070",
        "repeated rows go over the grid three times, and so twice",
    ),
    (
        "delta_prefill.chunks",
        "G > 1 && G < K",
        "a head has one gate or K of them, so such sizes do not occur",
    ),
    (
        "fp8_gemm.split",
        "B <= 2 && K > 8192 && N > 2112",
        "where K is too long for `few_tokens`, it is multiplied by 0 what the number of tiles chooses; few tiles have a case",
    ),
    (
        "fp8_gemm.warpgroups",
        "B == 64 && K == 512",
        "whole tiles of tokens have cases with a rest of columns, and those with whole chunks of columns share x in pairs",
    ),
    (
        "moe_fp4.simple",
        "I % 32 != 0",
        "codes have a scale for 32 numbers, so that rows are whole blocks",
    ),
    (
        "record_attention.pairs",
        "H == 128",
        "128 heads are timed with `v4_fp8`; kernels of other records differ only in how they read keys",
    ),
    ("rope.heads", "R > 128", TURNED),
    ("rope.vector", "R > 128", TURNED),
];

const TURNED: &str = "models rotate 64 or 128 channels, and a case has 184";

/// Choices of compositions without a case: the variant, the fewest rows that have it, and the reason.
pub(super) const COMPOSED: &[(&str, i64, &str)] = &[
    ("decode_step.persistent", 17, NOT_YET),
    ("decode_step.served", 9, NOT_YET),
    ("decode_step.served_many", 9, NOT_YET),
];

const NOT_YET: &str = "no case has it yet; the operations that it is made of have, each by itself";
