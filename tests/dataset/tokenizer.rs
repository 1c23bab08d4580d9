use std::path::{Path, PathBuf};

use ulplab::dataset::{Checkpoint, Manifest, Tokenizer};

use super::fails;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn fixture() -> PathBuf {
    root().join("tests/fixtures/tokens")
}

fn tokenizer() -> Tokenizer {
    Checkpoint::open(&fixture()).unwrap().tokenizer().unwrap()
}

/// Texts with the ids that the Python library gives them.
fn expected() -> Vec<(String, Vec<u32>)> {
    let text = std::fs::read_to_string(fixture().join("expected.json")).unwrap();
    let read: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let of = |one: &serde_json::Value| {
        let ids = one["ids"].as_array().unwrap().iter();
        let ids = ids.map(|id| id.as_u64().unwrap() as u32);
        (one["text"].as_str().unwrap().to_string(), ids.collect())
    };
    read.iter().map(of).collect()
}

/// The data sets, and a text of the test.
fn text(bytes: &[u8]) -> (Manifest, tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    std::fs::write(&path, bytes).unwrap();
    let manifest = Manifest::load(&root().join("datasets")).unwrap();
    (manifest, folder, path.to_str().unwrap().into())
}

#[test]
fn ids_are_those_of_the_library_and_give_the_text_again() {
    let tokenizer = tokenizer();
    let expected = expected();
    assert!(expected.len() >= 8);
    for (text, ids) in expected {
        assert_eq!(tokenizer.ids(&text).unwrap(), ids, "{text:?}");
        // The file says that texts are cut to 16 tokens, which is not for windows.
        assert_eq!(tokenizer.text(&ids[..1], &ids[1..]).unwrap(), text);
    }
}

#[test]
fn a_character_of_many_tokens_is_written_whole() {
    let tokenizer = tokenizer();
    let ids = tokenizer.ids("x🙂y").unwrap();
    assert!(ids.len() >= 6, "each byte of the emoji is a token: {ids:?}");
    assert_eq!(tokenizer.text(&ids[..2], &ids[2..]).unwrap(), "🙂y");
    // What is not whole yet is shown as such, and only that.
    assert_eq!(tokenizer.text(&ids[..2], &ids[2..4]).unwrap(), "\u{fffd}");
    let bytes = Tokenizer::open(&root().join("datasets/qwen3-mini"), 256).unwrap();
    let ids = bytes.ids("x🙂y").unwrap();
    assert_eq!(bytes.text(&ids[..1], &ids[1..]).unwrap(), "🙂y");
}

#[test]
fn a_window_begins_with_a_whole_character_and_what_the_tokenizer_puts_before() {
    let tokenizer = tokenizer();
    let written = "🙂é Alice was beginning to get very tired of sitting by her sister";
    let (manifest, _folder, name) = text(written.as_bytes());
    for (offset, begins) in [(0, 0), (1, 4), (3, 4), (4, 4), (5, 6), (6, 6)] {
        let window = tokenizer.window(&manifest, &name, offset, 9).unwrap();
        let whole = tokenizer.ids(&written[begins..]).unwrap();
        assert_eq!(window.ids, whole[..9], "from byte {offset}");
        let read = tokenizer.text(&window.ids[..1], &window.ids[1..]).unwrap();
        if let Some(bytes) = written[begins..].starts_with(&read).then_some(read.len()) {
            assert_eq!(window.bytes, Some(bytes), "from byte {offset}");
        } else {
            assert_eq!(offset, 0, "the emoji alone ends within a character: {read:?}");
        }
    }
    let bytes = Tokenizer::Bytes.window(&manifest, &name, 7, 5).unwrap();
    assert_eq!(
        bytes.ids,
        written.as_bytes()[7..12]
            .iter()
            .map(|byte| u32::from(*byte))
            .collect::<Vec<_>>()
    );
    assert_eq!(bytes.bytes, None);
}

#[test]
fn a_window_fits_at_every_place_that_may_be_drawn() {
    let tokenizer = tokenizer();
    let line =
        "It was all very well to say \u{201c}Drink me\u{201d}, but the wise little Alice was not going to do that. ";
    let written = line.repeat(20);
    let (manifest, _folder, name) = text(written.as_bytes());
    let places = tokenizer.places(&manifest, &name, 32).unwrap() as usize;
    assert!(
        (written.len() - 200..written.len() - 32).contains(&places),
        "{places} of {}",
        written.len()
    );
    for place in (0..places).rev().take(200) {
        let window = tokenizer.window(&manifest, &name, place, 32).unwrap();
        assert_eq!(window.ids.len(), 32);
    }
    // A text that is too short has one place, at which it is refused.
    let (manifest, _folder, name) = text(b"short");
    assert_eq!(tokenizer.places(&manifest, &name, 32).unwrap(), 1);
    fails(
        tokenizer.window(&manifest, &name, 0, 32),
        &[
            "text.txt",
            "the text has 5 bytes",
            "it has",
            "tokens, expected 32; choose fewer tokens",
        ],
    );
    // The error of a window beyond the end names the last place. Also: the length of the text, and one byte more.
    let (manifest, _folder, name) = text(written.as_bytes());
    for offset in [
        written.len() - 1,
        written.len(),
        written.len() + 1,
        400_000_000,
        usize::MAX,
    ] {
        fails(
            tokenizer.window(&manifest, &name, offset, 32),
            &[
                &format!("the text has {} bytes; from byte {offset} on", written.len()),
                "tokens, expected 32",
                &format!("offsets up to {} have enough", places - 1),
            ],
        );
    }
}

#[test]
fn what_is_no_text_and_what_is_no_tokenizer_is_refused() {
    let (manifest, _folder, name) = text(b"abc\xff\xfe and more text that is long enough for a window");
    fails(
        tokenizer().window(&manifest, &name, 0, 8),
        &["text.txt", "byte 3 is not UTF-8"],
    );

    let folder = tempfile::tempdir().unwrap();
    let open = |vocabulary| Tokenizer::open(folder.path(), vocabulary);
    fails(
        open(300),
        &["tokenizer.json", "vocab_size is 300", "only a vocabulary of 256"],
    );
    assert_eq!(open(256).unwrap().unit(), "byte");
    let file = folder.path().join("tokenizer.json");
    std::fs::write(&file, "{\"model\": 3}").unwrap();
    fails(open(300), &["tokenizer.json", "this is no tokenizer"]);
    std::fs::copy(fixture().join("tokenizer.json"), &file).unwrap();
    // More ids than the tokenizer has are padding.
    assert_eq!(open(320).unwrap().unit(), "token");
    fails(open(299), &["tokenizer.json", "has the id 299", "vocab_size, 299"]);
}
