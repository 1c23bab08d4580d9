//! `ulplab kernels bench`, as far as no GPU is needed.

use super::*;

/// What a stand-in for Python is told, and what is left of its peers when there is no GPU for our kernels.
#[test]
fn peers_are_timed_before_kernels_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let [out, python, told] = ["out", "python", "told"].map(|name| folder.path().join(name));
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {told}\necho '{{\"device\": \"card\", \"method\": 2, \"peers\": {{}}}}' > \"$2\"\n",
        told = path(&told)
    );
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let bench = || {
        let words = [
            "kernels",
            "bench",
            "--out",
            path(&out),
            "--python",
            path(&python),
            "--only",
            "rope.*/**/**t1",
        ];
        let mut command = ulplab(&words);
        command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
    };
    for _ in 0..2 {
        let output = bench();
        assert_eq!(code(&output), 96, "{}", stderr(&output));
    }
    let told = std::fs::read_to_string(told).unwrap();
    let peers = path(&out.join("peers.json")).to_string();
    let line = told.lines().next().unwrap();
    assert!(
        line.contains("experiments/peers/kernels.py") && line.contains(&peers),
        "{line}"
    );
    assert!(line.ends_with("--seconds 300 --only rope/*t1"), "{line}");
    assert!(out.join("peers.json").exists());
    let missing = run(&["kernels", "bench", "--out", path(&out), "--python", "no-such-python"]);
    assert!(
        code(&missing) == 96 && stderr(&missing).contains("no-such-python"),
        "{}",
        stderr(&missing)
    );
}
