//! Comparisons of tensors, element by element.

use half::{bf16, f16};
use ulplab_core::close::{Allowed, Comparison, PIECE, RUN, Widen, compare};

#[test]
fn numbers_of_16_bits_are_widened_exactly() {
    for bits in 0..=u16::MAX {
        let (brain, half) = (bf16::from_bits(bits), f16::from_bits(bits));
        for (got, want) in [(brain.widen(), brain.to_f64()), (half.widen(), half.to_f64())] {
            assert!(
                got == want || got.is_nan() && want.is_nan(),
                "{bits:#06x}: {got} for {want}"
            );
            assert_eq!(got.is_sign_negative(), want.is_sign_negative(), "{bits:#06x}");
        }
    }
}

fn tolerance(rtol: f64, atol: f64) -> Allowed<'static> {
    Allowed::Tolerance { rtol, atol }
}

#[test]
fn every_element_counts_wherever_it_is() {
    let len = 3 * PIECE + 77;
    let want: Vec<f32> = (0..len).map(|at| 1.0 + (at % 1000) as f32).collect();
    assert_eq!(compare(&want, &want, tolerance(0.0, 0.0), false).outside, 0);
    for at in [0, 1, RUN - 1, RUN, PIECE - 1, PIECE, len - 1] {
        for bad in [f32::NAN, f32::INFINITY, want[at] * 1.01, -want[at], 0.0] {
            let mut got = want.clone();
            got[at] = bad;
            let found = compare(&got, &want, tolerance(1e-3, 0.0), true);
            assert_eq!((found.outside, found.worst.unwrap().index), (1, at), "{bad}");
            assert_eq!(found.nan, usize::from(bad.is_nan()));
            assert_eq!(found.infinite, usize::from(bad.is_infinite()));
            let bounds: Vec<f64> = want.iter().map(|want| 1e-3 * f64::from(*want)).collect();
            let bounded = compare(&got, &want, Allowed::Bounds(&bounds), true);
            // NaN is not equal to itself.
            assert_eq!(format!("{bounded:?}"), format!("{found:?}"));
        }
    }
}

#[test]
fn nan_and_infinities_meet_only_themselves() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let outside = |got: f64, want: f64, equal_nan: bool| {
        let found = compare(&[got, 1.0], &[want, 1.0], tolerance(1.0, 1e300), equal_nan);
        found.outside
    };
    assert_eq!(outside(nan, nan, true), 0);
    assert_eq!(outside(nan, nan, false), 1);
    assert_eq!(outside(inf, inf, false), 0);
    for (got, want) in [
        (nan, 1.0),
        (1.0, nan),
        (inf, -inf),
        (1.0, inf),
        (inf, 1.0),
        (nan, inf),
        (inf, nan),
    ] {
        assert_eq!(outside(got, want, true), 1, "{got} for {want}");
    }
    // rtol·∞ is infinite: anything would be within it.
    assert_eq!(compare(&[0.0], &[inf], tolerance(1.0, 0.0), true).outside, 1);
}

/// Also: tolerances that overflow, bounds of sums that overflow, one such element among many.
#[test]
fn bounds_that_nothing_breaks_allow_nothing() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let (got, want) = ([1.0f64, 2.0, nan], [1.0, 5.0, nan]);
    for allowed in [
        tolerance(0.0, inf),
        tolerance(inf, 0.0),
        tolerance(1e308, 1e308),
        tolerance(nan, 0.0),
        Allowed::Bounds(&[inf, nan, inf]),
    ] {
        let found = compare(&got, &want, allowed, true);
        let counts = [found.outside, found.unbounded, found.nan_pairs, found.judged()];
        assert_eq!(counts, [2, 2, 1, 0], "{allowed:?}");
        assert!(!found.zeros_pass);
    }
    for allowed in [tolerance(0.0, inf), tolerance(inf, 0.0), tolerance(1e39, 0.0)] {
        let found = compare(&[1.0f32, 2.0], &[1.0f32, 5.0], allowed, false);
        let finite = matches!(allowed, Allowed::Tolerance { rtol, .. } if (1e38..1e40).contains(&rtol));
        let counts = if finite { (0, 2) } else { (2, 0) };
        assert_eq!((found.outside, found.judged()), counts, "{allowed:?}");
    }
    let long = vec![1.0f32; 3 * RUN];
    let mut bounds = vec![0.0; long.len()];
    bounds[2 * RUN] = inf;
    let found = compare(&long, &long, Allowed::Bounds(&bounds), false);
    assert_eq!((found.outside, found.judged()), (1, long.len() - 1));
    assert_eq!(compare::<f32, f32>(&[], &[], tolerance(0.0, 0.0), false).judged(), 0);
    assert_eq!(compare(&[nan; 4], &[nan; 4], tolerance(0.0, 0.0), true).judged(), 0);
}

#[test]
fn comparisons_that_show_nothing_are_told() {
    let want = [1e-4f32, -2e-4, 3e-4];
    assert!(compare(&want, &want, tolerance(1e-2, 1e-2), false).zeros_pass);
    assert!(!compare(&want, &want, tolerance(1e-2, 2e-4), false).zeros_pass);
    let same = |x: &[f32]| compare(x, x, tolerance(0.0, 0.0), true);
    assert_eq!((same(&[0.5; 4]).constant, same(&want).constant), (Some(0.5), None));
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    assert!(same(&[nan, inf, 1.0]).finite && !same(&[nan, inf, -inf]).finite && !same(&[]).finite);
    let none = compare::<f32, f32>(&[], &[], tolerance(0.0, 0.0), false);
    assert_eq!((none.outside, none.zeros_pass, none.constant), (0, false, None));
}

#[test]
fn parts_one_after_the_other_are_the_whole() {
    let mut want: Vec<f64> = (0..1000).map(|at| 1.0 + f64::from(at)).collect();
    let mut got = want.clone();
    (got[3], got[600], got[999]) = (f64::NAN, f64::INFINITY, 1.0);
    for fixed in [None, Some(2.0)] {
        fixed.into_iter().for_each(|x| want.fill(x));
        let whole = compare(&got, &want, tolerance(0.0, 0.5), false);
        for size in [1, 7, 599, 1000] {
            let mut parts = Comparison::default();
            for (got, want) in got.chunks(size).zip(want.chunks(size)) {
                parts.append(compare(got, want, tolerance(0.0, 0.5), false));
                parts.append(Comparison::default());
            }
            // NaN is not equal to itself.
            assert_eq!(format!("{parts:?}"), format!("{whole:?}"), "{size}");
        }
    }
}
