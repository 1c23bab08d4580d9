//! Swap-FFN as an experiment: faults in the candidate's events are noticed by the gates of `experiments/swap_ffn.toml`, and by
//! which.

#[path = "swap_ffn/kernels.rs"]
mod kernels;

use reference::paths::swap_ffn::{LaneRule, Model};
use reference::{Choice, Numerics, Plain, Site, Tensor};
use ulplab::experiment::Rule;
use ulplab::experiment::file::ExperimentFile;
use ulplab::formats::codec;
use ulplab::gate::{Binding, judge};
use ulplab::record::{Phase, Record};
use ulplab::run::summary::summarize;
use ulplab::run::verdict::Verdict;
use ulplab::studies::swap_ffn::{Event, Method, SwapFfnStudy, exact, measure};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/experiments/swap_ffn.toml");

/// That of the file.
const SEED: u64 = 1;

/// The experiment's own gates, on smaller models.
fn experiment() -> (SwapFfnStudy, Vec<Rule>) {
    let text = std::fs::read_to_string(FILE).expect("the experiment is there");
    let text = text.replace("d_model = 256, d_ff = 1024", "d_model = 64, d_ff = 128");
    let file = ExperimentFile::new(FILE.into(), text, &[]).expect("TOML");
    let mut study: SwapFfnStudy = file.body().expect("an experiment");
    study.shape[1] = 2;
    (study, file.head().expect("a head").gates)
}

/// Names of the gates that recipe `f32` fails with such events.
fn failing(event: Event) -> Vec<String> {
    let (study, gates) = experiment();
    let window = "draw-1";
    let want = exact(&study, SEED, window).expect("a reference");
    let recipe = study
        .recipes
        .iter()
        .find(|recipe| recipe.name == "f32")
        .expect("a recipe");
    let mut method = Method::resolve(recipe, &study.sources, SEED)
        .map_err(|mistake| mistake.message)
        .expect("a method");
    method.event = event;
    let records = [Phase::Local, Phase::Cumulative].map(|phase| {
        let blank = Record::blank(&format!("f32/{phase}/{window}"), "f32", phase, window);
        measure(&blank, &study, SEED, &method, &want).expect("records")
    });
    let summaries = summarize(&records.concat());
    let binds =
        |rule: &&Rule| rule.recipes.iter().any(|recipe| recipe == "f32" || recipe == "*") && !rule.at.ends_with("64");
    let rules: Vec<_> = gates
        .iter()
        .filter(binds)
        .map(|rule| Binding::whole(rule, "f32"))
        .collect();
    assert!(rules.len() >= 6, "gates of f32");
    let verdicts = judge(&rules, &summaries).expect("verdicts");
    let failed = verdicts.into_iter().filter(Verdict::fails);
    failed
        .map(|verdict| format!("{} {} {}", verdict.rule.phase, verdict.rule.metric, verdict.rule.at))
        .collect()
}

/// Hands everything on, and changes decisions before.
struct Overruled<'a, F> {
    numerics: &'a mut dyn Numerics<f32>,
    change: F,
}

impl<F: FnMut(&Site, &mut Choice<f32>)> Numerics<f32> for Overruled<'_, F> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        self.numerics.site(site, tensor);
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<f32>) {
        (self.change)(site, choice);
        self.numerics.choice(site, choice);
    }
}

const IN_PARTS: Event = |model, x, state, event, numerics| {
    let decisions = model.exchange(x, state, event, numerics)?;
    (0..model.config().k_ffn).try_for_each(|_| model.ffn(x, state, event, numerics))?;
    Ok(decisions)
};

const OTHER_LANE_RULE: Event = |model, x, state, event, numerics| {
    let before = state.map.clone();
    let decisions = model.event(x, state, event, numerics)?;
    for (row, map) in before.into_iter().enumerate().filter(|(row, _)| decisions.gate[*row]) {
        state.map[row] = LaneRule::MoveToFront.update(map, usize::from(decisions.bank[row]));
    }
    Ok(decisions)
};

const NO_WRITE_BACK: Event = |model, x, state, event, numerics| {
    let ram = state.ram.clone();
    let decisions = model.event(x, state, event, numerics)?;
    state.ram = ram;
    Ok(decisions)
};

const STALE_MAP: Event = |model, x, state, event, numerics| {
    let map = state.map.clone();
    let decisions = model.event(x, state, event, numerics)?;
    state.map = map;
    Ok(decisions)
};

const THRESHOLD_OF_A_BF16_SIGMOID: Event = |model, x, state, event, numerics| {
    let change = |site: &Site, choice: &mut Choice<f32>| {
        if site.name == "router.gate" {
            let rows = choice.indices.iter_mut().zip(choice.scores.data.chunks_exact(2));
            rows.for_each(|(index, scores)| *index = i32::from(scores[1] > 1.0 / 128.0));
        }
    };
    model.event(x, state, event, &mut Overruled { numerics, change })
};

/// Banks are chosen on what comes in.
const ROUTER_AFTER_EXCHANGE: Event = |model, x, state, event, numerics| {
    let (mut after, mut other) = (x.clone(), state.clone());
    model.exchange(&mut after, &mut other, event, &mut Plain)?;
    let late = model.exchange(&mut after, &mut other, event, &mut Plain)?;
    let change = |site: &Site, choice: &mut Choice<f32>| {
        if site.name == "router.bank" {
            choice.indices = late.bank.iter().map(|&bank| i32::from(bank)).collect();
        }
    };
    model.event(x, state, event, &mut Overruled { numerics, change })
};

const TOO_LARGE: Event = |model, x, state, event, numerics| {
    let decisions = model.event(x, state, event, numerics)?;
    x.data.iter_mut().for_each(|x| *x *= 1.001);
    Ok(decisions)
};

#[test]
fn what_is_right_passes() {
    assert_eq!(failing(Model::event), Vec::<String>::new());
    assert_eq!(failing(IN_PARTS), Vec::<String>::new());
}

#[test]
fn faults_are_noticed_by_gates() {
    let cases: [(&str, Event, &str); 6] = [
        (
            "the other lane rule",
            OTHER_LANE_RULE,
            "cumulative lane_distance *.lanes.1",
        ),
        ("no write-back", NO_WRITE_BACK, "cumulative relative_l2 *.delta.1"),
        ("a stale map", STALE_MAP, "cumulative lane_distance *.lanes.1"),
        (
            "a threshold of 2^-7",
            THRESHOLD_OF_A_BF16_SIGMOID,
            "local flips_outside *.decisions.*",
        ),
        (
            "a router after the exchange",
            ROUTER_AFTER_EXCHANGE,
            "local flips_outside *.decisions.*",
        ),
        ("x a thousandth too large", TOO_LARGE, "local relative_l2 plain.x.*"),
    ];
    for (fault, event, gate) in cases {
        let found = failing(event);
        println!("{fault}: {found:?}");
        assert!(found.iter().any(|failed| failed == gate), "{fault}: {found:?}");
    }
}

/// f16 under powers of two has TF32's eleven significant bits wherever a number is within 2^-29 of its block's largest.
#[test]
fn f16_under_powers_of_two_is_tf32() {
    let codec = codec("f16/b32:e8m0").expect("a format");
    let mut x: Vec<f32> = (0..1 << 16)
        .map(|i: i32| ((i * 7919 % 65521) as f32 / 65521.0 - 0.5) * 10f32.powi(i / 32 % 9 - 4))
        .collect();
    let tf32 = |x: f32| {
        let (bits, half) = (x.to_bits(), 0xfff);
        f32::from_bits((bits + half + (bits >> 13 & 1)) & !0x1fff)
    };
    let want: Vec<f32> = x.iter().map(|&x| tf32(x)).collect();
    codec.round(&mut x, 1024);
    assert!(x.iter().zip(&want).all(|(got, want)| got.to_bits() == want.to_bits()));
}
