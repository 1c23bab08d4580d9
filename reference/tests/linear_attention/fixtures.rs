//! Against FLA's own naive form in f32 and an independent recurrence in f64.

use reference::ops::linear_attention::{
    Chunked, Decay, Form, Gate, Inputs, Kv, L2_EPS, Recurrent, State, Vk, beta, forward, l2_normalize,
};
use reference::{Real, Tensor};

use super::support::*;

const FILES: [&str; 7] = [
    "gdn_decode_t1",
    "gdn_fixed_64",
    "gdn_uneven_gva",
    "kda_decode_t1",
    "kda_fixed_64",
    "kda_uneven_gva",
    "la_uneven",
];

/// Relative to the largest value. A step sums K products twice, to read k and to read q, and the state it leaves is off by
/// a few roundings more; older errors fade with what they are errors of. Rounding errors of sums of K terms grow like √K:
/// 2·√(2K)·u, which is 1e-6 for K = 32 in f32.
fn bound(case: &Case, u: f64) -> f64 {
    2.0 * (2.0 * case.dims().0 as f64).sqrt() * u
}

fn want(file: &File) -> Outcome<f64> {
    Outcome {
        o: file.packed("o_f64"),
        state: file.get("ht_kv_f64").clone(),
    }
}

fn agree<T: Real>(form: &impl Form<T>, name: &str, u: f64) {
    for file in FILES {
        let (case, want) = (Case::fixture(&File::read(file)), want(&File::read(file)));
        agrees(&format!("{file}, {name}"), &case.run(form), &want, bound(&case, u));
    }
}

#[test]
fn recurrence() {
    agree::<f64>(&Recurrent::DEFINITION, "f64", U64);
    agree::<f32>(&Recurrent::DEFINITION, "f32", U32);
}

#[test]
fn one_pass() {
    agree::<f64>(&Recurrent::ONE_PASS, "one pass, f64", U64);
    agree::<f32>(&Recurrent::ONE_PASS, "one pass, f32", U32);
}

#[test]
fn chunks() {
    for chunk in [16, 32, 64] {
        agree::<f64>(&Chunked::exact(chunk), &format!("chunks of {chunk}, f64"), U64);
        agree::<f32>(&Chunked::exact(chunk), &format!("chunks of {chunk}, f32"), U32);
    }
}

/// FLA's own results are off by as much as ours: they are f32 too.
#[test]
fn flash_linear_attention() {
    for name in FILES {
        let file = File::read(name);
        if file.find("o_fla_f32").is_none() {
            continue;
        }
        let (case, want) = (
            Case::fixture(&file),
            Outcome {
                o: file.packed("o_fla_f32"),
                state: file.get("ht_kv_fla_f32").clone(),
            },
        );
        agrees(
            &format!("{name}, FLA"),
            &case.run::<f32>(&Recurrent::DEFINITION),
            &want,
            2.0 * bound(&case, U32),
        );
    }
}

/// The other layout of the files is that of the type.
#[test]
fn both_layouts() {
    for name in ["gdn_decode_t1", "kda_decode_t1"] {
        let file = File::read(name);
        let case = Case::fixture(&file);
        let mut state = State::<f64, Vk>::new(file.get("h0_vk").clone()).expect("a state");
        let kv: State<f64, Kv> = state.turned();
        assert_eq!(kv.tensor(), file.get("h0_kv"));
        case.run_in(&Recurrent::DEFINITION, &mut state, None)
            .expect("a good case");
        let off = farthest(&state.tensor().data, &file.get("ht_vk_fla_f32").data);
        within(name, off / top(&state.tensor().data), bound(&case, U32));
    }
}

/// Raw q, k, gates and logits, and rows that pick their slot of a pool or none.
#[test]
fn pool() {
    let file = File::read("pool_decode");
    let slots: Vec<i64> = file.get("state_indices").data.iter().map(|&x| x as i64).collect();
    let cu_seqlens: Vec<usize> = (0..=slots.len()).collect();
    let [mut q, mut k] = ["q", "k"].map(|name| file.packed(name));
    for x in [&mut q, &mut k] {
        l2_normalize(x, L2_EPS);
    }
    let v = file.packed("v");
    for op in ["gdn", "kda"] {
        let get = |name: &str| file.get(&format!("{op}_{name}"));
        let gate = Gate::Softplus {
            x: &file.packed(&format!("{op}_g_raw")),
            a_log: &get("A_log").data,
            dt_bias: Some(&get("dt_bias").data),
        };
        let g = gate.log_decay().expect("gates");
        let beta = beta(&file.packed(&format!("{op}_beta_logit")), false);
        let inputs = Inputs {
            cu_seqlens: &cu_seqlens,
            q: &q,
            k: &k,
            v: &v,
            decay: if op == "gdn" {
                Decay::Head(&g)
            } else {
                Decay::Channel(&g)
            },
            beta: Some(&beta),
            scale: file.meta("scale").as_f64().expect("a scale"),
        };
        let before = file.get("pool_kv");
        let mut state = State::<f64, Kv>::new(before.clone()).expect("a state");
        let o = forward(&inputs, &Recurrent::ONE_PASS, &mut state, Some(&slots)).expect("a good case");
        let want = Outcome {
            o: Tensor::new(o.shape.clone(), get("o_f64").data.clone()),
            state: get("pool_after_kv_f64").clone(),
        };
        let got = Outcome {
            o,
            state: state.tensor().clone(),
        };
        agrees(&format!("pool, {op}"), &got, &want, 2.0 * 32f64.sqrt() * U64);
        for (row, slot) in slots.iter().enumerate() {
            let silent = span(&got.o, row..row + 1).data.iter().all(|&o| o == 0.0);
            assert_eq!(silent, *slot < 0, "row {row}");
        }
        for slot in (0..before.shape[0]).filter(|&slot| !slots.contains(&(slot as i64))) {
            assert_eq!(span(&got.state, slot..slot + 1), span(before, slot..slot + 1));
        }
    }
}
