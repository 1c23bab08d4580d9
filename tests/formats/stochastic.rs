//! Stochastic rounding: the random number from which on it goes up.

use ulplab::formats::{BF16, Direction, E2M1, E2M3, E3M2, E4M3, E5M2, Element, F16, Format, GlobalScale};

use super::oracle::Random;

const FLOATS: [&Element; 5] = [&E4M3, &E5M2, &E3M2, &E2M3, &E2M1];

/// The value of a code without its sign.
fn magnitude(element: &Element, code: u16) -> f64 {
    f64::from(element.decode(code)).abs()
}

/// Numbers of every binade and below the smallest, of both signs.
fn numbers(element: &Element) -> Vec<f32> {
    let mut random = Random(11);
    let (low, high) = (
        f64::from(element.decode(1)).log2() - 3.0,
        f64::from(element.max()).log2(),
    );
    let values = (0..60).map(|i| {
        let size = (low + (high - low) * random.uniform()).exp2() as f32;
        if i % 2 == 0 { size } else { -size }
    });
    values.collect()
}

/// The code towards zero, and how far `x` is above it in steps: by search over all codes.
fn below(element: &Element, x: f32) -> (u16, f64) {
    let half = 1 << (element.bits - 1);
    let code = (0..half)
        .rev()
        .find(|code| magnitude(element, *code) <= f64::from(x).abs())
        .unwrap();
    let (low, high) = (magnitude(element, code), magnitude(element, code + 1));
    let sign = if x < 0.0 { half } else { 0 };
    (code | sign, (f64::from(x).abs() - low) / (high - low))
}

/// The value that an element without scales keeps of `x`, with this random number.
fn rounded(element: &'static Element, direction: Direction, x: f32, random: u32) -> f32 {
    let format = Format {
        rotation: None,
        element,
        convention: None,
        scaling: None,
        global: None,
    };
    // Two numbers are whole bytes of any element.
    let mut both = [x; 2];
    format.round_toward(direction, &mut both, 2, |numbers| numbers.fill(random));
    assert_eq!(both[0].to_bits(), both[1].to_bits(), "{} of {x}", element.name);
    both[0]
}

#[test]
fn exact_and_too_large_numbers_and_nan_do_not_depend_on_chance() {
    for element in FLOATS {
        for random in [0, 1, 0x5a5a_5a5a, u32::MAX] {
            for direction in [Direction::Stochastic, Direction::TowardZero] {
                let found = |x: f32| rounded(element, direction, x, random).to_bits();
                for code in 0..1u16 << element.bits {
                    let x = element.decode(code);
                    if x.is_finite() {
                        assert_eq!(found(x), x.to_bits(), "{} {x}", element.name);
                    }
                }
                for x in [1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                    let expected = element.decode(element.encode(x)).to_bits();
                    assert_eq!(found(x), expected, "{} {x}", element.name);
                }
            }
        }
    }
}

#[test]
fn thirty_two_bits_go_up_where_the_fraction_says_and_toward_zero_never() {
    for element in [&BF16, &F16].into_iter().chain(FLOATS) {
        for x in numbers(element) {
            let (low, fraction) = below(element, x);
            // Up from the random number on that carries.
            let carries = 2f64.powi(32) - (fraction * 2f64.powi(32)).floor();
            let random = |offset: f64| (carries + offset).clamp(0.0, f64::from(u32::MAX)) as u32;
            let stochastic = |offset| rounded(element, Direction::Stochastic, x, random(offset));
            assert_eq!(stochastic(-1.0), element.decode(low), "{} of {x}", element.name);
            if carries < 2f64.powi(32) {
                assert_eq!(stochastic(0.0), element.decode(low + 1), "{} of {x}", element.name);
            }
            let zero = rounded(element, Direction::TowardZero, x, random(0.0));
            assert_eq!(zero, element.decode(low), "{} of {x}", element.name);
        }
    }
}

/// Under the scales that rounding to nearest stores, by which nearest and stochastic rounding differ in the codes only.
#[test]
fn tensors_round_in_any_direction_under_their_scales() {
    let mut random = Random(5);
    let x: Vec<f32> = (0..3 * 70)
        .map(|_| (random.uniform() * 8.0 - 4.0).exp2() as f32 * (random.uniform() - 0.5) as f32)
        .collect();
    for name in ["bf16", "e4m3", "e4m3/b32:e8m0", "e2m1/b16:e4m3", "e4m3/token:f32"] {
        let format: Format = name.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        let round = |direction, random: u32| {
            let mut y = x.clone();
            format.round_toward(direction, &mut y, 70, |numbers| numbers.fill(random));
            y
        };
        let [near, zero] = [Direction::Nearest, Direction::TowardZero].map(|direction| round(direction, 0));
        let mut read = vec![0.0; x.len()];
        format.decode(&format.encode(&x, 70, GlobalScale::Own), &mut read);
        assert_eq!(near, read, "{name}");
        // Halfway up is nearest but for ties; with no random bits, towards zero.
        let half = round(Direction::Stochastic, 1 << 31);
        assert!(
            half.iter().zip(&near).filter(|(a, b)| a != b).count() <= x.len() / 20,
            "{name}"
        );
        assert_eq!(round(Direction::Stochastic, 0), zero, "{name}");
        let up = round(Direction::Stochastic, u32::MAX);
        for i in 0..x.len() {
            assert!(
                zero[i].abs() <= near[i].abs() && near[i].abs() <= up[i].abs(),
                "{name}: {} {} {}",
                zero[i],
                near[i],
                up[i]
            );
            assert!([zero[i], up[i]].contains(&near[i]), "{name}");
        }
        assert_ne!(zero, up, "{name}");
    }
    for name in ["int8/token:f32", "e2m1/b16:e4m3/t:f32", "e4m3/b128x128:f32"] {
        let format: Format = name.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        let refused = format.has_directions();
        assert!(
            refused.is_err_and(|why| why.contains("rounds to nearest only")),
            "{name}"
        );
    }
}
