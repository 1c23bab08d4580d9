//! Test cases of the decode step. A case sets the sizes and storage formats of the model, and the positions at which the
//! sequences of the batch begin.

use super::formats::{Formats, SIXTEEN, WEIGHTS};
use super::index::INDEX_RECORDS;
use super::large;
use super::projections::ACTIVATIONS;
use super::sizes::Sizes;
use super::weights::Source;
use ulplab_core::formats::RECORDS;
use ulplab_operations::ops::{Case, Data, Inputs};

/// A test case of `runs` decode steps. `starts` holds the number of tokens that each sequence (row) has read before the first
/// step; −1 marks a padding row.
pub(super) struct Plan {
    pub name: &'static str,
    pub starts: &'static [i64],
    pub runs: usize,
    /// Number of token positions that the KV caches can hold.
    pub positions: usize,
    pub inputs: Inputs,
    pub timed: bool,
    /// Sizes of the model, if its weights are random.
    pub size: Size,
    pub formats: Formats<'static>,
}

/// Sizes of models with random weights.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Size {
    /// Small sizes, all different from each other.
    Small,
    /// Fewer layers and more experts than [`Self::Small`], and as many channels as V4-Flash, so that every warp of a fused
    /// launch has work to do.
    Wide,
    /// The sizes of DeepSeek-V4-Flash; the rows of the weights repeat, to save memory.
    Flash,
}

const SMALL: Plan = Plan {
    name: "small.b3",
    starts: &[0, 5, 20],
    runs: 16,
    positions: 42,
    inputs: Inputs::Random,
    timed: false,
    size: Size::Small,
    formats: Formats::F32,
};
const PADDED: Plan = Plan {
    name: "small.b5.padding",
    starts: &[-1, 13, -1, 2, 13],
    runs: 4,
    positions: 21,
    ..SMALL
};
const TRAINED: Plan = Plan {
    name: "model.b3",
    starts: &[0, 110, 119],
    runs: 22,
    positions: 384,
    inputs: Inputs::Weights,
    ..SMALL
};
/// Timed cases of the trained model: one row after 511 tokens, and 64 rows after 127 tokens.
const TIMED: [Plan; 2] = [
    Plan {
        name: "model.b1.511",
        starts: &[511],
        runs: 1,
        positions: 512,
        timed: true,
        ..TRAINED
    },
    Plan {
        name: "model.b64.127",
        starts: &[127; 64],
        runs: 1,
        positions: 128,
        timed: true,
        ..TRAINED
    },
];

/// V4-Flash at the last of 32,768 tokens: this token completes a window in every compressor.
const FLASH: [(&str, &[i64]); 3] = [
    ("flash.b1", &[32_767]),
    ("flash.b8", &[32_767; 8]),
    ("flash.b64", &[32_767; 64]),
];

/// Returns all cases. The small model is run with every format of KV records and every storage of weights, the trained model with
/// some of these.
pub(super) fn plans() -> Vec<Plan> {
    let many = Plan {
        name: "model.b9",
        starts: &[1, 3, 4, 62, 63, 64, 126, 127, 509],
        runs: 3,
        positions: 512,
        ..TRAINED
    };
    let records = RECORDS.iter().filter(|record| record.dim == RECORD_KEYS[0]);
    let records = records.map(|record| Formats::F32.with_record(record.name));
    let weights = WEIGHTS[1..].iter().map(|weights| Formats::F32.with_weights(weights));
    let [.., fp8, mxfp4, nvfp4] = WEIGHTS;
    let [index_fp8, index_mxfp4] = INDEX_RECORDS;
    let fp8_keys = Formats::F32.with_record("v4_fp8");
    let nvfp4_keys = Formats::F32.with_record("v4_nvfp4");
    let several = [
        fp8_keys.with_weights(fp8),
        nvfp4_keys.with_weights(nvfp4),
        fp8_keys.with_index(index_fp8).with_weights(mxfp4),
        nvfp4_keys.with_index(index_mxfp4),
    ];
    let eight = Formats::F32.with_activations(ACTIVATIONS[0]);
    let of_eight = [
        eight,
        eight.with_record("v4_fp8").with_weights(mxfp4),
        eight.with_record("v4_nvfp4").with_index(index_fp8),
    ];
    let small = records.chain(weights).chain(several).chain(of_eight);
    let small = small.map(|formats| Plan { formats, ..SMALL });
    let sixteen = Formats::F32.with_activations(ACTIVATIONS[1]).with_weights(SIXTEEN);
    let of_sixteen = [("v4_fp8", index_fp8), ("v4_nvfp4", index_mxfp4), ("v4_bf16", index_fp8)];
    let of_sixteen = of_sixteen.map(|(record, index)| sixteen.with_record(record).with_index(index));
    // The second row completes its first window of 128 tokens, the third row its second window.
    let in_sixteen = of_sixteen.map(|formats| Plan {
        starts: &[0, 125, 253],
        runs: 6,
        positions: 300,
        formats,
        ..SMALL
    });
    let wide = of_sixteen[..2].iter().map(|formats| Plan {
        name: "wide.b2",
        starts: &[0, 3],
        runs: 2,
        positions: 130,
        size: Size::Wide,
        formats: *formats,
        ..SMALL
    });
    let padded = [fp8_keys, nvfp4_keys.with_index(index_mxfp4), eight, of_sixteen[0]];
    let padded = padded.map(|formats| Plan { formats, ..PADDED });
    let in_eight = [
        eight.with_weights(fp8),
        eight.with_record("v4_fp8").with_index(index_fp8).with_weights(mxfp4),
    ];
    let trained = [fp8_keys, nvfp4_keys].into_iter().chain(several).chain(in_eight);
    let trained = trained.map(|formats| Plan {
        starts: &[0, 123, 254],
        runs: 6,
        formats,
        ..TRAINED
    });
    let timed = TIMED.map(|plan| Plan {
        formats: Formats::F32.with_weights(fp8),
        ..plan
    });
    let flash = FLASH.map(|(name, starts)| Plan {
        name,
        starts,
        runs: 1,
        positions: 1 + starts[0] as usize,
        timed: true,
        size: Size::Flash,
        formats: of_sixteen[0],
        ..SMALL
    });
    let drawn = small.chain(in_sixteen).chain(wide).chain(padded).chain(flash);
    [SMALL, PADDED, TRAINED, many]
        .into_iter()
        .chain(TIMED)
        .chain(drawn)
        .chain(trained)
        .chain(timed)
        .collect()
}

/// Sizes of the small model: channels of a key, channels of a key that RoPE rotates, channels of an index key. [`RECORD_KEYS`]
/// replace these sizes if keys are records, and [`INDEX_KEYS`] if index keys are also records.
const SMALL_KEYS: [usize; 3] = [24, 8, 16];
/// Same as [`SMALL_KEYS`], for cases in which the projections of attention take 8-bit codes. Rows are then multiples of 16
/// columns, and have one block of 128 columns and a partial block.
const EIGHT_KEYS: [usize; 3] = [80, 8, 16];
const RECORD_KEYS: [usize; 3] = [512, 8, 16];
const INDEX_KEYS: [usize; 3] = [512, 8, 128];

impl Plan {
    pub fn of(case: &Case) -> Result<Self, String> {
        let found = plans().into_iter().find(|plan| plan.name() == case.name);
        found.ok_or_else(|| format!("no case '{}'", case.name))
    }

    pub fn name(&self) -> String {
        self.formats.keys().1 + self.name
    }

    /// Returns the model's weights: an opened checkpoint, or a seed from which random weights are generated on demand.
    pub fn source(&self, data: &Data) -> Result<Source, String> {
        match self.inputs {
            Inputs::Weights => Source::open(data.checkpoint()?, self.formats.storages()?),
            _ => self.drawn(data.seed()),
        }
    }

    pub fn drawn(&self, seed: u64) -> Result<Source, String> {
        let keys = match self.formats.flags() {
            [_, true, ..] => INDEX_KEYS,
            [true, false, ..] => RECORD_KEYS,
            [false, false, true, _] => EIGHT_KEYS,
            [false, false, false, _] => SMALL_KEYS,
        };
        let storages = self.formats.storages()?;
        Ok(match self.size {
            Size::Flash => Source::repeated(seed, large::config(self.starts.len()), storages),
            size => Source::drawn(seed, keys, storages, size == Size::Wide),
        })
    }

    /// Returns the named sizes of the case, given the sizes of the model; `banks` is the number of layers with their own experts.
    pub fn dims(&self, sizes: &Sizes, banks: usize) -> Result<Vec<(&'static str, i64)>, String> {
        sizes.dims([self.starts.len(), self.runs, self.positions], self.formats, banks)
    }
}
