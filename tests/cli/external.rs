//! Subcommands that are programs of their own.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn other_names_start_programs_in_path() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["hello", "query"] {
        let file = folder.path().join(format!("ulplab-{name}"));
        std::fs::write(&file, format!("#!/bin/sh\necho {name} \"$@\"\nexit 7\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["hello", "query"] {
        let words = [name, "--all", "a b"];
        let output = ulplab(&words).env("PATH", folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(7));
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{name} --all a b\n"));
    }
    let words = ["--threads", "4", "hello", "--threads"];
    let output = ulplab(&words).env("PATH", folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello --threads\n");
}

#[test]
fn programs_that_are_not_there_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, exit: i32| {
        let output = ulplab(&[name]).env("PATH", folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(exit), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused("query", 96).contains("cargo install --locked --path query"));
    for name in ["swep", "../sweep", "\u{1b}"] {
        assert!(refused(name, 2).contains("unrecognized subcommand"));
    }
}
