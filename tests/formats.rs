//! Formats against other people's code, against their definitions, and against their own laws.

#[path = "formats/blocks.rs"]
mod blocks;
#[path = "formats/codecs.rs"]
mod codecs;
#[path = "formats/docs.rs"]
mod docs;
#[path = "formats/elements.rs"]
mod elements;
#[path = "formats/foreign_records.rs"]
mod foreign_records;
#[path = "formats/lost.rs"]
mod lost;
#[path = "formats/oracle.rs"]
pub mod oracle;
#[path = "formats/properties.rs"]
mod properties;
#[path = "formats/quantize.rs"]
mod quantize;
#[path = "formats/records.rs"]
mod records;
#[path = "formats/stochastic.rs"]
mod stochastic;
#[path = "formats/strings.rs"]
mod strings;
#[path = "formats/verify.rs"]
mod verify;
#[path = "formats/zero_points.rs"]
mod zero_points;
