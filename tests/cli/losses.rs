//! The reference's own loss: as transformers computes it, at the head of every report, and what it says of the run.

use super::*;

/// An experiment of one window: `recipes` and `gates` are TOML.
fn question(folder: &Path, model: &str, [text, key]: [&str; 2], tokens: u64, rest: &str) -> PathBuf {
    let toml = format!(
        "name = \"loss\"\nquestion = \"What is the loss?\"\nmodel = {model:?}\ntokens = {tokens}\nphases = [\"cumulative\"]\n\
         [[window]]\ntext = {text:?}\n{key}\n\
         [[recipe]]\nname = \"bf16\"\ndoc = \"a rounded stream\"\nround = [{{ at = \"layers.*.output\", format = \"bf16\" }}]\n\
         {rest}"
    );
    write(folder, &toml)
}

fn gate(recipe: &str, metric: &str, require: &str) -> String {
    format!(
        "[[gate]]\nmetric = {metric:?}\nat = \"logits\"\nphase = \"cumulative\"\nstatistic = \"mean\"\nrequire = {require:?}\n\
         recipes = [{recipe:?}]\nwhy = \"a test\"\n"
    )
}

/// `tests/fixtures/losses.py` has what transformers gives: of bytes, and of tokens behind a token that the tokenizer puts first. A loss
/// in which the first token is a target, or the last has none, is off by a hundredth at least. Of the kind: another offset, BOS left
/// out or put twice, EOS read, the sum in place of the mean, targets that are not shifted.
#[test]
fn losses_are_those_of_transformers() {
    let fixtures = root().join("tests/fixtures");
    let text = std::fs::read_to_string(fixtures.join("losses.json")).unwrap();
    let wanted: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    for wanted in &wanted {
        let folder = tempfile::tempdir().unwrap();
        let name = wanted["model"].as_str().unwrap();
        let model = match name {
            "tokens" => path(&fixtures.join(name)).to_string(),
            name => name.to_string(),
        };
        let place = [
            wanted["text"].as_str().unwrap(),
            &format!("offset = {}", wanted["offset"]),
        ];
        let file = question(folder.path(), &model, place, wanted["tokens"].as_u64().unwrap(), "");
        let out = folder.path().join("run");
        let output = run(&["sweep", path(&file), "--only", "reference/**", "--out", path(&out)]);
        assert_eq!(code(&output), 4, "{}", stderr(&output));
        let of = |metric: &str| {
            let all = measurements(&out).into_iter();
            let mut found = all.filter_map(|measured| measured["metrics"][metric].as_f64());
            found.next()
        };
        let want = |key: &str| wanted[key].as_f64().unwrap();
        let close = |got: f64, want: f64| assert!((got - want).abs() <= 1e-5 * want, "{wanted}: {got}");
        close(of("nats").unwrap(), want("nats"));
        close(of("perplexity").unwrap().ln(), want("nats"));
        match name {
            "tokens" => close(of("nats_per_byte").unwrap(), want("nats_per_byte")),
            _ => assert_eq!(of("nats_per_byte"), None),
        }
    }
}

/// The loss stands at the head of the terminal, of the page, of Markdown, JUnit and the stored lines; gates judge it of the reference and
/// of recipes.
#[test]
fn every_report_has_the_loss_and_gates_judge_it() {
    let folder = tempfile::tempdir().unwrap();
    let gates = [
        gate("reference", "perplexity", "<= 7"),
        gate("reference", "nats", "<= 1.9"),
        gate("bf16", "perplexity", "<= 7"),
        gate("bf16", "nats", "<= 1.5"),
    ];
    let file = question(
        folder.path(),
        "dsv4-mini",
        ["alice", "offset = 20000"],
        136,
        &gates.concat(),
    );
    let out = folder.path().join("run");
    let output = run(&["sweep", path(&file), "--out", path(&out)]);
    assert_eq!(code(&output), 100, "{}", stderr(&output));
    let head = "reference: 1.83 nats/token (a token is a byte), perplexity 6.26; uniform would be 5.55";
    assert_eq!(stdout(&output).lines().nth(1), Some(head), "{}", stdout(&output));
    for report in ["report.html", "report.md", "report.txt", "junit.xml"] {
        let text = std::fs::read_to_string(out.join(report)).unwrap();
        assert!(text.contains(head), "{report}");
    }
    let last: serde_json::Value = serde_json::from_str(records(&out).last().unwrap()).unwrap();
    assert!(
        (last["reference"]["perplexity"].as_f64().unwrap() - 6.26).abs() < 0.01,
        "{last}"
    );
    assert!(stdout(&output).contains("3 checks pass, 1 fail"), "{}", stdout(&output));
    assert!(!stdout(&output).contains("cannot tell"), "{}", stdout(&output));
}

/// A model that predicts nothing: its loss is above that of uniform guesses. Of the kind: random weights, a text in another language, a
/// wrong tokenizer, bytes of a compressed file.
#[test]
fn a_text_that_the_model_cannot_predict_is_said_and_strict_judges_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = root().join("tests/fixtures/tokens");
    let rest = gate("bf16", "cosine", ">= 0.9") + &gate("bf16", "nats", "<= 99");
    let file = question(folder.path(), path(&model), ["alice", "draws = 2"], 24, &rest);
    let out = folder.path().join("run");
    let caution = "cannot tell formats apart: the reference's loss is 6.";
    let plain = run(&["sweep", path(&file), "--out", path(&out)]);
    assert_eq!(code(&plain), 0, "{}", stderr(&plain));
    assert!(stdout(&plain).contains(caution), "{}", stdout(&plain));
    assert!(!stdout(&plain).contains("The smallest format"), "{}", stdout(&plain));
    for report in ["report.html", "report.md", "report.txt", "junit.xml"] {
        let text = std::fs::read_to_string(out.join(report)).unwrap().replace("&#39;", "'");
        assert!(text.contains("cannot tell formats apart"), "{report}");
    }
    let strict = run(&["gate", path(&out), "--strict"]);
    assert_eq!(code(&strict), 4, "{}", stdout(&strict));
    assert!(
        stdout(&strict).contains("NOT JUDGED: 2 checks pass"),
        "{}",
        stdout(&strict)
    );
    let strict = run(&[
        "sweep",
        path(&file),
        "--strict",
        "--out",
        path(&folder.path().join("again")),
    ]);
    assert_eq!(code(&strict), 4, "{}", stdout(&strict));
    let page = std::fs::read_to_string(folder.path().join("again/report.html")).unwrap();
    assert!(page.contains("NOT JUDGED") && page.contains("--strict"));
}

/// Recipes whose losses differ by less than the windows do are not told apart; one that is far off is.
#[test]
fn recipes_within_noise_are_said() {
    let more = |name: &str, at: &str, format: &str| {
        format!("[[recipe]]\nname = \"{name}\"\ndoc = \"x\"\nround = [{{ at = \"{at}\", format = \"{format}\" }}]\n")
    };
    let near = more("near", "layers.*.output", "bf16");
    let far = more("far", "layers.*.mlp.*.weight", "int2/b32:f32");
    for (rest, said, exit) in [(near.clone(), true, 4), (near + &far, false, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let rest = rest + &gate("bf16", "cosine", ">= 0.9");
        let file = question(folder.path(), "qwen3-mini", ["alice", "draws = 2"], 48, &rest);
        let out = folder.path().join("run");
        let output = run(&["sweep", path(&file), "--strict", "--out", path(&out)]);
        assert_eq!(code(&output), exit, "{}{}", stdout(&output), stderr(&output));
        let noise = "by loss: all 2 recipes lie within each other's noise";
        assert_eq!(stdout(&output).contains(noise), said, "{}", stdout(&output));
    }
}
