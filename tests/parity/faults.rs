//! Faults planted in the bytes of right quantizers.

use ulplab::formats::{E4M3, Encoded, Format, GlobalScale, codec};
use ulplab::layouts::Layout;
use ulplab::packed::Grid;
use ulplab::parity::{Cause, Diagnosis, StoredBytes, diagnose};

use crate::formats::oracle::Random;

const ROWS: usize = 128;
pub const COLS: usize = 256;
fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[(random.uniform() * of.len() as f64) as usize]
}

/// About normal. A plain loop, as it is called millions of times and is compiled without optimisation.
pub fn normal(random: &mut Random) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    while count < 12 {
        sum += random.uniform();
        count += 1;
    }
    sum - 6.0
}

/// `real-like`: bf16 of heavy tails, with rows and channels of different size and zeros.
pub fn data(kind: &str, random: &mut Random) -> Vec<f32> {
    let mut sizes = |n: usize, spread: f64| -> Vec<f64> { (0..n).map(|_| (spread * normal(random)).exp()).collect() };
    let (rows, cols) = (sizes(ROWS, 0.5), sizes(COLS, 0.6));
    let loud: Vec<bool> = (0..COLS).map(|_| random.uniform() < 0.01).collect();
    let value = |index: usize| {
        let (r, c) = (index / COLS, index % COLS);
        match kind {
            "gauss" => normal(random) as f32,
            "outliers" => (normal(random) * if loud[c] { 30.0 } else { 1.0 }) as f32,
            _ if random.uniform() < 0.02 => 0.0,
            _ => {
                let laplace = -(1.0 - random.uniform()).ln() * if random.uniform() < 0.5 { -1.0 } else { 1.0 };
                half::bf16::from_f32((laplace * rows[r] * cols[c]) as f32).to_f32()
            }
        }
    };
    (0..ROWS * COLS).map(value).collect()
}

/// What a kernel leaves behind, right or wrong.
pub struct Kernel {
    pub format: Format,
    pub x: Vec<f32>,
    grid: Grid,
    pub encoded: Encoded,
    layout: Option<&'static Layout>,
}

impl Kernel {
    pub fn new(text: &str, x: Vec<f32>, amax: Option<f32>) -> Self {
        let format = *codec(text).unwrap().format().unwrap();
        let global = amax.map_or(GlobalScale::Own, GlobalScale::Amax);
        Self {
            encoded: format.encode(&x, COLS, global),
            grid: Grid::new(&format, ROWS, COLS),
            format,
            x,
            layout: None,
        }
    }

    /// Whether the bytes are those of the format after all, as declared.
    pub fn harmless(&self) -> bool {
        let right = self.format.encode(&self.x, COLS, GlobalScale::Own);
        self.layout.is_none() && right == self.encoded
    }

    fn part(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self
            .encoded
            .parts
            .iter_mut()
            .find(|part| part.name == name)
            .unwrap()
            .bytes
    }

    fn size(&self) -> usize {
        self.format.scaling.unwrap().scale.bytes()
    }

    fn global(&self) -> f32 {
        match self.encoded.part("global") {
            &[a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            _ => 1.0,
        }
    }

    fn block(&self, group: usize) -> Vec<f32> {
        self.grid.elements(group).map(|at| self.x[at]).collect()
    }

    /// Scales picked by somebody else in the rows that are `hit`, and codes by these scales.
    fn rescale(&mut self, hit: impl Fn(usize) -> bool, scale: impl Fn(&Self, usize) -> Option<Vec<u8>>) {
        let grid = self.grid;
        for group in (0..grid.groups()).filter(|group| hit(grid.place(*group)[0])) {
            if let Some(bytes) = scale(self, group) {
                let size = self.size();
                self.part("scale")[group * size..(group + 1) * size].copy_from_slice(&bytes);
            }
        }
        let repr = self.format.repr();
        self.recode(|y| repr.encode(y));
    }

    /// Codes of the stored scales by another cast.
    fn recode(&mut self, cast: impl Fn(f32) -> u16) {
        let codes: Vec<u16> = self
            .format
            .quotients(&self.x, &self.encoded)
            .into_iter()
            .map(cast)
            .collect();
        let bytes = match self.format.element.bits {
            4 => codes.chunks(2).map(|pair| (pair[0] | pair[1] << 4) as u8).collect(),
            _ => codes.iter().map(|code| *code as u8).collect(),
        };
        *self.part("data") = bytes;
    }

    pub fn diagnose(&self, named: bool) -> Diagnosis {
        let stored = StoredBytes {
            layout: self.layout,
            ..StoredBytes::from(&self.encoded)
        };
        diagnose(&self.x, COLS, &stored, &self.format, named)
    }
}

/// Which rows a fault is in: all, or one part of four as of one warp.
fn hit(random: &mut Random) -> impl Fn(usize) -> bool + use<> {
    let (all, warp) = (random.uniform() < 0.6, (random.uniform() * 4.0) as usize);
    move |row| all || row % 4 == warp
}

fn largest(x: impl Iterator<Item = f32>) -> f32 {
    x.map(f32::abs).fold(0.0, f32::max)
}

fn wrong_amax(kernel: &mut Kernel, random: &mut Random) {
    let (variant, lane, hit) = (
        (random.uniform() * 5.0) as usize,
        (random.uniform() * 16.0) as usize,
        hit(random),
    );
    kernel.rescale(hit, |kernel, group| {
        let block = kernel.block(group);
        let n = block.len();
        let amax = match variant {
            0 => largest(block[..n / 2].iter().copied()),
            1 => largest(block.iter().copied().step_by(2)),
            2 => block.iter().copied().fold(0.0, f32::max),
            // A warp's eighth, or in small blocks a lane, is left out.
            3 if n >= 32 => largest(
                block
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| i * 8 / n != lane / 2)
                    .map(|(_, x)| *x),
            ),
            3 => largest(block.iter().enumerate().filter(|(i, _)| *i != lane).map(|(_, x)| *x)),
            _ => {
                let across = kernel.grid.count.1;
                let before = if group % across == 0 { return None } else { group - 1 };
                largest(kernel.block(before).into_iter())
            }
        };
        Some(kernel.format.scale_of(amax, &block, kernel.global()))
    });
}

/// The rule whose scales these are, if one has them.
fn wrong_rounding(kernel: &mut Kernel, random: &mut Random) -> Option<&'static str> {
    let kind = kernel.format.scaling.unwrap().scale.kind();
    let (up, hit) = (random.uniform() < 0.5, hit(random));
    let rule = match kind {
        "e8m0" => pick(random, &["floor", "ceil", "even"]),
        "f32" => pick(random, &["act_quant", ""]),
        _ => "",
    };
    let other = kernel.format.with_rule(rule).ok();
    let amax = |kernel: &Kernel, group| largest(kernel.block(group).into_iter());
    kernel.rescale(hit, |kernel, group| {
        let block = kernel.block(group);
        let amax = amax(kernel, group);
        match (&other, kind) {
            (Some(other), _) => Some(other.scale_of(amax, &block, kernel.global())),
            // Multiplied by the rounded reciprocal, and another ulp.
            (None, "f32") => Some((amax * (1.0 / 448.0)).next_up().to_le_bytes().to_vec()),
            (None, _) => {
                let exact = f64::from(amax) / 6.0 * 2688.0 / f64::from(kernel.global());
                let below = (0..0x7f)
                    .rev()
                    .find(|code| f64::from(E4M3.decode(*code)) <= exact)
                    .unwrap_or(0);
                let exact = f64::from(E4M3.decode(below)) == exact;
                Some(vec![if up && !exact { (below + 1).min(0x7e) } else { below } as u8])
            }
        }
    });
    other.map(|_| rule)
}

/// Some elements become exact ties, then ties go another way.
fn wrong_ties(kernel: &mut Kernel, random: &mut Random) {
    let repr = kernel.format.repr();
    let quotients = kernel.format.quotients(&kernel.x, &kernel.encoded);
    let tops: Vec<f32> = (0..kernel.grid.groups())
        .map(|group| largest(kernel.block(group).into_iter()))
        .collect();
    for (at, y) in quotients.into_iter().enumerate() {
        let top = tops[kernel.grid.group_of(at)];
        if kernel.x[at].abs() == top || y == 0.0 || random.uniform() > 0.2 {
            continue;
        }
        let code = repr.encode(y.abs());
        let middle = (repr.decode(code) + repr.decode(code + 1)) / 2.0;
        let tied = kernel.x[at] * (middle / y.abs());
        if tied.abs() < top {
            kernel.x[at] = tied;
        }
    }
    let own = kernel.format.encode(&kernel.x, COLS, GlobalScale::Own);
    kernel.encoded = own;
    let up = random.uniform() < 0.5;
    let sign = 1 << (kernel.format.element.bits - 1);
    kernel.recode(|y| {
        let code = repr.encode(y);
        let magnitude = code & !sign;
        let tie = |other: u16| f64::from(repr.decode(magnitude) + repr.decode(other)) / 2.0 == f64::from(y.abs());
        match up {
            true if repr.decode(magnitude + 1).is_finite() && tie(magnitude + 1) => code + 1,
            false if magnitude > 0 && tie(magnitude - 1) => code - 1,
            _ => code,
        }
    });
}

/// Stops at another value; or, where values overflow, NaN or a carry into the sign.
fn wrong_saturation(kernel: &mut Kernel, random: &mut Random) {
    let (repr, max) = (kernel.format.repr(), kernel.format.element.max());
    let overflows = random.uniform() < 0.5 && kernel.format.scaling.unwrap().scale.kind() != "f32";
    if !overflows {
        let clamp = if max == 6.0 {
            4.0
        } else {
            pick(random, &[240.0, 256.0, 416.0])
        };
        kernel.recode(|y| repr.encode(y.clamp(-clamp, clamp)));
        return;
    }
    let x = std::mem::take(&mut kernel.x);
    // Scales that let values overflow: of a calibration with clipping, or of OCP's rule.
    *kernel = match kernel.format.global {
        Some(_) => Kernel::new(
            &kernel.format.to_string(),
            x.clone(),
            Some(largest(x.iter().copied()) / 8.0),
        ),
        None => Kernel::new(&kernel.format.with_rule("floor").unwrap().to_string(), x, None),
    };
    kernel.recode(|y| {
        let code = repr.encode(y);
        match (y.abs() > max * 1.03, max == 6.0) {
            (true, true) => code ^ 0x8,
            (true, false) => 0x7f,
            _ => code,
        }
    });
}

fn wrong_nibbles(kernel: &mut Kernel) {
    kernel
        .part("data")
        .iter_mut()
        .for_each(|byte| *byte = byte.rotate_left(4));
}

fn wrong_swizzle(kernel: &mut Kernel, random: &mut Random) {
    let layout = Layout::find(pick(random, &["blocked_128x4", "blocked_8x4"])).unwrap();
    let placement = layout.place(&[kernel.grid.count.0, kernel.grid.count.1], &[]).unwrap();
    if random.uniform() < 0.5 {
        // Said to be in a layout, and left in rows.
        kernel.layout = Some(layout);
    } else {
        let scales = placement.forward(kernel.encoded.part("scale")).unwrap();
        *kernel.part("scale") = scales;
    }
}

fn transposed(bytes: &[u8], rows: usize, cols: usize, size: usize) -> Vec<u8> {
    let mut out = vec![0; bytes.len()];
    for (index, entry) in bytes.chunks(size).enumerate() {
        let to = index % cols * rows + index / cols;
        out[to * size..(to + 1) * size].copy_from_slice(entry);
    }
    out
}

fn wrong_layout(kernel: &mut Kernel, random: &mut Random) {
    let (size, (down, across)) = (kernel.size(), kernel.grid.count);
    match (random.uniform() * 3.0) as usize {
        0 => *kernel.part("scale") = transposed(kernel.encoded.part("scale"), down, across, size),
        1 if kernel.format.element.bits == 8 => {
            *kernel.part("data") = transposed(kernel.encoded.part("data"), ROWS, COLS, 1)
        }
        _ => {
            // Rows are padded by a few scales.
            let stride = across + 1 + (random.uniform() * 4.0) as usize;
            let mut out = vec![0; down * stride * size];
            for (r, row) in kernel.encoded.part("scale").chunks(across * size).enumerate() {
                out[r * stride * size..][..across * size].copy_from_slice(row);
            }
            *kernel.part("scale") = out;
        }
    }
}

fn wrong_global(kernel: &mut Kernel, random: &mut Random) {
    let amax = kernel.global();
    let stored = pick(
        random,
        &[amax / 2688.0, 2688.0 / amax, amax / 6.0, amax / 448.0, 448.0 / amax],
    );
    *kernel.part("global") = stored.to_le_bytes().to_vec();
}

/// A kernel with that fault, and the rule that would explain it; none where the format cannot have it.
pub fn plant(cause: Cause, text: &str, x: Vec<f32>, random: &mut Random) -> Option<(Kernel, Option<&'static str>)> {
    let mut kernel = Kernel::new(text, x, None);
    let mut rule = None;
    match cause {
        Cause::Amax => wrong_amax(&mut kernel, random),
        Cause::ScaleRounding => rule = wrong_rounding(&mut kernel, random),
        Cause::TieRule => wrong_ties(&mut kernel, random),
        Cause::Saturation => wrong_saturation(&mut kernel, random),
        Cause::NibbleOrder if kernel.format.element.bits == 4 => wrong_nibbles(&mut kernel),
        Cause::Swizzle if kernel.size() == 1 => wrong_swizzle(&mut kernel, random),
        Cause::Layout => wrong_layout(&mut kernel, random),
        Cause::GlobalScale if kernel.format.global.is_some() => wrong_global(&mut kernel, random),
        _ => return None,
    }
    Some((kernel, rule))
}
