//! The largest of a row.

use reference::ops::top_k::top_k;

#[test]
fn ties_take_the_smaller_index() {
    let mut out = [0; 3];
    top_k(&[0.0, 2.0, -0.0, 2.0, 0.0, 9.0], 5, 3, &mut out);
    assert_eq!(out, [1, 3, 0]);
    top_k(&[1.0, 2.0], 2, 3, &mut out);
    assert_eq!(out, [1, 0, -1]);
}

#[test]
fn nan_of_either_sign_is_largest() {
    let mut out = [0; 3];
    top_k(&[1.0, f64::NAN, f64::INFINITY, -f64::NAN], 4, 3, &mut out);
    assert_eq!(out, [1, 3, 2]);
}
