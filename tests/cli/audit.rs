//! `ulplab audit` starts a Python, and ends as it ends.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// A program in the place of Python.
fn python(folder: &Path, script: &str) -> String {
    let file = folder.join("python");
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    file.to_str().unwrap().into()
}

#[test]
fn a_python_is_started_with_the_audit_of_the_zoo() {
    let folder = tempfile::tempdir().unwrap();
    let python = python(folder.path(), "echo \"$@\"; exit 100");
    let output = run(&[
        "audit", "vllm", "my.toml", "--seeds", "3", "--json", "--python", &python,
    ]);
    assert_eq!(code(&output), 100);
    let said = stdout(&output);
    assert!(
        said.trim_end()
            .ends_with("zoo/audit.py --seeds=3 --json -- vllm my.toml"),
        "{said}"
    );
}

#[test]
fn exit_codes_are_those_of_the_audit() {
    let folder = tempfile::tempdir().unwrap();
    for (theirs, ours) in [(0, 0), (2, 2), (4, 4), (96, 96), (100, 100), (7, 1)] {
        let python = python(folder.path(), &format!("exit {theirs}"));
        assert_eq!(code(&run(&["audit", "--python", &python])), ours);
    }
    let python = python(folder.path(), "kill -TERM $$");
    assert_eq!(code(&run(&["audit", "--python", &python])), 130);
}

#[test]
fn a_python_that_is_missing_is_named() {
    let output = run(&["audit", "--python", "/nowhere/python3"]);
    assert_eq!(code(&output), 96);
    let said = stderr(&output);
    assert!(said.contains("cannot start Python, /nowhere/python3"), "{said}");
    assert!(said.contains("name one with --python"), "{said}");
    assert_eq!(code(&run(&["audit", "--seeds", "0"])), 2);
}

/// What is missing is said as other commands say it.
#[test]
fn a_python_without_the_module_is_a_set_up_error() {
    let folder = tempfile::tempdir().unwrap();
    let python = python(folder.path(), "exec python3 -I -S \"$@\"");
    let output = run(&["audit", "--python", &python]);
    assert_eq!(code(&output), 96, "{}", stderr(&output));
    assert!(stderr(&output).starts_with("error: set-up: "), "{}", stderr(&output));
}
