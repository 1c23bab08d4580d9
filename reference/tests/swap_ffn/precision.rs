//! f32 against f64, from the same x, within bounds of rounding error analysis: u = 2^-24 for each operation, and n u for a sum
//! of n terms in whatever order.

use reference::paths::swap_ffn::{Config, Model, RouterForm, State};
use reference::{Plain, Tensor};

use super::definition::{Definition, Fault};
use super::support::*;
use crate::measure::relative;

const U: f64 = 1.0 / (1 << 24) as f64;

/// Σ |w| |x| for every row of w, with `each` in the place of |x|.
fn sums(weight: &Tensor<f64>, each: impl Fn(usize) -> f64) -> Vec<f64> {
    let row = |row| (0..weight.cols()).map(|at| weight.row(row)[at].abs() * each(at)).sum();
    (0..weight.rows()).map(row).collect()
}

/// By how much logits and an FFN step in f32 may be off, of this x. n has the error of a sum of squares, halved by the root,
/// and of six operations more; exp in f32 is within two ulp, so silu within 8 u of itself, and its slope is below 1.1.
struct Bounds<'a>(Definition<'a>);

impl Bounds<'_> {
    fn of(&self, name: &str) -> &Tensor<f64> {
        &self.0.weights[name]
    }

    fn normed(&self, x: &[f64], weight: &str) -> Vec<f64> {
        let squares: f64 = x.iter().map(|x| x * x).sum();
        let scale = (squares / x.len() as f64 + self.0.config.eps).sqrt().recip();
        x.iter()
            .zip(&self.of(weight).data)
            .map(|(x, g)| x * scale * g)
            .collect()
    }

    /// Of the unfolded router; the folded one adds up fewer terms.
    fn logits(&self, x: &[f64]) -> Vec<f64> {
        let (width, inner) = (x.len() as f64, self.0.config.d_router as f64);
        let n = self.normed(x, "router_norm");
        let z = sums(self.of("router_w"), |at| n[at].abs());
        let terms = 1.5 * width + inner + 12.0;
        let swap: f64 = self
            .of("router_swap_w")
            .data
            .iter()
            .zip(&z)
            .map(|(w, z)| w.abs() * z)
            .sum();
        let lane = |lane: usize| {
            (0..z.len())
                .map(|m| self.of("bank_w").row(m)[lane].abs() * z[m])
                .sum::<f64>()
        };
        let biases = self.of("router_swap_b").data.iter().chain(&self.of("bank_b").data);
        let sizes = [swap, lane(0), lane(1), lane(2), lane(3)];
        sizes
            .iter()
            .zip(biases)
            .map(|(size, bias)| U * (terms * size + bias.abs()))
            .collect()
    }

    fn ffn(&self, x: &[f64]) -> Vec<f64> {
        let (width, inner) = (x.len() as f64, self.0.config.d_ff as f64);
        let n = self.normed(x, "norm");
        let plain = |name: &str| -> Vec<f64> {
            let weight = self.of(name);
            (0..weight.rows())
                .map(|row| weight.row(row).iter().zip(&n).map(|(w, n)| w * n).sum())
                .collect()
        };
        let error = |name: &str| -> Vec<f64> {
            let terms = U * (1.5 * width + 7.0);
            sums(self.of(name), |at| n[at].abs())
                .into_iter()
                .map(|sum| terms * sum)
                .collect()
        };
        let (gate, up, gate_error, up_error) = (plain("w1"), plain("w3"), error("w1"), error("w3"));
        let hidden: Vec<[f64; 2]> = (0..gate.len())
            .map(|i| {
                let silu = gate[i] / (1.0 + (-gate[i]).exp());
                let silu_error = 1.1 * gate_error[i] + 8.0 * U * silu.abs();
                let h = silu * up[i];
                let error = silu_error * (up[i].abs() + up_error[i]) + silu.abs() * up_error[i] + U * h.abs();
                [h.abs(), error]
            })
            .collect();
        let down = sums(self.of("w2"), |at| hidden[at][1] + U * (inner + 1.0) * hidden[at][0]);
        down.iter()
            .zip(x)
            .map(|(down, x)| 1.001 * (down + U * x.abs()))
            .collect()
    }
}

/// Every event of some tokens, from the state that f32 has reached: decisions are alike but where the margin is within the
/// bounds, and x is within its own.
#[test]
fn events_in_f32_are_within_bounds() {
    for (residual, router) in [(false, RouterForm::Folded), (true, RouterForm::Unfolded)] {
        let config = Config {
            d_model: 96,
            d_ff: 200,
            core_count: 33,
            d_router: 16,
            k_ffn: 1,
            residual,
            router,
            ..SMALL
        };
        let (single, double) = (model::<f32>(config), model::<f64>(config));
        let weights = weights(&config);
        let bounds = Bounds(Definition {
            config: &config,
            weights: &weights,
            fault: Fault::None,
        });
        let mut state = state::<f32>(&config, 1);
        let (mut worst, mut worst_logit, mut near) = (0.0f64, 0.0f64, 0);
        for at in 0..6 {
            let mut x = single.spread(&token(&config, 1, at), &state, &mut Plain).expect("x");
            for event in 0..config.n_events {
                let (mut exact_x, mut exact) = (x.cast::<f64>(), to_f64(&state));
                let got = single.event(&mut x, &mut state, event, &mut Plain).expect("an event");
                let before = exact_x.clone();
                let mut entering = exact_x.clone();
                let mut again = exact.clone();
                let want = double
                    .exchange(&mut entering, &mut again, event, &mut Plain)
                    .expect("an exchange");
                double
                    .event(&mut exact_x, &mut exact, event, &mut Plain)
                    .expect("an event");
                for row in 0..x.rows() {
                    let bound = bounds.logits(before.row(row));
                    for ((got, want), bound) in got.logits.row(row).iter().zip(want.logits.row(row)).zip(&bound) {
                        worst_logit = worst_logit.max((f64::from(*got) - want).abs() / bound);
                    }
                    let of_bank = 2.0 * bound[1..].iter().copied().fold(0.0, f64::max);
                    if want.gate_margin(row) <= bound[0] || want.bank_margin(row) <= of_bank {
                        near += 1;
                        continue;
                    }
                    assert_eq!(got.code(row), want.code(row), "token {at}, event {event}, row {row}");
                    let bound = bounds.ffn(entering.row(row));
                    for ((got, want), bound) in x.row(row).iter().zip(exact_x.row(row)).zip(bound) {
                        worst = worst.max((f64::from(*got) - want).abs() / bound);
                    }
                }
            }
            state.tokens += 1;
        }
        println!(
            "residual {residual}: {worst:.4} of the bound of x, {worst_logit:.4} of logits, {near} within margins"
        );
        assert!(worst <= 1.0 && worst_logit <= 1.0);
        // Bounds are for the worst case: errors of both signs stay well below, but not out of sight.
        assert!(worst >= 1e-3 && worst_logit >= 1e-3, "a bound that says nothing");
        assert!(
            near <= 3,
            "{near} rows of {} within the margins",
            6 * config.n_events * config.core_count
        );
    }
}

fn to_f64(state: &State<f32>) -> State<f64> {
    State {
        ram: state.ram.cast(),
        map: state.map.clone(),
        tokens: state.tokens,
    }
}

/// One vector for each logit is what the projection and its heads come to.
#[test]
fn folding_changes_nothing_but_rounding() {
    let run = |router| {
        let config = Config { router, ..SMALL };
        let (model, mut state) = (model::<f64>(config), state(&config, 2));
        assert_eq!(model.config().router, router);
        let mut logits = Vec::new();
        for at in 0..4 {
            let output = model
                .step(&token(&config, 2, at), &mut state, &mut Plain)
                .expect("a token");
            logits.extend(output.decisions.into_iter().flat_map(|decisions| decisions.logits.data));
        }
        logits
    };
    let (folded, unfolded) = (run(RouterForm::Folded), run(RouterForm::Unfolded));
    assert!(folded != unfolded && relative(&folded, &unfolded) < 1e-12);
}

/// With and without as many threads as there are.
#[test]
fn threads_change_nothing() {
    let config = Config {
        core_count: 150,
        ..SMALL
    };
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        pool.install(|| {
            let model: Model<f32> = model(config);
            let mut state = state(&config, 2);
            let output = model
                .step(&token(&config, 2, 0), &mut state, &mut Plain)
                .expect("a token");
            (output, state)
        })
    };
    assert!(run(1) == run(3));
}
