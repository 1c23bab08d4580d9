//! Records to pages and back.

use std::ops::Range;

use safetensors::Dtype;

use super::{KvRecord, MAX_DIM, Place, Segment};
use crate::formats::amax;
use crate::formats::codec::{Codec, rows};
use crate::formats::codes;
use crate::formats::element::BF16;
use crate::formats::encoded::{Encoded, Part};
use crate::formats::nvfp4::Level;
use crate::formats::scale::Target;

/// A record in pages of some size.
pub(in crate::formats) struct RecordCodec {
    pub record: &'static KvRecord,
    pub page: usize,
}

impl Codec for RecordCodec {
    fn name(&self) -> String {
        self.record.name.into()
    }

    fn doc(&self) -> &str {
        self.record.doc
    }

    fn bytes_per_row(&self, _cols: usize) -> f64 {
        self.record.page_stride(self.page) as f64 / self.page as f64
    }

    fn check(&self, cols: usize) -> Result<(), String> {
        let KvRecord { name, dim, .. } = self.record;
        if cols == *dim {
            Ok(())
        } else {
            Err(format!("record '{name}' holds {dim} channels, not {cols}"))
        }
    }

    fn encode(&self, x: &[f32], cols: usize) -> Encoded {
        let rows = rows(self, x.len(), cols);
        let stride = self.record.page_stride(self.page);
        let pages = rows.div_ceil(self.page);
        let mut bytes = vec![0; pages * stride];
        pulp::Arch::new().dispatch(Encode {
            codec: self,
            x,
            bytes: &mut bytes,
        });
        let part = Part {
            name: "pages",
            dtype: Dtype::U8,
            shape: vec![pages, stride],
            bytes,
        };
        Encoded {
            rows,
            cols,
            parts: vec![part],
        }
    }

    fn decode(&self, encoded: &Encoded, out: &mut [f32]) {
        let KvRecord { name, dim, .. } = self.record;
        let bytes = encoded.part("pages");
        let stride = self.record.page_stride(self.page);
        assert_eq!(out.len(), encoded.rows * dim, "elements of '{name}'");
        assert_eq!(
            bytes.len(),
            encoded.rows.div_ceil(self.page) * stride,
            "bytes of '{name}'"
        );
        pulp::Arch::new().dispatch(Decode {
            codec: self,
            bytes,
            out,
        });
    }
}

/// [`Record::encode`] compiled for each instruction set.
struct Encode<'a> {
    codec: &'a RecordCodec,
    x: &'a [f32],
    bytes: &'a mut [u8],
}

impl pulp::WithSimd for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        self.codec.record.encode(simd, self.x, self.codec.page, self.bytes);
    }
}

struct Decode<'a> {
    codec: &'a RecordCodec,
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl pulp::WithSimd for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        self.codec.record.decode(simd, self.bytes, self.codec.page, self.out);
    }
}

impl KvRecord {
    /// Stores whole tokens from slot 0 of page 0 on, each rounded to bf16 first: KV vectors are bf16 tensors in
    /// DeepSeek's inference code, and the kernels that write these records read bf16.
    #[inline(always)]
    fn encode<S: pulp::Simd>(&self, simd: S, x: &[f32], page: usize, bytes: &mut [u8]) {
        let mut halves = vec![0; 2 * self.dim];
        let mut row = vec![0.0; self.dim];
        let pages = bytes
            .chunks_exact_mut(self.page_stride(page))
            .zip(x.chunks(page * self.dim));
        for (bytes, tokens) in pages {
            for (slot, token) in tokens.chunks_exact(self.dim).enumerate() {
                codes::encode(simd, &BF16.repr, 16, token, &mut halves);
                codes::decode(simd, &BF16.repr, 16, &halves, &mut row);
                for segment in self.segments {
                    let (first, end) = segment.channels;
                    self.encode_segment(simd, segment, &row[first..end], [slot, page], bytes);
                }
            }
        }
    }

    #[inline(always)]
    fn encode_segment<S: pulp::Simd>(&self, simd: S, segment: &Segment, x: &[f32], at: [usize; 2], bytes: &mut [u8]) {
        let (repr, bits) = (&segment.element.repr, segment.element.bits);
        let Some((block, scale, place)) = segment.scales else {
            codes::encode(simd, repr, bits, x, &mut bytes[self.range(segment.codes, at)]);
            return;
        };
        let blocks = x.len().div_ceil(block);
        let (mut amax, mut factors, mut scaled) = ([0; MAX_DIM], [0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (amax, factors, scaled) = (&mut amax[..blocks], &mut factors[..blocks], &mut scaled[..x.len()]);
        amax::of_blocks(simd, x, block, amax);
        let stored = &mut bytes[self.range(place, at)];
        scale.encode(amax, (x, block), &Target::alone(segment.element), stored, factors);
        let codes = &mut bytes[self.range(segment.codes, at)];
        codes::encode_scaled(simd, (repr, bits), (x, block), scale.division(), factors, scaled, codes);
    }

    #[inline(always)]
    fn decode<S: pulp::Simd>(&self, simd: S, bytes: &[u8], page: usize, out: &mut [f32]) {
        let pages = bytes
            .chunks_exact(self.page_stride(page))
            .zip(out.chunks_mut(page * self.dim));
        for (bytes, tokens) in pages {
            for (slot, token) in tokens.chunks_exact_mut(self.dim).enumerate() {
                for segment in self.segments {
                    let (first, end) = segment.channels;
                    self.decode_segment(simd, segment, bytes, [slot, page], &mut token[first..end]);
                }
            }
        }
    }

    #[inline(always)]
    fn decode_segment<S: pulp::Simd>(&self, simd: S, segment: &Segment, bytes: &[u8], at: [usize; 2], out: &mut [f32]) {
        let (repr, bits) = (&segment.element.repr, segment.element.bits);
        let codes = &bytes[self.range(segment.codes, at)];
        let Some((block, scale, place)) = segment.scales else {
            codes::decode(simd, repr, bits, codes, out);
            return;
        };
        let (mut values, mut factors) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (values, factors) = (&mut values[..out.len()], &mut factors[..out.len().div_ceil(block)]);
        codes::decode(simd, repr, bits, codes, values);
        scale.decode(&bytes[self.range(place, at)], &Level::ONE, factors);
        codes::scale(simd, (values, block), scale.multiplication(), factors, out);
    }

    /// Returns the byte range of a place, for the token in slot `slot` of a page of `page` tokens.
    fn range(&self, place: Place, [slot, page]: [usize; 2]) -> Range<usize> {
        let start = self.offset(place, slot, page);
        start..start + place.bytes
    }
}
