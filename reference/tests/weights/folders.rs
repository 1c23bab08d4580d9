use std::path::Path;

use proptest::prelude::*;
use reference::paths::Weights;
use reference::tensorfile::TensorFile;
use reference::weights::{Error, Problem, Safetensors};
use safetensors::Dtype;

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
        let tensors = Safetensors::open(folder.path()).unwrap();
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
    index(folder.path(), &[("a", FIRST), ("b", SECOND)]);
    fails(
        Safetensors::open(folder.path()),
        &[SECOND, "no such file, and the index puts 1 tensor into it"],
    );
}

#[test]
fn an_index_that_disagrees_with_the_shards_is_told() {
    let folder = sharded();
    index(folder.path(), &[("a", SECOND), ("b", SECOND), ("c", FIRST)]);
    fails(
        Safetensors::open(folder.path()),
        &["2 problems", "'a': in", FIRST, "expected in", SECOND, "'c': in no file"],
    );
    index(folder.path(), &[("a", FIRST), ("b", SECOND), ("c", FIRST)]);
    fails(
        Safetensors::open(folder.path()),
        &["'c': in no file; expected in", FIRST, "as the index says"],
    );
    index(folder.path(), &[]);
    fails(Safetensors::open(folder.path()), &["the index lists no tensors"]);
    index(folder.path(), &[("a", "../model.safetensors")]);
    fails(Safetensors::open(folder.path()), &["'../model.safetensors' is outside"]);
    std::fs::write(
        folder.path().join("model.safetensors.index.json"),
        "{\"weight_map\": 3}",
    )
    .unwrap();
    fails(Safetensors::open(folder.path()), &["index.json", "line 1"]);
}

#[test]
fn a_tensor_in_two_shards_is_told() {
    let folder = sharded();
    write(&folder.path().join(SECOND), &[one("a", 1.0), one("b", 2.0)]);
    fails(
        Safetensors::open(folder.path()),
        &["'a': in", SECOND, "and in", FIRST, "expected a tensor in one file"],
    );
}

#[test]
fn an_empty_or_absent_folder_is_told() {
    let folder = tempfile::tempdir().unwrap();
    fails(Safetensors::open(folder.path()), &["no model.safetensors"]);
    fails(
        Safetensors::open(folder.path().join("nowhere")),
        &["nowhere", "no such file or folder"],
    );
}

#[test]
fn a_file_is_read_by_itself() {
    let folder = sharded();
    let mut one = Safetensors::open(folder.path().join(SECOND)).unwrap();
    assert_eq!(
        one.files().tensors().map(|tensor| tensor.name).collect::<Vec<_>>(),
        ["b"]
    );
    assert_eq!(one.shape("b"), Some(&[1][..]));
    assert_eq!(one.shape("a"), None);
    assert_eq!(one.files().file_of("b"), Some(&*folder.path().join(SECOND)));
    assert_eq!(Weights::floats(&mut one, "b", &[1]).unwrap(), [2.0]);
    let bytes = serialize(&[f32s("c", &[1], &[3.0])]);
    let memory = Safetensors::new(TensorFile::from_bytes("memory.safetensors", bytes).unwrap());
    assert_eq!(memory.floats("c", &[1]).unwrap(), [3.0]);
    fails(
        memory.floats("d", &[1]),
        &["memory.safetensors: tensor 'd' [1] is missing"],
    );
}

#[test]
fn tensors_that_are_not_as_needed_are_told() {
    let folder = folder(&[
        f32s("norm", &[2], &[1.0; 2]),
        tensor("gate", Dtype::I8, &[2], [0; 2]),
        tensor("experts", Dtype::F8_E5M2, &[2], [0; 2]),
        f32s("table", &[1], &[0.0]),
    ]);
    let tensors = Safetensors::open(folder.path()).unwrap();
    for (needed, told) in [
        (spec("norm", &[3], false), "'norm' is [2], the model needs [3]"),
        (spec("proj", &[2], false), "'proj' [2] is missing"),
        (
            spec("gate", &[2], false),
            "'gate' is stored as I8, expected F64, F32, BF16",
        ),
        (spec("experts", &[2], false), "'experts' is F8_E5M2, but has neither"),
        (
            spec("table", &[1], true),
            "'table' is stored as F32, expected U8, I8, U16",
        ),
    ] {
        fails(tensors.check(&needed), &[told, &folder.path().display().to_string()]);
    }
    assert!(tensors.check(&spec("norm", &[2], false)).is_ok());
    assert!(matches!(
        tensors.floats("norm", &[3]),
        Err(Error::Tensor { tensor, problem: Problem::Shape { found, expected }, .. })
            if (&*tensor, found[0], expected[0]) == ("norm", 2, 3)
    ));
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
    let tensors = Safetensors::open(folder.path()).unwrap();
    assert_eq!(
        tensors.unused(&[spec("w", &[1], false)]),
        ["mtp.norm", "v", "v_scale_inv"]
    );
}

/// As `transformers` computes with them: of 2 experts with 3 inner and 2 hidden channels the gate's rows come first.
#[test]
fn an_expert_is_a_part_of_its_stack() {
    let numbers = |from: u8, count: u8| (from..from + count).map(f32::from).collect::<Vec<_>>();
    let folder = folder(&[
        f32s("mlp.experts.gate_up_proj", &[2, 6, 2], &numbers(0, 24)),
        f32s("mlp.experts.down_proj", &[2, 2, 3], &numbers(30, 12)),
        f32s("mlp.gate_up_proj", &[1, 2, 1], &numbers(50, 2)),
        tensor("q.experts.down_proj", Dtype::F8_E4M3, &[1, 1, 1], [0x38]),
    ]);
    let tensors = Safetensors::open(folder.path()).unwrap();
    let cases = [
        ("mlp.experts.0.gate_proj.weight", [3, 2], numbers(0, 6)),
        ("mlp.experts.0.up_proj.weight", [3, 2], numbers(6, 6)),
        ("mlp.experts.1.gate_proj.weight", [3, 2], numbers(12, 6)),
        ("mlp.experts.1.up_proj.weight", [3, 2], numbers(18, 6)),
        ("mlp.experts.1.down_proj.weight", [2, 3], numbers(36, 6)),
    ];
    let mut needed = Vec::new();
    for (name, shape, want) in cases {
        assert_eq!(tensors.floats(name, &shape).unwrap(), want, "{name}");
        needed.push(spec(name, &shape, false));
        assert!(tensors.check(&needed[needed.len() - 1]).is_ok());
    }
    assert_eq!(tensors.unused(&needed), ["mlp.gate_up_proj", "q.experts.down_proj"]);
    let missing = [
        "mlp.experts.2.up_proj.weight",
        "q.experts.0.down_proj.weight",
        "mlp.0.gate_proj.weight",
    ];
    for name in missing {
        let error = tensors.floats(name, &[1, 1]);
        assert!(
            matches!(error, Err(Error::Tensor { tensor, problem: Problem::Missing { .. }, .. }) if tensor == name),
            "{name}"
        );
    }
    assert!(matches!(
        tensors.floats("mlp.experts.0.up_proj.weight", &[6, 2]),
        Err(Error::Tensor { problem: Problem::Shape { found, expected }, .. }) if (found[0], expected[0]) == (3, 6)
    ));
}

/// `transformers` stores dense layers of Kimi-Linear under the name of layers with experts, published files do not.
#[test]
fn a_dense_layer_of_kimi_has_two_names() {
    let stored = "model.layers.0.block_sparse_moe.up_proj.weight";
    let others = [
        f32s("l.block_sparse_moe.gate.weight", &[1, 1], &[7.0]),
        f32s("l.block_sparse_moe.shared_experts.up_proj.weight", &[1, 1], &[8.0]),
    ];
    let folder = folder(&[f32s(stored, &[1, 2], &[3.0, 4.0]), others[0].clone(), others[1].clone()]);
    let tensors = Safetensors::open(folder.path()).unwrap();
    let published = "model.layers.0.mlp.up_proj.weight";
    assert_eq!(tensors.floats(published, &[1, 2]).unwrap(), [3.0, 4.0]);
    assert_eq!(tensors.floats(stored, &[1, 2]).unwrap(), [3.0, 4.0]);
    let needed = [spec(published, &[1, 2], false)];
    assert_eq!(tensors.unused(&needed).len(), 2);
    for name in ["l.mlp.gate.weight", "l.mlp.shared_experts.up_proj.weight"] {
        assert!(tensors.floats(name, &[1, 1]).is_err(), "{name}");
    }
}

#[test]
fn truncation_and_corruption_are_told_apart() {
    let bytes = serialize(&[one("a", 1.0), one("b", 2.0)]);
    let folder = tempfile::tempdir().unwrap();
    let open = |bytes: &[u8]| {
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        Safetensors::open(folder.path())
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
    let Ok(tensors) = Safetensors::open(folder.path()) else {
        return;
    };
    for needed in [
        spec("w", &[4, 8], false),
        spec("v", &[6], false),
        spec("ids", &[3], true),
    ] {
        let checked = tensors.check(&needed).is_ok();
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
