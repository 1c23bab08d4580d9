//! Block formats against torchao, TransformerEngine, ModelOpt and DeepGEMM.

use ulplab::formats::{E2M1, E4M3, Encoded, codec};

use crate::oracle::Fixture;

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
    for element in ["e4m3", "e5m2", "e2m1"] {
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
fn nvfp4_is_transformer_engine_torchao_and_modelopt() {
    let (inputs, want) = (Fixture::open("inputs"), Fixture::open("nvfp4"));
    let rules = [
        ("e2m1/b16:e4m3(te)/t:f32", "amax.te1d", "amax.global_amax"),
        ("e2m1/b16:e4m3(te)/token:f32", "amax.terow", "amax.terow.row_amax"),
        (
            "e2m1/b16:e4m3(torchao)/t:f32",
            "amax.ao018.two",
            "amax.ao018.global_scale",
        ),
        ("e2m1/b16:e4m3(torchao)", "ao018.single", ""),
        ("e2m1/b16:e4m3(modelopt)/t:f32", "amax.modelopt", "amax.modelopt.scale2"),
    ];
    let mut compared = 0;
    for (format, name, global) in rules {
        for input in INPUTS {
            let name = format!("{input}.{name}");
            // ModelOpt divides by scales that underflow, and casts the NaN somehow.
            if !want.has(&format!("{name}.q")) || (format.contains("modelopt") && input == "edge_f32") {
                continue;
            }
            let mut x = inputs.floats(input);
            if format.contains("te") {
                // TransformerEngine's Python reference, unlike its kernel, drops the sign of −0.
                x.iter_mut().for_each(|x| *x += 0.0);
            }
            let got = codec(format).unwrap().encode(&x, inputs.shape(input)[1]);
            equal(
                &format!("{name}.scale"),
                got.part("scale"),
                want.bytes(&format!("{name}.scale")),
            );
            equal(&format!("{name}.q"), got.part("data"), want.bytes(&format!("{name}.q")));
            if !global.is_empty() {
                equal(&name, got.part("global"), want.bytes(&format!("{input}.{global}")));
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 25);
}

#[test]
fn fp8_is_deepgemm_and_vllm() {
    let (inputs, want) = (Fixture::open("inputs"), Fixture::open("fp8_scaled"));
    for input in INPUTS {
        let got = encode("fp8_b128_f32", &inputs, input);
        equal(input, got.part("scale"), want.bytes(&format!("{input}.tok128.fp32.sf")));
        equal(input, got.part("data"), want.bytes(&format!("{input}.tok128.fp32.q")));

        // DeepGEMM keeps the powers of two as f32.
        let got = encode("e4m3/b128:f32(act_quant)", &inputs, input);
        equal(
            input,
            got.part("scale"),
            want.bytes(&format!("{input}.tok128.ue8m0.sf")),
        );
        equal(input, got.part("data"), want.bytes(&format!("{input}.tok128.ue8m0.q")));
        let bytes = encode("fp8_b128", &inputs, input);
        let scales = got
            .part("scale")
            .as_chunks()
            .0
            .iter()
            .map(|scale| (f32::from_le_bytes(*scale).to_bits() >> 23) as u8);
        equal(input, bytes.part("scale"), &scales.collect::<Vec<_>>());
        equal(input, bytes.part("data"), got.part("data"));

        // Four scale bytes packed into an i32, in order.
        let got = encode("e4m3/b32:e8m0(act_quant)", &inputs, input);
        equal(
            input,
            got.part("scale"),
            want.bytes(&format!("{input}.tok32.ue8m0packed.sf")),
        );
        equal(
            input,
            got.part("data"),
            want.bytes(&format!("{input}.tok32.ue8m0packed.q")),
        );

        let got = encode("fp8_token", &inputs, input);
        equal(
            input,
            got.part("scale"),
            want.bytes(&format!("{input}.vllm_token.scale")),
        );
        equal(
            input,
            got.part("data"),
            want.bytes(&format!("{input}.vllm_token.q_inv")),
        );
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
}
