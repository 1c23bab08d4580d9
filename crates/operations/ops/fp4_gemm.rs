//! GEMM with 4-bit weights: y [B, N] = x [B, K] · wᵀ. x is bfloat16; w [N, K] is MXFP4 (E2M1 codes, an E8M0 scale per 32 columns)
//! or NVFP4 (E2M1 codes, an E4M3 scale per 16 columns, and an f32 scale of the tensor, which is 1 for MXFP4).
//!
//! A weight is its code times its block scale. E2M1 has 2 significant bits and E4M3 has 4, so this product is exact in
//! bfloat16. With an E8M0 scale, the product is exact down to 2^-128, which is subnormal. Codes of 4 and 6 with the scale
//! 2^126, and codes of 2 to 6 with the scale 2^127, exceed the range of bfloat16 and of f32: these weights are infinite. A NaN
//! scale makes even weights of code 0 NaN.
//!
//! The order of sums is part of the definition. Tensor cores sum 1024 columns at a time, 16 columns per step, from the first to
//! the last ([`WGMMA_BF16`]). These sums are added in f32, in ascending order. Then the tensor's scale is multiplied in f32, and
//! y is rounded once if it is bf16. So the bits do not depend on B. The test requires equal bits, because the rounding of `wgmma`
//! is known to the bit. An error bound for 8192 terms would be too wide to detect a fault in one block, such as a subnormal scale
//! that is read as 0.

use rayon::prelude::*;
use safetensors::Dtype;

use super::data::round_to_bf16;
use super::edges::Edge::{Last, One, Random, Zeros};
use super::edges::{self, Edge};
use super::grid::{Grid, pairs};
use super::sums::factor;
use super::sums::{Summed, Sums, bf16_factors};
use super::{Batch, Buffer, Case, Data, Inputs, KernelOp, Problem};
use ulplab_core::accumulator::{Factor, WGMMA_BF16};
use ulplab_core::formats::{E2M1, E4M3};

/// Number of columns that tensor cores sum before the accumulator starts again from 0.
const PART: usize = 1024;

pub(super) const FP4_GEMM: KernelOp = KernelOp {
    name: "fp4_gemm",
    doc: "multiplies bfloat16 rows by MXFP4 or NVFP4 weights",
    cases: || pairs(&["mxfp4", "nvfp4"], &["bf16", "f32"], of_type),
    defines_sums: true,
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [b, n, k] = case.sizes(["B", "N", "K"]);
    let (edges, nvfp4) = (case.inputs == Inputs::Edges, case.key("format") == "nvfp4");
    let block = if nvfp4 { 16 } else { 32 };
    let blocks = k.div_ceil(block);
    let mut x = data.normal("fp4_gemm/x", b * k);
    if edges {
        let [large, subnormal] = [100, -127].map(Edge::scaled);
        let kinds = [
            Random,
            Zeros,
            large,
            subnormal,
            One(f32::INFINITY),
            Last(f32::NAN),
            Random,
            Random,
        ];
        edges::set(&mut x, k, 0, &kinds);
    }
    round_to_bf16(&mut x);
    let mut w = data.bytes("fp4_gemm/w", n * k / 2);
    let mut w_scale = data.bytes("fp4_gemm/w_scale", n * blocks);
    for (at, scale) in w_scale.iter_mut().enumerate() {
        let (row, of_row) = (at / blocks, at % blocks);
        *scale = match (edges, of_row % 3) {
            // The rows up to 255 use one scale code each, 256 different codes together, so that a NaN scale does not hide faults
            // of other codes. In the next tile of 128 rows, MXFP4 scales are 2 and 4: one is below and one above a limit, because
            // kernels can decode codes with one multiplication only if scales are at most 2.
            (true, 0 | 2) if row >= 256 && !nvfp4 => 128 + (row % 2) as u8,
            (true, 0 | 2) => row as u8,
            _ if nvfp4 => 0x28 + *scale % 32,
            _ => 118 + *scale % 8,
        };
    }
    // Set the first blocks of some rows to zeros of both signs.
    let zeros = w
        .par_chunks_mut(k / 2)
        .enumerate()
        .filter(|(row, _)| edges && row % 5 == 3);
    zeros.for_each(|(_, row)| row.iter_mut().take(16).for_each(|codes| *codes &= 0x88));
    let w_tensor = if nvfp4 { [1.3 * 2f32.powi(-9)] } else { [1.0] };
    let (sums, dtype, sizes) = (Sums::of(case), case.float_type("out"), [b, n, k, block]);
    let judges = sums.judges(
        ("y", dtype, [b, n]),
        &want(sums, &x, [&w, &w_scale], w_tensor[0], sizes),
        || want(sums, &x, [&w, &w_scale], w_tensor[0], sizes),
        WHY,
    )?;
    let buffers = vec![
        Buffer::bf16("x", &[b, k], &x),
        Buffer::input("w", Dtype::U8, &[n, k / 2], w),
        Buffer::input("w_scale", Dtype::U8, &[n, blocks], w_scale),
        Buffer::f32("w_tensor", &[1], &w_tensor),
    ];
    Ok(Problem {
        flops: (2 * b * n * k) as u64,
        batch: Some(Batch::new("B", &["x", "y"])),
        ..Problem::new(buffers, judges)
    })
}

fn of_type(format: &'static str, out: &'static str) -> Vec<Case> {
    let random = [
        [8, 128, 1024],
        [9, 1, 16],
        // In this shape, the sum consists of several parts of 1024 columns, and the last part is shorter.
        [33, 130, 2096],
        [63, 65, 80],
        [64, 72, 4096],
        [65, 129, 1136],
        [128, 64, 272],
    ];
    let shapes: &[[i64; 2]] = match (format, out) {
        ("mxfp4", "bf16") => &[[4096, 4096], [32768, 1024], [4096, 8192]],
        (_, "bf16") => &[[4096, 4096]],
        _ => &[],
    };
    let timed = shapes.iter().flat_map(|[n, k]| [1, 8, 16, 32, 64].map(|b| [b, *n, *k]));
    let keys = [("format", format), ("out", out)];
    Grid::of(format!("{format}.{out}"), &keys, ["B", "N", "K"])
        .named(|[b, n, k]| format!("b{b}.{n}x{k}"))
        .each("", &[[1, 256, 512], [2, 200, 48]], Grid::random)
        .each("", &[[7, 136, 1040]], Grid::large)
        .each("", &random, Grid::random)
        .each("edges", &[[13, 264, 144], [40, 300, 1104]], Grid::edges)
        .each("", &timed.collect::<Vec<_>>(), Grid::timed)
        .done()
}

const WHY: &str = "weights are exact in bf16, the order of the sums is defined, tensor cores sum by a known rule \
                   (crates/core/accumulator.rs), and f32 and bf16 are rounded to nearest even, so every bit is defined; any NaN \
                   matches any other";

/// Computes y as f32 or with error bounds, depending on the type `N`. As f32, y has the exact bits that the operation defines. As
/// [`Bounded`](reference::Bounded), its error bounds are those of the kernel's accumulator `sums`.
fn want<N: Summed>(
    sums: Sums,
    x: &[f32],
    [w, w_scale]: [&[u8]; 2],
    w_tensor: f32,
    [_, n, k, block]: [usize; 4],
) -> Vec<N> {
    let x = bf16_factors(x);
    let (w, w_scale) = (w.par_chunks_exact(k / 2), w_scale.par_chunks_exact(k.div_ceil(block)));
    let w: Vec<Vec<Factor>> = w
        .zip(w_scale)
        .map(|(codes, scales)| weights(codes, scales, block))
        .collect();
    let mut y = vec![N::default(); x.len() / k * n];
    y.par_iter_mut().enumerate().for_each(|(at, y)| {
        let (row, col) = (at / n, at % n);
        *y = product::<N>(sums, &x[row * k..][..k], &w[col]) * N::from_f64(f64::from(w_tensor));
    });
    y
}

/// Sum of products of a row of x and a row of w, in the defined order, without the tensor's scale.
pub fn product<N: Summed>(sums: Sums, x: &[Factor], w: &[Factor]) -> N {
    let sums = x
        .chunks(PART)
        .zip(w.chunks(PART))
        .map(|(x, w)| N::dot(&WGMMA_BF16, sums, x, w));
    sums.reduce(|sum, part| sum + part).unwrap_or_default()
}

/// Decodes a row of weights: each code times the scale of its block of 16 (NVFP4) or 32 (MXFP4) columns, without the tensor's
/// scale.
pub fn weights(codes: &[u8], scales: &[u8], block: usize) -> Vec<Factor> {
    let weight = |col: usize| {
        let code = codes[col / 2] >> (col % 2 * 4) & 0xf;
        let scale = match (block, scales[col / block]) {
            (16, scale) => E4M3.decode(scale.into()),
            (_, 255) => f32::NAN,
            (_, scale) => 2f64.powi(i32::from(scale) - 127) as f32,
        };
        factor(E2M1.decode(code.into()) * scale)
    };
    (0..2 * codes.len()).map(weight).collect()
}
