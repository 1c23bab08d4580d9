use safetensors::Dtype;
use ulplab::ops::{Case, Problem, Scalar};
use ulplab::random::philox;
use ulplab_operations::expected::{Call, Given, Operation, Tensor};
use ulplab_operations::ops::sample::Draw;

use super::{accepts_only, integers, problems, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Of equal scores the last is taken.
    LastOfTies,
    /// NaN is passed over.
    NanPassedOver,
    /// Rows draw by their place in the batch.
    ByPlace,
    /// Rows of padding have a token.
    Padding,
    /// Sequences draw by the lower 16 bits of their number.
    ShortSequence,
    /// Temperatures below 1e-5 count as 0.
    Greedy,
    /// Uniform numbers lack half a unit.
    WithoutHalf,
    /// Tokens after the first 131,072 are left out.
    FirstParts,
}

#[test]
fn philox_gives_the_published_words() {
    let ones = u32::MAX;
    let pi = (
        [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
        [0xa409_3822, 0x299f_31d0],
    );
    for ((counter, key), words) in [
        (([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        (
            ([ones; 4], [ones; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        ),
        (pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
    ] {
        assert_eq!(philox(counter, key), words);
    }
}

#[test]
fn what_is_expected_of_a_users_logits_is_drawn_with_the_same_noise() {
    let (rows, vocabulary, seed) = (40, 300, 0x000f_4567_89ab_cdef_u64);
    let tensor = |shape: &[usize], of: fn(usize) -> f64| {
        let data = (0..shape.iter().product()).map(of).collect();
        Given::Tensor(Tensor {
            shape: shape.to_vec(),
            data,
        })
    };
    let given = [
        ("logits", tensor(&[rows, vocabulary], |_| 0.0)),
        ("temperature", tensor(&[rows], |_| 1.0)),
        ("sequence", tensor(&[rows], |row| (row / 2) as f64)),
        ("position", tensor(&[rows], |row| (37 * row) as f64)),
        ("seed", Given::Number(seed as f64)),
    ];
    let given = given.map(|(name, given)| (name.to_string(), given)).into();
    let call = Call::new(Operation::find("sample").unwrap(), given, Dtype::I32).unwrap();
    let expected = (call.operation().compute)(&call).unwrap().remove(0);
    let best = |row: usize| {
        let draw = Draw {
            seed: seed as i64,
            sequence: row as i32 / 2,
            position: 37 * row as i32,
        };
        let largest = (0..vocabulary).max_by(|a, b| draw.noise(*a).total_cmp(&draw.noise(*b)));
        largest.unwrap() as f64
    };
    assert_eq!(expected.value, (0..rows).map(best).collect::<Vec<f64>>());
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let vocabulary = case.dim("V");
    let (logits, temperature) = (values(problem, "logits"), values(problem, "temperature"));
    let (sequence, position) = (integers(problem, "sequence"), integers(problem, "position"));
    let Scalar::I64(seed) = problem.scalars[0].1 else {
        panic!("seed")
    };
    let token = |row: usize| {
        if position[row] < 0 && mistake != Mistake::Padding {
            return -1;
        }
        let stream = if mistake == Mistake::ByPlace {
            row as u32
        } else {
            sequence[row] as u32
        };
        let mut best: Option<(f32, usize)> = None;
        let stream = if mistake == Mistake::ShortSequence {
            stream & 0xffff
        } else {
            stream
        };
        let least = if mistake == Mistake::Greedy { 1e-5 } else { 0.0 };
        let half = if mistake == Mistake::WithoutHalf { 0.0 } else { 0.5 };
        let parts = if mistake == Mistake::FirstParts {
            1 << 17
        } else {
            vocabulary
        };
        for token in 0..vocabulary.min(parts) {
            let mut score = logits[row * vocabulary + token];
            if temperature[row] > least {
                let counter = [token as u32 / 4, position[row] as u32, stream, 0];
                let bits = philox(counter, [seed as u32, (seed >> 32) as u32])[token % 4] >> 9;
                let uniform = (bits as f32 + half) / 8_388_608.0;
                score = score / temperature[row] - (-uniform.ln()).ln();
            }
            let better = match best {
                None => true,
                Some((kept, _)) if kept.is_nan() => mistake == Mistake::NanPassedOver,
                Some((kept, _)) if mistake == Mistake::LastOfTies => score >= kept,
                Some((kept, _)) => score > kept || score.is_nan() && mistake != Mistake::NanPassedOver,
            };
            if better {
                best = Some((score, token));
            }
        }
        best.map_or(-1, |(_, token)| token as i32)
    };
    (0..position.len()).flat_map(|row| token(row).to_le_bytes()).collect()
}

#[test]
fn sample_wants_the_best_token_of_a_sequence() {
    let all = problems("sample");
    for (case, problem) in &all {
        accepts_only(case, problem, &[("token", outputs(case, problem, Mistake::None))]);
    }
    let (case, problem) = all.iter().find(|(case, _)| case.name == "edges.b24.300").unwrap();
    for mistake in [
        Mistake::LastOfTies,
        Mistake::NanPassedOver,
        Mistake::ByPlace,
        Mistake::Padding,
        Mistake::ShortSequence,
        Mistake::Greedy,
        Mistake::WithoutHalf,
    ] {
        let found = violations(problem, vec![("token", outputs(case, problem, mistake))]);
        assert!(found >= 1.0, "{mistake:?}");
    }
    let (case, problem) = all.iter().find(|(case, _)| case.name == "edges.b8.131101").unwrap();
    let found = violations(problem, vec![("token", outputs(case, problem, Mistake::FirstParts))]);
    assert!(found >= 1.0);
}
