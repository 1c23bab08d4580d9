//! Integers in words, packed as AutoGPTQ, AutoAWQ and compressed-tensors do it.

/// Inputs that share a scale.
pub const GROUP: usize = 64;

/// A matrix of codes, zero points and scales, by output and input channel.
pub struct Integers {
    pub bits: usize,
    pub rows: usize,
    pub cols: usize,
    /// Inputs that share a scale.
    pub group: usize,
    pub codes: Vec<u32>,
    pub zeros: Vec<u32>,
    pub scales: Vec<f32>,
}

/// Quantizes a matrix in groups of input channels.
pub fn quantize(x: &[f32], cols: usize, bits: usize, symmetric: bool) -> Integers {
    quantize_in(GROUP, x, cols, bits, symmetric)
}

/// The same in groups of another size.
pub fn quantize_in(size: usize, x: &[f32], cols: usize, bits: usize, symmetric: bool) -> Integers {
    let (mut codes, mut zeros, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    let (top, middle) = (((1u32 << bits) - 1) as f32, (1u32 << (bits - 1)) as f32);
    for group in x.chunks_exact(cols).flat_map(|row| row.chunks(size)) {
        let (low, high) = group
            .iter()
            .fold((0f32, 0f32), |(low, high), x| (low.min(*x), high.max(*x)));
        let (scale, zero) = match symmetric {
            true => (high.max(-low) / (middle - 1.0), middle),
            false => (
                (high - low) / top,
                (-low / ((high - low) / top)).round().clamp(1.0, top),
            ),
        };
        let scale = half::f16::from_f32(scale).to_f32();
        codes.extend(group.iter().map(|x| (x / scale + zero).round().clamp(0.0, top) as u32));
        zeros.push(zero as u32);
        scales.push(scale);
    }
    Integers {
        bits,
        rows: x.len() / cols,
        cols,
        group: size,
        codes,
        zeros,
        scales,
    }
}

impl Integers {
    /// Fields of a word.
    fn per(&self) -> usize {
        32 / self.bits
    }

    pub fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Fields, the first in the lowest bits.
    fn word(&self, fields: impl Iterator<Item = u32>) -> [u8; 4] {
        let packed = fields
            .enumerate()
            .fold(0u32, |word, (at, field)| word | field << (self.bits * at));
        packed.to_le_bytes()
    }

    /// `[rows, cols]` transposed.
    fn turned<T: Copy>(&self, x: &[T], cols: usize) -> Vec<T> {
        (0..cols)
            .flat_map(|col| (0..self.rows).map(move |row| (row, col)))
            .map(|(row, col)| x[row * cols + col])
            .collect()
    }

    /// `qweight` and `qzeros` of AutoGPTQ, whose zero points are stored less `offset`.
    pub fn gptq(&self, offset: u32) -> (Vec<u8>, Vec<u8>) {
        let (codes, per) = (&self.codes, self.per());
        let words = (0..self.cols / per).flat_map(|word| (0..self.rows).map(move |row| (word, row)));
        let codes =
            words.flat_map(|(at, row)| self.word((0..per).map(|place| codes[row * self.cols + at * per + place])));
        let zeros = self.turned(&self.zeros, self.groups());
        let zeros = zeros
            .chunks(per)
            .flat_map(|zeros| self.word(zeros.iter().map(|zero| zero - offset)));
        (codes.collect(), zeros.collect())
    }

    /// `qweight` and `qzeros` of AutoAWQ: its `order_map`.
    pub fn awq(&self) -> (Vec<u8>, Vec<u8>) {
        let pack = |fields: Vec<u32>| -> Vec<u8> {
            let ordered = |fields: &[u32]| self.word([0, 2, 4, 6, 1, 3, 5, 7].map(|at| fields[at]).into_iter());
            fields.chunks_exact(8).flat_map(ordered).collect()
        };
        (
            pack(self.turned(&self.codes, self.cols)),
            pack(self.turned(&self.zeros, self.groups())),
        )
    }

    /// `weight_packed` and `weight_zero_point` of compressed-tensors.
    pub fn rows(&self) -> (Vec<u8>, Vec<u8>) {
        let rows = self.codes.chunks_exact(self.cols);
        let codes = rows
            .flat_map(|row| row.chunks(self.per()))
            .flat_map(|codes| self.word(codes.iter().copied()));
        let (groups, per) = (self.groups(), self.per());
        let zeros = (0..self.rows / per).flat_map(|at| (0..groups).map(move |group| (at, group)));
        let zeros = zeros
            .flat_map(|(at, group)| self.word((0..per).map(|place| self.zeros[(at * per + place) * groups + group])));
        (codes.collect(), zeros.collect())
    }

    /// Scales as `[groups, outputs]` in F16.
    pub fn turned_scales(&self) -> Vec<u8> {
        let scales = self.turned(&self.scales, self.groups());
        scales
            .iter()
            .flat_map(|scale| half::f16::from_f32(*scale).to_le_bytes())
            .collect()
    }
}
