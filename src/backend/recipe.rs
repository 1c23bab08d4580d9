//! The roundings of a recipe, in the form of experiment files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Round what passes at some sites.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Site pattern; `*` matches one name between dots or a part of it, `**` any number of names.
    pub at: String,
    /// A KV record (`v4_fp8`), a named format (`nvfp4`) or a format string (`e2m1/b16:e4m3/t:f32`).
    pub format: String,
    /// Only some channels: `nope` or `rope`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Segment>,
    /// Only one reader of the tensor: `key` or `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Reader>,
    /// Only some layers, e.g. `"0-9,30"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<String>,
    /// Rotate by a Hadamard matrix before rounding, and leave the tensor rotated.
    #[serde(default)]
    pub hadamard: bool,
}

/// Some channels of a KV vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Segment {
    /// The channels without position.
    Nope,
    /// The trailing channels that RoPE rotates.
    Rope,
}

/// One reader of a KV vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reader {
    Key,
    Value,
}
