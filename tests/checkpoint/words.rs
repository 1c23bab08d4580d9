//! Integers in words, packed as AutoGPTQ, AutoAWQ and compressed-tensors do it.

use super::made::{COLS, ROWS};

/// Inputs that share a scale.
pub const GROUP: usize = 64;

/// A matrix of codes of 4 bits, zero points and scales, by output and input channel.
pub struct Integers {
    pub codes: Vec<u32>,
    pub zeros: Vec<u32>,
    pub scales: Vec<f32>,
}

/// Quantizes a matrix in groups of input channels.
pub fn quantize(x: &[f32], symmetric: bool) -> Integers {
    let (mut codes, mut zeros, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    for group in x.chunks_exact(GROUP) {
        let (low, high) = group
            .iter()
            .fold((0f32, 0f32), |(low, high), x| (low.min(*x), high.max(*x)));
        let (scale, zero) = match symmetric {
            true => (high.max(-low) / 7.0, 8.0),
            false => (
                (high - low) / 15.0,
                (-low / ((high - low) / 15.0)).round().clamp(1.0, 15.0),
            ),
        };
        let scale = half::f16::from_f32(scale).to_f32();
        codes.extend(group.iter().map(|x| (x / scale + zero).round().clamp(0.0, 15.0) as u32));
        zeros.push(zero as u32);
        scales.push(scale);
    }
    Integers { codes, zeros, scales }
}

/// Eight fields of 4 bits, the first in the lowest bits.
fn word(fields: impl Iterator<Item = u32>) -> [u8; 4] {
    let packed = fields
        .enumerate()
        .fold(0u32, |word, (at, field)| word | field << (4 * at));
    packed.to_le_bytes()
}

/// `[ROWS, COLS]` transposed, or `[ROWS, COLS / GROUP]`.
fn turned<T: Copy>(x: &[T], cols: usize) -> Vec<T> {
    (0..cols)
        .flat_map(|col| (0..ROWS).map(move |row| (row, col)))
        .map(|(row, col)| x[row * cols + col])
        .collect()
}

/// `qweight` and `qzeros` of AutoGPTQ, whose zero points are stored less one.
pub fn gptq(integers: &Integers) -> (Vec<u8>, Vec<u8>) {
    let codes = &integers.codes;
    let words = (0..COLS / 8).flat_map(|word| (0..ROWS).map(move |row| (word, row)));
    let codes = words.flat_map(|(at, row)| word((0..8).map(|place| codes[row * COLS + at * 8 + place])));
    let zeros = turned(&integers.zeros, COLS / GROUP);
    let zeros = zeros
        .chunks_exact(8)
        .flat_map(|zeros| word(zeros.iter().map(|zero| zero - 1)));
    (codes.collect(), zeros.collect())
}

/// `qweight` and `qzeros` of AutoAWQ: its `order_map`.
pub fn awq(integers: &Integers) -> (Vec<u8>, Vec<u8>) {
    let pack = |fields: Vec<u32>| -> Vec<u8> {
        let ordered = |fields: &[u32]| word([0, 2, 4, 6, 1, 3, 5, 7].map(|at| fields[at]).into_iter());
        fields.chunks_exact(8).flat_map(ordered).collect()
    };
    (
        pack(turned(&integers.codes, COLS)),
        pack(turned(&integers.zeros, COLS / GROUP)),
    )
}

/// `weight_packed` and `weight_zero_point` of compressed-tensors.
pub fn rows(integers: &Integers) -> (Vec<u8>, Vec<u8>) {
    let codes = integers
        .codes
        .chunks_exact(8)
        .flat_map(|codes| word(codes.iter().copied()));
    let groups = COLS / GROUP;
    let zeros = (0..ROWS / 8).flat_map(|at| (0..groups).map(move |group| (at, group)));
    let zeros =
        zeros.flat_map(|(at, group)| word((0..8).map(|place| integers.zeros[(at * 8 + place) * groups + group])));
    (codes.collect(), zeros.collect())
}

/// Scales as `[groups, outputs]` in F16.
pub fn scales(integers: &Integers) -> Vec<u8> {
    let scales = turned(&integers.scales, COLS / GROUP);
    scales
        .iter()
        .flat_map(|scale| half::f16::from_f32(*scale).to_le_bytes())
        .collect()
}
