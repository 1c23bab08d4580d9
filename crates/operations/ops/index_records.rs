//! Scores of a lightning indexer (relevance of each cache entry for a query) over quantized keys. Keys are records in pages of an
//! index cache; each row of the batch is a query and has a page table.
//!
//! For entries w that the row may see, score_w = s_w · Σ_h a_h · max(0, q_h · k_w) over heads h, with a_h = head_weights_h ·
//! scale; the score of all other entries is −∞. Key w of a row is in slot w % 64 of the page `table[row, w / 64]`. The definition
//! without rounding is [`reference::ops::indexer`].
//!
//! - `index_fp8`: the query is E4M3, and its scale is part of the head weights. k_w are the codes of the key, and s_w is the
//!   key's scale.
//! - `index_mxfp4`: the query is bfloat16, which holds a decoded MXFP4 query exactly. k_w is the decoded key, also exact in
//!   bfloat16 (at most 2 significant bits; the smallest value is 2^-128), and s_w = 1. Query and key were rotated by the same
//!   Hadamard matrix before.
//!
//! The order of the sums is part of the definition. Tensor cores sum 128 channels from the first to the last, 32
//! ([`WGMMA_E4M3`]) or 16 ([`WGMMA_BF16`]) per step. Heads h with the same h % 8 / 2 are added in f32 by fma, in ascending
//! order; this gives p_0 to p_3. The score is s_w · ((p_0 + p_1) + (p_2 + p_3)). So the bits of a score depend only on the row
//! and the key, and the test requires equal bits.

use rayon::prelude::*;
use safetensors::Dtype;

use super::data::{bf16_bytes, f32_values};
use super::slots::{encoded, layout, rows};
use super::sums::{Summed, Sums, bf16_factors, e4m3_factors};
use super::{Batch, Buffer, Case, Data, Grid, Inputs, KernelOp, Problem, Scalar};
use ulplab_core::accumulator::{Accumulator, Factor, WGMMA_BF16, WGMMA_E4M3};
use ulplab_core::formats::{E4M3, KvRecord, PAGE, codec};

/// Number of channels of a key.
const CHANNELS: usize = 128;
/// Number of different pages in timed cases. The other pages are copies of these pages, which saves reference scores on the CPU.
const TIMED_PAGES: usize = 64;

pub(super) const INDEX_RECORDS: KernelOp = KernelOp {
    name: "index_records",
    doc: "an indexer's score of every compressed entry that a query may see, from the records of a paged index cache",
    cases: || ["index_fp8", "index_mxfp4"].into_iter().flat_map(of_type).collect(),
    defines_sums: true,
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [b, h, n] = case.sizes(["B", "H", "N"]);
    let record = layout(case)?;
    let (width, stride) = (n.div_ceil(PAGE), record.page_stride(PAGE));
    // Numbers of entries that rows may read: all, half, one, none, or a number near the page size of 64.
    let counts = [n, n / 2, 1, 0, 64, n - 1, 63, 65];
    let count = |row: usize| match case.timed {
        true => n,
        false => counts[row % counts.len()].min(n),
    };
    // Rows whose indices differ by a multiple of 64 share pages, and read equally many entries.
    let distinct = if case.timed { TIMED_PAGES } else { width * b.min(64) };
    let page_of = |row: usize, page: usize| (row * width + page) % distinct;
    let mut contents = contents(case, record, data, distinct)?;
    for row in 0..b.min(64) {
        // Put 255, which decodes to NaN in every format, into entries that a row may not read: a kernel that reads them gives
        // NaN.
        for entry in count(row)..width * PAGE {
            if !case.timed {
                let at = page_of(row, entry / PAGE) * PAGE + entry % PAGE;
                rows(record, at).for_each(|place| contents[place].fill(0xff));
            }
        }
    }
    let mut places: Vec<usize> = (0..b * width).collect();
    let order = data.bytes("index_records/places", 8 * places.len());
    places.sort_unstable_by_key(|at| order[8 * at..][..8].to_vec());
    let mut pages = vec![0xff; b * width * stride];
    let mut table = vec![-1i32; b * width];
    for (at, place) in places.into_iter().enumerate() {
        let (row, page) = (at / width, at % width);
        if page * PAGE < count(row) {
            table[at] = place as i32;
            pages[place * stride..][..stride].copy_from_slice(&contents[page_of(row, page) * stride..][..stride]);
        }
    }
    let (q, q_dtype, factors) = query(case, data)?;
    let mut weights = data.normal("index_records/weights", b * h);
    if case.inputs == Inputs::Edges {
        weights
            .chunks_exact_mut(h)
            .enumerate()
            .for_each(|(row, weights)| match row % 8 {
                2 => weights.iter_mut().for_each(|x| *x = -x.abs()),
                7 => weights[h - 1] = f32::NAN,
                _ => {}
            });
    }
    let scale = ((h * CHANNELS) as f32).sqrt().recip();
    let scoring = Scoring {
        sizes: [b, h, n],
        counts: (0..b).map(count).collect(),
        distinct: (distinct, case.timed),
        keys: keys(record, contents)?,
        query: &factors,
        weights: &weights,
        scale,
        sums: Sums::of(case),
    };
    let output = ("scores", Dtype::F32, [b, n]);
    let judges = scoring.sums.judges(output, &scoring.want(), || scoring.want(), WHY)?;
    let buffers = vec![
        Buffer::input("q", q_dtype, &[b, h, CHANNELS], q),
        Buffer::f32("head_weights", &[b, h], &weights),
        Buffer::input("pages", Dtype::U8, &[b * width, stride], pages),
        Buffer::i32("table", &[b, width], &table),
        Buffer::integers("count", 4, (0..b).map(|row| count(row) as i64)),
    ];
    let batch = Batch::new("B", &["q", "head_weights", "table", "count", "scores"]);
    Ok(Problem {
        scalars: vec![("scale", Scalar::F32(scale))],
        flops: (2 * b * h * CHANNELS * n) as u64,
        batch: Some(batch.pool("table", "pages", b * width)),
        ..Problem::new(buffers, judges)
    })
}

fn of_type(record: &'static str) -> Vec<Case> {
    let random = [
        [8, 4, 63],
        [9, 5, 1],
        [33, 1, 65],
        [3, 128, 200],
        // Neither the number of heads nor the number of entries of this shape is a multiple of a tile.
        [65, 72, 70],
        [128, 64, 64],
        [1, 64, 5000],
        // With this shape, each warpgroup has several rows, and more pages than pipeline stages.
        [4400, 64, 2],
    ];
    Grid::of(record, &[("record", record)], ["B", "H", "N"])
        .named(|[b, h, n]| format!("b{b}.h{h}.{n}"))
        .each("", &[[1, 64, 64], [2, 64, 130]], Grid::random)
        .each("", &[[7, 64, 99]], Grid::large)
        .each("", &random, Grid::random)
        .each("edges", &[[17, 64, 200], [17, 6, 130]], Grid::edges)
        .each("", &[[1, 64, 262_144], [8, 64, 262_144]], Grid::timed)
        .done()
}

const WHY: &str = "keys are decoded exactly, the order of the sums is defined, tensor cores sum by a known rule \
                   (crates/core/accumulator.rs), and f32 is rounded to nearest even, so every bit is defined; any NaN matches any \
                   other; entries that a row may not see are -infinity";

/// Draws the query `[B, H, 128]`. Returns its bytes, its element type, and its numbers as [`Factor`]s.
fn query(case: &Case, data: &Data) -> Result<(Vec<u8>, Dtype, Vec<Factor>), String> {
    let (rows, of_row) = (case.dim("B"), case.dim("H") * CHANNELS);
    let edges = case.inputs == Inputs::Edges;
    let mut values = data.normal("index_records/q", rows * of_row);
    if case.key("record") == "index_fp8" {
        let mut codes: Vec<u8> = values.par_iter().map(|x| E4M3.encode(120.0 * x) as u8).collect();
        let random = data.bytes("index_records/q/codes", if edges { codes.len() } else { 0 });
        for (row, random) in random.chunks_exact(of_row).enumerate() {
            let codes = &mut codes[row * of_row..][..of_row];
            let pairs = codes.iter_mut().zip(random);
            match row % 8 {
                // All query values are negative, so all products with a nonnegative key are negative.
                1 => pairs.for_each(|(code, _)| *code |= 0x80),
                3 => codes[of_row / 2] = 0x7f,
                4 => pairs.for_each(|(code, bits)| *code = bits & 0x87),
                5 => pairs.for_each(|(code, bits)| *code = bits & 0x80),
                6 => pairs.for_each(|(code, bits)| *code = bits & 0x80 | 0x7e),
                _ => {}
            }
        }
        let factors = e4m3_factors(&codes);
        return Ok((codes, Dtype::U8, factors));
    }
    // Round all values to MXFP4. Below, rows with an even index get these values, which an MXFP4 quantizer can produce.
    let mut quantized = values.clone();
    codec("index_mxfp4")?.round(&mut quantized, CHANNELS);
    for (row, values) in values.chunks_exact_mut(of_row).enumerate() {
        match row % 8 {
            1 if edges => values.iter_mut().for_each(|x| *x = -x.abs()),
            3 if edges => values[of_row / 2] = f32::NAN,
            4 if edges => values.iter_mut().for_each(|x| *x *= 2f32.powi(-127)),
            5 if edges => values.fill(0.0),
            6 if edges => values[3] = f32::INFINITY,
            // In this row, make query values large: products with keys of the smallest scale then have ordinary magnitudes.
            0 if edges && row > 0 => values.iter_mut().for_each(|x| *x *= 2f32.powi(100)),
            kind if kind % 2 == 0 => values.copy_from_slice(&quantized[row * of_row..][..of_row]),
            _ => {}
        }
    }
    Ok((bf16_bytes(&values), Dtype::BF16, bf16_factors(&values)))
}

/// Draws the contents of `pages` pages of keys. Edge cases have keys of random codes and scales, keys of zeros of both signs, and
/// keys without negative channels.
fn contents(case: &Case, record: &KvRecord, data: &Data, pages: usize) -> Result<Vec<u8>, String> {
    let mut values = data.normal("index_records/keys", pages * PAGE * CHANNELS);
    if case.inputs == Inputs::Edges {
        let kinds = values.chunks_exact_mut(CHANNELS).zip((0..8).cycle());
        kinds
            .filter(|(_, kind)| *kind == 4)
            .for_each(|(key, _)| key.iter_mut().for_each(|x| *x = x.abs()));
    }
    let tokens = codec(record.name)?.encode(&values, CHANNELS);
    let mut contents = tokens.part("pages").to_vec();
    if case.inputs != Inputs::Edges {
        return Ok(contents);
    }
    let random = data.bytes("index_records/keys/codes", contents.len());
    for slot in 0..pages * PAGE {
        let [codes, scales] = [0, 1].map(|region| rows(record, slot).nth(region).expect("codes and scales"));
        let of_fp8 = record.name == "index_fp8";
        let signs = if of_fp8 { 0x80 } else { 0x88 };
        for at in codes.clone() {
            let bits = random[at];
            contents[at] = match slot % 8 {
                1 if of_fp8 && bits & 0x7f == 0x7f => bits & 0x80 | 0x7e,
                1 | 5 => bits,
                2 => bits & signs,
                _ => contents[at],
            };
        }
        if slot % 8 == 3 || slot % 8 == 5 {
            contents[scales.clone()].copy_from_slice(&random[scales]);
        } else if slot % 8 == 6 {
            // Set extreme scales: for FP8 keys 2^-127, which is subnormal in f32; for MXFP4 keys 2^-127, 2^-126, 1 and 2^127.
            let least = match slot / 8 % 2 {
                _ if of_fp8 => [0, 0, 0x40, 0],
                0 => [0, 1, 127, 254],
                // Use the smallest scale for all four blocks, so that terms of larger blocks do not hide an error.
                _ => [0; 4],
            };
            contents[scales].copy_from_slice(&least);
        } else if slot % 16 == 12 && !of_fp8 {
            // Use a NaN scale, and nonzero codes of one sign. If a kernel decodes the scale as infinity, its sum is then infinite
            // instead of NaN, and it fails; with codes of both signs, infinities of both signs would also give NaN.
            contents[codes].iter_mut().for_each(|codes| *codes |= 0x11);
            contents[scales][0] = 255;
        }
    }
    Ok(contents)
}

/// Returns the keys as [`Factor`]s for the tensor-core sums, the scale of each key, and the rounding rule of the tensor cores.
fn keys(record: &KvRecord, pages: Vec<u8>) -> Result<(Vec<Factor>, Vec<f32>, &'static Accumulator), String> {
    let slots = pages.len() / record.page_stride(PAGE) * PAGE;
    if record.name == "index_fp8" {
        let bytes = |slot: usize, region: usize| &pages[rows(record, slot).nth(region).expect("codes and scales")];
        let codes: Vec<u8> = (0..slots).flat_map(|slot| bytes(slot, 0).to_vec()).collect();
        let scales = (0..slots).flat_map(|slot| f32_values(bytes(slot, 1), Dtype::F32));
        return Ok((e4m3_factors(&codes), scales.collect(), &WGMMA_E4M3));
    }
    let mut values = vec![0.0; slots * CHANNELS];
    codec(record.name)?.decode(&encoded(record, pages), &mut values);
    Ok((bf16_factors(&values), vec![1.0; slots], &WGMMA_BF16))
}

/// Inputs from which the expected scores are computed.
struct Scoring<'a> {
    /// Number of rows, heads and entries.
    sizes: [usize; 3],
    /// Number of entries that each row may read.
    counts: Vec<usize>,
    /// Number of different pages; the flag is true if every other page is a copy of one of them.
    distinct: (usize, bool),
    /// Keys as factors, the scale of each key, and the rounding rule of the tensor cores.
    keys: (Vec<Factor>, Vec<f32>, &'static Accumulator),
    query: &'a [Factor],
    weights: &'a [f32],
    scale: f32,
    sums: Sums,
}

impl Scoring<'_> {
    /// Expected scores `[B, N]`; −∞ for entries that a row may not read.
    fn want<N: Summed>(&self) -> Vec<N> {
        let ([rows, _, n], (distinct, repeats)) = (self.sizes, self.distinct);
        let width = n.div_ceil(PAGE);
        let repeated = distinct.min(width);
        // If pages repeat, the scores of each row for each different page; else empty.
        let found: Vec<Vec<N>> = match repeats {
            true => (0..rows * repeated)
                .into_par_iter()
                .map(|at| self.scores(at / repeated, at % repeated))
                .collect(),
            false => Vec::new(),
        };
        let mut want = vec![N::NEG_INFINITY; rows * n];
        want.par_chunks_exact_mut(n).enumerate().for_each(|(row, want)| {
            let pages = want[..self.counts[row]].par_chunks_mut(PAGE).enumerate();
            pages.for_each(|(page, want)| match repeats {
                true => want.copy_from_slice(&found[row * repeated + page % repeated][..want.len()]),
                false => want.copy_from_slice(&self.scores(row, page)),
            });
        });
        want
    }

    /// Returns the scores of a query row for the keys of one page: for the keys that the row may read or, if pages repeat, for
    /// all keys.
    fn scores<N: Summed>(&self, row: usize, page: usize) -> Vec<N> {
        let ([_, heads, n], (distinct, repeats)) = (self.sizes, self.distinct);
        let seen = match repeats {
            true => PAGE,
            false => (self.counts[row] - page * PAGE).min(PAGE),
        };
        let query = &self.query[row * heads * CHANNELS..][..heads * CHANNELS];
        let weights = &self.weights[row * heads..][..heads];
        let (keys, scales, rule) = &self.keys;
        let first = (row * n.div_ceil(PAGE) + page) % distinct * PAGE;
        let score = |slot: usize| {
            let key = &keys[slot * CHANNELS..][..CHANNELS];
            let mut parts = [N::default(); 4];
            for (head, (query, weight)) in query.chunks_exact(CHANNELS).zip(weights).enumerate() {
                let positive = N::dot(rule, self.sums, key, query).positive();
                let part = &mut parts[head % 8 / 2];
                *part = (N::from_f64(f64::from(*weight)) * N::from_f64(f64::from(self.scale))).mul_add(positive, *part);
            }
            ((parts[0] + parts[1]) + (parts[2] + parts[3])) * N::from_f64(f64::from(scales[slot]))
        };
        (first..first + seen).map(score).collect()
    }
}
