//! Runs that begin behind layers in which another run did the same: every bit is that of a whole run.

use std::path::Path;

use reference::Site;
use reference::paths::Model;
use ulplab::backend::rounding::Rounding;
use ulplab::dataset::Checkpoint;
use ulplab::record::{Phase, Record};
use ulplab::studies::Text;
use ulplab::studies::model::{Kept, Recipe, Streams, Watch, run_from, run_reference};

const EVERYWHERE: &str = r#"{ at = "layers.*.attention.kv.*", format = "v4_nvfp4" }"#;
const FROM_30: &str = r#"{ at = "layers.*.attention.kv.*", format = "v4_nvfp4", layers = "30-60" }"#;
const BEFORE_30: &str = r#"{ at = "layers.*.attention.kv.*", format = "v4_nvfp4", layers = "0-29" }"#;

fn rounding(model: &dyn Model<f32>, rounds: &str) -> Rounding {
    let recipe: Recipe = toml::from_str(&format!("name = \"test\"\ndoc = \"\"\nround = [{rounds}]")).unwrap();
    recipe.resolve(model.config(), 1).unwrap()
}

/// Counts the layers that are run.
struct Layers(Vec<usize>);

impl Watch for Layers {
    fn before(&mut self, site: &Site, _: &reference::Tensor<f32>) {
        self.0.extend(site.layer.filter(|_| site.name == "input"));
    }
}

/// The records with every number in full, as NaN is not equal to itself.
fn texts(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| format!("{record:?}")).collect()
}

#[test]
fn a_run_from_the_middle_has_the_bits_of_a_whole_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets");
    let text = std::fs::read(root.join("text/alice.txt")).unwrap();
    let ids: Vec<u32> = text[20000..20072].iter().map(|byte| u32::from(*byte)).collect();
    let model = Checkpoint::open(&root.join("dsv4-mini"))
        .unwrap()
        .load::<f32>()
        .unwrap();
    let (model, path) = (&*model, model.config().path());
    let text = Text { model, ids: &ids };
    let want = run_reference(model, &ids).unwrap();
    for phase in [Phase::Cumulative, Phase::Local] {
        let blank = || Record::blank("cell", "test", phase, "alice");
        let whole = |rounds: &str, watch: &mut dyn Watch| {
            run_from(text, &rounding(model, rounds), &want, blank(), None, watch).unwrap()
        };
        let kept = |rounds: &str| {
            let mut streams = Streams::new(path);
            let records = whole(rounds, &mut streams);
            Kept { records, streams }
        };
        // Behind a right beginning, and behind a wrong one.
        for (beginning, mixed) in [(BEFORE_30, EVERYWHERE), (EVERYWHERE, BEFORE_30)] {
            let mut layers = Layers(Vec::new());
            let start = kept(beginning);
            let resumed = run_from(
                text,
                &rounding(model, mixed),
                &want,
                blank(),
                Some((&start, 30)),
                &mut layers,
            )
            .unwrap();
            assert_eq!(layers.0, (30..61).collect::<Vec<_>>(), "only these layers are run");
            let all = whole(mixed, &mut Layers(Vec::new()));
            assert_eq!(texts(&resumed), texts(&all), "{phase}: {mixed} behind {beginning}");
            // A start that differs before is seen.
            if phase == Phase::Cumulative {
                let other = kept(FROM_30);
                let wrong = run_from(
                    text,
                    &rounding(model, mixed),
                    &want,
                    blank(),
                    Some((&other, 30)),
                    &mut layers,
                );
                assert_ne!(texts(&wrong.unwrap()), texts(&all), "the test can fail");
            }
        }
    }
    let reference = Streams::of_reference(path, &want);
    let start = Kept {
        records: Vec::new(),
        streams: reference,
    };
    let blank = Record::blank("cell", "test", Phase::Cumulative, "alice");
    let records = run_from(
        text,
        &Rounding::default(),
        &want,
        blank,
        Some((&start, 61)),
        &mut Layers(Vec::new()),
    )
    .unwrap();
    let worst = records.iter().filter(|record| record.metric == "max_abs");
    assert_eq!(
        worst.map(|record| record.value).collect::<Vec<_>>(),
        [0.0],
        "the head alone"
    );
}

#[test]
fn a_stream_of_another_shape_is_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets");
    let model = Checkpoint::open(&root.join("dsv4-mini"))
        .unwrap()
        .load::<f32>()
        .unwrap();
    for (layer, shape) in [(62, [1, 4, 64]), (3, [2, 4, 64])] {
        let stream = reference::Tensor::full(shape, 1.0f32);
        let refused = model
            .resume(layer, stream, &[65], &mut reference::Plain)
            .unwrap()
            .unwrap_err();
        assert!(refused.contains("expected [1, 4, 64]"), "{refused}");
    }
}
