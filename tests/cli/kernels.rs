//! Kernels, as far as no GPU is needed.

use super::*;

/// What `sweep experiments/kernels.toml --dry-run --peers` says of a file of peers with this text.
fn with_peers(text: &str) -> (i32, String, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.json");
    std::fs::write(&file, text).unwrap();
    let output = run(&["sweep", "experiments/kernels.toml", "--dry-run", "--peers", path(&file)]);
    (code(&output), stderr(&output), file)
}

#[test]
fn peers_are_read_before_anything_is_run() {
    let one = |key: &str, peer: &str| format!(r#"{{"device": "card", "peers": {{"{key}": {peer}}}}}"#);
    let good = one("rope/bf16.forward.t1", r#"{"name": "p", "us_cold": 2.5, "all": []}"#);
    assert_eq!(with_peers(&good).0, 0);
    let mistakes = [
        (
            one("rope/bf16.forward.t2", "{}"),
            "'rope/bf16.forward.t2' is no case of an operation; did you mean",
        ),
        (
            one("rope/bf16.forward.t1", r#"{"name": "p"}"#),
            "'rope/bf16.forward.t1': missing field `us_cold`",
        ),
        (
            one("rope/bf16.forward.t1", r#"{"name": "p", "us_cold": 0}"#),
            "'rope/bf16.forward.t1': us_cold is 0, expected",
        ),
        (r#"{"peers": {}}"#.to_string(), "missing field `device`"),
    ];
    for (text, expected) in mistakes {
        let (code, error, file) = with_peers(&text);
        assert_eq!(code, 2, "{error}");
        assert!(
            error.contains(expected) && error.contains(path(&file)),
            "'{expected}' is not in: {error}"
        );
    }
}

#[test]
fn only_kernels_have_peers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.json");
    std::fs::write(&file, r#"{"device": "card", "peers": {}}"#).unwrap();
    let output = run(&["sweep", "experiments/smoke.toml", "--dry-run", "--peers", path(&file)]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("--peers"), "{}", stderr(&output));
}

#[test]
fn a_fault_must_exist() {
    let sweep = |mutant: &str| run(&["sweep", "experiments/kernels.toml", "--dry-run", "--mutant", mutant]);
    let output = sweep("rope.cos_sin_swaped");
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("did you mean 'rope.cos_sin_swapped'?"), "{error}");
    assert_eq!(sweep("rope.cos_sin_swapped").status.code(), Some(0));
}

/// A changed kernel, and one nobody verified, are named; on the tree as it is there is nothing to name.
#[test]
fn attestations_name_what_changed() {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir("kernels").unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let gate = || {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_ulplab"));
        let output = command
            .args(["gate", "--attested"])
            .env("ULPLAB_KERNELS", folder.path())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (code, said) = gate();
    assert_eq!(code, Some(0), "{said}");
    let file = folder.path().join("rope.cu");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("ec - os", "ec + os")).unwrap();
    let (code, said) = gate();
    assert_eq!(code, Some(100));
    assert!(
        said.contains("rope.cu: the kernel changed since it was verified"),
        "{said}"
    );
    std::fs::rename(&file, folder.path().join("rope_new.cu")).unwrap();
    let (code, said) = gate();
    assert_eq!(code, Some(100));
    assert!(
        said.contains("rope_new.cu: was never verified") && said.contains("'rope' is attested"),
        "{said}"
    );
}
