//! Block formats against torchao, TransformerEngine, ModelOpt and DeepGEMM.

use ulplab::formats::{E2M1, E4M3, Encoded, codec};

use super::oracle::Fixture;

const INPUTS: [&str; 6] = [
    "edge_f32",
    "gauss_bf16",
    "laplace_f32",
    "outlier_bf16",
    "student3_f32",
    "zeros_f32",
];

fn encode(format: &str, inputs: &Fixture, input: &str) -> Encoded {
    let cols = inputs.shape(input)[1];
    codec(format).unwrap().encode(&inputs.floats(input), cols)
}

/// Panics at the first byte that differs.
fn equal(what: &str, got: &[u8], want: &[u8]) {
    assert_eq!(got.len(), want.len(), "{what}: bytes");
    if let Some(index) = (0..got.len()).find(|index| got[*index] != want[*index]) {
        panic!("{what}: byte {index} is {:#x}, not {:#x}", got[index], want[index]);
    }
}

#[test]
fn mx_is_torchao() {
    let (inputs, want) = (Fixture::open("inputs"), Fixture::open("mx_aomain"));
    for element in ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] {
        for rule in ["floor", "ceil", "even", "rceil"] {
            let format = format!("{element}/b32:e8m0({rule})");
            for input in INPUTS {
                let got = encode(&format, &inputs, input);
                let name = format!("{input}.{element}.{rule}");
                let scales = got.part("scale");
                equal(&format!("{name}.scale"), scales, want.bytes(&format!("{name}.scale")));
                let (got, want) = (got.part("data"), want.bytes(&format!("{name}.q")));
                let block = got.len() / scales.len();
                for (index, scale) in scales.iter().enumerate() {
                    // Codes under a NaN scale mean nothing.
                    if *scale != 255 {
                        let bytes = index * block..(index + 1) * block;
                        equal(&format!("{name}.q, block {index}"), &got[bytes.clone()], &want[bytes]);
                    }
                }
            }
            let got = encode(&format, &inputs, "naninf_f32");
            equal(
                &format,
                got.part("scale"),
                want.bytes(&format!("naninf_f32.{element}.{rule}.scale")),
            );
        }
    }
}

#[test]
fn torchao_018_is_torchao_018() {
    let (inputs, want) = (Fixture::open("inputs"), Fixture::open("mx_ao018"));
    for element in ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] {
        for rule in ["floor", "ceil", "even", "rceil"] {
            let format = format!("{element}/b32:e8m0(torchao_018_{rule})");
            for input in ["edge_f32", "naninf_f32"] {
                let got = encode(&format, &inputs, input);
                let name = format!("{input}.{element}.{rule}");
                equal(&name, got.part("scale"), want.bytes(&format!("{name}.scale")));
                // What torchao's casts make of NaN and infinities is not defined.
                if input == "edge_f32" {
                    equal(&name, got.part("data"), want.bytes(&format!("{name}.q")));
                }
            }
        }
    }
}

/// The global amax a fixture was made with: the tensor's own, or a quarter of it.
fn given(want: &Fixture, input: &str, calibration: &str) -> Option<f32> {
    let name = format!("{input}.{calibration}.global_amax");
    want.has(&name).then(|| want.floats(&name)[0])
}

/// Compares codes and scales of a rule with every fixture of a library: inputs × calibrations. Returns how many there
/// were.
fn nvfp4_equals(rule: &str, library: &str, global: &str, skip: &[&str], change: impl Fn(&mut [f32])) -> usize {
    let (inputs, want) = (Fixture::open("inputs"), Fixture::open("nvfp4"));
    let codec = codec(&format!("e2m1/{rule}")).unwrap();
    let mut compared = 0;
    for input in INPUTS {
        for calibration in ["amax", "amax_div4"] {
            let name = format!("{input}.{calibration}.{library}");
            if !want.has(&format!("{name}.q")) || skip.contains(&input) {
                continue;
            }
            let (mut x, cols) = (inputs.floats(input), inputs.shape(input)[1]);
            change(&mut x);
            let got = match given(&want, input, calibration) {
                Some(amax) if rule.ends_with("/t:f32") => codec.encode_under(amax, &x, cols).unwrap(),
                _ => codec.encode(&x, cols),
            };
            let (across, scales) = (cols / 16, got.part("scale"));
            // The fixtures have a scale for every row of a tile.
            let repeat = got.rows * across / scales.len();
            let scales: Vec<u8> = scales.chunks(across).flat_map(|row| row.repeat(repeat)).collect();
            equal(&format!("{name}.scale"), &scales, want.bytes(&format!("{name}.scale")));
            equal(&format!("{name}.q"), got.part("data"), want.bytes(&format!("{name}.q")));
            if !global.is_empty() {
                equal(
                    &name,
                    got.part("global"),
                    want.bytes(&format!("{input}.{calibration}.{global}")),
                );
            }
            compared += 1;
        }
    }
    compared
}

/// TransformerEngine's Python reference, unlike its kernel, drops the sign of −0.
fn no_negative_zero(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x += 0.0);
}

#[test]
fn nvfp4_is_transformer_engine() {
    let te = |rule, library, global| nvfp4_equals(rule, library, global, &[], no_negative_zero);
    assert_eq!(te("b16:e4m3(te)/t:f32", "te1d", "global_amax"), 8);
    assert_eq!(te("b16:e4m3(te)/token:f32", "terow", "terow.row_amax"), 4);
    assert_eq!(te("b16x16:e4m3(te)/t:f32", "te2d", "global_amax"), 6);
}

#[test]
fn four_over_six_is_transformer_engine() {
    for largest in ["448", "256"] {
        for error in ["MAE", "MSE"] {
            for domain in ["f32err", "fp16err"] {
                let mut rule = format!("te46_{}", error.to_lowercase());
                rule += if largest == "256" { "_256" } else { "" };
                rule += if domain == "fp16err" { "_f16" } else { "" };
                let rule = format!("b16:e4m3({rule})/t:f32");
                let library = format!("te46.{largest}.{error}.{domain}");
                assert_eq!(nvfp4_equals(&rule, &library, "", &[], no_negative_zero), 8, "{library}");
            }
        }
    }
}

#[test]
fn nvfp4_is_torchao_modelopt_and_vllm() {
    let equals = |rule, library, global, skip| nvfp4_equals(rule, library, global, skip, |_| ());
    assert_eq!(
        equals("b16:e4m3(torchao)/t:f32", "ao018.two", "ao018.global_scale", &[]),
        7
    );
    // ModelOpt divides by scales that underflow, and casts the NaN somehow.
    assert_eq!(
        equals("b16:e4m3(modelopt)/t:f32", "modelopt", "modelopt.scale2", &["edge_f32"]),
        6
    );
    assert_eq!(equals("b16:e4m3(vllm)/t:f32", "vllm", "vllm.global_scale", &[]), 7);
    // One level has no calibration.
    let (inputs, want) = (Fixture::open("inputs"), Fixture::open("nvfp4"));
    for input in INPUTS {
        let got = encode("e2m1/b16:e4m3(torchao)", &inputs, input);
        equal(
            input,
            got.part("scale"),
            want.bytes(&format!("{input}.ao018.single.scale")),
        );
        equal(input, got.part("data"), want.bytes(&format!("{input}.ao018.single.q")));
    }
}

#[test]
fn scaled_fp8_and_fp4_are_deepgemm_vllm_and_torchao() {
    let (inputs, want) = (Fixture::open("inputs"), Fixture::open("fp8_scaled"));
    let cases = [
        ("fp8_b128_f32", "tok128.fp32", "sf", "q"),
        // DeepGEMM keeps the powers of two as f32.
        ("e4m3/b128:f32(act_quant)", "tok128.ue8m0", "sf", "q"),
        ("fp8_b128x128", "blk128.fp32", "sf", "q"),
        ("e4m3/b128x128:f32(act_quant)", "blk128.ue8m0", "sf", "q"),
        // Four scale bytes packed into an i32, in order.
        ("e4m3/b32:e8m0(act_quant)", "tok32.ue8m0packed", "sf", "q"),
        ("fp4_deepgemm", "tokfp4_32.fp32", "sf", "q"),
        ("e2m1(deepgemm)/b32:f32(act_quant)", "tokfp4_32.ue8m0", "sf", "q"),
        ("fp8_token", "vllm_token", "scale", "q_inv"),
        ("e4m3/token:f32(vllm_div)", "vllm_token", "scale", "q_div"),
        ("e4m3/token:f32(torchao)", "ao_row.e4m3.f32", "scale", "q"),
        ("e4m3/token:f32(torchao_power)", "ao_row.e4m3.p2", "scale", "q"),
        ("e5m2/token:f32(torchao)", "ao_row.e5m2.f32", "scale", "q"),
        ("e5m2/token:f32(torchao_power)", "ao_row.e5m2.p2", "scale", "q"),
        ("e4m3/t:f32(torchao)", "ao_tensor.e4m3.f32", "scale", "q"),
        ("e4m3/t:f32(torchao_power)", "ao_tensor.e4m3.p2", "scale", "q"),
        ("e5m2/t:f32(torchao)", "ao_tensor.e5m2.f32", "scale", "q"),
        ("e5m2/t:f32(torchao_power)", "ao_tensor.e5m2.p2", "scale", "q"),
    ];
    for (format, library, scale, codes) in cases {
        for input in INPUTS {
            let got = encode(format, &inputs, input);
            let what = format!("{input}.{library}");
            equal(
                &format!("{what}.{scale}"),
                got.part("scale"),
                want.bytes(&format!("{what}.{scale}")),
            );
            equal(
                &format!("{what}.{codes}"),
                got.part("data"),
                want.bytes(&format!("{what}.{codes}")),
            );
        }
    }
}

/// The same powers of two, kept as bytes or as f32.
#[test]
fn a_power_of_two_is_the_same_as_byte_and_as_f32() {
    let inputs = Fixture::open("inputs");
    for input in INPUTS {
        let (bytes, floats) = (
            encode("fp8_b128", &inputs, input),
            encode("e4m3/b128:f32(act_quant)", &inputs, input),
        );
        let exponents = floats.part("scale").as_chunks().0.iter();
        let exponents: Vec<u8> = exponents
            .map(|scale| (f32::from_le_bytes(*scale).to_bits() >> 23) as u8)
            .collect();
        equal(input, bytes.part("scale"), &exponents);
        equal(input, bytes.part("data"), floats.part("data"));
    }
}

/// Decoding multiplies the value of each code by its scales, in the documented order.
#[test]
fn decoding_is_the_product_of_code_and_scales() {
    let inputs = Fixture::open("inputs");
    let f32s = |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect() };
    for input in ["gauss_bf16", "student3_f32", "edge_f32"] {
        let cols = inputs.shape(input)[1];
        let mut out = inputs.floats(input);
        let check = |format: &str, out: &mut [f32], value: &dyn Fn(&Encoded, usize) -> f32| {
            let codec = codec(format).unwrap();
            let encoded = codec.encode(&inputs.floats(input), cols);
            codec.decode(&encoded, out);
            for (index, got) in out.iter().enumerate() {
                let want = value(&encoded, index);
                assert_eq!(
                    got.to_bits(),
                    want.to_bits(),
                    "{format} {input} {index}: {got}, not {want}"
                );
            }
        };
        let nibble = |encoded: &Encoded, index: usize| {
            E2M1.decode(u16::from(encoded.part("data")[index / 2] >> (4 * (index % 2)) & 0xf))
        };
        let fp8 = |encoded: &Encoded, index: usize| E4M3.decode(encoded.part("data")[index].into());
        let scale = |encoded: &Encoded, index: usize| E4M3.decode(encoded.part("scale")[index].into());
        check("mxfp4", &mut out, &|encoded, i| {
            nibble(encoded, i) * f32::exp2(f32::from(encoded.part("scale")[i / 32]) - 127.0)
        });
        check("fp8_b128_f32", &mut out, &|encoded, i| {
            fp8(encoded, i) * f32s(encoded.part("scale"))[i / 128]
        });
        check("fp8_token", &mut out, &|encoded, i| {
            fp8(encoded, i) * f32s(encoded.part("scale"))[i / cols]
        });
        check("fp8_tensor", &mut out, &|encoded, i| {
            fp8(encoded, i) * f32s(encoded.part("scale"))[0]
        });
        check("nvfp4_single", &mut out, &|encoded, i| {
            nibble(encoded, i) * scale(encoded, i / 16)
        });
        check("nvfp4", &mut out, &|encoded, i| {
            nibble(encoded, i) * (scale(encoded, i / 16) * f32s(encoded.part("global"))[0] * (1.0 / 2688.0))
        });
        check("nvfp4_token", &mut out, &|encoded, i| {
            nibble(encoded, i) * (scale(encoded, i / 16) * f32s(encoded.part("global"))[i / cols] * (1.0 / 2688.0))
        });
        check("e2m1/b16:e4m3(torchao)/t:f32", &mut out, &|encoded, i| {
            nibble(encoded, i) * (scale(encoded, i / 16) * f32s(encoded.part("global"))[0])
        });
    }
}

#[test]
fn int8_per_token_by_hand() {
    let x = [
        127.0, -63.5, 0.5, 1.5, 2.5, -127.0, 0.0, 126.6, /**/ 1.0, -0.5, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0,
    ];
    let encoded = codec("int8_token").unwrap().encode(&x, 8);
    // Row 0 has scale 1: ties go to even. Row 1 has scale 1/127: 63.5 and 31.75.
    let want = [127, -64, 0, 2, 2, -127, 0, 127, /**/ 127, -64, 32, 0, 0, 0, 0, 0].map(|code: i8| code as u8);
    equal("codes", encoded.part("data"), &want);
    equal(
        "scales",
        encoded.part("scale"),
        [1.0f32.to_le_bytes(), (1.0f32 / 127.0).to_le_bytes()].as_flattened(),
    );
}

/// SGLang's MXFP4 KV scale is the power nearest in the logarithm: `⌊log2(amax/6) + 1/2⌋`, here in f64 for every bf16.
#[test]
fn the_nearest_power_is_nearest_in_the_logarithm() {
    let codec = codec("e2m1/b2:e8m0(nearest)").unwrap();
    for bits in 0..0x7f80u32 {
        let amax = f32::from_bits(bits << 16);
        let want = if amax == 0.0 {
            0.0
        } else {
            ((f64::from(amax) / 6.0).log2() + 0.5).floor() + 127.0
        };
        let got = codec.encode(&[amax, -amax], 2).part("scale")[0];
        assert_eq!(f64::from(got), want.max(0.0), "{amax:e}");
    }
    // Around the threshold 6·√2, four f32 steps for the product with fl32(1/6) left out.
    let threshold = (6.0 * std::f64::consts::SQRT_2) as f32;
    for steps in 5..2000 {
        let (below, above) = (threshold.to_bits() - steps, threshold.to_bits() + steps);
        let [below, above] = [below, above].map(|bits| codec.encode(&[f32::from_bits(bits), 0.0], 2).part("scale")[0]);
        assert_eq!((below, above), (127, 128), "{steps} steps");
    }
}

/// Just below 6 times a tie of E4M3, the product with fl32(1/6) is the tie and the quotient by 6 is not.
#[test]
fn a_sixth_is_a_product_or_a_quotient_as_the_rule_says() {
    let mut x = [0.0; 16];
    x[0] = (6.0f32 * 1.1875).next_down();
    let scale = |format: &str| codec(format).unwrap().encode(&x, 16).part("scale")[0];
    assert_eq!(scale("e2m1/b16:e4m3(flashinfer)"), 0x3a);
    assert_eq!(scale("e2m1/b16:e4m3(v41)"), 0x3a);
    assert_eq!(scale("e2m1/b16:e4m3(torchao)"), 0x39);
}
