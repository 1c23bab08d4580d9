//! Every code of the floats of 8 bits.

use reference::tensorfile::Tensor;
use safetensors::Dtype;

/// The definition of a float of these widths, in f64.
fn defined(code: u8, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let (exponent, mantissa) = (
        i32::from(code) >> mantissa_bits & ((1 << exponent_bits) - 1),
        f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits),
    );
    let magnitude = match exponent {
        0 => mantissa * f64::from(1 - bias).exp2(),
        _ => (1.0 + mantissa) * f64::from(exponent - bias).exp2(),
    };
    if code >= 128 { -magnitude } else { magnitude }
}

#[test]
fn every_code() {
    let decoded = |dtype, code| {
        let (name, shape, bytes) = ("", &[1][..], &[code][..]);
        let tensor = Tensor {
            name,
            dtype,
            shape,
            bytes,
        };
        tensor.to_scales().unwrap()[0]
    };
    let e4m3 = |code| decoded(Dtype::F8_E4M3, code);
    let e5m2 = |code| decoded(Dtype::F8_E5M2, code);
    let e8m0 = |code| decoded(Dtype::F8_E8M0, code);
    for code in 0..=255u8 {
        match code & 0x7f {
            0x7f => assert!(e4m3(code).is_nan()),
            _ => assert_eq!(f64::from(e4m3(code)).to_bits(), defined(code, 4, 3).to_bits(), "{code}"),
        }
        match code & 0x7f {
            0x7c => assert_eq!(e5m2(code), f32::INFINITY.copysign(defined(code, 5, 2) as f32)),
            0x7d.. => assert!(e5m2(code).is_nan()),
            _ => assert_eq!(f64::from(e5m2(code)).to_bits(), defined(code, 5, 2).to_bits(), "{code}"),
        }
        match code {
            255 => assert!(e8m0(code).is_nan()),
            _ => assert_eq!(f64::from(e8m0(code)), (f64::from(code) - 127.0).exp2(), "{code}"),
        }
    }
    // From the tables of the OCP specification.
    assert_eq!([0x01, 0x08, 0x38, 0x7e].map(e4m3), [0.001953125, 0.015625, 1.0, 448.0]);
    assert_eq!([0x04, 0x3c, 0x7b].map(e5m2), [6.1035156e-5, 1.0, 57344.0]);
}
