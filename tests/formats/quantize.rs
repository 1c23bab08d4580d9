//! Tensors are encoded as their blocks are, by every instruction set of the machine.

use ulplab::formats::{
    Decode, Encode, Encoded, FORMATS, Format, GlobalScale, NVFP4_RULES, POWER_RULES, Scale, Scaling, Select, unpack,
};

/// Tests each instruction set that this machine supports; normally only the best one runs.
fn machines() -> Vec<pulp::Arch> {
    let mut machines = vec![pulp::Arch::Scalar];
    #[cfg(target_arch = "x86_64")]
    {
        machines.extend(pulp::x86::V3::try_new().map(pulp::Arch::V3));
        machines.extend(pulp::x86::V4::try_new().map(pulp::Arch::V4));
    }
    machines
}

/// Numbers of many magnitudes, with zeros, a subnormal and, only if `special`, a NaN and an infinity.
fn numbers(len: usize, special: bool) -> Vec<f32> {
    let mut state = 7u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits(0x3000_0000 + (state >> 4)) * if state & 1 == 0 { 1.0 } else { -1.0 }
    };
    let mut x: Vec<f32> = (0..len).map(|_| random()).collect();
    x[7] = 0.0;
    x[100] = -0.0;
    x[300..700].fill(0.0);
    x[5000] = f32::from_bits(1);
    if special {
        x[1000] = f32::NAN;
        x[3000] = f32::NEG_INFINITY;
    }
    x
}

/// All named formats and rules, and blocks of every width that has a loop of its own, or none.
fn formats() -> Vec<Format> {
    let mut formats: Vec<String> = FORMATS.iter().map(|named| named.format.into()).collect();
    let nvfp4 = NVFP4_RULES
        .iter()
        .map(|rule| format!("e2m1/b16:e4m3({})/t:f32", rule.name));
    formats.extend(nvfp4);
    for element in ["e4m3", "e2m1(deepgemm)", "e4m3(microxcaling)"] {
        let rules = POWER_RULES
            .iter()
            .map(|rule| format!("{element}/b32:e8m0({})", rule.name));
        formats.extend(rules);
    }
    for element in ["e4m3", "e5m2", "e2m1", "e2m3", "int8"] {
        for block in [
            "b8", "b16", "b32", "b48", "b64", "b128", "b256", "b2x16", "b3x32", "b2x4096",
        ] {
            // Elements are divided by the scales of one, and multiplied with the factors of the other.
            formats.extend(["f32", "f32(deepgemm)"].map(|scale| format!("{element}/{block}:{scale}")));
        }
    }
    formats.iter().map(|format| format.parse().unwrap()).collect()
}

#[test]
fn all_instruction_sets_give_the_same_bytes() {
    // Rows are two pieces and a half; in the second case blocks of every width are ragged at the end.
    for (rows, cols, special) in [(3, 5168, false), (5, 5160, true)] {
        let x = numbers(rows * cols, special);
        for format in formats() {
            if cols == 5160 && format.check(cols).is_err() {
                continue;
            }
            let mut seen: Option<(Encoded, Vec<u32>)> = None;
            for machine in machines() {
                let encoded = machine.dispatch(Encode {
                    format: &format,
                    x: &x,
                    cols,
                    global: GlobalScale::Own,
                });
                let mut out = vec![0.0; x.len()];
                machine.dispatch(Decode {
                    format: &format,
                    encoded: &encoded,
                    out: &mut out,
                });
                let found = (encoded, out.iter().map(|x| x.to_bits()).collect());
                match &seen {
                    None => seen = Some(found),
                    Some(seen) => assert!(*seen == found, "{format}"),
                }
            }
        }
    }
}

#[test]
fn tensors_are_encoded_like_single_blocks_and_elements() {
    for (rows, cols, special) in [(3, 5168, false), (5, 5160, true)] {
        let x = numbers(rows * cols, special);
        for format in formats() {
            let Some(Scaling { group, scale }) = format.scaling else {
                continue;
            };
            // Rules that choose among scales need a block's elements.
            let chooses = matches!(scale, Scale::E4m3(rule) if rule.select != Select::One);
            if matches!(scale, Scale::Affine(_)) || format.rotation.is_some() || chooses || format.check(cols).is_err()
            {
                continue;
            }
            let encoded = format.encode(&x, cols, GlobalScale::Own);
            let globals = encoded.part("global").as_chunks().0.iter();
            let globals: Vec<f32> = globals.map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let (height, width) = group.tile(rows, cols);
            let mut stored = encoded.part("scale").chunks(scale.bytes());
            for (strip, x) in x.chunks(height * cols).enumerate() {
                // One for each row, one for the tensor, or none.
                let global = globals.get(strip).or(globals.first()).copied().unwrap_or(0.0);
                for first in (0..cols).step_by(width) {
                    let parts = x.chunks(cols).flat_map(|row| &row[first..cols.min(first + width)]);
                    let amax = parts.map(|x| x.abs().to_bits()).max().unwrap();
                    let expected = format.scale_of(f32::from_bits(amax), &[], global);
                    assert_eq!(stored.next(), Some(&expected[..]), "{format}: {strip}, {first}");
                }
            }
            let (repr, bits) = (format.repr(), format.element.stored_bits());
            let codes = unpack(encoded.part("data"), bits);
            for (at, x) in format.quotients(&x, &encoded).iter().enumerate() {
                assert_eq!(codes[at], repr.encode(*x), "{format}: {at}");
            }
        }
    }
}
