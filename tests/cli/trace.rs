//! `ulplab kernels trace` and `kernels compare`, as far as no GPU is needed.

use super::*;

fn trace(arguments: &[&str]) -> std::process::Output {
    run(&[&["kernels", "trace"], arguments, &["--device", "compile"]].concat())
}

/// A folder with one file, of an operation whose sizes are `K`, `V` and `H`, with a header of this text.
fn folder_with(header: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("/*\n{header}\n*/\n");
    std::fs::write(folder.path().join("state_transpose.cu"), text).unwrap();
    folder
}

fn traced(header: &str) -> std::process::Output {
    let folder = folder_with(header);
    assert_cmd::Command::new(env!("CARGO_BIN_EXE_ulplab"))
        .args([
            "kernels",
            "trace",
            "state_transpose",
            "--case",
            "f32.b1",
            "--device",
            "compile",
            "--json",
        ])
        .env("ULPLAB_KERNELS", folder.path())
        .output()
        .unwrap()
}

const LAUNCHES: &str = r#"
[[variant]]
name = "steps"
doc = "many launches"
scratch = [{ name = "packed", bytes = "100" }]

[[variant.prepare]]
entry = "pack"
grid = [1]
block = [32]
args = ["x", "packed"]

[[variant.launch]]
name = "first"
entry = "first_entry"
grid = [1]
block = [32]
args = ["packed", "packed"]

[[variant.launch]]
name = "product"
matmul = { a = "x", b = "x", d = "y", m = 10, n = 20, k = "K" }

[[variant.launch]]
name = "last"
entry = "last_entry"
grid = [1]
block = [32]
args = ["K / 2"]
bytes = "K * 4"
flops = 7

[[variant.launch]]
name = "last"
entry = "last_entry"
grid = [1]
block = [32]
args = ["K / 4"]
bytes = "K * 4"
flops = 7
"#;

#[test]
fn equal_launches_are_counted() {
    let output = traced(LAUNCHES);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let trace = &all["traces"][0];
    assert_eq!(trace["kernel"], "state_transpose.steps");
    assert_eq!(trace["prepare"], serde_json::json!(["pack"]));
    let launches: Vec<_> = trace["launches"].as_array().unwrap().iter().collect();
    let figures = launches.iter().map(|launch| {
        (
            &launch["name"],
            &launch["turns"],
            &launch["cost"]["bytes"],
            &launch["cost"]["flops"],
        )
    });
    let figures: Vec<String> = figures.map(|(a, b, c, d)| format!("{a} {b} {c} {d}")).collect();
    // A [10, 128] · B [20, 128]ᵀ of bf16; a buffer that is named twice is moved once.
    let bytes = 2 * (10 * 128 + 20 * 128 + 10 * 20);
    let want = [
        "\"first\" 1 100 0".to_string(),
        format!("\"product\" 1 {bytes} {}", 2 * 10 * 20 * 128),
        format!("\"last\" 2 {} 7", 128 * 4),
    ];
    assert_eq!(figures, want);
}

#[test]
fn headers_say_what_they_launch() {
    let mistakes = [
        (
            "name = \"steps\"",
            "name = \"steps\"\nsequence = \"first\"",
            "unknown field `sequence`",
        ),
        (
            "entry = \"first_entry\"",
            "",
            "expected an entry or a matmul, one of them",
        ),
        (
            "k = \"K\" }",
            "k = \"K\", of = \"e4m3\" }",
            "scales are for codes of e4m3",
        ),
        ("m = 10", "m = 10, bytes = 3", "unknown field `bytes`"),
        ("bytes = \"K * 4\"", "bytes = \"0 - K\"", "bytes is -128"),
        ("m = 10", "m = 0", "m of a matmul is 0"),
    ];
    for (right, wrong, expected) in mistakes {
        assert!(LAUNCHES.contains(right), "{right}");
        let output = traced(&LAUNCHES.replacen(right, wrong, 1));
        assert_eq!(code(&output), 2, "{wrong}: {}", stderr(&output));
        says(&stderr(&output), expected);
    }
}

#[test]
fn variants_stand_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("trace.html");
    let arguments = [
        "mhc_pre",
        "--variant",
        "simple",
        "--variant",
        "split",
        "--html",
        path(&page),
    ];
    let output = trace(&arguments);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    for line in ["mhc_pre_split_mix", "side by side", "launches"] {
        assert!(text.contains(line), "'{line}' is not in: {text}");
    }
    assert!(!text.contains("µs"), "times without a GPU: {text}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("mhc_pre_split_sums") && page.contains("Side by side"));
    assert!(
        !page.contains("<script") && !page.contains("http"),
        "the page stands alone"
    );
}

/// Bytes of a launch of a variant on a case.
fn moved(op: &str, variant: &str, case: &str, launch: usize) -> u64 {
    let output = trace(&[op, "--variant", variant, "--case", case, "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    all["traces"][0]["launches"][launch]["cost"]["bytes"].as_u64().unwrap()
}

#[test]
fn decode_moves_the_same_alone_and_after_prefill() {
    for kind in ["gdn", "kda"] {
        let alone = moved("delta_decode", "vk", &format!("{kind}.vk.f32.b1"), 0);
        // A state is read and written.
        assert!(alone > 2 * 64 * 128 * 128 * 4);
        assert_eq!(
            moved("delta_handover", "pointer", &format!("{kind}.b1"), 2),
            alone,
            "{kind}"
        );
    }
}

#[test]
fn mistakes_are_named() {
    let mistakes = [
        (&["ropes"][..], "no operation 'ropes'; did you mean 'rope'?"),
        (
            &["rope", "--variant", "head"],
            "rope has no variant 'head'; did you mean 'heads'?",
        ),
        (
            &["rope", "--case", "bf16.forward.t2"],
            "rope has no case 'bf16.forward.t2'; did you mean",
        ),
        (
            &["mhc_pre", "--variant", "split", "--case", "t4096"],
            "mhc_pre.split does not accept case 't4096'",
        ),
    ];
    for (arguments, expected) in mistakes {
        let output = trace(arguments);
        assert_eq!(code(&output), 2);
        says(&stderr(&output), expected);
    }
}

#[test]
fn pairs_are_of_kernels_on_cases() {
    let mistakes = [
        (["rope.heads", "rope.heads/x"], "'rope.heads': expected OP.VARIANT/CASE"),
        (
            ["rope.head/x", "rope.heads/x"],
            "rope has no variant 'head'; did you mean 'heads'?",
        ),
        (["rope.heads/x", "rope.heads/x"], "rope has no case 'x'"),
    ];
    for (kernels, expected) in mistakes {
        let output = run(&["kernels", "compare", kernels[0], kernels[1]]);
        assert_eq!(code(&output), 2);
        says(&stderr(&output), expected);
    }
    let output = run(&["kernels", "compare", "a.b/c", "a.b/c", "--pairs", "29"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
}
