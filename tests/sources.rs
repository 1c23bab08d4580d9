//! Round trips and recalls against numbers known from elsewhere.

use std::path::Path;
use std::sync::Arc;

use ulplab::backend::rounding::Rounding;
use ulplab::experiment::Source;
use ulplab::experiment::file::ExperimentFile;
use ulplab::formats::{Codec, Encoded, Format, codec};
use ulplab::gate::{Binding, judge};
use ulplab::metrics::{Choice, Pair, RoundTrip, Threshold, measure_all};
use ulplab::pattern::matches;
use ulplab::random::stream;
use ulplab::record::{Phase, Record};
use ulplab::run::plan::Cell;
use ulplab::run::summary::summarize;
use ulplab::run::verdict::Verdict;
use ulplab::studies::inputs::Inputs;
use ulplab::studies::measure::with_means;
use ulplab::studies::model::Sample;
use ulplab::studies::recall::{RecallStudy, Recipe, Scores, drawn, of_vectors};
use ulplab::studies::round_trip::{Numbers, Stored, draw, measure, theory};
use ulplab::studies::{self, Lab, ParsedExperiment};
use ulplab_operations::ops::Rows;

fn sample(origin: &Numbers, shape: [usize; 2]) -> Sample {
    Sample {
        source: "numbers".into(),
        rows: Rows {
            layer: None,
            cols: shape[1],
            values: draw(origin, shape, &mut stream(3, "numbers")).expect("a distribution"),
        },
    }
}

fn blank() -> Record {
    Record::blank("recipe/local/draw-1", "recipe", Phase::Local, "draw-1")
}

fn stored(format: &str) -> Stored {
    Stored {
        codec: codec(format).unwrap(),
        noise: None,
    }
}

/// All metrics of one format on one sample.
fn measured(format: &str, sample: Sample, rival: Option<&str>) -> impl Fn(&str) -> f64 {
    let rival = rival.map(stored);
    let records = measure(&blank(), &[sample], &stored(format), rival.as_ref());
    move |metric| {
        let found = records.iter().find(|record| record.metric == metric);
        found.unwrap_or_else(|| panic!("no {metric}")).value
    }
}

/// Means of 4 × 2^20 values from an independent program (NumPy); the standard deviation of 2^18 values is below 0.03 dB
/// where tails are light.
#[test]
fn sqnr_is_what_another_program_measured() {
    for (format, gauss, laplace) in [
        ("bf16", 55.58, 55.61),
        ("f16", 73.64, 73.66),
        ("e4m3", 31.52, 31.53),
        ("fp8_token", 31.54, 31.57),
        ("fp8_b128_f32", 31.80, 32.09),
        ("mxfp8", 31.52, 31.53),
        ("mxfp8_floor", 30.65, 30.01),
        ("mxfp6_e2m3", 30.96, 30.23),
        ("mxfp6_e3m2", 25.54, 25.56),
        ("mxfp4_floor", 18.79, 17.94),
        ("mxfp4", 18.76, 17.57),
        ("e2m1/b32:e8m0(even)", 19.03, 18.13),
        ("e2m1/b32:e8m0(ceil)", 16.82, 15.38),
        ("nvfp4", 20.43, 20.66),
        ("nvfp4_single", 20.43, 20.66),
        ("nvfp4_46", 21.21, 21.19),
        ("nvfp4_search", 21.81, 21.68),
        ("nvfp4_rht", 20.44, 20.35),
        ("mxint8", 41.67, 39.99),
        ("int8_token", 41.26, 36.73),
        ("int4_b32", 20.27, 18.34),
        ("int4/b16:f32", 21.40, 19.90),
    ] {
        for (origin, expected) in [(Numbers::Gaussian, gauss), (Numbers::Laplace, laplace)] {
            let sqnr = measured(format, sample(&origin, [64, 4096]), None)("sqnr");
            // INT8 per row hangs on the largest of each row.
            let within = if format == "int8_token" { 0.3 } else { 0.06 };
            assert!(
                (sqnr - expected).abs() < within,
                "{format} on {origin:?}: {sqnr}, not {expected}"
            );
        }
    }
}

/// By the format's name; a record has none to ask.
fn theory_nsr(format: &str, x: &[f32], cols: usize) -> Option<f64> {
    theory::nsr(codec(format).unwrap().format()?, x, cols)
}

#[test]
fn theory_is_6_decibels_a_bit() {
    for (format, expected) in [
        ("nvfp4", 20.17),
        ("e5m2", 26.19),
        ("e4m3", 32.21),
        ("bf16", 56.29),
        ("f16", 74.35),
    ] {
        let nsr = theory_nsr(format, &[1.0; 16], 16).unwrap();
        assert!((-10.0 * nsr.log10() - expected).abs() < 0.005, "{format}");
    }
    assert_eq!(theory_nsr("v4_fp8", &[1.0; 512], 512), None, "a record mixes elements");
    assert_eq!(
        theory_nsr("mxint8", &[1.0; 32], 32),
        None,
        "steps are not in proportion to the largest"
    );
}

/// Rows of 3 in blocks of 2: the last block of a row is cut short, and does not reach into the next row.
#[test]
fn steps_of_integers_follow_their_groups() {
    let x = [4.0, 1.0, 2.0, 8.0, 8.0, 1.0];
    let signal: f64 = 16.0 + 1.0 + 4.0 + 64.0 + 64.0 + 1.0;
    for (format, squares) in [
        ("int4/b2:f32", 2.0 * 16.0 + 4.0 + 2.0 * 64.0 + 1.0),
        ("int4/token:f32", 3.0 * 16.0 + 3.0 * 64.0),
        ("int4/t:f32", 6.0 * 64.0),
    ] {
        let expected = squares / 49.0 / 12.0 / signal;
        let nsr = theory_nsr(format, &x, 3).unwrap();
        assert!((nsr / expected - 1.0).abs() < 1e-12, "{format}: {nsr}, not {expected}");
    }
}

#[test]
fn metrics_of_a_round_trip_by_hand() {
    let (want, got) = ([3.0f32, 4.0, 0.0, 1.0], [3.0f32, 3.0, 0.0, 0.0]);
    let pair = Pair::new(&want, &got);
    let mut trip = RoundTrip::new(&pair, &want, &got, 2, 4.5);
    (trip.theory_nsr, trip.rival_nsr) = (Some(0.2), Some(0.4));
    let value = |name: &str| {
        let found = measure_all(&trip).find(|(metric, _)| metric.name == name);
        found.unwrap_or_else(|| panic!("no {name}")).1
    };
    let close = |name: &str, expected: f64| assert!((value(name) - expected).abs() < 1e-12, "{name}: {}", value(name));
    // Σx² = 26, Σe² = 2, Σxe = −5; the first row has 1/25, the second 1/1.
    close("rho", -5.0 / 26.0);
    close("cosine_theory", 21.0 / (26.0f64.sqrt() * 18.0f64.sqrt()));
    close("cosine_excess", 0.0);
    close("sqnr_gain", 10.0 * (0.4 * 13.0f64).log10());
    close("sqnr_excess", 10.0 * (0.2 * 13.0f64).log10());
    close("sqnr_theory", 10.0 * 5.0f64.log10());
    close("sqnr_bits", 13.0f64.log2() / 2.0);
    close("row_sqnr_p05", 0.0);
    close("row_sqnr_p50", 10.0 * 25.0f64.log10());
    close("zeroed", 1.0 / 3.0);
    close("stored_bits", 4.5);
}

#[test]
fn a_nan_makes_every_metric_of_values_nan() {
    let (want, got) = ([1.0f32, 2.0], [1.0f32, f32::NAN]);
    let pair = Pair::new(&want, &got);
    let mut trip = RoundTrip::new(&pair, &want, &got, 2, 8.0);
    (trip.theory_nsr, trip.rival_nsr) = (Some(0.1), Some(0.1));
    for (metric, value) in measure_all(&trip) {
        let constant = ["stored_bits", "sqnr_theory"].contains(&metric.name);
        assert_eq!(value.is_nan(), !constant, "{}: {value}", metric.name);
    }
}

#[test]
fn distributions_have_their_moments() {
    let shape = [512, 1024];
    let moments = |origin: &Numbers| {
        let values = draw(origin, shape, &mut stream(5, "moments")).expect("a distribution");
        let mean = |power: i32| values.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / values.len() as f64;
        [mean(1), mean(2), mean(4) / mean(2).powi(2)]
    };
    for (origin, variance, kurtosis) in [
        (Numbers::Gaussian, 1.0, 3.0),
        (Numbers::Laplace, 2.0, 6.0),
        // ν / (ν − 2), 3 + 6 / (ν − 4).
        (Numbers::StudentT(12.0), 1.2, 3.75),
        // 10 of 1024 channels are 30 times as large.
        (
            Numbers::OutlierChannels {
                share: 0.01,
                factor: 30.0,
            },
            (1014.0 + 10.0 * 900.0) / 1024.0,
            3.0 * 1024.0 * (1014.0 + 10.0 * 810_000.0) / (1014.0f64 + 10.0 * 900.0).powi(2),
        ),
    ] {
        let [mean, second, fourth] = moments(&origin);
        assert!(mean.abs() < 0.01 * variance, "{origin:?}: mean {mean}");
        assert!((second / variance - 1.0).abs() < 0.02, "{origin:?}: variance {second}");
        assert!((fourth / kurtosis - 1.0).abs() < 0.06, "{origin:?}: kurtosis {fourth}");
    }
    // Outliers are whole channels.
    let outliers = Numbers::OutlierChannels {
        share: 0.25,
        factor: 1e6,
    };
    let values = draw(&outliers, [50, 8], &mut stream(5, "channels")).expect("a distribution");
    let large = |col: usize| (0..50).filter(|row| values[row * 8 + col].abs() > 1000.0).count();
    assert_eq!((0..8).map(large).filter(|&count| count > 40).count(), 2);
    assert_eq!((0..8).map(large).filter(|&count| count == 0).count(), 6);
}

#[test]
fn draws_depend_on_seed_and_purpose_alone() {
    let first = |seed, purpose: &str| draw(&Numbers::Gaussian, [1, 8], &mut stream(seed, purpose));
    assert_eq!(first(1, "gauss/draw-1"), first(1, "gauss/draw-1"));
    assert_ne!(first(1, "gauss/draw-1"), first(2, "gauss/draw-1"));
    assert_ne!(first(1, "gauss/draw-1"), first(1, "gauss/draw-2"));
}

#[test]
fn layers_are_averaged_and_kept() {
    let record = |layer, value| Record {
        layer,
        site: "kv".into(),
        metric: "sqnr".into(),
        value,
        n: 10,
        ..blank()
    };
    let means = with_means(vec![record(Some(3), 1.0), record(Some(5), 2.0), record(None, 7.0)]);
    assert_eq!(means.len(), 4);
    assert_eq!((means[3].layer, means[3].value, means[3].n), (None, 1.5, 20));
}

/// One in 16 is kept: φ(z) / (√(2π) p) = 0.7866.
#[test]
fn recall_falls_in_proportion_to_noise() {
    let study = RecallStudy {
        shape: [16, 16384],
        sources: vec![Source {
            name: "top".into(),
            from: Scores::Vectors {
                channels: 128,
                top: 1024,
            },
        }],
        ..RecallStudy::default()
    };
    let vectors = drawn(&study, 0, "draw-1");
    for size in [0.0, 0.0127, 0.05, 0.1] {
        let recipe = Recipe {
            score_noise: Some(size),
            ..Default::default()
        };
        let nothing = Rounding::default();
        let sites = ["attention.indexer.query", "attention.indexer.key"];
        let records = of_vectors(&blank(), 1, &recipe, &nothing, sites, &vectors);
        let value = |metric: &str| records.iter().find(|record| record.metric == metric).unwrap().value;
        assert!(
            (value("score_error") - size).abs() <= 0.01 * size,
            "{size}: {}",
            value("score_error")
        );
        assert!(
            value("recall_excess").abs() < 0.004,
            "{size}: {}",
            value("recall_excess")
        );
        let expected = 1.0 - 0.7866 * size;
        assert!(
            (value("recall_theory") - expected).abs() < 1e-3,
            "{size}: {}",
            value("recall_theory")
        );
    }
}

/// An error that all scores of a row share selects nothing else.
#[test]
fn a_shift_of_all_scores_is_no_error() {
    let want = [1.0f32, 2.0, 3.0, 4.0, 1.0, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
    let got = want.map(|score| score + 5.0);
    let choice = Choice::new(&[3, 0], &[3, 0], 1, &want, 4, None);
    let threshold = Threshold::new(&want, &got, 4, 1, &choice);
    assert_eq!(threshold.rows, 2);
    let values: Vec<_> = measure_all(&threshold)
        .map(|(metric, value)| (metric.name, value))
        .collect();
    assert_eq!(
        values,
        [("score_error", 0.0), ("recall_theory", 1.0), ("recall_excess", 0.0)]
    );
}

/// A codec whose bytes are damaged between write and read.
struct Damaged {
    codec: Arc<dyn Codec>,
    damage: fn(&mut [u8]),
}

impl Codec for Damaged {
    fn name(&self) -> String {
        self.codec.name()
    }

    fn doc(&self) -> &str {
        self.codec.doc()
    }

    fn format(&self) -> Option<&Format> {
        self.codec.format()
    }

    fn bytes_per_row(&self, cols: usize) -> f64 {
        self.codec.bytes_per_row(cols)
    }

    fn check(&self, cols: usize) -> Result<(), String> {
        self.codec.check(cols)
    }

    fn encode(&self, x: &[f32], cols: usize) -> Encoded {
        let mut encoded = self.codec.encode(x, cols);
        encoded.parts.iter_mut().for_each(|part| (self.damage)(&mut part.bytes));
        encoded
    }

    fn decode(&self, encoded: &Encoded, out: &mut [f32]) {
        self.codec.decode(encoded, out);
    }
}

/// The gates of the experiment on a Gaussian notice codes that are cut, not rounded; a sign that is lost; a NaN.
#[test]
fn gates_catch_broken_codecs() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/round_trip.toml");
    let experiment = parsed(&file, &[]).experiment;
    let verdicts = |format: &str, damage: fn(&mut [u8])| {
        let rules = experiment.gates.iter().filter(|rule| rule.at != "*");
        let binding = rules.filter(|rule| rule.recipes.iter().any(|pattern| matches(pattern, format)));
        let rules: Vec<_> = binding.map(|rule| Binding::whole(rule, format)).collect();
        assert!(rules.len() > 2, "no gate on the Gaussian binds {format}");
        let damaged = Stored {
            codec: Arc::new(Damaged {
                codec: codec(format).unwrap(),
                damage,
            }),
            noise: None,
        };
        // Intervals need two draws.
        let draw = |(name, rows)| {
            let sample = Sample {
                source: "gauss".into(),
                ..sample(&Numbers::Gaussian, [rows, 1024])
            };
            let who = Record::blank("cell", format, Phase::Local, name);
            measure(&who, &[sample], &damaged, None)
        };
        let records = [("draw-1", 64), ("draw-2", 48)].map(draw).concat();
        judge(&rules, &summarize(&records)).unwrap()
    };
    for format in ["e4m3", "e5m2", "nvfp4", "int8_token"] {
        assert!(
            verdicts(format, |_| ()).iter().all(Verdict::passes),
            "{format} as it is"
        );
        let broken: [fn(&mut [u8]); 2] = [
            |bytes| bytes.iter_mut().for_each(|byte| *byte &= !1),
            |bytes| bytes.iter_mut().step_by(97).for_each(|byte| *byte ^= 0x80),
        ];
        for (which, damage) in broken.into_iter().enumerate() {
            let caught = verdicts(format, damage).iter().any(Verdict::fails);
            assert!(caught, "{format}, damage {which}");
        }
    }
    assert!(verdicts("e4m3", |bytes| bytes[0] = 0x7f).iter().any(Verdict::fails));
}

fn parsed(file: &Path, overrides: &[String]) -> ParsedExperiment {
    studies::parse(&ExperimentFile::read(file, overrides).unwrap()).unwrap()
}

/// A cell whose recipe is not in the experiment is an error: it must not end as one without records, which no gate could fail.
#[test]
fn what_cannot_be_measured_is_an_error() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/round_trip.toml");
    let experiment = parsed(&file, &["shape=[4, 128]".into()]);
    let cell = |recipe: &str| Cell {
        recipe: recipe.into(),
        phase: Phase::Local,
        window: 0,
        id: format!("{recipe}/local/draw-1"),
        cost: 1,
    };
    let (ready, plan) = (experiment.study.ready(7, None).unwrap(), experiment.study.plan());
    let (inputs, stop) = (Inputs::default(), false.into());
    let run = |cell: &Cell| {
        let done = |_: &Cell, records: Vec<Record>| {
            assert!(!records.is_empty());
            Ok(())
        };
        ready.run(&Lab::new(&plan, &inputs, &stop, &done), &[cell])
    };
    run(&cell("e4m3")).unwrap();
    let error = run(&cell("e4m4")).unwrap_err().to_string();
    assert_eq!(error, "there is no recipe 'e4m4'");
}

/// A source of another kind is refused where it is read.
#[test]
fn a_source_of_another_kind_is_an_error() {
    let text = "name = 'x'\nquestion = 'x'\nkind = 'swap_ffn'\n[[source]]\nname = 'numbers'\nfrom = 'gaussian'\n";
    let file = ExperimentFile::new("x.toml".into(), text.into(), &[]).unwrap();
    let error = studies::parse(&file).err().unwrap().to_string();
    assert!(error.contains("line 6") && error.contains("swap_ffn"), "{error}");
}
