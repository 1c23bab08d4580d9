//! What is no file, or no text, in the place of one: an error with exit code 2 at once, never a wait.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::*;

/// Files that nothing can be read from, each with words of the error: a pipe that nobody writes to, a device without an
/// end, a folder, and bytes that are no text.
fn unreadable(folder: &Path, extension: &str) -> Vec<(PathBuf, &'static str)> {
    let name = |what: &str| folder.join(what).with_added_extension(extension);
    let pipe = name("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo starts");
    assert!(made.success());
    let zeros = name("zeros");
    std::os::unix::fs::symlink("/dev/zero", &zeros).unwrap();
    let (inside, bytes) = (name("folder"), name("bytes"));
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(&bytes, b"name = '\xff\xfe'").unwrap();
    vec![
        (pipe, "expected a regular file"),
        (zeros, "expected a regular file"),
        (inside, "folder"),
        (bytes, ""),
    ]
}

/// The command must end in 2 within seconds, with these words.
#[track_caller]
fn refused(mut command: Command, words: &[&str]) {
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it waits: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let error = stderr(&output);
    assert_eq!(code(&output), 2, "{command:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{command:?}: '{word}' is not in: {error}");
    }
}

#[test]
fn what_is_no_text_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    for (file, words) in unreadable(dir, "toml") {
        let (file, words) = (path(&file), &[path(&file), words][..]);
        refused(ulplab(&["sweep", file, "--dry-run"]), words);
        refused(ulplab(&["sweep", "smoke", "--dry-run", "--rules", file]), words);
        refused(ulplab(&["dev", "bench", "--peer", file, "--tokens", "8"]), words);
    }
    for (file, words) in unreadable(dir, "json") {
        for (at, run) in ["run.json", "config.json", "manifest.toml"].iter().enumerate() {
            let inside = dir.join(format!("{at}-{}", file.file_name().unwrap().display()));
            std::fs::create_dir(&inside).unwrap();
            std::fs::rename(&file, inside.join(run)).unwrap();
            let given = path(&inside);
            match *run {
                "run.json" => {
                    refused(ulplab(&["gate", given]), &[run, words]);
                    refused(ulplab(&["report", given]), &[run, words]);
                    refused(ulplab(&["diff", given, given]), &[run, words]);
                }
                "config.json" => {
                    let set = format!("model=\"{given}\"");
                    let args = ["sweep", "smoke", "--dry-run", "--set", &set];
                    refused(ulplab(&args), &[given]);
                }
                _ => {
                    let mut command = ulplab(&["sweep", "smoke", "--dry-run"]);
                    command.env("ULPLAB_DATASETS", given);
                    refused(command, &[given]);
                }
            }
            std::fs::rename(inside.join(run), &file).unwrap();
        }
    }
}

#[test]
fn what_is_no_tensor_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let out = dir.join("out.safetensors");
    for extension in ["safetensors", "npy"] {
        for (file, _) in unreadable(dir, extension) {
            let file = path(&file);
            refused(ulplab(&["compare", file, file]), &[file]);
            refused(ulplab(&["inspect", file]), &[file]);
            refused(
                ulplab(&["quantize", file, "--output", path(&out), "--format", "mxfp8"]),
                &[file],
            );
            refused(ulplab(&["dequantize", file, "--output", path(&out)]), &[file]);
            assert!(!out.exists());
        }
    }
    // A header that says how much is to be read, and a tensor that no library can hold.
    let header = serde_json::json!({"a": {"dtype": "F32", "shape": vec![1; 33_000], "data_offsets": [0, 4]}});
    let header = header.to_string().into_bytes();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &[0; 4]].concat();
    let file = dir.join("deep.safetensors");
    std::fs::write(&file, bytes).unwrap();
    let words = ["deep.safetensors", "'a'", "33000 dimensions", "at most 64"];
    refused(ulplab(&["compare", path(&file), path(&file)]), &words);
    refused(ulplab(&["inspect", path(&file)]), &words);
}
