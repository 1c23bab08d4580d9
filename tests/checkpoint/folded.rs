//! Factors between a matrix and its source: AWQ scales channels, GPTQ moves values by steps, and neither is a fault.

use serde_json::json;
use ulplab_checkpoint::checkpoint::Severity;

use super::against::{COUNT_OF_PLANTS, plants};
use super::made::{COLS, Made, ROWS, clean, f32s, matrices, random};
use super::whole::told;

/// Puts matrices of changed values in place of all, and leaves the source.
fn replace_all(made: &mut Made, change: impl Fn(&str, &mut Vec<f32>)) {
    let source = made.source.clone();
    for name in matrices() {
        let (mut x, _) = made.source_of(&name);
        change(&name, &mut x);
        made.source.get_mut(&name).unwrap().2 = f32s(&x);
        let kind = made.kind;
        made.put_as(kind, &name);
    }
    made.source = source;
}

/// Factors between a ninth and one, one for each channel.
fn factors(seed: u64, count: usize) -> Vec<f32> {
    random(seed, count)
        .into_iter()
        .map(|x| 3f32.powf((x / 0.05).clamp(-1.0, 1.0) - 1.0))
        .collect()
}

/// Scales inputs, and outputs of `up_proj`, as AWQ does for what makes the inputs of `down_proj`.
fn fold(name: &str, x: &mut [f32]) {
    let inputs = factors(if name.contains("down") { 31 } else { 32 }, COLS);
    let outputs = if name.contains("up_proj") {
        factors(33, ROWS)
    } else {
        vec![1.0; ROWS]
    };
    for (at, x) in x.iter_mut().enumerate() {
        *x *= inputs[at % COLS] * outputs[at / COLS];
    }
}

#[test]
fn awq_is_judged_with_fitted_factors() {
    let mut made = clean("AWQ");
    replace_all(&mut made, |name, x| fold(name, x));
    let report = made.judge(true);
    assert!(report.findings.is_empty(), "{:#?}", told(&report));
    for judged in &report.matrices {
        assert!(judged.sqnr.unwrap() > 14.0, "{}: {:?}", judged.name, judged.sqnr);
    }
}

/// All plants but those that are a factor of channels themselves: AWQ has such factors.
#[test]
fn a_bad_matrix_of_awq_is_named() {
    let (mut missed, mut planted) = (Vec::new(), 0);
    let factors = [
        "a column doubled",
        "a row half as large",
        "a row half as large again",
        "a row a quarter larger",
        "a shard a quarter larger",
    ];
    for (at, (plant, change)) in plants().enumerate().filter(|(_, (plant, _))| !factors.contains(plant)) {
        let name = &matrices().remove(at % 6);
        let mut made = clean("AWQ");
        replace_all(&mut made, |own, x| {
            if own == name {
                change(x);
            }
            fold(own, x);
        });
        planted += 1;
        let report = made.judge(true);
        let of = |check: &str| {
            report
                .findings
                .iter()
                .filter(|finding| finding.check.name == check && finding.matrix == *name)
                .count()
        };
        let errors = report.count(Severity::Error) + report.count(Severity::NotJudged);
        if of("low_sqnr") + of("part_off") != 1 || errors != 1 {
            let sqnr = report.judged(name).and_then(|judged| judged.sqnr);
            missed.push((plant, name.clone(), sqnr, told(&report)));
        }
    }
    assert!(
        missed.is_empty() && planted + factors.len() == COUNT_OF_PLANTS,
        "{planted}, {} missed: {missed:#?}",
        missed.len()
    );
}

/// Factors where no configuration says AWQ, and rotations, are not judged; a plain factor of the whole matrix is an error.
#[test]
fn factors_that_nothing_states_are_not_judged() {
    for kind in [
        "compressed-tensors int4",
        "ModelOpt nvfp4",
        "GPTQ",
        "compressed-tensors fp8",
    ] {
        let mut made = clean(kind);
        replace_all(&mut made, |name, x| fold(name, x));
        let report = made.judge(true);
        let folded = report
            .findings
            .iter()
            .filter(|finding| finding.check.name == "folded")
            .count();
        assert_eq!((folded, report.findings.len()), (6, 6), "{kind}: {:#?}", told(&report));
        let mut made = clean(kind);
        let name = matrices().remove(2);
        replace_all(&mut made, |own, x| {
            x.iter_mut().for_each(|x| *x *= if own == name { 0.5 } else { 1.0 })
        });
        let report = made.judge(true);
        let errors = report
            .findings
            .iter()
            .filter(|finding| finding.check.name == "low_sqnr")
            .count();
        assert_eq!((errors, report.findings.len()), (1, 1), "{kind}: {:#?}", told(&report));
    }
    let mut made = clean("compressed-tensors int4");
    made.config["quantization_config"]["transform_config"] =
        json!({ "config_groups": { "R1": { "type": "hadamard" } } });
    replace_all(&mut made, |_, x| *x = x.rchunks(COLS).flatten().copied().collect());
    let report = made.judge(true);
    let checks: Vec<&str> = report.findings.iter().map(|finding| finding.check.name).collect();
    assert_eq!(checks, ["folded"], "{:#?}", told(&report));
    // Without a source there is nothing to hold against it.
    assert!(made.judge(false).findings.is_empty());
}

/// Values that were moved by a part of a step before they were rounded, as GPTQ and stochastic rounding move them: more in some
/// matrices than in others, and more in late columns.
#[test]
fn values_that_are_not_the_nearest_are_right_among_others() {
    for kind in ["compressed-tensors int4", "GPTQ", "ModelOpt nvfp4", "gpt-oss"] {
        for most in [0.3, 0.6, 1.0] {
            let mut made = clean(kind);
            replace_all(&mut made, |name, x| {
                let seed = name.bytes().map(u64::from).sum();
                let noise = random(seed, x.len());
                let share = most * (0.7 + 0.3 * (seed % 7) as f32 / 7.0);
                for (at, x) in x.iter_mut().enumerate().skip(1) {
                    // Half a step of a group of 64 values of this size is 0.006.
                    let late = 0.6 + 0.4 * (at % COLS) as f32 / COLS as f32;
                    *x += share * late * 0.012 * noise[at] / 0.03;
                }
            });
            let report = made.judge(true);
            assert!(report.findings.is_empty(), "{kind}, {most}: {:#?}", told(&report));
        }
    }
}
