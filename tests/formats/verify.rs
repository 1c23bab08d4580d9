//! Casts against their definition.

use ulplab::formats::{E4M3, E8M0, Element, INT8, Integer, Repr, convention, verify, verify_cast};

/// Counts the numbers for which two casts differ.
fn wrong(element: &Element, expected: &Repr, cast: &Repr) -> u64 {
    verify_cast(element.name.into(), element, [expected, cast], false).wrong
}

#[test]
fn a_wrong_cast_is_found() {
    let of = |name: &str, element| convention(name).unwrap().repr(element).unwrap();
    assert_eq!(wrong(&E4M3, &E4M3.repr, &E4M3.repr), 0);
    for other in ["nosat", "torch", "microxcaling"] {
        assert!(wrong(&E4M3, &E4M3.repr, &of(other, &E4M3)) > 0, "{other}");
    }
    assert!(wrong(&E8M0, &E8M0.repr, &of("rz", &E8M0)) > 0);
    let Repr::Integer(integer) = INT8.repr else { panic!() };
    let asymmetric = Repr::Integer(Integer { max: 126, ..integer });
    assert!(wrong(&INT8, &INT8.repr, &asymmetric) > 0);
}

#[test]
fn every_cast_is_right_near_its_thresholds() {
    for cast in verify(false) {
        assert_eq!((cast.wrong, cast.wrong_values), (0, 0), "{cast:?}");
    }
}
