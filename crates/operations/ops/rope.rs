//! Rotary position embedding (RoPE) and its inverse: rotates interleaved pairs of the last R of the D channels of every head, in
//! place.
//!
//! Pair i consists of the channels (D−R+2i, D−R+2i+1). The cosines and sines of every token are inputs, so any positions can be
//! tested. The arithmetic is f32: two products and their sum, rounded again if the result is stored as bf16. A compiler may fuse
//! either product with the sum (FMA), and does so by default. So each output has up to three admissible values (no FMA, or one of
//! two), and must equal one of them bit for bit.

use half::bf16;
use rayon::prelude::*;
use reference::ops::rope::frequencies;
use safetensors::Dtype;

use super::data::float_bytes;
use super::grid::{Grid, element_bytes, pairs};
use super::judge::number;
use super::{Batch, Buffer, Case, Data, Inputs, Judge, KernelOp, Parameters, Problem};

pub(super) const ROPE: KernelOp = KernelOp {
    name: "rope",
    doc: "rotates the last R of D channels in interleaved pairs, forward or inverse, in place",
    cases,
    parameters: Some(parameters),
    check,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    pairs(&["bf16", "f32"], &["forward", "inverse"], of_type)
}

fn parameters() -> Parameters {
    let parameters = Parameters::new(&cases(), &["T", "H", "D", "R"], &["dtype", "direction"]);
    let table = ["T", "R / 2"];
    let parameters = parameters.tensor("x", &["T", "H", "D"]);
    parameters.tensor("cos", &table).tensor("sin", &table)
}

fn check(case: &Case) -> Result<(), String> {
    let [d, r] = case.sizes(["D", "R"]);
    if r % 2 != 0 || r > d {
        return Err(format!("R = {r}, expected an even number of channels, at most D = {d}"));
    }
    Ok(())
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [t, h, d, r, size] = case.sizes(["T", "H", "D", "R", "size"]);
    let dtype = case.float_type("dtype");
    let x = match (data.given(case, "x", dtype, &[t, h, d])?, case.inputs) {
        (Some(x), _) => x,
        (None, Inputs::Site(site)) => float_bytes(dtype, &data.site_rows(site, t, h * d)?),
        (None, inputs) => {
            let mut values = data.normal("rope/x", t * h * d);
            if inputs == Inputs::Edges {
                edges(&mut values);
            }
            float_bytes(dtype, &values)
        }
    };
    let (cos, sin) = match case.inputs {
        Inputs::Edges => edge_tables(t * r / 2),
        _ => tables(t, r),
    };
    let table = [t, r / 2];
    let (cos, sin) = (
        data.given_or(case, "cos", &table, || cos)?,
        data.given_or(case, "sin", &table, || sin)?,
    );
    let sign = if case.key("direction") == "inverse" { -1.0 } else { 1.0 };
    let pairs = Pairs {
        dtype,
        sizes: [size, h, d, r],
        x: x.clone(),
        cos: cos.clone(),
        sin: sin.iter().map(|sin| sign * sin).collect(),
    };
    let mut want = x.clone();
    pairs.rotate(&mut want);
    let shape = [t, h, d];
    let buffers = vec![
        Buffer::in_place("x", dtype, &shape, x),
        Buffer::f32("cos", &table, &cos),
        Buffer::f32("sin", &table, &sin),
    ];
    // Arithmetic does not define the bits of a NaN, so any NaN counts as equal to any other.
    let judge = Judge::equal("x", dtype, &shape, want, WHY).any_nan(d - r..d);
    Ok(Problem {
        bytes: (2 * t * h * r * size + 4 * t * r) as u64,
        batch: Some(Batch::new("T", &["x", "cos", "sin"])),
        ..Problem::new(buffers, vec![judge.or(move |at, got| pairs.admits(at, got))])
    })
}

const WHY: &str = "each product and their sum are rounded to f32, or one product is fused with the sum, and the result is \
                   rounded when it is stored: that leaves three values; other channels must be unchanged";

fn of_type(dtype: &'static str, direction: &'static str) -> Vec<Case> {
    let keys = [("dtype", dtype), ("direction", direction)];
    Grid::of(format!("{dtype}.{direction}"), &keys, ["T", "H", "D", "R"])
        .also("size", element_bytes(dtype))
        .timed("t1", [1, 128, 512, 64])
        .timed("t1024", [1024, 128, 512, 64])
        .large("all_channels", [37, 3, 128, 128])
        .random("unaligned", [37, 5, 27, 6])
        .edges("edges", [64, 133, 72, 64])
        .site("site", "layers.*.attention.query", [61 * 32, 2, 512, 64])
        .when((dtype, direction) == ("bf16", "forward"), |grid| {
            grid.timed("t16384", [16384, 128, 512, 64])
        })
        .done()
}

/// Tables of cosines and sines `[t, r/2]` for positions below 2²⁰. The last position comes first, and neighbouring tokens have
/// distant positions. The angle is the f32 product of position and frequency.
fn tables(t: usize, r: usize) -> (Vec<f32>, Vec<f32>) {
    let frequencies = frequencies(r, 1e4, None);
    let position = |token: usize| ((1 << 20) - 1 - token * 0x9_e375 % (1 << 20)) as f32;
    let angles = (0..t).flat_map(|token| {
        frequencies
            .iter()
            .map(move |frequency| f64::from(position(token) * frequency))
    });
    angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip()
}

/// Tables with edge values of cosine and sine: 1 and 0, which leave numbers unchanged; factors whose products with numbers of few
/// bits are midway between two bf16 numbers (ties); and subnormal factors.
fn edge_tables(len: usize) -> (Vec<f32>, Vec<f32>) {
    let tie = 1.0 + 2_f32.powi(-8);
    let some = [
        (1.0, 0.0),
        (tie, 0.0),
        (0.0, tie),
        (-0.0, -1.0),
        (0.6, 0.8),
        (1e-40, -1e-40),
    ];
    (0..len).map(|i| some[i % some.len()]).unzip()
}

/// Replaces half of the numbers by edge values that kernels often get wrong.
fn edges(values: &mut [f32]) {
    let subnormal = f32::from_bits(1 << 16);
    let some = [
        0.0,
        -0.0,
        1.0,
        -1.0 - 2_f32.powi(-7),
        subnormal,
        -3.0 * subnormal,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
    ];
    let half = values.iter_mut().enumerate().filter(|(i, _)| (i / 3).is_multiple_of(2));
    half.for_each(|(i, x)| *x = some[i % some.len()]);
}

/// Inputs of the rotation. The check computes every admissible value of an output element from these inputs: without FMA, or with
/// either product fused.
struct Pairs {
    dtype: Dtype,
    /// Bytes per element, number of heads, channels of a head, and rotated channels of a head.
    sizes: [usize; 4],
    /// Contents of the buffer `x` before the rotation.
    x: Vec<u8>,
    cos: Vec<f32>,
    /// Sines; negated for the inverse direction.
    sin: Vec<f32>,
}

impl Pairs {
    /// Returns pair `i` of a row (one head of one token), and its cosine and sine.
    fn at(&self, row: usize, i: usize) -> ([f32; 2], [f32; 2]) {
        let [_, h, d, r] = self.sizes;
        let angle = row / h * (r / 2) + i;
        let first = (row + 1) * d - r + 2 * i;
        let pair = [first, first + 1].map(|at| number(self.dtype, &self.x, at) as f32);
        (pair, [self.cos[angle], self.sin[angle]])
    }

    /// Rotates the last channels of every row of `x`, with each product rounded.
    fn rotate(&self, x: &mut [u8]) {
        let [size, _, d, r] = self.sizes;
        x.par_chunks_mut(d * size).enumerate().for_each(|(row, x)| {
            for (i, pair) in x[(d - r) * size..].chunks_mut(2 * size).enumerate() {
                let ([a, b], [cos, sin]) = self.at(row, i);
                write(&mut pair[..size], a * cos - b * sin);
                write(&mut pair[size..], b * cos + a * sin);
            }
        });
    }

    /// Returns true if `got` has the bytes of a result with an FMA, in which one of the two products is not rounded.
    fn admits(&self, at: usize, got: &[u8]) -> bool {
        let [size, _, d, r] = self.sizes;
        let Some(channel) = (at % d).checked_sub(d - r) else {
            return false;
        };
        let ([a, b], [cos, sin]) = self.at(at / d, channel / 2);
        let fused = match channel % 2 {
            0 => [a.mul_add(cos, -(b * sin)), (-b).mul_add(sin, a * cos)],
            _ => [b.mul_add(cos, a * sin), a.mul_add(sin, b * cos)],
        };
        let mut bytes = [0; 4];
        fused.into_iter().any(|fused| {
            write(&mut bytes[..size], fused);
            bytes[..size] == *got
        })
    }
}

fn write(bytes: &mut [u8], x: f32) {
    match bytes.len() {
        4 => bytes.copy_from_slice(&x.to_le_bytes()),
        _ => bytes.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
    }
}
