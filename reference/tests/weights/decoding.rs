//! Weights decoded from files; the reference's reader and the lab's, which lies over it, pass the same tests.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use safetensors::Dtype;

use super::{Error, Tensors, Written, f32s, fails, folder, tensor};

fn read(tensors: &[Written], name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
    let folder = folder(tensors);
    Tensors::open(folder.path())?.floats(name, shape)
}

#[test]
fn wide_floats_are_read() {
    let values = [0.0f32, -0.0, 1.5, -2.25, 384.0, -0.0078125];
    let bytes: [(Dtype, Vec<u8>); 4] = [
        (
            Dtype::F64,
            values.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect(),
        ),
        (Dtype::F32, values.iter().flat_map(|&v| v.to_le_bytes()).collect()),
        (
            Dtype::BF16,
            values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        ),
        (
            Dtype::F16,
            values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        ),
    ];
    for (dtype, bytes) in bytes {
        let read = read(&[tensor("x", dtype, &[2, 3], bytes)], "x", &[2, 3]).unwrap();
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read), bits(&values), "{dtype}");
    }
}

#[test]
fn f64_rounds_once_to_nearest_even() {
    // Half an ulp of 1 above 1: a tie, which goes to the even 1; anything more goes up.
    let values = [1.0 + 2f64.powi(-24), 1.0 + 2f64.powi(-24) + 2f64.powi(-50)];
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let read = read(&[tensor("x", Dtype::F64, &[2], bytes)], "x", &[2]).unwrap();
    assert_eq!(read, [1.0, 1.0 + f32::EPSILON]);
}

#[test]
fn every_fp8_code_times_its_scale() {
    let scale = 0.3f32;
    let e4m3 = |code| F8E4M3::from_bits(code).to_f32();
    let e5m2 = |code| F8E5M2::from_bits(code).to_f32();
    let formats: [(Dtype, &dyn Fn(u8) -> f32); 2] = [(Dtype::F8_E4M3, &e4m3), (Dtype::F8_E5M2, &e5m2)];
    for (dtype, decode) in formats {
        let codes: Vec<u8> = (0..=255).filter(|&code| decode(code).is_finite()).collect();
        let shape = [codes.len()];
        let expected: Vec<u32> = codes.iter().map(|&code| (decode(code) * scale).to_bits()).collect();
        let read = read(
            &[tensor("x", dtype, &shape, codes), f32s("x_scale", &[], &[scale])],
            "x",
            &shape,
        )
        .unwrap();
        assert_eq!(
            read.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
            expected,
            "{dtype}"
        );
    }
}

#[test]
fn scales_of_every_type_and_name() {
    let powers = [0.25f32, 1.0, 4.0];
    let types: [(Dtype, Vec<u8>); 4] = [
        (Dtype::F32, powers.iter().flat_map(|v| v.to_le_bytes()).collect()),
        (
            Dtype::BF16,
            powers.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        ),
        (
            Dtype::F16,
            powers.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        ),
        (Dtype::F8_E8M0, vec![125, 127, 129]),
    ];
    for (dtype, bytes) in types {
        for name in ["w.weight_scale", "w.weight_scale_inv", "w.scale"] {
            // 0x38 is 1 in E4M3.
            let weight = tensor("w.weight", Dtype::F8_E4M3, &[3, 2], [0x38; 6]);
            let scale = tensor(name, dtype, &[3, 1], bytes.clone());
            let read = read(&[weight, scale], "w.weight", &[3, 2]).unwrap();
            assert_eq!(read, [0.25, 0.25, 1.0, 1.0, 4.0, 4.0], "{dtype} {name}");
        }
    }
}

/// Weight, scale, and elements per scale in each dimension.
const BLOCKS: &[(&[usize], &[usize], &[usize])] = &[
    // per tensor
    (&[], &[], &[]),
    (&[64], &[1], &[64]),
    (&[6, 64], &[], &[6, 64]),
    (&[6, 64], &[1], &[6, 64]),
    (&[6, 64], &[1, 1], &[6, 64]),
    (&[2, 6, 64], &[1, 1, 1], &[2, 6, 64]),
    // per row
    (&[6, 64], &[6], &[1, 64]),
    (&[6, 64], &[6, 1], &[1, 64]),
    (&[2, 6, 64], &[2, 6], &[1, 1, 64]),
    // per block of columns of a row
    (&[6, 48], &[6, 1], &[1, 48]),
    (&[4, 256], &[4, 4], &[1, 64]),
    (&[3, 80], &[3, 5], &[1, 16]),
    (&[3, 200], &[3, 2], &[1, 100]),
    (&[3, 201], &[3, 2], &[1, 128]),
    (&[1, 192], &[1, 2], &[1, 96]),
    (&[192], &[2], &[96]),
    (&[2, 6, 128], &[2, 6, 2], &[1, 1, 64]),
    (&[2, 6, 128], &[1, 6, 2], &[2, 1, 64]),
    // per expert
    (&[2, 6, 64], &[2], &[1, 6, 64]),
    (&[2, 6, 64], &[2, 1, 1], &[1, 6, 64]),
    (&[2, 6, 201], &[2, 1, 2], &[1, 128, 128]),
    // 128 × 128
    (&[300, 200], &[3, 2], &[128, 128]),
    (&[256, 128], &[2, 1], &[128, 128]),
    (&[100, 256], &[1, 2], &[128, 128]),
    (&[2, 300, 200], &[2, 3, 2], &[1, 128, 128]),
];

#[test]
fn the_shape_of_the_scales_tells_the_block() {
    for &(weight, scale, block) in BLOCKS {
        let elements: usize = weight.iter().product();
        let scales: Vec<f32> = (0..scale.iter().product::<usize>()).map(|i| 1.0 + i as f32).collect();
        let tensors = [
            tensor("x", Dtype::F8_E4M3, weight, vec![0x38; elements]),
            f32s("x_scale", scale, &scales),
        ];
        let read = read(&tensors, "x", weight).unwrap();
        for (flat, &value) in read.iter().enumerate() {
            // Number of the block, row-major over the grid of blocks.
            let (mut rest, mut stride, mut number) = (flat, 1, 0);
            for (&size, &block) in weight.iter().zip(block).rev() {
                number += rest % size / block * stride;
                stride *= size.div_ceil(block);
                rest /= size;
            }
            assert_eq!(
                value, scales[number],
                "weight {weight:?}, scale {scale:?}, element {flat}"
            );
        }
    }
}

#[test]
fn scales_that_fit_no_block_are_refused() {
    let wrong: [(&[usize], &[usize]); 8] = [
        (&[6, 64], &[5]),
        (&[6, 64], &[64]),
        (&[6, 64], &[6, 5]),
        (&[6, 64], &[6, 0]),
        (&[300, 200], &[3, 3]),
        (&[300, 200], &[2, 2]),
        (&[3, 6, 64], &[2, 6, 1]),
        (&[6, 64], &[2, 6, 1]),
    ];
    for (weight, scale) in wrong {
        let scales = vec![1.0; scale.iter().product()];
        let elements = weight.iter().product();
        let tensors = [
            tensor("x", Dtype::F8_E4M3, weight, vec![0x38; elements]),
            f32s("x_scale", scale, &scales),
        ];
        fails(
            read(&tensors, "x", weight),
            &["'x_scale'", &format!("{scale:?}"), &format!("{weight:?}")],
        );
    }
}

#[test]
fn scales_that_are_missing_doubled_or_of_a_wrong_type_are_refused() {
    let weight = || tensor("x", Dtype::F8_E4M3, &[2], [0x38; 2]);
    fails(
        read(&[weight()], "x", &[2]),
        &["'x'", "F8_E4M3", "neither 'x_scale' nor 'x_scale_inv'"],
    );
    let both = [
        weight(),
        f32s("x_scale", &[1], &[1.0]),
        f32s("x_scale_inv", &[1], &[1.0]),
    ];
    fails(read(&both, "x", &[2]), &["two scales, 'x_scale' and 'x_scale_inv'"]);
    let weight_of = |names: &[&str]| {
        let mut tensors = vec![tensor("x.weight", Dtype::F8_E5M2, &[2], [0x3c; 2])];
        tensors.extend(names.iter().map(|name| f32s(name, &[1], &[1.0])));
        read(&tensors, "x.weight", &[2])
    };
    fails(
        weight_of(&[]),
        &["F8_E5M2, but has none of 'x.weight_scale', 'x.weight_scale_inv', 'x.scale'"],
    );
    fails(
        weight_of(&["x.weight_scale_inv", "x.scale"]),
        &["two scales, 'x.weight_scale_inv' and 'x.scale'"],
    );
    // The scale of `x.weight` may be `x.scale`; that of `x` may not be called so.
    fails(
        read(&[weight(), f32s("x.scale", &[1], &[1.0])], "x", &[2]),
        &["neither 'x_scale' nor 'x_scale_inv'"],
    );
    let integer = [weight(), tensor("x_scale", Dtype::I32, &[1], [0; 4])];
    fails(read(&integer, "x", &[2]), &["'x_scale' is I32"]);
}

#[test]
fn values_that_are_not_finite_are_refused() {
    let mut values = [1.0f32; 12];
    (values[7], values[10]) = (f32::NAN, f32::INFINITY);
    fails(
        read(&[f32s("x", &[3, 4], &values)], "x", &[3, 4]),
        &["'x' has 2 values", "first NaN at [1, 3]"],
    );
    let big = tensor("x", Dtype::F64, &[1], 1e300f64.to_le_bytes());
    fails(read(&[big], "x", &[1]), &["first inf at [0]"]);
    // 0x7f is NaN in E4M3, 255 in E8M0.
    let code = [
        tensor("x", Dtype::F8_E4M3, &[2], [0x38, 0x7f]),
        f32s("x_scale", &[1], &[1.0]),
    ];
    fails(read(&code, "x", &[2]), &["'x' has 1 values", "at [1]"]);
    let scale = [
        tensor("x", Dtype::F8_E4M3, &[2], [0x38; 2]),
        tensor("x_scale", Dtype::F8_E8M0, &[1], [255]),
    ];
    fails(read(&scale, "x", &[2]), &["'x' has 2 values", "at [0]"]);
}

#[test]
fn integers_of_every_type_are_read_and_bounded() {
    let ids = [0u8, 3, 1, 2];
    let wide = |width: usize| -> Vec<u8> {
        ids.iter()
            .flat_map(|&id| [id].into_iter().chain(std::iter::repeat_n(0, width - 1)))
            .collect()
    };
    let types = [
        (Dtype::U8, 1),
        (Dtype::I8, 1),
        (Dtype::U16, 2),
        (Dtype::I16, 2),
        (Dtype::U32, 4),
        (Dtype::I32, 4),
        (Dtype::U64, 8),
        (Dtype::I64, 8),
    ];
    for (dtype, width) in types {
        let folder = folder(&[tensor("ids", dtype, &[2, 2], wide(width))]);
        let tensors = Tensors::open(folder.path()).unwrap();
        assert_eq!(tensors.integers("ids", &[2, 2], 4).unwrap(), [0, 3, 1, 2], "{dtype}");
        fails(
            tensors.integers("ids", &[2, 2], 3),
            &["'ids' has 3 at [0, 1], expected 0 … 2"],
        );
    }
    for (dtype, bytes, value) in [
        (Dtype::I8, (-1i8).to_le_bytes().to_vec(), "-1"),
        (Dtype::I64, i64::MIN.to_le_bytes().to_vec(), "-9223372036854775808"),
        (Dtype::U64, u64::MAX.to_le_bytes().to_vec(), "18446744073709551615"),
    ] {
        let folder = folder(&[tensor("ids", dtype, &[1], bytes)]);
        fails(
            Tensors::open(folder.path()).unwrap().integers("ids", &[1], 4),
            &["'ids' has", value],
        );
    }
    let folder = folder(&[f32s("ids", &[1], &[0.0])]);
    fails(
        Tensors::open(folder.path()).unwrap().integers("ids", &[1], 4),
        &["'ids' is stored as F32"],
    );
}
