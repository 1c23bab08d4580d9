//! Slots of tokens in a pool of pages with KV-cache records.

use rayon::prelude::*;
use safetensors::Dtype;

use super::blocks::tie_by_seven;
use super::data::Data;
use super::{Buffer, Case, Inputs};
use ulplab_core::formats::{Encoded, KvRecord, PAGE, Part, Place, RECORDS};

/// Finds the record format of a case.
pub(super) fn layout(case: &Case) -> Result<&'static KvRecord, String> {
    record_named(case.key("record"))
}

/// Finds a record format by name.
///
/// # Errors
/// Returns an error if the name is unknown.
pub fn record_named(name: &str) -> Result<&'static KvRecord, String> {
    let found = RECORDS.iter().copied().find(|record| record.name == name);
    found.ok_or_else(|| format!("no record '{name}'"))
}

/// Name of the site (a named tensor of the model) whose vectors are stored in this record format.
pub(super) fn site_of(record: &KvRecord) -> &'static str {
    match record.dim {
        512 => "layers.*.attention.kv.window",
        _ => "layers.*.attention.indexer.key",
    }
}

/// Slots of tokens in a pool; no two tokens share a slot.
pub(super) struct Slots {
    pub of: Vec<i64>,
    /// Number of pages in the pool.
    pub pages: usize,
}

impl Slots {
    /// Draws slots from a pool with twice as many slots as tokens. In edge cases every fifth token has no slot (−1).
    pub fn new(case: &Case, data: &Data) -> Self {
        let tokens = case.dim("T");
        let pages = (2 * tokens).div_ceil(PAGE);
        let keys = data.bytes("slots", 8 * pages * PAGE);
        let keys = keys.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut shuffled: Vec<(u64, i64)> = keys.zip(0..).collect();
        shuffled.par_sort_unstable();
        let absent = |token: usize| case.inputs == Inputs::Edges && token % 5 == 2;
        let slots = shuffled[..tokens].iter().enumerate();
        let slots = slots.map(|(token, (_, slot))| if absent(token) { -1 } else { *slot });
        Self {
            of: slots.collect(),
            pages,
        }
    }

    pub fn buffer(&self, case: &Case) -> Buffer {
        Buffer::integers("slots", case.dim("slot_bytes"), self.of.iter().copied())
    }

    /// Copies tokens from the buffer `dense`, which has them in consecutive slots, to their own slots in `pages`.
    pub fn scatter(&self, record: &KvRecord, dense: &[u8], pages: &mut [u8]) {
        for (token, slot) in self.taken() {
            for (from, to) in rows(record, token).zip(rows(record, slot)) {
                pages[to].copy_from_slice(&dense[from]);
            }
        }
    }

    /// Inverse of `scatter`: copies tokens from their slots to consecutive slots. Tokens without a slot become zeros.
    pub fn gather(&self, record: &KvRecord, pages: &[u8]) -> Vec<u8> {
        let mut dense = vec![0; self.of.len().div_ceil(PAGE) * record.page_stride(PAGE)];
        for (token, slot) in self.taken() {
            for (from, to) in rows(record, slot).zip(rows(record, token)) {
                dense[to].copy_from_slice(&pages[from]);
            }
        }
        dense
    }

    /// Indices of the tokens that have a slot, each with its slot.
    pub fn taken(&self) -> impl Iterator<Item = (usize, usize)> {
        let taken = |(token, slot): (usize, &i64)| usize::try_from(*slot).ok().map(|slot| (token, slot));
        self.of.iter().enumerate().filter_map(taken)
    }
}

/// Returns the byte range, within all pages, of one field (`place`) of the token in this slot.
pub(super) fn byte_range(record: &KvRecord, place: Place, slot: usize) -> std::ops::Range<usize> {
    let first = slot / PAGE * record.page_stride(PAGE) + record.offset(place, slot % PAGE, PAGE);
    first..first + place.bytes
}

/// Byte ranges of all bytes of a token: one range in each region of the page.
pub fn rows(record: &KvRecord, slot: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    record.regions.iter().enumerate().map(move |(region, &bytes)| {
        let place = Place {
            region,
            offset: 0,
            bytes,
        };
        byte_range(record, place, slot)
    })
}

/// Wraps the bytes of pages in the codec's [`Encoded`] type.
pub fn encoded(record: &KvRecord, bytes: Vec<u8>) -> Encoded {
    let stride = record.page_stride(PAGE);
    let pages = bytes.len() / stride;
    Encoded {
        rows: pages * PAGE,
        cols: record.dim,
        parts: vec![Part {
            name: "pages",
            dtype: Dtype::U8,
            shape: vec![pages, stride],
            bytes,
        }],
    }
}

/// Returns the KV vectors of a case: random vectors with different magnitudes by token and channel, or activations of the
/// model.
pub(super) fn vectors(case: &Case, data: &Data, dim: usize) -> Result<Vec<f32>, String> {
    let tokens = case.dim("T");
    let Inputs::Site(pattern) = case.inputs else {
        let mut values = data.normal("vectors", tokens * dim);
        values.par_chunks_mut(dim).enumerate().for_each(|(token, row)| {
            for (channel, x) in row.iter_mut().enumerate() {
                *x *= 2f32.powi((token * 7 % 13) as i32 - 6 + (channel % 37 == 5) as i32 * 5);
            }
        });
        if case.inputs == Inputs::Edges {
            edges(&mut values, dim);
        }
        return Ok(values);
    };
    data.site_rows(pattern, tokens, dim)
}

/// Puts values that are difficult for scales and casts into every second row: ties, zeros, subnormals, one large element, NaN,
/// and infinities.
fn edges(values: &mut [f32], dim: usize) {
    for (token, row) in values
        .chunks_exact_mut(dim)
        .enumerate()
        .filter(|(token, _)| token % 2 == 1)
    {
        match token / 2 % 8 {
            0 => row.fill(0.0),
            1 if token / 16 % 2 == 0 => row
                .iter_mut()
                .zip((0..16).cycle())
                .for_each(|(x, i)| *x = (i - 8) as f32 * 0.25),
            1 => (0..dim).for_each(|i| row[i] = tie_by_seven(i)),
            2 => row.iter_mut().for_each(|x| *x *= 2f32.powi(-126)),
            3 => row
                .iter_mut()
                .for_each(|x| *x = x.signum() * f32::from_bits(0x7f7f_0000)),
            4 => row[token % dim] = f32::NAN,
            5 => row[token % dim] = f32::NEG_INFINITY,
            6 => row.iter_mut().for_each(|x| *x *= 2f32.powi(-140)),
            _ => {
                row.fill(-0.0);
                row[token % dim] = 3e38;
            }
        }
    }
}
