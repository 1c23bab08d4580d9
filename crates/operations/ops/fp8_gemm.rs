//! FP8 GEMM with block scales: y [B, N] = x [B, K] · wᵀ. x has one scale per row and 128 columns; w [N, K] has one scale per tile
//! of 128 × 128, as in DeepSeek checkpoints.
//!
//! The order of the sums is part of the definition. Tensor cores sum each block of 128 columns, 32 columns per step from the
//! first to the last. Then `acc = fma(sx · sw, sum, acc)` in f32, from the first block to the last, with the scales sx and sw of
//! the block; acc is rounded once if y is bf16. The result of a row is the same for any B and any position of the row in the
//! batch, so a kernel that follows this order is batch invariant.

use rayon::prelude::*;
use safetensors::Dtype;

use super::sums::{Summed, Sums, e4m3_factors};
use super::{Batch, Buffer, Case, Data, Grid, Inputs, KernelOp, Problem};
use ulplab_core::accumulator::WGMMA_E4M3;
use ulplab_core::formats::E4M3;

/// Number of columns that share a scale. In w, a scale also covers this number of rows.
const BLOCK: usize = 128;

pub(super) const FP8_GEMM: KernelOp = KernelOp {
    name: "fp8_gemm",
    doc: "multiplies E4M3 rows with scales of 1 × 128 by E4M3 weights with scales of 128 × 128",
    cases: || ["bf16", "f32"].into_iter().flat_map(of_type).collect(),
    defines_sums: true,
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [b, n, k] = case.sizes(["B", "N", "K"]);
    let edges = case.inputs == Inputs::Edges;
    let blocks = k.div_ceil(BLOCK);
    let x = codes("x", [b, k], edges, data);
    let w = codes("w", [n, k], edges, data);
    let x_scale = scales("x_scale", b * blocks, edges, data);
    let w_scale = scales("w_scale", n.div_ceil(BLOCK) * blocks, edges, data);
    let (sums, dtype, sizes) = (Sums::of(case), case.float_type("out"), [b, n, k]);
    let judges = sums.judges(
        ("y", dtype, [b, n]),
        &want(sums, [&x, &w], [&x_scale, &w_scale], sizes),
        || want(sums, [&x, &w], [&x_scale, &w_scale], sizes),
        WHY,
    )?;
    let buffers = vec![
        Buffer::input("x", Dtype::U8, &[b, k], x),
        Buffer::f32("x_scale", &[b, blocks], &x_scale),
        Buffer::input("w", Dtype::U8, &[n, k], w),
        Buffer::f32("w_scale", &[n.div_ceil(BLOCK), blocks], &w_scale),
    ];
    Ok(Problem {
        flops: (2 * b * n * k) as u64,
        batch: Some(Batch::new("B", &["x", "x_scale", "y"])),
        ..Problem::new(buffers, judges)
    })
}

fn of_type(out: &'static str) -> Vec<Case> {
    let random = [
        [8, 320, 384],
        [9, 64, 128],
        // In this shape and the next, B, N and K are not multiples of a tile.
        [33, 200, 1104],
        [63, 130, 144],
        [64, 1, 16],
        [65, 129, 2064],
        [128, 384, 1536],
        // This shape has more tiles than multiprocessors, a partial last tile, and rows of y that are not aligned.
        [3, 4300, 1040],
        // Four tiles of 32 weights share a scale. In this shape, most multiprocessors begin in the middle of such a group of
        // tiles, because the number of tiles per multiprocessor is not a multiple of four.
        [2, 9600, 160],
        // In both shapes, K needs more stages than the pipeline's ring buffer has. The second shape also has a partial last
        // block.
        [1, 70, 16384],
        [5, 100, 8208],
    ];
    let timed = [1, 8, 64].into_iter().flat_map(|b| [[b, 32768, 1024], [b, 4096, 8192]]);
    Grid::of(out, &[("out", out)], ["B", "N", "K"])
        .named(|[b, n, k]| format!("b{b}.{n}x{k}"))
        .each("", &[[1, 256, 512], [2, 256, 512]], Grid::random)
        .each("", &[[7, 192, 640]], Grid::large)
        .each("", &random, Grid::random)
        .each("edges", &[[13, 264, 912], [64, 128, 4096]], Grid::edges)
        .when(out == "bf16", |grid| {
            // This shape has rows of x too long for shared memory, and more tiles than multiprocessors.
            let grid = grid.each("", &[[33, 4264, 1552]], Grid::random);
            grid.each("", &timed.collect::<Vec<_>>(), Grid::timed)
        })
        .done()
}

const WHY: &str = "the order of the sums is defined, tensor cores sum by a known rule (crates/core/accumulator.rs), \
                   and f32 and bf16 are rounded to nearest even, so every bit is defined; any NaN matches any other";

/// E4M3 codes `[rows, K]`, and their scales: one per row and 128 columns for x, one per 128 × 128 tile for w.
pub type Coded<'a> = (&'a [u8], &'a [f32]);

/// Computes x · wᵀ in f32, bit for bit as the operation defines it; w has `n` rows.
pub fn product(x: Coded, w: Coded, n: usize) -> Vec<f32> {
    let k = w.0.len() / n;
    want(Sums::Defined, [x.0, w.0], [x.1, w.1], [x.0.len() / k, n, k])
}

/// Computes y as f32 or with error bounds, depending on the type `N`. As f32, y has the exact bits that the operation defines. As
/// [`Bounded`](reference::Bounded), its error bounds are those of the kernel's accumulator `sums`.
fn want<N: Summed>(sums: Sums, [x, w]: [&[u8]; 2], [x_scale, w_scale]: [&[f32]; 2], [_, n, k]: [usize; 3]) -> Vec<N> {
    let (x, w) = (e4m3_factors(x), e4m3_factors(w));
    let blocks = k.div_ceil(BLOCK);
    let mut y = vec![N::default(); x.len() / k * n];
    y.par_iter_mut().enumerate().for_each(|(at, y)| {
        let (row, col) = (at / n, at % n);
        let pairs = x[row * k..][..k].chunks(BLOCK).zip(w[col * k..][..k].chunks(BLOCK));
        *y = pairs.enumerate().fold(N::default(), |acc, (block, (x, w))| {
            let scale = N::from_f64(f64::from(x_scale[row * blocks + block]))
                * N::from_f64(f64::from(w_scale[col / BLOCK * blocks + block]));
            scale.mul_add(N::dot(&WGMMA_E4M3, sums, x, w), acc)
        });
    });
    y
}

/// Draws E4M3 codes. Edge cases have blocks of zeros, of largest and of subnormal numbers, rows whose sums nearly cancel, and a
/// NaN.
fn codes(name: &str, [rows, cols]: [usize; 2], edges: bool, data: &Data) -> Vec<u8> {
    let normal = data.normal(&format!("fp8_gemm/{name}"), rows * cols);
    let bits = data.bytes(&format!("fp8_gemm/{name}/bits"), rows * cols);
    let mut codes = vec![0; rows * cols];
    codes.par_chunks_mut(cols).enumerate().for_each(|(row, codes)| {
        for (col, code) in codes.iter_mut().enumerate() {
            let (x, bits) = (normal[row * cols + col], bits[row * cols + col]);
            // Random values are scaled so that block maxima are near 448, like the output of a quantizer.
            let near = |x: f32| E4M3.encode(x) as u8;
            *code = match (row + col / BLOCK) % 7 {
                _ if !edges => near(120.0 * x),
                0 => bits & 0x80,
                1 => bits & 0x80 | 0x7e,
                2 => bits & 0x87,
                3 => near(120.0 * x * if col % 2 == 0 { 1.0 } else { -1.0 }),
                4 if bits & 0x7f == 0x7f => 0,
                4 => bits,
                5 if row % 32 == 5 && col % BLOCK == 77 => 0x7f,
                _ => near(120.0 * x),
            };
        }
    });
    codes
}

/// Draws positive block scales. Edge cases also have powers of two, with 2^-127 as the smallest, and 0.
fn scales(name: &str, len: usize, edges: bool, data: &Data) -> Vec<f32> {
    let mut scales = data.normal(&format!("fp8_gemm/{name}"), len);
    for (at, scale) in scales.iter_mut().enumerate() {
        *scale = match at % 11 {
            3 if edges => 2f32.powi(-127),
            5 if edges => 0.0,
            7 | 8 if edges => 2f32.powi((at % 40) as i32 - 20),
            _ => scale.exp() / 448.0,
        };
    }
    scales
}
