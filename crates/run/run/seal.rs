//! Text that ends with its own digest, so that any changed byte is noticed. The digest has no key: it reveals damage and
//! accidental edits, but not deliberate changes with a new digest.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ulplab_core::error::refuse;

/// Number of hexadecimal digits of a blake3 digest.
const DIGITS: usize = 64;

/// Appends to `text` its own blake3 digest, then `close`.
pub fn seal(text: &mut Vec<u8>, close: &str) {
    let digest = blake3::hash(text).to_hex();
    text.extend_from_slice(digest.as_bytes());
    text.extend_from_slice(close.as_bytes());
}

/// Characters after the digest at the end of a sealed JSON object.
const CLOSE_JSON: &str = "\"\n}\n";
/// The last key of a sealed JSON object. Its value is the digest of all bytes before the digest.
const KEY: &str = "blake3";

/// Returns an object as indented JSON. Its last key is the digest of all bytes before the digest.
pub fn json(content: &impl Serialize) -> Vec<u8> {
    let mut whole = serde_json::to_value(content).expect("plain data has a form in JSON");
    whole[KEY] = "".into();
    let mut text = serde_json::to_vec_pretty(&whole).expect("plain data has a form in JSON");
    text.truncate(text.len() - CLOSE_JSON.trim_end().len());
    seal(&mut text, CLOSE_JSON);
    text
}

/// Reads an object from the output of [`json`]. Returns an error with the reason if the bytes are not such output, or if the
/// object's schema version is not `schema`.
pub fn read_json<T: DeserializeOwned>(bytes: &[u8], schema: Option<u32>) -> Result<T, String> {
    let parsed: Result<Value, _> = serde_json::from_slice(bytes);
    let stated = parsed.as_ref().ok().and_then(|value| value["schema"].as_u64());
    if let (Some(expected), Some(schema)) = (schema.map(u64::from), stated)
        && schema != expected
    {
        let age = if schema < expected { "an older" } else { "a newer" };
        let message = format!("it is of schema {schema}: {age} version of ulplab wrote it, this one reads {expected}");
        return Err(message);
    }
    check(bytes, CLOSE_JSON)?;
    let mut value = parsed.map_err(|error| error.to_string())?;
    value.as_object_mut().and_then(|object| object.shift_remove(KEY));
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// Returns the digest of several byte strings. Also hashes the length of each: the strings `ab`, `c` and `a`, `bc` have different
/// digests.
pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> blake3::Hash {
    let mut digest = blake3::Hasher::new();
    for part in parts {
        digest.update(&(part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize()
}

/// Checks that bytes are the unchanged output of [`seal`]: no byte changed, missing or added.
pub fn check(bytes: &[u8], close: &str) -> Result<(), String> {
    refuse(bytes.is_empty(), "it is empty")?;
    let sealed = bytes.strip_suffix(close.as_bytes());
    let split = sealed.and_then(|sealed| sealed.split_at_checked(sealed.len().checked_sub(DIGITS)?));
    let Some((text, digest)) = split else {
        return Err("damaged or edited: its last line is not the blake3 of the file".into());
    };
    let why = "damaged or edited: its content does not match the blake3 in its last line";
    refuse(blake3::hash(text).to_hex().as_bytes() != digest, why)
}
