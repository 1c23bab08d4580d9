//! Mixture of experts (MoE): y = Σ_e w_e·W2_e·(SiLU(W1_e·x)·(W3_e·x)) over the experts e to which a token x is routed with the
//! weights w_e ([`super::routing`]), plus an optional shared expert for all tokens.
//!
//! Error bound: the computation uses numbers that carry their error bound ([`super::near`]). The product with W2 treats the
//! errors of its input elements as independent. If the argument `stored` names a type, the kernel rounds these intermediate
//! values to this type: gate (W1·x) and up (W3·x), their product, the output of an expert, its weight, the product of output and
//! weight, and the running sum of outputs. A kernel may apply the weight before or after such a rounding, so the number that is
//! rounded is unknown. So every rounding except that of gate and up counts as half a spacing at the lower end of a binade. The
//! last sum has k terms, or k + 1 with a shared expert.

use rayon::prelude::*;
use reference::Real;
use safetensors::Dtype;

use super::draw::{Cases, FLOATS};
use super::drift::Equal;
use super::near::{Near, silu, stored, wider};
use super::routing::{Chosen, Router};
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
        no_selection_bias of selection_bias: "the bias of the selection is left out"
            => |call| call.fill("selection_bias", 0.0);
        bias_in_weights of selection_bias: "the bias of the selection is in the weights, too";
        other_normalization: "weights are not divided by their sum, or are though they should not be"
            => |call| call.toggle("renormalize");
        no_scaling_factor of scaling_factor: "the scaling factor is left out" => |call| call.set("scaling_factor", 1.0);
        weights_by_number: "weights go to the chosen experts in the order of their numbers";
        one_fewer: "the last of the chosen experts is left out";
        next_expert: "the expert with the next number computes in the place of each";
        no_groups of top_groups: "experts are chosen of all groups" => |call| call.leave_out("top_groups");
        groups_by_other of top_groups: "groups are chosen by their best expert, not by the sum of two, or the other way around";
        weight_twice: "weights are multiplied by twice";
        no_weight: "weights are left out";
        last_token_missing: "each expert leaves out the last of its tokens";
        gate_up_swapped: "gates are taken for ups, and ups for gates"
            => |call| ["w13", "shared_w13"].into_iter().for_each(|name| call.exchange_halves(name, 1));
        no_limit of limit: "nothing is limited" => |call| call.leave_out("limit");
        shared_not_limited of limit: "the expert of all tokens has no limit";
        no_shared of shared_w13: "the expert of all tokens is left out"
            => |call| ["shared_w13", "shared_w2"].into_iter().for_each(|name| call.leave_out(name));
        shared_scaled of shared_w13: "the output of the expert of all tokens is multiplied by the scaling factor, too";
        shared_divided of shared_w13: "the output of the expert of all tokens is divided by the scaling factor";
        bias_in_bf16 of selection_bias: "the bias of the selection is rounded to bf16"
            => |call| call.map("selection_bias", |x| half::bf16::from_f32(x as f32).to_f64());
    },
    cases: Some(&Cases {
        letters: &["T", "C", "E", "I"],
        sizes: &[&[7, 48, 6, 32], &[33, 128, 8, 96]],
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
            let [tokens, dim, experts, inner] = draw.sizes();
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
            draw.normal("selection_bias", &[experts], 0.1);
        },
        why: "sums of products in any order, SwiGLU and the weights of experts, in f32; close scores may choose either expert",
    }),
    compute,
    ..Operation::NONE
};

/// Weights of one expert.
#[derive(Clone, Copy)]
struct Expert<'a> {
    w13: &'a [f64],
    w2: &'a [f64],
    inner: usize,
    limit: f64,
}

/// Largest rounding error of a number that a kernel may multiply by an unknown factor before storing it: half a spacing at the
/// lower end of a binade, or half of the smallest step, whichever is larger.
fn rounding(dtype: Option<Dtype>, x: f64) -> f64 {
    dtype.map_or(0.0, |dtype| {
        (half_spacing(dtype, 1.0) * x.abs()).max(half_spacing(dtype, 0.0))
    })
}

impl Expert<'_> {
    /// Computes the output of this expert for the token `x`.
    fn apply(self, call: &Call, x: &[f64]) -> Vec<Near> {
        let (dim, inner, dtype) = (x.len(), self.inner, call.dtype("stored"));
        let rounded = |x: Near| wider(x, rounding(dtype, x.value().abs() + x.error()));
        let projected = |row: usize| {
            let sum = call.dot(&self.w13[row * dim..][..dim], x);
            dtype.map_or(sum, |dtype| stored(sum, dtype))
        };
        // A kernel may round the limit to the stored type before it clamps numbers.
        let off = dtype.map_or(0.0, |dtype| (self.limit - super::rounded(dtype, self.limit)).abs());
        let limit = (!self.limit.is_nan()).then(|| call.near(self.limit, off));
        let hidden = |at: usize| {
            let (mut gate, mut up) = (projected(at), projected(inner + at));
            if let Some(limit) = limit {
                (gate, up) = (gate.min(limit), up.smaller(limit).larger(-limit));
            }
            let active = silu(gate);
            rounded(wider(active * up, active.error() * up.error()))
        };
        let hidden: Vec<Near> = (0..inner).map(hidden).collect();
        let values: Vec<f64> = hidden.iter().map(|x| x.value()).collect();
        let equal = Equal::of(values.iter().copied());
        let out = |row: usize| {
            let w2 = &self.w2[row * inner..][..inner];
            let errors = w2.iter().zip(&hidden).map(|(w, x)| w.abs() * x.error());
            rounded(wider(call.dot(w2, &values), equal.together(errors)))
        };
        (0..dim).map(out).collect()
    }
}

/// Checked arguments of a call.
struct Moe<'a> {
    call: &'a Call,
    router: Router,
    inner: usize,
    shared: Option<Expert<'a>>,
}

impl<'a> Moe<'a> {
    fn of(call: &'a Call) -> Result<Self, String> {
        let [experts, inner] = call.shapes()?.sizes(["E", "I"]);
        if call.optional("logits").is_some() == call.optional("router").is_some() {
            return Err("moe: 'logits' and 'router' are both given or both missing, expected one of them".into());
        }
        let k = call.count("top_k", 0..=experts, &format!("of at most {experts} experts"))?;
        let whole = |x: f64, least: usize, most: usize| {
            (x >= least as f64 && x <= most as f64 && x.fract() == 0.0).then_some(x as usize)
        };
        let stated = call.number("groups");
        let groups = whole(stated, 1, experts.max(1)).filter(|groups| experts.is_multiple_of(*groups));
        let Some(groups) = groups else {
            return Err(format!(
                "moe: groups = {stated}, expected a number that divides {experts} experts"
            ));
        };
        let chosen_groups = match call.number("top_groups") {
            found if found.is_nan() => groups,
            found => whole(found, 1, groups)
                .filter(|chosen| chosen * (experts / groups) >= k)
                .ok_or_else(|| {
                    format!("moe: top_groups = {found}, expected 1 to {groups} groups, and {k} experts or more in them")
                })?,
        };
        call.expect_not_negative("limit")?;
        let limit = call.number("limit");
        let shared = match (call.optional("shared_w13"), call.optional("shared_w2")) {
            (None, None) => None,
            (Some(w13), Some(w2)) => Some(Expert {
                w13: &w13.data,
                w2: &w2.data,
                inner: w2.cols(),
                limit: call.pick("shared_not_limited", f64::NAN, limit),
            }),
            _ => return Err("moe: one of 'shared_w13' and 'shared_w2' is missing, expected both or none".into()),
        };
        Ok(Self {
            call,
            router: Router {
                experts,
                chosen: k,
                groups,
                chosen_groups,
            },
            inner,
            shared,
        })
    }

    fn expert(&self, number: usize) -> Expert<'a> {
        let (w13, w2) = (&self.call.tensor("w13").data, &self.call.tensor("w2").data);
        let size = w13.len() / self.router.experts;
        Expert {
            w13: &w13[number * size..][..size],
            w2: &w2[number * (size / 2)..][..size / 2],
            inner: self.inner,
            limit: self.call.number("limit"),
        }
    }

    /// Returns the router logits of a token.
    fn logits(&self, token: usize) -> Vec<Near> {
        let (call, x, experts) = (self.call, self.call.tensor("x"), self.router.experts);
        if let Some(logits) = call.optional("logits") {
            let row = &logits.data[token * experts..][..experts];
            return row.iter().map(|x| call.exact(*x)).collect();
        }
        let (router, dim) = (call.tensor("router"), x.cols());
        let logit = |row: usize| call.dot(&router.data[row * dim..][..dim], &x.data[token * dim..][..dim]);
        (0..experts).map(logit).collect()
    }

    /// Computes the output of a token that is routed to the experts in `chosen`.
    fn combined(&self, x: &[f64], chosen: &Chosen) -> Vec<Near> {
        let (call, dtype) = (self.call, self.call.dtype("stored"));
        let mut parts: Vec<Vec<Near>> = Vec::new();
        for &(number, weight) in chosen {
            let weight = match call.fault {
                Some("weight_twice") => weight * weight,
                Some("no_weight") => Near::ONE,
                _ => weight,
            };
            let weighted = |y: Near| wider(y * weight, 2.0 * rounding(dtype, y.value() * weight.value()));
            parts.push(self.expert(number).apply(call, x).into_iter().map(weighted).collect());
        }
        let factor = call.exact(call.number("scaling_factor"));
        let scaled = |y: Near| match call.fault {
            Some("shared_scaled") => y * factor,
            Some("shared_divided") => y / factor,
            _ => y,
        };
        let shared = self.shared.map(|shared| shared.apply(call, x));
        parts.extend(shared.map(|shared| shared.into_iter().map(scaled).collect()));
        let sum = |col: usize| {
            let terms: Vec<Near> = parts.iter().map(|part| part[col]).collect();
            let magnitudes = terms.iter().map(|term| term.value().abs()).sum();
            wider(call.sum_near(&terms), terms.len() as f64 * rounding(dtype, magnitudes))
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
            let mut last = routes.iter_mut().rev();
            if let Some(choices) = last.find(|choices| choices[0].iter().any(|(at, _)| *at == expert)) {
                choices[0].retain(|(at, _)| *at != expert);
            }
        }
    }
    let outputs = |token: usize| -> Vec<Vec<Near>> {
        let x = &x.data[token * dim..][..dim];
        routes[token].iter().map(|chosen| moe.combined(x, chosen)).collect()
    };
    let all: Vec<Vec<Vec<Near>>> = (0..tokens).into_par_iter().map(outputs).collect();
    let first = all.iter().flat_map(|choices| choices[0].iter().copied());
    let mut output = Output::of("y", vec![tokens, dim], first);
    for (token, choices) in all.iter().enumerate() {
        output.others.extend(choices[1..].iter().map(|choice| Other {
            start: token * dim,
            value: choice.iter().map(|y| y.value()).collect(),
            error: choice.iter().map(|y| y.error()).collect(),
        }));
    }
    Ok(vec![output])
}
