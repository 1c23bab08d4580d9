"""Gates of published test suites, on inputs as they draw them, and faults of the operations they test.

Written again in numpy after vLLM's test_layernorm.py, test_cache.py and test_flashinfer_nvfp4_scaled_mm.py, SGLang's
test_cutedsl_gdn.py, and FlashInfer's test_norm.py and tests/trace, as they were in November 2026. It shows what a gate cannot
see, not that a kernel is wrong.
"""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn

import ulplab


def rounded(x, dtype=bfloat16):
    return np.asarray(x, np.float32).astype(dtype)


def share(got, want):
    """SGLang's: fewer than 1 % of the elements are off by more than 0.1."""
    return (np.abs(np.asarray(got, np.float64) - np.asarray(want, np.float64)) > 0.1).mean() < 0.01


def kernel_is_wanted(got, want):
    """FlashInfer's: rtol = atol = 1, of the reference to the kernel, so that a large output allows a large error."""
    np.testing.assert_allclose(np.asarray(want, np.float32), np.asarray(got, np.float32), rtol=1, atol=1)


def loose(rtol, atol=None):
    """``atol`` is ``rtol`` if it is not given."""

    def gate(got, want):
        got, want = (np.asarray(x, np.float32) for x in (got, want))
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol if atol is None else atol)

    return gate


def rms_norm(size):
    """vLLM's test_rms_norm: rows of N(0, 1) / (2 H)."""
    rng = np.random.default_rng(0)
    x = rounded(rounded(rng.standard_normal((64, size))).astype(np.float32) / (2 * size))
    weight = rounded(1 + 0.1 * rng.standard_normal(size))
    faults = {}
    given = {"x": x, "weight": weight, "eps": 1e-6}
    for name in ("no_variance", "half_of_row", "neighbour_row", "sum_for_mean", "eps_tenfold", "no_weight"):
        faults[name] = rounded(ulplab.reference.rmsnorm(**given, fault=name).value)
    right = rounded(ulplab.reference.rmsnorm(**given).value)
    return right, faults | {"5 % too large": rounded(right.astype(np.float32) * 1.05)}


def gated_delta():
    """SGLang's test_cutedsl_gdn_precision: everything from N(0, 1), one token."""
    rng = np.random.default_rng(1)
    batch, heads, values, size = 16, 16, 32, 128
    rate, offset = rng.standard_normal(values), rng.standard_normal(values)
    a, b = rng.standard_normal((2, batch, values))
    q, k = rng.standard_normal((2, batch, heads, size))
    q, k = (np.repeat(x / np.linalg.norm(x, axis=-1, keepdims=True), values // heads, 1) for x in (q, k))
    v, state = rng.standard_normal((batch, values, size)), rng.standard_normal((batch, values, size, size))

    def decay(shift):
        return np.exp(-np.exp(rate) * np.logaddexp(0, a + shift))

    beta = 1 / (1 + np.exp(-b))

    def run(decay=decay(offset), beta=beta, k=k, v=v, delta=True, update=True):
        now = state * decay[..., None, None]
        if update:
            known = np.einsum("bhk,bhkv->bhv", k, now) if delta else 0.0
            now = now + np.einsum("bhk,bhv->bhkv", k, beta[..., None] * (v - known))
        return np.einsum("bhk,bhkv->bhv", q, now) * size**-0.5

    faults = {
        "state never updated": run(update=False),
        "delta term missing": run(delta=False),
        "beta = 1": run(beta=np.ones_like(beta)),
        "beta without sigmoid": run(beta=b),
        "neighbour head's k": run(k=np.roll(k, 2, 1)),
        "sign of v": run(v=-v),
        "dt_bias left out": run(decay=decay(0.0)),
        "1.5 times too large": 1.5 * run(),
        "all zeros": 0 * run(),
    }
    return run(), faults


def norm_quant(scale):
    """FlashInfer's test_norm_quant: RMSNorm to E4M3."""
    rng = np.random.default_rng(2)
    x, weight = (rounded(rng.standard_normal(shape)).astype(np.float32) for shape in ((32, 2048), 2048))

    def stored(y):
        return np.clip(y, -448, 448).astype(np.float32).astype(float8_e4m3fn)

    y = ulplab.reference.rmsnorm(x=x, weight=weight).value / scale
    faults = {
        "2 times too large": stored(2 * y),
        "100 times too large": stored(100 * y),
        "every output +-448": stored(np.copysign(448, y)),
        "no variance": stored(x * weight / scale),
        "all zeros": stored(0 * y),
        "signs lost": stored(np.abs(y)),
    }
    return stored(y), faults


def scaled_mm():
    """vLLM's NVFP4 product in fp16: operands in FP4 with scales, atol = rtol = 0.1."""
    rng = np.random.default_rng(42)
    a, b = (np.asarray(ulplab.quantize(rng.standard_normal((128, 256)).astype(np.float32), "nvfp4").dequantize()) for _ in range(2))
    y = ulplab.reference.matmul(a=a, b=b, b_rows="n").value
    faults = {
        "alpha 5 % too large": 1.05 * y,
        "alpha 9 % too large": 1.09 * y,
        "alpha 20 % too large": 1.2 * y,
        "b of the next row": np.roll(y, 1, 1),
    }
    return rounded(y, np.float16), {name: rounded(wrong, np.float16) for name, wrong in faults.items()}


def mxfp8_quantize():
    """FlashInfer's trace of mxfp8_quantize: codes alone are looked at."""
    rng = np.random.default_rng(3)
    x = rounded(rng.standard_normal((128, 1024)))
    quantized = ulplab.quantize(x, "mxfp8")
    codes = np.asarray(quantized.codes).view(float8_e4m3fn).astype(np.float32)
    scales = np.exp2(quantized.scales.astype(np.float32) - 127)
    blocks = x.astype(np.float32).reshape(*scales.shape, 32)

    def under(scales):
        """The codes that the numbers have under other scales: what is too large saturates."""
        return np.clip(blocks / scales[..., None], -448, 448).astype(float8_e4m3fn).astype(np.float32).reshape(codes.shape)

    assert (under(scales) == codes).all()
    faults = {
        "columns reversed": codes[:, ::-1],
        "all signs lost": np.abs(codes),
        "constant": np.full_like(codes, np.abs(codes).mean()),
        "scales 2 times too large": under(2 * scales),
        "scales 1.5 times too small, top of blocks saturates": under(scales / 1.5),
        "one scale for all blocks": under(np.full_like(scales, scales.max())),
        "scale of the next block": under(np.roll(scales, 1, 1)),
        "scales not written": codes,
        "rows exchanged": np.roll(codes, 1, 0),
        "all zeros": 0 * codes,
    }
    return codes, faults


def nvfp4_cache():
    """vLLM's test_reshape_and_cache_flash[nvfp4], 42 tokens of 8 heads of 64: what a cache in FP4 keeps, and what was put in."""
    rng = np.random.default_rng(4)
    x = rounded(rng.standard_normal((42, 8, 64)))
    quantized = ulplab.quantize(x, "nvfp4", rule="vllm")
    scales = quantized.scales.view(float8_e4m3fn).astype(np.float32)
    right = quantized.dequantize()
    # The values of codes times the global scale: what is left of a number without its block's.
    bare = right.reshape(*scales.shape, 16) / scales[..., None]

    def under(scales):
        return (bare * scales[..., None]).reshape(x.shape)

    four = scales.reshape(42, 8, 4)[:40].reshape(10, 4, 8, 4)
    swizzled = np.concatenate([four.transpose(0, 3, 2, 1).reshape(40, 8, 4), scales.reshape(42, 8, 4)[40:]])
    faults = {
        "scales of a row replaced by their mean": under(np.broadcast_to(scales.mean(1, keepdims=True), scales.shape)),
        "one scale for all blocks": under(np.full_like(scales, scales.mean())),
        "scales of 4 tokens x 4 blocks transposed": under(swizzled.reshape(scales.shape)),
        "scales of the next block": under(np.roll(scales, 1, 1)),
        "5 % too large": 1.05 * right,
        "20 % too large": 1.2 * right,
        "signs lost": np.abs(right),
        "all zeros": 0 * right,
    }
    return right, faults, x.astype(np.float32)


def mean_magnitude(got, want):
    """FlashInfer's: means of magnitudes are within atol = 2 and rtol = 0.5."""
    np.testing.assert_allclose(np.abs(got).mean(), np.abs(want).mean(), rtol=0.5, atol=2.0)


def global_amax(x):
    """The magnitude that the test's global scale stands for: it divides in the type of ``x``, so the quotient is rounded to it."""
    most = 448 * 6
    return float(most / rounded(most / np.abs(x.astype(np.float32)).max(), x.dtype).astype(np.float32))


def product(dtype, shape, seed):
    """A right NVFP4 product in f64, and the reference of vLLM's test, whose operands are rounded to the output's type."""
    rng = np.random.default_rng(seed)
    m, n, k = shape
    a, b = (rng.standard_normal((rows, k)).astype(dtype) for rows in (m, n))
    a, b = (np.asarray(ulplab.quantize(x, "nvfp4", rule="vllm", amax=global_amax(x)).dequantize()) for x in (a, b))
    narrow_a, narrow_b = (rounded(x, dtype).astype(np.float64) for x in (a, b))
    return a.astype(np.float64) @ b.astype(np.float64).T, rounded(narrow_a @ narrow_b.T, dtype)


#: Types and sizes of products that the same gate is asked of. Of those that are right it refuses some.
PRODUCTS = [(bfloat16, (128, 128, size)) for size in (128, 192, 256)]
PRODUCTS += [(bfloat16, (128, 256, 256)), (np.float16, (128, 256, 256))]
#: What products are multiplied by: the right ones, and an alpha that is off.
GAINS = (1.0, 1.05, 1.09)

#: Name, gate, and what gives a right output, wrong ones, and what they are compared with, if that is not the right one.
TABLE = [
    *[(f"vLLM test_rms_norm, bf16, H = {size}", loose(1e-2), lambda size=size: rms_norm(size)) for size in (768, 5120, 8192)],
    ("SGLang test_cutedsl_gdn_precision, B = 16", share, gated_delta),
    *[
        (f"FlashInfer test_norm_quant, scale {scale:g}", kernel_is_wanted, lambda scale=scale: norm_quant(scale))
        for scale in (0.01, 1.0, 10.0)
    ],
    *[
        (f"FlashInfer trace rmsnorm_quant, scale {scale:g}", loose(1.0), lambda scale=scale: norm_quant(scale))
        for scale in (0.01, 1.0, 10.0)
    ],
    ("FlashInfer trace mxfp8_quantize", mean_magnitude, mxfp8_quantize),
    ("vLLM test_reshape_and_cache_flash[nvfp4]", loose(0.5, 1.5), nvfp4_cache),
    ("vLLM NVFP4 product, fp16", loose(0.1), scaled_mm),
]
