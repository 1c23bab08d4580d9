//! Activations in eight bits, followed from the kernel's own values. The numbers before they are quantized are kept, so codes and
//! scales are defined to the bit. Products of codes are defined to the bit, too ([`fp8_gemm`](ulplab_operations::ops::fp8_gemm)), so later
//! numbers carry only the error of what follows the product.

use reference::ops::rmsnorm::rmsnorm;
use reference::ops::rope::Rope;
use reference::paths::deepseek_v4::{Config, LayerType, sites};
use reference::{Bounded, Real, Tensor};
use safetensors::Dtype;

use super::parts::{Place, as_is, expect, part, same};
use super::projections::{Projection, Tiles};
use super::weights::Source;
use super::{EPS, WHY, rope};
use ulplab_operations::ops::Outputs;
use ulplab_operations::ops::blocks::Blocks;
use ulplab_operations::ops::data::{exact, f32_bytes, f32_values};
use ulplab_operations::ops::fp8_gemm::codes::Coded as Row;
use ulplab_operations::ops::judge::{Judge, Part};

const WHY_CODES: &str =
    "the numbers before were kept, and the format defines every code and scale of them to the bit (docs/formats.md)";
const WHY_PRODUCT: &str = "a product of codes is defined to the bit: each 128 columns are summed by tensor cores, by a known rule, and \
                           multiplied by both scales and added in f32, from the first to the last";

/// Numbers that are quantized.
struct Coded {
    /// The buffer that keeps them, and whether it is there for their codes only.
    numbers: (&'static str, bool),
    /// The buffers that keep codes and scales.
    codes: &'static str,
    scales: &'static str,
    /// Parts that are quantized separately, and columns of each.
    shape: fn(&Config) -> [usize; 2],
}

macro_rules! coded {
    ($name:literal, $only_for_codes:literal, $shape:expr) => {
        Coded {
            numbers: ($name, $only_for_codes),
            codes: concat!($name, "_codes"),
            scales: concat!($name, "_scales"),
            shape: $shape,
        }
    };
}

/// In the order in which they are passed. Buffers are `[S, layers, B, ..]`.
const CODED: [Coded; 4] = [
    coded!("at_attention_input", false, |c| [1, c.hidden_size]),
    coded!("at_low_query", true, |c| [1, c.q_lora_rank]),
    coded!("at_heads", false, |c| [
        c.o_groups,
        c.num_attention_heads * c.head_dim / c.o_groups
    ]),
    coded!("at_low_heads", true, |c| [1, c.o_groups * c.o_lora_rank]),
];
const LOW_QUERY: &str = "at_low_query";
const LOW_HEADS: &str = "at_low_heads";

impl Projection {
    /// The number of its activations among [`CODED`].
    const fn reads(self) -> usize {
        match self {
            Self::QueryDown | Self::KeyValue => 0,
            Self::QueryUp | Self::IndexQuery => 1,
            Self::OutputDown => 2,
            Self::OutputUp => 3,
        }
    }
}

impl Coded {
    /// Numbers of a row, and scales.
    fn sizes(&self, config: &Config, width: usize) -> [usize; 2] {
        let [parts, cols] = (self.shape)(config);
        [parts * cols, parts * cols.div_ceil(width)]
    }
}

/// Names, types and shapes of the buffers that keep what is quantized, for so many runs and rows, in addition to those of sites.
pub(super) fn kept(
    config: &Config,
    blocks: &Blocks,
    [runs, rows]: [usize; 2],
) -> impl Iterator<Item = (&'static str, Dtype, Vec<usize>)> {
    let kept = CODED.iter().flat_map(|coded| {
        let [numbers, scales] = coded.sizes(config, blocks.width);
        let own = coded.numbers.1.then_some((coded.numbers.0, Dtype::F32, numbers));
        let codes = [
            (coded.codes, Dtype::F8_E4M3, numbers),
            (coded.scales, Dtype::F32, scales),
        ];
        own.into_iter().chain(codes)
    });
    kept.map(move |(name, dtype, cols)| (name, dtype, vec![runs, config.num_hidden_layers, rows, cols]))
}

/// Weights of a layer: of products of codes, and of norms.
struct Layer {
    /// For each of [`Projection::ALL`]; layers without an indexer lack its.
    tiles: Vec<Option<Tiles>>,
    query_norm: Vec<Bounded>,
    kv_norm: Vec<Bounded>,
}

/// Numbers that a kernel has kept, with their codes and scales.
struct Quantized {
    numbers: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
    /// Columns of a row.
    sizes: [usize; 2],
}

/// A step whose activations are codes, with what a kernel has kept.
pub(super) struct Fp8<'a> {
    config: &'a Config,
    blocks: &'static Blocks,
    rows: usize,
    layers: Vec<Layer>,
    rope: Rope<Bounded>,
    /// For each of [`CODED`].
    found: Vec<Quantized>,
    outputs: &'a Outputs,
}

impl<'a> Fp8<'a> {
    /// Follows what a kernel has left of a model's step, with so many positions and rows of a batch.
    ///
    /// # Errors
    /// Weights that cannot be read.
    pub fn new(
        (source, blocks): (&'a Source, &'static Blocks),
        positions: usize,
        rows: usize,
        outputs: &'a Outputs,
    ) -> Result<Self, String> {
        let config = &source.config;
        let layer = |layer: usize| {
            let name = |tensor: &str| format!("model.layers.{layer}.{tensor}");
            let sparse = config.layer_types[layer] == LayerType::Sparse;
            let tiles = Projection::ALL.map(|of| {
                let there = sparse || of != Projection::IndexQuery;
                there.then(|| source.tiles(&name(of.tensor()), of)).transpose()
            });
            let norm = |tensor: &str, cols: usize| {
                let values = source.floats(&name(tensor), &[cols])?;
                Ok::<_, String>(exact([cols], &values).data)
            };
            Ok(Layer {
                tiles: tiles.into_iter().collect::<Result<_, String>>()?,
                query_norm: norm("self_attn.q_a_norm.weight", config.q_lora_rank)?,
                kv_norm: norm("self_attn.kv_norm.weight", config.head_dim)?,
            })
        };
        let found = CODED.iter().map(|coded| Quantized {
            numbers: f32_values(outputs.get(coded.numbers.0), 4),
            codes: outputs.get(coded.codes).to_vec(),
            scales: f32_values(outputs.get(coded.scales), 4),
            sizes: coded.sizes(config, blocks.width),
        });
        Ok(Self {
            layers: (0..config.num_hidden_layers)
                .map(layer)
                .collect::<Result<_, String>>()?,
            found: found.collect(),
            config,
            blocks,
            rows,
            rope: rope(config, positions),
            outputs,
        })
    }

    /// The number of a row in the buffers.
    fn number(&self, [run, layer, row]: Place) -> usize {
        (run * self.layers.len() + layer) * self.rows + row
    }

    /// A product with the codes that the kernel had.
    fn product(&self, place: Place, of: Projection) -> Vec<f32> {
        let Quantized {
            codes, scales, sizes, ..
        } = &self.found[of.reads()];
        let number = self.number(place);
        let row = Row {
            codes: &codes[number * sizes[0]..][..sizes[0]],
            scales: &scales[number * sizes[1]..][..sizes[1]],
        };
        let tiles = self.layers[place[1]].tiles[of as usize].as_ref();
        tiles.expect("the layer has the product").product(row)
    }

    /// The same as numbers without an error, `[heads, ..]`.
    fn rows(&self, place: Place, of: Projection, heads: usize) -> Tensor<Bounded> {
        let values = self.product(place, of);
        exact([heads, values.len() / heads], &values)
    }

    /// Replaces what the reference has at a site behind a product, made of numbers, by what follows from the product of codes;
    /// `place` is a run, a layer and a row whose token is at this position.
    pub fn after_product(&self, site: &str, place: Place, position: usize, tensor: &mut Tensor<Bounded>) {
        let (config, eps) = (self.config, Bounded::from_f64(EPS.into()));
        let mut turned = |mut x: Tensor<Bounded>, heads: usize| {
            self.rope.apply(&mut x, heads, |_| position, false);
            tensor.data = x.data;
        };
        match site {
            sites::QUERY => {
                let heads = config.num_attention_heads;
                let mut query = self.rows(place, Projection::QueryUp, heads);
                rmsnorm(&mut query, None, eps);
                turned(query, heads);
            }
            sites::WINDOW => {
                let mut kv = self.rows(place, Projection::KeyValue, 1);
                rmsnorm(&mut kv, Some(&self.layers[place[1]].kv_norm), eps);
                turned(kv, 1);
            }
            sites::INDEX_QUERY => {
                let heads = config.index_n_heads;
                turned(self.rows(place, Projection::IndexQuery, heads), heads);
            }
            sites::ATTENTION_OUTPUT => tensor.data = self.rows(place, Projection::OutputUp, 1).data,
            _ => {}
        }
    }

    /// Judges low-rank queries and heads, codes and scales. Rows of padding may have anything.
    pub fn parts(&self, places: &[Place]) -> Vec<Part> {
        let mut parts = vec![self.low_query(places), self.low_heads(places)];
        parts.extend((0..CODED.len()).flat_map(|number| self.codes(number, places)));
        parts
    }

    /// `[S, layers, B, cols]`.
    fn shape(&self, cols: usize, elements: usize) -> [usize; 4] {
        let layers = self.layers.len();
        [elements / (cols * layers * self.rows), layers, self.rows, cols]
    }

    fn low_query(&self, places: &[Place]) -> Part {
        let Quantized { numbers, sizes, .. } = &self.found[Projection::QueryUp.reads()];
        let (cols, eps) = (sizes[0], Bounded::from_f64(EPS.into()));
        let mut expected = as_is(numbers);
        for &place in places {
            let mut low = self.rows(place, Projection::QueryDown, 1);
            rmsnorm(&mut low, Some(&self.layers[place[1]].query_norm), eps);
            expect(&mut expected[self.number(place) * cols..], &low.data);
        }
        let shape = self.shape(cols, numbers.len());
        part(LOW_QUERY, Dtype::F32, &shape, expected, WHY, self.outputs)
    }

    fn low_heads(&self, places: &[Place]) -> Part {
        let Quantized { numbers, sizes, .. } = &self.found[Projection::OutputUp.reads()];
        let mut want = numbers.clone();
        for &place in places {
            want[self.number(place) * sizes[0]..][..sizes[0]]
                .copy_from_slice(&self.product(place, Projection::OutputDown));
        }
        let shape = self.shape(sizes[0], want.len());
        let judge = Judge::equal(LOW_HEADS, Dtype::F32, &shape, f32_bytes(&want), WHY_PRODUCT);
        judge.any_nan(0..sizes[0]).on(self.outputs.get(LOW_HEADS).to_vec())
    }

    /// Codes and scales of the numbers that were kept.
    fn codes(&self, number: usize, places: &[Place]) -> [Part; 2] {
        let (coded, Quantized { numbers, sizes, .. }) = (&CODED[number], &self.found[number]);
        let [_, cols] = (coded.shape)(self.config);
        let names = [
            (coded.codes, Dtype::F8_E4M3, "data"),
            (coded.scales, Dtype::F32, "scale"),
        ];
        let mut want = names.map(|(name, ..)| self.outputs.get(name).to_vec());
        for &place in places {
            let at = self.number(place);
            let row = &numbers[at * sizes[0]..][..sizes[0]];
            let encoded = self
                .blocks
                .encode(row, cols, None)
                .expect("a format without a global scale");
            for (want, (.., part)) in want.iter_mut().zip(names) {
                let part = encoded.part(part);
                want[at * part.len()..][..part.len()].copy_from_slice(part);
            }
        }
        let mut all = names.into_iter().zip(want).zip(*sizes);
        std::array::from_fn(|_| {
            let (((name, dtype, _), want), cols) = all.next().expect("there are two");
            let shape = self.shape(cols, want.len() * 8 / dtype.bitsize());
            same(name, dtype, &shape, want, WHY_CODES, self.outputs)
        })
    }
}
