//! Folders of shards, selection by patterns, and threads.

use super::{Bench, f32s, values};

/// Two shards with an index, and all of their tensors in one file.
fn bench() -> Bench {
    let bench = Bench::new();
    std::fs::create_dir(bench.0.path().join("model")).unwrap();
    let (a, b) = (f32s(&[4, 64], &values(256)), f32s(&[8, 32], &values(256)));
    let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    bench.write(&format!("model/{one}"), &[("layers.0.a.weight", a.clone())]);
    bench.write(&format!("model/{two}"), &[("layers.0.b.weight", b.clone())]);
    let index = serde_json::json!({ "weight_map": { "layers.0.a.weight": one, "layers.0.b.weight": two } });
    let path = bench.0.path().join("model/model.safetensors.index.json");
    std::fs::write(path, index.to_string()).unwrap();
    bench.write(
        "whole.safetensors",
        &[("layers.0.a.weight", a), ("layers.0.b.weight", b)],
    );
    bench
}

#[test]
fn a_folder_is_read_like_a_file() {
    let bench = bench();
    bench.works("compare whole.safetensors model --gate max_abs<=0");
    let done = bench.works("quantize model --format mxfp8 -o model/out.safetensors");
    assert!(
        done.out
            .starts_with("quantized 2 tensors to e4m3/b32:e8m0, 2048 bytes to 528"),
        "{}",
        done.out
    );
    bench.works("quantize whole.safetensors --format mxfp8 -o q.safetensors");
    let read = |name: &str| std::fs::read(bench.0.path().join(name)).unwrap();
    assert!(read("model/out.safetensors") == read("q.safetensors"));
    // The index names the shards: what else is in the folder is not read.
    assert_eq!(bench.json("inspect model --format mxfp4 --json").len(), 2);
    std::fs::remove_file(bench.0.path().join("model/out.safetensors")).unwrap();

    let command = "quantize model --format mxfp8 -o model/model-00002-of-00002.safetensors";
    bench.fails(2, command, &["is the input"]);
    std::fs::remove_file(bench.0.path().join("model/model-00002-of-00002.safetensors")).unwrap();
    let command = "inspect model --format mxfp8";
    bench.fails(
        2,
        command,
        &[
            "model-00002-of-00002.safetensors",
            "no such file, and the index puts 1 tensor into it",
        ],
    );
    std::fs::remove_file(bench.0.path().join("model/model.safetensors.index.json")).unwrap();
    bench.fails(2, command, &["1 of 2 shards"]);
    bench.write(
        "model/model-00002-of-00002.safetensors",
        &[("layers.0.a.weight", f32s(&[1], &[0.0]))],
    );
    bench.fails(
        2,
        command,
        &[
            "'layers.0.a.weight': in",
            "00001-of-00002.safetensors; expected a tensor in one file",
        ],
    );
}

#[test]
fn a_pattern_that_matches_nothing_is_refused() {
    let bench = bench();
    for (command, words) in [
        (
            "quantize whole.safetensors --format mxfp8 -o q.safetensors --skip *.weight",
            "'*.weight' matches no tensor; '*' stops at dots: '**.weight' matches 2 tensors",
        ),
        (
            "inspect whole.safetensors --format mxfp8 --only layers.0.*",
            "'layers.0.**' matches 2 tensors",
        ),
        (
            "compare whole.safetensors model --skip lm_head",
            "'lm_head' matches no tensor; tensors are named like 'layers.0.a.weight'",
        ),
        (
            "compare whole.safetensors model --gate a*:cosine>=0.9",
            "tensors are named like 'layers.0.a.weight'",
        ),
    ] {
        let done = bench.run(command);
        assert!(
            [2, 4].contains(&done.code) && done.err.contains(words),
            "{command}: {}",
            done.err
        );
    }
    bench.works("quantize whole.safetensors --format mxfp8 -o q.safetensors");
    let command = "dequantize q.safetensors -o back.safetensors --skip layers.0.a.weight.data";
    bench.fails(4, command, &["matches no tensor", "did you mean 'layers.0.a.weight'?"]);
}

/// Neither bytes nor text depend on the number of threads.
#[test]
fn threads_change_nothing() {
    let bench = Bench::new();
    let names: Vec<String> = (0..20).map(|i| format!("w{i}")).collect();
    let tensors: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), f32s(&[3, 8, 32], &values(768))))
        .collect();
    bench.write("in.safetensors", &tensors);
    let outcome = |threads: usize| {
        let with = format!("--threads {threads} --no-progress");
        bench.works(&format!(
            "quantize in.safetensors --format nvfp4 {with} -o q.safetensors"
        ));
        bench.works(&format!("dequantize q.safetensors {with} -o back.safetensors"));
        let text = bench
            .works(&format!("inspect q.safetensors --source in.safetensors {with}"))
            .out;
        let read = |name: &str| std::fs::read(bench.0.path().join(name)).unwrap();
        (read("q.safetensors"), read("back.safetensors"), text)
    };
    assert!(outcome(1) == outcome(3));
}
