//! Casts of single numbers.

use ulplab::formats::{
    BF16, CASTS, E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, ELEMENTS, Element, F16, FloatCast, INT2, INT3, INT4, INT8, MXINT8,
    Repr, UE4M3, convention, element,
};

use super::oracle::{Fixture, Random, table};

/// The element as a library casts to it.
fn cast(name: &str, element: &Element) -> Repr {
    convention(name).unwrap().repr(element).unwrap()
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
                assert_eq!(cast("nosat", element).encode(value), code);
            } else if matches!(element.repr, Repr::Integer(integer) if integer.is_signed())
                && code == 1 << (element.bits - 1)
            {
                assert_eq!(again, code + 1, "the most negative code is never written");
            } else {
                assert_eq!(again, code, "{} {value}", element.name);
            }
        }
    }
}

#[test]
fn values_of_all_codes_are_those_of_ml_dtypes() {
    for element in [&E4M3, &E5M2, &E3M2, &E2M3, &E2M1, &UE4M3, &MXINT8, &E8M0] {
        let table = table(element.name);
        // The table of UE4M3 is the half without the top bit.
        assert_eq!(
            table.len(),
            if element.name == "ue4m3" {
                128
            } else {
                1 << element.bits
            }
        );
        for code in 0..table.len() as u16 {
            let (want, got) = (table[usize::from(code)], element.decode(code));
            assert!(same(want, got), "{} {code:#x}: {got}, not {want}", element.name);
        }
    }
}

#[test]
fn all_bf16_cast_as_cuda_ml_dtypes_torch_and_torchao_do() {
    let file = Fixture::open("cast_bf16_exhaustive");
    let cases: [(&str, &Element, Option<&str>); 23] = [
        ("nv_e4m3_sat", &E4M3, None),
        ("nv_e5m2_sat", &E5M2, None),
        ("nv_e3m2", &E3M2, None),
        ("nv_e2m3", &E2M3, None),
        ("nv_e2m1", &E2M1, None),
        ("nv_e8m0_rp_sat", &E8M0, None),
        ("nv_e4m3_nosat", &E4M3, Some("nosat")),
        ("nv_e5m2_nosat", &E5M2, Some("nosat")),
        ("nv_e8m0_rp_nosat", &E8M0, Some("nosat")),
        ("nv_e8m0_rz_sat", &E8M0, Some("rz")),
        ("nv_e8m0_rz_nosat", &E8M0, Some("rz_nosat")),
        ("ml_e4m3", &E4M3, Some("ml_dtypes")),
        ("ml_e5m2", &E5M2, Some("ml_dtypes")),
        ("ml_e3m2", &E3M2, Some("ml_dtypes")),
        ("ml_e2m3", &E2M3, Some("ml_dtypes")),
        ("ml_e2m1", &E2M1, Some("ml_dtypes")),
        ("ml_e8m0", &E8M0, Some("ml_dtypes")),
        ("torch_e4m3", &E4M3, Some("torch")),
        ("torch_e5m2", &E5M2, Some("torch")),
        ("torch_e8m0", &E8M0, Some("torch")),
        ("ao_e3m2", &E3M2, None),
        ("ao_e2m3", &E2M3, None),
        ("ao_e2m1", &E2M1, None),
    ];
    for (name, element, library) in cases {
        let repr = library.map_or(element.repr, |library| cast(library, element));
        let runs = file.bytes(name).as_chunks::<4>().0;
        let number = |low, high| u16::from_le_bytes([low, high]);
        let runs: Vec<[u16; 2]> = runs.iter().map(|&[a, b, c, d]| [number(a, b), number(c, d)]).collect();
        assert_eq!(runs[0][0], 0);
        let mut run = 0;
        for bits in 0..=u16::MAX {
            run += usize::from(runs.get(run + 1).is_some_and(|next| next[0] == bits));
            let (x, want) = (f32::from_bits(u32::from(bits) << 16), runs[run][1]);
            // torchao's casts make anything of NaN.
            if !(name.starts_with("ao_") && x.is_nan()) {
                assert_eq!(repr.encode(x), want, "{name} of {x} ({bits:#x})");
            }
        }
        assert_eq!(run + 1, runs.len(), "{name}: a run is not in order");
    }
}

/// Every cast of every library against its definition, on the midpoints and their neighbours.
#[test]
fn conventions_differ_where_they_say() {
    let of = |library, element: &Element, x: f32| cast(library, element).encode(x);
    // A tie between 0.5 and 1, and between 2 and 3.
    for (x, even, away, zero) in [(0.75, 2, 2, 1), (2.5, 4, 5, 4), (-3.5, 14, 14, 13), (0.25, 0, 1, 0)] {
        assert_eq!(of("te_reference", &E2M1, x), even, "{x}");
        assert_eq!(of("microxcaling", &E2M1, x), away, "{x}");
        assert_eq!(of("deepgemm", &E2M1, x), zero, "{x}");
        assert_eq!(of("modelopt_mxfp4", &E2M1, x), zero, "{x}");
    }
    // Zeros, and a number that becomes zero.
    for (library, zero, negative_zero, tiny) in [
        ("ml_dtypes", 0, 8, 8),
        ("te_reference", 0, 0, 8),
        ("modelopt", 0, 0, 8),
        ("modelopt_mxfp4", 8, 8, 8),
        ("deepgemm", 0, 0, 0),
        ("microxcaling", 0, 0, 8),
    ] {
        let got = [0.0, -0.0, -0.1].map(|x| of(library, &E2M1, x));
        assert_eq!(got, [zero, negative_zero, tiny], "{library}");
    }
    assert_eq!(of("te_reference", &E2M1, f32::NAN), 0);
    assert_eq!(of("deepgemm", &E2M1, -f32::NAN), 0);
    assert_eq!(of("microxcaling", &E5M2, 1e30), 0x7b);
    assert_eq!(of("microxcaling", &E5M2, f32::NEG_INFINITY), 0xfc);
    assert_eq!(of("torch_old", &E4M3, 465.0), 0x7f);
    assert_eq!(of("torch_old", &E4M3, 464.0), 0x7e);
    assert_eq!(UE4M3.encode(-1.0), 0);
    assert_eq!(UE4M3.encode(-f32::NAN), 0x7f);
}

#[test]
fn conventions_are_known_by_name_and_apply_to_their_elements() {
    for wanted in CASTS {
        assert_eq!(convention(wanted.name), Some(wanted));
        assert_eq!(
            wanted.elements().count(),
            wanted.casts.len(),
            "{}: unknown element",
            wanted.name
        );
        for element in wanted.elements() {
            assert!(wanted.repr(element).is_some(), "{} of {}", element.name, wanted.name);
            assert_ne!(
                wanted.repr(element),
                Some(element.repr),
                "{} has nothing of its own",
                wanted.name
            );
        }
    }
}

/// The midpoint of two neighbouring values goes to the even code; what is nearer to one of them goes to that.
#[test]
fn midpoints_go_to_the_even_code_and_the_rest_to_the_nearest() {
    for element in [
        &BF16, &F16, &E4M3, &E5M2, &E3M2, &E2M3, &E2M1, &INT8, &INT4, &INT3, &INT2, &MXINT8,
    ] {
        let last = match element.repr {
            Repr::Float(FloatCast { float, .. }) => float.max as u16,
            _ => (1 << (element.bits - 1)) - 1,
        };
        let negative = |code: u16| match element.repr {
            Repr::Float(_) => code | 1 << (element.bits - 1),
            _ => code.wrapping_neg() & ((1 << element.bits) - 1),
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
        (&E8M0, f32::from_bits(0x40_0000), 0),
        (&E8M0, f32::from_bits(0x40_0001), 1),
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
        ("e3m2", 28.0, false),
        ("e2m3", 7.5, false),
        ("e2m1", 6.0, false),
        ("int8", 127.0, false),
        ("int4", 7.0, false),
        ("int3", 3.0, false),
        ("int2", 1.0, false),
        ("uint8", 255.0, false),
        ("uint4", 15.0, false),
        ("uint3", 7.0, false),
        ("uint2", 3.0, false),
        ("nf4", 1.0, false),
        ("mxint8", 127.0 / 64.0, false),
        ("ue4m3", 448.0, true),
        ("e8m0", f32::from_bits(0x7f00_0000), true),
    ];
    assert_eq!(facts, want);
}
