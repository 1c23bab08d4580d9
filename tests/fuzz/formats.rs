//! Format strings, and what they do to numbers.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{TestCaseResult, TestRunner};
use ulplab::formats::{
    CASTS, Codec, ELEMENTS, F32_RULES, FORMATS, NVFP4_RULES, NVFP4_SINGLE_RULES, POWER_RULES, RECORDS, codec,
};

use super::{cases, edited, edits, kept};

/// What a string stands for: the format by its own name, or what is wrong with it.
pub fn outcome(text: &str) -> String {
    match codec(text) {
        Ok(codec) => {
            let name = codec.name();
            let again = self::codec(&name).unwrap_or_else(|why| panic!("{text:?} prints as {name}: {why}"));
            assert_eq!(
                (again.format(), again.name()),
                (codec.format(), name.clone()),
                "{text:?}"
            );
            assert!(!codec.doc().is_empty());
            format!("ok: {name}")
        }
        Err(why) => {
            assert!(why.contains(&format!("format '{text}'")), "{why}");
            why
        }
    }
}

/// A string of the grammar with names from the tables, though not always of the same table.
fn string() -> impl Strategy<Value = String> {
    let sizes = || {
        select(vec![
            "1", "2", "3", "8", "16", "16", "32", "128", "2x2", "16x16", "3x5", "65536", "65537", "0", "x", "",
        ])
    };
    let group = prop_oneof![
        3 => sizes().prop_map(|size| format!("b{size}")),
        2 => select(vec!["token", "column", "channel", "t", "row"]).prop_map(String::from),
    ];
    let rotation = prop_oneof![8 => Just(""), 1 => select(vec!["rht2/", "rht16/", "rht3/", "rht65536/", "rht/"])];
    let elements = select(ELEMENTS.iter().map(|element| element.name).collect::<Vec<_>>());
    let conventions = select(CASTS.iter().map(|convention| convention.name).collect::<Vec<_>>());
    let powers = select(POWER_RULES.iter().map(|rule| rule.name).collect::<Vec<_>>());
    let factors = select(F32_RULES.iter().map(|rule| rule.name).collect::<Vec<_>>());
    let fourbits = NVFP4_RULES.iter().chain(NVFP4_SINGLE_RULES);
    let fourbits = select(fourbits.map(|rule| rule.name).collect::<Vec<_>>());
    let call = |name: &'static str, rules: proptest::sample::Select<&'static str>| {
        prop::option::of(rules).prop_map(move |rule| rule.map_or(name.into(), |rule| format!("{name}({rule})")))
    };
    let scale = prop_oneof![
        call("e8m0", powers),
        call("f32", factors),
        call("e4m3", fourbits.clone())
    ];
    let one = (
        rotation,
        elements,
        prop::option::weighted(0.3, conventions),
        prop::option::weighted(0.8, (group, scale)),
    );
    let one = one.prop_map(|(rotation, element, convention, level)| {
        let convention = convention.map_or(String::new(), |convention| format!("({convention})"));
        let level = level.map_or(String::new(), |(group, scale)| format!("/{group}:{scale}"));
        format!("{rotation}{element}{convention}{level}")
    });
    let outer = select(vec![
        "",
        "/t:f32",
        "/token:f32",
        "/column:f32",
        "/t:f32/t:f32",
        "/t:e8m0",
    ]);
    let two = (sizes(), call("e4m3", fourbits), outer)
        .prop_map(|(size, scale, outer)| format!("e2m1/b{size}:{scale}{outer}"));
    let given = FORMATS
        .iter()
        .map(|named| named.name)
        .chain(RECORDS.iter().map(|record| record.name));
    prop_oneof![6 => one, 2 => two, 1 => select(given.collect::<Vec<_>>()).prop_map(String::from)]
}

fn letter() -> impl Strategy<Value = char> + Clone {
    const OURS: &[u8] = b"0123456789/():_bxtefmrht +-";
    any::<u32>().prop_map(|any| match char::from_u32(any % 0x11_0000).filter(|_| any >> 30 == 0) {
        Some(letter) => letter,
        None => char::from(OURS[any as usize % OURS.len()]),
    })
}

/// Numbers of every kind, many of them alike, by a generator that is faster than proptest's.
fn numbers(len: usize, mut seed: u64) -> Vec<f32> {
    let tame = seed.is_multiple_of(3);
    let special = [
        0.0,
        -0.0,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
    ];
    let mut next = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bits = (seed >> 32) as u32;
        match bits % 64 {
            // Between 2^-8 and 2^8, of both signs.
            pick if tame || pick > 15 => f32::from_bits((0x3b80_0000 + (bits >> 1) % 0x0800_0000) | bits << 31),
            pick if pick > 7 => f32::from_bits(bits.reverse_bits()),
            pick => special[pick as usize],
        }
    };
    (0..len).map(|_| next()).collect()
}

/// `[rows, cols]` with zeros to the right of it and below.
fn filled_up(x: &[f32], cols: usize, [down, across]: [usize; 2]) -> Vec<f32> {
    let mut out = Vec::new();
    for row in x.chunks_exact(cols) {
        out.extend_from_slice(row);
        out.resize(out.len() + across, 0.0);
    }
    out.resize(out.len() + down * (cols + across), 0.0);
    out
}

/// Stores ragged matrices and reads them back.
fn holds_together(
    codec: &dyn Codec,
    [rows, cols]: [usize; 2],
    [down, across]: [usize; 2],
    seed: u64,
) -> TestCaseResult {
    let name = codec.name();
    if let Err(why) = codec.check(cols) {
        prop_assert!(why.contains(&format!("'{name}'")), "{why}");
        return Ok(());
    }
    let x = numbers(rows * cols, seed);
    let mut encoded = codec.encode(&x, cols);
    for part in &encoded.parts {
        let elements: usize = part.shape.iter().product();
        prop_assert_eq!(
            part.bytes.len() * 8,
            elements * part.dtype.bitsize(),
            "{} of {}",
            part.name,
            name
        );
    }
    let mut y = vec![0.0; x.len()];
    codec.decode(&encoded, &mut y);
    for (x, y) in x.iter().zip(&y) {
        prop_assert!(y.is_nan() || !x.is_nan(), "{name} makes {y} of NaN");
    }
    // What is cut short is rounded as if filled up with zeros; where there are zero points, by its own range.
    let ranged = codec.format().is_some_and(|format| format.zero_point().is_some());
    if !ranged && codec.check(cols + across).is_ok() {
        let mut filled = filled_up(&x, cols, [down, across]);
        codec.round(&mut filled, cols + across);
        let corner = filled.chunks_exact(cols + across).flat_map(|row| &row[..cols]);
        for (y, same) in y.iter().zip(corner) {
            prop_assert!(
                y.to_bits() == same.to_bits() || y.is_nan() && same.is_nan(),
                "{name}: {y} and {same}"
            );
        }
    }
    // Bytes nobody wrote are read without a panic.
    for part in &mut encoded.parts {
        part.bytes
            .iter_mut()
            .zip(0..)
            .for_each(|(byte, i)| *byte ^= (seed >> (i % 57)) as u8);
    }
    codec.decode(&encoded, &mut y);
    Ok(())
}

#[test]
fn format_strings() {
    let shapes = (
        prop::array::uniform2(0..4usize),
        prop_oneof![0..70usize, select(vec![512, 576])],
        0..40usize,
    );
    let edits = prop_oneof![Just(Vec::new()), edits(letter())];
    let input = (string(), edits, shapes, any::<u64>());
    let accepted = Cell::new(0);
    let config = cases(10_000);
    let all = config.cases;
    let run = TestRunner::new(config).run(&input, |(text, edits, ([rows, down], cols, across), seed)| {
        let text: String = edited(text.chars(), &edits).into_iter().collect();
        kept::offer("format", text.as_bytes(), &outcome(&text));
        match codec(&text) {
            Ok(codec) => {
                accepted.set(accepted.get() + 1);
                holds_together(&*codec, [rows, cols], [down, across], seed)
            }
            Err(_) => Ok(()),
        }
    });
    run.unwrap_or_else(|error| panic!("{error}"));
    assert!(
        accepted.get() > all / 10,
        "only {} of {all} strings parse",
        accepted.get()
    );
}

proptest! {
    #![proptest_config(cases(10_000))]

    #[test]
    fn random_strings(letters in prop::collection::vec(letter(), 0..30)) {
        outcome(&letters.into_iter().collect::<String>());
    }
}
