//! Number formats: elements, scales, blocks, KV-cache records.
//!
//! Every format and record is a [`Codec`]. [`codec`] returns the codec for the name of a record (`v4_fp8`), the name of a format
//! (`nvfp4`) or a format string (`e2m1/b16:e4m3/t:f32`). Rounding always goes through the stored bytes.
//!
//! These tables list all formats: [`ELEMENTS`], [`CASTS`], the scale rules [`POWER_RULES`], [`F32_RULES`], [`HALF_RULES`],
//! [`AFFINE_RULES`] and [`NVFP4_RULES`], the named formats [`FORMATS`], and the KV-cache records [`RECORDS`].

mod amax;
mod block;
mod cast;
mod codebook;
mod codec;
mod codes;
mod convention;
mod direction;
mod element;
mod encoded;
mod f32_scale;
mod hadamard;
mod half;
mod markdown;
mod minifloat;
mod named;
mod nvfp4;
mod nvfp4_select;
mod parse;
mod power;
mod quantize;
mod records;
mod scale;
mod single;
mod verify;
mod zero_point;

use std::sync::Arc;

pub use block::{Format, Group, Scaling};
pub use codebook::Codebook;
pub use codec::Codec;
pub use codes::unpack;
pub use convention::{CASTS, Convention, Rounding, convention};
pub use direction::Direction;
pub use element::{
    BF16, E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, ELEMENTS, Element, F16, INT2, INT3, INT4, INT8, Integer, MXINT8, NF4,
    Repr, UE4M3, Whole, element,
};
pub use encoded::{Encoded, Part};
pub use f32_scale::{F32_RULES, F32Rule, HALF_RULES, StoredScale};
pub use hadamard::hadamard;
pub use half::Half;
pub use markdown::markdown;
pub use minifloat::{FloatCast, MiniFloat, NanCode, Overflow, Policy, Ties, Zeros};
pub use named::{FORMATS, Named};
pub use nvfp4::{BlockScale, Division, Global, NVFP4_RULES, NVFP4_SINGLE_RULES, Nvfp4Rule};
pub use nvfp4_select::{Domain, Error, Select};
pub use power::{POWER_RULES, Pick, PowerCast, PowerRule};
pub use quantize::{Decode, Encode, GlobalScale};
pub use records::{KvRecord, PAGE, Place, RECORDS, Segment};
pub use scale::Scale;
pub use single::Single;
pub use verify::{Verified, verify, verify_cast};
pub use zero_point::{AFFINE_RULES, Affine, AffineFit, AffineRule, ZeroPoint};

use crate::error::did_you_mean;

/// Names of element formats in other libraries, each with ulplab's name of the same format.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("fp8", "e4m3"),
    ("float8", "e4m3"),
    ("float8_e4m3fn", "e4m3"),
    ("float8_e5m2", "e5m2"),
    ("fp16", "f16"),
    ("float16", "f16"),
    ("half", "f16"),
    ("bfloat16", "bf16"),
];

/// Ambiguous names, each with the names of two formats: one scale per row, and one scale per column. Libraries use "channel" for
/// a row of a weight `[out, in]` and for a column of keys.
const TWO_MEANINGS: &[(&str, &str, &str)] = &[
    ("fp8_channel", "fp8_out_channel", "fp8_column"),
    ("int8_channel", "int8_out_channel", "int8/column:f32"),
];

/// Returns the codec for a record name, a named format or a format string.
pub fn codec(text: &str) -> Result<Arc<dyn Codec>, String> {
    if let Some(record) = RECORDS.iter().copied().find(|record| record.name == text) {
        return Ok(Arc::new(record));
    }
    if let Some(named) = FORMATS.iter().find(|named| named.name == text) {
        let format = named.format.parse()?;
        return Ok(Arc::new(codec::FormatCodec {
            name: text.into(),
            doc: named.doc.into(),
            format,
        }));
    }
    if !text.contains(['/', '(']) && element(text).is_none() {
        if let Some((_, rows, columns)) = TWO_MEANINGS.iter().find(|(name, ..)| *name == text) {
            return Err(format!(
                "format '{text}' has two meanings; expected '{rows}' (a scale per output channel of a weight [out, in], a \
                 row) or '{columns}' (a scale per column, as per channel of keys)"
            ));
        }
        let records = RECORDS.iter().map(|record| record.name);
        let near = did_you_mean(text, records.chain(FORMATS.iter().map(|named| named.name)));
        let meant = OTHER_NAMES.iter().find(|(other, _)| text.eq_ignore_ascii_case(other));
        let meant = meant.map_or(String::new(), |(_, name)| {
            format!("; without scales it is '{name}' here")
        });
        return Err(format!("unknown format '{text}'{meant}{near}"));
    }
    let format: Format = text.parse()?;
    let doc = match format.scaling {
        Some(Scaling { scale, .. }) => format!("{}; {}", format.element.doc, scale.rule().1),
        None => format.element.doc.into(),
    };
    Ok(Arc::new(codec::FormatCodec {
        name: format.to_string(),
        doc,
        format,
    }))
}
