//! Format strings, names and their errors.

use ulplab::formats::{
    AFFINE_RULES, F32_RULES, FORMATS, Format, HALF_RULES, NVFP4_RULES, NVFP4_SINGLE_RULES, POWER_RULES, RECORDS, codec,
};

/// Every string the grammar admits with these parts.
fn strings() -> Vec<String> {
    let mut strings: Vec<String> = ["bf16", "f16", "e4m3", "e5m2"].map(String::from).to_vec();
    for element in [
        "bf16",
        "f16",
        "e4m3",
        "e5m2",
        "e3m2",
        "e2m3",
        "e2m1",
        "int8",
        "int4",
        "mxint8",
        "int2",
        "nf4",
        "lut(-1,-0.25,0.5,1)",
        "mxint8(microxcaling_floor)",
        "e2m1(deepgemm)",
        "e4m3(ml_dtypes)",
        "rht32/e5m2",
    ] {
        for group in ["b4", "b64", "b65536", "b2x4", "b128x128", "token", "t"] {
            strings.extend(
                POWER_RULES
                    .iter()
                    .map(|rule| format!("{element}/{group}:e8m0({})", rule.name)),
            );
            strings.extend(
                F32_RULES
                    .iter()
                    .map(|rule| format!("{element}/{group}:f32({})", rule.name)),
            );
            for half in ["f16", "bf16"] {
                let rules = HALF_RULES.iter();
                strings.extend(rules.map(|rule| format!("{element}/{group}:{half}({})", rule.name)));
            }
        }
    }
    for element in ["uint2", "uint3", "uint4", "uint8"] {
        for group in ["b8", "b32x1", "b3x1", "b2x16", "column", "token", "t"] {
            for kind in ["f32", "f16", "bf16"] {
                let rules = AFFINE_RULES.iter();
                strings.extend(rules.map(|rule| format!("{element}/{group}:{kind}({})", rule.name)));
            }
        }
    }
    strings.extend(
        NVFP4_SINGLE_RULES
            .iter()
            .map(|rule| format!("e2m1/b16:e4m3({})", rule.name)),
    );
    for outer in ["t", "token"] {
        strings.extend(
            NVFP4_RULES
                .iter()
                .map(|rule| format!("e2m1/b8:e4m3({})/{outer}:f32", rule.name)),
        );
    }
    strings
}

#[test]
fn what_is_printed_parses_back() {
    let mut printed = Vec::new();
    for text in strings() {
        let format: Format = text.parse().unwrap();
        let name = format.to_string();
        assert_eq!(name.parse::<Format>().unwrap(), format, "{text}");
        let default = text.replace("(rceil)", "").replace("(div)", "").replace("(minmax)", "");
        let default = match text.matches(':').count() {
            1 => default.replace("e4m3(flashinfer)", "e4m3"),
            _ => default.replace("e4m3(te)", "e4m3"),
        };
        assert_eq!(name, default, "of {text}");
        assert_eq!(codec(&text).unwrap().name(), name);
        printed.push(name);
    }
    let all = printed.len();
    printed.sort();
    printed.dedup();
    assert_eq!(printed.len(), all, "two formats print the same");
    for text in ["e2m1/b16:e4m3/t:f32", "e4m3/b32:e8m0", "int8/token:f32", "bf16"] {
        assert_eq!(text.parse::<Format>().unwrap().to_string(), text);
    }
}

#[test]
fn names_are_unique_and_name_themselves() {
    let mut names: Vec<&str> = RECORDS.iter().map(|record| record.name).collect();
    names.extend(FORMATS.iter().map(|named| named.name));
    for name in &names {
        let codec = codec(name).unwrap();
        assert_eq!(codec.name(), *name);
        assert!(!codec.doc().is_empty());
    }
    for named in FORMATS {
        assert_eq!(
            named.format.parse::<Format>().unwrap().to_string(),
            named.format,
            "{} is not canonical",
            named.name
        );
    }
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn errors_name_the_wrong_part_and_the_nearest_name() {
    let cases = [
        ("v4_fb8", "unknown format 'v4_fb8'; did you mean 'v4_fp8'?"),
        ("nvpf4", "unknown format 'nvpf4'; did you mean 'nvfp4'?"),
        ("MXFP8", "unknown format 'MXFP8'; did you mean 'mxfp8'?"),
        (
            "fp8",
            "unknown format 'fp8'; without scales it is 'e4m3' here; did you mean 'fp8_b64', 'fp8_b128', 'fp8_b128_f32', \
             'fp8_b128x128', 'fp8_out_channel', 'fp8_column', 'fp8_token' or 'fp8_tensor'?",
        ),
        ("", "unknown format ''"),
        // A channel is a row of weights to some, a column of keys to others.
        (
            "fp8_channel",
            "format 'fp8_channel' has two meanings; expected 'fp8_out_channel' (",
        ),
        ("fp8_channel", "or 'fp8_column' ("),
        (
            "int8_channel",
            "format 'int8_channel' has two meanings; expected 'int8_out_channel' (",
        ),
        ("int8_channel", "or 'int8/column:f32' ("),
        (
            "e4m3/channel:f32",
            "group 'channel' has two meanings; expected 'token' (",
        ),
        ("uint4/channel:f16", "or 'column' ("),
        ("quaternion", "unknown format 'quaternion'"),
        (
            "e4m4/b32:e8m0",
            "format 'e4m4/b32:e8m0': unknown element 'e4m4'; did you mean 'e4m3'?",
        ),
        ("e8m0", "format 'e8m0': 'e8m0' holds scales only"),
        (
            "e2m1",
            "format 'e2m1': 'e2m1' has no NaN, so it needs a scale that has one, e.g. 'e2m1/token:f32'",
        ),
        (
            "e4m3/b32",
            "format 'e4m3/b32': 'b32' should be <group>:<scale>, e.g. 'b32:e8m0'",
        ),
        ("e4m3/", "format 'e4m3/': '' should be <group>:<scale>, e.g. 'b32:e8m0'"),
        (
            "e4m3/32:e8m0",
            "format 'e4m3/32:e8m0': unknown group '32'; groups are 'b<N>' and 'b<N>x<N>' with N in 1 … 65536, 'token', 'column' and 't'",
        ),
        (
            "e4m3/b0:e8m0",
            "format 'e4m3/b0:e8m0': unknown group 'b0'; groups are 'b<N>' and 'b<N>x<N>' with N in 1 … 65536, 'token', 'column' and 't'",
        ),
        (
            "e4m3/b99999999999999999999:e8m0",
            "unknown group 'b99999999999999999999'",
        ),
        (
            "e4m3/b32:e8m1",
            "unknown scale 'e8m1'; scales are e8m0, f32, f16, bf16, e4m3; did you mean 'e8m0'?",
        ),
        (
            "e4m3/b32:e8m0(flor)",
            "unknown rule 'flor' for e8m0 scales; rules are rceil, floor, ",
        ),
        ("e4m3/b32:e8m0(flor)", "; did you mean 'floor'?"),
        ("e4m3/b32:e8m0(floor", "'e8m0(floor' lacks its closing ')'"),
        (
            "e4m3/b16:e4m3",
            "'b16:e4m3': e4m3 scales go with blocks of e2m1 (NVFP4)",
        ),
        (
            "e2m1/token:e4m3",
            "'token:e4m3': e4m3 scales go with blocks of e2m1 (NVFP4)",
        ),
        (
            "e2m1/b16:e4m3(v41)/t:f32",
            "for e4m3 scales under a second level; rules are te, torchao, torchao_triton, modelopt, ",
        ),
        (
            "e2m1/b16:e8m0/t:f32",
            "a second level goes above blocks with e4m3 scales, not above 'b16:e8m0'",
        ),
        (
            "e2m1/b16:e4m3/b64:f32",
            "the second level is 't:f32' or 'token:f32', not 'b64:f32'",
        ),
        (
            "e2m1/b16:e4m3/t:f32/t:f32",
            "'t:f32' is a third level of scales; there are at most two",
        ),
        (
            "uint4/b32:e8m0",
            "'uint4' has no negative codes, so it needs scales with zero points, f32, f16 or bf16, not 'b32:e8m0'",
        ),
        (
            "uint4/b32:f16(kiwi)",
            "unknown rule 'kiwi' for f16 scales with zero points; rules are minmax, kivi, awq, gptq, hqq; did you mean 'kivi'?",
        ),
        (
            "e2m1/b32:f16(kivi)",
            "unknown rule 'kivi' for f16 scales; rules are div, up",
        ),
        ("e2m1/b32x1:f16", "a block of 1 codes of 4 bits is not whole bytes"),
        ("uint3/b12:f16", "a block of 12 codes of 3 bits is not whole bytes"),
        ("lut(1,2,3)/b32:f32", "a table has 4, 8, 16 or 256 values, not 3"),
        (
            "lut(1,2,2,3)/b32:f32",
            "the values of a table ascend, but 2 comes before 2",
        ),
        (
            "lut(-0,0,1,2)/b32:f32",
            "the values of a table ascend, but 0 comes before 0",
        ),
        ("lut(1,2,x,3)/b32:f32", "'x' in a table is no number of f32"),
        ("lut(1,2,inf,nan)/b32:f32", "'inf' in a table is no number of f32"),
        (
            "lut(0,1e-40,2e-40,3e-40)/b32:f32",
            "the largest magnitude of a table is 2^-100 to 2^100, not 3e-40",
        ),
        (
            "lut(1,2,3,4)",
            "'lut(1,2,3,4)' has no NaN, so it needs a scale that has one",
        ),
        ("e2m1/b3:f32", "a block of 3 codes of 4 bits is not whole bytes"),
        (
            "e2m1/column:f32",
            "'column:f32' puts neighbouring 4-bit codes under different scales",
        ),
        ("ue4m3", "format 'ue4m3': 'ue4m3' holds scales only"),
        (
            "e4m3(torhc)/b32:e8m0",
            "unknown cast 'torhc' to e4m3; there are nosat, ml_dtypes, torch, torch_old, ",
        ),
        ("e4m3(torhc)/b32:e8m0", "did you mean 'torch'?"),
        ("bf16(torch)", "unknown cast 'torch' to bf16; it has only its own"),
        ("e2m1(deepgemm/b32:f32", "'e2m1(deepgemm' lacks its closing ')'"),
        ("e4m3/b+8:f32", "unknown group 'b+8'"),
        ("e4m3/b8x:f32", "unknown group 'b8x'"),
        ("rht12/e4m3", "'rht12': a rotation spans a power of two of channels"),
        (
            "e2m1/b16x16:e4m3/token:f32",
            "'b16x16:e4m3' spans tokens, so only 't:f32' goes above it",
        ),
        (
            "e2m1/b16x16:e4m3(te46_mse)/t:f32",
            "rule 'te46_mse' compares errors within a row, so blocks have one row",
        ),
    ];
    for (text, want) in cases {
        let Err(why) = codec(text) else {
            panic!("'{text}' was accepted")
        };
        assert!(why.contains(want), "'{text}': {why}");
    }
}

#[test]
fn rows_that_do_not_fit_are_refused_by_name() {
    let cases = [
        (
            "nvfp4_rht",
            40,
            "format 'nvfp4_rht': 40 channels are not whole rotations of 16",
        ),
        (
            "e2m1/token:f32",
            7,
            "format 'e2m1/token:f32': 7 channels of 4 bits are not whole bytes",
        ),
        (
            "uint3/b32:f16",
            36,
            "format 'uint3/b32:f16': 36 channels of 3 bits are not whole bytes",
        ),
        ("bf16", 0, "format 'bf16': a row has no channels"),
        ("v4_fp8", 576, "record 'v4_fp8' holds 512 channels, not 576"),
    ];
    for (name, cols, want) in cases {
        assert_eq!(codec(name).unwrap().check(cols).unwrap_err(), want);
    }
}
