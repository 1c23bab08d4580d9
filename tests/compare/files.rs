//! Files as other programs write them, and as accidents leave them.

use npyz::WriterBuilder;
use proptest::prelude::*;
use safetensors::Dtype;
use ulplab::Exit;
use ulplab::tensorfile::TensorFile;

use super::{Bench, f32s, i64s, safetensors};

fn open(name: &str, bytes: &[u8]) -> Result<TensorFile, String> {
    TensorFile::from_bytes(name, bytes.to_vec()).map_err(|error| error.to_string())
}

/// A safetensors file with this header and so many bytes of data.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(std::iter::repeat_n(0, data));
    bytes
}

#[test]
fn broken_safetensors_files_say_what_is_wrong() {
    let good = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    assert_eq!(open("t.safetensors", &with_header(good, 8)).unwrap().tensors().len(), 1);
    let two = |a: &str, b: &str| {
        format!(
            r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{a}}},"b":{{"dtype":"F32","shape":[2],"data_offsets":{b}}}}}"#
        )
    };
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    for (bytes, expected) in [
        (
            vec![1, 2, 3],
            "truncated: 3 bytes, expected 8 bytes of header length first",
        ),
        (
            u64::MAX.to_le_bytes().to_vec(),
            "bad header length 18446744073709551615, expected at most 100000000",
        ),
        (
            with_header(good, 0)[..20].to_vec(),
            "truncated: header of 54 bytes, but only 12 bytes follow its length",
        ),
        (
            with_header("[1, 2]", 0),
            "bad header: invalid type: sequence, expected a JSON object",
        ),
        (with_header("{\"a\":", 0), "bad header: tensor 'a': EOF"),
        (
            with_header(r#"{"__metadata__":1}"#, 0),
            "bad header: __metadata__: invalid type",
        ),
        (
            with_header(&two("[0,8]", "[8,16]").replace("\"b\"", "\"a\""), 16),
            "bad header: tensor 'a' is there twice",
        ),
        (
            with_header(&entry("F31", "[2]", "[0,8]"), 8),
            "bad header: tensor 'a': unknown variant `F31`, expected one of",
        ),
        (
            with_header(r#"{"a":{"dtype":"F32","shape":[2]}}"#, 8),
            "bad header: tensor 'a': missing field `data_offsets`",
        ),
        (
            with_header(&entry("F32", "[-1]", "[0,8]"), 8),
            "bad header: tensor 'a': invalid value",
        ),
        (
            with_header(&entry("F32", "[2]", "[8,0]"), 8),
            "tensor 'a': data_offsets [8, 0] run backwards",
        ),
        (
            with_header(&entry("F32", "[3]", "[0,8]"), 8),
            "tensor 'a': data_offsets [0, 8] hold 8 bytes, but F32 of shape [3] takes 12",
        ),
        (
            with_header(&entry("F4", "[3]", "[0,1]"), 1),
            "tensor 'a': shape [3] of F4 is misaligned: 12 bits",
        ),
        (
            with_header(&entry("F32", "[4294967296,4294967296]", "[0,8]"), 8),
            "tensor 'a': shape [4294967296, 4294967296] of F32 has more",
        ),
        (
            with_header(good, 7),
            "tensor 'a': data_offsets [0, 8] are out of range, the file has 7 bytes of data: truncated?",
        ),
        (with_header(good, 9), "9 bytes of data, but the tensors end at 8"),
        (
            with_header(&two("[0,8]", "[4,12]"), 12),
            "tensor 'b': starts at 4 and overlaps 'a', which ends at 8",
        ),
        (
            with_header(&two("[0,8]", "[12,20]"), 20),
            "tensor 'b': starts at 12, expected 8: a gap is not allowed",
        ),
    ] {
        let error = open("t.safetensors", &bytes).unwrap_err();
        assert!(
            error.starts_with(&format!("t.safetensors: {expected}")),
            "{error}\n expected {expected}"
        );
    }
}

/// A file as numpy writes it.
fn npy(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

#[test]
fn npy_files_of_another_writer() {
    let mut bytes = Vec::new();
    let mut writer = npyz::WriteOptions::new()
        .default_dtype()
        .shape(&[2, 3])
        .writer(&mut bytes)
        .begin_nd()
        .unwrap();
    writer.extend([1.5f32, 2.0, 3.0, 4.0, 5.0, -6.0]).unwrap();
    writer.finish().unwrap();
    let file = open("dir/out.npy", &bytes).unwrap();
    let tensor = file.get("out").unwrap();
    assert_eq!((tensor.dtype, tensor.shape), (Dtype::F32, &[2, 3][..]));
    assert_eq!(tensor.to_f32().unwrap(), [1.5, 2.0, 3.0, 4.0, 5.0, -6.0]);
}

#[test]
fn npy_orders_and_versions() {
    // [[0, 1, 2], [3, 4, 5]] column by column, big endian.
    let data: Vec<u8> = [0i16, 3, 1, 4, 2, 5].iter().flat_map(|x| x.to_be_bytes()).collect();
    let file = open("x.npy", &npy(">i2", true, "(2, 3)", &data)).unwrap();
    assert_eq!(
        file.get("x").unwrap().integers().collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5]
    );
    let file = open("x.npy", &npy("|u1", true, "(2, 2, 2)", &[0, 4, 2, 6, 1, 5, 3, 7])).unwrap();
    assert_eq!(
        file.get("x").unwrap().integers().collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5, 6, 7]
    );
    let file = open("x.npy", &npy(">f8", false, "()", &1.5f64.to_be_bytes())).unwrap();
    assert_eq!(file.get("x").unwrap().to_f64().unwrap(), [1.5]);
    let file = open("x.npy", &npy("<f4", true, "(0, 4)", &[])).unwrap();
    assert_eq!(file.get("x").unwrap().shape, [0, 4]);
    let header = "{\"shape\":(1,),\"descr\":\"|b1\",\"fortran_order\":False}";
    let mut version2 = b"\x93NUMPY\x02\x00".to_vec();
    version2.extend((header.len() as u32).to_le_bytes());
    version2.extend_from_slice(header.as_bytes());
    version2.push(1);
    assert_eq!(open("x.npy", &version2).unwrap().get("x").unwrap().dtype, Dtype::BOOL);
}

#[test]
fn broken_npy_files_say_what_is_wrong() {
    let good = npy("<f4", false, "(2,)", &[0; 8]);
    assert!(open("t.npy", &good).is_ok());
    let header = |text: &str| {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes
    };
    let mut version = good.clone();
    version[6] = 9;
    for (bytes, expected) in [
        (
            b"PK\x03\x04".to_vec(),
            "not an npy file: it does not start with \\x93NUMPY",
        ),
        (good[..9].to_vec(), "truncated: 9 bytes end within the header"),
        (
            good[..30].to_vec(),
            "truncated: header of 58 bytes, but only 20 bytes follow its length",
        ),
        (version, "npy version 9.0, expected 1.0, 2.0 or 3.0"),
        (
            good[..good.len() - 1].to_vec(),
            "truncated: 7 bytes of data, but F32 of shape [2] takes 8",
        ),
        (
            npy("<f4", false, "(2,)", &[0; 9]),
            "9 bytes of data, but F32 of shape [2] takes 8",
        ),
        (npy("<c8", false, "(1,)", &[0; 8]), "dtype '<c8' is not supported"),
        (
            npy("<V2", false, "(1,)", &[0; 2]),
            "dtype '<V2' is opaque bytes (numpy forgets the name of ml_dtypes' types)",
        ),
        (
            npy("?f4", false, "(1,)", &[0; 4]),
            "dtype '?f4' has unknown byte order '?'",
        ),
        (npy("", false, "(1,)", &[0; 4]), "dtype '' is not supported"),
        (
            npy("<f4", false, "(-1,)", &[0; 4]),
            "bad header: expected a size at '-1,), }'",
        ),
        (
            npy("<f4", false, "(99999999999999999999,)", &[]),
            "bad header: expected a size at '99999999999999999999",
        ),
        (
            npy("<f4", false, "(4294967296, 4294967296)", &[]),
            "shape [4294967296, 4294967296] of F32 has more elements",
        ),
        (npy("<f4", false, "2", &[0; 8]), "bad header: expected '(' at '2, }'"),
        (
            header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}"),
            "bad header: expected a string at '[('a', '<f4')], 'for'; structured",
        ),
        (
            header("{'descr': '<f4', 'shape': (1,)}"),
            "bad header: no 'fortran_order'",
        ),
        (
            header("{'descr': '<f4', 'fortran_order': 0}"),
            "bad header: expected True or False at '0}'",
        ),
        (header("{'colour': '<f4'}"), "bad header: unknown key 'colour'"),
        (
            header("{'descr': '<f4"),
            "bad header: expected the end of a string at '<f4'",
        ),
        (header("nothing"), "bad header: expected '{' at 'nothing'"),
    ] {
        let error = open("t.npy", &bytes).unwrap_err();
        assert!(
            error.starts_with(&format!("t.npy: {}", expected)),
            "{error}\n expected {expected}"
        );
    }
}

#[test]
fn a_npy_is_compared_with_the_only_tensor_of_another_file() {
    let mut bench = Bench::new(&[("out", f32s(&[2], &[1.0, 2.0]))], &[("out", f32s(&[2], &[1.0, 2.0]))]);
    let data: Vec<u8> = [1.0f32, 2.5].iter().flat_map(|x| x.to_le_bytes()).collect();
    bench.args.got = bench.write("candidate.npy", &npy("<f4", false, "(2,)", &data));
    let bench = bench.gates(&["out:max_abs<=0.1"]);
    let (exit, out) = bench.run();
    assert_eq!(exit, Exit::GateFailed);
    assert!(out.contains("FAIL out: max_abs is 0.5; gate out:max_abs<=0.1"), "{out}");
}

/// Whatever the bytes: a list of tensors whose bytes fit their shapes, or an error.
fn survives(name: &str, bytes: &[u8]) {
    if let Ok(file) = open(name, bytes) {
        for tensor in file.tensors() {
            let elements: usize = tensor.shape.iter().product();
            assert_eq!(tensor.bytes.len() * 8, elements * tensor.dtype.bitsize());
            assert!(tensor.to_f32().is_none_or(|values| values.len() == elements));
            assert!(tensor.to_f64().is_none_or(|values| values.len() == elements));
            assert_eq!(
                tensor.codes().count(),
                if tensor.dtype.bitsize() < 8 { 0 } else { elements }
            );
        }
    }
}

/// Some bytes overwritten, some cut off or repeated.
fn mutate(bytes: &[u8], edits: &[(prop::sample::Index, u8)], cut: Option<prop::sample::Index>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, value) in edits {
        let at = at.index(bytes.len());
        bytes[at] = *value;
    }
    bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len() + 1)));
    bytes
}

/// Bytes that mean something in a header, more often than others.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        any::<u8>(),
        prop::sample::select(b"0123456789[](){},:'\"-ETF<>|=".to_vec())
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), length in 0..300u64) {
        survives("x.safetensors", &bytes);
        survives("x.npy", &bytes);
        survives("x.safetensors", &[&length.to_le_bytes()[..], &bytes].concat());
        survives("x.npy", &[b"\x93NUMPY\x01\x00", &length.to_le_bytes()[..2], &bytes].concat());
    }

    #[test]
    fn mutated_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), byte()), 1..4),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let tensors = [("a", f32s(&[2, 3], &[1.0; 6])), ("b.c", i64s(&[1], &[-1])), ("e", f32s(&[0], &[]))];
        survives("x.safetensors", &mutate(&safetensors(&tensors), &edits, cut));
        survives("x.npy", &mutate(&npy(">f4", true, "(2, 3)", &[0; 24]), &edits, cut));
    }

    /// Agreement with the crate that defines the format on what is a valid file, but for names that do not show as they are.
    #[test]
    fn accepts_what_the_safetensors_crate_accepts(edits in prop::collection::vec((any::<prop::sample::Index>(), byte()), 0..3)) {
        let tensors = [("a", f32s(&[2, 3], &[1.0; 6])), ("b.c", i64s(&[1], &[-1]))];
        let bytes = mutate(&safetensors(&tensors), &edits, None);
        let theirs = safetensors::SafeTensors::deserialize(&bytes);
        let ours = open("x.safetensors", &bytes);
        let hidden = format!("{:?}", ours.as_ref().err()).contains("has characters that do not show");
        prop_assert!(hidden || theirs.is_ok() == ours.is_ok(), "theirs {:?}, ours {:?}", theirs.err(), ours.err());
    }
}
