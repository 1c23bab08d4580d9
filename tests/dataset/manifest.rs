use std::path::{Path, PathBuf};

use ulplab::dataset::{Kind, Manifest, find_root_from};
use ulplab::experiment::Window;
use ulplab::shipped::places_from;

use super::fails;

fn real() -> Manifest {
    Manifest::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets")).unwrap()
}

/// A folder whose manifest lists one text, after `change` was made to the manifest.
fn folder(change: impl Fn(String) -> String) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("poem.txt"), "roses are red\n").unwrap();
    let hash = blake3::hash(b"roses are red\n").to_hex();
    let manifest = format!(
        "[poem]\nkind = \"text\"\nabout = \"a poem\"\nlicence = \"public domain\"\nsource = \"hearsay\"\nin_training = false\n\n\
         [[poem.file]]\npath = \"poem.txt\"\nbytes = 14\nblake3 = \"{hash}\"\n"
    );
    std::fs::write(folder.path().join("manifest.toml"), change(manifest)).unwrap();
    folder
}

#[test]
fn every_file_of_the_repository_is_what_the_manifest_says() {
    let manifest = real();
    for (name, dataset) in &manifest.datasets {
        let verified = manifest.verify(name).unwrap();
        assert_eq!(verified.len(), dataset.files.len());
        assert!(
            verified
                .iter()
                .zip(&dataset.files)
                .all(|((path, hash), file)| *path == file.path && *hash == file.blake3)
        );
    }
    let seen = |name: &str| manifest.datasets[name].in_training;
    assert_eq!(manifest.datasets["dsv4-mini"].kind, Kind::Checkpoint);
    assert_eq!(
        (seen("tinyshakespeare"), seen("pride_and_prejudice"), seen("alice")),
        (Some(true), Some(true), Some(false))
    );
}

#[test]
fn a_changed_file_is_told() {
    let folder = folder(|manifest| manifest);
    let manifest = Manifest::load(folder.path()).unwrap();
    manifest.verify("poem").unwrap();
    let path = folder.path().join("poem.txt");
    let (found, expected) = (
        blake3::hash(b"roses are reD\n").to_hex(),
        blake3::hash(b"roses are red\n").to_hex(),
    );
    std::fs::write(&path, "roses are reD\n").unwrap();
    fails(
        manifest.verify("poem"),
        &["poem.txt", found.as_str(), expected.as_str()],
    );
    std::fs::write(&path, "roses are red").unwrap();
    fails(manifest.verify("poem"), &["poem.txt", "found 13 bytes", "says 14"]);
    std::fs::remove_file(&path).unwrap();
    fails(manifest.verify("poem"), &["poem.txt", "cannot open"]);
}

#[test]
fn texts_are_cut_within_bounds() {
    let folder = folder(|manifest| manifest);
    let manifest = Manifest::load(folder.path()).unwrap();
    assert_eq!(manifest.text("poem", 6, 3).unwrap(), b"are");
    assert_eq!(manifest.text("poem", 0, 14).unwrap(), b"roses are red\n");
    assert_eq!(manifest.text("poem", 14, 0).unwrap(), b"");
    fails(
        manifest.text("poem", 10, 5),
        &["poem.txt", "the text has 14 bytes", "expected 5 from byte 10"],
    );
    fails(manifest.text("poem", usize::MAX, 2), &["poem.txt", "the text has 14"]);
    assert!(real().text("alice", 0, 5).unwrap() == b"Alice");
}

#[test]
fn names_and_kinds_are_checked() {
    let manifest = real();
    fails(
        manifest.verify("alise"),
        &["manifest.toml", "no data set 'alise'; did you mean 'alice'?"],
    );
    fails(
        manifest.text("dsv4-mini", 0, 1),
        &["'dsv4-mini' is a checkpoint, but a text is needed"],
    );
    fails(
        manifest.checkpoint("alice"),
        &["'alice' is a text, but a checkpoint is needed"],
    );
    assert!(
        manifest
            .checkpoint("dsv4-mini")
            .unwrap()
            .ends_with("datasets/dsv4-mini")
    );
}

#[test]
fn a_folder_is_a_checkpoint_too() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().to_str().unwrap();
    fails(real().checkpoint(name), &["no data set", name]);
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    std::fs::write(folder.path().join("model.safetensors"), "weights").unwrap();
    std::fs::write(folder.path().join("README.md"), "about").unwrap();
    assert_eq!(real().checkpoint(name).unwrap(), folder.path());
    let hash = |file: &str, bytes: &str| {
        (
            format!("{name}/{file}"),
            blake3::hash(bytes.as_bytes()).to_hex().to_string(),
        )
    };
    let expected = [hash("config.json", "{}"), hash("model.safetensors", "weights")];
    assert_eq!(real().verify(name).unwrap(), expected);
}

#[test]
fn mistakes_in_the_manifest_are_told_with_their_line() {
    let load = |from: &'static str, to: &'static str| {
        let folder = folder(|manifest| manifest.replace(from, to));
        Manifest::load(folder.path())
    };
    fails(
        load("licence", "license"),
        &[
            "manifest.toml: line 4: unknown field `license`",
            "did you mean 'licence'?",
        ],
    );
    fails(
        load("\"text\"", "\"txt\""),
        &["line 2: unknown variant `txt`", "did you mean 'text'?"],
    );
    fails(load("bytes = 14", "bytes = -14"), &["line 10"]);
    fails(load("about = \"a poem\"\n", ""), &["line 1: missing field `about`"]);
    fails(load("in_training = false", ""), &["[poem]: a text needs `in_training`"]);
    fails(
        load("poem.txt", "../poem.txt"),
        &["[poem]", "'../poem.txt' leaves the folder"],
    );
    fails(load("poem.txt", "/poem.txt"), &["'/poem.txt' leaves the folder"]);
    fails(load("blake3 = \"", "blake3 = \"0"), &["is not 64"]);
    fails(load("[poem]", "[poem"), &["line 1"]);
}

#[test]
fn the_root_is_searched_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str| -> PathBuf {
        let root = folder.path().join(name);
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("manifest.toml"), "").unwrap();
        root
    };
    let (flag, variable, above, beside) = (make("flag"), make("variable"), make("a/datasets"), make("bin/datasets"));
    let deep = folder.path().join("a/b/c");
    let executable = folder.path().join("bin/ulplab");
    let elsewhere = folder.path();
    let (share, checkout) = (make("share/ulplab/datasets"), make("source/datasets"));
    let source = folder.path().join("source");
    let find = find_root_from;
    let all = places_from(&deep, Some(&executable), Some(&source));
    assert_eq!(find(Some(&flag), Some(&variable), &all).unwrap(), flag);
    assert_eq!(find(None, Some(&variable), &all).unwrap(), variable);
    assert_eq!(find(None, None, &all).unwrap(), above);
    let installed = places_from(elsewhere, Some(&executable), Some(&source));
    assert_eq!(find(None, None, &installed).unwrap(), beside);
    std::fs::remove_dir_all(&beside).unwrap();
    assert_eq!(find(None, None, &installed).unwrap(), share);
    std::fs::remove_dir_all(&share).unwrap();
    assert_eq!(find(None, None, &installed).unwrap(), checkout);
    let module = folder
        .path()
        .join("lib/python3.12/site-packages/ulplab/_native.abi3.so");
    let share = make("share/ulplab/datasets");
    let of_python = places_from(elsewhere, Some(&module), Some(&source));
    assert_eq!(find(None, None, &of_python).unwrap(), share);
    let nowhere = places_from(elsewhere, None, None);
    let datasets = elsewhere.join("datasets").display().to_string();
    fails(
        find(None, None, &nowhere),
        &["--datasets", "ULPLAB_DATASETS", &datasets],
    );
    fails(find(Some(elsewhere), Some(&variable), &all), &["(given by --datasets)"]);
    fails(find(None, Some(elsewhere), &all), &["(given by ULPLAB_DATASETS)"]);
}

#[test]
fn a_path_of_ones_own_is_a_text() {
    let folder = folder(|text| text);
    let manifest = Manifest::load(folder.path()).unwrap();
    let mine = folder.path().join("my notes.v2.txt");
    std::fs::write(&mine, "violets are blue\n").unwrap();
    let path = mine.to_str().unwrap();
    assert_eq!(manifest.text(path, 8, 3).unwrap(), b"are");
    assert_eq!(
        manifest.verify(path).unwrap(),
        [(
            path.to_string(),
            blake3::hash(b"violets are blue\n").to_hex().to_string()
        )]
    );
    let window = Window {
        text: path.into(),
        offset: 8,
        ..Window::default()
    };
    assert_eq!(window.name(), "my_notes_v2@8");
    fails(
        manifest.text(path, 8, 100),
        &[
            "my notes.v2.txt",
            "has 17 bytes",
            "expected 100 from byte 8 on; choose at most 17 tokens",
        ],
    );
    fails(manifest.text(path, 8, 10), &["has 17 bytes", "the largest offset is 7"]);
    fails(
        manifest.text(path, usize::MAX, 17),
        &["has 17 bytes", "the largest offset is 0"],
    );
    fails(
        manifest.text("folder/none.txt", 0, 1),
        &[
            "no data set 'folder/none.txt'",
            "no text file or checkpoint is at that path",
        ],
    );
}
