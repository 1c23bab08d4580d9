use reference::Tensor;
use ulplab::formats::element;
use ulplab::ops::data::{bf16_bytes, f32_bytes, round_to_bf16};
use ulplab::ops::{Case, Data, Problem};

use super::{accepts_only, buffer, e4m3, scalar, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    OnlyLaneZero,
    MovedToFront,
    NotWrittenBack,
    NeighbourMap,
    GateAtZero,
    LastBank,
    LogicalBank,
    CoreNotPooled,
    NormUnweighted,
    ResidualTurned,
    HiddenLost,
    ColumnsShifted,
    SquaresLost,
}

/// A stretch of a token in f32 from the buffers alone, operands rounded as kernels round them.
struct Kernel<'a> {
    case: &'a Case,
    problem: &'a Problem,
    mistake: Mistake,
    w1: Tensor<f32>,
    w3: Tensor<f32>,
    w2: Tensor<f32>,
}

impl<'a> Kernel<'a> {
    fn new(case: &'a Case, problem: &'a Problem) -> Self {
        let linear = |name: &str, scale: &str| {
            let buffer = buffer(problem, name);
            let cols = buffer.shape[1];
            let data = match case.key("W") {
                "bf16" => values(problem, name),
                _ => {
                    let mut rows = e4m3(&buffer.bytes);
                    for (row, scale) in rows.chunks_exact_mut(cols).zip(values(problem, scale)) {
                        row.iter_mut().for_each(|x| *x *= scale);
                    }
                    rows
                }
            };
            Tensor::new(buffer.shape.clone(), data)
        };
        Self {
            case,
            problem,
            mistake: Mistake::None,
            w1: linear("w1", "w1_scale"),
            w3: linear("w3", "w3_scale"),
            w2: linear("w2", "w2_scale"),
        }
    }

    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        values(self.problem, name)
    }

    /// Operands as they are stored.
    fn rounded(&self, mut x: Vec<f32>, cols: usize) -> Tensor<f32> {
        if self.case.key("W") == "bf16" {
            round_to_bf16(&mut x);
        } else {
            let e4m3 = element("e4m3").unwrap();
            for row in x.chunks_exact_mut(cols) {
                let amax = row.iter().fold(0f32, |amax, x| amax.max(x.abs()));
                let scale = if amax > 0.0 { amax / 448.0 } else { 1.0 };
                row.iter_mut()
                    .for_each(|x| *x = e4m3.decode(e4m3.encode(*x / scale)) * scale);
            }
        }
        Tensor::new([x.len() / cols, cols], x)
    }

    fn inverse_norm(&self, x: &[f32]) -> f32 {
        let counted = match self.mistake {
            Mistake::SquaresLost => x.len() / 8 * 7,
            _ => x.len(),
        };
        let squares: f32 = x[..counted].iter().map(|x| x * x).sum();
        1.0 / (squares / x.len() as f32 + scalar(self.problem, "eps")).sqrt()
    }

    fn update(&self, map: u8, selected: usize) -> u8 {
        let mut lanes: Vec<u8> = (0..4).map(|i| map >> (2 * i) & 3).collect();
        let rule = match self.mistake {
            Mistake::OnlyLaneZero => "literal",
            Mistake::MovedToFront => "move",
            _ => self.case.key("L"),
        };
        match rule {
            "transpose" => lanes.swap(0, selected),
            "move" => {
                let lane = lanes.remove(selected);
                lanes.insert(0, lane);
            }
            _ => lanes[0] = lanes[selected],
        }
        lanes[0] | lanes[1] << 2 | lanes[2] << 4 | lanes[3] << 6
    }

    fn event(&self, x: &mut [f32], ram: &mut [f32], map: &mut [u8]) -> Vec<u8> {
        let width = self.case.dim("D");
        let (router, bias) = (self.floats("router"), self.floats("router_bias"));
        let maps = map.to_vec();
        let mut codes = Vec::new();
        for (row, x) in x.chunks_exact_mut(width).enumerate() {
            let norm = self.inverse_norm(x);
            let l: Vec<f32> = router
                .chunks_exact(width)
                .zip(&bias)
                .map(|(r, bias)| norm * r.iter().zip(&*x).map(|(r, x)| r * x).sum::<f32>() + bias)
                .collect();
            let gate = l[0] > 0.0 || self.is(Mistake::GateAtZero) && l[0] == 0.0;
            let mut bank = 0;
            for i in 1..4 {
                if l[1 + i] > l[1 + bank] || self.is(Mistake::LastBank) && l[1 + i] == l[1 + bank] {
                    bank = i;
                }
            }
            codes.push(u8::from(gate) << 2 | bank as u8);
            if !gate {
                continue;
            }
            let named = if self.is(Mistake::NeighbourMap) {
                maps[row ^ 1 & (maps.len() - 1 - row).min(1)]
            } else {
                maps[row]
            };
            let physical = match self.mistake {
                Mistake::LogicalBank => bank,
                _ => usize::from(named >> (2 * bank) & 3),
            };
            let stored = &mut ram[(row * 4 + physical) * width..][..width];
            let mut leaving = x.to_vec();
            round_to_bf16(&mut leaving);
            x.copy_from_slice(stored);
            if !self.is(Mistake::NotWrittenBack) {
                stored.copy_from_slice(&leaving);
            }
            map[row] = self.update(maps[row], bank);
        }
        codes
    }

    fn step(&self, x: &mut Vec<f32>) {
        let (width, inner) = (self.case.dim("D"), self.case.dim("F"));
        let g = self.floats("ffn_g");
        let n = x.chunks_exact(width).flat_map(|x| {
            let norm = self.inverse_norm(x);
            let weight = |k: usize| if self.is(Mistake::NormUnweighted) { 1.0 } else { g[k] };
            (0..width).map(move |k| x[k] * norm * weight(k)).collect::<Vec<_>>()
        });
        let n = self.rounded(n.collect(), width);
        let (gate, up) = (self.w1.apply(&n).data, self.w3.apply(&n).data);
        let h = (0..gate.len()).map(|at| {
            let (row, column) = (at / inner, at % inner);
            let other = if self.is(Mistake::ColumnsShifted) {
                (column + 8) % inner
            } else {
                column
            };
            let lost = self.is(Mistake::HiddenLost) && column >= inner / 4 * 3;
            let h = gate[at] / (1.0 + (-gate[at]).exp()) * up[row * inner + other];
            if lost { 0.0 } else { h }
        });
        let h = self.rounded(h.collect(), inner);
        let y = self.w2.apply(&h).data;
        match (self.case.dim("RES") == 1) != self.is(Mistake::ResidualTurned) {
            true => x.iter_mut().zip(&y).for_each(|(x, y)| *x += y),
            false => *x = y,
        }
    }

    fn collapse(&self, x: &[f32]) -> Vec<f32> {
        let (cores, width) = (self.case.dim("C"), self.case.dim("D"));
        let [alpha, basis, decoder] = ["film_alpha", "basis", "decoder"].map(|name| self.floats(name));
        let rank = decoder.len() / width;
        let token = |x: &[f32]| {
            let mut pooled = vec![0f32; 8 * width];
            let skipped = usize::from(self.is(Mistake::CoreNotPooled));
            for (core, x) in x.chunks_exact(width).enumerate().skip(skipped) {
                for (k, pooled) in pooled.chunks_exact_mut(width).enumerate() {
                    pooled
                        .iter_mut()
                        .zip(x)
                        .for_each(|(sum, x)| *sum += alpha[core * 8 + k] * x);
                }
            }
            let reduced = |r: usize| {
                let products =
                    (0..8 * width).map(|at| basis[(at / width * rank + r) * width + at % width] * pooled[at]);
                let z: f32 = products.sum();
                z / (1.0 + (-z).exp())
            };
            let reduced: Vec<f32> = (0..rank).map(reduced).collect();
            let decoded = decoder
                .chunks_exact(rank)
                .map(|row| row.iter().zip(&reduced).map(|(w, z)| w * z).sum());
            decoded.collect::<Vec<f32>>()
        };
        x.chunks_exact(cores * width).flat_map(token).collect()
    }

    /// What is left if this goes wrong.
    fn outputs(&mut self, mistake: Mistake) -> Vec<(&'static str, Vec<u8>)> {
        self.mistake = mistake;
        self.run()
    }

    fn run(&self) -> Vec<(&'static str, Vec<u8>)> {
        let [cores, width] = ["C", "D"].map(|dim| self.case.dim(dim));
        let mut x = self.floats("x");
        if self.case.dim("begin") == 1 {
            let [x_in, scale, shift] = ["x_in", "film_scale", "film_shift"].map(|name| self.floats(name));
            for (at, x) in x.iter_mut().enumerate() {
                let core = at % (cores * width);
                *x = x_in[at / (cores * width) * width + at % width] * scale[core] + shift[core];
            }
        }
        let mut ram = self.floats("ram");
        let mut map = self
            .problem
            .buffers
            .iter()
            .find(|buffer| buffer.name == "map")
            .unwrap()
            .bytes
            .clone();
        let mut codes = Vec::new();
        for _ in 0..self.case.dim("E") {
            codes.extend(self.event(&mut x, &mut ram, &mut map));
            (0..self.case.dim("J")).for_each(|_| self.step(&mut x));
        }
        let delta = match self.case.dim("end") {
            1 => self.collapse(&x),
            _ => self.floats("delta"),
        };
        vec![
            ("decisions", codes),
            ("x", f32_bytes(&x)),
            ("ram", bf16_bytes(&ram)),
            ("map", map),
            ("delta", f32_bytes(&delta)),
        ]
    }
}

/// Whether outputs are refused. Those of the right kernel are known not to be.
fn refused(problem: &Problem, right: &[(&'static str, Vec<u8>)], outputs: Vec<(&'static str, Vec<u8>)>) -> bool {
    outputs != right && violations(problem, outputs) > 0.0
}

fn each(wanted: impl Fn(&Case) -> bool, check: impl Fn(&Case, &Problem)) {
    let op = ulplab::ops::find("swap_ffn").unwrap();
    let sites = |_: &str| Err("no model".to_string());
    let data = Data::new(1, &sites);
    let cases: Vec<Case> = op.cases().into_iter().filter(|case| wanted(case)).collect();
    assert!(!cases.is_empty());
    for case in cases {
        check(&case, &op.problem(&case, &data).unwrap());
    }
}

#[test]
fn swap_ffn_accepts_what_comes_of_the_decisions_and_no_mistake() {
    use Mistake::*;
    let of_the_swap = [
        OnlyLaneZero,
        MovedToFront,
        NotWrittenBack,
        NeighbourMap,
        GateAtZero,
        LastBank,
        LogicalBank,
        CoreNotPooled,
    ];
    let of_the_ffn = [NormUnweighted, ResidualTurned, HiddenLost, ColumnsShifted, SquaresLost];
    each(
        |case| !case.timed && (case.dim("D") < 1024 || case.dim("J") == 0),
        |case, problem| {
            let mut kernel = Kernel::new(case, problem);
            let right = kernel.outputs(None);
            match case.dim("J") {
                0 => assert_eq!(violations(problem, right.clone()), 0.0, "{}", case.name),
                _ => accepts_only(case, problem, &right),
            }
            // E4M3 leaves so much open that a part of a norm is within it. Without an FFN a norm only scales logits, and turns only
            // those that are as near to a bias as their error.
            let of_the_ffn = of_the_ffn
                .iter()
                .filter(|_| case.key("W") == "bf16" && case.dim("J") > 0);
            for mistake in of_the_swap.iter().chain(of_the_ffn) {
                // Where it makes no difference it is none.
                let wrong = kernel.outputs(*mistake);
                let expected = wrong != right;
                assert_eq!(refused(problem, &right, wrong), expected, "{}: {mistake:?}", case.name);
            }
        },
    );
}

#[test]
fn swap_ffn_accepts_the_real_size() {
    each(
        |case| {
            ["transpose.event", "transpose.long", "bf16.transpose.residual"]
                .iter()
                .any(|name| case.name.ends_with(name))
        },
        |case, problem| {
            let mut kernel = Kernel::new(case, problem);
            let right = kernel.outputs(Mistake::None);
            assert_eq!(violations(problem, right.clone()), 0.0, "{}", case.name);
            for mistake in [Mistake::HiddenLost, Mistake::CoreNotPooled] {
                let wrong = kernel.outputs(mistake);
                let expected = mistake == Mistake::HiddenLost || case.dim("end") == 1;
                assert_eq!(refused(problem, &right, wrong), expected, "{}: {mistake:?}", case.name);
            }
        },
    );
}
