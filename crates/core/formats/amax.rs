//! Largest magnitudes of the blocks of a tensor.

/// Returns the bits of the largest magnitude in `x`. Magnitudes are compared by their bits, so that NaN is above infinity.
#[inline(always)]
pub(super) fn of(x: &[f32]) -> u32 {
    x.iter().fold(0, |amax, x| (x.to_bits() & 0x7fff_ffff).max(amax))
}

/// Raises each element of `largest` (f32 bits, one per block) to the largest magnitude of its block, if that is larger. A block
/// has `width` elements; the last block may be shorter.
#[inline(always)]
pub(super) fn of_blocks<S: pulp::Simd>(simd: S, x: &[f32], width: usize, largest: &mut [u32]) {
    simd.vectorize(AmaxLoop { x, width, largest });
}

/// Loop of [`of_blocks`] with explicit SIMD vectors. A plain loop would be vectorised badly: the optimiser gathers elements of
/// several blocks into one vector.
struct AmaxLoop<'a> {
    x: &'a [f32],
    width: usize,
    largest: &'a mut [u32],
}

impl pulp::WithSimd for AmaxLoop<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        let Self { x, width, largest } = self;
        let whole = match width / S::F32_LANES {
            1 => by::<S, 1>(simd, x, width, largest),
            2 => by::<S, 2>(simd, x, width, largest),
            4 => by::<S, 4>(simd, x, width, largest),
            8 => by::<S, 8>(simd, x, width, largest),
            16 => by::<S, 16>(simd, x, width, largest),
            _ => 0,
        };
        for (block, largest) in x[whole * width..].chunks(width).zip(&mut largest[whole..]) {
            *largest = of(block).max(*largest);
        }
    }
}

/// Does the work of [`of_blocks`] for blocks of exactly `N` SIMD vectors. Returns the number of processed blocks, which is 0 if a
/// block of `width` elements is not `N` vectors.
#[inline(always)]
fn by<S: pulp::Simd, const N: usize>(simd: S, x: &[f32], width: usize, largest: &mut [u32]) -> usize {
    let blocks = x.len() / width;
    if width != N * S::F32_LANES {
        return 0;
    }
    let vectors = S::as_simd_f32s(&x[..blocks * width]).0.as_chunks::<N>().0;
    let largest = &mut largest[..blocks];
    if S::F32_LANES == 16 && N == 1 {
        of_vectors(simd, vectors, largest);
    } else {
        for (block, largest) in vectors.iter().zip(largest) {
            let lanes = [magnitudes(simd, block)];
            let lanes: &[u32] = pulp::bytemuck::cast_slice(&lanes);
            *largest = lanes.iter().fold(*largest, |amax, lane| amax.max(*lane));
        }
    }
    blocks
}

/// Reduces the vectors of a block to one vector of largest magnitudes, lane by lane.
#[inline(always)]
fn magnitudes<S: pulp::Simd, const N: usize>(simd: S, block: &[S::f32s; N]) -> S::u32s {
    let magnitude = simd.splat_u32s(0x7fff_ffff);
    block.iter().fold(simd.splat_u32s(0), |amax, x| {
        simd.max_u32s(amax, simd.and_u32s(simd.transmute_u32s_f32s(*x), magnitude))
    })
}

/// Computes the largest magnitude of each block of 16 elements, for SIMD vectors of 16 lanes (elements), so that a block is one
/// vector. Reducing a single block would take mostly shuffles. So 32 blocks are reduced together: each call of [`halved`] keeps
/// the larger of two neighbouring lanes.
#[inline(always)]
fn of_vectors<S: pulp::Simd, const N: usize>(simd: S, vectors: &[[S::f32s; N]], largest: &mut [u32]) {
    let mut lanes = [0; 512];
    for (blocks, largest) in vectors.chunks(32).zip(largest.chunks_mut(32)) {
        for (block, folded) in blocks.iter().zip(S::as_mut_simd_u32s(&mut lanes).0) {
            *folded = magnitudes(simd, block);
        }
        let eight: [u32; 256] = halved(&lanes);
        let four: [u32; 128] = halved(&eight);
        let two: [u32; 64] = halved(&four);
        let one: [u32; 32] = halved(&two);
        for (amax, largest) in one.iter().zip(largest) {
            *largest = *amax.max(largest);
        }
    }
}

/// Returns the larger element of each pair of neighbours.
#[inline(always)]
fn halved<const N: usize>(x: &[u32]) -> [u32; N] {
    let mut out = [0; N];
    for ([a, b], out) in x.as_chunks().0.iter().zip(&mut out) {
        *out = *a.max(b);
    }
    out
}
