//! Runs E consecutive events of a token through the cores of Swap-FFN. Each core has a vector x. In an event, a router decides
//! for each core whether the core exchanges its x for the vector in one of its four memory banks; then J FFN steps update x. The
//! input is x_in (the input of the token) or x of all cores; the output is delta (the result of the token) or x. The operands of
//! the FFN's products are rounded to bf16, or to E4M3 with a scale per row; x, the router and all sums are f32; banks are bf16.
//!
//! The decisions of the router are discrete, so rounding makes any two kernels diverge sooner or later. Therefore the reference
//! takes the kernel's own decisions, and all other values are compared given these decisions: see [`follow`].

mod follow;
mod outcome;
mod resident;

use follow::Follower;
use rayon::prelude::*;
use reference::Tensor;
use reference::paths::swap_ffn::{BANKS, Collapse, Config, Ffn, Film, LaneRule, Router, pack};
use safetensors::Dtype;

use ulplab_core::formats::element;
use ulplab_operations::ops::data::{bf16_bytes, f32_bytes, round_to_bf16};
use ulplab_operations::ops::grid::{Grid, named};
use ulplab_operations::ops::judge::Judge;
use ulplab_operations::ops::{Batch, Buffer, Case, Data, Inputs, Op, Outputs, Problem, Scalar};

const EPS: f32 = 1e-6;
/// eps in cases with a residual. It is as large as the mean squares of small rows: with a smaller eps, kernels that use a wrong
/// eps would pass.
const LARGE_EPS: f32 = 1e-3;
/// Sizes that are the same in all cases: width of the router, number of pooled vectors (`POOLED`), and width between pooling and
/// decoder (`REDUCED`).
const ROUTER: usize = Config::STANDARD.d_router;
const POOLED: usize = Config::STANDARD.collapse_k;
const REDUCED: usize = Config::STANDARD.collapse_r;

pub use resident::{Part, Resident, TokenOutputs};

/// The operation `swap_ffn`.
pub struct SwapFfn;

impl Op for SwapFfn {
    fn name(&self) -> &'static str {
        "swap_ffn"
    }

    fn doc(&self) -> &'static str {
        "a token of Swap-FFN: cores exchange their vectors with banks of memory and share one FFN"
    }

    fn cases(&self) -> Vec<Case> {
        cases()
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let token = Token::new(case, data);
        let buffers = token.buffers();
        let steps = token.events * token.config.k_ffn;
        let flops = 6 * token.rows() * token.config.d_model * token.config.d_ff * steps;
        let batch = Batch::new("B", &["x_in", "x", "ram", "map", "delta"]).along(1, &["decisions"]);
        let batch = batch.together(token.batch, &[]);
        let eps = token.config.eps as f32;
        let follower = Follower::new(token);
        let parts = move |outputs: &Outputs| follower.parts(outputs);
        Ok(Problem {
            flops: flops as u64,
            scalars: vec![("eps", Scalar::F32(eps))],
            batch: Some(batch),
            ..Problem::new(buffers, vec![Judge::parts("decisions", parts, WHY)])
        })
    }
}

const WHY: &str = "the reference is run with the kernel's decisions: each must be the reference's if the logits behind it \
                   differ by more than 6 standard deviations of their error; numbers must be within 8 standard deviations \
                   of the rounding of operands, rows within 2; if nothing is rounded, all is equal bit for bit";

/// Rules by which an exchange changes the map from lanes to banks, with their names in test cases. Kernels receive a rule as its
/// index in this list.
const RULES: [(&str, LaneRule); 3] = [
    ("transpose", LaneRule::Transposition),
    ("move", LaneRule::MoveToFront),
    ("literal", LaneRule::Literal),
];

/// Returns the named sizes of a case. `rule` is the index of the lane rule in [`RULES`]; `size` is the number of bytes of an
/// operand.
fn dims(
    [b, c, d, f]: [i64; 4],
    [e, j, begin, end, residual]: [i64; 5],
    rule: usize,
    e4m3: bool,
) -> Vec<(&'static str, i64)> {
    let size = if e4m3 { 1 } else { 2 };
    let sizes = [b, c, d, f, e, j, begin, end, residual, rule as i64, size];
    named("B C D F E J begin end RES rule size", sizes)
}

fn cases() -> Vec<Case> {
    let grid = |weights: &'static str, rule: &'static str| {
        let number = RULES.iter().position(|(name, _)| *name == rule).expect("a rule");
        let dims = move |(sizes, done)| dims(sizes, done, number, weights == "e4m3");
        Grid::new(format!("{weights}.{rule}"), &[("W", weights), ("L", rule)], dims)
    };
    let full = |batch| [batch, 512, 1024, 4096];
    let (small, ragged, long) = ([2, 24, 64, 96], [1, 37, 72, 100], [1, 48, 1024, 4096]);
    // Each list holds the number of events, the number of FFN steps, and the flags begin, end and residual.
    let (token, maps, event, swap) = ([8, 2, 1, 1, 0], [1, 0, 0, 0, 0], [1, 2, 0, 0, 0], [1, 0, 1, 1, 0]);
    let mut grids = Vec::new();
    for weights in ["bf16", "e4m3"] {
        let whole = grid(weights, "transpose").timed("token.b1", (full(1), token));
        grids.push(whole.timed("token.b4", (full(4), token)));
        grids.extend(RULES.map(|(rule, _)| {
            let each = weights == "bf16" || rule == "transpose";
            let grid = grid(weights, rule).when(each, |grid| grid.edges("maps", (full(4), maps)));
            // The variant `simple` supports 1,536 rows only in cases without matrix products.
            let grid = grid.when(rule != "transpose", |grid| grid.large("swap", (full(3), swap)));
            grid.random("small", (small, token))
        }));
        grids.push(
            grid(weights, "transpose")
                .edges("ties", (full(1), maps))
                .random("event", (full(1), event))
                .large("event.b3", (full(3), event))
                .random("event.b4", (full(4), event))
                .random("events", (full(1), [2, 2, 0, 0, 0]))
                .random("long", (long, token))
                .random("residual", (full(1), [1, 2, 0, 0, 1]))
                // Use as many rows as the variants without split-K need.
                .random("residual.b4", (full(4), [1, 2, 0, 0, 1]))
                // Use fewer than 64 cores, the number that the collapse reads at a time.
                .random("cores.b16", ([16, 32, 1024, 4096], [1, 1, 0, 1, 1])),
        );
        // Use more than 64 cores, and not a multiple of 64.
        let many = [1, 101, 1024, 112];
        let grid = grid(weights, "move").random("ragged", (ragged, [2, 1, 0, 1, 1]));
        grids.push(grid.random("many", (many, [2, 1, 0, 1, 1])));
    }
    grids.into_iter().flat_map(Grid::done).collect()
}

/// A stored matrix: its decoded values, and for E4M3 the codes and the scale of each row.
struct Weight {
    values: Tensor<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Weight {
    fn new(mut values: Tensor<f32>, e4m3: bool) -> Self {
        let (rows, cols) = (values.rows(), values.cols());
        let (mut codes, mut scales) = (Vec::new(), vec![1.0; rows]);
        if e4m3 {
            let element = element("e4m3").expect("E4M3 is an element");
            codes = vec![0; values.data.len()];
            let rows = values.data.par_chunks_mut(cols).zip(codes.par_chunks_mut(cols));
            rows.zip(&mut scales).for_each(|((values, codes), scale)| {
                let amax = values.iter().fold(0f32, |amax, x| amax.max(x.abs()));
                *scale = if amax > 0.0 { amax / 448.0 } else { 1.0 };
                for (value, code) in values.iter_mut().zip(codes) {
                    *code = element.encode(*value / *scale) as u8;
                    *value = element.decode((*code).into()) * *scale;
                }
            });
        } else {
            round_to_bf16(&mut values.data);
        }
        Self { values, codes, scales }
    }

    fn buffers(&self, name: &'static str, scale: &'static str) -> [Buffer; 2] {
        let shape = &self.values.shape;
        let values = match self.codes.is_empty() {
            true => Buffer::bf16(name, shape, &self.values.data),
            false => Buffer::input(name, Dtype::U8, shape, self.codes.clone()),
        };
        [values, Buffer::f32(scale, &shape[..1], &self.scales)]
    }
}

/// Inputs of a case.
struct Token {
    config: Config,
    batch: usize,
    events: usize,
    begin: bool,
    end: bool,
    e4m3: bool,
    x_in: Tensor<f32>,
    film: Film<f32>,
    /// The unfolded router: weights of the norm and of the projection, weights `[5, ROUTER]` and biases of the five logits.
    router_g: Vec<f32>,
    router_w: Tensor<f32>,
    heads: Tensor<f32>,
    bias: [f32; 1 + BANKS],
    ffn_g: Vec<f32>,
    w1: Weight,
    w3: Weight,
    w2: Weight,
    collapse: Collapse<f32>,
    x: Tensor<f32>,
    ram: Tensor<f32>,
    map: Vec<u8>,
    delta: Tensor<f32>,
}

impl Token {
    fn new(case: &Case, data: &Data) -> Self {
        let [batch, cores, width, inner, events, steps] = ["B", "C", "D", "F", "E", "J"].map(|dim| case.dim(dim));
        let rows = batch * cores;
        let e4m3 = case.key("W") == "e4m3";
        let edges = case.inputs == Inputs::Edges;
        let drawn = |name: &str, shape: &[usize], mean: f32, deviation: f32| {
            let len = shape.iter().product();
            Tensor::new(shape, data.around(&format!("swap_ffn/{name}"), len, mean, deviation))
        };
        let bf16 = |name: &str, shape: &[usize], deviation: f32| {
            let mut values = drawn(name, shape, 0.0, deviation);
            round_to_bf16(&mut values.data);
            values
        };
        let residual = case.dim("RES") == 1;
        // Elements of the normalized vector n are about 1. With this standard deviation of the weights, gates (elements of W1·n)
        // are also about 1. In some cases, two neighbouring gates have larger weights: in some rows, the exponential of each gate
        // is within the range of f32, but the product of the two is not. Such cases have several steps, because after one step
        // this pair can have most of a row's error, which then does not average out.
        let steep = residual && inner == 4096 && steps > 1;
        let weight = |name: &str, shape: [usize; 2]| {
            let deviation = (shape[1] as f32).sqrt().recip();
            let mut values = match steps {
                0 => Tensor::full(shape, 0.0),
                _ => drawn(name, &shape, 0.0, deviation),
            };
            if steep && name == "w1" {
                values.data[2 * width..4 * width].iter_mut().for_each(|w| *w *= 60.0);
            }
            Weight::new(values, e4m3)
        };
        let deviation = (width as f32).sqrt().recip();
        let mut alpha = drawn("alpha", &[cores, POOLED], 0.0, 0.6);
        alpha.data.iter_mut().for_each(|a| *a = a.exp() / cores as f32);
        let mut x = drawn("x", &[rows, width], 0.0, 1.0);
        // Rows have very different magnitudes, because norms must handle any magnitude. Some rows are larger by 2^24; a step
        // without a residual gives numbers of about 1, so the scales of these rows must shrink after the first step.
        let shrinks = steps > 1 && !residual;
        let exponent = |row: usize| (row * 5 % 9) as i32 - 4 + if shrinks && row % 7 == 3 { 24 } else { 0 };
        let sizes = x.data.par_chunks_mut(width).enumerate();
        sizes.for_each(|(row, x)| x.iter_mut().for_each(|x| *x *= 2f32.powi(exponent(row))));
        let bias = drawn("bias", &[1 + BANKS], 0.0, 0.07).data;
        let mut token = Self {
            config: Config {
                d_model: width,
                d_ff: inner,
                core_count: cores,
                n_events: events,
                k_ffn: steps,
                eps: f64::from(if residual { LARGE_EPS } else { EPS }),
                residual,
                lane_rule: RULES[case.dim("rule")].1,
                ..Config::STANDARD
            },
            batch,
            events,
            begin: case.dim("begin") == 1,
            end: case.dim("end") == 1,
            e4m3,
            x_in: bf16("x_in", &[batch, width], 1.0),
            film: Film {
                scale: drawn("scale", &[cores, width], 1.0, 0.6),
                shift: drawn("shift", &[cores, width], 0.0, 0.6),
                alpha,
            },
            router_g: drawn("router_g", &[width], 1.0, 0.2).data,
            router_w: bf16("router_w", &[ROUTER, width], deviation),
            heads: drawn("heads", &[1 + BANKS, ROUTER], 0.0, 0.1),
            bias: std::array::from_fn(|i| bias[i]),
            ffn_g: drawn("ffn_g", &[width], 1.0, 0.2).data,
            w1: weight("w1", [inner, width]),
            w3: weight("w3", [inner, width]),
            w2: weight("w2", [width, inner]),
            collapse: Collapse {
                basis: bf16("basis", &[POOLED, REDUCED, width], deviation),
                decoder: bf16("decoder", &[width, REDUCED], 0.07),
            },
            x,
            ram: bf16("ram", &[batch, cores, BANKS, width], 1.0),
            map: (0..rows).map(permutation).collect(),
            delta: drawn("delta", &[batch, width], 0.0, 1.0),
        };
        if edges {
            token.edges();
        }
        token
    }

    /// Replaces the inputs so that every map (order of a core's banks) occurs with every decision of the router. The first five
    /// elements of a row become its logits: a gate logit of 0 or less means no exchange, and the bank with the largest logit (the
    /// first of equal ones) is selected. The other elements include ties of bf16, subnormals and zeros of both signs.
    fn edges(&mut self) {
        let identity = |rows: usize, cols: usize| {
            let mut matrix = Tensor::full([rows, cols], 0.0);
            (0..=BANKS).for_each(|i| matrix.data[i * cols + i] = 1.0);
            matrix
        };
        let width = self.config.d_model;
        self.router_w = identity(ROUTER, width);
        self.heads = identity(1 + BANKS, ROUTER);
        self.router_g = vec![1.0; width];
        self.bias = [0.0; 1 + BANKS];
        for (row, x) in self.x.data.chunks_exact_mut(width).enumerate() {
            let (gate, bank, turn) = (row / 256 % 2, row / 512 % BANKS, row / 2);
            for x in &mut *x {
                // Undo the power of two of the row: the router divides by the norm of a row, which is then about the same for all
                // rows.
                *x *= 2f32.powi(4 - (row * 5 % 9) as i32);
            }
            for (at, x) in x.iter_mut().enumerate() {
                let bits = x.to_bits();
                *x = match (at + row) % 11 {
                    0 => f32::from_bits(bits & 0xffff_0000 | 0x8000),
                    1 => f32::from_bits(bits & 0xffff_0000 | 0x7fff),
                    2 => f32::from_bits(bits & 0x807f_ffff),
                    3 => f32::from_bits(bits & 0x8000_0000),
                    _ => *x,
                };
            }
            x[0] = [[0.0, -1.5][turn % 2], 1.5][gate];
            for lane in 0..BANKS {
                x[1 + lane] = match lane.cmp(&bank) {
                    std::cmp::Ordering::Less => 1.0,
                    std::cmp::Ordering::Equal => 2.0,
                    std::cmp::Ordering::Greater => [0.5, 2.0][turn % 2],
                };
            }
        }
        self.map = (0..self.map.len()).map(|row| row as u8).collect();
    }

    fn rows(&self) -> usize {
        self.batch * self.config.core_count
    }

    fn router(&self) -> Router<f32> {
        Router::Unfolded {
            norm: self.router_g.clone(),
            projection: self.router_w.clone(),
            weight: self.heads.clone(),
            bias: self.bias,
        }
        .folded()
    }

    fn ffn(&self) -> Ffn<f32> {
        Ffn {
            norm: self.ffn_g.clone(),
            w1: self.w1.values.clone(),
            w3: self.w3.values.clone(),
            w2: self.w2.values.clone(),
        }
    }

    fn buffers(&self) -> Vec<Buffer> {
        let in_place = |name, dtype, x: &Tensor<f32>, bytes| Buffer::in_place(name, dtype, &x.shape, bytes);
        let f32 = |name, x: &Tensor<f32>| Buffer::f32(name, &x.shape, &x.data);
        let bf16 = |name, x: &Tensor<f32>| Buffer::bf16(name, &x.shape, &x.data);
        let Router::Folded { weight, .. } = self.router() else {
            unreachable!("it was folded");
        };
        let (swap, banks) = self.heads.data.split_at(ROUTER);
        let banks: Vec<f32> = (0..ROUTER)
            .flat_map(|m| (0..BANKS).map(move |bank| banks[bank * ROUTER + m]))
            .collect();
        let mut buffers = vec![
            bf16("x_in", &self.x_in),
            f32("film_scale", &self.film.scale),
            f32("film_shift", &self.film.shift),
            f32("film_alpha", &self.film.alpha),
            f32("router", &weight),
            Buffer::f32("router_bias", &[1 + BANKS], &self.bias),
            bf16("router_w", &self.router_w),
            Buffer::f32("router_g", &[self.router_g.len()], &self.router_g),
            Buffer::f32("router_swap", &[ROUTER], swap),
            Buffer::f32("bank_w", &[ROUTER, BANKS], &banks),
            Buffer::f32("ffn_g", &[self.ffn_g.len()], &self.ffn_g),
            bf16("basis", &self.collapse.basis),
            bf16("decoder", &self.collapse.decoder),
            in_place("x", Dtype::F32, &self.x, f32_bytes(&self.x.data)),
            in_place("ram", Dtype::BF16, &self.ram, bf16_bytes(&self.ram.data)),
            Buffer::in_place("map", Dtype::U8, &[self.rows()], self.map.clone()),
            Buffer::output("decisions", Dtype::U8, &[self.events, self.rows()]),
            in_place("delta", Dtype::F32, &self.delta, f32_bytes(&self.delta.data)),
        ];
        buffers.extend(self.w1.buffers("w1", "w1_scale"));
        buffers.extend(self.w3.buffers("w3", "w3_scale"));
        buffers.extend(self.w2.buffers("w2", "w2_scale"));
        buffers
    }
}

/// Returns one of the 24 maps (lane to bank) that are permutations, chosen by `number`.
fn permutation(number: usize) -> u8 {
    let mut left = vec![0, 1, 2, 3];
    let mut rest = number * 7;
    pack(std::array::from_fn(|_| {
        let at = rest % left.len();
        rest /= left.len();
        left.remove(at)
    }))
}
