//! Converts text to a model's token ids, and ids to text.

use std::path::{Path, PathBuf};

use ulplab_core::input;

use super::Manifest;
use ulplab_core::{Error, Result};

/// Converts text to the token ids of a model, and back.
pub enum Tokenizer {
    /// Each byte is a token.
    Bytes,
    /// `tokenizer.json` of a checkpoint, as the library `tokenizers` writes it.
    File {
        path: PathBuf,
        trained: Box<tokenizers::Tokenizer>,
    },
}

/// A window of text as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Token ids, beginning with the special tokens that the tokenizer puts before a text, if any.
    pub ids: Vec<u32>,
    /// Number of text bytes that all tokens except the first encode (for the loss per byte); `None` if each token is a byte.
    pub bytes: Option<usize>,
}

/// Name of the tokenizer's file in a checkpoint.
pub(super) const FILE: &str = "tokenizer.json";
/// Vocabulary size of a model that reads bytes as tokens.
const BYTES: usize = 256;
/// Number of spare tokens that [`Tokenizer::places`] requires after the last window of a text. A window that begins within a word
/// splits this word into other tokens, so the rest of the text may have fewer tokens than expected.
const SLACK: usize = 16;

impl Tokenizer {
    /// Opens the tokenizer of a checkpoint. `vocabulary` is the size of the model's vocabulary.
    ///
    /// # Errors
    /// Returns an error if `tokenizer.json` is missing and the vocabulary does not have 256 ids (bytes), if the file cannot be
    /// read, or if it has an id outside the vocabulary.
    pub fn open(folder: &Path, vocabulary: usize) -> Result<Self> {
        let path = folder.join(FILE);
        if !path.is_file() {
            let message = format!(
                "there is no such file, and vocab_size is {vocabulary}: expected the tokenizer that its ids are of; without one only a \
                 vocabulary of {BYTES} is read, as bytes"
            );
            return match vocabulary {
                BYTES => Ok(Self::Bytes),
                _ => Err(Error::data(&path, message)),
            };
        }
        let text = input::text(&path)?;
        let wrong = |why: tokenizers::Error| Error::data(&path, format!("this is no tokenizer: {why}"));
        let mut trained = tokenizers::Tokenizer::from_bytes(text.as_bytes()).map_err(wrong)?;
        // Disable the tokenizer's truncation and padding: the experiment decides the length of windows.
        trained.with_truncation(None).map_err(wrong)?;
        trained.with_padding(None);
        let last = trained.get_vocab(true).into_iter().max_by_key(|(_, id)| *id);
        match last {
            Some((token, id)) if id as usize >= vocabulary => {
                let expected = format!("expected ids below the model's vocab_size, {vocabulary}");
                Err(Error::data(
                    &path,
                    format!("token '{token}' has the id {id}, {expected}"),
                ))
            }
            _ => {
                let trained = Box::new(trained);
                Ok(Self::File { path, trained })
            }
        }
    }

    /// Returns the word for a token in messages: `byte` or `token`.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Bytes => "byte",
            Self::File { .. } => "token",
        }
    }

    /// Returns the token ids of a prompt. Includes the special tokens that the tokenizer puts before a text, but not those after
    /// a text.
    ///
    /// # Errors
    /// Returns an error if the tokenizer rejects the text.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::File { path, trained } => Ok(Encoded::new(path, trained, text)?.all()),
        }
    }

    /// Decodes `ids` as the continuation of the ids `before`, and returns only the text of `ids`. Bytes that do not yet form a
    /// character are shown as U+FFFD.
    ///
    /// # Errors
    /// Returns an error if the tokenizer rejects the ids.
    pub fn text(&self, before: &[u32], ids: &[u32]) -> Result<String> {
        let Self::File { path, trained } = self else {
            let bytes: Vec<u8> = ids.iter().map(|id| *id as u8).collect();
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        };
        let decode = |ids: &[u32]| {
            let text = trained.decode(ids, false);
            text.map_err(|why| Error::data(path, format!("ids cannot be decoded: {why}")))
        };
        // A character may consist of several tokens, and a space may depend on the word before: decode both parts together.
        let (head, whole) = (decode(before)?, decode(&[before, ids].concat())?);
        match whole.strip_prefix(&head) {
            Some(rest) => Ok(rest.into()),
            None => decode(ids),
        }
    }

    /// Reads `tokens` tokens of a text, from byte `offset` on, or from the next character on if `offset` is within a character.
    ///
    /// # Errors
    /// Returns the errors of [`Manifest::text`], and an error if the text is not UTF-8 or too short.
    pub fn window(&self, datasets: &Manifest, name: &str, offset: usize, tokens: usize) -> Result<Tokens> {
        let Self::File { path, trained } = self else {
            let bytes = datasets.text(name, offset, tokens)?;
            return Ok(Tokens {
                ids: bytes.into_iter().map(u32::from).collect(),
                bytes: None,
            });
        };
        let size = datasets.text_bytes(name)? as usize;
        let too_few = |found: usize| {
            let last = self.places(datasets, name, tokens)? as usize - 1;
            let hint = match last < offset && self.window(datasets, name, last, tokens).is_ok() {
                true => format!("offsets up to {last} have enough"),
                false => "choose fewer tokens".into(),
            };
            let has = format!("from byte {offset} on it has {found} tokens, expected {tokens}");
            Err(Error::data(name, format!("the text has {size} bytes; {has}; {hint}")))
        };
        if offset >= size {
            return too_few(0);
        }
        let mut len = 8 * tokens;
        let encoded = loop {
            let end = offset.saturating_add(len).min(size);
            let encoded = Encoded::new(path, trained, &Piece::read(datasets, name, offset, end)?.text)?;
            // The end of a piece of text may cut a word, which changes the last tokens. Encode twice as many tokens as needed:
            // the cut does not affect the first half.
            if encoded.ids.len() >= 2 * tokens || end >= size {
                break encoded;
            }
            len *= 2;
        };
        match encoded.first(tokens) {
            Some(window) => Ok(window),
            None => too_few(encoded.all().len()),
        }
    }

    /// Returns the number n of byte offsets at which a window of `tokens` tokens may begin: the offsets 0 to n − 1.
    ///
    /// # Errors
    /// Returns the errors of [`Manifest::text`], and an error if the text is not UTF-8.
    pub fn places(&self, datasets: &Manifest, name: &str, tokens: usize) -> Result<u64> {
        let size = datasets.text_bytes(name)?;
        let Self::File { path, trained } = self else {
            return Ok((size + 1).saturating_sub(tokens as u64));
        };
        let size = size as usize;
        let mut len = 8 * tokens;
        loop {
            let start = size.saturating_sub(len);
            let piece = Piece::read(datasets, name, start, size)?;
            let encoded = Encoded::new(path, trained, &piece.text)?;
            match encoded.ids.len().checked_sub(tokens + SLACK) {
                Some(first) => return Ok((start + piece.skipped + encoded.offsets[first].0 + 1) as u64),
                // Even the whole text has too few tokens. Return 1 (only offset 0): the caller gets the error when it reads that
                // window.
                None if start == 0 => return Ok(1),
                None => len *= 2,
            }
        }
    }
}

/// A part of a text that begins and ends with whole characters.
struct Piece {
    text: String,
    /// Number of bytes before the first whole character.
    skipped: usize,
}

impl Piece {
    fn read(datasets: &Manifest, name: &str, start: usize, end: usize) -> Result<Self> {
        let bytes = datasets.text(name, start, end - start)?;
        let continues = |byte: &&u8| **byte & 0xc0 == 0x80;
        let skipped = match start {
            0 => 0,
            // Skip the rest of a cut character: a UTF-8 character has at most three bytes after its first byte.
            _ => bytes.iter().take(3).take_while(continues).count(),
        };
        let bytes = &bytes[skipped..];
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            // The piece ends within a character: leave the character out.
            Err(why) if why.error_len().is_none() => str::from_utf8(&bytes[..why.valid_up_to()]).unwrap_or_default(),
            Err(why) => {
                let at = start + skipped + why.valid_up_to();
                return Err(Error::data(name, format!("byte {at} is not UTF-8, which {FILE} is of")));
            }
        };
        let text = text.into();
        Ok(Self { text, skipped })
    }
}

/// A text with its tokens.
struct Encoded {
    /// Special tokens that the tokenizer puts before a text.
    before: Vec<u32>,
    ids: Vec<u32>,
    /// Byte range of each of `ids` in the text.
    offsets: Vec<(usize, usize)>,
}

impl Encoded {
    fn new(path: &Path, trained: &tokenizers::Tokenizer, text: &str) -> Result<Self> {
        let encode = |text: &str, said: &str| {
            let encoding = trained.encode(text, true);
            encoding.map_err(|why| Error::data(path, format!("{said} cannot be encoded: {why}")))
        };
        // The mask marks tokens that the tokenizer adds, but not special tokens that the text itself spells out.
        let own = |encoding: &tokenizers::Encoding| -> Vec<usize> {
            let added = encoding.get_special_tokens_mask().iter().enumerate();
            added.filter(|(_, added)| **added == 0).map(|(at, _)| at).collect()
        };
        let encoding = encode(text, "a text")?;
        let places = own(&encoding);
        let before = match places.first() {
            Some(first) => *first,
            // An empty text does not separate the special tokens before it from those after it: encode the text `a` instead.
            None => own(&encode("a", "'a'")?).first().copied().unwrap_or(0),
        };
        Ok(Self {
            before: encoding.get_ids()[..before].to_vec(),
            ids: places.iter().map(|at| encoding.get_ids()[*at]).collect(),
            offsets: places.iter().map(|at| encoding.get_offsets()[*at]).collect(),
        })
    }

    fn all(&self) -> Vec<u32> {
        [&self.before[..], &self.ids].concat()
    }

    /// Returns the first `tokens` tokens; `None` if there are fewer.
    fn first(&self, tokens: usize) -> Option<Tokens> {
        let own = tokens.checked_sub(self.before.len())?;
        if own == 0 || own > self.ids.len() {
            return None;
        }
        let first = if self.before.is_empty() { self.offsets[0].1 } else { 0 };
        Some(Tokens {
            ids: self.all()[..tokens].to_vec(),
            bytes: Some(self.offsets[own - 1].1 - first),
        })
    }
}
