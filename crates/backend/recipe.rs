//! The rounding steps of a recipe (the formats in which an experiment stores tensors), as they are written in an experiment file.

use std::fmt;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One rounding step: rounds the tensors at some sites of the model to a format. Steps apply in their order: where two steps
/// cover a tensor, the second step rounds the result of the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Pattern of site names. `*` matches one name between dots or a part of such a name; `**` matches any number of names.
    pub at: String,
    /// Number format: a KV-cache record (`v4_fp8`), a named format (`nvfp4`) or a format string (`e2m1/b16:e4m3/t:f32`).
    pub format: String,
    /// Rounds only the channels without RoPE (`nope`), or only the channels with RoPE (`rope`).
    pub segment: Option<Segment>,
    /// Rounds a KV vector only where attention reads it as `key`, or only where attention reads it as `value`.
    pub role: Option<Reader>,
    /// Rounds only in these layers, e.g. `"0-9,30"`.
    pub layers: Option<String>,
    /// Rounds only these channels of every row, e.g. `"0-63,448"`. The whole tensor is encoded, but only these channels of the
    /// result are used.
    pub channels: Option<String>,
    /// Rounds only the tokens at these positions in the window, e.g. `"100-199"`; in a compressed cache, only these entries. The
    /// whole tensor is encoded, but only these rows of the result are used.
    pub tokens: Option<String>,
    /// Rotates the tensor by a Hadamard matrix before rounding. The tensor stays rotated.
    #[serde(default)]
    pub hadamard: bool,
    /// Storage of a token's heads; by default, each head is a row.
    pub heads: Option<Heads>,
    /// Layout of a recurrent state's matrices: `kv` by default.
    pub layout: Option<Layout>,
}

/// Layout of a recurrent state's matrices: decides which numbers are neighbours in a row and so share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// `[K, V]`: a row is a key channel, with all value channels.
    Kv,
    /// `[V, K]`: a row is a value channel, with all key channels.
    Vk,
}

/// Storage of a token's heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Heads {
    /// All heads of a token are one row. A scale per token covers all heads; a scale per channel covers one channel of one head.
    Joined,
    /// Each head is a separate tensor. A scale per tensor covers one head; a scale per channel covers one channel of one head.
    Apart,
}

/// The channels of a KV vector without or with RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Segment {
    /// The channels without position.
    Nope,
    /// The trailing channels that RoPE rotates.
    Rope,
}

/// One use of a KV vector in attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reader {
    Key,
    Value,
}

/// A set of whole numbers, written as ranges: `"0-9,30"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges(Vec<RangeInclusive<usize>>);

impl Ranges {
    /// Parses numbers below `count`; `usize::MAX` means no limit. `one` and `many` are the nouns for error messages, e.g. `layer`
    /// and `layers`.
    ///
    /// # Errors
    /// Returns an error if a part is not a number or a range, if a range descends, or if a number is not below `count`.
    pub fn parse(text: &str, count: usize, one: &str, many: &str) -> Result<Self, String> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                let read = text.trim().parse::<usize>();
                read.map_err(|_| format!("'{part}' is not a {one} or a range of {many} like '0-9'"))
            };
            let (first, last) = (number(first)?, number(last)?);
            match first > last || last >= count {
                true if count == usize::MAX => Err(format!("{many} '{part}' are not in order")),
                true if first > last => Err(format!(
                    "{many} '{part}' are not in order; the first of a range comes first"
                )),
                true => Err(format!(
                    "{many} '{part}': there is no {one} {last}; expected numbers from 0 to {}",
                    count - 1
                )),
                false => Ok(first..=last),
            }
        };
        let ranges = text.split(',').map(|part| range(part.trim()));
        Ok(Self(ranges.collect::<Result<_, _>>()?))
    }

    /// Builds the set of `numbers`, which must be in ascending order.
    pub fn of(numbers: impl IntoIterator<Item = usize>) -> Self {
        let mut ranges: Vec<RangeInclusive<usize>> = Vec::new();
        for number in numbers {
            match ranges.last_mut().filter(|last| *last.end() + 1 == number) {
                Some(last) => *last = *last.start()..=number,
                None => ranges.push(number..=number),
            }
        }
        Self(ranges)
    }

    /// True if the set contains `number`.
    pub fn contains(&self, number: usize) -> bool {
        self.0.iter().any(|range| range.contains(&number))
    }

    /// Returns the largest number of the set; `None` if the set is empty.
    pub fn last(&self) -> Option<usize> {
        self.0.iter().map(|range| *range.end()).max()
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.0.iter().enumerate() {
            f.write_str(if at > 0 { "," } else { "" })?;
            match range.start() == range.end() {
                true => write!(f, "{}", range.start())?,
                false => write!(f, "{}-{}", range.start(), range.end())?,
            }
        }
        Ok(())
    }
}
