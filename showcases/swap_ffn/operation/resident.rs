//! Kernel calls that compute a whole token of a Swap-FFN model, one event of a token (cores exchange their vectors with memory
//! banks, then FFN steps follow), or only the exchange.

use reference::Tensor;
use reference::paths::swap_ffn::{BANKS, Config, DecisionRule, Model, Router, State};
use safetensors::Dtype;

use super::{EPS, POOLED, REDUCED, ROUTER, RULES, Token, Weight, dims};
use ulplab_operations::ops::call::{Call, Runner};
use ulplab_operations::ops::data::f32_values;

/// A Swap-FFN model with its weights stored in bf16 or E4M3, as kernels read them.
pub struct Resident(Token);

/// Part of the computation of a token that a kernel call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole token, from the input x_in to the output delta.
    Token,
    /// One event, beginning with a given x: the exchange with the banks, and the FFN steps.
    Event,
    /// Only the exchange of an event, without FFN steps.
    Exchange,
}

/// Results of a kernel call, apart from the new banks and maps.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenOutputs {
    /// For every event and row: true if the gate is open, and the index of the bank.
    pub decisions: Vec<Vec<(bool, u8)>>,
    /// x after the last event, `[B · core_count, d_model]`.
    pub x: Tensor<f32>,
    /// Output of the token, `[B, d_model]`; meaningful only after [`Part::Token`].
    pub delta: Vec<f32>,
}

impl Resident {
    /// Stores the model's weights in bf16, or in E4M3 if `e4m3`. The router must be loaded unfolded, because some kernels read it
    /// unfolded and others fold it.
    pub fn new(model: &Model<f32>, e4m3: bool) -> Result<Self, String> {
        let config = *model.config();
        let sizes = [
            ("d_router", config.d_router, ROUTER),
            ("collapse_k", config.collapse_k, POOLED),
            ("collapse_r", config.collapse_r, REDUCED),
        ];
        if let Some((name, found, expected)) = sizes.iter().find(|(_, found, expected)| found != expected) {
            return Err(format!("{name} is {found}, kernels have {expected}"));
        }
        let (film, router, ffn, collapse) = model.parts();
        let Router::Unfolded {
            norm,
            projection,
            weight,
            bias,
        } = router
        else {
            return Err("the router is folded".into());
        };
        if config.decision != DecisionRule::Logits || config.eps as f32 != EPS || !config.collapse_silu {
            return Err(
                "kernels decide on logits, add 1e-6 to means of squares, and apply silu before the decoder".into(),
            );
        }
        let matrix = |weight: &Tensor<f32>| Weight::new(weight.clone(), e4m3);
        let none = || Tensor::new([0, config.d_model], Vec::new());
        Ok(Self(Token {
            config,
            batch: 0,
            events: 0,
            begin: false,
            end: false,
            e4m3,
            x_in: none(),
            film: film.clone(),
            router_g: norm.clone(),
            router_w: projection.clone(),
            heads: weight.clone(),
            bias: *bias,
            ffn_g: ffn.norm.clone(),
            w1: matrix(&ffn.w1),
            w3: matrix(&ffn.w3),
            w2: matrix(&ffn.w2),
            collapse: collapse.clone(),
            x: none(),
            ram: none(),
            map: Vec::new(),
            delta: none(),
        }))
    }

    /// Runs a part of the computation of a token, and updates the banks and maps in `state`. `from` holds tokens `[B, d_model]`
    /// for [`Part::Token`], and x `[B · core_count, d_model]` for other parts.
    pub fn run(
        &mut self,
        runner: &dyn Runner,
        part: Part,
        from: &Tensor<f32>,
        state: &mut State<f32>,
    ) -> Result<TokenOutputs, String> {
        let outputs = runner.run(self.call(part, from, state))?;
        let token = &self.0;
        let rows = token.map.len();
        state.ram.data = f32_values(outputs.get("ram"), Dtype::BF16);
        state.map = outputs.get("map").to_vec();
        let events = outputs.get("decisions").chunks_exact(rows);
        let decisions = events.map(|codes| codes.iter().map(|code| (code >> 2 & 1 == 1, code & 3)).collect());
        Ok(TokenOutputs {
            decisions: decisions.collect(),
            x: Tensor::new(token.x.shape.clone(), f32_values(outputs.get("x"), Dtype::F32)),
            delta: f32_values(outputs.get("delta"), Dtype::F32),
        })
    }

    fn call(&mut self, part: Part, from: &Tensor<f32>, state: &State<f32>) -> Call {
        let token = &mut self.0;
        let Config {
            core_count,
            d_model,
            d_ff,
            n_events,
            k_ffn,
            residual,
            lane_rule,
            ..
        } = token.config;
        let batch = state.map.len() / core_count;
        (token.begin, token.events, token.end) = match part {
            Part::Token => (true, n_events, true),
            Part::Event | Part::Exchange => (false, 1, false),
        };
        token.batch = batch;
        let zeros = |rows: usize| Tensor::full([rows, d_model], 0.0);
        (token.x_in, token.x) = match part {
            Part::Token => (from.clone(), zeros(batch * core_count)),
            Part::Event | Part::Exchange => (zeros(batch), from.clone()),
        };
        token.ram = Tensor::new([batch, core_count, BANKS, d_model], state.ram.data.clone());
        token.map.clone_from(&state.map);
        token.delta = zeros(batch);
        let sizes = [batch, core_count, d_model, d_ff].map(|size| size as i64);
        let steps = if part == Part::Exchange { 0 } else { k_ffn };
        let done = [
            token.events as i64,
            steps as i64,
            token.begin.into(),
            token.end.into(),
            residual.into(),
        ];
        let weights = if token.e4m3 { "e4m3" } else { "bf16" };
        let number = RULES.iter().position(|(_, rule)| *rule == lane_rule).expect("a rule");
        let dims = dims(sizes, done, number, token.e4m3);
        let dims: Vec<_> = dims.into_iter().map(|(name, size)| (name, size as usize)).collect();
        let keys = [("W", weights), ("L", RULES[number].0)];
        Call::new("swap_ffn", &keys, &dims, token.buffers(), &[("eps", EPS)])
    }
}
