//! Casts of single numbers.

use ulplab::formats::{BF16, E2M1, E4M3, E5M2, E8M0, ELEMENTS, Element, F16, INT8, MiniFloat, Overflow, Repr, element};

use crate::oracle::{Fixture, Random, table};

fn float(element: &Element) -> MiniFloat {
    match element.repr {
        Repr::Float(float) => float,
        _ => panic!("{} is no float", element.name),
    }
}

/// The same element without saturation.
fn special(element: &Element) -> Element {
    let repr = Repr::Float(MiniFloat {
        overflow: Overflow::Special,
        ..float(element)
    });
    Element {
        name: element.name,
        doc: element.doc,
        bits: element.bits,
        repr,
    }
}

fn codes(element: &Element) -> impl Iterator<Item = u16> {
    (0..=((1u32 << element.bits) - 1)).map(|code| code as u16)
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn every_code_survives_decode_and_encode() {
    for element in ELEMENTS {
        for code in codes(element) {
            let value = element.decode(code);
            let again = element.encode(value);
            if value.is_nan() {
                assert!(element.decode(again).is_nan(), "{} {code:#x}", element.name);
            } else if value.is_infinite() && element.name == "e5m2" {
                assert_eq!(again & 0x7f, 0x7b, "infinities saturate");
                assert_eq!(special(element).encode(value), code);
            } else if element.name == "int8" && code == 0x80 {
                assert_eq!(again, 0x81, "-128 is never written");
            } else {
                assert_eq!(again, code, "{} {value}", element.name);
            }
        }
    }
}

#[test]
fn values_of_all_codes_are_those_of_ml_dtypes() {
    for element in [&E4M3, &E5M2, &E2M1, &E8M0] {
        let table = table(element.name);
        assert_eq!(table.len(), 1 << element.bits);
        for code in codes(element) {
            let (want, got) = (table[usize::from(code)], element.decode(code));
            assert!(same(want, got), "{} {code:#x}: {got}, not {want}", element.name);
        }
    }
}

#[test]
fn all_bf16_cast_as_cuda_and_torch_do() {
    let file = Fixture::open("cast_bf16_exhaustive");
    let (e4m3, e5m2) = (special(&E4M3), special(&E5M2));
    let cases: [(&str, &Element); 6] = [
        ("nv_e4m3_sat", &E4M3),
        ("nv_e5m2_sat", &E5M2),
        ("nv_e4m3_nosat", &e4m3),
        ("nv_e5m2_nosat", &e5m2),
        ("nv_e2m1", &E2M1),
        ("nv_e8m0_rp_sat", &E8M0),
    ];
    for (name, element) in cases {
        for (bits, want) in file.bytes(name).iter().enumerate() {
            let x = f32::from_bits((bits as u32) << 16);
            assert_eq!(element.encode(x), u16::from(*want), "{name} of {x} ({bits:#x})");
        }
    }
    // torch keeps the sign of a NaN.
    for (bits, want) in file.bytes("torch_e4m3").iter().enumerate() {
        let x = f32::from_bits((bits as u32) << 16);
        let got = E4M3.encode(x);
        assert!(
            got == u16::from(*want) || (x.is_nan() && want & 0x7f == 0x7f),
            "torch_e4m3 of {x}"
        );
    }
}

/// Of any two neighbouring values: their midpoint goes to the even code, what is nearer to one goes to it.
#[test]
fn midpoints_go_to_the_even_code_and_the_rest_to_the_nearest() {
    for element in [&BF16, &F16, &E4M3, &E5M2, &E2M1, &INT8] {
        let last = match element.repr {
            Repr::Float(float) => float.max as u16,
            _ => 127,
        };
        let negative = |code: u16| match element.repr {
            Repr::Float(_) => code | 1 << (element.bits - 1),
            _ => (code as u8).wrapping_neg().into(),
        };
        for low in 0..last {
            let high = low + 1;
            let even = if low % 2 == 0 { low } else { high };
            let middle = (f64::from(element.decode(low)) + f64::from(element.decode(high))) / 2.0;
            let tie = middle as f32;
            assert_eq!(f64::from(tie), middle, "midpoints are exact in f32");
            for (x, want) in [(tie.next_down(), low), (tie, even), (tie.next_up(), high)] {
                assert_eq!(element.encode(x), want, "{} of {x:e}", element.name);
                assert_eq!(element.encode(-x), negative(want), "{} of -{x:e}", element.name);
            }
        }
    }
}

#[test]
fn half_agrees() {
    for code in 0..=u16::MAX {
        assert!(same(F16.decode(code), half::f16::from_bits(code).to_f32()), "{code:#x}");
        assert!(
            same(BF16.decode(code), half::bf16::from_bits(code).to_f32()),
            "{code:#x}"
        );
    }
    let mut random = Random(1);
    for _ in 0..1_000_000 {
        let x = f32::from_bits((random.uniform() * 4_294_967_296.0) as u32);
        if x.is_nan() {
            // half keeps sign and payload; here, as in PTX, there is one NaN.
            assert_eq!((F16.encode(x), BF16.encode(x)), (0x7fff, 0x7fff));
        } else {
            assert_eq!(F16.encode(x), half::f16::from_f32(x).to_bits(), "{x:e}");
            assert_eq!(BF16.encode(x), half::bf16::from_f32(x).to_bits(), "{x:e}");
        }
    }
}

#[test]
fn float8_agrees_on_what_is_in_range() {
    for code in 0..=u8::MAX {
        let (e4m3, e5m2) = (E4M3.decode(code.into()), E5M2.decode(code.into()));
        assert!(
            !e4m3.is_finite() || same(e4m3, float8::F8E4M3::from_bits(code).to_f32()),
            "{code:#x}"
        );
        assert!(
            !e5m2.is_finite() || same(e5m2, float8::F8E5M2::from_bits(code).to_f32()),
            "{code:#x}"
        );
    }
    let mut random = Random(2);
    for _ in 0..1_000_000 {
        let magnitude = (random.uniform() * 24.0 - 15.0).exp2() as f32;
        let x = if random.uniform() < 0.5 { magnitude } else { -magnitude };
        if magnitude <= 448.0 {
            assert_eq!(
                E4M3.encode(x),
                u16::from(float8::F8E4M3::from_f32(x).to_bits()),
                "{x:e}"
            );
        }
        assert_eq!(
            E5M2.encode(x),
            u16::from(float8::F8E5M2::from_f32(x).to_bits()),
            "{x:e}"
        );
    }
}

#[test]
fn overflow_infinity_and_nan_follow_the_policy() {
    let cases = [
        (&E4M3, 464.0, 0x7e), // a tie with the code of NaN
        (&E4M3, f32::INFINITY, 0x7e),
        (&E4M3, f32::NEG_INFINITY, 0xfe),
        (&E4M3, f32::NAN, 0x7f),
        (&E4M3, -f32::NAN, 0x7f),
        (&E5M2, f32::MAX, 0x7b),
        (&E5M2, f32::NEG_INFINITY, 0xfb),
        (&E5M2, f32::NAN, 0x7f),
        (&E2M1, f32::NEG_INFINITY, 0xf),
        (&E2M1, f32::NAN, 0x7),
        (&BF16, f32::MAX, 0x7f80),
        (&F16, 65520.0, 0x7c00),
        (&F16, 65519.996, 0x7bff),
        (&F16, f32::NEG_INFINITY, 0xfc00),
        (&INT8, f32::INFINITY, 127),
        (&INT8, -1e9, 0x81),
        (&INT8, f32::NAN, 0),
        (&E8M0, 0.0, 0),
        (&E8M0, f32::INFINITY, 254),
        (&E8M0, f32::NAN, 255),
    ];
    for (element, x, want) in cases {
        assert_eq!(element.encode(x), want, "{} of {x}", element.name);
    }
}

#[test]
fn names_are_unique_and_found() {
    for wanted in ELEMENTS {
        assert!(std::ptr::eq(element(wanted.name).unwrap(), *wanted), "{}", wanted.name);
    }
    assert!(element("e9m9").is_none());
}

#[test]
fn elements_know_their_largest_value_and_nan() {
    let facts: Vec<_> = ELEMENTS
        .iter()
        .map(|element| (element.name, element.max(), element.has_nan()))
        .collect();
    let want = [
        ("bf16", f32::from_bits(0x7f7f_0000), true),
        ("f16", 65504.0, true),
        ("e4m3", 448.0, true),
        ("e5m2", 57344.0, true),
        ("e2m1", 6.0, false),
        ("int8", 127.0, false),
        ("e8m0", f32::from_bits(0x7f00_0000), true),
    ];
    assert_eq!(facts, want);
}
