//! Recipes of a model that are a whole step by kernels, and recipes that are compared with others.

use std::path::Path;
use std::sync::Mutex;

use ulplab::dataset::{Checkpoint, Manifest, Tokens};
use ulplab::experiment::file::ExperimentFile;
use ulplab::record::Record;
use ulplab::run::plan::Cell;
use ulplab::studies::Lab;
use ulplab::studies::inputs::Inputs;

fn datasets() -> Manifest {
    Manifest::open(Some(&Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets"))).unwrap()
}

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&datasets().checkpoint("dsv4-mini").unwrap()).unwrap()
}

/// A model's experiment in which these lines follow the first recipe, `fp8`.
fn of_model(phases: &str, more: &str) -> ExperimentFile {
    let text = format!(
        "name = 'x'\nquestion = 'x'\nmodel = 'dsv4-mini'\ntokens = 40\nphases = [{phases}]\n[[window]]\ntext = 'alice'\noffset = 0\n\
         [[recipe]]\nname = 'fp8'\ndoc = 'x'\nround = [{{ at = 'layers.*.attention.kv.*', format = 'v4_fp8' }}]\n{more}"
    );
    ExperimentFile::new("x.toml".into(), text, &[]).unwrap()
}

/// A recipe is compared with another where that is asked for: with the same it is equal, and neither has a local phase.
#[test]
fn a_recipe_is_compared_with_another() {
    let recipe = |name: &str, format: &str, more: &str| {
        format!(
            "[[recipe]]\nname = '{name}'\ndoc = 'x'\nagainst = 'fp8'\n{more}\
             round = [{{ at = 'layers.*.attention.kv.*', format = '{format}' }}]\n"
        )
    };
    let file = of_model(
        "'local', 'cumulative'",
        &[
            recipe("same", "v4_fp8", ""),
            recipe("fp4", "v4_nvfp4", ""),
            recipe("by_token", "v4_fp8", "chunk = 1\n"),
        ]
        .concat(),
    );
    let study = ulplab::studies::parse(&file).unwrap().study;
    study.check().unwrap();
    let plan = study.plan();
    let cells: Vec<Cell> = plan.cells();
    let of = |recipe: &str| cells.iter().filter(|cell| cell.recipe == recipe).collect::<Vec<_>>();
    assert_eq!((of("fp8").len(), of("same").len(), of("fp4").len()), (2, 1, 1));
    let documents: Vec<String> = study.recipes().into_iter().map(|recipe| recipe.doc).collect();
    assert_eq!(documents[..2], ["x", "x; compared with 'fp8', not with the reference"]);

    let ids: Vec<u32> = datasets()
        .text("alice", 0, 40)
        .unwrap()
        .into_iter()
        .map(u32::from)
        .collect();
    let inputs = Inputs {
        folder: Some(datasets().checkpoint("dsv4-mini").unwrap()),
        texts: vec![Tokens { ids, bytes: None }],
        ..Inputs::default()
    };
    let ready = study.ready(0, Some(&*checkpoint().config)).unwrap();
    let measured = Mutex::new(Vec::new());
    let done = |_: &Cell, records: Vec<Record>| {
        measured.lock().unwrap().extend(records);
        Ok(())
    };
    let all = [of("same"), of("fp4"), of("by_token"), of("fp8")[1..].to_vec()];
    let stop = false.into();
    ready
        .run(&Lab::new(&plan, &inputs, &stop, &done), &all.concat())
        .unwrap();
    let measured = measured.lock().unwrap();
    let error = |recipe: &str| {
        let of_all = measured
            .iter()
            .filter(|record| record.recipe == recipe && record.metric == "recall");
        // Routers; no indexer has more entries than it selects.
        assert_eq!(of_all.count(), 58, "{recipe}");
        let found = measured.iter().find(|record| {
            record.recipe == recipe
                && record.site == "output"
                && record.layer == Some(60)
                && record.metric == "relative_l2"
        });
        found.unwrap().value
    };
    assert_eq!(error("same"), 0.0);
    // The order of sums alone, and what it makes of rounding.
    assert!((1e-8..1e-2).contains(&error("by_token")), "{}", error("by_token"));
    assert!(
        error("fp8") > 1e-3 && error("fp4") > 1e-3,
        "{} {}",
        error("fp8"),
        error("fp4")
    );
}

/// What a whole step and a comparison may not be is told at its line.
#[test]
fn a_whole_step_rounds_keys_alone() {
    let cumulative = "'cumulative'";
    let kv = "at = 'layers.*.attention.kv.*', format = 'v4_fp8'";
    for (phases, keys, words) in [
        (
            cumulative,
            "step = 'decode_step.recrds'".to_string(),
            "did you mean 'decode_step.records'?",
        ),
        (
            cumulative,
            "step = 'rope.simple'".into(),
            "no kernel of an operation of the model (decode_step)",
        ),
        (
            cumulative,
            format!("step = 'decode_step.records'\nround = [{{ {kv}, role = 'key' }}]"),
            "rounds one reader of a vector only has no 'step'",
        ),
        (
            cumulative,
            "step = 'decode_step.records'\nround = [{ at = 'layers.*.output', format = 'bf16' }]".into(),
            "can store keys as records only",
        ),
        (
            cumulative,
            "step = 'decode_step.simple'\nnoise = true".into(),
            "no 'noise', no 'chunk' and no 'cuts'",
        ),
        (
            cumulative,
            "step = 'decode_step.simple'\nweights = 'fp8_b64_f32+mxfp'".into(),
            "did you mean 'fp8_b64_f32+mxfp4'?",
        ),
        (cumulative, "weights = 'bf16'".into(), "there is no 'step'"),
        (
            "'local'",
            "step = 'decode_step.simple'".into(),
            "expected \"cumulative\" among 'phases'",
        ),
        (
            cumulative,
            "against = 'fp9'".into(),
            "there is no recipe 'fp9'; did you mean 'fp8'?",
        ),
        (cumulative, "against = 'y'".into(), "not compared with itself"),
        (
            cumulative,
            format!("against = 'key'\n[[recipe]]\nname = 'key'\ndoc = 'x'\nround = [{{ {kv}, role = 'key' }}]"),
            "rounds one reader of a vector only",
        ),
    ] {
        let file = of_model(phases, &format!("[[recipe]]\nname = 'y'\ndoc = 'x'\n{keys}\n"));
        let parsed = ulplab::studies::parse(&file).unwrap();
        let config = checkpoint().config;
        let mistake = parsed
            .study
            .check()
            .err()
            .or_else(|| parsed.study.ready(0, Some(&*config)).err());
        let error = file.error(&mistake.expect(keys.as_str())).to_string();
        assert!(
            error.contains(words) && error.contains("recipe 'y'") && error.contains("line 1"),
            "{error}"
        );
    }
}
