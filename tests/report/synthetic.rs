//! A run made up from a seed: the shape of a 61-layer model with a compressed cache, without the model.

use std::collections::BTreeMap;

use ulplab::backend::recipe::{Reader as Role, Round, Segment};
use ulplab::experiment::{Experiment, Head, Rule, Statistic, Window};
use ulplab::record::{Phase, Record, Worst};
use ulplab::run::invocation::Invocation;
use ulplab::run::plan::Plan;
use ulplab::run::summary::Summary;
use ulplab::run::verdict::{Failures, Status, Verdict};
use ulplab::run::{CacheBytes, Manifest, Program, RecipeInfo, Run};
use ulplab::studies::Keys;
use ulplab::studies::model::{ModelStudy, Recipe};

pub const LAYERS: u32 = 61;
pub const HOSTILE: &str = "<b>&\"'|`x`\u{1b}[31m";

/// A recipe and how wrong it is.
#[derive(Clone, Default)]
pub struct Spec {
    pub name: String,
    pub format: &'static str,
    /// Relative error of a stored vector.
    pub error: f64,
    /// How much of the error's structure meets what the model uses; 1 for noise.
    pub structure: f64,
    pub bytes: Option<f64>,
    pub noise: bool,
    pub segment: Option<Segment>,
    pub role: Option<Role>,
    pub layers: Option<&'static str>,
}

fn plain(name: &str, format: &'static str, error: f64, structure: f64, bytes: f64) -> Spec {
    Spec {
        name: name.into(),
        format,
        error,
        structure,
        bytes: Some(bytes),
        ..Spec::default()
    }
}

fn noise(of: &Spec) -> Spec {
    Spec {
        name: format!("{}_noise", of.name),
        structure: 1.0,
        noise: true,
        ..of.clone()
    }
}

/// Six recipes, two windows, one of them hostile by name and with NaN in layer 17.
pub fn small() -> Run {
    let mxfp4 = plain("v4_mxfp4", "v4_mxfp4", 0.12, 1.6, 368.0);
    let specs = [
        plain("bf16", "bf16", 0.0017, 1.0, 1024.0),
        plain("v4_fp8", "v4_fp8", 0.025, 1.2, 584.0),
        noise(&mxfp4),
        mxfp4.clone(),
        Spec {
            name: "v4_mxfp4_key".into(),
            error: 0.07,
            role: Some(Role::Key),
            bytes: None,
            ..mxfp4.clone()
        },
        plain(HOSTILE, "int8_token", 0.3, 1.0, 520.0),
    ];
    build("kv-small", &specs, &["alice@0", "code@4096"])
}

/// 22 recipes and four windows: the size of a real experiment.
pub fn large() -> Run {
    let plains = [
        plain("bf16", "bf16", 0.0017, 1.0, 1024.0),
        plain("v4_fp8", "v4_fp8", 0.025, 1.15, 584.0),
        plain("v41_mxfp8", "v41_mxfp8", 0.027, 1.2, 528.0),
        plain("int8_token", "int8_token", 0.011, 1.9, 516.0),
        plain("int8_hadamard", "int8_hadamard", 0.0083, 1.0, 516.0),
        plain("v4_nvfp4", "v4_nvfp4", 0.095, 1.25, 384.0),
        plain("v4_mxfp4", "v4_mxfp4", 0.122, 1.7, 368.0),
        plain("v4_nvfp4_hadamard", "v4_nvfp4_hadamard", 0.091, 1.02, 384.0),
        plain("int4_group32", "int4_group32", 0.16, 2.4, 336.0),
    ];
    let mut specs = plains.to_vec();
    specs.extend([1, 2, 3, 5, 6, 8].map(|at| noise(&plains[at])));
    let narrow = |at: usize, suffix: &str, share: f64| Spec {
        name: format!("{}_{suffix}", plains[at].name),
        error: plains[at].error * share,
        bytes: None,
        segment: suffix
            .starts_with("nope")
            .then_some(Segment::Nope)
            .or((suffix == "rope").then_some(Segment::Rope)),
        role: (suffix == "key")
            .then_some(Role::Key)
            .or((suffix == "value").then_some(Role::Value)),
        layers: suffix.starts_with("from").then_some("30-60"),
        ..plains[at].clone()
    };
    specs.extend([
        narrow(5, "key", 0.55),
        narrow(5, "value", 0.8),
        narrow(5, "rope", 0.3),
        narrow(5, "from30", 0.9),
    ]);
    specs.extend([narrow(6, "key", 0.5), narrow(6, "value", 0.85), narrow(6, "nope", 0.93)]);
    build("kv-formats", &specs, &["alice@0", "alice@65536", "code@0", "zh@4096"])
}

/// 24 recipes, of which gates judge the last three only.
pub fn crowded() -> Run {
    let recipe = |at: usize| {
        let share = at as f64 / 24.0;
        plain(
            &format!("format{at:02}"),
            "v4_mxfp4",
            0.3 - 0.2 * share,
            1.0,
            300.0 + 10.0 * (at % 5) as f64,
        )
    };
    let specs: Vec<Spec> = (0..24).map(recipe).collect();
    let mut run = build("kv-crowded", &specs, &["alice@0", "code@4096"]);
    run.verdicts.retain(|verdict| verdict.recipe.as_str() >= "format21");
    run
}

/// A number in −1..1 that depends on all of `keys` and nothing else.
fn jitter(keys: &[&str], layer: u32) -> f64 {
    let mut state = 0xcbf2_9ce4_8422_2325u64 ^ u64::from(layer).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in keys.iter().flat_map(|key| key.bytes().chain([0])) {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    state ^= state >> 29;
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

fn build(name: &str, specs: &[Spec], windows: &[&str]) -> Run {
    let mut records = Vec::new();
    let mut cells = Vec::new();
    let reference = Spec {
        name: "reference".into(),
        error: 3e-7,
        structure: 1.0,
        ..Spec::default()
    };
    for spec in specs.iter().chain([&reference]) {
        for phase in [Phase::Local, Phase::Cumulative] {
            for window in windows {
                let cell = format!("{}/{phase}/{window}", spec.name);
                measure(&mut records, spec, phase, window, &cell);
                cells.push(cell);
            }
        }
    }
    let summaries = summarize(&records);
    let recipes: Vec<Recipe> = specs.iter().map(recipe).collect();
    let rules = rules();
    let bound: Vec<&Spec> = specs
        .iter()
        .filter(|spec| !spec.noise && spec.bytes.is_some())
        .collect();
    let verdicts = rules
        .iter()
        .flat_map(|rule| bound.iter().map(|spec| judge(rule, &spec.name, &summaries)))
        .collect();
    let texts = windows.iter().filter_map(|window| window.split_once('@'));
    let study = ModelStudy {
        model: Some("dsv4-mini".into()),
        tokens: 2048,
        phases: vec![Phase::Local, Phase::Cumulative],
        windows: texts
            .map(|(text, at)| Window {
                text: text.into(),
                offset: at.parse().expect("a number"),
                ..Window::default()
            })
            .collect(),
        recipes,
        ..ModelStudy::default()
    };
    let experiment = Experiment {
        head: Head {
            name: name.into(),
            question: "Which KV-cache formats keep a trained 61-layer DeepSeek-V4-shaped model right?".into(),
            kind: "model".into(),
            seed: 7,
            inert: Vec::new(),
            gates: rules,
        },
        body: study.body(),
    };
    let info = |spec: &Spec| RecipeInfo {
        name: spec.name.clone(),
        doc: doc(spec),
        noise: spec.noise,
        bytes: CacheBytes {
            vector: spec.bytes,
            ..CacheBytes::default()
        },
    };
    Run {
        manifest: Manifest {
            schema: 4,
            version: "0.1.0".into(),
            commit: Some("4f2a9c1d7e8b".into()),
            program: Program {
                sources: "5e0c7b1d2f3a".into(),
                commit: Some("4f2a9c1d7e8b".into()),
                vectors: "AVX2".into(),
            },
            experiment,
            plan: Plan::default(),
            invocation: Invocation {
                experiment: "experiments/kv-small.toml".into(),
                ..Invocation::default()
            },
            fingerprint: "b3f1d0c2a4e59687".repeat(4),
            data: vec![
                ("dsv4-mini/model.safetensors".into(), "a1".repeat(32)),
                ("alice.txt".into(), "0c".repeat(32)),
            ],
            device: "cpu (AVX-512)".into(),
            threads: 16,
            started_at: "2026-01-02T03:04:05Z".into(),
            seconds: 1834.6,
            cells,
            left_out: Vec::new(),
            hindered: BTreeMap::new(),
            notes: Vec::new(),
            recipes: specs.iter().map(info).collect(),
            peers: BTreeMap::new(),
            vocabulary: None,
            ceilings: None,
            complete: true,
        },
        records,
        summaries,
        verdicts,
    }
}

fn doc(spec: &Spec) -> String {
    if spec.noise {
        return format!("Gaussian noise of the energy of {}'s rounding", spec.format);
    }
    match (spec.segment, spec.role, spec.layers) {
        (None, None, None) => format!("every KV vector stored as {}", spec.format),
        _ => format!("{} on a part only", spec.format),
    }
}

fn recipe(spec: &Spec) -> Recipe {
    Recipe {
        name: spec.name.clone(),
        doc: doc(spec),
        noise: spec.noise,
        rounds: vec![Round {
            at: "layers.*.attention.kv.*".into(),
            format: spec.format.into(),
            segment: spec.segment,
            role: spec.role,
            layers: spec.layers.map(String::from),
            ..Round::default()
        }],
        ..Recipe::default()
    }
}

fn rules() -> Vec<Rule> {
    let rule = |metric: &str, at: &str, statistic, require: &str, why: &str| Rule {
        metric: metric.into(),
        at: at.into(),
        phase: Phase::Cumulative,
        statistic,
        require: require.into(),
        recipes: vec!["*".into()],
        control: false,
        flake: None,
        calibration: None,
        why: why.into(),
    };
    vec![
        rule(
            "kl",
            "logits",
            Statistic::CiHigh,
            "<= 0.02",
            "below what two seeds of the training run differ by",
        ),
        rule(
            "cosine",
            "layers.*.output",
            Statistic::Min,
            ">= 0.98",
            "no layer may leave the reference's direction",
        ),
    ]
}

fn judge(rule: &Rule, recipe: &str, summaries: &[Summary]) -> Verdict {
    let site = rule.at.trim_start_matches("layers.*.");
    let matching = summaries
        .iter()
        .filter(|s| s.recipe == recipe && s.site == site && s.metric == rule.metric);
    let at_least = rule.require.starts_with('>');
    let bound: f64 = rule.require[3..].parse().expect("a number");
    let values = matching
        .filter(|s| s.phase == rule.phase)
        .map(|s| (if at_least { s.min } else { s.ci_high }, s.layer, s.windows));
    let worse = |a: f64, b: f64| b.is_nan() || (!a.is_nan() && if at_least { b < a } else { b > a });
    let (value, layer, windows) = values
        .reduce(|a, b| if worse(a.0, b.0) { b } else { a })
        .expect("a value");
    Verdict {
        rule: rule.clone(),
        recipe: recipe.into(),
        status: match if at_least { value >= bound } else { value <= bound } {
            true => Status::Pass,
            false => Status::Fail,
        },
        value,
        site: Some(site.into()),
        layer,
        window: None,
        windows,
        message: format!(
            "{} at {} is {value:.6}, required {}",
            rule.metric, rule.at, rule.require
        ),
        failures: Failures::default(),
    }
}

fn measure(records: &mut Vec<Record>, spec: &Spec, phase: Phase, window: &str, cell: &str) {
    let base = if spec.noise {
        spec.name.trim_end_matches("_noise")
    } else {
        &spec.name
    };
    let mut put = |layer: Option<u32>, site: &str, metric: &str, value: f64| {
        records.push(Record {
            cell: cell.into(),
            recipe: spec.name.clone(),
            phase,
            window: window.into(),
            layer,
            site: site.into(),
            metric: metric.into(),
            value,
            n: 2048 * 512,
            nonfinite_want: 0,
            nonfinite_got: u64::from(value.is_nan()),
            worst: (metric == "max_abs").then(|| Worst {
                index: vec![u64::from(layer.unwrap_or(0)), 3, 17],
                want: 1.5,
                got: 1.5 + value,
            }),
            failure: None,
        });
    };
    let mut vector = |layer: Option<u32>, site: &str, error: f64| {
        put(layer, site, "cosine", 1.0 - 0.5 * error * error);
        put(layer, site, "relative_l2", error);
        put(layer, site, "diff", error * error);
        put(layer, site, "sqnr", -20.0 * error.log10());
        put(layer, site, "max_abs", 9.0 * error);
        error
    };
    let mut total = 0.0f64;
    let mut outputs = Vec::new();
    for layer in 0..LAYERS {
        let outside = spec.layers.is_some() && layer < 30;
        let wobble = |what: &str| (0.12 * jitter(&[base, window, what], layer)).exp();
        let stored = if outside { 0.0 } else { spec.error * wobble("stored") };
        vector(Some(layer), "attention.kv.window", stored);
        if layer % 2 == 1 {
            vector(Some(layer), "attention.kv.compressed", 0.9 * stored);
        }
        // Some layers are sensitive by themselves, in all recipes.
        let sensitive = 0.35 * (1.0 + 2.5 * jitter(&["sensitive"], layer).powi(6));
        let own = stored * sensitive * spec.structure * wobble("own");
        let before = total;
        total = (total * total * 0.95 + own * own * (0.6 + 0.8 * spec.structure)).sqrt();
        let mut shown = if phase == Phase::Local { own } else { total };
        if spec.name == HOSTILE && layer == 17 && phase == Phase::Cumulative {
            shown = f64::NAN;
        }
        vector(Some(layer), "output", shown);
        outputs.push((
            layer,
            if phase == Phase::Cumulative && before > 0.0 {
                total / before
            } else {
                1.0
            },
            shown,
        ));
    }
    for (layer, gain, shown) in outputs {
        put(Some(layer), "output", "gain", gain);
        put(
            Some(layer),
            "output",
            "nonfinite",
            if shown.is_nan() { 12.0 } else { 0.0 },
        );
        if layer % 2 == 1 {
            let lost =
                (if shown.is_nan() { 0.2 } else { shown }) * (0.8 + 0.3 * jitter(&[base, window, "recall"], layer));
            put(Some(layer), "attention.indexer.topk", "recall", 1.0 - 0.5 * lost);
            put(Some(layer), "attention.indexer.topk", "recall_mass", 1.0 - 0.2 * lost);
            put(Some(layer), "moe.router", "agreement", 1.0 - 0.7 * lost);
        }
    }
    if phase == Phase::Cumulative {
        let error = total * (1.0 + 0.1 * jitter(&[base, window], 99));
        put(None, "logits", "kl", 0.4 * error * error);
        put(None, "logits", "top1", 1.0 - 0.4 * error);
        put(
            None,
            "logits",
            "delta_nats",
            0.1 * error * error + 0.02 * error * jitter(&[base, window], 98),
        );
        put(None, "logits", "cosine", 1.0 - 0.4 * error * error);
    }
}

/// Mean, extremes, and an interval that is good enough to draw.
fn summarize(records: &[Record]) -> Vec<Summary> {
    let mut groups: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for record in records {
        let key = (&record.recipe, record.phase, record.layer, &record.site, &record.metric);
        groups.entry(key).or_default().push(record.value);
    }
    let mut summaries = Vec::new();
    for ((recipe, phase, layer, site, metric), values) in groups {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let nan = values.iter().any(|value| value.is_nan());
        let fold = |f: fn(f64, f64) -> f64| {
            if nan {
                f64::NAN
            } else {
                values.iter().copied().reduce(f).unwrap_or(f64::NAN)
            }
        };
        let (min, max) = (fold(f64::min), fold(f64::max));
        summaries.push(Summary {
            recipe: recipe.clone(),
            phase,
            layer,
            site: site.clone(),
            metric: metric.clone(),
            windows: values.len() as u32,
            mean,
            min,
            max,
            ci_low: (mean + min) / 2.0,
            ci_high: (mean + max) / 2.0,
            values: Vec::new(),
            flips: Vec::new(),
        });
    }
    summaries
}
