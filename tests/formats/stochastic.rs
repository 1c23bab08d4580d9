//! Stochastic rounding: how often it goes up, counted over all random bits.

use ulplab::formats::{
    BF16, Direction, E2M1, E2M3, E3M2, E4M3, E5M2, Element, F16, Format, GlobalScale, stochastic, stochastic_byte,
    stochastic_hardware, toward_zero,
};

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

#[test]
fn eight_bits_go_up_as_often_as_the_fraction_says() {
    for element in FLOATS {
        for x in numbers(element) {
            let (low, fraction) = below(element, x);
            let codes: Vec<u16> = (0..=255).map(|random| stochastic_byte(element, x, random)).collect();
            let ups = codes.iter().filter(|code| **code == low + 1).count();
            assert!(
                codes.iter().all(|code| *code == low || *code == low + 1),
                "{} of {x}",
                element.name
            );
            assert_eq!(ups, (fraction * 256.0).floor() as usize, "{} of {x}", element.name);
        }
    }
}

#[test]
fn the_model_of_the_instruction_goes_up_as_often_in_every_lane() {
    for element in FLOATS {
        for x in numbers(element).into_iter().take(6) {
            let (low, fraction) = below(element, x);
            let mut ups = [0; 4];
            // What the lanes see of the random word is one half of it each, or alternate bytes.
            for half in 0..=u16::MAX {
                let [a, b] = half.to_le_bytes();
                let words = match element.bits {
                    4 => [u32::from_le_bytes([a, 0, b, 0]), u32::from_le_bytes([0, a, 0, b])],
                    _ => [u32::from(half), u32::from(half) << 16],
                };
                for (pair, word) in words.into_iter().enumerate() {
                    let codes = stochastic_hardware(element, [x; 4], word);
                    for lane in [2 * pair, 2 * pair + 1] {
                        assert!(codes[lane] == low || codes[lane] == low + 1, "{} of {x}", element.name);
                        ups[lane] += usize::from(codes[lane] == low + 1);
                    }
                }
            }
            assert_eq!(
                ups,
                [(fraction * 65536.0).floor() as usize; 4],
                "{} of {x}",
                element.name
            );
        }
    }
}

/// Which bits a lane sees: a fraction of 2^-16 goes up only where all of them are set.
#[test]
fn lanes_see_the_bits_the_model_says() {
    let x = 1.0 + 2f32.powi(-3 - 16);
    let up = |lane: usize, word: u32| stochastic_hardware(&E4M3, [x; 4], word)[lane] == E4M3.encode(1.0) + 1;
    assert!(up(0, 0xffff) && up(1, 0xffff) && !up(2, 0xffff) && !up(3, 0xffff));
    assert!(up(2, 0xffff_0000) && up(3, 0xffff_0000) && !up(0, 0xffff_0000));
    // Half a step needs the highest bit: of the reversed lanes that is the lowest.
    let half = 1.0 + 2f32.powi(-4);
    let ups = |word: u32| stochastic_hardware(&E4M3, [half; 4], word).map(|code| code != E4M3.encode(1.0));
    assert_eq!(ups(0x8000), [true, false, false, false]);
    assert_eq!(ups(0x0001), [false, true, false, false]);
    // FP4: bytes 2 and 0, 1 and 3.
    let half = 1.25;
    let ups = |word: u32| stochastic_hardware(&E2M1, [half; 4], word).map(|code| code != E2M1.encode(1.0));
    assert_eq!(ups(0x0080_0000), [true, false, false, false]);
    assert_eq!(ups(0x0000_0001), [false, true, false, false]);
    assert_eq!(ups(0x8000_0000), [false, false, true, false]);
    assert_eq!(ups(0x0000_0100), [false, false, false, true]);
}

#[test]
fn exact_and_too_large_numbers_and_nan_do_not_depend_on_chance() {
    for element in FLOATS {
        for random in [0, 1, 0x5a, 0xff] {
            let word = u32::from_ne_bytes([random; 4]);
            let each = |x: f32| {
                let mut codes = stochastic_hardware(element, [x; 4], word).to_vec();
                codes.push(stochastic_byte(element, x, random));
                codes
            };
            for code in 0..1u16 << element.bits {
                let x = element.decode(code);
                if x.is_finite() {
                    assert!(each(x).iter().all(|found| *found == code), "{} {x}", element.name);
                }
            }
            for x in [1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                assert!(
                    each(x).iter().all(|found| *found == element.encode(x)),
                    "{} {x}",
                    element.name
                );
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
            assert_eq!(stochastic(element, x, random(-1.0)), low, "{} of {x}", element.name);
            if carries < 2f64.powi(32) {
                assert_eq!(stochastic(element, x, random(0.0)), low + 1, "{} of {x}", element.name);
            }
            assert_eq!(toward_zero(element, x), low, "{} of {x}", element.name);
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
