//! Zero points, tables of values and scales of 16 bits: against the libraries' own code, against definitions, and at the ends.

use ulplab::formats::{AFFINE_RULES, E2M1, Encoded, MXINT8, NF4, Repr, codec, convention, unpack};
use ulplab::studies::round_trip::theory;

use super::oracle::{Fixture, Random};

/// An input of the fixture, cut so that nothing overflows in f16, and its row length.
fn input(inputs: &Fixture, name: &str) -> (Vec<f32>, usize) {
    let x = inputs.floats(name).iter().map(|x| x.clamp(-30000.0, 30000.0)).collect();
    (x, inputs.shape(name)[1])
}

fn f16s(bytes: &[u8]) -> Vec<f32> {
    let halves = bytes.as_chunks().0.iter();
    halves.map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}

/// Words of 16 bits, −0 as +0: of zeros of both signs either may be the minimum.
fn signless(bytes: &[u8]) -> Vec<u16> {
    let words = bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
    words.map(|word| if word == 0x8000 { 0 } else { word }).collect()
}

/// Holds scales, codes and values of a format against a library's, and returns how many blocks there were.
fn equals(format: &str, library: &str) -> usize {
    let (inputs, want) = (Fixture::open("inputs"), Fixture::open("zero_points"));
    let codec = codec(format).unwrap();
    let narrow = |x: f32| match library.ends_with("bf16") {
        true => half::bf16::from_f32(x).to_f32(),
        false => half::f16::from_f32(x).to_f32(),
    };
    let mut blocks = 0;
    for name in ["edge_f32", "laplace_f32", "outlier_bf16", "student3_f32", "zeros_f32"] {
        let part = |part: &str| format!("{name}.{library}.{part}");
        if !want.has(&part("q")) {
            continue;
        }
        let (x, cols) = input(&inputs, name);
        let got = codec.encode(&x, cols);
        let mut values = x.clone();
        codec.decode(&got, &mut values);
        assert_eq!(got.part("scale"), want.bytes(&part("scale")), "scales of {}", part(""));
        if want.has(&part("zero")) {
            let (zeros, want) = (got.part("zero"), want.bytes(&part("zero")));
            if zeros.len() == got.part("scale").len() {
                assert_eq!(signless(zeros), signless(want), "zero points of {}", part(""));
            } else {
                assert_eq!(zeros, want, "zero points of {}", part(""));
            }
        }
        let group = codec.format().unwrap().scaling.unwrap().group;
        let ((height, width), across) = (group.tile(got.rows, cols), group.count(got.rows, cols).1);
        let bits = codec.format().unwrap().element.bits as usize;
        let (codes, want_codes) = (unpack(got.part("data"), bits), unpack(want.bytes(&part("q")), bits));
        let want_values = want
            .has(&part("value"))
            .then(|| match want.bytes(&part("value")).len() / x.len() {
                2 => f16s(want.bytes(&part("value"))),
                _ => f32s(want.bytes(&part("value"))),
            });
        let bytes = codec.format().unwrap().scaling.unwrap().scale.bytes();
        let scales: Vec<&[u8]> = got.part("scale").chunks(bytes).collect();
        for at in 0..x.len() {
            let block = at / cols / height * across + at % cols / width;
            // Their 0/0, of the minimum itself, is a NaN cast to an integer.
            if scales[block].iter().all(|byte| *byte == 0) && narrow(x[at]) == values[at] && library.starts_with("kivi")
            {
                assert_eq!(codes[at], 0, "{} {at}", part("q"));
                continue;
            }
            assert_eq!(codes[at], want_codes[at], "{} {at} of {}", part("q"), x[at]);
            if let Some(want) = &want_values {
                assert_eq!(values[at], want[at], "{} {at} of {}", part("value"), x[at]);
            }
        }
        blocks += scales.len();
    }
    blocks
}

#[test]
fn zero_points_are_those_of_kivi_awq_gptq_and_hqq() {
    for (format, library, blocks) in [
        ("kivi2_g32", "kivi2", 688),
        ("kivi4_g32", "kivi4", 688),
        ("uint2/b32:bf16(kivi)", "kivi2_bf16", 688),
        ("kivi2_key_g32", "kivi2_key", 512),
        ("awq4_g128", "awq4", 172),
        ("gptq4_g128", "gptq4", 172),
        ("gptq3_g128", "gptq3", 172),
        ("hqq4_g64", "hqq4", 344),
    ] {
        assert_eq!(equals(format, library), blocks, "{format}");
    }
}

#[test]
fn nf4_is_bitsandbytes() {
    assert_eq!(equals("nf4", "nf4"), 344);
}

/// The nearest value in f64, on a midpoint the smaller: over all bf16 and next to every midpoint.
#[test]
fn a_table_gives_the_nearest_value() {
    let format = codec("lut(-1,-0.5,0.25,2)/b8:f32").unwrap();
    let own = format.format().unwrap().element;
    for element in [&NF4, own] {
        let Repr::Codebook(book) = element.repr else { panic!() };
        let nearest = |x: f32| {
            // Beyond all values, but not so far that distances round to the same.
            let x = f64::from(x).clamp(-1e6, 1e6);
            let distance = |value: &f32| (f64::from(*value) - x).abs();
            let values = book.values().iter().enumerate();
            values.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1))).unwrap().0 as u16
        };
        for bits in 0..=u16::MAX {
            let x = f32::from_bits(u32::from(bits) << 16);
            if x.is_finite() {
                assert_eq!(element.encode(x), nearest(x), "{} of {x}", element.name);
            }
        }
        for (code, pair) in book.values().windows(2).enumerate() {
            let middle = ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32;
            let codes = [middle.next_down(), middle, middle.next_up()].map(|x| element.encode(x));
            assert_eq!(
                codes.map(usize::from),
                [code, code, code + 1],
                "{} about {middle}",
                element.name
            );
        }
        assert_eq!(element.encode(f32::NEG_INFINITY), 0);
        assert_eq!(usize::from(element.encode(f32::INFINITY)), book.values().len() - 1);
    }
    // The largest magnitude of the block is the largest of the table.
    let mut x = [4.0, -2.1, 0.4, 1.0, 3.9, -1.0, 0.0, 0.3];
    format.round(&mut x, 8);
    assert_eq!(x, [4.0, -2.0, 0.5, 0.5, 4.0, -1.0, 0.5, 0.5]);
}

/// Codes that reach both ends of their range come back as they were.
#[test]
fn every_code_survives_decode_and_encode() {
    for (bits, name) in [(2, "uint2"), (3, "uint3"), (4, "uint4"), (8, "uint8")] {
        let codes: Vec<u16> = (0..1 << bits).cycle().take(256).collect();
        // A step of 1/4 and a minimum of −1/4, which is code 1 below 0: exact in every type.
        for rule in AFFINE_RULES {
            for kind in ["f32", "f16", "bf16"] {
                let x: Vec<f32> = codes.iter().map(|code| (f32::from(*code) - 1.0) / 4.0).collect();
                let codec = codec(&format!("{name}/b256:{kind}({})", rule.name)).unwrap();
                let encoded = codec.encode(&x, 256);
                assert_eq!(unpack(encoded.part("data"), bits), codes, "{}", codec.name());
                let mut values = x.clone();
                codec.decode(&encoded, &mut values);
                let again = codec.encode(&values, 256);
                assert_eq!(again.part("data"), encoded.part("data"), "{} again", codec.name());
            }
        }
    }
}

/// Equal values are kept as the type of the scale has them where the zero point is their minimum, subnormals too.
#[test]
fn a_block_of_equal_values_is_its_minimum() {
    for x in [1.0f32, -3.1, 0.0, 1e-7, -65504.0, f32::from_bits(1)] {
        for (format, want) in [
            ("kivi2_g32", half::f16::from_f32(x).to_f32()),
            ("uint4/b32:bf16(kivi)", half::bf16::from_f32(x).to_f32()),
            ("uint4/token:f32", x),
        ] {
            let mut row = [x; 32];
            codec(format).unwrap().round(&mut row, 32);
            assert_eq!(row, [want; 32], "{format} of {x:e}");
        }
    }
    // AutoAWQ's zero point is a code, so a block of one sign is cut at n·s: a fault of the rule that is kept.
    let mut row: Vec<f32> = (0..128).map(|i| 1.0 + i as f32 / 127.0).collect();
    codec("awq4_g128").unwrap().round(&mut row, 128);
    assert!(row.iter().all(|x| *x < 1.01), "{row:?}");
    // GPTQ's range holds 0.
    let mut row = vec![3.0; 128];
    codec("uint4/b128:f32(gptq)").unwrap().round(&mut row, 128);
    assert!(row.iter().all(|x| (x - 3.0).abs() < 1e-6), "{row:?}");
}

/// What a type cannot hold is NaN, not another number; in f32 it is kept.
#[test]
fn what_is_too_large_for_f16_is_nan() {
    let mut x = vec![0.0; 64];
    (x[3], x[40]) = (1e5, 1.0);
    for rule in AFFINE_RULES {
        let mut narrow = x.clone();
        codec(&format!("uint4/b32:f16({})", rule.name))
            .unwrap()
            .round(&mut narrow, 64);
        let lost = narrow.iter().filter(|x| x.is_nan()).count();
        // Only steps, not values, are f16 where the range is divided in f32.
        let fits = ["minmax", "gptq", "hqq"].contains(&rule.name);
        assert_eq!(lost, if fits { 0 } else { 32 }, "{}", rule.name);
        assert!(!narrow[40].is_nan());
        let mut wide = x.clone();
        codec(&format!("uint4/b32:f32({})", rule.name))
            .unwrap()
            .round(&mut wide, 64);
        assert!((wide[3] - 1e5).abs() < 1.0, "{} gives {}", rule.name, wide[3]);
    }
    // A scale beyond f16, with and without a zero point.
    for format in ["e2m1/b32:f16", "e2m1/b32:f16(up)", "uint4/b32:f16"] {
        let mut x = [-1e6f32; 32];
        x[1] = 1e6;
        codec(format).unwrap().round(&mut x, 32);
        assert!(x.iter().all(|x| x.is_nan()), "{format}: {x:?}");
    }
}

/// Groups of rows have a range of their own for each channel, and the last one of what is left.
#[test]
fn keys_are_grouped_along_rows() {
    let (rows, cols) = (40, 24);
    let x = Random(11).values(rows * cols);
    let codec = codec("uint4/b32x1:f16(kivi)").unwrap();
    let encoded = codec.encode(&x, cols);
    assert_eq!(
        encoded
            .parts
            .iter()
            .map(|part| (part.name, part.shape.clone()))
            .collect::<Vec<_>>(),
        [("data", vec![40, 12]), ("scale", vec![2, 24]), ("zero", vec![2, 24]),]
    );
    let mut together = x.clone();
    codec.round(&mut together, cols);
    // The same channel by channel, as a row of its own.
    for (first, last) in [(0, 32), (32, 40)] {
        for channel in 0..cols {
            let column = |x: &[f32]| (first..last).map(|row| x[row * cols + channel]).collect::<Vec<_>>();
            let mut alone = column(&x);
            let width = alone.len();
            ulplab::formats::codec("kivi4_g32").unwrap().round(&mut alone, width);
            assert_eq!(alone, column(&together), "channel {channel} from row {first}");
        }
    }
}

/// One element is a tail, and a row may end in it.
#[test]
fn a_tail_of_one_element_has_a_range_of_its_own() {
    let mut x: Vec<f32> = (0..33).map(|i| i as f32).collect();
    x[32] = 1000.0;
    let codec = codec("uint8/b32:f16(kivi)").unwrap();
    codec.round(&mut x, 33);
    assert_eq!(x[32], 1000.0);
}

/// A scale of 16 bits is the nearest value, or the smallest not below, and elements follow the stored one.
#[test]
fn half_scales_are_nearest_or_up() {
    let mut random = Random(12);
    for kind in ["f16", "bf16"] {
        let decode = |bytes: [u8; 2]| match kind {
            "f16" => half::f16::from_le_bytes(bytes).to_f32(),
            _ => half::bf16::from_le_bytes(bytes).to_f32(),
        };
        let nearest = |x: f32| match kind {
            "f16" => half::f16::from_f32(x).to_f32(),
            _ => half::bf16::from_f32(x).to_f32(),
        };
        for _ in 0..20_000 {
            let amax = (random.uniform() * 34.0 - 18.0).exp2() as f32;
            let x = [amax, -amax * random.uniform() as f32];
            let want = amax / 6.0;
            for rule in ["div", "up"] {
                let format = format!("e2m1/b2:{kind}({rule})");
                let encoded = codec(&format).unwrap().encode(&x, 2);
                let bytes: [u8; 2] = encoded.part("scale").try_into().unwrap();
                let scale = decode(bytes);
                if rule == "div" {
                    assert_eq!(scale, nearest(want), "{format} of {amax:e}");
                } else {
                    let below = decode((u16::from_le_bytes(bytes) - 1).to_le_bytes());
                    assert!(
                        below < want && want <= scale,
                        "{format} of {amax:e}: {below:e} {scale:e}"
                    );
                }
                let code = encoded.part("data")[0];
                if scale != 0.0 {
                    let want = E2M1.encode(x[0] / scale) | E2M1.encode(x[1] / scale) << 4;
                    assert_eq!(u16::from(code), want, "{format} of {x:?} by {scale:e}");
                }
            }
        }
    }
}

/// microxcaling: `sign(a)·floor(|a| + 1/2)` and `sign(a)·floor(|a|)` of `a = 64·x` in f32, cut at ±127.
#[test]
fn mxint8_is_microxcaling() {
    let (nearest, floor) = (
        convention("microxcaling").unwrap(),
        convention("microxcaling_floor").unwrap(),
    );
    let (nearest, floor) = (nearest.repr(&MXINT8).unwrap(), floor.repr(&MXINT8).unwrap());
    let mut random = Random(13);
    let drawn = (0..200_000).map(|_| (random.uniform() * 4.2 - 2.1) as f32);
    let ties = (0..=255).flat_map(|half| {
        let tie = half as f32 / 128.0;
        [tie.next_down(), tie, tie.next_up()]
    });
    for x in drawn.chain(ties).flat_map(|x| [x, -x]) {
        let a = x * 64.0;
        let code = |magnitude: f32| (magnitude.min(127.0).copysign(a) as i32 & 0xff) as u16;
        assert_eq!(nearest.encode(x), code((a.abs() + 0.5).floor()), "nearest {x}");
        assert_eq!(floor.encode(x), code(a.abs().floor()), "floor {x}");
    }
}

/// A uniform error within the steps of each group, less the share of values at the ends of a range, which have none: of 128 values
/// two or three.
#[test]
fn noise_is_what_theory_says() {
    let mut random = Random(14);
    let mut normal = || ((0..12).map(|_| random.uniform()).sum::<f64>() - 6.0) as f32;
    let x: Vec<f32> = (0..1 << 16).map(|_| normal()).collect();
    for format in [
        "uint8/b128:f16",
        "uint8/b128:f32(kivi)",
        "int8/b128:bf16",
        "int8/b128:f16(up)",
    ] {
        let codec = codec(format).unwrap();
        let mut y = x.clone();
        codec.round(&mut y, 512);
        let energy = |pairs: &mut dyn Iterator<Item = f64>| pairs.map(|x| x * x).sum::<f64>();
        let noise = energy(&mut x.iter().zip(&y).map(|(x, y)| f64::from(*x) - f64::from(*y)));
        let measured = noise / energy(&mut x.iter().map(|x| f64::from(*x)));
        let ratio = measured / theory::nsr(codec.format().unwrap(), &x, 512).unwrap();
        assert!((0.93..1.05).contains(&ratio), "{format}: {ratio}");
    }
    for format in ["awq4_g128", "kivi2_key_g32", "nf4"] {
        assert_eq!(
            theory::nsr(codec(format).unwrap().format().unwrap(), &x, 512),
            None,
            "{format}"
        );
    }
}

/// Parts are named, typed and shaped as the documentation says.
#[test]
fn zero_points_are_bytes_or_of_the_scales_type() {
    let parts = |format: &str| {
        let Encoded { parts, .. } = codec(format).unwrap().encode(&Random(15).values(256), 128);
        let zero = parts.into_iter().find(|part| part.name == "zero").unwrap();
        (zero.dtype.to_string(), zero.shape)
    };
    assert_eq!(parts("kivi2_g32"), ("F16".into(), vec![2, 4]));
    assert_eq!(parts("uint2/b32:bf16"), ("BF16".into(), vec![2, 4]));
    assert_eq!(parts("uint8/token:f32"), ("F32".into(), vec![2, 1]));
    assert_eq!(parts("awq4_g128"), ("U8".into(), vec![2, 1]));
    assert_eq!(parts("hqq4_g64"), ("F16".into(), vec![2, 2]));
    assert_eq!(parts("uint4/column:f16"), ("F16".into(), vec![1, 128]));
    assert_eq!(parts("uint4/t:f16(gptq)"), ("U8".into(), vec![1]));
}
