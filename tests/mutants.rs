//! Broken on purpose: the default gates of `experiments/smoke.toml` must catch what a wrong kernel would do to a cache.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use reference::paths::{Input, Model};
use reference::{Choice, Numerics, Plain, Role, Site, Tensor};
use ulplab::backend::rounding::Rounding;
use ulplab::dataset::{Checkpoint, Manifest};
use ulplab::experiment::Rule;
use ulplab::experiment::file::ExperimentFile;
use ulplab::formats::{Codec, Encoded, codec};
use ulplab::gate::{Binding, judge};
use ulplab::record::{Phase, Record};
use ulplab::run::summary::summarize;
use ulplab::run::verdict::Verdict;
use ulplab::studies;
use ulplab::studies::model::probe::{Probe, Recorder, Trace};

/// A cache of one record whose bytes are damaged between write and read.
struct Cache<'a> {
    codec: Arc<dyn Codec>,
    damage: fn(&mut [u8]),
    probe: Probe<'a, f32>,
}

impl Numerics<f32> for Cache<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if site.name.starts_with("attention.kv.") {
            let mut encoded: Encoded = self.codec.encode(&tensor.data, tensor.cols());
            encoded.parts.iter_mut().for_each(|part| (self.damage)(&mut part.bytes));
            self.codec.decode(&encoded, &mut tensor.data);
        }
        self.probe.site(site, tensor);
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<f32>) {
        self.probe.choice(site, choice);
    }
}

struct Setting {
    model: Box<dyn Model<f32>>,
    ids: Vec<u32>,
    want: Trace<f32>,
    rules: Vec<Rule>,
}

fn setting() -> &'static Setting {
    static SETTING: OnceLock<Setting> = OnceLock::new();
    SETTING.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let datasets = Manifest::load(&root.join("datasets")).unwrap();
        let mut checkpoint = Checkpoint::open(&datasets.checkpoint("dsv4-mini").unwrap()).unwrap();
        let model = checkpoint.load().unwrap();
        let file = root.join("experiments/smoke.toml");
        let asked = studies::parse(&ExperimentFile::read(&file, &[]).unwrap()).unwrap();
        let window = &asked.study.reading().windows[0];
        let text = datasets.text(&window.text, window.offset, 136).unwrap();
        let ids: Vec<u32> = text.into_iter().map(u32::from).collect();
        let mut recorder = Recorder::new(Plain, model.config().path());
        let mut state = model.state(Vec::new()).unwrap();
        let logits = model.run(&mut *state, Input::Ids(&ids), &mut recorder).unwrap();
        Setting {
            want: recorder.finish(logits),
            model,
            ids,
            rules: asked.experiment.head.gates,
        }
    })
}

/// Runs a damaged cache in both phases and gives what the gates on its record say.
fn verdicts(record: &str, damage: fn(&mut [u8])) -> Vec<Verdict> {
    let setting = setting();
    let exact = Rounding::default();
    let mut records = Vec::new();
    for phase in [Phase::Local, Phase::Cumulative] {
        let who = Record::blank(&format!("{record}/{phase}/test"), record, phase, "test");
        let probe = Probe::new(&exact, &setting.want, who);
        let mut cache = Cache {
            codec: codec(record).unwrap(),
            damage,
            probe,
        };
        let mut state = setting.model.state(Vec::new()).unwrap();
        let ids = Input::Ids(&setting.ids);
        let logits = setting.model.run(&mut *state, ids, &mut cache).unwrap();
        records.extend(cache.probe.finish(&logits, &setting.ids));
    }
    let binds = |rule: &&Rule| {
        rule.recipes
            .iter()
            .any(|pattern| ulplab::pattern::matches(pattern, record))
    };
    let rules: Vec<_> = setting
        .rules
        .iter()
        .filter(binds)
        .map(|rule| Binding::whole(rule, record))
        .collect();
    assert!(!rules.is_empty(), "no gate binds {record}");
    judge(&rules, &summarize(&records)).unwrap()
}

#[track_caller]
fn caught(record: &str, damage: fn(&mut [u8])) {
    let verdicts = verdicts(record, damage);
    let said: Vec<&str> = verdicts.iter().map(|verdict| verdict.message.as_str()).collect();
    assert!(verdicts.iter().any(Verdict::fails), "no gate noticed: {said:?}");
}

/// Bytes of 64 tokens: a data region of `row` bytes each, then scales; the stride of a page is `stride`.
fn pages(bytes: &mut [u8], stride: usize, change: impl FnMut(&mut [u8])) {
    bytes.chunks_mut(stride).for_each(change);
}

const FP8: (&str, usize, usize) = ("v4_fp8", 576 * 64, 37440);
const FP4: (&str, usize, usize) = ("v4_nvfp4", 352 * 64, 384 * 64);

#[test]
fn whole_records_pass() {
    for record in [FP8.0, FP4.0] {
        let verdicts = verdicts(record, |_| {});
        assert!(verdicts.iter().all(Verdict::passes), "{verdicts:?}");
    }
}

#[test]
fn swapped_nibbles() {
    caught(FP4.0, |bytes| {
        pages(bytes, FP4.2, |page| {
            let rows = page[..FP4.1].chunks_exact_mut(352);
            rows.for_each(|row| row[..224].iter_mut().for_each(|byte| *byte = byte.rotate_left(4)));
        });
    });
}

#[test]
fn a_scale_byte_off_by_one() {
    // One of the seven scales of a token: its block comes back doubled.
    caught(FP8.0, |bytes| {
        pages(bytes, FP8.2, |page| {
            page[FP8.1..].chunks_exact_mut(8).for_each(|scales| scales[3] += 1)
        });
    });
    // Every scale one code up, which no cosine would see.
    caught(FP4.0, |bytes| {
        pages(bytes, FP4.2, |page| {
            page[FP4.1..]
                .chunks_exact_mut(32)
                .for_each(|scales| scales[..28].iter_mut().for_each(|scale| *scale += 1));
        });
    });
}

#[test]
fn scales_of_the_next_block() {
    for record in [FP8, FP4] {
        let damage: fn(&mut [u8]) = if record == FP8 {
            |bytes| {
                pages(bytes, FP8.2, |page| {
                    page[FP8.1..].chunks_exact_mut(8).for_each(|s| s[..7].rotate_left(1))
                })
            }
        } else {
            |bytes| {
                pages(bytes, FP4.2, |page| {
                    page[FP4.1..].chunks_exact_mut(32).for_each(|s| s[..28].rotate_left(1))
                })
            }
        };
        caught(record.0, damage);
    }
}

#[test]
fn rope_channels_of_the_next_token() {
    caught(FP8.0, |bytes| {
        pages(bytes, FP8.2, |page| {
            let tokens = FP8.1 / 576;
            let first: Vec<u8> = page[448..576].to_vec();
            for token in 0..tokens - 1 {
                page.copy_within((token + 1) * 576 + 448..(token + 2) * 576, token * 576 + 448);
            }
            page[(tokens - 1) * 576 + 448..tokens * 576].copy_from_slice(&first);
        });
    });
}

#[test]
fn rope_channels_big_endian() {
    caught(FP8.0, |bytes| {
        pages(bytes, FP8.2, |page| {
            let rows = page[..FP8.1].chunks_exact_mut(576);
            rows.for_each(|row| row[448..].chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1)));
        });
    });
}

/// A role the probe does not know of must not hide a tensor from it.
#[test]
fn a_nan_in_the_cache_is_counted() {
    let setting = setting();
    let exact = Rounding::default();
    struct Poison<'a>(Probe<'a, f32>);
    impl Numerics<f32> for Poison<'_> {
        fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
            if site.name == "attention.kv.window" && site.layer == Some(5) && site.role == Role::Both {
                tensor.data[3] = f32::NAN;
            }
            self.0.site(site, tensor);
        }
    }
    let who = Record::blank("x/cumulative/test", "x", Phase::Cumulative, "test");
    let mut poison = Poison(Probe::new(&exact, &setting.want, who));
    let mut state = setting.model.state(Vec::new()).unwrap();
    let logits = setting
        .model
        .run(&mut *state, Input::Ids(&setting.ids), &mut poison)
        .unwrap();
    let records = poison.0.finish(&logits, &setting.ids);
    let find = |layer, site: &str, metric: &str| {
        records
            .iter()
            .find(|r| r.layer == layer && r.site == site && r.metric == metric)
            .unwrap()
            .value
    };
    assert_eq!(find(Some(5), "attention.kv.window", "nonfinite"), 1.0);
    assert!(find(Some(5), "output", "cosine").is_nan());
    assert!(find(None, "logits", "kl").is_nan());
    assert_eq!(find(Some(4), "output", "relative_l2"), 0.0);
}
