//! Keys and queries of the indexer, which scores the compressed entries that a sparse layer may attend to. Index keys are stored
//! as records in pages; index queries are quantized to the same code format. The scores are those of
//! [`index_records`](ulplab_operations::ops::index_records). Tensor cores sum the products by a rule that is known to the bit, so
//! only the head weights add an error.
//!
//! With the format `index_fp8`, a query is E4M3 with a power of two as the scale of each head, and a key is E4M3 with an f32
//! scale. With `index_mxfp4`, a Hadamard matrix rotates keys and queries before they become MXFP4. Keys, like all records, are
//! rounded to bfloat16 before they are stored; queries are not.

use std::sync::Arc;

use reference::ops::top_k::top_k;
use reference::paths::deepseek_v4::{CompressedParts, Config, LayerType};
use reference::{Bounded, Choice, Real, Tensor};
use safetensors::Dtype;

use super::records::Pages;
use super::state::pool;
use ulplab_core::accumulator::{Accumulator, Factor, WGMMA_BF16, WGMMA_E4M3};
use ulplab_core::formats::{Format, GlobalScale, PAGE, hadamard};
use ulplab_operations::ops::blocks::Blocks;
use ulplab_operations::ops::data::f32_values;
use ulplab_operations::ops::slots::{encoded, rows};
use ulplab_operations::ops::sums::{bf16_factors, e4m3_factors};
use ulplab_operations::ops::{Buffer, Data};

/// Names of the record formats of index keys.
pub const INDEX_RECORDS: [&str; 2] = ["index_fp8", "index_mxfp4"];
/// Block formats of queries, one for each of [`INDEX_RECORDS`]. A head is one block in the first format, four blocks in the
/// second.
const QUERIES: [&str; 2] = ["fp8_b128", "mxfp4"];

/// Pages with the index keys (as records) of all sequences of the batch.
#[derive(Clone)]
pub struct IndexPages {
    pages: Pages,
    query: Format,
}

/// A quantized vector: operands of tensor cores, and the scale by which dot products of these operands are multiplied.
type Coded = (Vec<Factor>, f32);

impl IndexPages {
    /// Name of the buffer.
    pub const BUFFER: &'static str = "index_pages";

    /// Creates pages without keys.
    ///
    /// # Errors
    /// Returns an error if the record format of index keys is unknown, or if the model's index keys have another number of
    /// channels.
    pub fn empty(name: &str, config: &Config, rows: usize, positions: usize) -> Result<Self, String> {
        let query = INDEX_RECORDS.iter().zip(QUERIES).find(|(record, _)| **record == name);
        let (_, query) = query.ok_or_else(|| {
            let known = INDEX_RECORDS.join(", ");
            format!("no record of index keys is called '{name}': expected one of {known}")
        })?;
        let [layers, _, slots] = pool(config, LayerType::Sparse, positions)?;
        let query = Blocks::named(query).expect("a block format");
        Ok(Self {
            pages: Pages::empty(name, config.index_head_dim, [layers, rows, slots])?,
            query: query.format()?,
        })
    }

    /// Fills all slots with random keys.
    pub(super) fn draw(&mut self, data: &Data) {
        self.pages.draw(Self::BUFFER, data);
    }

    fn fp8(&self) -> bool {
        self.pages.record.name == INDEX_RECORDS[0]
    }

    /// Stores a key as a record, and returns the decoded values of this record.
    fn store(&mut self, place: [usize; 3], key: &[f32]) -> Vec<f32> {
        let mut key = key.to_vec();
        if !self.fp8() {
            hadamard(&mut key, self.pages.record.dim).expect("a power of two of channels");
        }
        self.pages.store(place, &key);
        self.pages.codec.round(&mut key, self.pages.record.dim);
        key
    }

    /// Stores the index keys of a row in a layer as records, and replaces each key in the state by the decoded values of its
    /// record.
    pub fn put(&mut self, layer: usize, row: usize, index: &mut CompressedParts<f32>) {
        let keys = &mut index.entries.keys;
        for entry in 0..keys.rows() {
            let read = self.store([layer, row, entry], keys.row(entry));
            keys.row_mut(entry).copy_from_slice(&read);
        }
    }

    /// Stores the index keys of one decode step of a row, if the token at `position` completes a compressed entry. `tap(layer)`
    /// returns the unquantized key.
    pub fn step(&mut self, config: &Config, row: usize, position: usize, tap: impl Fn(usize) -> Vec<f32>) {
        let sparse = config.layer_types.iter().enumerate();
        let sparse = sparse.filter(|(_, kind)| **kind == LayerType::Sparse);
        for (number, (layer, _)) in sparse.enumerate() {
            let rate = config.compress_rate(layer).unwrap_or(1);
            if (position + 1).is_multiple_of(rate) {
                self.store([number, row, (position + 1) / rate - 1], &tap(layer));
            }
        }
    }

    /// Returns a stored key as operands of tensor cores: E4M3 codes with a scale, or decoded values in bfloat16.
    fn key(&self, place: [usize; 3]) -> Coded {
        let slot = self.pages.slot(place);
        if self.fp8() {
            return (e4m3_factors(slot[0]), f32_values(slot[1], Dtype::F32)[0]);
        }
        let record = self.pages.record;
        let mut page = vec![0; record.page_stride(PAGE)];
        for (from, to) in slot.iter().zip(rows(record, 0)) {
            page[to].copy_from_slice(from);
        }
        let mut values = vec![0.0; PAGE * record.dim];
        self.pages.codec.decode(&encoded(record, page), &mut values);
        (bf16_factors(&values[..record.dim]), 1.0)
    }

    /// Quantizes a query. Returns its heads as operands of tensor cores, and the decoded values of the query.
    fn query(&self, query: &[f32]) -> (Vec<Coded>, Vec<f32>) {
        let dim = self.pages.record.dim;
        let (mut query, mut values) = (query.to_vec(), vec![0.0; query.len()]);
        if !self.fp8() {
            hadamard(&mut query, dim).expect("a power of two of channels");
        }
        let coded = self.query.encode(&query, dim, GlobalScale::Own);
        self.query.decode(&coded, &mut values);
        let heads = values.chunks_exact(dim).enumerate();
        let heads = heads.map(|(head, values)| match self.fp8() {
            true => {
                let scale = match coded.part("scale")[head] {
                    255 => f32::NAN,
                    code => 2f64.powi(i32::from(code) - 127) as f32,
                };
                (e4m3_factors(&coded.part("data")[head * dim..][..dim]), scale)
            }
            false => (bf16_factors(values), 1.0),
        });
        (heads.collect(), values)
    }

    fn rule(&self) -> Accumulator {
        if self.fp8() { WGMMA_E4M3 } else { WGMMA_BF16 }
    }

    /// Returns the buffer of the pages, which kernels update in place.
    pub fn buffer(&self) -> Buffer {
        self.pages.buffer(Self::BUFFER)
    }
}

/// Quantized index keys of one sequence, and the quantized index query of its current token. The hooks into the reference collect
/// both from the kernel's outputs.
pub(super) struct IndexQuery {
    index: Arc<IndexPages>,
    /// Keys of each sparse layer.
    keys: Vec<Vec<Coded>>,
    query: Vec<Coded>,
    layer: usize,
}

impl IndexQuery {
    /// Reads the stored keys of a sequence that has `entries` compressed entries in each sparse layer.
    pub fn new(index: Arc<IndexPages>, row: usize, entries: usize) -> Self {
        let layers = 0..index.pages.shape[0];
        let keys = layers.map(|layer| (0..entries).map(|entry| index.key([layer, row, entry])).collect());
        Self {
            keys: keys.collect(),
            index,
            query: Vec::new(),
            layer: 0,
        }
    }

    /// Quantizes the query of a layer for [`Self::choose`], and returns the decoded values.
    pub fn set(&mut self, layer: usize, query: &[f32]) -> Vec<f32> {
        let (coded, values) = self.index.query(query);
        (self.query, self.layer) = (coded, layer);
        values
    }

    /// Adds the next key of a layer, and returns the decoded values of its record.
    pub fn add(&mut self, layer: usize, key: &[f32]) -> Vec<f32> {
        // Encode the key in a temporary page: `index` must keep the pages as they were before the first run.
        let mut page = IndexPages {
            pages: self.index.pages.one_page(),
            query: self.index.query,
        };
        let read = page.store([0; 3], key);
        self.keys[layer].push(page.key([0; 3]));
        read
    }

    /// Selects, among the first `visible` compressed entries, the `k` entries with the best scores for the query. `head_weights`
    /// are the weights of the query's heads.
    pub fn choose(&self, head_weights: &[Bounded], k: usize, visible: usize) -> Choice<Bounded> {
        let rule = self.index.rule();
        let keys = &self.keys[self.layer][..visible];
        let score = |(key, key_scale): &Coded| {
            let mut sum = Bounded::ZERO;
            for ((head, scale), weight) in self.query.iter().zip(head_weights) {
                let product = rule.dot(key, head, 0.0);
                let positive = if product < 0.0 { 0.0 } else { product };
                sum += *weight * Bounded::exact(*scale) * Bounded::exact(positive);
            }
            sum * Bounded::exact(*key_scale)
        };
        let mut scores: Vec<Bounded> = keys.iter().map(score).collect();
        let mut indices = vec![-1; k];
        top_k(&scores, visible, k, &mut indices);
        scores.resize(visible.max(1), Bounded::NEG_INFINITY);
        Choice {
            indices,
            k,
            scores: Tensor::new([1, visible.max(1)], scores),
        }
    }
}
