//! Inner loops: scaling of blocks, and casts to and from packed codes.
//!
//! The loops run over long slices for any block size, so that they vectorise.

use super::cast::{Cast, Operation};
use super::element::{BF16_CAST, E2M1_CAST, E4M3_CAST, E5M2_CAST, F16_CAST, Repr, stored_bits};
use super::minifloat::{Added, Cut, FloatCast};

/// Elements, and the number of elements per block. The last block may be short.
pub(super) type Blocks<'a> = (&'a [f32], usize);

/// Multiplies or divides the elements of each block by the factor of the block.
#[inline(always)]
pub(super) fn scale<S: pulp::Simd>(simd: S, x: Blocks, operation: Operation, factors: &[f32], out: &mut [f32]) {
    let zero = simd.splat_f32s(operation.zero);
    if operation.divide {
        let divide = |x, factors| simd.add_f32s(simd.div_f32s(x, factors), zero);
        scale_with(simd, x, operation, divide, factors, out);
    } else {
        let multiply = |x, factors| simd.add_f32s(simd.mul_f32s(x, factors), zero);
        scale_with(simd, x, operation, multiply, factors, out);
    }
}

#[inline(always)]
fn scale_with<S: pulp::Simd>(
    simd: S,
    (x, width): Blocks,
    operation: Operation,
    vector: impl Fn(S::f32s, S::f32s) -> S::f32s,
    factors: &[f32],
    out: &mut [f32],
) {
    // Blocks of 1, 2 or 4 SIMD vectors are unrolled, without an inner loop per block.
    let whole = match width / S::F32_LANES {
        1 => scale_by::<S, 1>(simd, (x, width), &vector, factors, out),
        2 => scale_by::<S, 2>(simd, (x, width), &vector, factors, out),
        4 => scale_by::<S, 4>(simd, (x, width), &vector, factors, out),
        _ => 0,
    };
    let (x, out) = (&x[whole * width..], &mut out[whole * width..]);
    let blocks = x.chunks(width).zip(out.chunks_mut(width));
    for ((x, out), factor) in blocks.zip(&factors[whole.min(factors.len())..]) {
        let ((x, x_rest), (out, out_rest)) = (S::as_simd_f32s(x), S::as_mut_simd_f32s(out));
        let factors = simd.splat_f32s(*factor);
        x.iter().zip(out).for_each(|(x, out)| *out = vector(*x, factors));
        for (x, out) in x_rest.iter().zip(out_rest) {
            *out = operation.apply(*factor, *x);
        }
    }
}

/// Scales blocks of exactly `N` SIMD vectors; returns the number of scaled blocks, 0 for other block sizes.
#[inline(always)]
fn scale_by<S: pulp::Simd, const N: usize>(
    simd: S,
    (x, width): Blocks,
    vector: &impl Fn(S::f32s, S::f32s) -> S::f32s,
    factors: &[f32],
    out: &mut [f32],
) -> usize {
    let blocks = x.len() / width;
    if width != N * S::F32_LANES {
        return 0;
    }
    let (x, out) = (&x[..blocks * width], &mut out[..blocks * width]);
    let (x, out) = (
        S::as_simd_f32s(x).0.as_chunks::<N>().0,
        S::as_mut_simd_f32s(out).0.as_chunks_mut::<N>().0,
    );
    for ((x, out), factor) in x.iter().zip(out).zip(factors) {
        let factors = simd.splat_f32s(*factor);
        (0..N).for_each(|i| out[i] = vector(x[i], factors));
    }
    blocks
}

/// Casts of the most common elements. Each cast has its own type, `Common<I>`, and the loops are compiled separately for each
/// type, so that the cast is always a compile-time constant.
const COMMON: [FloatCast; 5] = [E4M3_CAST, E5M2_CAST, E2M1_CAST, BF16_CAST, F16_CAST];

/// The cast at index `I` of [`COMMON`].
#[derive(Clone, Copy)]
struct Common<const I: usize>;

impl<const I: usize> Cast for Common<I> {
    const WIDTHS: &'static [u32] = &[stored_bits(COMMON[I].bits())];

    #[inline(always)]
    fn encode(&self, x: f32) -> u32 {
        match const { (Added::new(COMMON[I]), Cut::new(COMMON[I])) } {
            (Some(cast), _) => cast.encode(x),
            (_, Some(cast)) => cast.encode(x),
            (None, None) => COMMON[I].encode(x),
        }
    }

    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        COMMON[I].decode(code)
    }
}

/// Calls the function `$loop` with the cast of `$repr`. The function is compiled separately for each type of cast.
macro_rules! with_cast {
    ($repr:expr, $loop:ident, $($argument:expr),+) => {
        match *$repr {
            Repr::Float(cast) => match COMMON.iter().position(|common| *common == cast) {
                Some(0) => $loop(Common::<0>, $($argument),+),
                Some(1) => $loop(Common::<1>, $($argument),+),
                Some(2) => $loop(Common::<2>, $($argument),+),
                Some(3) => $loop(Common::<3>, $($argument),+),
                Some(4) => $loop(Common::<4>, $($argument),+),
                _ => match Added::new(cast) {
                    Some(cast) => $loop(cast, $($argument),+),
                    None => $loop(cast, $($argument),+),
                },
            },
            Repr::Integer(cast) => $loop(cast, $($argument),+),
            Repr::Codebook(book) => match (book.sized::<16>(), book.sized::<4>()) {
                (Some(table), _) => $loop(table, $($argument),+),
                (_, Some(table)) => $loop(table, $($argument),+),
                _ => $loop(book, $($argument),+),
            },
            Repr::Power(cast) => $loop(cast, $($argument),+),
        }
    };
}

/// Encodes `x` as packed codes. 16-bit codes are little-endian. Codes of 2, 3 and 4 bits are packed one after the other, from the
/// lowest bit of a byte upwards. 6-bit codes take one byte each.
pub(super) fn encode<S: pulp::Simd>(simd: S, repr: &Repr, bits: u32, x: &[f32], out: &mut [u8]) {
    with_cast!(repr, encode_by, simd, bits, x, out);
}

/// Scales blocks of `width` elements by their factors and encodes them as packed codes. The last block may be short. `room` is
/// scratch memory for scaled elements.
#[inline(always)]
pub(super) fn encode_scaled<S: pulp::Simd>(
    simd: S,
    (repr, bits): (&Repr, u32),
    (x, width): Blocks,
    operation: Operation,
    factors: &[f32],
    room: &mut [f32],
    out: &mut [u8],
) {
    // The fused loop does not add `operation.zero`. This is correct only if that zero is −0, whose addition changes nothing.
    let whole = match operation.zero.is_sign_negative() {
        true => encode_whole(simd, repr, (x, width), operation.divide, factors, out),
        false => 0,
    };
    if whole == x.len() {
        return;
    }
    let scaled = &mut room[..x.len() - whole];
    scale(simd, (&x[whole..], width), operation, &factors[whole / width..], scaled);
    let first = whole * stored_bits(bits) as usize / 8;
    encode(simd, repr, bits, scaled, &mut out[first..]);
}

/// Scales and casts whole blocks in one fused loop. Returns the number of encoded elements, which is 0 if no fused loop exists
/// for the element or the block width.
#[inline(always)]
fn encode_whole<S: pulp::Simd>(
    simd: S,
    repr: &Repr,
    (x, width): Blocks,
    divide: bool,
    factors: &[f32],
    out: &mut [u8],
) -> usize {
    let Repr::Float(cast) = *repr else {
        return 0;
    };
    let whole = x.len() / width * width;
    let x = (&x[..whole], width);
    match (width, COMMON.iter().position(|common| *common == cast)) {
        (16 | 32 | 64 | 128, Some(0)) => encode_blocks(Common::<0>, simd, x, divide, factors, out),
        (16 | 32 | 64 | 128, Some(1)) => encode_blocks(Common::<1>, simd, x, divide, factors, out),
        (16 | 32 | 64 | 128, Some(2)) => encode_blocks(Common::<2>, simd, x, divide, factors, out),
        _ => return 0,
    }
    whole
}

fn encode_blocks<S: pulp::Simd>(
    cast: impl Cast,
    simd: S,
    (x, width): Blocks,
    divide: bool,
    factors: &[f32],
    out: &mut [u8],
) {
    simd.vectorize(BlocksLoop {
        cast,
        x,
        width,
        divide,
        factors,
        out,
    });
}

/// Decodes packed codes to values.
pub(super) fn decode<S: pulp::Simd>(simd: S, repr: &Repr, bits: u32, packed: &[u8], out: &mut [f32]) {
    with_cast!(repr, decode_by, simd, bits, packed, out);
}

fn encode_by<S: pulp::Simd>(cast: impl Cast, simd: S, bits: u32, x: &[f32], codes: &mut [u8]) {
    simd.vectorize(Loop { cast, bits, x, codes });
}

fn decode_by<S: pulp::Simd>(cast: impl Cast, simd: S, bits: u32, codes: &[u8], x: &mut [f32]) {
    simd.vectorize(Loop { cast, bits, x, codes });
}

/// Arguments of [`encode_with`] or [`decode_with`]. `pulp` compiles each call as a separate function, so that the optimiser sees
/// one loop at a time.
struct Loop<C, X, B> {
    cast: C,
    bits: u32,
    x: X,
    codes: B,
}

impl<C: Cast> pulp::WithSimd for Loop<C, &[f32], &mut [u8]> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        encode_with(self.cast, self.bits, self.x, self.codes);
    }
}

impl<C: Cast> pulp::WithSimd for Loop<C, &mut [f32], &[u8]> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        decode_with(self.cast, self.bits, self.codes, self.x);
    }
}

/// Fused loop that scales and casts whole blocks of a common width.
struct BlocksLoop<'a, C> {
    cast: C,
    x: &'a [f32],
    width: usize,
    divide: bool,
    factors: &'a [f32],
    out: &'a mut [u8],
}

impl<C: Cast> pulp::WithSimd for BlocksLoop<'_, C> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        match (self.width, self.divide) {
            (16, false) => self.blocks::<16, false>(),
            (32, false) => self.blocks::<32, false>(),
            (64, false) => self.blocks::<64, false>(),
            (128, false) => self.blocks::<128, false>(),
            (16, true) => self.blocks::<16, true>(),
            (32, true) => self.blocks::<32, true>(),
            (64, true) => self.blocks::<64, true>(),
            (128, true) => self.blocks::<128, true>(),
            (width, _) => unreachable!("blocks of {width}"),
        }
    }
}

impl<C: Cast> BlocksLoop<'_, C> {
    #[inline(always)]
    fn blocks<const W: usize, const DIVIDE: bool>(self) {
        let blocks = self.x.as_chunks::<W>().0.iter().zip(self.factors);
        if const { has::<C>(4) } {
            for ((x, factor), out) in blocks.zip(self.out.chunks_exact_mut(W / 2)) {
                let codes = block_codes::<C, W, DIVIDE>(self.cast, x, *factor);
                for ([first, second], byte) in codes.as_chunks().0.iter().zip(out) {
                    *byte = first | second << 4;
                }
            }
        } else {
            for ((x, factor), out) in blocks.zip(self.out.as_chunks_mut::<W>().0) {
                *out = block_codes::<C, W, DIVIDE>(self.cast, x, *factor);
            }
        }
    }
}

/// Returns the codes of a block, one per byte. The codes are written to a local array first: a loop that writes to the output
/// would not vectorise, because the compiler cannot know that the output does not overlap the input.
#[inline(always)]
fn block_codes<C: Cast, const W: usize, const DIVIDE: bool>(cast: C, x: &[f32; W], factor: f32) -> [u8; W] {
    let mut codes = [0; W];
    for (x, code) in x.iter().zip(&mut codes) {
        *code = cast.encode(if DIVIDE { x / factor } else { x * factor }) as u8;
    }
    codes
}

/// True if a code of the cast `C` may take `width` bits in memory.
const fn has<C: Cast>(width: u32) -> bool {
    let mut at = 0;
    while at < C::WIDTHS.len() && C::WIDTHS[at] != width {
        at += 1;
    }
    at < C::WIDTHS.len()
}

#[inline(always)]
fn encode_with<C: Cast>(cast: C, bits: u32, x: &[f32], out: &mut [u8]) {
    match stored_bits(bits) {
        2 if const { has::<C>(2) } => {
            for (x, byte) in x.as_chunks::<4>().0.iter().zip(out) {
                let [a, b, c, d] = x.map(|x| cast.encode(x));
                *byte = (a | b << 2 | c << 4 | d << 6) as u8;
            }
        }
        3 if const { has::<C>(3) } => {
            for (x, bytes) in x.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<3>().0) {
                let word = x.iter().rev().fold(0, |word, x| word << 3 | cast.encode(*x));
                let [first, second, third, _] = word.to_le_bytes();
                *bytes = [first, second, third];
            }
        }
        4 if const { has::<C>(4) } => {
            for ([first, second], byte) in x.as_chunks().0.iter().zip(out) {
                *byte = (cast.encode(*first) | cast.encode(*second) << 4) as u8;
            }
        }
        16 if const { has::<C>(16) } => {
            for (x, word) in x.iter().zip(out.as_chunks_mut().0) {
                *word = (cast.encode(*x) as u16).to_le_bytes();
            }
        }
        8 if const { has::<C>(8) } => {
            for (x, byte) in x.iter().zip(out) {
                *byte = cast.encode(*x) as u8;
            }
        }
        _ => unreachable!("a cast to codes of {:?} bits has none of {bits}", C::WIDTHS),
    }
}

#[inline(always)]
fn decode_with<C: Cast>(cast: C, bits: u32, packed: &[u8], out: &mut [f32]) {
    match stored_bits(bits) {
        2 if const { has::<C>(2) } => {
            for (out, byte) in out.as_chunks_mut::<4>().0.iter_mut().zip(packed) {
                (0..4).for_each(|i| out[i] = cast.decode(u32::from(byte >> (2 * i) & 3)));
            }
        }
        3 if const { has::<C>(3) } => {
            for (out, bytes) in out.as_chunks_mut::<8>().0.iter_mut().zip(packed.as_chunks::<3>().0) {
                let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
                (0..8).for_each(|i| out[i] = cast.decode(word >> (3 * i) & 7));
            }
        }
        4 if const { has::<C>(4) } => {
            for ([first, second], byte) in out.as_chunks_mut().0.iter_mut().zip(packed) {
                *first = cast.decode(u32::from(byte & 0xf));
                *second = cast.decode(u32::from(byte >> 4));
            }
        }
        16 if const { has::<C>(16) } => {
            for (x, word) in out.iter_mut().zip(packed.as_chunks().0) {
                *x = cast.decode(u32::from(u16::from_le_bytes(*word)));
            }
        }
        8 if const { has::<C>(8) } => {
            for (x, byte) in out.iter_mut().zip(packed) {
                *x = cast.decode(u32::from(*byte));
            }
        }
        _ => unreachable!("a cast of codes of {:?} bits has none of {bits}", C::WIDTHS),
    }
}

/// Unpacks codes of `bits` bits each.
pub fn unpack(packed: &[u8], bits: usize) -> Vec<u16> {
    let count = packed.len() * 8 / bits;
    (0..count).map(|at| code_at(packed, bits, at)).collect()
}

/// Returns the code at index `at` of packed codes of `bits` bits each.
#[inline]
pub(super) fn code_at(packed: &[u8], bits: usize, at: usize) -> u16 {
    let first = at * bits;
    let bytes = [packed[first / 8], packed.get(first / 8 + 1).copied().unwrap_or(0)];
    (u32::from(u16::from_le_bytes(bytes)) >> (first % 8) & ((1 << bits) - 1)) as u16
}
