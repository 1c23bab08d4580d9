//! Reader of the header of a `.npy` file: magic, version, length, and a Python dictionary.
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>
//!
//! The reader of Python literals in `npyz` overflows on absurd shapes and recurses without limit. This module therefore reads
//! only the one form of dictionary that numpy writes.

use safetensors::Dtype;

use super::{Entry, byte_len};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Parses a file. Returns the tensor, and a converted copy of its bytes if they are not row-major and little-endian in the file.
pub(super) fn parse(name: &str, bytes: &[u8]) -> Result<(Entry, Option<Vec<u8>>), String> {
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or("not an npy file: it does not start with \\x93NUMPY")?;
    let truncated = || format!("truncated: {} bytes end within the header", bytes.len());
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(truncated)?;
    let (length, rest) = match version {
        [1, 0] => rest
            .split_first_chunk::<2>()
            .map(|(len, rest)| (u32::from(u16::from_le_bytes(*len)), rest)),
        [2 | 3, 0] => rest
            .split_first_chunk::<4>()
            .map(|(len, rest)| (u32::from_le_bytes(*len), rest)),
        [major, minor] => return Err(format!("npy version {major}.{minor}, expected 1.0, 2.0 or 3.0")),
    }
    .ok_or_else(truncated)?;
    let (header, data) = usize::try_from(length)
        .ok()
        .and_then(|len| rest.split_at_checked(len))
        .ok_or_else(|| {
            format!(
                "truncated: header of {length} bytes, but only {} bytes follow its length",
                rest.len()
            )
        })?;
    let header = std::str::from_utf8(header).map_err(|error| format!("header is not text: {error}"))?;
    let Header { descr, fortran, shape } = Header::parse(header)?;
    let (dtype, big_endian) = dtype(&descr)?;
    let size = byte_len(dtype, &shape)?;
    if data.len() != size {
        let what = if data.len() < size { "truncated: " } else { "" };
        return Err(format!(
            "{what}{} bytes of data, but {dtype} of shape {shape:?} takes {size}",
            data.len()
        ));
    }
    let width = dtype.bitsize() / 8;
    // Do not reorder an array without elements: its other dimensions may be so large that strides overflow.
    let fortran = fortran && size > 0;
    let mut range = bytes.len() - size..bytes.len();
    let mut rewritten = None;
    if (big_endian && width > 1) || (fortran && shape.len() > 1) {
        let mut owned = if fortran {
            row_major(data, &shape, width)
        } else {
            data.to_vec()
        };
        if big_endian {
            owned.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
        range = 0..owned.len();
        rewritten = Some(owned);
    }
    Ok((
        Entry {
            name: name.into(),
            dtype,
            shape,
            shard: 0,
            range,
        },
        rewritten,
    ))
}

/// Converts column-major elements of `width` bytes to row-major order.
fn row_major(data: &[u8], shape: &[usize], width: usize) -> Vec<u8> {
    let mut strides = vec![0; shape.len()];
    let mut stride = width;
    for (axis, &size) in shape.iter().enumerate() {
        (strides[axis], stride) = (stride, stride * size);
    }
    let mut out = Vec::with_capacity(data.len());
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    while out.len() < data.len() {
        out.extend_from_slice(&data[at..at + width]);
        // Increment the index, the last axis fastest.
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= strides[axis] * index[axis];
            index[axis] = 0;
        }
    }
    out
}

/// Parses a type such as `<f4`. Returns the type of the elements, and true if they are big-endian.
fn dtype(descr: &str) -> Result<(Dtype, bool), String> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or_default();
    let dtype = match kind {
        "b1" => Dtype::BOOL,
        "i1" => Dtype::I8,
        "i2" => Dtype::I16,
        "i4" => Dtype::I32,
        "i8" => Dtype::I64,
        "u1" => Dtype::U8,
        "u2" => Dtype::U16,
        "u4" => Dtype::U32,
        "u8" => Dtype::U64,
        "f2" => Dtype::F16,
        "f4" => Dtype::F32,
        "f8" => Dtype::F64,
        "V1" | "V2" => {
            return Err(format!(
                "dtype '{descr}' is opaque bytes (numpy forgets the name of ml_dtypes' types): save as float32 or safetensors"
            ));
        }
        _ => {
            return Err(format!(
                "dtype '{descr}' is not supported, expected b1, i1-i8, u1-u8, f2, f4 or f8"
            ));
        }
    };
    match order {
        "<" | "|" | "=" => Ok((dtype, false)),
        ">" => Ok((dtype, true)),
        _ => Err(format!("dtype '{descr}' has unknown byte order '{order}'")),
    }
}

struct Header {
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Parses a dictionary such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
    fn parse(text: &str) -> Result<Self, String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        let mut cursor = Cursor { text };
        cursor.expect("{")?;
        while !cursor.eat("}") {
            let key = cursor.string()?;
            cursor.expect(":")?;
            match key {
                "descr" => {
                    descr = Some(
                        cursor
                            .string()
                            .map_err(|error| format!("{error}; structured dtypes are not supported"))?,
                    )
                }
                "fortran_order" => fortran = Some(cursor.bool()?),
                "shape" => shape = Some(cursor.shape()?),
                _ => return Err(format!("bad header: unknown key '{key}'")),
            }
            if !cursor.eat(",") {
                cursor.expect("}")?;
                break;
            }
        }
        let missing = |key| format!("bad header: no '{key}'");
        Ok(Self {
            descr: descr.ok_or_else(|| missing("descr"))?.into(),
            fortran: fortran.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }
}

/// Remaining text of a header.
struct Cursor<'a> {
    text: &'a str,
}

impl<'a> Cursor<'a> {
    fn eat(&mut self, token: &str) -> bool {
        self.text = self.text.trim_start();
        let rest = self.text.strip_prefix(token);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) {
            Ok(())
        } else {
            Err(self.error(&format!("'{token}'")))
        }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let quote = ["'", "\""]
            .into_iter()
            .find(|&quote| self.eat(quote))
            .ok_or_else(|| self.error("a string"))?;
        let (string, rest) = self
            .text
            .split_once(quote)
            .ok_or_else(|| self.error("the end of a string"))?;
        self.text = rest;
        Ok(string)
    }

    fn bool(&mut self) -> Result<bool, String> {
        if self.eat("True") {
            return Ok(true);
        }
        if self.eat("False") {
            Ok(false)
        } else {
            Err(self.error("True or False"))
        }
    }

    fn shape(&mut self) -> Result<Vec<usize>, String> {
        let mut shape = Vec::new();
        self.expect("(")?;
        while !self.eat(")") {
            self.text = self.text.trim_start();
            let digits = self.text.len() - self.text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, rest) = self.text.split_at(digits);
            shape.push(number.parse().map_err(|_| self.error("a size"))?);
            self.text = rest;
            if !self.eat(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(shape)
    }

    fn error(&self, expected: &str) -> String {
        let found: String = self.text.chars().take(20).collect();
        format!("bad header: expected {expected} at '{}'", found.trim_end())
    }
}
