//! safetensors and npy.

use npyz::{Order, WriterBuilder};
use proptest::collection::vec;
use proptest::prelude::*;
use safetensors::tensor::{TensorView, serialize};
use safetensors::{Dtype, SafeTensors};
use ulplab::tensorfile::TensorFile;

use super::{cases, edited, edits, kept, memory};

/// Opens a file, holds it to what must be true of every file, and says in a line what it is.
pub fn outcome(name: &str, bytes: &[u8]) -> String {
    let copy = bytes.to_vec();
    let (file, peak) = memory::peak(|| TensorFile::from_bytes(name, copy));
    // Names, shapes and a second copy of the data where it is rewritten.
    assert!(peak <= 16 * bytes.len() + 0x4000, "{peak} bytes for {}", bytes.len());
    let theirs = name.ends_with(".safetensors").then(|| SafeTensors::deserialize(bytes));
    let file = match file {
        Ok(file) => file,
        Err(error) => {
            let error = error.to_string();
            let message = error.strip_prefix(name).and_then(|rest| rest.strip_prefix(": "));
            let message = message.unwrap_or_else(|| panic!("no file in: {error}"));
            assert!(!error.contains(char::is_control), "{error:?}");
            // The format forbids to name a tensor twice; the crate takes the last.
            let accepted = theirs.is_some_and(|theirs| theirs.is_ok()) && !error.contains("twice");
            assert!(!accepted, "the safetensors crate accepts what gave: {error}");
            return message.to_string();
        }
    };
    let mut said = Vec::new();
    for tensor in file.tensors() {
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(
            tensor.bytes.len() * 8,
            elements * tensor.dtype.bitsize(),
            "{}",
            tensor.name
        );
        assert!(tensor.to_f32().is_none_or(|values| values.len() == elements));
        assert!(tensor.to_f64().is_none_or(|values| values.len() == elements));
        let codes = if tensor.dtype.bitsize() < 8 { 0 } else { elements };
        assert_eq!((tensor.codes().count(), tensor.integers().count()), (codes, codes));
        said.push(format!(
            "{} {} {:?}",
            tensor.name.escape_debug(),
            tensor.dtype,
            tensor.shape
        ));
    }
    match theirs {
        None => assert_eq!(file.tensors().len(), 1),
        Some(theirs) => {
            let theirs = theirs.unwrap_or_else(|error| panic!("the safetensors crate says {error}"));
            assert_eq!(theirs.len(), file.tensors().len());
            for tensor in file.tensors() {
                let view = theirs.tensor(tensor.name).unwrap();
                assert_eq!((view.dtype(), view.shape()), (tensor.dtype, tensor.shape));
                assert!(view.data() == tensor.bytes, "bytes of {}", tensor.name);
            }
            // Tensors tile the data, which ends the file.
            let data: usize = file.tensors().map(|tensor| tensor.bytes.len()).sum();
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            assert_eq!(8 + header + data, bytes.len());
        }
    }
    format!("ok: {}", said.join(", "))
}

/// Types that both formats have.
const TYPES: [(Dtype, &str); 12] = [
    (Dtype::BOOL, "b1"),
    (Dtype::I8, "i1"),
    (Dtype::I16, "i2"),
    (Dtype::I32, "i4"),
    (Dtype::I64, "i8"),
    (Dtype::U8, "u1"),
    (Dtype::U16, "u2"),
    (Dtype::U32, "u4"),
    (Dtype::U64, "u8"),
    (Dtype::F16, "f2"),
    (Dtype::F32, "f4"),
    (Dtype::F64, "f8"),
];

fn safetensors_of(shapes: &[(Dtype, Vec<usize>)], seed: u8) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = shapes
        .iter()
        .map(|(dtype, shape)| filled(*dtype, shape, seed))
        .collect();
    let views = shapes
        .iter()
        .zip(&bytes)
        .enumerate()
        .map(|(i, ((dtype, shape), bytes))| {
            (
                format!("layers.{i}.weight"),
                TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
            )
        });
    serialize(views, None).unwrap()
}

/// Any bytes will do.
fn filled(dtype: Dtype, shape: &[usize], seed: u8) -> Vec<u8> {
    let bits = shape.iter().product::<usize>() * dtype.bitsize();
    (0..bits / 8)
        .map(|i| (i as u8).wrapping_mul(151).wrapping_add(seed))
        .collect()
}

fn npy_header(version: u8, header: &str) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((header.len() as u16).to_le_bytes()),
        _ => bytes.extend((header.len() as u32).to_le_bytes()),
    }
    bytes.extend_from_slice(header.as_bytes());
    bytes
}

/// Sizes of dimensions: mostly small, sometimes absurd.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..5u64,
        1 => prop::sample::select(vec![1 << 31, 1 << 32, 1 << 61, 1 << 62, 1 << 63, u64::MAX, 10u64.pow(18)]),
    ]
}

fn npy() -> impl Strategy<Value = Vec<u8>> {
    let descr = prop::sample::select(vec![
        "<f4", ">f4", "<f8", ">i2", "|u1", "|b1", "=i4", "<f2", "|O", "<c8", "<V2", "<U3", "<M8[ns]",
    ]);
    (1..4u8, descr, any::<bool>(), vec(size(), 0..4), 0..40usize).prop_map(|(version, descr, fortran, shape, data)| {
        let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
        let order = if fortran { "True" } else { "False" };
        let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({sizes}), }}\n");
        let mut bytes = npy_header(version, &header);
        // Data of the right length where that is not absurd.
        let width = descr[2..].parse::<u64>().unwrap_or(1);
        let right = shape.iter().try_fold(width, |product, size| product.checked_mul(*size));
        let len = right.filter(|len| *len < 2000).map_or(data, |len| len as usize);
        bytes.extend((0..len).map(|i| i as u8));
        bytes
    })
}

fn safetensors() -> impl Strategy<Value = Vec<u8>> {
    let dtype = prop::sample::select(vec![
        Dtype::F32,
        Dtype::BF16,
        Dtype::F8_E4M3,
        Dtype::F8_E8M0,
        Dtype::F4,
        Dtype::I64,
        Dtype::BOOL,
        Dtype::C64,
    ]);
    let valid = (vec((dtype, vec(0..5usize, 0..4)), 0..4), any::<u8>()).prop_map(|(mut shapes, seed)| {
        // Types of less than a byte must end at one.
        shapes
            .iter_mut()
            .filter(|(dtype, _)| *dtype == Dtype::F4)
            .for_each(|(_, shape)| shape.push(2));
        safetensors_of(&shapes, seed)
    });
    let offset = || prop_oneof![8 => 0..13u64, 1 => size()];
    let tensor = (
        "[ab]|__metadata__",
        prop::sample::select(vec!["F32", "U8", "F4", "F6_E2M3", "F31"]),
        vec(size(), 0..3),
        offset(),
        offset(),
    );
    let built = (vec(tensor, 0..4), 0..13usize).prop_map(|(tensors, data)| {
        let entry = |(name, dtype, shape, begin, end): &(String, &str, Vec<u64>, u64, u64)| {
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
        };
        let entries: Vec<String> = tensors.iter().map(entry).collect();
        let header = format!("{{{}}}", entries.join(","));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend(std::iter::repeat_n(7, data));
        bytes
    });
    prop_oneof![valid, built]
}

/// Bytes that mean something in a header, more often than others.
fn byte() -> impl Strategy<Value = u8> + Clone {
    const HEADER: &[u8] = b"0123456789[](){},:'\"-ETF<>|= \n\\_";
    any::<u16>().prop_map(|any| {
        if any % 2 == 0 {
            (any >> 8) as u8
        } else {
            HEADER[usize::from(any / 2) % HEADER.len()]
        }
    })
}

fn try_out(name: &str, bytes: &[u8]) {
    kept::offer(name.trim_start_matches("x."), bytes, &outcome(name, bytes));
}

proptest! {
    #![proptest_config(cases(20_000))]

    #[test]
    fn npy_files(bytes in npy(), edits in edits(byte())) {
        try_out("x.npy", &edited(bytes, &edits));
    }

    #[test]
    fn safetensors_files(bytes in safetensors(), edits in edits(byte())) {
        try_out("x.safetensors", &edited(bytes, &edits));
    }

    #[test]
    fn random_bytes(bytes in vec(byte(), 0..120), length in 0..130u64) {
        try_out("x.npy", &bytes);
        try_out("x.npy", &[b"\x93NUMPY\x01\x00", &length.to_le_bytes()[..2], &bytes].concat());
        try_out("x.npy", &npy_header(1, &format!("{{'descr': {}", String::from_utf8_lossy(&bytes))));
        try_out("x.safetensors", &bytes);
        try_out("x.safetensors", &[&length.to_le_bytes()[..], &bytes].concat());
    }
}

/// Writes with the crate `npyz`; bytes of elements are given little endian in the order of the file.
fn npyz_file(descr: &str, shape: &[u64], order: Order, elements: &[u8], width: usize) -> Vec<u8> {
    // The crate writes types it has; a byte string of the same width stands in, and its name is replaced.
    let mut bytes = Vec::new();
    let stand_in = npyz::DType::Plain(format!("|V{width}").parse().unwrap());
    let mut writer = npyz::WriteOptions::new()
        .dtype(stand_in)
        .order(order)
        .shape(shape)
        .writer(&mut bytes)
        .begin_nd()
        .unwrap();
    writer.extend(elements.chunks_exact(width).map(<[u8]>::to_vec)).unwrap();
    writer.finish().unwrap();
    let at = bytes.windows(4).position(|part| part.starts_with(b"'|V")).unwrap() + 1;
    bytes.splice(at..at + 2 + width.to_string().len(), descr.bytes());
    bytes
}

proptest! {
    #![proptest_config(cases(2_000))]

    /// What the crates that define the formats write is read back bit for bit.
    #[test]
    fn written_files_are_read_back(
        (dtype, name) in prop::sample::select(TYPES.to_vec()),
        shape in vec(0..6usize, 0..4),
        (fortran, big) in any::<(bool, bool)>(),
        seed in any::<u8>(),
    ) {
        let (want, width) = (filled(dtype, &shape, seed), dtype.bitsize() / 8);
        let written = serialize([("x", TensorView::new(dtype, shape.clone(), &want).unwrap())], None).unwrap();
        let file = TensorFile::from_bytes("x.safetensors", written).unwrap();
        let read = file.get("x").unwrap();
        prop_assert_eq!((read.dtype, read.shape, read.bytes), (dtype, &shape[..], &want[..]));

        // Element `[i, j, …]` is the sum of index × stride, and strides grow from the first axis on in Fortran's order.
        let mut elements: Vec<Vec<u8>> = want.chunks_exact(width).map(<[u8]>::to_vec).collect();
        if fortran {
            let mut ordered = elements.clone();
            for (at, element) in elements.iter().enumerate() {
                let (mut rest, mut index) = (at, vec![0; shape.len()]);
                for axis in (0..shape.len()).rev() {
                    (index[axis], rest) = (rest % shape[axis], rest / shape[axis]);
                }
                let place = index.iter().zip(&shape).rev().fold(0, |place, (i, size)| place * size + i);
                ordered[place].clone_from(element);
            }
            elements = ordered;
        }
        if big {
            elements.iter_mut().for_each(|element| element.reverse());
        }
        let descr = format!("{}{name}", if width == 1 { '|' } else if big { '>' } else { '<' });
        let order = if fortran { Order::Fortran } else { Order::C };
        let sizes: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
        let written = npyz_file(&descr, &sizes, order, &elements.concat(), width);
        let file = TensorFile::from_bytes("x.npy", written).unwrap();
        let read = file.get("x").unwrap();
        prop_assert_eq!((read.dtype, read.shape, read.bytes), (dtype, &shape[..], &want[..]));
    }
}
