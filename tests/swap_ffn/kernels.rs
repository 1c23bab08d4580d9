//! Kernels in the place of the path: calls as they are made, answered by the reference.

use reference::paths::swap_ffn::{Collapse, Config, Ffn, Film, LaneRule, Model, Router, State};
use reference::{Numerics, Site, Tensor};
use ulplab::formats::codec;
use ulplab::ops::Outputs;
use ulplab::ops::call::{Call, Runner};
use ulplab::ops::data::f32_values;
use ulplab::record::{Phase, Record};
use ulplab::studies::swap_ffn::{Kernels, Method, Weights, exact, measure};

use super::SEED;

use super::experiment;

/// Answers calls by what they hold, with operands and banks in bf16.
struct Cpu {
    ops: Vec<String>,
    /// Whether what leaves for a bank is lost.
    lossy: bool,
}

struct Bf16;

impl Numerics<f32> for Bf16 {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if ["ffn.n", "ffn.h", "ram"].contains(&site.name) {
            let cols = tensor.cols();
            codec("bf16").unwrap().round(&mut tensor.data, cols);
        }
    }
}

fn tensor(call: &Call, name: &str) -> Tensor<f32> {
    let buffer = call.problem.buffers.iter().find(|buffer| buffer.name == name).unwrap();
    Tensor::new(buffer.shape.clone(), f32_values(&buffer.bytes, buffer.dtype))
}

impl Runner for Cpu {
    fn ops(&self) -> &[String] {
        &self.ops
    }

    fn run(&self, call: Call) -> Result<Outputs, String> {
        let dim = |name: &str| call.case.dim(name);
        let config = Config {
            d_model: dim("D"),
            d_ff: dim("F"),
            core_count: dim("C"),
            n_events: dim("E"),
            k_ffn: dim("J"),
            residual: dim("RES") == 1,
            lane_rule: LaneRule::Transposition,
            ..Config::STANDARD
        };
        assert_eq!((call.case.key("W"), call.case.key("L")), ("bf16", "transpose"));
        let bias = tensor(&call, "router_bias").data;
        let film = Film {
            scale: tensor(&call, "film_scale"),
            shift: tensor(&call, "film_shift"),
            alpha: tensor(&call, "film_alpha"),
        };
        let router = Router::Folded {
            weight: tensor(&call, "router"),
            bias: std::array::from_fn(|at| bias[at]),
        };
        let ffn = Ffn {
            norm: tensor(&call, "ffn_g").data,
            w1: tensor(&call, "w1"),
            w3: tensor(&call, "w3"),
            w2: tensor(&call, "w2"),
        };
        let collapse = Collapse {
            basis: tensor(&call, "basis"),
            decoder: tensor(&call, "decoder"),
        };
        let model = Model::new(config, film, router, ffn, collapse)?;
        let map = call.problem.buffers.iter().find(|buffer| buffer.name == "map").unwrap();
        let ram = tensor(&call, "ram");
        let mut state = State {
            ram: ram.clone(),
            map: map.bytes.clone(),
            tokens: 0,
        };
        let mut x = match dim("begin") {
            1 => model.spread(&tensor(&call, "x_in"), &state, &mut Bf16)?,
            _ => tensor(&call, "x"),
        };
        let mut codes = Vec::new();
        for event in 0..dim("E") {
            let decisions = model.event(&mut x, &mut state, event, &mut Bf16)?;
            codes.extend((0..x.rows()).map(|row| decisions.code(row)));
        }
        let delta = match dim("end") {
            1 => model.collapse(&x, &state, &mut Bf16)?,
            _ => tensor(&call, "delta"),
        };
        if self.lossy {
            state.ram = ram;
        }
        let f32s = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let bf16 = |x: &[f32]| {
            x.iter()
                .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
                .collect::<Vec<u8>>()
        };
        Ok(Outputs(vec![
            ("x", f32s(&x.data)),
            ("ram", bf16(&state.ram.data)),
            ("map", state.map),
            ("decisions", codes),
            ("delta", f32s(&delta.data)),
        ]))
    }
}

/// Records of a recipe, or of kernels in its place, that are not counts of other rows.
fn measured(recipe: &str, lossy: Option<bool>) -> Vec<Record> {
    let (mut study, _) = experiment();
    for source in &mut study.sources {
        let Weights::SwapFfn(sizes) = &mut source.from;
        sizes.collapse_r = Config::STANDARD.collapse_r;
    }
    let want = exact(&study, SEED, "draw-1").unwrap();
    let recipe = study.recipes.iter().find(|other| other.name == recipe).unwrap();
    let mut method = Method::resolve(recipe, &study.sources, SEED)
        .map_err(|mistake| mistake.message)
        .unwrap();
    method.kernels = lossy.map(|lossy| Kernels {
        runner: Box::new(Cpu {
            ops: vec!["swap_ffn".into()],
            lossy,
        }),
        e4m3: false,
    });
    let records = [Phase::Local, Phase::Cumulative].map(|phase| {
        let blank = Record::blank(&format!("r/{phase}/draw-1"), "r", phase, "draw-1");
        measure(&blank, &study, SEED, &method, &want).unwrap()
    });
    records.concat()
}

fn figure(records: &[Record], phase: Phase, site: &str, metric: &str) -> f64 {
    let found = records
        .iter()
        .find(|record| (record.phase, record.site.as_str(), record.metric.as_str()) == (phase, site, metric));
    found.unwrap_or_else(|| panic!("{phase} {site} {metric}")).value
}

/// Kernels that round as a recipe does are as far from the reference as the recipe.
#[test]
fn kernels_are_measured_as_what_they_round() {
    let (emulated, kernels) = (measured("bf16_operands", None), measured("bf16_operands", Some(false)));
    for (phase, site, metric) in [
        (Phase::Local, "plain.decisions.2", "gate_agreement"),
        (Phase::Local, "plain.decisions.2", "flips_outside"),
        (Phase::Local, "residual.next.1", "gate_agreement"),
        (Phase::Cumulative, "residual.lanes.1", "same_history"),
        (Phase::Cumulative, "residual.ram.2", "relative_l2"),
        (Phase::Cumulative, "residual.delta.1", "relative_l2"),
    ] {
        let [want, got] = [&emulated, &kernels].map(|records| figure(records, phase, site, metric));
        // Weights and banks are in bf16's set; folding is done in f64 both times.
        assert!(
            (want - got).abs() <= 1e-6 * want.abs(),
            "{phase} {site} {metric}: {got}, not {want}"
        );
    }
}

#[test]
fn kernels_that_lose_a_bank_are_noticed() {
    let records = measured("bf16_operands", Some(true));
    assert!(figure(&records, Phase::Cumulative, "residual.ram.1", "relative_l2") > 0.1);
}
