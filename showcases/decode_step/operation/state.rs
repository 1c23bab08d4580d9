//! KV caches of all sequences as kernels store them: ring buffers for the latest tokens, and arrays of compressed entries. Layers
//! of the same type share a buffer.

use std::sync::Arc;

use reference::paths::deepseek_v4::{CompressedParts, Config, LayerType, StateParts};
use reference::{Bounded, Real};
use safetensors::Dtype;

use super::Formats;
use super::index::IndexPages;
use super::records::Records;
use ulplab_operations::ops::data::f32_bytes;
use ulplab_operations::ops::{Buffer, Data};

/// One buffer of the state.
#[derive(Clone)]
pub struct Cache {
    /// Name of the buffer.
    pub name: &'static str,
    /// Number of layers that share the buffer, rows of the batch, slots of a row, and elements of a slot.
    pub shape: [usize; 4],
    /// Contents of the buffer; NaN in slots without a vector.
    pub values: Vec<f32>,
    /// True if the buffer is a ring: later positions overwrite the slots of earlier positions.
    pub ring: bool,
}

/// Names of the f32 buffers that are missing if keys are stored as KV records: pages of records replace these buffers.
const OF_KEYS: [&str; 3] = ["window", "csa_entries", "hca_entries"];

/// All KV caches: arrays of f32 numbers, and pages if keys are stored as records.
#[derive(Clone)]
pub struct Caches {
    /// The arrays of f32 numbers.
    pub arrays: Vec<Cache>,
    /// Pages of keys; `None` if keys are not records.
    pub records: Option<Records>,
    /// Pages of index keys; `None` if index keys are not records.
    pub index: Option<Arc<IndexPages>>,
}

/// Location of a vector in the caches: name of the buffer, index of the layer among the layers of that buffer, and slot.
pub(super) type Place = (&'static str, usize, usize);

impl Caches {
    /// Creates empty caches.
    ///
    /// # Errors
    /// Returns an error if a type of layers has no compressor, or keys do not fit the record format.
    pub fn empty(config: &Config, rows: usize, positions: usize, formats: Formats) -> Result<Self, String> {
        let [sparse, sparse_rate, sparse_slots] = pool(config, LayerType::Sparse, positions)?;
        let [heavy, heavy_rate, heavy_slots] = pool(config, LayerType::Heavy, positions)?;
        let (dim, index) = (config.head_dim, config.index_head_dim);
        // For each buffer: number of layers, slots of a row, and elements of a slot.
        let shapes = [
            ("window", [sparse + heavy, config.sliding_window, dim]),
            ("csa_ring_kv", [sparse, 2 * sparse_rate, 2 * dim]),
            ("csa_ring_gate", [sparse, 2 * sparse_rate, 2 * dim]),
            ("csa_entries", [sparse, sparse_slots, dim]),
            ("index_ring_kv", [sparse, 2 * sparse_rate, 2 * index]),
            ("index_ring_gate", [sparse, 2 * sparse_rate, 2 * index]),
            ("index_entries", [sparse, sparse_slots, index]),
            ("hca_ring_kv", [heavy, heavy_rate, dim]),
            ("hca_ring_gate", [heavy, heavy_rate, dim]),
            ("hca_entries", [heavy, heavy_slots, dim]),
        ];
        let arrays = shapes
            .into_iter()
            .filter(|(name, _)| formats.record.is_none() || !OF_KEYS.contains(name))
            .filter(|(name, _)| formats.index.is_none() || *name != "index_entries")
            .map(|(name, [layers, slots, width])| Cache {
                name,
                shape: [layers, rows, slots, width],
                values: vec![f32::NAN; layers * rows * slots * width],
                ring: !name.ends_with("entries"),
            });
        let records = |name| Records::empty(name, config, rows, positions);
        let index = |name| IndexPages::empty(name, config, rows, positions);
        Ok(Self {
            arrays: arrays.collect(),
            records: formats.record.map(records).transpose()?,
            index: formats.index.map(index).transpose()?.map(Arc::new),
        })
    }

    /// Fills all slots with random values.
    pub fn draw(&mut self, data: &Data) {
        for cache in &mut self.arrays {
            cache.values = data.normal(cache.name, cache.values.len());
        }
        self.records.iter_mut().for_each(|records| records.draw(data));
        if let Some(index) = &mut self.index {
            Arc::make_mut(index).draw(data);
        }
    }

    /// Copies the reference state `parts` to the caches of a row. Replaces each vector of `parts` that is stored as a record by
    /// the decoded values of the record.
    pub fn put(&mut self, config: &Config, row: usize, parts: &mut StateParts<f32>) {
        if let Some(records) = &mut self.records {
            records.put(config, row, parts);
        }
        if let Some(index) = &mut self.index {
            let index = Arc::make_mut(index);
            let sparse = parts.layers.iter_mut().filter_map(|layer| layer.index.as_mut());
            sparse.enumerate().for_each(|(layer, keys)| index.put(layer, row, keys));
        }
        each(config, parts, |(name, layer, slot), values| {
            if let Some(cache) = self.arrays.iter_mut().find(|cache| cache.name == name) {
                let at = cache.place(layer, row, slot);
                cache.values[at..][..values.len()].copy_from_slice(values);
            }
        });
    }

    /// Returns all buffers of the state, which kernels update in place.
    pub fn buffers(&self) -> impl Iterator<Item = Buffer> {
        let buffer = |cache: &Cache| Buffer::in_place(cache.name, Dtype::F32, &cache.shape, f32_bytes(&cache.values));
        let pages = self.records.iter().flat_map(Records::buffers);
        let index = self.index.iter().map(|index| index.buffer());
        self.arrays.iter().map(buffer).chain(pages).chain(index)
    }
}

/// Returns the number of layers of a type, the number of tokens per compressed entry, and the number of entries for `positions`
/// positions.
///
/// # Errors
/// Returns an error if the layers have no compressor.
pub(super) fn pool(config: &Config, kind: LayerType, positions: usize) -> Result<[usize; 3], String> {
    let layers = config.layer_types.iter().filter(|other| **other == kind).count();
    let rate = config.rate(kind);
    let rate = rate.ok_or_else(|| format!("{kind:?} layers have no compressor"))?;
    Ok([layers, rate, (positions / rate).max(1)])
}

impl Cache {
    /// Returns the index of the first element of a slot.
    pub fn place(&self, layer: usize, row: usize, slot: usize) -> usize {
        let [_, rows, slots, width] = self.shape;
        ((layer * rows + row) * slots + slot) * width
    }
}

/// Calls `found` for every vector in the reference's state, with its location in the kernel caches and its values.
pub(super) fn each<T: Real>(config: &Config, parts: &StateParts<T>, mut found: impl FnMut(Place, &[T])) {
    let (mut sparse, mut heavy) = (0, 0);
    for (number, (layer, kind)) in parts.layers.iter().zip(&config.layer_types).enumerate() {
        let keys = &layer.window.keys;
        for row in 0..keys.rows() {
            let position = parts.tokens - keys.rows() + row;
            found(("window", number, position % config.sliding_window), keys.row(row));
        }
        let mut compressed = |names: [&'static str; 3], number: usize, slots: usize, of: &CompressedParts<T>| {
            let entries = &of.entries.keys;
            (0..entries.rows()).for_each(|entry| found((names[2], number, entry), entries.row(entry)));
            for (name, rows) in [(names[0], &of.pending_values), (names[1], &of.pending_logits)] {
                for row in 0..rows.rows() {
                    let position = parts.tokens - rows.rows() + row;
                    found((name, number, position % slots), rows.row(row));
                }
            }
        };
        let rate = config.compress_rate(number).unwrap_or(1);
        match (&layer.compressed, &layer.index) {
            (Some(main), Some(index)) => {
                compressed(["csa_ring_kv", "csa_ring_gate", "csa_entries"], sparse, 2 * rate, main);
                let names = ["index_ring_kv", "index_ring_gate", "index_entries"];
                compressed(names, sparse, 2 * rate, index);
            }
            (Some(main), None) => compressed(["hca_ring_kv", "hca_ring_gate", "hca_entries"], heavy, rate, main),
            _ => {}
        }
        match kind {
            LayerType::Sparse => sparse += 1,
            LayerType::Heavy => heavy += 1,
            LayerType::Sliding => {}
        }
    }
}

/// Converts a state of f32 numbers to numbers with error bounds; all errors are 0.
pub(super) fn bounded(parts: &StateParts<f32>) -> StateParts<Bounded> {
    use reference::paths::deepseek_v4::{CacheParts, LayerParts};
    let cache = |cache: &CacheParts<f32>| CacheParts {
        keys: cache.keys.cast(),
        values: cache.values.as_ref().map(|values| values.cast()),
    };
    let compressed = |of: &CompressedParts<f32>| CompressedParts {
        entries: cache(&of.entries),
        pending_values: of.pending_values.cast(),
        pending_logits: of.pending_logits.cast(),
    };
    let layers = parts.layers.iter().map(|layer| LayerParts {
        window: cache(&layer.window),
        compressed: layer.compressed.as_ref().map(compressed),
        index: layer.index.as_ref().map(compressed),
    });
    StateParts {
        tokens: parts.tokens,
        layers: layers.collect(),
    }
}
