//! Where the chunked form goes wrong if it is written down carelessly: exponentials of sums of decays.

use reference::Tensor;
use reference::ops::linear_attention::{Chunked, Intermediate, Inversion, Policy};

use super::support::*;

/// Sums of decays in f32, not clamped, as kernels have them.
struct SinglePrecisionSums;

impl<T> Policy<T> for SinglePrecisionSums {
    fn add_decay(&self, sum: f64, decay: f64) -> f64 {
        f64::from(sum as f32 + decay as f32)
    }
}

fn with_policy<P>(policy: P) -> Chunked<P> {
    Chunked {
        chunk: 64,
        inversion: Inversion::Substitution,
        policy,
    }
}

/// Four chunks with mild decays, of which every 16th is `gate`.
fn mostly_mild(op: Op, gate: f64) -> Case {
    let mut case = Random::new(op, &[256], (48, 40)).case();
    match &mut case.decay {
        Decays::Head(g) => g.data.iter_mut().skip(5).step_by(16).for_each(|g| *g = gate),
        // 49 has no divisor in common with 48: the extreme ones are in all channels, at different times.
        Decays::Channel(g) => g.data.iter_mut().skip(5).step_by(49).for_each(|g| *g = gate),
        Decays::Constant(g) => g.fill(gate),
    }
    case
}

/// The same decay everywhere.
fn constant(op: Op, gate: f64) -> Case {
    let mut case = Random::new(op, &[150], (24, 16)).case();
    match &mut case.decay {
        Decays::Head(g) | Decays::Channel(g) => g.data.fill(gate),
        Decays::Constant(g) => g.fill(gate),
    }
    case
}

const EXTREME: [f64; 6] = [-20.0, -88.0, -120.0, -320.0, -1e4, f64::NEG_INFINITY];

/// f64 sums of decays down to −750 are off by 64 · 750 · u at most, and so are exponents.
#[test]
fn extreme_decays() {
    for op in OPS {
        for gate in EXTREME {
            for case in [mostly_mild(op, gate), constant(op, gate)] {
                let want = case.recurrent::<f64>();
                let what = format!("{op:?}, decay {gate}");
                agrees(
                    &format!("{what}, f64"),
                    &case.chunked::<f64>(64),
                    &want,
                    64.0 * 750.0 * U64,
                );
                agrees(&format!("{what}, f32"), &case.chunked::<f32>(64), &want, 32.0 * U32);
                agrees(
                    &format!("{what}, f32 recurrence"),
                    &case.recurrent::<f32>(),
                    &want,
                    32.0 * U32,
                );
            }
        }
    }
}

/// Why sums are in f64: |G|·u is an absolute error of exponents.
#[test]
fn sums_in_f32_lose_what_is_mild() {
    for (gate, least) in [(-20.0, 2e-7), (-320.0, 3e-6), (-1e4, 1e-4)] {
        let case = mostly_mild(Op::Kda, gate);
        let want = case.recurrent::<f64>();
        let error = |got: &Outcome<f32>| relative(&got.o.data, &want.o.data);
        let single = error(&case.run(&with_policy(SinglePrecisionSums)));
        let double = error(&case.chunked::<f32>(64));
        println!("decay {gate}: sums in f32 {single:.1e}, in f64 {double:.1e}");
        assert!(double < 3e-7 && single > least && single > 2.0 * double);
    }
}

/// Why exponents are differences: exp(G_i) · exp(−G_j) over 64 rows is ∞ · 0 from decays of −1.4 on.
#[test]
fn factors_overflow_and_differences_do_not() {
    for gate in [-1.4f32, -2.0, -5.0] {
        let sum = |row: usize| gate * (row + 1) as f32;
        let factored = |i: usize, j: usize| sum(i).exp() * (-sum(j)).exp();
        assert!(!factored(63, 63).is_finite(), "{}", factored(63, 63));
        for op in [Op::Gdn, Op::Kda] {
            let case = constant(op, gate.into());
            agrees(
                &format!("{op:?} at {gate}"),
                &case.chunked::<f32>(64),
                &case.recurrent::<f64>(),
                16.0 * U32,
            );
        }
    }
}

/// Where nothing is written, a state only decays, down to what f64 can still tell from 0.
#[test]
fn decays_alone() {
    for (first, gate) in [(-0.5, -0.5), (-5.0, -5.0), (-40.0, -40.0), (-600.0, -0.5)] {
        let mut case = constant(Op::Gdn, gate).cut(0, 0..16);
        case.beta.as_mut().expect("the delta rule").data.fill(0.0);
        if let Decays::Head(g) = &mut case.decay {
            g.data[3] = first;
        }
        for got in [case.chunked::<f64>(16), case.chunked(5), case.recurrent()] {
            let off = |(got, before): (&f64, &f64)| (got / before / (first + 15.0 * gate).exp() - 1.0).abs();
            let error = got.state.data.iter().zip(&case.state.data).map(off).fold(0.0, f64::max);
            within(&format!("decays of {first} and {gate}"), error, 640.0 * 4.0 * U64);
        }
    }
}

/// A decay near 1 is rounded by up to half a place of f32, which acts for as long as the state remembers: at each of 1/|g|
/// tokens step by step, once in 64 in chunks.
#[test]
fn slow_decays() {
    for gate in [-1e-3f32, -3e-4, -1e-4] {
        let mut case = Random::new(Op::SimpleGla, &[4096], (16, 16)).case();
        case.decay = Decays::Constant(vec![gate.into()]);
        let want = case.recurrent::<f64>();
        let half = U32 / 2.0 / f64::from(-gate);
        for (what, got, rounded) in [
            ("step by step", case.recurrent::<f32>(), half),
            ("in chunks", case.chunked(64), half / 64.0),
        ] {
            let error = relative(&got.o.data, &want.o.data);
            within(&format!("decay of {gate}, {what}"), error, rounded + 16.0 * U32);
        }
    }
}

/// With β near 2 and the same key again and again, the delta rule turns the state over at every token.
#[test]
fn negative_eigenvalues() {
    for op in [Op::Gdn, Op::Kda] {
        let mut case = Random::new(op, &[200], (24, 16)).case();
        let row = case.k.row(0).to_vec();
        case.k
            .data
            .chunks_exact_mut(24)
            .step_by(2)
            .for_each(|k| k.copy_from_slice(&row));
        case.beta.as_mut().expect("the delta rule").data.fill(1.999);
        let want = case.recurrent::<f64>();
        for chunk in [16, 64] {
            agrees(
                &format!("{op:?}, chunks of {chunk}"),
                &case.chunked::<f64>(chunk),
                &want,
                64.0 * U64,
            );
            agrees(
                &format!("{op:?}, f32, chunks of {chunk}"),
                &case.chunked::<f32>(chunk),
                &want,
                64.0 * U32,
            );
        }
    }
}

/// A chunk's last row is its last token: what 64 rows would have decayed is not what 37 did.
#[test]
fn tails() {
    for op in OPS {
        for tokens in [1, 15, 16, 17, 37, 63, 64, 65, 127, 129] {
            let case = Random::new(op, &[tokens], (8, 12)).case();
            agrees(
                &format!("{op:?}, {tokens} tokens"),
                &case.chunked::<f64>(64),
                &case.recurrent::<f64>(),
                32.0 * U64,
            );
        }
    }
}

/// Chunks end with their sequence: the shapes that a policy sees are those of one sequence after the other.
#[test]
fn chunks_stay_in_their_sequence() {
    struct Rows(std::sync::Mutex<Vec<usize>>);
    impl<T> Policy<T> for Rows {
        fn round(&self, what: Intermediate, values: &mut [T], cols: usize) {
            if what == Intermediate::Value {
                self.0.lock().expect("no panic").push(values.len() / cols);
            }
        }
    }
    let case = Random::new(Op::Gdn, &[70, 0, 1, 63, 65], (4, 4)).case();
    let form = with_policy(Rows(Default::default()));
    let one = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .expect("a thread");
    let _: Outcome<f64> = one.install(|| case.run(&form));
    assert_eq!(form.policy.0.into_inner().expect("no panic"), [64, 6, 1, 63, 64, 1]);
}

/// Threads share out heads, not sums.
#[test]
fn threads_change_no_bit() {
    let case = Random {
        heads: 2,
        group: 2,
        ..Random::new(Op::Kda, &[70, 90], (24, 16))
    }
    .case();
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        pool.install(|| [bits(&case.recurrent::<f32>()), bits(&case.chunked::<f32>(64))])
    };
    assert!(run(1) == run(2) && run(1) == run(3));
}

/// A query and a key of zeros read and write nothing, and are no 0/0.
#[test]
fn rows_of_zeros() {
    let mut x = Tensor::new([2, 2], vec![0.0f32, 0.0, 3.0, 4.0]);
    reference::ops::linear_attention::l2_normalize(&mut x, 1e-6);
    assert_eq!(x.data, [0.0, 0.0, 0.6, 0.8]);
    let mut case = Random::new(Op::Gdn, &[3], (4, 4)).case();
    case.k.row_mut(1).fill(0.0);
    case.q.row_mut(1).fill(0.0);
    let got = case.chunked::<f64>(64);
    assert!(got.o.row(1).iter().all(|&o| o == 0.0));
    agrees("rows of zeros", &got, &case.recurrent::<f64>(), 8.0 * U64);
}
