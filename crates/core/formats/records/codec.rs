//! Encodes KV vectors to the pages of a KV-cache record, and decodes the pages.

use std::ops::Range;

use safetensors::Dtype;

use super::{KvRecord, MAX_DIM, PAGE, Place, Segment};
use crate::formats::amax;
use crate::formats::codec::Codec;
use crate::formats::codes;
use crate::formats::element::BF16;
use crate::formats::encoded::{Encoded, Part};
use crate::formats::nvfp4::Level;
use crate::formats::scale::Target;

/// Encodes and decodes KV vectors in the byte layout of a record, with [`PAGE`] tokens per page.
impl Codec for &'static KvRecord {
    fn name(&self) -> String {
        self.name.into()
    }

    fn doc(&self) -> &str {
        self.doc
    }

    fn bytes_per_row(&self, _cols: usize) -> f64 {
        self.page_stride(PAGE) as f64 / PAGE as f64
    }

    fn check(&self, cols: usize) -> Result<(), String> {
        let KvRecord { name, dim, .. } = self;
        let wrong = (cols != *dim).then(|| format!("record '{name}' holds {dim} channels, not {cols}"));
        wrong.map_or(Ok(()), Err)
    }

    fn encode(&self, x: &[f32], cols: usize) -> Encoded {
        if let Err(why) = self.check(cols) {
            panic!("{why}");
        }
        assert_eq!(x.len() % cols, 0, "{} elements are not whole rows of {cols}", x.len());
        let (rows, stride) = (x.len() / cols, self.page_stride(PAGE));
        let pages = rows.div_ceil(PAGE);
        let mut bytes = vec![0; pages * stride];
        pulp::Arch::new().dispatch(Pages {
            record: self,
            x,
            bytes: &mut bytes[..],
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
        let KvRecord { name, dim, .. } = self;
        let bytes = encoded.part("pages");
        assert_eq!(out.len(), encoded.rows * dim, "elements of '{name}'");
        let all = encoded.rows.div_ceil(PAGE) * self.page_stride(PAGE);
        assert_eq!(bytes.len(), all, "bytes of '{name}'");
        pulp::Arch::new().dispatch(Pages {
            record: self,
            x: out,
            bytes,
        });
    }
}

/// Arguments of `KvRecord::store` or `KvRecord::load`, which are compiled for each instruction set.
struct Pages<'a, X, B> {
    record: &'a KvRecord,
    x: X,
    bytes: B,
}

impl pulp::WithSimd for Pages<'_, &[f32], &mut [u8]> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        self.record.store(simd, self.x, self.bytes);
    }
}

impl pulp::WithSimd for Pages<'_, &mut [f32], &[u8]> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        self.record.load(simd, self.bytes, self.x);
    }
}

impl KvRecord {
    /// Stores whole tokens one after another, from slot 0 of page 0 on. Each token is rounded to bf16 first: KV vectors are bf16
    /// tensors in DeepSeek's inference code, and the kernels that write these records read bf16.
    #[inline(always)]
    fn store<S: pulp::Simd>(&self, simd: S, x: &[f32], bytes: &mut [u8]) {
        let mut halves = vec![0; 2 * self.dim];
        let mut row = vec![0.0; self.dim];
        let pages = bytes.chunks_exact_mut(self.page_stride(PAGE));
        for (bytes, tokens) in pages.zip(x.chunks(PAGE * self.dim)) {
            for (slot, token) in tokens.chunks_exact(self.dim).enumerate() {
                codes::encode(simd, &BF16.repr, 16, token, &mut halves);
                codes::decode(simd, &BF16.repr, 16, &halves, &mut row);
                for segment in self.segments {
                    let (first, end) = segment.channels;
                    self.encode_segment(simd, segment, &row[first..end], slot, bytes);
                }
            }
        }
    }

    #[inline(always)]
    fn encode_segment<S: pulp::Simd>(&self, simd: S, segment: &Segment, x: &[f32], slot: usize, bytes: &mut [u8]) {
        let (repr, bits) = (&segment.element.repr, segment.element.bits);
        let Some((block, scale, place)) = segment.scales else {
            codes::encode(simd, repr, bits, x, &mut bytes[self.range(segment.codes, slot)]);
            return;
        };
        let blocks = x.len().div_ceil(block);
        let (mut amax, mut factors, mut scaled) = ([0; MAX_DIM], [0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (amax, factors, scaled) = (&mut amax[..blocks], &mut factors[..blocks], &mut scaled[..x.len()]);
        amax::of_blocks(simd, x, block, amax);
        let stored = &mut bytes[self.range(place, slot)];
        scale.encode(amax, (x, block), &Target::alone(segment.element), stored, factors);
        let codes = &mut bytes[self.range(segment.codes, slot)];
        codes::encode_scaled(simd, (repr, bits), (x, block), scale.division(), factors, scaled, codes);
    }

    #[inline(always)]
    fn load<S: pulp::Simd>(&self, simd: S, bytes: &[u8], out: &mut [f32]) {
        let pages = bytes.chunks_exact(self.page_stride(PAGE));
        for (bytes, tokens) in pages.zip(out.chunks_mut(PAGE * self.dim)) {
            for (slot, token) in tokens.chunks_exact_mut(self.dim).enumerate() {
                for segment in self.segments {
                    let (first, end) = segment.channels;
                    self.decode_segment(simd, segment, bytes, slot, &mut token[first..end]);
                }
            }
        }
    }

    #[inline(always)]
    fn decode_segment<S: pulp::Simd>(&self, simd: S, segment: &Segment, bytes: &[u8], slot: usize, out: &mut [f32]) {
        let (repr, bits) = (&segment.element.repr, segment.element.bits);
        let codes = &bytes[self.range(segment.codes, slot)];
        let Some((block, scale, place)) = segment.scales else {
            codes::decode(simd, repr, bits, codes, out);
            return;
        };
        let (mut values, mut factors) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (values, factors) = (&mut values[..out.len()], &mut factors[..out.len().div_ceil(block)]);
        codes::decode(simd, repr, bits, codes, values);
        scale.decode(&bytes[self.range(place, slot)], &Level::ONE, factors);
        codes::scale(simd, (values, block), scale.multiplication(), factors, out);
    }

    /// Returns the range of the bytes of `place` in a page, for the token in slot `slot`.
    fn range(&self, place: Place, slot: usize) -> Range<usize> {
        let start = self.offset(place, slot, PAGE);
        start..start + place.bytes
    }
}
