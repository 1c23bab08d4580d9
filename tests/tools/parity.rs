//! `compare --parity` as people drive it.

use safetensors::Dtype;
use ulplab::formats::{Encoded, codec};
use ulplab::layouts::Layout;

use super::{Bench, f32s, raw, values};

/// The source `w` as want.safetensors, what is made of it as got.safetensors.
pub fn bench(format: &str, change: impl Fn(&mut Encoded)) -> Bench {
    let bench = Bench::new();
    let x = values(128 * 64);
    bench.write("want.safetensors", &[("w", f32s(&[128, 64], &x))]);
    let mut encoded = codec(format).unwrap().encode(&x, 64);
    change(&mut encoded);
    let parts: Vec<_> = encoded
        .parts
        .iter()
        .map(|part| (format!("w.{}", part.name), raw(part.dtype, &part.shape, &part.bytes)))
        .collect();
    let parts: Vec<_> = parts
        .iter()
        .map(|(name, array)| (name.as_str(), array.clone()))
        .collect();
    bench.write("got.safetensors", &parts);
    bench
}

pub fn part<'a>(encoded: &'a mut Encoded, name: &str) -> &'a mut Vec<u8> {
    &mut encoded.parts.iter_mut().find(|part| part.name == name).unwrap().bytes
}

const COMMAND: &str = "compare want.safetensors got.safetensors --parity --format nvfp4";

#[test]
fn the_rule_is_named() {
    for rule in ["te", "modelopt", "vllm", "te46_mse_256"] {
        let bench = bench(&format!("e2m1/b16:e4m3({rule})/t:f32"), |_| ());
        let done = bench.works(COMMAND);
        assert!(
            done.out.contains(rule) && done.out.contains("to the last byte"),
            "{}",
            done.out
        );
        assert!(done.out.ends_with("PASS: 1 of 1 tensors explained\n"), "{}", done.out);
        bench.works(&format!("{COMMAND} --rule {rule}"));
        let records = bench.json(&format!("{COMMAND} --json"));
        let exact = records[0]["exact"].as_array().unwrap();
        assert!(exact.iter().any(|name| name == rule), "{exact:?}");
        assert_eq!(records[1]["verdict"], "pass");
    }
}

#[test]
fn a_fault_is_counted_and_shown() {
    let bench = bench("nvfp4", |encoded| {
        part(encoded, "data")
            .iter_mut()
            .for_each(|byte| *byte = byte.rotate_left(4))
    });
    let done = bench.run(COMMAND);
    assert_eq!(done.code, 100);
    assert!(
        done.out
            .contains("not te: nibble order, codes are row-major, high nibble first"),
        "{}",
        done.out
    );
    assert!(
        done.out.contains("in this order of storage explained by te"),
        "{}",
        done.out
    );
    assert!(done.out.ends_with("FAIL: 0 of 1 tensors explained\n"), "{}", done.out);

    let every = |encoded: &mut Encoded| {
        part(encoded, "scale")
            .iter_mut()
            .skip(7)
            .step_by(16)
            .for_each(|scale| *scale += 1)
    };
    let bench = self::bench("mxfp8", every);
    let command = "compare want.safetensors got.safetensors --parity --format mxfp8 --rule rceil --json";
    let records = bench.json(command);
    let finding = &records[0]["findings"][0];
    assert_eq!(
        (&finding["cause"], &finding["count"]),
        (&"scale rounding".into(), &16.into())
    );
    assert_eq!(finding["example"]["place"], serde_json::json!([3, 1]));
}

#[test]
fn the_global_scale_of_another_library() {
    let g = |encoded: &mut Encoded| {
        let bytes = part(encoded, "global");
        let amax = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        *bytes = (2688.0 / amax).to_le_bytes().to_vec();
    };
    let bench = bench("nvfp4", g);
    // TransformerEngine's bytes over a stored G are FlashInfer's exact mode.
    assert!(bench.works(COMMAND).out.contains("flashinfer_exact"));
    let done = bench.run(&format!("{COMMAND} --rule te"));
    assert_eq!(done.code, 100);
    assert!(
        done.out
            .contains("not te: global-scale convention, stored is what values are multiplied by"),
        "{}",
        done.out
    );
    assert!(
        done.out.contains("explained by") && done.out.contains("flashinfer_exact"),
        "{}",
        done.out
    );
}

/// What is no scale is called that, and everything else is right.
#[test]
fn a_global_scale_that_is_none() {
    for global in [0.0, -3.0, f32::NAN, f32::INFINITY] {
        let bench = bench("nvfp4", |encoded| {
            *part(encoded, "global") = global.to_le_bytes().to_vec()
        });
        let done = bench.run(COMMAND);
        let words = format!("not te: global-scale convention, stored is {global:e}, expected a positive number");
        assert!(done.code == 100 && done.out.contains(&words), "{}", done.out);
        assert_eq!(
            done.out.matches(" of ").count(),
            2,
            "one finding, and the verdict: {}",
            done.out
        );
    }
}

/// What is wrong everywhere or in one row is named, and so is where.
#[test]
fn codes_that_are_not_of_the_source() {
    let named = |words: &str, change: &dyn Fn(&mut Encoded)| {
        let bench = bench("nvfp4", change);
        let done = bench.run(COMMAND);
        assert!(done.code == 100 && done.out.contains(words), "{words}: {}", done.out);
    };
    named("not te: sign, codes are negated", &|encoded| {
        part(encoded, "data").iter_mut().for_each(|byte| *byte ^= 0x88)
    });
    named(
        "not te: layout, codes are with all bytes in reverse order",
        &|encoded| part(encoded, "data").reverse(),
    );
    named("never written, or written over, in row 5", &|encoded| {
        part(encoded, "data")[5 * 32..6 * 32].fill(0)
    });
    named("not te: missing data, all codes are 0x00 (0)", &|encoded| {
        part(encoded, "data").fill(0)
    });
    named("all scales are 0x00 (0e0): never written", &|encoded| {
        part(encoded, "data").fill(0);
        part(encoded, "scale").fill(0);
    });
}

/// No cause is made responsible for what it explains by chance.
#[test]
fn codes_of_nothing_are_unknown() {
    let bench = bench("nvfp4", |encoded| {
        let data = part(encoded, "data").iter_mut().enumerate();
        data.for_each(|(i, byte)| *byte = (i as u32).wrapping_mul(2_654_435_761).rotate_left(11) as u8);
    });
    let done = bench.run(COMMAND);
    assert!(
        done.code == 100 && done.out.contains("not te: unknown, codes no cause explains"),
        "{}",
        done.out
    );
    let findings = done
        .out
        .lines()
        .filter(|line| line.contains(" of 8192 codes: ") || line.contains(" scales: "));
    assert_eq!(findings.count(), 1, "{}", done.out);
}

/// The kernels of vLLM take approximate reciprocals, which move what lies next to a border between two codes, and no other code.
#[test]
fn an_approximate_kernel_is_no_excuse() {
    let off = |encoded: &mut Encoded| part(encoded, "data")[100] ^= 1;
    let bench = bench("e2m1/b16:e4m3(vllm)/t:f32", off);
    for rule in ["", " --rule vllm", " --rule fouroversix"] {
        let done = bench.run(&format!("{COMMAND}{rule}"));
        assert_eq!(done.code, 100, "{rule}: {}", done.out);
        assert!(!done.out.contains("approximate reciprocals"), "{}", done.out);
    }
}

#[test]
fn layouts_said_and_unsaid() {
    let swizzle = |encoded: &mut Encoded| {
        let scale = encoded.parts.iter_mut().find(|part| part.name == "scale").unwrap();
        let placement = Layout::find("blocked_128x4").unwrap().place(&scale.shape, &[]).unwrap();
        scale.bytes = placement.forward(&scale.bytes).unwrap();
        scale.dtype = Dtype::U8;
    };
    let bench = bench("nvfp4", swizzle);
    let done = bench.run(COMMAND);
    assert_eq!(done.code, 100);
    assert!(
        done.out.contains("not te: swizzle, scales are blocked_128x4"),
        "{}",
        done.out
    );
    bench.works(&format!("{COMMAND} --layout blocked_128x4"));
}

#[test]
fn mistakes() {
    let bench = bench("nvfp4", |_| ());
    let parity = "compare want.safetensors got.safetensors --parity";
    bench.fails(2, parity, &["got.safetensors", "'w'", "--format nvfp4"]);
    bench.fails(2, &format!("{COMMAND} --gate cosine>=0.9"), &["--parity judges bytes"]);
    bench.fails(
        2,
        "compare want.safetensors got.safetensors --rule te",
        &["--rule needs --parity"],
    );
    bench.fails(
        4,
        "compare want.safetensors want.safetensors --parity --format nvfp4",
        &["no quantized tensor"],
    );
    bench.fails(
        2,
        &format!("{COMMAND} --rule tee"),
        &["unknown rule 'tee'", "did you mean 'te'?"],
    );
    // The only tensor of a file is meant unless another is asked for.
    bench.fails(2, &format!("{COMMAND} --tensor typo"), &["no tensor 'typo'"]);
    for (layout, words) in [
        ("mn_major_f32", &["got.safetensors", "scales of 4 bytes", "has 1"][..]),
        ("blocked_128x4_m_groups", &["got.safetensors", "ends of groups"]),
    ] {
        bench.fails(2, &format!("{COMMAND} --layout {layout}"), words);
    }
    bench.write("want.safetensors", &[("w", f32s(&[128, 32], &values(128 * 32)))]);
    bench.fails(
        2,
        COMMAND,
        &["want.safetensors", "'w'", "[128, 32], expected [128, 64]"],
    );
}

/// A rule that nobody named, and that clips most blocks, explains the bytes and is warned of. Also of this kind: every rule of every
/// format (`python/tests/test_quantized.py::test_rules_that_cost_far_more_than_the_best`).
#[test]
fn a_rule_that_costs_far_more_than_the_best_is_warned_of() {
    let command = "compare want.safetensors got.safetensors --parity --format mxfp8";
    for (rule, warned) in [("vllm", true), ("nearest", true), ("rceil", false), ("floor", false)] {
        let bench = bench(&format!("e4m3/b32:e8m0({rule})"), |_| ());
        let done = bench.works(command);
        let said = done
            .out
            .contains(&format!("warning: the rule {rule} clips the largest element of"));
        assert_eq!(said, warned, "{}", done.out);
        assert!(done.out.ends_with("PASS: 1 of 1 tensors explained\n"), "{}", done.out);
        assert_eq!(
            bench.json(&format!("{command} --json"))[0]["warning"].is_string(),
            warned
        );
        let named = bench.works(&format!("{command} --rule {rule}"));
        assert!(!named.out.contains("warning"), "{}", named.out);
    }
}
