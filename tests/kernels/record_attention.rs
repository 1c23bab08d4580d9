use safetensors::Dtype;
use ulplab::formats::{Encoded, PAGE, Part, codec, element};
use ulplab::ops::{Case, Problem};

use super::{accepts_only, buffer, integers, problems, stored, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// The denominator lacks the sink.
    NoSink,
    /// Slots behind the count are read.
    AllSlots,
    /// A slot of −1 in the list of a window reads slot 0.
    NoneRead,
    /// The newest entry is not read.
    LastLost,
    /// Scores are rounded to bf16.
    ScoresRounded,
    /// Probabilities have the three fraction bits of E4M3.
    ThreeBits,
    /// An epsilon in the denominator.
    Epsilon,
}

/// The decoded keys of a part, its slots, and what says which a row reads.
struct Keys {
    decoded: Vec<f32>,
    of_row: usize,
    listed: bool,
    places: usize,
    slots: Vec<i32>,
    count: Vec<i32>,
}

impl Keys {
    fn new(case: &Case, problem: &Problem, names: [&str; 6]) -> Self {
        let [pages, slots, count, own, listed, places] = names;
        let buffer = buffer(problem, pages);
        let stride = *buffer.shape.last().unwrap();
        let rows = buffer.bytes.len() / stride * PAGE;
        let part = Part {
            name: "pages",
            dtype: Dtype::U8,
            shape: vec![rows / PAGE, stride],
            bytes: buffer.bytes.clone(),
        };
        let mut decoded = vec![0.0; rows * 512];
        let encoded = Encoded {
            rows,
            cols: 512,
            parts: vec![part],
        };
        codec(case.key("record")).unwrap().decode(&encoded, &mut decoded);
        Self {
            decoded: decoded.into_iter().map(|x| half::bf16::from_f32(x).to_f32()).collect(),
            of_row: case.dim(own) * PAGE,
            listed: case.dim(listed) == 1,
            places: case.dim(places),
            slots: integers(problem, slots),
            count: integers(problem, count),
        }
    }

    fn of(&self, row: usize, mistake: Mistake) -> Vec<&[f32]> {
        let count = match (mistake, self.count[row]) {
            (Mistake::AllSlots, 1..) => self.places,
            (_, count) => count as usize,
        };
        let slot = |place: usize| match self.listed {
            true if mistake == Mistake::NoneRead => Some(self.slots[row * self.places + place].max(0) as usize),
            true => usize::try_from(self.slots[row * self.places + place]).ok(),
            false => Some(place),
        };
        let slots = (0..count).filter_map(slot);
        slots
            .map(|slot| &self.decoded[(row * self.of_row + slot) * 512..][..512])
            .collect()
    }
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let [b, h] = ["B", "H"].map(|dim| case.dim(dim));
    let bf16 = case.key("dtype") == "bf16";
    let [q, sinks] = ["q", "sinks"].map(|name| values(problem, name));
    let window = [
        "window_pages",
        "window_slots",
        "window_count",
        "window_own",
        "window_listed",
        "Wn",
    ];
    let parts =
        [window, ["pages", "slots", "count", "own", "listed", "K"]].map(|names| Keys::new(case, problem, names));
    let mut out = vec![0.0; b * h * 512];
    for (at, out) in out.chunks_exact_mut(512).enumerate() {
        let (row, head) = (at / h, at % h);
        let mut keys = parts[0].of(row, mistake);
        let of_window = mistake == Mistake::NoneRead;
        let entries = parts[1].of(row, if of_window { Mistake::None } else { mistake });
        keys.extend(entries);
        if mistake == Mistake::LastLost {
            keys.pop();
        }
        let query = &q[at * 512..][..512];
        let score = |key: &&[f32]| {
            let score = query.iter().zip(*key).map(|(q, k)| q * k).sum::<f32>() / 512f32.sqrt();
            match mistake {
                Mistake::ScoresRounded => half::bf16::from_f32(score).to_f32(),
                _ => score,
            }
        };
        let scores: Vec<f32> = keys.iter().map(score).collect();
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let top = if top.is_finite() { top } else { 0.0 };
        let weights: Vec<f32> = scores.iter().map(|score| (score - top).exp()).collect();
        let mut sum = weights.iter().sum::<f32>();
        match mistake {
            Mistake::NoSink => {}
            Mistake::Epsilon => sum += (sinks[head] - top).exp() + 0.05 * sum,
            _ => sum += (sinks[head] - top).exp(),
        }
        for (weight, key) in weights.iter().zip(&keys) {
            let weight = match mistake {
                Mistake::ThreeBits => f32::from_bits(weight.to_bits().wrapping_add(1 << 19) & !((1 << 20) - 1)),
                _ if bf16 => half::bf16::from_f32(*weight).to_f32(),
                _ => *weight,
            };
            if sum != 0.0 {
                out.iter_mut().zip(*key).for_each(|(out, x)| *out += weight / sum * x);
            }
        }
    }
    stored(bf16, &out)
}

#[test]
fn record_attention_wants_one_softmax_over_decoded_records() {
    for (case, problem) in &problems("record_attention") {
        if case.dim("B") * case.dim("H") * (case.dim("Wn") + case.dim("K")) > 1 << 16 {
            continue;
        }
        let right = outputs(case, problem, Mistake::None);
        accepts_only(case, problem, &[("out", right.clone())]);
        let bf16 = case.key("dtype") == "bf16";
        // Mistakes in what is done with the decoded numbers are the same whatever they were decoded from.
        if !["v4_fp8", "v4_bf16"].contains(&case.key("record")) {
            continue;
        }
        for mistake in [
            Mistake::NoSink,
            Mistake::AllSlots,
            Mistake::NoneRead,
            Mistake::LastLost,
            Mistake::ScoresRounded,
            Mistake::ThreeBits,
            Mistake::Epsilon,
        ] {
            let wrong = outputs(case, problem, mistake);
            // Where all slots are read and all keys are needed, there is nothing to get wrong; what is rounded is told by many keys, in
            // scores that are not extreme.
            let rounded = matches!(mistake, Mistake::ScoresRounded | Mistake::ThreeBits);
            if wrong == right || rounded && (!case.name.contains("w128") || case.name.contains("edges")) {
                continue;
            }
            let found = violations(problem, vec![("out", wrong)]);
            assert!(found >= 1.0, "{} ({bf16}): {mistake:?}", case.name);
        }
    }
}

/// `Run::decode` of `kernels/record_attention/keys.cuh`, where it takes codes for bfloat16.
#[test]
fn e4m3_codes_four_bits_up_are_bf16_that_one_product_decodes() {
    let [codes, scales] = ["e4m3", "e8m0"].map(|name| element(name).unwrap());
    for scale in 0..=134u16 {
        let by = half::bf16::from_bits((scale + 120) << 7);
        assert!(by.is_finite(), "2^120 times the scale {scale}");
        for code in (0..=255u16).filter(|code| code & 0x7f != 0x7f) {
            let moved = half::bf16::from_bits((code + (code & 0x80) * 15) * 16);
            // The product of two numbers of eight bits is exact in f32, and rounded once.
            let got = half::bf16::from_f32(moved.to_f32() * by.to_f32());
            let want = half::bf16::from_f32(codes.decode(code) * scales.decode(scale));
            assert_eq!(got.to_bits(), want.to_bits(), "code {code}, scale {scale}");
        }
    }
}
