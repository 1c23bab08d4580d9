//! The hooks: what storing a state does to it, and where a chunked kernel rounds.

use std::collections::BTreeSet;
use std::sync::Mutex;

use reference::ops::linear_attention::{Chunked, Intermediate, Inversion, Kv, Policy, Recurrent, State, Vk};
use reference::ops::store::Token;

use super::support::*;

fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

fn round_to_bf16(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = bf16(*x));
}

/// Rounds one intermediate to bf16.
struct Only(Intermediate);

impl Policy<f32> for Only {
    fn round(&self, what: Intermediate, values: &mut [f32], _: usize) {
        if what == self.0 {
            round_to_bf16(values);
        }
    }
}

/// Notes what passes, and how large it is.
#[derive(Default)]
struct Seen(Mutex<BTreeSet<(String, usize, usize)>>);

impl Policy<f32> for Seen {
    fn round(&self, what: Intermediate, values: &mut [f32], cols: usize) {
        let seen = (format!("{what:?}"), values.len() / cols, cols);
        self.0.lock().expect("no panic").insert(seen);
    }
}

fn chunked<P>(policy: P) -> Chunked<P> {
    Chunked {
        chunk: 32,
        inversion: Inversion::Substitution,
        policy,
    }
}

/// Every intermediate is one: rounding it to bf16 alone changes the result, by about what bf16 is off.
#[test]
fn every_intermediate_counts() {
    for op in [Op::Gdn, Op::Kda] {
        let case = Random::new(op, &[128], (32, 24)).case();
        let exact = case.chunked::<f32>(32);
        for what in Intermediate::ALL {
            let got = case.run(&chunked(Only(what)));
            let error = relative(&got.o.data, &exact.o.data).max(relative(&got.state.data, &exact.state.data));
            println!("{op:?} {what:?}: {error:.1e}");
            // Within a factor of 4 of bf16's 2⁻⁹, and far above the 2⁻²⁴ of f32.
            assert!((1e-5..=8e-3).contains(&error), "{op:?} {what:?}: {error:e}");
        }
    }
}

/// L = 32 and a tail of 5, K = 6, V = 10.
#[test]
fn shapes_of_intermediates() {
    use Intermediate::*;
    let shapes = |op: Op| {
        let form = chunked(Seen::default());
        Random::new(op, &[37], (6, 10)).case().run(&form);
        form.policy.0.into_inner().expect("no panic")
    };
    let both = |cols: [usize; 2]| [(32, cols[0]), (5, cols[1])];
    let of = |what: Intermediate, cols: [usize; 2]| both(cols).map(|(rows, cols)| (format!("{what:?}"), rows, cols));
    let keys = [6, 6];
    let values = [10, 10];
    let states = |what: Intermediate| (format!("{what:?}"), 6, 10);
    let plain: BTreeSet<_> = [
        of(Query, keys),
        of(Key, keys),
        of(Value, values),
        of(ScoreOperand, keys),
        of(P, [32, 5]),
    ]
    .into_iter()
    .chain([
        of(DecayedQuery, keys),
        of(DecayedKey, keys),
        of(PseudoValue, values),
        of(Output, values),
    ])
    .flatten()
    .chain([states(StateOperand), states(State)])
    .collect();
    assert_eq!(shapes(Op::SimpleGla), plain);
    let delta = [
        of(Beta, [1, 1]),
        of(A, [32, 5]),
        of(Inverse, [32, 5]),
        of(BetaValue, values),
        of(BetaKey, keys),
    ]
    .into_iter()
    .chain([of(U, values), of(W, keys)])
    .flatten();
    // The second block of 16 rows: A by the inverse of the first, and that by the inverse of its own.
    let operand = (format!("{InverseOperand:?}"), 16, 16);
    assert_eq!(
        shapes(Op::Gdn),
        plain.into_iter().chain(delta).chain([operand]).collect()
    );
}

/// All products read the state's operand and not the state.
#[test]
fn products_read_the_operand() {
    struct Nothing;
    impl Policy<f64> for Nothing {
        fn round(&self, what: Intermediate, values: &mut [f64], _: usize) {
            if what == Intermediate::StateOperand {
                values.fill(0.0);
            }
        }
    }
    for op in OPS {
        let case = Random::new(op, &[32], (8, 4)).case();
        let mut fresh = case.clone();
        fresh.state.data.fill(0.0);
        assert_eq!(case.run(&chunked(Nothing)).o, fresh.chunked(32).o);
    }
}

/// Nothing stands above the diagonal of P, and nothing on that of A, whatever the rows hold: a scale of a block is of what
/// counts.
#[test]
fn triangles_are_triangles() {
    struct Triangles;
    impl Policy<f64> for Triangles {
        fn round(&self, what: Intermediate, values: &mut [f64], cols: usize) {
            let first = match what {
                Intermediate::P | Intermediate::Inverse => 1,
                Intermediate::A => 0,
                _ => return,
            };
            for (i, row) in values.chunks_exact(cols).enumerate() {
                assert!(row.iter().skip(i + first).all(|&x| x == 0.0), "{what:?}, row {i}");
            }
        }
    }
    for op in OPS {
        let mut case = Random::new(op, &[40], (8, 4)).case();
        case.k.row_mut(30).fill(f64::NAN);
        case.run(&chunked(Triangles));
    }
}

/// The two ways to invert a block are one in exact arithmetic.
#[test]
fn neumann_is_substitution() {
    for op in [Op::Gdn, Op::Kda] {
        let case = Random::new(op, &[150], (32, 24)).case();
        let form = Chunked {
            inversion: Inversion::Neumann,
            ..Chunked::exact(64)
        };
        agrees(
            &format!("{op:?}"),
            &case.run::<f64>(&form),
            &case.recurrent::<f64>(),
            64.0 * U64,
        );
    }
}

/// Every state after every token, in the order of its layout; what is left in it is what the next token finds.
#[test]
fn states_are_stored_token_by_token() {
    let case = Random {
        group: 2,
        ..Random::new(Op::Gdn, &[3, 0, 2], (4, 6))
    }
    .case();
    let calls = Mutex::new(Vec::new());
    let note = |at: Token, state: &mut [f64], cols: usize| {
        calls
            .lock()
            .expect("no panic")
            .push((at.sequence, at.head, at.token, state.len() / cols, cols));
        state.fill(0.0);
    };
    let mut state = State::<f64, Vk>::zeros(3, 2, 4, 6);
    let form = Recurrent {
        one_pass: false,
        store: Some(&note),
    };
    let o = case.run_in(&form, &mut state, None).expect("a good case");
    let mut calls = calls.into_inner().expect("no panic");
    calls.sort();
    let tokens = |sequence: usize, head: usize, n: usize| (0..n).map(move |token| (sequence, head, token, 6, 4));
    let want = tokens(0, 0, 3)
        .chain(tokens(0, 1, 3))
        .chain(tokens(2, 0, 2))
        .chain(tokens(2, 1, 2));
    assert_eq!(calls, want.collect::<Vec<_>>());
    assert!(state.tensor().data.iter().all(|&x| x == 0.0));

    // From a state of zeros every time, o is scale β (k·q) v.
    for token in 0..5 {
        let overlap: f64 = case
            .q
            .row(token)
            .iter()
            .zip(case.k.row(token))
            .map(|(q, k)| q * k)
            .sum();
        for head in 0..2 {
            let row = token * 2 + head;
            let beta = case.beta.as_ref().expect("the delta rule").data[row];
            for (o, v) in o.row(row).iter().zip(case.v.row(row)) {
                assert!((o - case.scale * beta * overlap * v).abs() <= 16.0 * U64 * v.abs());
            }
        }
    }
}

/// A store that rounds element by element does so in either layout; one of blocks along a row does not.
#[test]
fn a_store_sees_its_layout() {
    let case = Random::new(Op::Kda, &[40], (8, 12)).case();
    let run = |store: &(dyn Fn(Token, &mut [f32], usize) + Sync)| {
        let form = Recurrent {
            one_pass: true,
            store: Some(store),
        };
        let mut kv = State::<f32, Kv>::new(case.state.cast()).expect("a state");
        let mut vk = kv.turned();
        case.run_in(&form, &mut kv, None).expect("a good case");
        case.run_in(&form, &mut vk, None).expect("a good case");
        (kv, vk)
    };
    let (kv, vk) = run(&|_, state, _| round_to_bf16(state));
    assert_eq!(kv.turned(), vk);
    let seen = Mutex::new(Vec::new());
    run(&|at, state, cols| {
        if at.token == 0 {
            seen.lock().expect("no panic").push((state.to_vec(), cols));
        }
    });
    let seen = seen.into_inner().expect("no panic");
    let [(kv, 12), (vk, 8)] = &seen[..] else {
        panic!("rows of V, then of K: {seen:?}");
    };
    assert!((0..96).all(|i| kv[i] == vk[i % 12 * 8 + i / 12]));
    // The largest of each row, and no other.
    let (kv, vk) = run(&|_, state, cols| {
        for row in state.chunks_exact_mut(cols) {
            let top = row.iter().fold(0.0, |top: f32, x| top.max(x.abs()));
            row.iter_mut().filter(|x| x.abs() < top).for_each(|x| *x = 0.0);
        }
    });
    let nonzero = |state: &[f32]| state.iter().filter(|&&x| x != 0.0).count();
    assert_eq!((nonzero(&kv.tensor().data), nonzero(&vk.tensor().data)), (8, 12));
}

/// A state kept in bf16 over 2048 tokens: each store is off by 2⁻⁹ at most and decays as the state does, so that errors of
/// some ten tokens add up, and no more.
#[test]
fn states_in_bf16() {
    for op in [Op::Gdn, Op::Kda] {
        let case = Random::new(op, &[2048], (64, 48)).case();
        let want = case.recurrent::<f64>();
        let form = Recurrent {
            one_pass: false,
            store: Some(&|_, state, _| round_to_bf16(state)),
        };
        let got: Outcome<f32> = case.run(&form);
        let error = relative(&got.state.data, &want.state.data);
        println!(
            "{op:?}: o {:.1e}, state {error:.1e}",
            relative(&got.o.data, &want.o.data)
        );
        assert!((1e-3..=1e-2).contains(&error), "{op:?}: {error:e}");
        assert!(got.state.data.iter().all(|&x| bf16(x) == x));
        // What a token reads has not been stored yet.
        assert!(got.o.data.iter().any(|&x| bf16(x) != x));
        within(
            "unrounded",
            relative(&case.recurrent::<f32>().state.data, &want.state.data),
            32.0 * U32,
        );
    }
}
