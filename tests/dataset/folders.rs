use std::path::Path;

use proptest::prelude::*;
use safetensors::Dtype;
use ulplab::dataset::Tensors;

use super::{Written, f32s, fails, folder, serialize, spec, tensor, write};

fn one(name: &str, value: f32) -> Written {
    f32s(name, &[1], &[value])
}

fn index(folder: &Path, map: &[(&str, &str)]) {
    let map: std::collections::BTreeMap<_, _> = map.iter().copied().collect();
    let json = serde_json::json!({"metadata": {"total_size": 8}, "weight_map": map});
    std::fs::write(folder.join("model.safetensors.index.json"), json.to_string()).unwrap();
}

const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";

/// Tensors `a` and `b` in a shard each.
fn sharded() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join(FIRST), &[one("a", 1.0)]);
    write(&folder.path().join(SECOND), &[one("b", 2.0)]);
    folder
}

#[test]
fn shards_are_read_with_and_without_an_index() {
    let folder = sharded();
    let read = || {
        let tensors = Tensors::open(folder.path()).unwrap();
        (
            tensors.floats("a", &[1]).unwrap()[0],
            tensors.floats("b", &[1]).unwrap()[0],
        )
    };
    assert_eq!(read(), (1.0, 2.0));
    index(folder.path(), &[("a", FIRST), ("b", SECOND)]);
    assert_eq!(read(), (1.0, 2.0));
}

#[test]
fn a_missing_shard_is_told() {
    let folder = sharded();
    std::fs::remove_file(folder.path().join(SECOND)).unwrap();
    fails(Tensors::open(folder.path()), &["1 of 2 shards", FIRST]);
    index(folder.path(), &[("a", FIRST), ("b", SECOND)]);
    fails(
        Tensors::open(folder.path()),
        &[SECOND, "no such file, and the index puts 1 tensor into it"],
    );
}

#[test]
fn an_index_that_disagrees_with_the_shards_is_told() {
    let folder = sharded();
    index(folder.path(), &[("a", SECOND), ("b", SECOND), ("c", FIRST)]);
    let shard = format!("'a': in {FIRST}; expected in {SECOND}, as the index says");
    fails(Tensors::open(folder.path()), &["2 problems", &shard, "'c': in no file"]);
    index(folder.path(), &[("a", "../model.safetensors")]);
    fails(Tensors::open(folder.path()), &["'../model.safetensors' is outside"]);
    std::fs::write(
        folder.path().join("model.safetensors.index.json"),
        "{\"weight_map\": 3}",
    )
    .unwrap();
    fails(Tensors::open(folder.path()), &["index.json", "line 1"]);
}

#[test]
fn a_tensor_in_two_shards_is_told() {
    let folder = sharded();
    write(&folder.path().join(SECOND), &[one("a", 1.0), one("b", 2.0)]);
    fails(
        Tensors::open(folder.path()),
        &["'a': in", SECOND, "and in", FIRST, "expected a tensor in one file"],
    );
}

#[test]
fn an_empty_or_absent_folder_is_told() {
    let folder = tempfile::tempdir().unwrap();
    fails(Tensors::open(folder.path()), &["no model.safetensors"]);
    fails(
        Tensors::open(&folder.path().join("nowhere")),
        &["nowhere", "no such file or folder"],
    );
}

#[test]
fn all_problems_are_reported_at_once() {
    let folder = folder(&[
        f32s("layers.0.kv_norm", &[2], &[1.0; 2]),
        f32s("layers.0.kv_porj", &[2], &[1.0; 2]),
        tensor("layers.0.gate", Dtype::I8, &[2], [0; 2]),
        tensor("layers.0.experts", Dtype::F8_E5M2, &[2], [0; 2]),
        f32s("table", &[1], &[0.0]),
    ]);
    let tensors = Tensors::open(folder.path()).unwrap();
    let needed = [
        spec("layers.0.kv_norm", &[3], false),
        spec("layers.0.kv_proj", &[2], false),
        spec("layers.0.gate", &[2], false),
        spec("layers.0.experts", &[2], false),
        spec("table", &[1], true),
    ];
    fails(
        tensors.check(&needed, &[]),
        &[
            "5 problems",
            "'layers.0.kv_norm' is [2], the model needs [3]",
            "'layers.0.kv_proj' [2] is missing; did you mean 'layers.0.kv_porj'?",
            "'layers.0.gate' is stored as I8",
            "'layers.0.experts' is F8_E5M2, but has neither",
            "'table' is stored as F32",
        ],
    );
}

#[test]
fn a_long_list_of_problems_is_cut() {
    let folder = folder(&[one("a", 1.0)]);
    let needed: Vec<_> = (0..50).map(|i| spec(&format!("tensor{i:02}"), &[1], false)).collect();
    let message = fails(
        Tensors::open(folder.path()).unwrap().check(&needed, &[]),
        &["50 problems", "'tensor19'", "… and 30 more"],
    );
    assert!(!message.contains("tensor20"));
}

#[test]
fn unused_tensors_are_named_but_allowed() {
    let folder = folder(&[
        tensor("w", Dtype::F8_E4M3, &[1], [0x38]),
        one("w_scale", 1.0),
        one("v", 1.0),
        one("v_scale_inv", 1.0),
        one("mtp.norm", 1.0),
    ]);
    let unused = Tensors::open(folder.path())
        .unwrap()
        .check(&[spec("w", &[1], false)], &[])
        .unwrap();
    assert_eq!(unused, ["mtp.norm", "v", "v_scale_inv"]);
}

#[test]
fn truncation_and_corruption_are_told_apart() {
    let bytes = serialize(&[one("a", 1.0), one("b", 2.0)]);
    let folder = tempfile::tempdir().unwrap();
    let open = |bytes: &[u8]| {
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        Tensors::open(folder.path())
    };
    let size = bytes.len();
    assert!(open(&bytes).is_ok());
    fails(open(&[]), &["model.safetensors", "truncated: 0 bytes, expected 8"]);
    fails(
        open(&bytes[..size - 3]),
        &["tensor 'b': data_offsets [4, 8] are out of range, the file has 5 bytes of data: truncated?"],
    );
    fails(
        open(&bytes[..20]),
        &["truncated: header of", "but only 12 bytes follow its length"],
    );
    fails(
        open(&[bytes.clone(), vec![0]].concat()),
        &["9 bytes of data, but the tensors end at 8"],
    );
    let mut broken = bytes.clone();
    broken[9] = b'?';
    fails(open(&broken), &["bad header"]);
    let json = String::from_utf8_lossy(&bytes[8..size - 8]).replace("F32", "F31");
    let unknown = [&bytes[..8], json.as_bytes(), &bytes[size - 8..]].concat();
    fails(open(&unknown), &["bad header: tensor 'a': unknown variant `F31`"]);
}

/// Reads everything a folder with these bytes as its `model.safetensors` holds; what comes out does not matter.
fn read_all(bytes: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let Ok(tensors) = Tensors::open(folder.path()) else {
        return;
    };
    for needed in [
        spec("w", &[4, 8], false),
        spec("v", &[6], false),
        spec("ids", &[3], true),
    ] {
        let checked = tensors.check(std::slice::from_ref(&needed), &[]).is_ok();
        let read = match needed.integer {
            true => tensors.integers(&needed.name, &needed.shape, 4).map(|ids| ids.len()),
            false => tensors.floats(&needed.name, &needed.shape).map(|values| values.len()),
        };
        assert!(checked || read.is_err());
        if let Ok(len) = read {
            assert_eq!(len, needed.shape.iter().product::<usize>());
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), header in 0u64..200) {
        read_all(&bytes);
        read_all(&[&header.to_le_bytes()[..], &bytes].concat());
    }

    #[test]
    fn damaged_files_never_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = serialize(&[
            tensor("w", Dtype::F8_E4M3, &[4, 8], (0..32).collect::<Vec<u8>>()),
            f32s("w_scale", &[4, 2], &[0.5; 8]),
            tensor("v", Dtype::BF16, &[6], [0x3f; 12]),
            tensor("ids", Dtype::U8, &[3], [0, 1, 3]),
        ]);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            // A digit stays a digit, so that the header stays readable and its numbers go wrong.
            bytes[at] = if bytes[at].is_ascii_digit() { b'0' + byte % 10 } else { byte };
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len()));
        }
        read_all(&bytes);
    }
}
