//! Check of decode steps with 8-bit activations. The check uses intermediate values that kernels output. Among them are the
//! numbers before quantization, so the expected codes and scales are known to the bit. Products of codes are also known to the
//! bit ([`fp8_gemm`](ulplab_operations::ops::fp8_gemm)), so the expected values of later numbers have only the errors of the
//! operations after the product.

use reference::ops::rmsnorm::rmsnorm;
use reference::ops::rope::Rope;
use reference::paths::deepseek_v4::{Config, LayerType, Model, sites};
use reference::{Bounded, Real, Tensor};
use safetensors::Dtype;

use super::parts::{Place, as_is, expect, part};
use super::projections::{Projection, Tiles};
use super::weights::Source;
use super::{EPS, WHY, rope};
use ulplab_core::formats::GlobalScale;
use ulplab_operations::ops::blocks::Blocks;
use ulplab_operations::ops::data::{exact, f32_bytes, f32_values};
use ulplab_operations::ops::judge::{Judge, Part};
use ulplab_operations::ops::{Outputs, lasting};

const WHY_CODES: &str =
    "the numbers before were kept, and the format defines every code and scale of them to the bit (docs/formats.md)";
const WHY_PRODUCT: &str = "a product of codes is defined to the bit: each 128 columns are summed by tensor cores, by a known rule, and \
                           multiplied by both scales and added in f32, from the first to the last";

/// An activation that kernels quantize before a product.
struct Coded {
    /// Name of the output buffer of the numbers before quantization, e.g. `at_heads`; codes are in `at_heads_codes`, scales in
    /// `at_heads_scales`.
    numbers: &'static str,
    /// True if kernels output `numbers` only for this check; false if it is one of the buffers of [`TAPS`](super::TAPS).
    own: bool,
    /// Number of segments of a row that are quantized separately, and number of columns of a segment.
    shape: fn(&Config) -> [usize; 2],
}

const fn coded(numbers: &'static str, own: bool, shape: fn(&Config) -> [usize; 2]) -> Coded {
    Coded { numbers, own, shape }
}

/// Quantized activations, in the order in which a layer computes them. Their output buffers are `[S, layers, B, ..]` for S runs
/// and B rows.
const CODED: [Coded; 4] = [
    coded("at_attention_input", false, |c| [1, c.hidden_size]),
    coded(LOW_QUERY, true, |c| [1, c.q_lora_rank]),
    coded("at_heads", false, |c| {
        [c.o_groups, c.num_attention_heads * c.head_dim / c.o_groups]
    }),
    coded(LOW_HEADS, true, |c| [1, c.o_groups * c.o_lora_rank]),
];
const LOW_QUERY: &str = "at_low_query";
const LOW_HEADS: &str = "at_low_heads";

impl Projection {
    /// Returns the index in [`CODED`] of the activations that the product reads.
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
    /// Returns the names of the buffers of codes and of scales, each with its number of columns.
    fn parts(&self, config: &Config, width: usize) -> [(&'static str, usize); 2] {
        let [parts, cols] = (self.shape)(config);
        let name = |part: &str| lasting(&format!("{}_{part}", self.numbers));
        [
            (name("codes"), parts * cols),
            (name("scales"), parts * cols.div_ceil(width)),
        ]
    }
}

/// Returns names, types and shapes of the buffers that kernels output only for this check: numbers before quantization, codes and
/// scales.
pub(super) fn kept(
    config: &Config,
    blocks: &Blocks,
    [runs, rows]: [usize; 2],
) -> impl Iterator<Item = (&'static str, Dtype, Vec<usize>)> {
    let kept = CODED.iter().flat_map(|coded| {
        let [codes, scales] = coded.parts(config, blocks.width);
        let own = coded.own.then_some((coded.numbers, Dtype::F32, codes.1));
        let codes = [(codes.0, Dtype::F8_E4M3, codes.1), (scales.0, Dtype::F32, scales.1)];
        own.into_iter().chain(codes)
    });
    kept.map(move |(name, dtype, cols)| (name, dtype, vec![runs, config.num_hidden_layers, rows, cols]))
}

/// Computes the expected outputs of a step with 8-bit activations from the intermediate values that the kernel output.
pub(super) struct Fp8<'a> {
    config: &'a Config,
    model: &'a Model<Bounded>,
    blocks: &'static Blocks,
    rows: usize,
    /// Weights of each layer, for each of [`Projection::ALL`]; `None` for the indexer's projection in layers without an indexer.
    tiles: Vec<Vec<Option<Tiles>>>,
    rope: Rope<Bounded>,
    outputs: &'a Outputs,
}

impl<'a> Fp8<'a> {
    /// Creates the check of the outputs of a kernel. `positions` is the length of the RoPE table, `rows` the batch size.
    ///
    /// # Errors
    /// Returns an error if weights cannot be read.
    pub fn new(
        (source, model, blocks): (&'a Source, &'a Model<Bounded>, &'static Blocks),
        positions: usize,
        rows: usize,
        outputs: &'a Outputs,
    ) -> Result<Self, String> {
        let config = &source.config;
        let tiles = |layer: usize| {
            let sparse = config.layer_types[layer] == LayerType::Sparse;
            let tiles = Projection::ALL.map(|of| {
                let there = sparse || of != Projection::IndexQuery;
                let name = format!("model.layers.{layer}.{}", of.tensor());
                there.then(|| source.tiles(&name, of)).transpose()
            });
            tiles.into_iter().collect()
        };
        Ok(Self {
            tiles: (0..config.num_hidden_layers)
                .map(tiles)
                .collect::<Result<_, String>>()?,
            config,
            model,
            blocks,
            rows,
            rope: rope(config, positions),
            outputs,
        })
    }

    /// Returns the index of a row in the buffers `[S, layers, B, ..]`.
    fn number(&self, [run, layer, row]: Place) -> usize {
        (run * self.config.num_hidden_layers + layer) * self.rows + row
    }

    /// Returns the f32 numbers of an output buffer.
    fn numbers(&self, buffer: &str) -> Vec<f32> {
        f32_values(self.outputs.get(buffer), Dtype::F32)
    }

    /// Returns the product of the weights of a projection with the activation codes that the kernel output.
    fn product(&self, place: Place, of: Projection) -> Vec<f32> {
        let number = self.number(place);
        let [(codes, of_codes), (scales, of_scales)] = CODED[of.reads()].parts(self.config, self.blocks.width);
        let scales = &self.outputs.get(scales)[4 * number * of_scales..][..4 * of_scales];
        let codes = &self.outputs.get(codes)[number * of_codes..][..of_codes];
        let tiles = self.tiles[place[1]][of as usize].as_ref();
        tiles
            .expect("the layer has the product")
            .product((codes, &f32_values(scales, Dtype::F32)))
    }

    /// Returns [`Self::product`] as a tensor of shape `[heads, ..]`, whose numbers have an error bound of 0.
    fn rows(&self, place: Place, of: Projection, heads: usize) -> Tensor<Bounded> {
        let values = self.product(place, of);
        exact([heads, values.len() / heads], &values)
    }

    /// Replaces the reference's values at a site (named tensor) that follows a projection by values that are computed from the
    /// kernel's codes. `place` holds the indices of run, layer and row; `position` is the position of the row's token.
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
                rmsnorm(&mut kv, Some(self.model.norms(place[1])[1]), eps);
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

    /// Compares low-rank queries, low-rank heads, and all codes and scales with their expected values, except in padding rows.
    pub fn parts(&self, places: &[Place]) -> Vec<Part> {
        let mut parts = vec![self.low_query(places), self.low_heads(places)];
        parts.extend(CODED.iter().flat_map(|coded| self.codes(coded, places)));
        parts
    }

    /// Returns the shape `[S, layers, B, cols]` of a buffer. The number S of runs follows from the number of elements,
    /// `elements`.
    fn shape(&self, cols: usize, elements: usize) -> [usize; 4] {
        let layers = self.config.num_hidden_layers;
        [elements / (cols * layers * self.rows), layers, self.rows, cols]
    }

    fn low_query(&self, places: &[Place]) -> Part {
        let (cols, eps) = (self.config.q_lora_rank, Bounded::from_f64(EPS.into()));
        let mut expected = as_is(&self.numbers(LOW_QUERY));
        for &place in places {
            let mut low = self.rows(place, Projection::QueryDown, 1);
            rmsnorm(&mut low, Some(self.model.norms(place[1])[0]), eps);
            expect(&mut expected[self.number(place) * cols..], &low.data);
        }
        let shape = self.shape(cols, expected.len());
        part(LOW_QUERY, Dtype::F32, &shape, expected, WHY, self.outputs)
    }

    fn low_heads(&self, places: &[Place]) -> Part {
        let cols = self.config.o_groups * self.config.o_lora_rank;
        let mut want = self.numbers(LOW_HEADS);
        for &place in places {
            want[self.number(place) * cols..][..cols].copy_from_slice(&self.product(place, Projection::OutputDown));
        }
        let shape = self.shape(cols, want.len());
        let judge = Judge::equal(LOW_HEADS, Dtype::F32, &shape, f32_bytes(&want), WHY_PRODUCT);
        judge.any_nan(0..cols).of(self.outputs)
    }

    /// Checks codes and scales bit by bit. The expected codes and scales follow from the unquantized numbers that the kernel
    /// output.
    fn codes(&self, coded: &Coded, places: &[Place]) -> [Part; 2] {
        let (parts, [_, cols]) = (coded.parts(self.config, self.blocks.width), (coded.shape)(self.config));
        let mut want = parts.map(|(name, _)| self.outputs.get(name).to_vec());
        let numbers = self.numbers(coded.numbers);
        for &place in places {
            let at = self.number(place);
            let row = &numbers[at * parts[0].1..][..parts[0].1];
            let format = self.blocks.format().expect("a format of the list");
            let encoded = format.encode(row, cols, GlobalScale::Own);
            for (want, part) in want.iter_mut().zip(["data", "scale"]) {
                let part = encoded.part(part);
                want[at * part.len()..][..part.len()].copy_from_slice(part);
            }
        }
        let [codes, scales] = want;
        [(codes, Dtype::F8_E4M3, parts[0]), (scales, Dtype::F32, parts[1])].map(|(want, dtype, (name, cols))| {
            let shape = self.shape(cols, want.len() * 8 / dtype.bitsize());
            Judge::equal(name, dtype, &shape, want, WHY_CODES).of(self.outputs)
        })
    }
}
