//! Reader of the header of a `.safetensors` file: 8 bytes of length, JSON of that length, then the data without gaps.
//! <https://huggingface.co/docs/safetensors>

use std::collections::BTreeMap;
use std::fmt;

use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::{Entry, Metadata, byte_len};

/// Maximum length of a header, as in the `safetensors` crate; a longer header is an attack or a mistake.
const MAX_HEADER: u64 = 100_000_000;

/// Parses a file. Returns all tensors in the order of their data, and the metadata. The reader of the `safetensors` crate makes
/// the same checks, but its errors do not name the wrong tensor.
pub(super) fn parse(bytes: &[u8]) -> Result<(Vec<Entry>, Metadata), String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!(
            "truncated: {} bytes, expected 8 bytes of header length first",
            bytes.len()
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(format!(
            "bad header length {length}, expected at most {MAX_HEADER}: not a safetensors file?"
        ));
    }
    // The length is at most MAX_HEADER, so it fits into usize.
    let length = length as usize;
    let Some((header, data)) = rest.split_at_checked(length) else {
        return Err(format!(
            "truncated: header of {length} bytes, but only {} bytes follow its length",
            rest.len()
        ));
    };
    let Header(tensors, metadata) = serde_json::from_slice(header).map_err(|error| format!("bad header: {error}"))?;
    let entries = tensors.into_iter().map(|(name, info)| entry(name, info));
    let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(|entry| (entry.range.start, entry.range.end));
    contiguous(&entries, data.len())?;
    for entry in &mut entries {
        entry.range = entry.range.start + 8 + length..entry.range.end + 8 + length;
    }
    Ok((entries, metadata))
}

struct Header(BTreeMap<String, TensorInfo>, Metadata);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Names)
    }
}

/// Deserializer of the header. Rejects duplicate names, as the format requires; a map would keep only the last entry.
struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let (mut tensors, mut metadata) = (BTreeMap::new(), None);
        while let Some(name) = map.next_key::<String>()? {
            let (what, twice) = if name == "__metadata__" {
                let texts = map.next_value::<Option<BTreeMap<String, String>>>();
                (name, texts.map(|texts| metadata.replace(texts).is_some()))
            } else {
                let info = map.next_value();
                (
                    format!("tensor '{name}'"),
                    info.map(|info| tensors.insert(name, info).is_some()),
                )
            };
            match twice {
                Ok(false) => {}
                Ok(true) => return Err(A::Error::custom(format!("{what} is there twice"))),
                Err(error) => return Err(A::Error::custom(format!("{what}: {error}"))),
            }
        }
        Ok(Header(tensors, metadata.flatten().unwrap_or_default()))
    }
}

fn entry(name: String, info: TensorInfo) -> Result<Entry, String> {
    let (begin, end) = info.data_offsets;
    if end < begin {
        return Err(format!("tensor '{name}': data_offsets [{begin}, {end}] run backwards"));
    }
    let size = byte_len(info.dtype, &info.shape).map_err(|error| format!("tensor '{name}': {error}"))?;
    if end - begin != size {
        return Err(format!(
            "tensor '{name}': data_offsets [{begin}, {end}] hold {} bytes, but {} of shape {:?} takes {size}",
            end - begin,
            info.dtype,
            info.shape
        ));
    }
    Ok(Entry {
        name,
        dtype: info.dtype,
        shape: info.shape,
        shard: 0,
        range: begin..end,
    })
}

/// Checks that the sorted tensors cover the data without gaps or overlaps.
fn contiguous(entries: &[Entry], len: usize) -> Result<(), String> {
    let mut end = 0;
    let mut previous = "";
    for entry in entries {
        let (name, start) = (&entry.name, entry.range.start);
        if entry.range.end > len {
            return Err(format!(
                "tensor '{name}': data_offsets [{start}, {}] are out of range, the file has {len} bytes of data: truncated?",
                entry.range.end
            ));
        }
        if start < end {
            return Err(format!(
                "tensor '{name}': starts at {start} and overlaps '{previous}', which ends at {end}"
            ));
        }
        if start > end {
            return Err(format!(
                "tensor '{name}': starts at {start}, expected {end}: a gap is not allowed"
            ));
        }
        (end, previous) = (entry.range.end, name);
    }
    match end == len {
        true => Ok(()),
        false => Err(format!("{len} bytes of data, but the tensors end at {end}")),
    }
}
