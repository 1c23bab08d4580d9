//! What is said of outputs that are wrong: which element, by how much, in what pattern, and why that is too much.

use safetensors::Dtype;
use ulplab::formats::{GlobalScale, codec};
use ulplab::gate::CHECKS;
use ulplab::metrics::VIOLATIONS;
use ulplab::ops::checks::{Band, GUARD_BYTE, batch, graph, guards, inputs, rerun};
use ulplab::ops::judge::{Judge, Measured};
use ulplab::ops::{Buffer, OPS, Outputs};
use ulplab::record::Failure;

use super::{bf16_bytes, buffer, f32_bytes, problems};

/// The failure that a judgement finds in an output.
fn failure(judge: &Judge, got: Vec<u8>) -> Failure {
    failed(judge.measure(&Outputs(vec![(judge.output, got)])))
}

fn failed(measured: Vec<Measured>) -> Failure {
    let first = measured.into_iter().find(|measured| measured.value > 0.0).unwrap();
    assert_eq!(first.metric.name, VIOLATIONS.name);
    *first.failure.expect("what is wrong is said")
}

/// What is planted at an element: from the bits of an f32 that is right, those that are wrong.
type Plant = fn(u32) -> u32;

fn doubled(bits: u32) -> u32 {
    (2.0 * f32::from_bits(bits)).to_bits()
}

#[test]
fn patterns_of_planted_errors() {
    let cases: &[(&[usize], fn(&[usize]) -> bool, Plant, &str)] = &[
        (&[24, 100], |_| true, doubled, "every one"),
        (&[24, 100], |at| at == [3, 9], doubled, "this one alone"),
        (
            &[24, 100],
            |at| at[1] >= 64,
            doubled,
            "all of columns 64 to 99, the tail beyond a multiple of 64",
        ),
        (&[24, 100], |at| at[1] >= 50, doubled, "all of columns 50 to 99"),
        (&[24, 100], |at| at[1] == 7, doubled, "all of column 7"),
        (&[24, 100], |at| at[0] == 23, doubled, "all of row 23, the last"),
        (&[24, 100], |at| at[0] == 5 || at[0] == 6, doubled, "all of rows 5 to 6"),
        (
            &[24, 100],
            |at| at[0] >= 16,
            doubled,
            "all of rows 16 to 23, the tail beyond a multiple of 16",
        ),
        (
            &[24, 100],
            |at| (8..16).contains(&at[0]) && (32..48).contains(&at[1]),
            doubled,
            "all of rows 8 to 15, columns 32 to 47",
        ),
        (
            &[24, 100],
            |at| at[1] % 4 == 1,
            doubled,
            "all of every 4th column, from 1 on",
        ),
        (
            &[24, 100],
            |at| at[1] % 32 >= 16,
            doubled,
            "all of columns that are 16 to 31 modulo 32",
        ),
        (
            &[24, 100],
            |at| at[0] * 7 % 100 == at[1],
            doubled,
            "one in each of all 24 rows",
        ),
        (
            &[2, 100],
            |at| (50..150).contains(&(at[0] * 100 + at[1])),
            doubled,
            "one stretch of elements, 50 to 149 of 200",
        ),
        (
            &[1000],
            |at| at[0] >= 896,
            doubled,
            "all of elements 896 to 999, the tail beyond a multiple of 128",
        ),
        (&[4, 6, 10], |at| at[1] == 3, doubled, "all of dimension 1 at 3"),
        (
            &[24, 100],
            |at| (at[0] * 31 + at[1] * 17) % 13 == 0,
            doubled,
            "scattered over all 24 rows, all 100 columns",
        ),
        (
            &[24, 100],
            |at| at[1] < 50,
            |_| 0,
            "all of columns 0 to 49, where 0 was found: never written?",
        ),
        (
            &[24, 100],
            |at| at[1] < 50,
            |_| 0xa5a5_a5a5,
            "which hold what was there before: never written",
        ),
        (
            &[24, 100],
            |at| at[1] < 50,
            |_| f32::NAN.to_bits(),
            "where NaN was found",
        ),
        (
            &[24, 100],
            |at| at[1] < 50,
            |bits| bits ^ 1 << 31,
            "with the sign flipped",
        ),
        (&[24, 100], |at| at[1] < 50, |bits| bits + 1, "off by one step"),
    ];
    for (shape, wrong, plant, expected) in cases {
        let len: usize = shape.iter().product();
        let want: Vec<f32> = (0..len).map(|at| 1.0 + at as f32 / 64.0).collect();
        let place = |mut at: usize| {
            let mut index = vec![0; shape.len()];
            for (to, size) in index.iter_mut().zip(*shape).rev() {
                (*to, at) = (at % size, at / size);
            }
            index
        };
        let planted = want.iter().enumerate().map(|(at, x)| match wrong(&place(at)) {
            true => f32::from_bits(plant(x.to_bits())),
            false => *x,
        });
        let got = f32_bytes(&planted.collect::<Vec<f32>>());
        let judge = Judge::equal("y", Dtype::F32, shape, f32_bytes(&want), "it is so");
        let found = failure(&judge, got);
        assert!(
            found.pattern.contains(expected),
            "'{expected}' is not in: {}",
            found.pattern
        );
        assert!(
            found.message.ends_with(&found.pattern) && found.why == "it is so",
            "{found:?}"
        );
    }
}

/// Where only NaN or 0 is wanted, that is said.
#[test]
fn patterns_of_what_is_wanted() {
    for (special, words) in [
        (f32::NAN, "where NaN is wanted"),
        (0.0, "where 0 is wanted"),
        (f32::INFINITY, "where an infinity is wanted"),
    ] {
        let mut want = vec![1.0f32; 300];
        [3, 77, 190].iter().for_each(|at| want[*at] = special);
        let judge = Judge::equal("y", Dtype::F32, &[3, 100], f32_bytes(&want), "");
        let found = failure(&judge, f32_bytes(&vec![1.0; 300]));
        assert!(found.pattern.contains(words), "{}", found.pattern);
    }
}

#[test]
fn messages_name_the_element_its_values_and_its_bound() {
    let mut got = vec![0.5f32; 24];
    got[23] = 0.0;
    got[7] = 0.5005;
    let mut want = vec![0.5; 24];
    want[23] = -0.0801;
    let judge = Judge::within("y", Dtype::F32, &[3, 8], want.clone(), |_, _| 3.1e-4, "it has a reason");
    let found = failure(&judge, f32_bytes(&got));
    assert_eq!(
        found.message,
        "y[2,7]: want -0.0801, got 0, bound 3.1e-4 (258x); 2 of 24 wrong, all in column 7, the last"
    );
    assert_eq!((found.bound, found.why.as_str()), (Some(3.1e-4), "it has a reason"));
    let worst = found.worst.unwrap();
    assert_eq!((worst.index, worst.want, worst.got), (vec![2, 7], -0.0801, 0.0));

    // Numbers that read the same in the digits of an f32 are told apart.
    let judge = Judge::within("y", Dtype::F32, &[1], vec![0.1], |_, _| 1e-12, "");
    let found = failure(&judge, f32_bytes(&[0.1]));
    assert!(
        found.message.contains("want 0.1, got 0.10000000149011612"),
        "{}",
        found.message
    );

    // Codes are shown as such, numbers with their bits.
    let judge = Judge::equal("data", Dtype::U8, &[2, 2], vec![1, 2, 3, 0x3f], "");
    let found = failure(&judge, vec![1, 2, 3, 0x40]);
    assert!(
        found
            .message
            .starts_with("data[1,1]: want 0x3f, got 0x40 (the first), bits must be equal; 1 of 4 wrong")
    );
    assert!(found.message.ends_with("off by one code"), "{}", found.message);
    let judge = Judge::equal("x", Dtype::BF16, &[1, 2], bf16_bytes(&[1.0, -2.0]), "");
    let found = failure(&judge, bf16_bytes(&[1.0, 2.0]));
    assert!(
        found.message.starts_with("x[0,1]: want -2 (0xc000), got 2 (0x4000)"),
        "{}",
        found.message
    );

    // Below 0 a bound asks for the same bits.
    let judge = Judge::within(
        "state",
        Dtype::F32,
        &[2],
        vec![0.0, 1.0],
        |at, _| if at == 0 { -1.0 } else { 1.0 },
        "",
    );
    let found = failure(&judge, f32_bytes(&[-0.0, 1.5]));
    assert!(
        found.message.contains("its bits must be as they were; 1 of 2 wrong"),
        "{}",
        found.message
    );
}

/// Errors of groups are relative to what is wanted of them.
#[test]
fn a_group_that_errs_is_named() {
    let want: Vec<f64> = (0..32).map(|at| 1.0 + f64::from(at % 4)).collect();
    let groups = (0..8).map(|row| row / 4).collect();
    let judge = Judge::rms(
        "o",
        Dtype::F32,
        &[4, 2, 4],
        want.clone(),
        (groups, vec![0.0; 2]),
        1e-2,
        "bf16",
    );
    let got: Vec<f32> = want
        .iter()
        .enumerate()
        .map(|(at, x)| *x as f32 * if at < 16 { 1.03 } else { 1.001 })
        .collect();
    let found = failure(&judge, f32_bytes(&got));
    for words in [
        "its group of 16 errs by 0.03 of what is wanted",
        "0.01 is allowed (3.00x)",
        "all of dimension 0 from 0 to 1",
    ] {
        assert!(found.message.contains(words), "'{words}' is not in: {}", found.message);
    }
    let bound = judge.bounds().unwrap();
    assert_eq!(bound.len(), 32);
    assert!((bound[0] - 1e-2 * 7.5f64.sqrt()).abs() < 1e-12, "{}", bound[0]);
}

/// A group's bound leaves room for operands in bfloat16, but not for results that are rounded to it.
#[test]
fn results_of_f32_must_not_be_numbers_of_bfloat16() {
    let want: Vec<f64> = (0..32).map(|at| 1.0 + f64::from(at) * 0.0123).collect();
    let judge = |want: &[f64]| {
        let groups = (vec![0; 8], vec![0.0]);
        Judge::rms("final", Dtype::F32, &[8, 4], want.to_vec(), groups, 1e-2, "bf16")
    };
    let rounded: Vec<f32> = want.iter().map(|x| half::bf16::from_f32(*x as f32).to_f32()).collect();
    let found = failure(&judge(&want), f32_bytes(&rounded));
    assert!(found.message.contains("a number of bfloat16"), "{}", found.message);
    // Half of them may be, and all may be where that is what is wanted.
    let half: Vec<f32> = (0..32)
        .map(|at| if at < 16 { rounded[at] } else { want[at] as f32 })
        .collect();
    let wide: Vec<f64> = rounded.iter().map(|x| f64::from(*x)).collect();
    for (want, got) in [(&want, &half), (&wide, &rounded)] {
        let measured = judge(want).measure(&Outputs(vec![("final", f32_bytes(got))]));
        assert!(measured.iter().all(|measured| measured.failure.is_none()));
    }
}

#[test]
fn codes_that_no_number_has_are_named() {
    let codec = codec("mxfp8").unwrap();
    let format = *codec.format().unwrap();
    let x: Vec<f32> = (0..64).map(|at| at as f32 / 8.0 - 4.0).collect();
    let encoded = format.encode(&x, 32, GlobalScale::Own);
    let want = x.iter().map(|x| f64::from(*x)).collect();
    let judge = Judge::admissible((format, 32, 1.0), 32, want, |_, _| 1e-6, "f32 arithmetic");
    let (mut data, mut scale) = (encoded.part("data").to_vec(), encoded.part("scale").to_vec());
    let right = judge.measure(&Outputs(vec![("data", data.clone()), ("scale", scale.clone())]));
    assert!(
        right
            .iter()
            .all(|measured| measured.value == 0.0 && measured.failure.is_none())
    );
    data[37] ^= 0x80;
    scale[0] += 1;
    let found = judge.measure(&Outputs(vec![("data", data), ("scale", scale)]));
    let said: Vec<&Failure> = found
        .iter()
        .filter_map(|measured| measured.failure.as_deref())
        .collect();
    assert_eq!(said.len(), 2);
    assert!(
        said[1].message.starts_with("scale[0,0]: want 0x"),
        "{}",
        said[1].message
    );
    assert!(
        said[1].message.contains("off by one code") && said[1].why == "f32 arithmetic",
        "{:?}",
        said[1]
    );
    assert!(said[0].message.contains("under the scale 0x"), "{}", said[0].message);
}

#[test]
fn guards_inputs_and_second_runs_are_named() {
    let mut behind = vec![GUARD_BYTE; 64];
    behind[..12].fill(0);
    let mut before = vec![GUARD_BYTE; 64];
    before[60] = 1;
    let band = |of: &str, behind: bool, bytes: &[u8]| Band {
        of: of.into(),
        behind,
        bytes: bytes.to_vec(),
    };
    let found = guards(&[
        band("y", true, &behind),
        band("x", false, &before),
        band("z", true, &[GUARD_BYTE; 64]),
    ]);
    assert_eq!((found.value, found.n), (13.0, 192));
    let message = found.failure.unwrap().message;
    for words in [
        "12 behind 'y', 0 to 11 bytes after its end",
        "1 before 'x', 4 to 4 bytes ahead of its start",
    ] {
        assert!(message.contains(words), "'{words}' is not in: {message}");
    }
    assert!(guards(&[band("y", true, &[GUARD_BYTE; 64])]).failure.is_none());

    let x = Buffer::input("x", Dtype::F32, &[2, 3], f32_bytes(&[1.0; 6]));
    let found = inputs(&[(&x, f32_bytes(&[1.0, 1.0, 1.0, 1.0, 2.0, 1.0]))]);
    let message = found.failure.unwrap().message;
    assert!(
        message.starts_with("an input was changed: x[1,1]: want 1 (0x3f800000), got 2"),
        "{message}"
    );

    let (_, problem) = problems("state_transpose").remove(0);
    let output = buffer(&problem, "y");
    let (first, mut second) = (vec![0; output.size()], vec![0; output.size()]);
    second[4] = 1;
    let outputs = |bytes| Outputs(vec![("y", bytes)]);
    let found = rerun(&problem, &outputs(first.clone()), &outputs(second));
    assert_eq!(found.value, 1.0);
    assert!(
        found
            .failure
            .unwrap()
            .message
            .starts_with("a second run left other bytes: y[0,0,0,1]: ")
    );
    assert!(
        rerun(&problem, &outputs(first.clone()), &outputs(first))
            .failure
            .is_none()
    );
}

/// Every operation says what its buffers are and why its outputs are judged as they are.
#[test]
fn every_operation_is_described() {
    for op in OPS.iter() {
        let described = ulplab::commands::kernels::describe::describe(*op).unwrap();
        assert!(
            !described.judgements.is_empty() && !described.buffers.is_empty(),
            "{}",
            op.name()
        );
        for judgement in &described.judgements {
            assert!(judgement.why.len() > 20, "{}: {judgement:?}", op.name());
        }
        let simple = ["mhc_pre", "quantize", "rmsnorm", "rope", "state_transpose", "swiglu"];
        for buffer in described.buffers.iter().filter(|_| simple.contains(&op.name())) {
            let named = buffer.shape.iter().all(|dim| !dim.contains(" in "));
            assert!(named, "{}: {buffer:?}", op.name());
        }
    }
}

/// A gate on one output would pass a kernel that fails a check whose name gates do not know.
#[test]
fn gates_bind_every_check() {
    let (_, problem) = problems("swiglu").remove(0);
    let output = buffer(&problem, "y");
    let outputs = Outputs(vec![("y", vec![0; output.size()])]);
    let of_row = Outputs(vec![("y", vec![0; output.size() / output.shape[0]])]);
    let found = [
        guards(&[]),
        inputs(&[]),
        rerun(&problem, &outputs, &outputs),
        graph(&problem, &outputs, &outputs),
        batch(&problem, &[0], &outputs, &of_row),
    ];
    for found in found {
        assert!(CHECKS.contains(&found.output), "'{}' binds no gate", found.output);
    }
}
