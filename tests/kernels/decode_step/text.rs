//! A text that kernels have read, passed at the sites as the reference passes it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use reference::paths::deepseek_v4::{Config, Model};
use reference::{Choice, Numerics, Site, Tensor};
use ulplab::dataset::Checkpoint;
use ulplab_decode_step::{Formats, Reading};

use super::super::datasets;
use super::{outputs_of, read_of_records, weights};

/// What passes at the sites, before it is stored; rows of later calls follow those of earlier ones.
struct Passed {
    tensors: HashMap<String, Tensor<f32>>,
    choices: HashMap<String, Vec<i32>>,
    formats: Formats<'static>,
}

impl Passed {
    fn new(formats: Formats<'static>) -> Self {
        Self {
            tensors: HashMap::new(),
            choices: HashMap::new(),
            formats,
        }
    }
}

impl Numerics<f32> for Passed {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        match self.tensors.entry(site.to_string()) {
            Entry::Vacant(place) => _ = place.insert(tensor.clone()),
            Entry::Occupied(mut place) => {
                place.get_mut().shape[0] += tensor.shape[0];
                place.get_mut().data.extend(&tensor.data);
            }
        }
        read_of_records(self.formats, site, tensor);
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<f32>) {
        let mut indices = choice.indices.clone();
        for row in indices.chunks_exact_mut(choice.k) {
            row.sort_unstable();
        }
        self.choices.entry(site.to_string()).or_default().extend(indices);
    }
}

/// What kernels leave passes the sites as in the reference, in the same shapes.
#[test]
fn decode_step_passes_a_text_as_the_reference_does() {
    let folder = datasets().checkpoint("dsv4-mini").unwrap();
    // One heavy entry, of 128 tokens.
    let text = b"First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n\
        First Citizen:\nYou are all resolved rather to die";
    let ids: Vec<u32> = text.iter().map(|byte| u32::from(*byte)).collect();
    assert!(ids.len() >= 128);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config: Config = serde_json::from_str(&config).unwrap();
    let model: Model<f32> = Model::load(config, &mut Checkpoint::open(&folder).unwrap()).unwrap();
    let formats = Formats::F32.with_record("v4_fp8");
    let reading = Reading {
        folder: &folder,
        ids: &ids,
        formats,
    };
    let (_, problem) = reading.problem().unwrap();
    let mut want = Passed::new(formats);
    let mut state = model.state();
    for id in &ids {
        model.run(&mut state, &[*id], &mut want).unwrap();
    }
    let mut got = Passed::new(Formats::F32);
    let left = outputs_of(&model, &problem, formats, &[]);
    let logits = reading.pass(&left, &mut got).unwrap();
    got.tensors.insert("logits".into(), logits);
    assert_eq!((got.tensors.len(), got.choices.len()), (61 * 9 + 29 * 2 + 1, 29 + 58));
    for (site, tensor) in &got.tensors {
        assert!(*tensor == want.tensors[site], "{formats:?} {site}: {:?}", tensor.shape);
    }
    for (site, choice) in &got.choices {
        assert_eq!(*choice, want.choices[site], "{formats:?} {site}");
    }
}

/// FP8 weights are the checkpoint's own codes and scales, so that kernels read the very weights of the reference; 4-bit experts are others.
#[test]
fn decode_step_keeps_the_codes_of_a_checkpoint() {
    let folder = datasets().checkpoint("dsv4-mini").unwrap();
    let problem = |weights| {
        let (ids, formats) = (&[65], Formats::F32.with_weights(weights));
        let reading = Reading {
            folder: &folder,
            ids,
            formats,
        };
        reading.problem().unwrap().1
    };
    let [plain, fp8, mxfp4] = ["f32", "fp8_b64_f32", "fp8_b64_f32+mxfp4"].map(problem);
    let stored = plain
        .buffers
        .iter()
        .filter_map(|buffer| buffer.name.strip_suffix("_scales"));
    let stored: Vec<&str> = stored.collect();
    assert_eq!(stored.len(), 19);
    for name in stored {
        let own = weights::read(&plain, name);
        assert!(own == weights::read(&fp8, name), "{name}");
        let same = own == weights::read(&mxfp4, name);
        assert_eq!(same, !["gate_up", "down"].contains(&name), "{name}");
    }
}
