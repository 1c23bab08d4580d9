//! One decode step of sparse multi-query attention with a sink: one softmax over a window of recent vectors and compressed
//! entries.
//!
//! The definition is [`attend`]: s_j = scale · q · k_j, p_j = e^{s_j} / (Σ e^{s_j'} + e^{sink}), o = Σ p_j k_j. A vector is both
//! key and value, and all heads share it. Each head has a sink, an unscaled logit that only adds to the denominator.

use rayon::prelude::*;
use reference::Bounded;
use reference::ops::attention::{KeyRows, Sizes, attend};
use safetensors::Dtype;

use super::data::{exact, round_to};
use super::grid::{Grid, element_bytes, named, pairs};
use super::{Batch, Buffer, Case, Data, Inputs, Judge, KernelOp, Problem, Scalar};

pub(super) const SPARSE_ATTENTION: KernelOp = KernelOp {
    name: "sparse_attention",
    doc: "a token's attention to its window and to compressed entries, with a sink",
    cases: || pairs(&["indices", "all"], &["bf16", "f32"], of_type),
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let rows = Rows::new(case, data);
    let [b, h, d, window, n, k] = rows.sizes;
    let dtype = rows.dtype;
    let want: Vec<Bounded> = (0..b).into_par_iter().flat_map_iter(|row| rows.want(row)).collect();
    let buffers = vec![
        Buffer::floats("q", dtype, &[b, h, d], &rows.q),
        Buffer::floats("window", dtype, &[b, window, d], &rows.vectors[0]),
        Buffer::i32("position", &[b], &rows.position),
        Buffer::floats("entries", dtype, &[b, n, d], &rows.vectors[1]),
        Buffer::i32("indices", &[b, k], &rows.indices),
        Buffer::i32("count", &[b], &rows.count),
        Buffer::f32("sinks", &[h], &rows.sinks),
    ];
    let judge = Judge::bounded("out", dtype, &[b, h, d], &want, WHY)?;
    // Memory traffic includes only the vectors that a row reads.
    let size = dtype.bitsize() / 8;
    let keys: usize = (0..b).map(|row| rows.keys(row).len()).sum();
    Ok(Problem {
        scalars: vec![("scale", Scalar::F32(rows.scale))],
        bytes: ((keys + 2 * b * h) * d * size) as u64,
        flops: (4 * keys * h * d) as u64,
        batch: Some(Batch::new(
            "B",
            &["q", "window", "position", "entries", "indices", "count", "out"],
        )),
        ..Problem::new(buffers, vec![judge])
    })
}

const WHY: &str = "f32 arithmetic: the error of each score moves its exponential, and the sums of exponentials and of weighted \
                   vectors, in any order, add theirs; then half a step of the type that is stored";

fn of_type(reads: &'static str, dtype: &'static str) -> Vec<Case> {
    let keys = [("reads", reads), ("dtype", dtype)];
    let size = element_bytes(dtype);
    let dims = move |[b, h, d, window, n, k]: [i64; 6]| {
        let k = if reads == "all" { 1 } else { k };
        named("B H D Wn N K size", [b, h, d, window, n, k, size])
    };
    let random = [
        [9, 2, 40, 128, 300, 70],
        [2, 64, 512, 128, 160, 128],
        [65, 1, 16, 3, 7, 4],
        [66_000, 1, 8, 2, 3, 2],
    ];
    Grid::new(format!("{reads}.{dtype}"), &keys, dims)
        .named(|[b, h, d, window, n, _]| format!("b{b}.{h}x{d}.w{window}.n{n}"))
        .each("", &[[1, 2, 512, 64, 96, 32]], Grid::random)
        .each("", &[[7, 3, 24, 5, 33, 9]], Grid::large)
        .each("", &random, Grid::random)
        .each("edges", &[[22, 4, 64, 16, 80, 72]], Grid::edges)
        .when((reads, dtype) == ("all", "f32"), |grid| {
            grid.each("long", &[[1, 2, 64, 64, 2000, 1]], Grid::random)
        })
        .when(dtype == "bf16", |grid| {
            let sparse = if reads == "all" { 1024 } else { 8192 };
            grid.timed("b1.64x512", [1, 64, 512, 128, sparse, 512])
                .timed("b8.64x512", [8, 64, 512, 128, sparse, 512])
                .timed("b64.64x512", [64, 64, 512, 128, sparse, 512])
                .timed("b1.128x512", [1, 128, 512, 128, sparse, 1024])
        })
        .done()
}

/// Inputs of a case.
struct Rows {
    /// Number of rows, heads, channels, window slots per row, entries per row, and indices per row.
    sizes: [usize; 6],
    dtype: Dtype,
    all: bool,
    q: Vec<f32>,
    /// Vectors of the windows, and vectors of the entries.
    vectors: [Vec<f32>; 2],
    position: Vec<i32>,
    indices: Vec<i32>,
    count: Vec<i32>,
    sinks: Vec<f32>,
    scale: f32,
}

impl Rows {
    fn new(case: &Case, data: &Data) -> Self {
        let sizes @ [b, h, d, window, n, k] = case.sizes(["B", "H", "D", "Wn", "N", "K"]);
        let dtype = case.float_type("dtype");
        let drawn = |name: &str, len: usize| data.normal(&format!("sparse_attention/{name}"), len);
        // Positions in cycles of six rows. Their windows are: just full; one key; a ring that has wrapped several times; padding
        // (no key); half full; a ring that has just wrapped.
        let full = window as i32;
        let positions = [full - 1, 0, 5 * full + 1, -1, full / 2, full];
        let position: Vec<i32> = match b {
            1 => vec![3 * full + 1],
            _ => (0..b).map(|row| positions[row % positions.len()]).collect(),
        };
        let counts = [n, 0, 1, n / 2, n - 1].map(|count| count as i32);
        let count = position.iter().zip(counts.iter().cycle());
        let count = count.map(|(position, count)| if *position < 0 { 0 } else { *count });
        let count: Vec<i32> = count.collect();
        let mut rows = Self {
            sizes,
            dtype,
            all: case.key("reads") == "all",
            q: drawn("q", b * h * d),
            vectors: [drawn("window", b * window * d), drawn("entries", b * n * d)],
            position,
            indices: (0..b).flat_map(|row| indices(row, n, k, data)).collect(),
            count,
            sinks: drawn("sinks", h),
            scale: (d as f32).sqrt().recip(),
        };
        if case.inputs == Inputs::Edges {
            rows.edges();
        }
        rows.vectors
            .iter_mut()
            .chain([&mut rows.q])
            .for_each(|values| round_to(dtype, values));
        rows.poison();
        rows
    }

    /// Sets edge values: scores of up to ten thousand, equal scores, sinks of −∞ and of 88, and a NaN in a key that is read.
    fn edges(&mut self) {
        let [b, h, d, ..] = self.sizes;
        self.sinks[0] = f32::NEG_INFINITY;
        self.sinks[1] = 88.0;
        for row in 0..b {
            let q = &mut self.q[row * h * d..][..h * d];
            match row % 7 {
                1 => q.iter_mut().for_each(|x| *x *= 1e4 / 8.0),
                2 => q.fill(0.0),
                4 => {
                    if let Some((of, at)) = self.keys(row).first() {
                        self.vectors[*of][at * d + 3] = f32::NAN;
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the vectors that a row reads, in order. A vector is a pair: 0 for the window or 1 for the entries, and its index
    /// among the window vectors or entries of all rows.
    fn keys(&self, row: usize) -> Vec<(usize, usize)> {
        let [_, _, _, window, n, k] = self.sizes;
        let Ok(position) = usize::try_from(self.position[row]) else {
            return Vec::new();
        };
        let oldest = (position + 1).saturating_sub(window);
        let recent = (oldest..=position).map(|position| (0, row * window + position % window));
        let entries: Vec<usize> = match self.all {
            true => (0..self.count[row] as usize).collect(),
            false => {
                let indices = self.indices[row * k..][..k].iter();
                indices.filter_map(|index| usize::try_from(*index).ok()).collect()
            }
        };
        recent
            .chain(entries.into_iter().map(|entry| (1, row * n + entry)))
            .collect()
    }

    /// Puts NaN into the vectors that no row reads: a kernel that reads them gives NaN.
    fn poison(&mut self) {
        let [b, _, d, window, n, _] = self.sizes;
        let mut read = [vec![false; b * window], vec![false; b * n]];
        for row in 0..b {
            self.keys(row).into_iter().for_each(|(of, at)| read[of][at] = true);
        }
        for (values, read) in self.vectors.iter_mut().zip(&read) {
            let vectors = values.chunks_exact_mut(d).zip(read);
            vectors
                .filter(|(_, read)| !**read)
                .for_each(|(vector, _)| vector.fill(f32::NAN));
        }
    }

    fn want(&self, row: usize) -> Vec<Bounded> {
        let [_, h, d, ..] = self.sizes;
        if self.position[row] < 0 {
            return vec![Bounded::exact(0.0); h * d];
        }
        let vector = |(of, at): (usize, usize)| self.vectors[of][at * d..][..d].iter().copied();
        let keys: Vec<f32> = self.keys(row).into_iter().flat_map(vector).collect();
        let keys = exact([keys.len() / d, d], &keys).data;
        let part = |keys| KeyRows { keys, values: keys };
        let query = exact([h, d], &self.q[row * h * d..][..h * d]).data;
        let sinks = exact([h], &self.sinks).data;
        attend(&query, &sinks, Sizes::of(d), [part(&keys), part(&[])], |_, _, _| true).0
    }
}

/// Draws the entry indices of a row, in ascending order; some occur twice. Some rows have −1 at the start, at the end, at every
/// third position, or everywhere.
fn indices(row: usize, n: usize, k: usize, data: &Data) -> Vec<i32> {
    let draws = data.words(&format!("sparse_attention/indices/{row}"), k).into_iter();
    let mut all: Vec<i32> = draws.map(|draw| (draw % n as u32) as i32).collect();
    all.sort_unstable();
    let third = k / 3;
    match row % 5 {
        1 => all.fill(-1),
        2 => all[..third].fill(-1),
        3 => all[k - third..].fill(-1),
        4 => all.iter_mut().step_by(3).for_each(|index| *index = -1),
        _ => {}
    }
    all
}
