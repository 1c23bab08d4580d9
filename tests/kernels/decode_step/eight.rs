//! Attention's products in eight bits: the reference in f32, but for the products of codes, in the place of a kernel.

use reference::ops::rmsnorm::rmsnorm;
use reference::ops::rope::Rope;
use reference::paths::deepseek_v4::{Config, LayerType};
use reference::{Site, Tensor};
use safetensors::Dtype;
use ulplab::formats::codec;
use ulplab::ops::data::{f32_bytes, f32_values};
use ulplab::ops::{Outputs, Problem};
use ulplab_core::accumulator::{Factor, Operand, WGMMA_E4M3};

use super::super::{buffer, bytes, values};
use super::{Mistake, Together, formats, outputs, small, told_at_their_places, wrong};

/// Codes and scales of a row.
#[derive(Default)]
struct Row {
    codes: Vec<u8>,
    scales: Vec<f32>,
}

/// Attention's products of a token.
pub(super) struct Eight<'a> {
    problem: &'a Problem,
    config: &'a Config,
    rope: Rope<f32>,
    /// Each code as tensor cores read it.
    factors: Vec<Factor>,
    input: Row,
    low: Row,
    low_heads: Row,
}

/// Keeps bytes in a buffer.
pub(super) type Keep<'a> = dyn FnMut(&str, &[u8]) + 'a;

impl<'a> Eight<'a> {
    pub fn new(problem: &'a Problem, config: &'a Config) -> Self {
        let mut rope = Rope::new(config.rope_frequencies(LayerType::Heavy));
        rope.extend(buffer(problem, "cos").shape[0]);
        Self {
            problem,
            config,
            rope,
            factors: (0..256).map(|code| Operand::E4m3.factor(code)).collect(),
            input: Row::default(),
            low: Row::default(),
            low_heads: Row::default(),
        }
    }

    /// Puts what products of codes give in the place of those of numbers.
    pub fn before(&self, site: &Site, tensor: &mut Tensor<f32>, mistakes: &[Mistake]) {
        let (config, layer) = (self.config, site.layer.unwrap_or(0));
        let product = |weights: &str, layer: usize, row: &Row, heads: usize| {
            let values = self.product((weights, layer, 1), row, mistakes);
            Tensor::new([heads, values.len() / heads], values)
        };
        let heads = config.num_attention_heads;
        let (found, turned) = match site.name {
            "attention.query" => {
                let mut query = product("q_b", layer, &self.low, heads);
                rmsnorm(&mut query, None, 1e-6);
                (query, heads)
            }
            "attention.kv.window" => {
                let mut kv = product("kv", layer, &self.input, 1);
                rmsnorm(&mut kv, Some(&self.norm("kv_norm", layer)), 1e-6);
                (kv, 1)
            }
            "attention.indexer.query" => {
                let heads = config.index_n_heads;
                (product("index_q", (layer - 2) / 2, &self.low, heads), heads)
            }
            "attention.output" => (product("o_b", layer, &self.low_heads, 1), 0),
            _ => return,
        };
        let mut found = found;
        if turned > 0 {
            self.rope.apply(&mut found, turned, |_| site.first_row, false);
        }
        if mistakes.contains(&Mistake::Bit(site.name)) {
            found.data[3] = found.data[3].next_up();
        }
        assert_eq!(tensor.data.len(), found.data.len());
        tensor.data = found.data;
    }

    /// Makes codes of what has passed at a site, and what is computed of them before the next one.
    pub fn after(&mut self, site: &Site, x: &[f32], mistakes: &[Mistake], keep: &mut Keep) {
        let (groups, layer) = (self.config.o_groups, site.layer.unwrap_or(0));
        match site.name {
            "attention.input" => {
                self.input = coded("at_attention_input", x, x.len(), mistakes, keep);
                let low = self.product(("q_a", layer, 1), &self.input, mistakes);
                let mut low = Tensor::new([1, low.len()], low);
                rmsnorm(&mut low, Some(&self.norm("q_norm", layer)), 1e-6);
                if mistakes.contains(&Mistake::Scaled("at_low_query")) {
                    low.data.iter_mut().for_each(|x| *x *= 1.0001);
                }
                keep("at_low_query", &f32_bytes(&low.data));
                self.low = coded("at_low_query", &low.data, low.data.len(), mistakes, keep);
            }
            "attention.heads" => {
                let heads = coded("at_heads", x, x.len() / groups, mistakes, keep);
                let mut low = self.product(("o_a", layer, groups), &heads, mistakes);
                if mistakes.contains(&Mistake::Bit("at_low_heads")) {
                    low[3] = low[3].next_up();
                }
                keep("at_low_heads", &f32_bytes(&low));
                self.low_heads = coded("at_low_heads", &low, low.len(), mistakes, keep);
            }
            _ => {}
        }
    }

    fn norm(&self, name: &str, layer: usize) -> Vec<f32> {
        let cols = buffer(self.problem, name).shape[1];
        values(self.problem, name)[layer * cols..][..cols].to_vec()
    }

    /// A row by weights of so many groups, each of which multiplies its part of the row.
    fn product(&self, (weights, layer, groups): (&str, usize, usize), row: &Row, mistakes: &[Mistake]) -> Vec<f32> {
        let name = format!("{weights}_scales");
        let shape = |name: &str| {
            let [_, rows, cols] = buffer(self.problem, name).shape[..] else {
                panic!("{name} is no matrix of each layer")
            };
            [rows, cols]
        };
        let ([rows, cols], [down, across]) = (shape(weights), shape(&name));
        let w = &bytes(self.problem, weights)[layer * rows * cols..][..rows * cols];
        let scales = values(self.problem, &name);
        let scales = &scales[layer * down * across..][..down * across];
        let of = |codes: &[u8]| -> Vec<Factor> { codes.iter().map(|code| self.factors[usize::from(*code)]).collect() };
        let factors = of(&row.codes);
        assert_eq!((row.codes.len(), row.scales.len()), (groups * cols, groups * across));
        let [first_group, in_turn] = [Mistake::FirstGroup, Mistake::InTurn].map(|mistake| mistakes.contains(&mistake));
        let element = |at: usize| {
            let (group, in_group) = (at / (rows / groups), at % (rows / groups));
            let tile_row = group * down / groups + in_group / 128;
            let group = if first_group { 0 } else { group };
            let w_row = &w[(group * (rows / groups) + in_group) * cols..][..cols];
            let x_row = &factors[at / (rows / groups) * cols..][..cols];
            let mut sum = 0.0f32;
            for (block, (x, w)) in x_row.chunks(128).zip(w_row.chunks(128)).enumerate() {
                let of_x = row.scales[at / (rows / groups) * across + block];
                let of_w = scales[tile_row * across + block];
                let product = WGMMA_E4M3.dot(x, &of(w), 0.0);
                sum = match in_turn {
                    true => of_w.mul_add(of_x * product, sum),
                    false => (of_x * of_w).mul_add(product, sum),
                };
            }
            sum
        };
        (0..rows).map(element).collect()
    }
}

/// Numbers as codes, with a scale for 128 columns of rows of `cols`.
fn coded(name: &'static str, x: &[f32], cols: usize, mistakes: &[Mistake], keep: &mut Keep) -> Row {
    let encoded = codec("e4m3/b128:f32(deepgemm)").unwrap().encode(x, cols);
    let mut codes = encoded.part("data").to_vec();
    let mut scales = f32_values(encoded.part("scale"), Dtype::F32);
    let last = codes.len() - 1;
    if mistakes.contains(&Mistake::Code(name)) {
        codes[last] ^= 1;
    }
    if mistakes.contains(&Mistake::Scale(name)) {
        let last = scales.last_mut().unwrap();
        *last = last.next_up();
    }
    keep(&format!("{name}_codes"), &codes);
    keep(&format!("{name}_scales"), &f32_bytes(&scales));
    Row { codes, scales }
}

/// What the kernel made of codes is judged given these codes, right or wrong, and every bit of a product and of a code counts.
#[test]
fn decode_step_follows_products_of_codes() {
    let all = small(|case| case.name == "w8a8.small.b3");
    let (case, problem, config) = &all[0];
    let all: [Together; 5] = [
        &[
            (Mistake::Code("at_attention_input"), &["at_attention_input_codes"]),
            (Mistake::Code("at_low_query"), &["at_low_query_codes"]),
            (Mistake::Code("at_heads"), &["at_heads_codes"]),
            (Mistake::Code("at_low_heads"), &["at_low_heads_codes"]),
        ],
        &[
            (Mistake::Scale("at_attention_input"), &["at_attention_input_scales"]),
            (Mistake::Scale("at_low_query"), &["at_low_query_scales"]),
            (Mistake::Scale("at_heads"), &["at_heads_scales"]),
            (Mistake::Scale("at_low_heads"), &["at_low_heads_scales"]),
        ],
        &[
            (Mistake::Scaled("at_low_query"), &["at_low_query"]),
            (Mistake::Bit("at_low_heads"), &["at_low_heads"]),
        ],
        &[
            (Mistake::Scaled("attention.query"), &["at_query"]),
            (Mistake::FirstGroup, &["at_low_heads"]),
            (Mistake::Bit("attention.output"), &["at_attention_output"]),
        ],
        &[(
            Mistake::InTurn,
            &["at_attention_output", "at_low_query", "at_low_heads"],
        )],
    ];
    for together in all {
        told_at_their_places(together, |mistakes| {
            wrong(problem, &outputs(config, problem, formats(case), mistakes))
        });
    }
}

/// A kernel that multiplies numbers in the place of codes is told behind every product.
#[test]
fn decode_step_tells_products_of_numbers_from_those_of_codes() {
    let all = small(|case| case.name == "w8a8.small.b3");
    let (case, problem, config) = &all[0];
    let Outputs(right) = outputs(config, problem, formats(case), &[]);
    let Outputs(numbers) = outputs(config, problem, super::Formats::F32, &[]);
    let kept = |name: &str| name.starts_with("at_low") || name.ends_with("_codes") || name.ends_with("_scales");
    let mixed = right.into_iter().zip(numbers);
    let mixed = mixed.map(|(right, numbers)| if kept(right.0) { right } else { numbers });
    let found = wrong(problem, &Outputs(mixed.collect()));
    for name in [
        "at_query",
        "at_kv_window",
        "at_index_query",
        "at_attention_output",
        "at_attention_input_codes",
    ] {
        assert!(found.contains(&name), "{name}: {found:?}");
    }
}
