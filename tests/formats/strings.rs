//! Format strings, names and their errors.

use ulplab::formats::{F32_RULES, FORMATS, Format, NVFP4_RULES, NVFP4_SINGLE_RULES, POWER_RULES, RECORDS, codec};

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
        "e2m1(deepgemm)",
        "e4m3(ml_dtypes)",
        "rht32/e5m2",
    ] {
        for group in ["b2", "b64", "b65536", "b2x2", "b128x128", "token", "t"] {
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
        let default = text.replace("(rceil)", "").replace("(div)", "");
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
             'fp8_b128x128', 'fp8_channel', 'fp8_token' or 'fp8_tensor'?",
        ),
        ("", "unknown format ''"),
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
            "format 'e4m3/32:e8m0': unknown group '32'; groups are 'b<N>' and 'b<N>x<N>' with N in 1 … 65536, 'token', 'channel' and 't'",
        ),
        (
            "e4m3/b0:e8m0",
            "format 'e4m3/b0:e8m0': unknown group 'b0'; groups are 'b<N>' and 'b<N>x<N>' with N in 1 … 65536, 'token', 'channel' and 't'",
        ),
        (
            "e4m3/b99999999999999999999:e8m0",
            "unknown group 'b99999999999999999999'",
        ),
        (
            "e4m3/b32:e8m1",
            "unknown scale 'e8m1'; scales are e8m0, f32, e4m3; did you mean 'e8m0'?",
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
        ("e2m1/b3:f32", "a block of 3 codes of 4 bits is not whole bytes"),
        (
            "e2m1/channel:f32",
            "'channel:f32' puts neighbouring 4-bit codes under different scales",
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
        ("bf16", 0, "format 'bf16': a row has no channels"),
        ("v4_fp8", 576, "record 'v4_fp8' holds 512 channels, not 576"),
    ];
    for (name, cols, want) in cases {
        assert_eq!(codec(name).unwrap().check(cols).unwrap_err(), want);
    }
}
