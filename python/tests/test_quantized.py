"""Quantizers by rule, layouts of scales, and the rule that made stored bytes."""

import ml_dtypes
import numpy as np
import pytest

import ulplab


@pytest.fixture
def x():
    rng = np.random.default_rng(0)
    return (rng.standard_normal((130, 256)) * np.exp(rng.standard_normal((130, 1)))).astype(ml_dtypes.bfloat16)


def nvfp4_of_vllm(x):
    """The quantizer that vLLM's tests have (`nvfp4_utils.py`), as its formulas say, in numpy."""
    x = x.astype(np.float32)
    above = np.float32(448.0 * 6.0) / np.abs(x).max()
    blocks = x.reshape(len(x), -1, 16)
    scale = (above * (np.abs(blocks).max(-1) * np.float32(1 / 6))).astype(np.float32)
    scale = np.clip(scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    stored = scale.astype(np.float32)
    factor = np.where(stored == 0, np.float32(0), np.float32(1) / (stored * (np.float32(1) / above)))
    values = np.clip(blocks * factor[..., None], -6, 6)
    codes = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(x.shape)
    return codes[:, ::2] | codes[:, 1::2] << 4, scale.view(np.uint8), above


def test_nvfp4_is_that_of_vllm(x):
    q = ulplab.quantize(x, "nvfp4", rule="vllm")
    codes, scales, above = nvfp4_of_vllm(x)
    # The rule computes reciprocals as the GPU approximates them; these are exact. All scales agree, and nearly all codes do.
    assert (q.scales == scales).all()
    assert (q.codes != codes).mean() < 1e-3
    assert q.global_scale == pytest.approx([1 / above], rel=1e-6) or q.global_scale == pytest.approx([above], rel=1e-6)


def off(x, by):
    """Numbers that are `by` float32 further up."""
    for _ in range(abs(by)):
        x = np.nextafter(x, np.float32(np.inf if by > 0 else -np.inf), dtype=np.float32)
    return x


@pytest.mark.parametrize("ulps", [(0, 1, 1), (1, -1, 0), (-1, 1, -1)])
@pytest.mark.parametrize("rule", ["vllm", None])
def test_reciprocals_may_be_off_by_an_ulp(ulps, rule):
    """Each `rcp.approx` of a GPU errs by at most one."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((512, 1024)).astype(np.float32)
    right = ulplab.quantize(x, "nvfp4", rule="vllm")
    above = right.global_scale.reshape(())
    blocks = x.reshape(len(x), -1, 16)
    scale = above * (np.abs(blocks).max(-1) * off(np.float32(1 / 6), ulps[0]))
    scale = np.clip(scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    factor = off(np.float32(1) / (scale.astype(np.float32) * off(np.float32(1) / above, ulps[1])), ulps[2])
    codes = np.clip(blocks * factor[..., None], -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(x.shape)
    codes = codes[:, ::2] | codes[:, 1::2] << 4
    assert (codes != right.codes).mean() < 1e-2
    ulplab.assert_quantized(codes, scale.view(np.uint8), x, "nvfp4", right.global_scale, rule=rule)


@pytest.mark.parametrize(("format", "rule"), [("nvfp4", "vllm"), ("nvfp4_single", "flashinfer")])
def test_what_reciprocals_cannot_change_is_refused(x, format, rule):
    rng = np.random.default_rng(4)
    right = ulplab.quantize(x, format, rule=rule)
    low, high = right.codes & 15, right.codes >> 4

    def moved(codes, by):
        """The codes of a step more, away from zero."""
        size = np.clip((codes & 7).astype(int) + by, 0, 7)
        return (codes & 8 | size).astype(np.uint8)

    def packed(by):
        return moved(low, by[0]) | moved(high, by[1]) << 4

    one = (np.zeros(low.shape, int), np.zeros(low.shape, int))
    # A code whose quotient lies in the middle between two borders.
    step = right.dequantize() / np.maximum(np.repeat(scale_values(right), 16, 1), 1e-30)
    quotient = np.abs(x / np.maximum(np.repeat(scale_values(right), 16, 1), 1e-30))
    middle = np.argwhere((np.abs(quotient - 1) < 0.1) & (np.abs(np.abs(step) - 1) < 1e-3))[0]
    one[middle[1] % 2][middle[0], middle[1] // 2] = 1
    faults = {
        "one up": packed((1, 1)),
        "one down": packed((-1, -1)),
        "one up or down": packed(rng.choice([-1, 0, 1], (2, *low.shape))),
        "one code": packed(one),
    }
    for fault, codes in faults.items():
        with pytest.raises(AssertionError):
            ulplab.assert_quantized(codes, right.scales, x, format, right.global_scale, rule=rule)
            pytest.fail(f"{fault}: not noticed")
    with pytest.raises(AssertionError):
        ulplab.assert_quantized(right.codes, right.scales + 1, x, format, right.global_scale, rule=rule)


def scale_values(quantized):
    """What the numbers of each block are multiples of."""
    scales = quantized.scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return scales if quantized.global_scale is None else scales / quantized.global_scale.reshape(())


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp8", "fp8_b128", "fp8_b128_f32", "fp8_token", "fp8_tensor", "int4_g128"])
def test_what_is_quantized_comes_back(x, format):
    q = ulplab.quantize(x, format)
    y = q.dequantize()
    assert y.shape == x.shape and y.dtype == np.float32
    ulplab.assert_close(y, x, sqnr=14)
    again = ulplab.quantize(y, format)
    if format in ("mxfp4", "mxfp8", "fp8_b128"):
        assert (again.dequantize() == y).all()
    assert ulplab.parity(x, q.codes, q.scales, q.global_scale, format=format).explained


def test_a_library_without_numpy_floats_reads_the_scales(x):
    q = ulplab.quantize(x, "mxfp8")
    codes = q.codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(130, -1, 32)
    scales = q.scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    ulplab.assert_close((codes * scales[..., None]).reshape(x.shape), q.dequantize(), rtol=0)


def swizzled(scales):
    """cuBLAS's order: tiles of 128 rows and 4 blocks, in which 4 rows that are 32 apart lie side by side."""
    rows, blocks = -(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4
    padded = np.zeros((rows, blocks), np.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales
    tiles = padded.reshape(rows // 128, 4, 32, blocks // 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).ravel()


def test_scales_are_laid_out_as_a_gemm_wants_them(x):
    q = ulplab.quantize(x, "nvfp4")
    assert (q.layout("128x4") == swizzled(q.scales)).all()
    assert (q.layout("128x4") == q.layout("blocked_128x4")).all()
    with pytest.raises(ValueError, match="unknown layout '128x5'"):
        q.layout("128x5")


def test_the_rule_is_found_and_faults_are_named(x):
    q = ulplab.quantize(x, "nvfp4", rule="vllm")
    ulplab.assert_quantized(q.codes, q.scales, x, "nvfp4", q.global_scale, rule="vllm")
    ulplab.assert_quantized(q.codes, q.layout("128x4"), x, "nvfp4", q.global_scale, layout="128x4")
    swapped = q.codes >> 4 | q.codes << 4
    with pytest.raises(AssertionError, match="nibble"):
        ulplab.assert_quantized(swapped, q.scales, x, "nvfp4", q.global_scale)
    with pytest.raises(AssertionError, match="scale"):
        ulplab.assert_quantized(q.codes, np.roll(q.scales, 1, 1), x, "nvfp4", q.global_scale)


def test_mistakes_are_named(x):
    with pytest.raises(ValueError, match="nvfp5"):
        ulplab.quantize(x, "nvfp5")
    with pytest.raises(ValueError, match="vlm"):
        ulplab.quantize(x, "nvfp4", rule="vlm")
    with pytest.raises(ValueError, match="float64"):
        ulplab.quantize(x.astype(np.float64), "nvfp4")
    with pytest.raises(ValueError, match="16|multiple|whole"):
        ulplab.quantize(x[:, :17], "nvfp4_2d")
    with pytest.raises(ValueError, match="expected \\[..., C\\]"):
        ulplab.quantize(np.float32(3), "nvfp4")
    q = ulplab.quantize(x, "nvfp4")
    with pytest.raises(ValueError, match="'scale' has 3 bytes, expected 2080"):
        ulplab.dequantize(q.codes, q.scales.ravel()[:3], q.global_scale, format="nvfp4", shape=q.shape)


@pytest.mark.parametrize("format", ["nvfp4", "fp8_b128", "mxfp8", "mxfp4"])
def test_codes_of_a_scale_that_was_not_rounded_are_named(x, format):
    q = ulplab.quantize(x, format)
    width = {"nvfp4": 16, "fp8_b128": 128}.get(format, 32)
    element, largest = ("float4_e2m1fn", 6) if "4" in format else ("float8_e4m3fn", 448)
    blocks = x.astype(np.float32).reshape(len(x), -1, width)
    values = np.clip(blocks / (np.abs(blocks).max(-1, keepdims=True) / np.float32(largest)), -largest, largest)
    codes = values.astype(getattr(ml_dtypes, element)).view(np.uint8).reshape(x.shape)
    codes = codes[:, ::2] | codes[:, 1::2] << 4 if "4" in format else codes
    with pytest.raises(AssertionError, match="codes are made with the scale before it was rounded"):
        ulplab.assert_quantized(codes, q.scales, x, format, q.global_scale)


def test_padding_is_looked_at(x):
    q = ulplab.quantize(x, "nvfp4")
    placed = q.layout("128x4")
    ulplab.assert_quantized(q.codes, placed, x, "nvfp4", q.global_scale, layout="128x4")
    padding = np.flatnonzero(ulplab.quantize(np.ones_like(x), "nvfp4").layout("128x4") == 0)
    placed[padding[3]] = 0x7F
    with pytest.raises(AssertionError, match="padding: 1 byte is not 0 that the layout 128x4 has"):
        ulplab.assert_quantized(q.codes, placed, x, "nvfp4", q.global_scale, layout="128x4")
    ulplab.assert_quantized(q.codes, placed, x, "nvfp4", q.global_scale, layout="128x4", padding="any")
    with pytest.raises(ValueError, match="padding = 'none'"):
        ulplab.assert_quantized(q.codes, placed, x, "nvfp4", q.global_scale, layout="128x4", padding="none")


def test_a_format_without_scales(x):
    codes = ulplab.quantize(x, "e4m3").codes
    ulplab.assert_quantized(codes, None, x, "e4m3")
    with pytest.raises(AssertionError):
        ulplab.assert_quantized(codes ^ 0x80, None, x, "e4m3")


FAR = {"mxfp8": {"vllm", "nearest"}, "mxfp4": {"vllm"}, "mxfp6_e2m3": {"vllm", "nearest"}, "nvfp4": set(), "fp8_token": set(),
    "fp8_b128_f32": set()}


@pytest.mark.parametrize("format", FAR)
def test_rules_that_cost_far_more_than_the_best(format):
    """Of this kind, too: rules with a smallest scale on numbers of 1e-6, and `floor` on uniform numbers."""
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    with pytest.raises(ValueError, match="rules are") as error:
        ulplab.quantize(x, format, rule="?")
    rules = str(error.value).partition("rules are ")[2].partition(";")[0].split(", ")
    errors, warned = {}, {}
    for rule in rules:
        q = ulplab.quantize(x, format, rule=rule)
        errors[rule] = float(np.linalg.norm(q.dequantize() - x) / np.linalg.norm(x))
        found = ulplab.parity(x, q.codes, q.scales, q.global_scale, format=format)
        warned[rule] = found.warning
        assert found.explained
        named = ulplab.parity(x, q.codes, q.scales, q.global_scale, format=format, rule=rule)
        assert named.explained and named.warning is None, rule
    assert {rule for rule, warning in warned.items() if warning} == FAR[format]
    best = min(errors.values())
    assert {rule for rule, error in errors.items() if error > 1.5 * best} == FAR[format]
    for rule in FAR[format]:
        q = ulplab.quantize(x, format, rule=rule)
        with pytest.warns(ulplab.UlplabWarning,
            match=rf"the rule {rule} clips the largest element of \d+\.\d+ % of blocks; its relative L2"):
            ulplab.assert_quantized(q.codes, q.scales, x, format, q.global_scale)
        assert f"{errors[rule]:.3e}".replace("e-0", "e-") in warned[rule]


def test_a_rule_that_clips_most_blocks_is_warned_of():
    """Its error is 1.46 times that of the best rule here. On these numbers `floor` leaves the same bytes."""
    x = np.random.default_rng(0).uniform(-1, 1, (64, 256)).astype(np.float32)
    q = ulplab.quantize(x, "mxfp4", rule="vllm")
    with pytest.warns(ulplab.UlplabWarning, match=r"the rule \w+ clips the largest element of 99\.\d+ % of blocks"):
        ulplab.assert_quantized(q.codes, q.scales, x, "mxfp4")


def test_scales_in_another_order_are_named():
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    q = ulplab.quantize(x, "nvfp4")
    said = "not judged: scales has 2048 bytes, expected 1024: .*; layouts that have 2048 are .*128x4.*say layout="
    with pytest.raises(ValueError, match=said):
        ulplab.assert_quantized(q.codes, q.layout("128x4"), x, "nvfp4", q.global_scale)
    with pytest.raises(ValueError, match="has no scales, so no layout"):
        ulplab.assert_quantized(ulplab.quantize(x, "e4m3").codes, None, x, "e4m3", layout="128x4")
