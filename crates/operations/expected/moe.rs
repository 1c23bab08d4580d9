//! A mixture of experts: y = Σ_e w_e·W2_e·(SiLU(W1_e·x)·(W3_e·x)) over the experts that a token is sent to ([`super::routing`]), and an
//! expert that all tokens go through.
//!
//! Error, from the input on: gate and up are sums of products; SiLU and the product with up pass their errors on, with second-order
//! terms; so does the second product, where errors of the inner elements are independent, and each expert's output has the
//! relative error of its weight. What a kernel stores in a type between its parts (`stored`: gate and up, their product, the output of
//! an expert, its weight, the product of the two, and the sum of outputs after each) is rounded to it; as the weight may be
//! multiplied before or after, half a spacing at the lower end of a binade is allowed for all but the first. The last sum is one of k
//! terms, or k + 1.

use rayon::prelude::*;
use safetensors::Dtype;

use super::draw::{Cases, FLOATS};
use super::drift::Equal;
use super::routing::{Chosen, Router};
use super::silu::silu_of;
use super::sum::Terms;
use super::{Call, Operation, Other, Output, faults, half_spacing, takes};

pub(super) const MOE: Operation = Operation {
    name: "moe",
    doc: "a mixture of experts, from the logits of the router to the sum of the experts' outputs",
    takes: takes! {
        x Tensor: "[T, C]";
        logits Optional: "[T, E]: those of the router";
        router Optional: "[E, C]: its weights, if no logits are given";
        w13 Tensor: "[E, 2 I, C]: gates' weights (w1), then those of ups (w3)";
        w2 Tensor: "[E, C, I]";
        shared_w13 Optional: "[2 J, C] of the expert that all tokens go through";
        shared_w2 Optional: "[C, J]";
        selection_bias Optional: "[E]: added to scores for the choice only";
        top_k Number(f64::NAN): "experts of a token";
        groups Number(1.0): "equal parts of the experts";
        top_groups Number(f64::NAN):
            "groups that experts are of: with the largest sum of two scores with their bias, or largest score without; all if not given";
        scores Word(&["softmax", "sigmoid", "sqrtsoftplus"]): "what logits become";
        renormalize Number(1.0): "whether weights are divided by the sum of those chosen";
        scaling_factor Number(1.0): "multiplied by weights";
        limit Number(f64::NAN): "gates are at most this, ups between it and its negative; no limit if not given";
        stored Word(&["f32", "bf16", "f16"]): "the type that a kernel stores what is between its parts in";
    },
    faults: faults! {
        no_selection_bias of selection_bias: "the bias of the selection is left out";
        bias_in_weights of selection_bias: "the bias of the selection is in the weights, too";
        other_normalization: "weights are not divided by their sum, or are though they should not be";
        no_scaling_factor of scaling_factor: "the scaling factor is left out";
        weights_by_number: "weights go to the chosen experts in the order of their numbers";
        one_fewer: "the last of the chosen experts is left out";
        next_expert: "the expert with the next number computes in the place of each";
        no_groups of top_groups: "experts are chosen of all groups";
        groups_by_other of top_groups: "groups are chosen by their best expert, not by the sum of two, or the other way around";
        weight_twice: "weights are multiplied by twice";
        no_weight: "weights are left out";
        last_token_missing: "each expert leaves out the last of its tokens";
        gate_up_swapped: "gates are taken for ups, and ups for gates";
        no_limit of limit: "nothing is limited";
        shared_not_limited of limit: "the expert of all tokens has no limit";
        no_shared of shared_w13: "the expert of all tokens is left out";
        shared_scaled of shared_w13: "the output of the expert of all tokens is multiplied by the scaling factor, too";
        shared_divided of shared_w13: "the output of the expert of all tokens is divided by the scaling factor";
        bias_in_bf16 of selection_bias: "the bias of the selection is rounded to bf16";
    },
    cases: Some(&Cases {
        sizes: &[
            &[("T", 7), ("C", 48), ("E", 6), ("I", 32)],
            &[("T", 33), ("C", 128), ("E", 8), ("I", 96)],
        ],
        numbers: &[("top_k", 2.0), ("groups", 2.0)],
        varied: &[
            ("renormalize", 0.0),
            ("scaling_factor", 2.5),
            ("limit", 0.5),
            ("top_groups", 1.0),
        ],
        fixed: &[],
        optional: &["router", "shared_w13", "selection_bias"],
        types: FLOATS,
        draw: |draw| {
            let [tokens, dim, experts, inner] = draw.sizes(["T", "C", "E", "I"]);
            draw.require(experts > 1, "E is 1, expected 2 or more experts");
            let (of_dim, of_inner) = ((dim as f64).sqrt().recip(), (inner as f64).sqrt().recip());
            draw.normal("x", &[tokens, dim], 1.0);
            match draw.has("router") {
                true => draw.normal("router", &[experts, dim], of_dim),
                false => draw.normal("logits", &[tokens, experts], 1.0),
            }
            draw.normal("w13", &[experts, 2 * inner, dim], of_dim);
            draw.normal("w2", &[experts, dim, inner], of_inner);
            if draw.has("shared_w13") {
                draw.normal("shared_w13", &[2 * inner, dim], of_dim);
                draw.normal("shared_w2", &[dim, inner], of_inner);
            }
            if draw.has("selection_bias") {
                draw.normal("selection_bias", &[experts], 0.1);
            }
        },
        why: "sums of products in any order, SwiGLU and the weights of experts, in f32; close scores may choose either expert",
    }),
    rows: None,
    compute,
};

/// An expert's weights.
#[derive(Clone, Copy)]
struct Expert<'a> {
    w13: &'a [f64],
    w2: &'a [f64],
    inner: usize,
    limit: f64,
}

/// How far a number may be off that is stored times a weight that is not known: half a spacing at the lower end of a binade, or half
/// the smallest step.
fn rounding(dtype: Option<Dtype>, x: f64) -> f64 {
    dtype.map_or(0.0, |dtype| {
        (half_spacing(dtype, 1.0) * x.abs()).max(half_spacing(dtype, 0.0))
    })
}

impl Expert<'_> {
    /// The output of a token, with errors.
    fn apply(self, call: &Call, x: &[f64]) -> Vec<(f64, f64)> {
        let (dim, inner, dtype, u) = (x.len(), self.inner, call.dtype("stored"), call.u);
        let projected = |row: usize| {
            let terms = Terms::dot(&self.w13[row * dim..][..dim], x, u);
            let error = terms.error();
            let of_type = dtype.map_or(0.0, |dtype| half_spacing(dtype, terms.sum.abs() + error));
            (terms.sum, error + of_type)
        };
        let hidden = |at: usize| {
            let (mut gate, mut up) = (projected(at), projected(inner + at));
            if call.is("gate_up_swapped") {
                (gate, up) = (up, gate);
            }
            if !self.limit.is_nan() {
                gate.0 = gate.0.min(self.limit);
                up.0 = up.0.clamp(-self.limit, self.limit);
            }
            let (active, of_active) = silu_of(gate.0, gate.1, u);
            let value = active * up.0;
            let error = of_active * (up.0.abs() + up.1) + active.abs() * up.1 + 2.0 * u * value.abs();
            (value, error + rounding(dtype, value.abs() + error))
        };
        let (hidden, errors): (Vec<f64>, Vec<f64>) = (0..inner).map(hidden).unzip();
        let equal = Equal::of(hidden.iter().copied());
        let out = |row: usize| {
            let w2 = &self.w2[row * inner..][..inner];
            let terms = Terms::dot(w2, &hidden, u);
            let error = terms.error() + equal.together(w2.iter().zip(&errors).map(|(w, e)| w.abs() * e));
            (terms.sum, error + rounding(dtype, terms.sum.abs() + error))
        };
        (0..dim).map(out).collect()
    }
}

/// The tensors of a call, checked.
struct Moe<'a> {
    call: &'a Call,
    router: Router,
    inner: usize,
    shared: Option<Expert<'a>>,
}

impl<'a> Moe<'a> {
    fn of(call: &'a Call) -> Result<Self, String> {
        let (x, w13) = (call.tensor("x"), call.tensor("w13"));
        let ([tokens, dim], [experts, both, of]) = (&x.shape[..], &w13.shape[..]) else {
            return Err(format!(
                "moe: 'x' is {:?} and 'w13' is {:?}, expected [T, C] and [E, 2 I, C]",
                x.shape, w13.shape
            ));
        };
        let (tokens, dim, experts, both) = (*tokens, *dim, *experts, *both);
        if *of != dim || !both.is_multiple_of(2) {
            return Err(format!("moe: 'w13' is {:?}, expected [E, 2 I, {dim}]", w13.shape));
        }
        call.expect("w2", &[experts, dim, both / 2])?;
        call.expect("logits", &[tokens, experts])?;
        call.expect("router", &[experts, dim])?;
        call.expect("selection_bias", &[experts])?;
        if call.optional("logits").is_some() == call.optional("router").is_some() {
            return Err("moe: 'logits' and 'router' are both given or both missing, expected one of them".into());
        }
        let k = call.number("top_k");
        if !(k >= 0.0 && k.fract() == 0.0 && k <= experts as f64) {
            return Err(format!(
                "moe: 'top_k' is {}, expected a whole number of at most {experts} experts",
                if k.is_nan() { "missing".into() } else { k.to_string() }
            ));
        }
        let whole = |x: f64, least: usize, most: usize| {
            (x >= least as f64 && x <= most as f64 && x.fract() == 0.0).then_some(x as usize)
        };
        let groups = whole(call.number("groups"), 1, experts.max(1)).filter(|groups| experts.is_multiple_of(*groups));
        let Some(groups) = groups else {
            return Err(format!(
                "moe: groups = {}, expected a number that divides {experts} experts",
                call.number("groups")
            ));
        };
        let chosen_groups = match call.number("top_groups") {
            found if found.is_nan() => groups,
            found => whole(found, 1, groups)
                .filter(|chosen| chosen * (experts / groups) >= k as usize)
                .ok_or_else(|| {
                    format!("moe: top_groups = {found}, expected 1 to {groups} groups, and {k} experts or more in them")
                })?,
        };
        let limit = call.number("limit");
        if limit < 0.0 {
            return Err(format!("moe: limit = {limit}, expected 0 or more"));
        }
        let shared = match (call.optional("shared_w13"), call.optional("shared_w2")) {
            (None, None) => None,
            (Some(w13), Some(w2)) => {
                let inner = w2.cols();
                call.expect("shared_w13", &[2 * inner, dim])?;
                call.expect("shared_w2", &[dim, inner])?;
                let limited = !(call.is("shared_not_limited") || call.is("no_limit"));
                Some(Expert {
                    w13: &w13.data,
                    w2: &w2.data,
                    inner,
                    limit: if limited { limit } else { f64::NAN },
                })
            }
            _ => return Err("moe: one of 'shared_w13' and 'shared_w2' is missing, expected both or none".into()),
        };
        Ok(Self {
            call,
            router: Router {
                experts,
                chosen: k as usize,
                groups,
                chosen_groups,
            },
            inner: both / 2,
            shared: shared.filter(|_| !call.is("no_shared")),
        })
    }

    fn expert(&self, number: usize) -> Expert<'a> {
        let (w13, w2) = (&self.call.tensor("w13").data, &self.call.tensor("w2").data);
        let size = w13.len() / self.router.experts;
        Expert {
            w13: &w13[number * size..][..size],
            w2: &w2[number * (size / 2)..][..size / 2],
            inner: self.inner,
            limit: if self.call.is("no_limit") {
                f64::NAN
            } else {
                self.call.number("limit")
            },
        }
    }

    /// A token's logits with their errors.
    fn logits(&self, token: usize) -> Vec<(f64, f64)> {
        let experts = self.router.experts;
        let (call, x) = (self.call, self.call.tensor("x"));
        if let Some(logits) = call.optional("logits") {
            let row = &logits.data[token * experts..][..experts];
            return row.iter().map(|x| (*x, 0.0)).collect();
        }
        let (router, dim) = (call.tensor("router"), x.cols());
        let logit = |row: usize| {
            let terms = Terms::dot(&router.data[row * dim..][..dim], &x.data[token * dim..][..dim], call.u);
            (terms.sum, terms.error())
        };
        (0..experts).map(logit).collect()
    }

    /// A token's output if it is sent to these experts, with errors.
    fn combined(&self, x: &[f64], chosen: &Chosen) -> Vec<(f64, f64)> {
        let (call, dtype) = (self.call, self.call.dtype("stored"));
        let mut parts: Vec<Vec<(f64, f64)>> = Vec::new();
        for &(number, weight, relative) in chosen {
            let weight = match call.fault {
                Some("weight_twice") => weight * weight,
                Some("no_weight") => 1.0,
                _ => weight,
            };
            let out = self.expert(number).apply(call, x).into_iter();
            let weighted = |(y, error): (f64, f64)| {
                let y = y * weight;
                (
                    y,
                    error * weight.abs() + (relative + 2.0 * call.u) * y.abs() + 2.0 * rounding(dtype, y),
                )
            };
            parts.push(out.map(weighted).collect());
        }
        let factor = match call.fault {
            Some("shared_scaled") => call.number("scaling_factor"),
            Some("shared_divided") => call.number("scaling_factor").recip(),
            _ => 1.0,
        };
        let scaled = |(y, error): (f64, f64)| (y * factor, error * factor.abs());
        let shared = self.shared.map(|shared| shared.apply(call, x));
        parts.extend(shared.map(|shared| shared.into_iter().map(scaled).collect()));
        let sum = |col: usize| {
            let terms = Terms::of(parts.iter().map(|part| part[col].0), call.u);
            let errors: f64 = parts.iter().map(|part| part[col].1).sum();
            let of_type = terms.count * rounding(dtype, terms.magnitudes);
            (terms.sum, errors + terms.error() + of_type)
        };
        (0..x.len()).map(sum).collect()
    }
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let moe = Moe::of(call)?;
    let x = call.tensor("x");
    let (tokens, dim) = (x.shape[0], x.cols());
    let choices = |token: usize| moe.router.choices(call, &moe.logits(token));
    let mut routes: Vec<Vec<Chosen>> = (0..tokens).into_par_iter().map(choices).collect();
    if call.is("last_token_missing") {
        for expert in 0..moe.router.experts {
            let last = routes
                .iter_mut()
                .rev()
                .find(|choices| choices[0].iter().any(|(at, ..)| *at == expert));
            if let Some(choices) = last {
                choices[0].retain(|(at, ..)| *at != expert);
            }
        }
    }
    let outputs = |token: usize| -> Vec<Vec<(f64, f64)>> {
        let x = &x.data[token * dim..][..dim];
        routes[token].iter().map(|chosen| moe.combined(x, chosen)).collect()
    };
    let all: Vec<Vec<Vec<(f64, f64)>>> = (0..tokens).into_par_iter().map(outputs).collect();
    let (value, error) = all.iter().flat_map(|choices| choices[0].iter().copied()).unzip();
    let mut output = Output::new("y", vec![tokens, dim], value, error);
    for (token, choices) in all.into_iter().enumerate() {
        output.others.extend(choices.into_iter().skip(1).map(|choice| {
            let (value, error) = choice.into_iter().unzip();
            Other {
                start: token * dim,
                value,
                error,
            }
        }));
    }
    Ok(vec![output])
}
