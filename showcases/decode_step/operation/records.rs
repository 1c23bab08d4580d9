//! Caches that hold KV records (vectors encoded as bytes) instead of f32 numbers: the window, and the compressed entries of
//! sparse (CSA) and of heavy (HCA) layers. Rows of the batch do not share pages. The slot of a vector is its index in the ring
//! buffer of the window, or the index of the entry.

use std::ops::Range;
use std::sync::Arc;

use reference::paths::deepseek_v4::{Config, LayerType, StateParts, sites};
use reference::{Numerics, Site, Tensor};
use safetensors::Dtype;

use super::state::pool;
use ulplab_core::formats::{Codec, KvRecord, PAGE, codec};
use ulplab_operations::ops::data::round_to_bf16;
use ulplab_operations::ops::slots::{record_named, rows};
use ulplab_operations::ops::{Buffer, Data};

/// Names of the buffers of KV pages, and the type of the layers that store records there; `None` for all layers.
const POOLS: [(&str, Option<LayerType>); 3] = [
    ("window_pages", None),
    ("csa_pages", Some(LayerType::Sparse)),
    ("hca_pages", Some(LayerType::Heavy)),
];

/// Sites (named tensors of the model) whose vectors are stored as KV records.
const KEYS: [&str; 2] = [sites::WINDOW, sites::COMPRESSED];

/// Keys as records: pages of the window, and of the compressed entries of sparse and of heavy layers.
#[derive(Clone)]
pub struct Records([Pages; 3]);

/// Pages `[layers, B, pages, bytes]` of records. The pages of a row are adjacent.
#[derive(Clone)]
pub(super) struct Pages {
    pub record: &'static KvRecord,
    pub codec: Arc<dyn Codec>,
    pub shape: [usize; 4],
    pub bytes: Vec<u8>,
}

impl Pages {
    /// Creates empty pages for `slots` slots of each row: all bytes are 255, which is NaN in every format.
    ///
    /// # Errors
    /// Returns an error if the record format is unknown, or has another number of channels than the keys.
    pub fn empty(name: &str, channels: usize, [layers, rows, slots]: [usize; 3]) -> Result<Self, String> {
        let record = record_named(name)?;
        if record.dim != channels {
            let dim = record.dim;
            return Err(format!(
                "record '{name}' has {dim} channels, and the model's keys have {channels}"
            ));
        }
        let shape = [layers, rows, slots.div_ceil(PAGE), record.page_stride(PAGE)];
        Ok(Self {
            record,
            codec: codec(name)?,
            bytes: vec![0xff; shape.iter().product()],
            shape,
        })
    }

    /// Fills all slots with random vectors.
    pub fn draw(&mut self, name: &str, data: &Data) {
        let pages: usize = self.shape[..3].iter().product();
        let values = data.normal(name, pages * PAGE * self.record.dim);
        let encoded = self.codec.encode(&values, self.record.dim);
        self.bytes.copy_from_slice(encoded.part("pages"));
    }

    /// Returns one empty page of the same record format, for one layer and row.
    pub fn one_page(&self) -> Self {
        let stride = self.shape[3];
        Self {
            codec: self.codec.clone(),
            shape: [1, 1, 1, stride],
            bytes: vec![0xff; stride],
            ..*self
        }
    }

    /// Returns the range of bytes of a row's pages in a layer.
    fn of_row(&self, layer: usize, row: usize) -> Range<usize> {
        let each = self.shape[2] * self.shape[3];
        let first = (layer * self.shape[1] + row) * each;
        first..first + each
    }

    /// Stores a vector as a record.
    pub fn store(&mut self, [layer, row, slot]: [usize; 3], vector: &[f32]) {
        let encoded = self.codec.encode(vector, vector.len());
        let pages = self.of_row(layer, row);
        for (from, to) in rows(self.record, 0).zip(rows(self.record, slot)) {
            self.bytes[pages.clone()][to].copy_from_slice(&encoded.part("pages")[from]);
        }
    }

    /// Returns the bytes of the record in a slot, one slice per region of the record.
    pub fn slot(&self, [layer, row, slot]: [usize; 3]) -> Vec<&[u8]> {
        let pages = &self.bytes[self.of_row(layer, row)];
        rows(self.record, slot).map(|region| &pages[region]).collect()
    }

    /// Returns the buffer of the pages, which kernels update in place.
    pub fn buffer(&self, name: &'static str) -> Buffer {
        Buffer::in_place(name, Dtype::U8, &self.shape, self.bytes.clone())
    }
}

/// Hooks into the reference that replace each key by the decoded values of its KV record; `None` leaves keys unquantized.
pub(super) struct Stored(pub Option<Arc<dyn Codec>>);

impl Stored {
    /// Creates the hooks for the KV-record format `record`; `None` leaves keys unquantized.
    pub fn new(record: Option<&str>) -> Result<Self, String> {
        record.map(codec).transpose().map(Self)
    }
}

impl Numerics<f32> for Stored {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if let Some(codec) = self.0.as_ref().filter(|_| KEYS.contains(&site.name)) {
            codec.round(&mut tensor.data, tensor.shape[tensor.shape.len() - 1]);
            round_to_bf16(&mut tensor.data);
        }
    }
}

impl Records {
    /// Creates empty pages.
    ///
    /// # Errors
    /// Returns an error if the record format is unknown, or has another number of channels than the model's keys.
    pub fn empty(name: &str, config: &Config, batch: usize, positions: usize) -> Result<Self, String> {
        let pages = |(_, kind): (&str, Option<LayerType>)| {
            let [layers, _, slots] = match kind {
                Some(kind) => pool(config, kind, positions)?,
                None => [config.num_hidden_layers, 1, config.sliding_window],
            };
            Pages::empty(name, config.head_dim, [layers, batch, slots])
        };
        let [window, sparse, heavy] = POOLS.map(pages);
        Ok(Self([window?, sparse?, heavy?]))
    }

    /// Fills all slots with random vectors.
    pub fn draw(&mut self, data: &Data) {
        let pools = POOLS.iter().zip(&mut self.0);
        pools.for_each(|((name, _), pages)| pages.draw(name, data));
    }

    /// Returns the numbers that attention reads from a stored vector: the values of its record, rounded to bfloat16.
    pub fn read(&self, vector: &[f32]) -> Vec<f32> {
        let mut read = vector.to_vec();
        self.0[0].codec.round(&mut read, vector.len());
        round_to_bf16(&mut read);
        read
    }

    /// Stores the KV vectors in the state of a row as records, and replaces each vector in the state by the decoded values of its
    /// record.
    pub fn put(&mut self, config: &Config, row: usize, parts: &mut StateParts<f32>) {
        let tokens = parts.tokens;
        for (layer, of_layer) in parts.layers.iter_mut().enumerate() {
            let keys = &mut of_layer.window.keys;
            let first = tokens - keys.rows();
            self.replace(config, (0, layer, row), keys, |at| (first + at) % config.sliding_window);
            if let Some(compressed) = &mut of_layer.compressed {
                let pool = Self::entries(config, layer);
                self.replace(config, (pool, layer, row), &mut compressed.entries.keys, |at| at);
            }
        }
    }

    fn replace(
        &mut self,
        config: &Config,
        place: (usize, usize, usize),
        keys: &mut Tensor<f32>,
        slot: impl Fn(usize) -> usize,
    ) {
        for at in 0..keys.rows() {
            self.store(config, place, slot(at), keys.row(at));
            let read = self.read(keys.row(at));
            keys.row_mut(at).copy_from_slice(&read);
        }
    }

    /// Returns the index in [`POOLS`] of the pages that hold the compressed entries of a layer: 1 for a sparse, 2 for a heavy
    /// layer.
    fn entries(config: &Config, layer: usize) -> usize {
        1 + usize::from(config.layer_types[layer] == LayerType::Heavy)
    }

    fn store(&mut self, config: &Config, (pool, layer, row): (usize, usize, usize), slot: usize, vector: &[f32]) {
        let kind = POOLS[pool].1;
        let before = config.layer_types[..layer].iter();
        let layer = before.filter(|other| kind.is_none_or(|kind| **other == kind)).count();
        self.0[pool].store([layer, row, slot], vector);
    }

    /// Stores the vectors of one decode step of a row: the KV vector of the token at `position`, and a compressed entry if this
    /// token completes one. `tap(site, layer)` returns the unquantized vector.
    pub fn step(&mut self, config: &Config, row: usize, position: usize, tap: impl Fn(&str, usize) -> Vec<f32>) {
        for layer in 0..config.num_hidden_layers {
            let slot = position % config.sliding_window;
            self.store(config, (0, layer, row), slot, &tap(sites::WINDOW, layer));
            if let Some(rate) = config
                .compress_rate(layer)
                .filter(|rate| (position + 1).is_multiple_of(*rate))
            {
                let (pool, entry) = (Self::entries(config, layer), (position + 1) / rate - 1);
                self.store(config, (pool, layer, row), entry, &tap(sites::COMPRESSED, layer));
            }
        }
    }

    /// Returns the values with which the reference continues after a site: the decoded values of the record if the vectors of the
    /// site are stored as records, else `found`.
    pub(super) fn pass(&self, site: &str, found: Vec<f32>) -> Vec<f32> {
        if KEYS.contains(&site) { self.read(&found) } else { found }
    }

    /// Returns the buffers of all pages, which kernels update in place.
    pub fn buffers(&self) -> impl Iterator<Item = Buffer> {
        POOLS.iter().zip(&self.0).map(|((name, _), pages)| pages.buffer(name))
    }
}
