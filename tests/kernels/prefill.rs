//! What published prefill kernels of linear attention lose by rounding, emulated.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use reference::ops::linear_attention::{
    Chunked, Decay, Form, Inputs, Intermediate, Kv, L2_EPS, Recurrent, State, beta, forward, l2_normalize,
};
use reference::{Real, Tensor};
use ulplab::formats::BF16;
use ulplab::studies::recurrence::prefill::{NarrowType, PREFILLS, prefill};

const DIM: usize = 128;
const HEADS: usize = 2;

/// Inputs as a kernel gets them: q, k and v in bf16, log decays and logits of β in f32.
struct Case {
    tokens: usize,
    q: Tensor<f32>,
    k: Tensor<f32>,
    v: Tensor<f32>,
    decay: Tensor<f32>,
    logits: Tensor<f32>,
}

impl Case {
    /// `channels` log decays of a head, `gate` · |normal| each.
    fn new(tokens: usize, channels: usize, gate: f32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut normal = |cols: usize| {
            let data = (0..tokens * HEADS * cols).map(|_| StandardNormal.sample(&mut rng));
            Tensor::new([tokens, HEADS, cols], data.collect::<Vec<f32>>())
        };
        let [mut q, mut k, mut v] = [DIM; 3].map(&mut normal);
        for x in [&mut q, &mut k, &mut v] {
            NarrowType::Stored(&BF16).round(&mut x.data);
        }
        let mut decay = normal(channels);
        decay.data.iter_mut().for_each(|g| *g = gate * g.abs());
        let mut logits = normal(1);
        logits.shape.pop();
        Self {
            tokens,
            q,
            k,
            v,
            decay,
            logits,
        }
    }

    /// o and the final state.
    fn run<T: Real>(&self, form: &impl Form<T>) -> [Tensor<T>; 2] {
        let cast =
            |x: &Tensor<f32>| Tensor::new(x.shape.clone(), x.data.iter().map(|&x| T::from_f64(x.into())).collect());
        let [mut q, mut k] = [&self.q, &self.k].map(cast);
        for x in [&mut q, &mut k] {
            l2_normalize(x, T::from_f64(L2_EPS));
        }
        let (v, mut g, beta) = (cast(&self.v), cast(&self.decay), beta(&cast(&self.logits), false));
        let of_heads = g.cols() == 1;
        if of_heads {
            g.shape.pop();
        }
        let inputs = Inputs {
            cu_seqlens: &[0, self.tokens],
            q: &q,
            k: &k,
            v: &v,
            decay: if of_heads { Decay::Head(&g) } else { Decay::Channel(&g) },
            beta: Some(&beta),
            scale: T::from_f64((DIM as f64).powf(-0.5)),
        };
        let mut state = State::<T, Kv>::zeros(1, HEADS, DIM, DIM);
        let o = forward(&inputs, form, &mut state, None).expect("a good case");
        [o, state.tensor().clone()]
    }
}

/// ‖got − want‖ / ‖want‖.
fn relative(got: &Tensor<f32>, want: &Tensor<f64>) -> f64 {
    let difference = got
        .data
        .iter()
        .zip(&want.data)
        .map(|(&a, b)| (f64::from(a) - b).powi(2));
    (difference.sum::<f64>() / want.data.iter().map(|x| x * x).sum::<f64>()).sqrt()
}

/// Relative errors of o and of the final state.
fn errors(got: [Tensor<f32>; 2], want: &[Tensor<f64>; 2]) -> [f64; 2] {
    [0, 1].map(|i| relative(&got[i], &want[i]))
}

/// Some ten roundings to bf16, each 2⁻⁹ / √3 = 1.1e-3 of what it rounds or, of a uniform mantissa, a little more, are
/// 3e-3 to 6e-3 together. They do not add up along the sequence, because the state forgets; a state carried in bf16 is
/// rounded four times in 64 tokens and is off by that much more.
#[test]
fn errors_of_published_kernels() {
    for (what, channels, gate) in [
        ("GDN", 1, -0.05),
        ("GDN", 1, -1.0),
        ("KDA", DIM, -0.05),
        ("KDA", DIM, -1.0),
    ] {
        for tokens in [64, 1024] {
            let case = Case::new(tokens, channels, gate);
            let want = case.run::<f64>(&Recurrent::DEFINITION);
            let mut states = Vec::new();
            for prefill in PREFILLS {
                let [o, state] = errors(case.run(&prefill.form(*prefill)), &want);
                println!(
                    "{what}, decays {gate}, {tokens} tokens: {} {o:.1e}, state {state:.1e}",
                    prefill.name
                );
                assert!((3.5e-3..5.5e-3).contains(&o) && (2.5e-3..4.5e-3).contains(&state));
                states.push((prefill.name, state));
            }
            let [fla, carried] =
                ["fla", "flash_kda"].map(|wanted| states.iter().find(|(name, _)| *name == wanted).expect(wanted).1);
            assert!(carried > 1.1 * fla);
            let [o, state] = errors(case.run(&Chunked::exact(64)), &want);
            println!("{what}, decays {gate}, {tokens} tokens: f32 {o:.1e}, state {state:.1e}");
            assert!(o <= 4e-7 && state <= 4e-7);
        }
    }
}

/// A row of the table that stood twice would be read once.
#[test]
fn the_table_names_everything_once() {
    for (number, row) in PREFILLS.iter().enumerate() {
        assert!(PREFILLS[..number].iter().all(|other| other.name != row.name));
        for what in Intermediate::ALL {
            assert!(
                row.rounds.iter().filter(|(at, _)| *at == what).count() <= 1,
                "{} {what:?}",
                row.name
            );
        }
    }
    assert!(prefill("fla3").is_none());
}

#[test]
fn narrow_dtypes() {
    let round = |narrow: NarrowType, x: f32| {
        let mut x = [x];
        narrow.round(&mut x);
        x[0]
    };
    let ulp = |bits: i32| 2f32.powi(-bits);
    assert_eq!(round(NarrowType::Stored(&BF16), 1.0 + 1.5 * ulp(8)), 1.0 + ulp(7));
    assert_eq!(round(NarrowType::Tf32, 1.0 + ulp(10)), 1.0 + ulp(10));
    assert_eq!(round(NarrowType::Tf32, -1.0 - 1.9 * ulp(11)), -1.0);
}
