//! What the bytes of each type mean.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ulplab::tensorfile::{Kind, TensorFile};

use super::{Dtype, raw, safetensors};

/// The values of a file's only tensor, as f64, f32 and integers.
fn decode(dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> (Option<Vec<f64>>, Option<Vec<f32>>, Vec<i128>) {
    let bytes = safetensors(&[("x", raw(dtype, shape, &bytes))]);
    let file = TensorFile::from_bytes("x.safetensors", bytes).unwrap();
    let tensor = file.get("x").unwrap();
    assert_eq!((tensor.dtype, tensor.shape), (dtype, shape));
    (tensor.to_f64(), tensor.to_f32(), tensor.integers().collect())
}

#[test]
fn every_code_of_the_small_floats() {
    type Decode = fn(u16) -> f32;
    let wide: [(Dtype, Decode); 2] = [
        (Dtype::F16, |code| f16::from_bits(code).to_f32()),
        (Dtype::BF16, |code| bf16::from_bits(code).to_f32()),
    ];
    let narrow: [(Dtype, Decode); 2] = [
        (Dtype::F8_E4M3, |code| F8E4M3::from_bits(code as u8).to_f32()),
        (Dtype::F8_E5M2, |code| F8E5M2::from_bits(code as u8).to_f32()),
    ];
    for (codes, width, formats) in [(65_536u32, 2, wide), (256, 1, narrow)] {
        for (dtype, expected) in formats {
            let bytes = (0..codes)
                .flat_map(|code| code.to_le_bytes()[..width].to_vec())
                .collect();
            let (f64s, f32s, integers) = decode(dtype, &[codes as usize], bytes);
            for (code, (x, y)) in f64s.unwrap().into_iter().zip(f32s.unwrap()).enumerate() {
                let expected = expected(code as u16);
                assert!(
                    y == expected || y.is_nan() && expected.is_nan(),
                    "{dtype} {code:#x}: {y}, expected {expected}"
                );
                assert!(x == f64::from(y) || x.is_nan() && y.is_nan());
                assert_eq!(integers[code], code as i128, "integers() of a float are its codes");
            }
        }
    }
}

#[test]
fn integers_keep_their_signs_and_ends() {
    macro_rules! check {
        ($($int:ty: $dtype:ident),*) => {$(
            let values = [<$int>::MIN, 0, 1, <$int>::MAX];
            let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            let (f64s, f32s, integers) = decode(Dtype::$dtype, &[4], bytes);
            assert_eq!(integers, values.map(i128::from));
            assert_eq!(f64s.unwrap(), values.map(|x| x as f64));
            assert_eq!(f32s.unwrap(), values.map(|x| x as f32));
        )*};
    }
    check!(i8: I8, i16: I16, i32: I32, i64: I64, u8: U8, u16: U16, u32: U32, u64: U64);
    let (f64s, _, integers) = decode(Dtype::BOOL, &[3], vec![0, 1, 1]);
    assert_eq!((f64s.unwrap(), integers), (vec![0.0, 1.0, 1.0], vec![0, 1, 1]));
}

#[test]
fn wide_floats() {
    let values = [0.1f64, -0.0, f64::MAX, f64::NAN, f64::NEG_INFINITY];
    let (f64s, f32s, _) = decode(Dtype::F64, &[5], values.iter().flat_map(|x| x.to_le_bytes()).collect());
    let (f64s, f32s) = (f64s.unwrap(), f32s.unwrap());
    assert!(f64s.iter().zip(&values).all(|(x, y)| x.to_bits() == y.to_bits()));
    assert_eq!((f32s[0], f32s[2]), (0.1, f32::INFINITY));
}

#[test]
fn types_that_are_no_numbers() {
    for (dtype, shape, bytes) in [
        (Dtype::C64, 1, 8),
        (Dtype::F4, 2, 1),
        (Dtype::F6_E2M3, 4, 3),
        (Dtype::F8_E8M0, 1, 1),
    ] {
        let (f64s, f32s, _) = decode(dtype, &[shape], vec![1; bytes]);
        assert_eq!((f64s, f32s), (None, None), "{dtype}");
    }
    let bytes = safetensors(&[
        ("s", raw(Dtype::F8_E8M0, &[1], &[127])),
        ("z", raw(Dtype::F4, &[2], &[0])),
    ]);
    let file = TensorFile::from_bytes("x.safetensors", bytes).unwrap();
    assert_eq!(file.get("s").unwrap().kind(), Kind::Exact);
    assert_eq!(file.get("z").unwrap().kind(), Kind::Unsupported);
    assert_eq!(file.get("z").unwrap().codes().count(), 0);
}
