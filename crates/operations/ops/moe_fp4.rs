//! Mixture of experts (MoE) of a decode step with 4-bit weights. Each bfloat16 row goes through the experts that a router chose,
//! and through the shared expert, which comes last in the weight buffers.
//!
//! Weights are MXFP4 (E2M1, an E8M0 scale per 32 columns) or NVFP4 (E2M1, an E4M3 scale per 16 columns, and an f32 scale per
//! tensor: gate, up and down of an expert have one each). Weights are exact in bfloat16, see [`super::fp4_gemm`]. Sums have the
//! same order as in that operation: tensor cores sum 1024 columns at a time (`WGMMA_BF16`), these sums are added in f32, in
//! ascending order, and then the tensor's scale is multiplied in f32.
//!
//! The hidden value between the two products is h = silu(min(g, c)) · clamp(u, −c, c) · w, rounded once to bfloat16. g and u are
//! the products with gate and up weights, c is the clamp limit, and w is the router's weight, or 1 for the shared expert. Kernels
//! also output h, so that both halves are checked separately: h within the error bound of f32 arithmetic, and y bit for bit,
//! given the kernel's own h. The experts of a row are added in f32, in ascending order of expert index and then of slot; the
//! shared expert comes last. A slot with index −1 has no expert: kernels do not read its weight, and its h is 0. So the bits of y
//! do not depend on B.

use std::sync::Arc;

use rayon::prelude::*;
use reference::Bounded;
use reference::ops::experts::swiglu;
use safetensors::Dtype;

use super::data::{f32_values, round_to_bf16};
use super::edges::Edge::{One, Random, Times, Zeros};
use super::edges::{self, Edge};
use super::fp4_gemm::{product, weights};
use super::grid::{Grid, pairs};
use super::judge::{Judge, bf16_error};
use super::routed::{Routed, experts_of_rows};
use super::sums::{Summed, Sums, bf16_factors};
use super::swiglu::{LIMIT, activated, error};
use super::{Batch, Buffer, Case, Data, Inputs, KernelOp, Outputs, Problem, Scalar};
use ulplab_core::accumulator::Factor;

pub(super) const MOE_FP4: KernelOp = KernelOp {
    name: "moe_fp4",
    doc: "the mixture of experts with MXFP4 or NVFP4 weights, and of the shared expert",
    cases,
    defines_sums: true,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let of_types = |format, out| ["spread", "one", "counts"].map(|to| of_type(format, out, to)).concat();
    pairs(&["mxfp4", "nvfp4"], &["bf16", "f32"], of_types)
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, k, dim, inner] = case.sizes(["B", "K", "D", "I"]);
    let routed = Arc::new(Routed::new("moe_fp4", case, data));
    let mut x = data.normal("moe_fp4/x", rows * dim);
    if case.inputs == Inputs::Edges {
        let (large, subnormal) = (Edge::scaled(100), Edge::scaled(-127));
        let others = [Random, subnormal, Random, One(f32::INFINITY), Random, One(f32::NAN)];
        let kinds = [Random, Random, Zeros, Random, Times(20.0), Random, large];
        edges::set(&mut x, dim, 0, &[&kinds, &others[..]].concat());
    }
    round_to_bf16(&mut x);
    let gate_up = Matrices::new("gate_up", [2 * inner, dim], case, &routed, data);
    let down = Arc::new(Matrices::new("down", [dim, inner], case, &routed, data));

    let (sums, out) = (Sums::of(case), case.float_type("out"));
    let shape = [rows, k + 1, inner];
    let hidden = match sums {
        Sums::Defined => {
            let limit = f64::from(LIMIT);
            let each = |products: [f32; 2], weight: f32| between(products.map(f64::from), weight.into(), limit);
            let (want, error): (Vec<f64>, Vec<f64>) = hidden(sums, &routed, &gate_up, &x, each).into_iter().unzip();
            let bound = move |at: usize, y: f64| match error[at] {
                0.0 => 0.0,
                error => bf16_error(y, error),
            };
            Judge::within("hidden", Dtype::BF16, &shape, want, bound, WHY_HIDDEN)
        }
        _ => {
            let limit = Bounded::exact(LIMIT);
            let each = |[gate, up]: [Bounded; 2], weight| swiglu(gate, up, limit) * Bounded::exact(weight);
            let numbers = hidden(sums, &routed, &gate_up, &x, each);
            Judge::bounded("hidden", Dtype::BF16, &shape, &numbers, WHY_HIDDEN)?
        }
    };
    let (of_y, experts) = ([rows, dim], Arc::clone(&routed));
    let matrices = Arc::clone(&down);
    // Compute the expected y from the hidden values that the kernel wrote.
    let parts = move |outputs: &Outputs| {
        let hidden = bf16_factors(&f32_values(outputs.get("hidden"), Dtype::BF16));
        let defined = combined(Sums::Defined, &experts, &matrices, &hidden, of_y);
        let numbers = || combined(sums, &experts, &matrices, &hidden, of_y);
        let judges = sums.judges(("y", out, of_y), &defined, numbers, WHY);
        let judges = judges.unwrap_or_else(|why| {
            // The check of y fails to be made if hidden values make sums overflow, which no correct kernel writes. Expect NaN:
            // every y then counts as wrong.
            let nan = vec![f64::NAN; rows * dim];
            vec![Judge::within("y", out, &of_y, nan, |_, _| 0.0, why)]
        });
        judges.into_iter().map(|judge| judge.of(outputs)).collect()
    };
    let y = Judge::parts("y", parts, WHY);

    let [experts, weights] = routed.buffers();
    let mut buffers = vec![Buffer::bf16("x", &[rows, dim], &x), experts, weights];
    buffers.extend(gate_up.buffers(["gate_up", "gate_up_scale", "gate_up_tensor"]));
    buffers.extend(down.buffers(["down", "down_scale", "down_tensor"]));
    buffers.push(Buffer::output("hidden", Dtype::BF16, &shape));
    buffers.push(Buffer::output("y", out, &[rows, dim]));
    // Memory traffic includes neither the weights of experts without rows, which need not be read, nor `hidden`, which need not
    // be written.
    let used = routed.places.iter().filter(|places| !places.is_empty()).count();
    let sent: usize = routed.places.iter().map(Vec::len).sum();
    let weights = gate_up.bytes_of_one() + down.bytes_of_one();
    Ok(Problem {
        scalars: vec![("limit", Scalar::F32(LIMIT))],
        bytes: (rows * dim * (2 + out.bitsize() / 8) + 8 * rows * k + used * weights) as u64,
        flops: (6 * dim * inner * sent) as u64,
        batch: Some(Batch::new("B", &["x", "experts", "weights", "hidden", "y"])),
        ..Problem::new(buffers, vec![hidden, y])
    })
}

/// Makes the cases of one routing: all rows go to `one` expert; rows are `spread` over all experts; or the numbers of rows per
/// expert are near multiples of a tile (`counts`).
fn of_type(format: &'static str, out: &'static str, to: &'static str) -> Vec<Case> {
    let keys = [("format", format), ("out", out), ("routing", to)];
    let grid = experts_of_rows(format!("{format}.{out}.{to}"), &keys);
    let bf16 = out == "bf16";
    match to {
        "one" => return grid.each("", &[[65, 5, 1, 96, 64]], Grid::large).done(),
        "counts" => return grid.each("", &[[70, 15, 13, 64, 96]], Grid::large).done(),
        _ => {}
    }
    // Timed cases have the sizes of DeepSeek-V4-Flash but fewer experts, to fit into host memory. Their rows use nearly as many
    // different experts as with all 256.
    let timed = [[1, 8], [8, 64], [64, 64]].map(|[b, experts]| [b, experts, 6, 4096, 2048]);
    let timed = &timed[..if format == "mxfp4" { 3 } else { 2 }];
    grid.each("", &[[1, 4, 2, 64, 32]], Grid::random)
        // The test repeats the rows until buffers exceed 2³² elements. D is large, so that B then stays within the kernels'
        // limit.
        .each("", &[[3, 4, 2, 7168, 32]], Grid::large)
        .each("", &[[7, 4, 2, 64, 96], [9, 7, 3, 96, 160]], Grid::random)
        .each("", &[[8, 5, 1, 32, 1120]], Grid::random)
        .each("", &[[2, 256, 6, 1312, 224], [33, 3, 2, 544, 288]], Grid::random)
        // The first shape has more experts than a thread block has threads; the second has more slots than a warp has lanes.
        .each("", &[[9, 300, 6, 64, 32], [3, 40, 36, 32, 64]], Grid::random)
        .each("edges", &[[64, 9, 4, 288, 160], [24, 5, 2, 1152, 544]], Grid::edges)
        .when(bf16, |grid| {
            let grid = grid.each("", &[[65_537, 3, 2, 32, 32]], Grid::random);
            grid.each("", timed, Grid::timed)
        })
        .done()
}

const WHY_HIDDEN: &str = "the sums of both products are defined to the bit, as those of y; f32 arithmetic then errs by at most \
                          (13 + 2|g|) units of 2^-24: the exponential, its argument, a reciprocal, a sum and three products; \
                          for g below -87, it may underflow to 0; then half a step of bfloat16; without an expert it is 0";

const WHY: &str = "given the numbers between the products: weights are exact in bf16, the order of the sums is defined, tensor \
                   cores sum by a known rule (crates/core/accumulator.rs), and f32 and bf16 are rounded to nearest even, so every bit \
                   is defined; any NaN matches any other";

/// Matrices `[rows, cols]` of all experts. Experts without rows have NaN weights.
pub struct Matrices {
    shape: [usize; 2],
    /// Number of columns that share a scale.
    block: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    /// Number of tensors per expert: 1, or 2 if the two halves of the rows are gate and up.
    halves: usize,
    /// One scale per tensor.
    tensor: Vec<f32>,
}

impl Matrices {
    fn new(name: &'static str, [rows, cols]: [usize; 2], case: &Case, routed: &Routed, data: &Data) -> Self {
        let nvfp4 = case.key("format") == "nvfp4";
        let block = if nvfp4 { 16 } else { 32 };
        let halves = if name == "gate_up" { 2 } else { 1 };
        let (count, each, blocks) = (routed.places.len(), rows * cols / 2, cols / block);
        let mut all = Self {
            shape: [rows, cols],
            block,
            halves,
            codes: vec![0xff; count * each],
            scales: vec![0xff; count * rows * blocks],
            tensor: vec![f32::NAN; count * halves],
        };
        // Choose scales so that gates have a standard deviation of about 6, and one gate in ten exceeds the clamp limit. Codes
        // have a standard deviation of about 3; scales multiply it by about 2^-5.5 (MXFP4, 4096 columns) or 1.2 (NVFP4, before
        // the scale of the tensor).
        let least = (124.0 - (cols as f32).log2() / 2.0).round() as u8;
        let used = routed
            .places
            .iter()
            .enumerate()
            .filter(|(_, places)| !places.is_empty());
        for (number, _) in used {
            // One expert uses every scale code, one code per row. Some codes are NaN: in gate and up they make hidden columns
            // NaN.
            let extreme = case.inputs == Inputs::Edges && number == if halves == 2 { 0 } else { 1 };
            let drawn = |what: &str, len: usize| data.bytes(&format!("moe_fp4/{name}/{what}/{number}"), len);
            all.codes[number * each..][..each].copy_from_slice(&drawn("codes", each));
            let scales = &mut all.scales[number * rows * blocks..][..rows * blocks];
            scales.copy_from_slice(&drawn("scales", rows * blocks));
            for (at, scale) in scales.iter_mut().enumerate() {
                let (row, of_row) = (at / blocks, at % blocks);
                *scale = match nvfp4 {
                    _ if extreme && of_row % 3 != 1 => row as u8,
                    true => 0x28 + *scale % 32,
                    false => least + *scale % 8,
                };
            }
            for half in 0..halves {
                let size = 1.0 + 0.37 * (number % 3) as f32 + 0.7 * half as f32;
                all.tensor[number * halves + half] = if nvfp4 { 1.7 * size / (cols as f32).sqrt() } else { 1.0 };
            }
        }
        all
    }

    /// Creates MXFP4 matrices of this shape from codes and scales.
    pub fn mxfp4(shape: [usize; 2], codes: Vec<u8>, scales: Vec<u8>) -> Self {
        let count = 2 * codes.len() / (shape[0] * shape[1]);
        Self {
            shape,
            block: 32,
            codes,
            scales,
            halves: 1,
            tensor: vec![1.0; count],
        }
    }

    fn blocks(&self) -> usize {
        self.shape[1] / self.block
    }

    /// Number of bytes of one expert's codes, scales and tensor scales.
    fn bytes_of_one(&self) -> usize {
        let [rows, cols] = self.shape;
        rows * (cols / 2 + self.blocks()) + 4 * self.halves
    }

    /// Input buffers of codes, scales and tensor scales.
    fn buffers(&self, [codes, scales, tensor]: [&'static str; 3]) -> [Buffer; 3] {
        let ([rows, cols], count) = (self.shape, self.tensor.len() / self.halves);
        let bytes = |name, cols, bytes: &[u8]| Buffer::input(name, Dtype::U8, &[count, rows, cols], bytes.to_vec());
        [
            bytes(codes, cols / 2, &self.codes),
            bytes(scales, self.blocks(), &self.scales),
            Buffer::f32(tensor, &[count, self.halves], &self.tensor),
        ]
    }

    /// Decodes a row of an expert's matrix, without the tensor's scale.
    fn row(&self, expert: usize, row: usize) -> Vec<Factor> {
        let [rows, cols] = self.shape;
        let at = expert * rows + row;
        let (each, blocks) = (cols / 2, self.blocks());
        weights(
            &self.codes[at * each..][..each],
            &self.scales[at * blocks..][..blocks],
            self.block,
        )
    }

    /// Products of all rows of an expert's matrix with these tokens: `[rows, tokens]`.
    pub fn products<N: Summed>(&self, sums: Sums, expert: usize, tokens: &[&[Factor]]) -> Vec<N> {
        let ([rows, _], halves) = (self.shape, self.halves);
        let of_row = |row: usize| {
            let weights = self.row(expert, row);
            let tensor = self.tensor[expert * halves + row * halves / rows];
            tokens
                .iter()
                .map(move |x| product::<N>(sums, x, &weights) * N::from_f64(f64::from(tensor)))
        };
        (0..rows).into_par_iter().flat_map_iter(of_row).collect()
    }
}

/// Computes the hidden values `[B, K + 1, I]`. `each` computes one hidden value from its two products (gate and up) and the
/// router's weight. Slots without an expert have 0.
fn hidden<N: Summed, T: Clone + Default>(
    sums: Sums,
    routed: &Routed,
    gate_up: &Matrices,
    x: &[f32],
    each: impl Fn([N; 2], f32) -> T,
) -> Vec<T> {
    let ([halves, dim], slots) = (gate_up.shape, routed.k + 1);
    let (x, inner) = (bf16_factors(x), halves / 2);
    let mut all = vec![T::default(); x.len() / dim * slots * inner];
    for (expert, places) in routed.places.iter().enumerate() {
        let tokens = places.iter().map(|place| &x[place / slots * dim..][..dim]);
        let products: Vec<N> = gate_up.products(sums, expert, &tokens.collect::<Vec<_>>());
        for (token, place) in places.iter().enumerate() {
            let weight = routed.weight(*place);
            let product = |row: usize| products[row * places.len() + token];
            for unit in 0..inner {
                all[place * inner + unit] = each([product(unit), product(inner + unit)], weight);
            }
        }
    }
    all
}

/// Returns a hidden value, computed from the products of gate and up, and the bound of its f32 error before rounding to bfloat16.
/// The bound includes the error of [`swiglu`](super::swiglu) and of the product with the router's weight.
pub fn between(products: [f64; 2], weight: f64, limit: f64) -> (f64, f64) {
    let (y, lost) = activated(products, limit);
    let y = y * weight;
    let least = (2f64.powi(-146) + lost) * (weight.abs() + 1.0);
    (y, error(13.0, products[0], y) + least)
}

/// Computes the output y: for each row, the sum of its experts' down products, computed from the hidden values.
fn combined<N: Summed>(
    sums: Sums,
    routed: &Routed,
    down: &Matrices,
    hidden: &[Factor],
    [rows, dim]: [usize; 2],
) -> Vec<N> {
    let inner = down.shape[1];
    let mut products = vec![N::default(); rows * (routed.k + 1) * dim];
    for (expert, places) in routed.places.iter().enumerate() {
        let tokens: Vec<&[Factor]> = places.iter().map(|place| &hidden[place * inner..][..inner]).collect();
        let of_expert: Vec<N> = down.products(sums, expert, &tokens);
        for (token, place) in places.iter().enumerate() {
            for channel in 0..dim {
                products[place * dim + channel] = of_expert[channel * places.len() + token];
            }
        }
    }
    let mut y = vec![N::default(); rows * dim];
    y.par_chunks_exact_mut(dim).enumerate().for_each(|(row, y)| {
        for place in routed.added(row) {
            let product = &products[place * dim..][..dim];
            y.iter_mut().zip(product).for_each(|(y, product)| *y += *product);
        }
    });
    y
}
