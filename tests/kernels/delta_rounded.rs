//! Kernels of the delta rule that multiply in bfloat16, emulated: chunks in f32, intermediates rounded where published kernels round
//! them. They are right whatever they round but the state that they carry. `ULPLAB_DRAWS=200 cargo test --test kernels delta_rounded --
//! --nocapture` prints how near they come to their bounds.

use rand_chacha::rand_core::Rng;
use reference::Tensor;
use reference::ops::linear_attention::{
    self as linear, Chunked, Decay, Inputs as Linear, Intermediate, Inversion, Kv, L2_EPS, Policy, State, Vk,
};
use ulplab::metrics::{BOUND_RATIO, VIOLATIONS};
use ulplab::ops::data::f32_bytes;
use ulplab::ops::{Case, Data, Inputs, Outputs, Problem, find};
use ulplab_core::random::stream;

use super::{buffer, stored, values};

/// How many kernels are drawn where nobody asks for more.
const DRAWS: usize = 12;

/// Bits of the significand of an f32 that bfloat16 lacks.
const BF16: u32 = 16;
/// Bits that TF32 lacks.
const TF32: u32 = 13;

/// What a kernel rounds, and how many bits it rounds away.
struct Rounded(Vec<Intermediate>, u32);

impl Policy<f32> for Rounded {
    fn round(&self, what: Intermediate, values: &mut [f32], _: usize) {
        if self.0.contains(&what) {
            let half = 1 << (self.1 - 1);
            let rounded = |x: f32| f32::from_bits((x.to_bits() + half) >> self.1 << self.1);
            values.iter_mut().for_each(|x| *x = rounded(*x));
        }
    }
}

/// A kernel: most intermediates are rounded, some of them in one draw and not in another; the state is only rounded as an operand.
fn drawn(draw: usize) -> Chunked<Rounded> {
    use Intermediate::{Beta, Output, State};
    let bits = stream(draw as u64, "delta_rounded").next_u32();
    let rounded = Intermediate::ALL.into_iter().enumerate();
    let rounded =
        rounded.filter(|(at, what)| ![Beta, State, Output].contains(what) && (draw == 0 || bits >> at & 7 != 0));
    Chunked {
        chunk: [64, 16, 64, 32][bits as usize >> 28 & 3],
        inversion: [Inversion::Substitution, Inversion::Neumann][bits as usize >> 27 & 1],
        policy: Rounded(rounded.map(|(_, what)| what).collect(), BF16),
    }
}

/// o, and the final states.
fn computed(case: &Case, problem: &Problem, form: &Chunked<Rounded>) -> [Vec<f32>; 2] {
    let tensor = |name: &str| Tensor::new(buffer(problem, name).shape.clone(), values(problem, name));
    let [mut q, mut k, v, g, beta] = ["q", "k", "v", "g", "beta"].map(tensor);
    linear::l2_normalize(&mut q, L2_EPS as f32);
    linear::l2_normalize(&mut k, L2_EPS as f32);
    let starts = buffer(problem, "starts").bytes.chunks(case.dim("index"));
    let starts: Vec<usize> = starts
        .map(|bytes| i32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize)
        .collect();
    let inputs = Linear {
        cu_seqlens: &starts,
        q: &q,
        k: &k,
        v: &v,
        decay: match g.shape.len() {
            2 => Decay::Head(&g),
            _ => Decay::Channel(&g),
        },
        beta: Some(&beta),
        scale: (case.dim("K") as f32).sqrt().recip(),
    };
    let initial = tensor("initial");
    let mut state = match case.dim("in_vk") {
        1 => State::<f32, Vk>::new(initial).unwrap().turned(),
        _ => State::<f32, Kv>::new(initial).unwrap(),
    };
    let o = linear::forward(&inputs, form, &mut state, None).unwrap();
    let state = match case.dim("out_vk") {
        1 => state.turned().into_tensor(),
        _ => state.into_tensor(),
    };
    [o.data, state.data]
}

/// The cases in bfloat16 that take no minutes, with problems of a draw.
fn problems(draw: usize) -> impl Iterator<Item = (Case, Problem)> {
    let op = find("delta_prefill").unwrap();
    let small = |case: &Case| case.key("dtype") == "bf16" && !case.timed;
    let none = |_: &str| Err("no model".to_string());
    op.cases().into_iter().filter(small).map(move |case| {
        let problem = op.problem(&case, &Data::new(draw as u64, &none)).unwrap();
        (case, problem)
    })
}

/// Wrong elements of both outputs, and their largest ratios of error to bound.
fn judged(problem: &Problem, [o, state]: &[Vec<f32>; 2]) -> (f64, Vec<f64>) {
    let outputs = Outputs(vec![("o", stored(true, o)), ("final", f32_bytes(state))]);
    let measured = problem.judge(&outputs);
    let of = |metric| {
        measured
            .iter()
            .filter(move |found| found.metric == metric)
            .map(|found| found.value)
    };
    (of(&VIOLATIONS).sum(), of(&BOUND_RATIO).collect())
}

#[test]
fn right_kernels_are_never_refused() {
    let draws = std::env::var("ULPLAB_DRAWS").map_or(DRAWS, |draws| draws.parse().expect("a number of draws"));
    let mut most = std::collections::BTreeMap::<String, Vec<f64>>::new();
    for draw in 0..draws {
        for (case, problem) in problems(draw) {
            // A case of each in CI, all of them where more draws are asked for.
            let number = case.name.len() + draw;
            if draws == DRAWS && number % 4 != 0 {
                continue;
            }
            let (wrong, ratios) = judged(&problem, &computed(&case, &problem, &drawn(draw)));
            assert_eq!(wrong, 0.0, "{} of draw {draw}: {ratios:?}", case.name);
            let most = most.entry(case.name).or_insert_with(|| vec![0.0; 2]);
            most.iter_mut()
                .zip(ratios)
                .for_each(|(most, ratio)| *most = most.max(ratio));
        }
    }
    println!("{most:#?}");
}

/// Faults that leave the root mean square of a group within its bound.
#[test]
fn small_faults_are_noticed() {
    let faults: [(&str, usize, fn(&mut [f32])); 4] = [
        ("a gain of 0.9 %", 700, |y| y.iter_mut().for_each(|y| *y *= 1.009)),
        ("a row of 6 % more", 1, |y| y[..128].iter_mut().for_each(|y| *y *= 1.06)),
        ("an eighth of a row missing", 1, |y| y[64..80].fill(0.0)),
        ("an element of the wrong sign", 1, |y| {
            let largest = (0..128).max_by(|a, b| y[*a].abs().total_cmp(&y[*b].abs())).unwrap();
            y[largest] = -y[largest];
        }),
    ];
    for (case, problem) in problems(0).filter(|(case, _)| case.dim("K") == 128 && case.inputs == Inputs::Random) {
        let right = computed(&case, &problem, &drawn(0));
        for (fault, tokens, spoil) in faults {
            for output in (0..2).filter(|output| *output == 1 || case.dim("T") / case.dim("N") >= tokens) {
                let mut wrong = right.clone();
                spoil(&mut wrong[output]);
                assert!(
                    judged(&problem, &wrong).0 > 0.0,
                    "{}: {fault} in output {output}",
                    case.name
                );
            }
        }
    }
}

/// A state that is rounded wherever a chunk leaves it to the next.
#[test]
fn a_state_that_is_carried_in_fewer_bits_is_noticed() {
    for (case, problem) in problems(0).filter(|(case, _)| case.key("sequences") == "carried") {
        let [o, state] = computed(&case, &problem, &drawn(0));
        for bits in [BF16, TF32] {
            let form = Chunked {
                policy: Rounded(vec![Intermediate::State], bits),
                ..drawn(0)
            };
            let [_, rounded] = computed(&case, &problem, &form);
            // The last bits, of which a judgement might tell it too, are there.
            let rounded = rounded
                .iter()
                .zip(&state)
                .map(|(x, right)| x + right * 2f32.powi(-20))
                .collect();
            assert!(
                judged(&problem, &[o.clone(), rounded]).0 > 0.0,
                "{}: {bits} bits fewer",
                case.name
            );
        }
    }
}
