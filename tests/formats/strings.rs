//! Format strings, names and their errors.

use ulplab::formats::{F32_RULES, FORMATS, Format, NVFP4_RULES, NVFP4_SINGLE_RULES, POWER_RULES, RECORDS, codec};

/// Every string the grammar admits with these parts.
fn strings() -> Vec<String> {
    let mut strings: Vec<String> = ["bf16", "f16", "e4m3", "e5m2"].map(String::from).to_vec();
    for element in ["bf16", "f16", "e4m3", "e5m2", "e2m1", "int8"] {
        for group in ["b2", "b64", "b65536", "token", "t"] {
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
        assert!(
            text == name || name == text.replace(&text[text.find('(').unwrap()..=text.find(')').unwrap()], ""),
            "{text} became {name}"
        );
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
            "format 'e4m3/32:e8m0': unknown group '32'; groups are 'b<1…65536>', 'token' and 't'",
        ),
        (
            "e4m3/b0:e8m0",
            "format 'e4m3/b0:e8m0': unknown group 'b0'; groups are 'b<1…65536>', 'token' and 't'",
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
            "e2m1/b16:e4m3(flashinfer)/t:f32",
            "for e4m3 scales under a second level; rules are te, torchao, modelopt",
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
        ("mxfp8", 48, "format 'mxfp8': 48 channels are not whole blocks of 32"),
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
