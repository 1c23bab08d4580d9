//! Times of other implementations, as far as no GPU is needed.

use super::*;

/// What `kernels check --dry-run --peers` says of a file of peers with this text.
fn with_peers(text: &str) -> (i32, String, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.json");
    std::fs::write(&file, text).unwrap();
    let output = run(&["kernels", "check", "--dry-run", "--peers", path(&file)]);
    (code(&output), stderr(&output), file)
}

#[test]
fn peers_are_read_before_anything_is_run() {
    let one = |key: &str, peer: &str| format!(r#"{{"device": "card", "method": 2, "peers": {{"{key}": {peer}}}}}"#);
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
        (
            r#"{"device": "card", "peers": {}}"#.to_string(),
            "method: found 1, expected 2",
        ),
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

/// A run beside some of the peers only is not whole.
#[test]
fn peers_that_were_left_out_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.json");
    let none = r#""left_out": [], "absent": {}"#;
    let left_out = r#""left_out": ["rope/bf16.forward.t1, torch"], "absent": {}"#;
    let absent = r#""left_out": [], "absent": {"delta_decode": "No module named 'fla'"}"#;
    for (at, (rest, exit, why)) in [
        (none, 0, ""),
        (
            left_out,
            103,
            "1 peers were not tried, such as 'rope/bf16.forward.t1, torch'",
        ),
        (
            absent,
            103,
            "1 operations lack their peers, such as 'delta_decode': No module named 'fla'",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        std::fs::write(
            &file,
            format!(r#"{{"device": "card", "method": 2, "peers": {{}}, {rest}}}"#),
        )
        .unwrap();
        let out = folder.path().join(format!("run-{at}"));
        let words = [
            "kernels",
            "check",
            "experiments/own_op.toml",
            "--out",
            path(&out),
            "--peers",
            path(&file),
        ];
        let output = run(&words);
        assert_eq!(code(&output), exit, "{}{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}

#[test]
fn only_kernels_have_peers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.json");
    std::fs::write(&file, r#"{"device": "card", "method": 2, "peers": {}}"#).unwrap();
    let output = run(&["kernels", "time", "smoke", "--dry-run", "--peers", path(&file)]);
    assert_eq!(code(&output), 2);
    let error = stderr(&output);
    assert!(error.contains("not an experiment of kernels"), "{error}");
}
