//! Attention of a decode step over quantized KV records. One query per sequence attends to a window of recent keys and to
//! compressed entries, in one softmax with a sink. Keys and entries are records in pages, in one of the seven layouts of
//! `docs/formats.md`.
//!
//! o = Σ_j p_j · k_j, p_j = exp(s_j) / (Σ_i exp(s_i) + exp(sink)), s_j = scale · q · k_j. Keys are also the values. k_j are the
//! decoded numbers of a record, rounded to bfloat16 (which changes them only for the f32 scales of `v32_fp8`). The definition is
//! [`reference::ops::attention`], computed in f64. The output is 0 for a row without keys, and for a head whose sink is +∞.
//!
//! A row reads the keys of its window, then its entries. Window and entries each have a pool of pages, shared by all rows or
//! separate for each row. With a list of slots, a row reads the first `count` of the list and skips negative slots; without a
//! list, it reads the slots 0 to `count` − 1.
//!
//! Kernels with bfloat16 outputs may round exp(s_j − maximum) to bfloat16 before the second product, but must sum the unrounded
//! values.

use rayon::prelude::*;
use safetensors::Dtype;

use super::data::{round_to, round_to_bf16};
use super::grid::{Grid, element_bytes, named};
use super::judge::{Judge, UNIT, bf16_error};
use super::slots::{byte_range, encoded, layout, rows};
use super::{Batch, Buffer, Case, Data, Inputs, KernelOp, Problem, Scalar};
use ulplab_core::formats::{KvRecord, PAGE, RECORDS, Scale, codec};

/// Number of channels of a query and of a key.
const CHANNELS: usize = 512;
/// Unit roundoff of bfloat16, 2^-8: half the spacing of bfloat16 numbers at 1.
const BF16_UNIT: f64 = 1.0 / 256.0;

pub(super) const RECORD_ATTENTION: KernelOp = KernelOp {
    name: "record_attention",
    doc: "attention of one query of each sequence over KV records: a window and compressed entries, with a sink",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let records = RECORDS.iter().filter(|record| record.dim == CHANNELS);
    records.flat_map(|record| of_type(record)).collect()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [b, h, window, k] = case.sizes(["B", "H", "Wn", "K"]);
    let record = layout(case)?;
    let dtype = case.float_type("dtype");
    let edges = case.inputs == Inputs::Edges;
    let mut q = data.normal("record_attention/q", b * h * CHANNELS);
    // Raise each sink to about the weight of all keys together: a wrong treatment of sinks then changes the output clearly.
    let mut sinks = data.normal("record_attention/sinks", h);
    sinks.iter_mut().for_each(|sink| *sink += ((window + k) as f32).ln());
    if edges {
        for (sink, edge) in sinks.iter_mut().zip([f32::NEG_INFINITY, 88.0, f32::INFINITY]) {
            *sink = edge;
        }
        let rows = q.chunks_exact_mut(h * CHANNELS).enumerate();
        rows.for_each(|(row, q)| match row % 7 {
            // Give large scores to rows with one key and to rows with all keys: exp overflows unless the maximum score is
            // subtracted.
            1 | 6 => q.iter_mut().for_each(|x| *x *= 1e4 / 8.0),
            2 => q.fill(0.0),
            _ => {}
        });
    }
    round_to(dtype, &mut q);
    let recent = Part::new(("window", "window_own", "window_listed"), case, data, record, window)?;
    let entries = Part::new(("entries", "own", "listed"), case, data, record, k)?;
    let scale = (CHANNELS as f32).sqrt().recip();
    let heads: Vec<Head> = (0..b * h)
        .into_par_iter()
        .map(|at| {
            let keys: Vec<&[f32]> = recent.keys(at / h).chain(entries.keys(at / h)).collect();
            attend(&q[at * CHANNELS..][..CHANNELS], &keys, (sinks[at % h], scale), dtype)
        })
        .collect();
    let shape = [b, h, CHANNELS];
    let read: usize = (0..b)
        .map(|row| recent.keys(row).count() + entries.keys(row).count())
        .sum();
    let buffers = vec![
        Buffer::floats("q", dtype, &shape, &q),
        recent.pages("window_pages", record),
        Buffer::i32("window_slots", &[b, window], &recent.slots),
        Buffer::i32("window_count", &[b], &recent.count),
        entries.pages("pages", record),
        Buffer::i32("slots", &[b, k], &entries.slots),
        Buffer::i32("count", &[b], &entries.count),
        Buffer::f32("sinks", &[h], &sinks),
    ];
    let mut batch = Batch::new("B", &["q", "window_slots", "window_count", "slots", "count", "out"]);
    for (name, slots, part) in [("window_pages", "window_slots", &recent), ("pages", "slots", &entries)] {
        batch = match (part.own, part.listed) {
            (true, _) => batch.along(0, &[name]),
            (false, true) => batch.pool(slots, name, part.pool),
            // All rows read the same slots of one shared pool: repeated rows need no other pool.
            (false, false) => batch,
        };
    }
    let all = |of: fn(&Head) -> &Vec<f64>| heads.iter().flat_map(of).copied().collect::<Vec<f64>>();
    let (want, bounds) = (all(|head| &head.want), all(|head| &head.bounds));
    let mut judges = Vec::new();
    if dtype == Dtype::BF16 && !edges {
        let groups = (0..(b * h) as u32).collect();
        let added = heads.iter().map(|head| head.energy).collect();
        let (want, by) = (want.clone(), (groups, added));
        judges.push(Judge::rms("out", dtype, &shape, want, by, BF16_UNIT, WHY_RMS));
    }
    judges.push(Judge::each("out", dtype, &shape, want, bounds, WHY));
    let size = dtype.bitsize() / 8;
    let moved = read * (record.bytes + 4) + 2 * b * h * CHANNELS * size;
    Ok(Problem {
        scalars: vec![("scale", Scalar::F32(scale))],
        bytes: moved as u64,
        flops: (4 * read * h * CHANNELS) as u64,
        batch: Some(batch),
        ..Problem::new(buffers, judges)
    })
}

const WHY: &str = "a score errs by at most (D + 32) units of 2^-24 of the sum of its products' magnitudes, in any order of the \
                   sum and with terms cut by tensor cores; its exponential by that, by 4 units of the score and the maximum, and \
                   by 2^-21; sums of n keys by 2 (n + 64) units; where bfloat16 is stored, exponentials may be rounded to it, \
                   and half a step is added";
const WHY_RMS: &str = "roundings of exponentials and results to bfloat16 are independent of each other: their squares add up, \
                       each at most 2^-8 of what is rounded";

/// Shape of a case: the numbers of rows, heads, window slots per row and entry slots per row; true if each row has its own
/// pools; and, for the window and for the entries, true if a list names the slots.
type Shape = ([i64; 4], bool, [bool; 2]);

fn of_type(record: &'static KvRecord) -> Vec<Case> {
    let listed = |sizes| (sizes, false, [true, true]);
    let name = |([b, h, window, k], own, [window_listed, listed]): Shape| {
        let list = |listed| if listed { "" } else { ".first" };
        let pool = if own { ".own" } else { "" };
        let (window_list, list) = (list(window_listed), list(listed));
        format!("b{b}.h{h}.w{window}{window_list}.k{k}{list}{pool}")
    };
    let grid = |dtype: &'static str| {
        let dims = move |([b, h, window, k], own, listed): Shape| {
            let page = PAGE as i64;
            let pages = |places: i64| if own { (places + page - 1) / page } else { 0 };
            let names = "B H Wn K window_own own window_listed listed size";
            let [window_listed, listed] = listed.map(i64::from);
            let (window_own, own, size) = (pages(window), pages(k), element_bytes(dtype));
            named(names, [b, h, window, k, window_own, own, window_listed, listed, size])
        };
        let keys = [("record", record.name), ("dtype", dtype)];
        Grid::new(format!("{}.{dtype}", record.name), &keys, dims)
            .named(name)
            .each("", &[([7, 3, 5, 9], true, [false, true])], Grid::large)
            .each(
                "",
                &[([1, 2, 64, 33], true, [false, false]), listed([9, 2, 128, 70])],
                Grid::random,
            )
            // Pools of window and entries have equally many pages, so that repeated rows make both large.
            .each("", &[listed([3, 2, 64, 60])], Grid::large)
    };
    let wide = [
        listed([1, 64, 128, 500]),
        listed([2, 128, 96, 160]),
        listed([65, 1, 3, 4]),
        ([33, 64, 16, 65], true, [false, true]),
        ([3, 70, 64, 1], false, [true, false]),
        ([2, 2, 128, 4000], true, [false, false]),
    ];
    let edges = [listed([22, 4, 16, 72]), ([15, 65, 64, 130], true, [false, true])];
    let timed = match record.name {
        "v4_fp8" => [1, 8, 64]
            .into_iter()
            .flat_map(|b| [listed([b, 64, 128, 512]), listed([b, 128, 128, 1024])])
            .chain([listed([1, 64, 128, 8192])])
            .collect(),
        _ => vec![listed([64, 64, 128, 512])],
    };
    let bf16 = grid("bf16")
        .each("", &wide, Grid::random)
        .each("edges", &edges, Grid::edges)
        .each("", &timed, Grid::timed);
    let f32 = grid("f32").each("edges", &edges, Grid::edges);
    [bf16.done(), f32.done()].concat()
}

/// One of the two parts of the keys: the window or the entries, for all rows.
struct Part {
    places: usize,
    /// True if each row has its own pages.
    own: bool,
    listed: bool,
    bytes: Vec<u8>,
    /// Number of slots in a pool.
    pool: usize,
    slots: Vec<i32>,
    count: Vec<i32>,
    /// Elements of the pool, decoded and rounded to bfloat16 as kernels do it.
    decoded: Vec<f32>,
}

impl Part {
    fn new(
        (name, own, listed): (&str, &str, &str),
        case: &Case,
        data: &Data,
        record: &'static KvRecord,
        places: usize,
    ) -> Result<Self, String> {
        let (rows_of_batch, window) = (case.dim("B"), name == "window");
        let (own, listed) = (case.dim(own) > 0, case.dim(listed) > 0);
        // Rows whose indices differ by a multiple of 64 read the same slots.
        let pools = if own { rows_of_batch } else { 1 };
        let shared = if own { 1 } else { rows_of_batch.min(64) };
        let pool = (places * if listed { shared } else { 1 }).div_ceil(PAGE) * PAGE;
        let mut values = data.normal(&format!("record_attention/{name}"), pools * pool * CHANNELS);
        // Give different scales to neighbouring blocks of a token, and to the same block of neighbouring tokens.
        for (at, block) in values.chunks_exact_mut(16).enumerate() {
            let by = 2f32.powi(((at / 32 + at % 32) % 5) as i32 - 2);
            block.iter_mut().for_each(|x| *x *= by);
        }
        let codec = codec(record.name)?;
        let mut bytes = codec.encode(&values, CHANNELS).part("pages").to_vec();
        let counts = match window {
            // Number of window slots that a row reads, in cycles of six rows: all, one, half, none (a padding row), all, all but
            // one. The second list is for the entries.
            true => [places, 1, places.div_ceil(2), 0, places, places.saturating_sub(1)],
            false => [places, 0, 1, 0, places / 2, places.saturating_sub(1)],
        };
        let count = |row: usize| if case.timed { places } else { counts[row % counts.len()] };
        let drawn = data.words(
            &format!("record_attention/{name}/slots"),
            rows_of_batch.min(64) * places,
        );
        let slot = &|row: usize, place: usize| match row % 5 {
            0 if window && !case.timed && place % 4 == 1 => -1,
            // A window is a ring of consecutive slots. Slots of entries are random, and some occur twice.
            _ if window => ((row * places + (place + 3) % places) % pool) as i32,
            2 if !case.timed && place.is_multiple_of(3) => -1,
            4 if !case.timed && place < places / 2 => -1,
            _ => (drawn[row * places + place] as usize % pool) as i32,
        };
        let of_row = |row: usize| (0..places).map(move |place| slot(row % 64, place));
        let mut part = Self {
            places,
            own,
            listed,
            bytes: Vec::new(),
            pool,
            slots: (0..rows_of_batch).flat_map(of_row).collect(),
            count: (0..rows_of_batch).map(|row| count(row) as i32).collect(),
            decoded: Vec::new(),
        };
        // Fill slots that no row reads with 0xff, which decodes to NaN in every record format: a kernel that reads them gives
        // NaN.
        let mut read = vec![false; pools * pool];
        (0..rows_of_batch).for_each(|row| part.read(row).for_each(|slot| read[slot] = true));
        let nan = (0..read.len()).filter(|slot| !read[*slot]);
        // In edge cases, also set the first key of row 4 of every seven rows to NaN.
        let edge = |kind: usize| {
            let of_kind =
                (0..rows_of_batch).filter(move |row| case.inputs == Inputs::Edges && window && row % 7 == kind);
            of_kind.filter_map(|row| part.read(row).next()).collect::<Vec<usize>>()
        };
        for slot in nan.chain(edge(4)) {
            rows(record, slot).for_each(|place| bytes[place].fill(0xff));
        }
        // Set edge values in cycles of seven rows. Row 2 has a query of zeros: set a scale of a key to 2^8, so that the scale
        // overflows if a kernel multiplies it by 2^120 first. For row 5, put a NaN into only the second half of a key.
        edge(2)
            .into_iter()
            .for_each(|slot| large_scale(record, slot, &mut bytes));
        edge(5).into_iter().for_each(|slot| late_nan(record, slot, &mut bytes));
        part.decoded = vec![0.0; pools * pool * CHANNELS];
        codec.decode(&encoded(record, bytes.clone()), &mut part.decoded);
        round_to_bf16(&mut part.decoded);
        part.bytes = bytes;
        Ok(part)
    }

    /// Returns the slots that a row reads, as indices into the concatenated pools of all rows.
    fn read(&self, row: usize) -> impl Iterator<Item = usize> {
        let first = if self.own { row * self.pool } else { 0 };
        let slot = move |place: usize| match self.listed {
            true => usize::try_from(self.slots[row * self.places + place]).ok(),
            false => Some(place),
        };
        (0..self.count[row] as usize)
            .filter_map(slot)
            .map(move |slot| first + slot)
    }

    fn keys(&self, row: usize) -> impl Iterator<Item = &[f32]> {
        self.read(row).map(|slot| &self.decoded[slot * CHANNELS..][..CHANNELS])
    }

    fn pages(&self, name: &'static str, record: &KvRecord) -> Buffer {
        let stride = record.page_stride(PAGE);
        let pools = if self.own { self.count.len() } else { 1 };
        let shape = match self.own {
            true => vec![pools, self.pool / PAGE, stride],
            false => vec![self.pool / PAGE, stride],
        };
        Buffer::input(name, Dtype::U8, &shape, self.bytes.clone())
    }
}

/// Sets the first scale of a key to 2^8 if the scales are E8M0.
fn large_scale(record: &KvRecord, slot: usize, bytes: &mut [u8]) {
    if let Some((_, Scale::E8m0(_), place)) = record.segments[0].scales {
        bytes[byte_range(record, place, slot).start] = 135;
    }
}

/// Puts a NaN into the second half of a key: into a code, or into the last scale if codes have four bits.
fn late_nan(record: &KvRecord, slot: usize, bytes: &mut [u8]) {
    let segment = &record.segments[0];
    let codes = byte_range(record, segment.codes, slot);
    match segment.scales {
        Some((_, scale, place)) if segment.element.bits == 4 => {
            let last = byte_range(record, place, slot).end - 1;
            bytes[last] = if matches!(scale, Scale::E8m0(_)) { 255 } else { 0x7f };
        }
        Some(_) => bytes[codes.start + CHANNELS / 2 + 70] = 0x7f,
        None => bytes[codes.end - 2..codes.end].fill(0xff),
    }
}

/// Expected output of one head of one row, with error bounds.
pub struct Head {
    /// Expected values, one per channel.
    pub want: Vec<f64>,
    /// Error bounds, one per channel.
    pub bounds: Vec<f64>,
    /// Σ (p·k)² over keys and channels, where p is the softmax probability of a key and k is its vector, which is also the value.
    /// If a kernel rounds p before it multiplies p by the value, its mean square error grows with this sum.
    energy: f64,
}

/// Computes the attention of one head from a query, the keys that the head reads, and its sink. The output is stored as `dtype`.
pub fn attend(q: &[f32], keys: &[&[f32]], (sink, scale): (f32, f32), dtype: Dtype) -> Head {
    let (sink, scale) = (f64::from(sink), f64::from(scale));
    // Returns the score of a key, and its error bound.
    let score = |key: &&[f32]| {
        let products = q.iter().zip(*key).map(|(q, k)| f64::from(*q) * f64::from(*k));
        let [sum, size] = products.fold([0.0; 2], |[sum, size], x| [sum + x, size + x.abs()]);
        (sum * scale, size * scale * (CHANNELS + 32) as f64 * UNIT)
    };
    let scores: Vec<(f64, f64)> = keys.iter().map(score).collect();
    let top = scores.iter().map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max);
    let top = if top.is_finite() { top } else { 0.0 };
    let error = |score: f64, of_sum: f64| of_sum + 4.0 * UNIT * (score.abs() + top.abs()) + 2f64.powi(-21);
    let of_sink = if sink.is_finite() { error(sink, 0.0) } else { 0.0 };
    let worst = scores
        .iter()
        .fold(of_sink, |worst, (score, of_sum)| worst.max(error(*score, *of_sum)));
    let denominator = scores.iter().map(|(score, _)| (score - top).exp()).sum::<f64>() + (sink - top).exp();
    let rounded = if dtype == Dtype::BF16 { BF16_UNIT } else { 0.0 };
    let summed = 2.0 * (keys.len() + 64) as f64 * UNIT;
    let mut head = Head {
        want: vec![0.0; CHANNELS],
        bounds: vec![0.0; CHANNELS],
        energy: 0.0,
    };
    let mut sizes = vec![0.0f64; CHANNELS];
    for (key, (score, of_sum)) in keys.iter().zip(&scores) {
        let p = if denominator == 0.0 {
            0.0
        } else {
            (score - top).exp() / denominator
        };
        let relative = (error(*score, *of_sum) + worst).exp_m1() + rounded + summed;
        // Exponentials below 2^-126 are subnormal, and a kernel may flush them to 0.
        let flushed = 2f64.powi(-126);
        for (at, k) in key.iter().enumerate() {
            let k = f64::from(*k);
            head.want[at] += p * k;
            head.bounds[at] += k.abs() * (p * relative + flushed);
            head.energy += (p * k).powi(2);
            sizes[at] = sizes[at].max(k.abs());
        }
    }
    for ((bound, want), size) in head.bounds.iter_mut().zip(&head.want).zip(&sizes) {
        // The output and its expected value are weighted means of the keys, so both lie between the keys' extremes: they differ
        // by at most twice the largest magnitude.
        let before = bound.min(2.0 * size);
        *bound = match dtype {
            Dtype::BF16 => bf16_error(*want, before),
            _ => before + UNIT * want.abs(),
        };
    }
    head
}
