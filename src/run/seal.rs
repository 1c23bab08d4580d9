//! Text that ends with its own digest, so that any changed byte is noticed.

/// Hexadecimal digits of a blake3.
const DIGITS: usize = 64;

/// Appends the blake3 of `text`, then `close`.
pub fn seal(text: &mut Vec<u8>, close: &str) {
    let digest = blake3::hash(text).to_hex();
    text.extend_from_slice(digest.as_bytes());
    text.extend_from_slice(close.as_bytes());
}

/// Checks that bytes are as [`seal`] wrote them, with none changed, missing or added.
pub fn check(bytes: &[u8], close: &str) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("it is empty".into());
    }
    let sealed = bytes.strip_suffix(close.as_bytes());
    let split = sealed.and_then(|sealed| sealed.split_at_checked(sealed.len().checked_sub(DIGITS)?));
    let Some((text, digest)) = split else {
        return Err("damaged: its last line is not the blake3 of the file".into());
    };
    if blake3::hash(text).to_hex().as_bytes() != digest {
        return Err("damaged: its content does not match the blake3 in its last line".into());
    }
    Ok(())
}
