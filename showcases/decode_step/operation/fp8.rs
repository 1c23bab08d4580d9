//! Activations in eight bits, followed from the kernel's own values. The numbers before they are quantized are kept, so codes and
//! scales are defined to the bit. Products of codes are defined to the bit, too ([`fp8_gemm`](ulplab_operations::ops::fp8_gemm)), so that what
//! follows carries the error of what comes after the product alone.

use reference::ops::rmsnorm::rmsnorm;
use reference::ops::rope::Rope;
use reference::paths::deepseek_v4::{Config, LayerType, sites};
use reference::{Bounded, Real, Tensor};
use safetensors::Dtype;

use super::projections::{Projection, Tiles};
use super::weights::Source;
use super::{EPS, WHY};
use ulplab_operations::ops::blocks::Blocks;
use ulplab_operations::ops::data::{exact, f32_bytes, f32_values};
use ulplab_operations::ops::fp8_gemm::codes::Coded as Row;
use ulplab_operations::ops::judge::{Judge, Part};
use ulplab_operations::ops::{Batch, Buffer, Outputs};

const WHY_CODES: &str =
    "the numbers before were kept, and the format defines every code and scale of them to the bit (docs/formats.md)";
const WHY_PRODUCT: &str = "a product of codes is defined to the bit: each 128 columns are summed by tensor cores, by a known rule, and \
                           multiplied by both scales and added in f32, from the first to the last";

/// Numbers that are quantized.
pub(super) struct Coded {
    /// The buffer that keeps them, and whether it is there for their codes alone.
    numbers: (&'static str, bool),
    /// The buffers that keep codes and scales.
    codes: &'static str,
    scales: &'static str,
    /// Parts that are quantized apart, and columns of each.
    shape: fn(&Config) -> [usize; 2],
}

/// In the order in which they are passed. Buffers are `[S, layers, B, ..]`.
pub(super) const CODED: [Coded; 4] = [
    Coded {
        numbers: ("at_attention_input", false),
        codes: "at_attention_input_codes",
        scales: "at_attention_input_scales",
        shape: |c| [1, c.hidden_size],
    },
    Coded {
        numbers: (LOW_QUERY, true),
        codes: "at_low_query_codes",
        scales: "at_low_query_scales",
        shape: |c| [1, c.q_lora_rank],
    },
    Coded {
        numbers: ("at_heads", false),
        codes: "at_heads_codes",
        scales: "at_heads_scales",
        shape: |c| [c.o_groups, c.num_attention_heads * c.head_dim / c.o_groups],
    },
    Coded {
        numbers: (LOW_HEADS, true),
        codes: "at_low_heads_codes",
        scales: "at_low_heads_scales",
        shape: |c| [1, c.o_groups * c.o_lora_rank],
    },
];
const LOW_QUERY: &str = "at_low_query";
const LOW_HEADS: &str = "at_low_heads";

impl Projection {
    /// What it multiplies, among [`CODED`].
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

    /// The buffers of a step that are not there otherwise: dtype and columns of each.
    fn kept(&self, config: &Config, width: usize) -> impl Iterator<Item = (&'static str, Dtype, usize)> {
        let [numbers, scales] = self.sizes(config, width);
        let own = self.numbers.1.then_some((self.numbers.0, Dtype::F32, numbers));
        let coded = [(self.codes, Dtype::F8_E4M3, numbers), (self.scales, Dtype::F32, scales)];
        own.into_iter().chain(coded)
    }
}

/// The buffers that keep what is quantized, for so many runs and rows, besides those of sites.
pub(super) fn buffers(
    config: &Config,
    blocks: &Blocks,
    [runs, rows]: [usize; 2],
    batch: Batch,
) -> (Vec<Buffer>, Batch) {
    let all = CODED.iter().flat_map(|coded| coded.kept(config, blocks.width));
    let lead = [runs, config.num_hidden_layers, rows];
    all.fold((Vec::new(), batch), |(mut buffers, batch), (name, dtype, cols)| {
        buffers.push(Buffer::output(name, dtype, &[&lead[..], &[cols]].concat()));
        (buffers, batch.along(2, &[name]))
    })
}

/// What a layer multiplies codes by, and what norms multiply.
struct Layer {
    /// For each of [`Projection::ALL`]; layers without an indexer lack its.
    tiles: Vec<Option<Tiles>>,
    query_norm: Vec<Bounded>,
    kv_norm: Vec<Bounded>,
}

/// What a kernel has kept of one place, and what it must be.
struct Found {
    numbers: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
    /// Columns of a row.
    sizes: [usize; 2],
}

/// A step whose activations are codes, with what a kernel has kept.
pub(super) struct Eight<'a> {
    config: &'a Config,
    blocks: &'static Blocks,
    rows: usize,
    layers: Vec<Layer>,
    rope: Rope<Bounded>,
    /// For each of [`CODED`].
    found: Vec<Found>,
    outputs: &'a Outputs,
}

impl<'a> Eight<'a> {
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
        let mut rope = Rope::new(config.rope_frequencies(LayerType::Heavy));
        rope.extend(positions);
        let found = CODED.iter().map(|coded| Found {
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
            rope,
            outputs,
        })
    }

    /// The number of a row in the buffers.
    fn number(&self, [run, layer, row]: [usize; 3]) -> usize {
        (run * self.layers.len() + layer) * self.rows + row
    }

    /// A product with the codes that the kernel had.
    fn product(&self, place: [usize; 3], of: Projection) -> Vec<f32> {
        let Found {
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
    fn rows(&self, place: [usize; 3], of: Projection, heads: usize) -> Tensor<Bounded> {
        let values = self.product(place, of);
        exact([heads, values.len() / heads], &values)
    }

    /// Replaces what the reference has at a site behind a product, made of numbers, by what follows from the product of codes;
    /// `place` is a run, a layer and a row whose token is at this position.
    pub fn after_product(&self, site: &str, place: [usize; 3], position: usize, tensor: &mut Tensor<Bounded>) {
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

    /// What is kept besides sites, judged: low-rank queries and heads, codes and scales. Rows of padding may have anything.
    pub fn parts(&self, steps: &[[usize; 2]]) -> Vec<Part> {
        let places = steps
            .iter()
            .flat_map(|[run, row]| (0..self.layers.len()).map(move |layer| [*run, layer, *row]));
        let places: Vec<[usize; 3]> = places.collect();
        let mut parts = vec![self.low_query(&places), self.low_heads(&places)];
        parts.extend((0..CODED.len()).flat_map(|number| self.codes(number, &places)));
        parts
    }

    /// `[S, layers, B, cols]`.
    fn shape(&self, cols: usize, elements: usize) -> [usize; 4] {
        let layers = self.layers.len();
        [elements / (cols * layers * self.rows), layers, self.rows, cols]
    }

    fn low_query(&self, places: &[[usize; 3]]) -> Part {
        let Found { numbers, sizes, .. } = &self.found[Projection::QueryUp.reads()];
        let (cols, eps) = (sizes[0], Bounded::from_f64(EPS.into()));
        let mut want: Vec<f64> = numbers.iter().map(|x| f64::from(*x)).collect();
        let mut bounds = vec![0.0; want.len()];
        for &place in places {
            let mut low = self.rows(place, Projection::QueryDown, 1);
            rmsnorm(&mut low, Some(&self.layers[place[1]].query_norm), eps);
            for (col, x) in low.data.iter().enumerate() {
                let at = self.number(place) * cols + col;
                (want[at], bounds[at]) = (x.value(), x.error());
            }
        }
        let shape = self.shape(cols, want.len());
        let judge = Judge::within(LOW_QUERY, Dtype::F32, &shape, want, move |at, _| bounds[at], WHY);
        judge.without_metrics().on(self.outputs.get(LOW_QUERY).to_vec())
    }

    fn low_heads(&self, places: &[[usize; 3]]) -> Part {
        let Found { numbers, sizes, .. } = &self.found[Projection::OutputUp.reads()];
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
    fn codes(&self, number: usize, places: &[[usize; 3]]) -> [Part; 2] {
        let (coded, Found { numbers, sizes, .. }) = (&CODED[number], &self.found[number]);
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
            Judge::equal(name, dtype, &shape, want, WHY_CODES).on(self.outputs.get(name).to_vec())
        })
    }
}
