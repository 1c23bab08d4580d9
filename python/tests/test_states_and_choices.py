"""Operations with several outputs, with choices that errors leave open, and with inputs that do not fit."""

import kernels_attention as attention
import kernels_gated_delta as gated_delta
import kernels_matmul as matmul
import kernels_moe as moe
import kernels_sample as sampling
import kernels_sparse as sparse
import kernels_swap as swap
import numpy as np
import pytest
from draws import GIVEN, KERNELS
from kernels import normal, rounded
from ml_dtypes import bfloat16

import ulplab


def test_a_state_that_is_not_written_is_named():
    rng = np.random.default_rng(0)
    for op, given in (("causal_conv1d", GIVEN["causal_conv1d"](rng)[0]), ("gated_delta", GIVEN["gated_delta"](rng)[1])):
        got = KERNELS[op](rng, **given)
        ulplab.assert_close(got, op=op, inputs=given)
        first = next(iter(got))
        got["state"] = given["state"]
        ulplab.assert_close(got[first], op=op, inputs=given, output=first)
        with pytest.raises(AssertionError, match="bound of 'state'(.*\n)+.*looks like state_not_written"):
            ulplab.assert_close(got, op=op, inputs=given)


def test_outputs_are_asked_for_by_name():
    given = {"x": np.ones((2, 3)), "k": 2}
    right = {"values": np.ones((2, 2)), "indices": np.array([[0, 1], [0, 1]])}
    with pytest.warns(ulplab.UlplabWarning):
        ulplab.assert_close(right, op="top_k", inputs=given)
    with pytest.raises(ValueError, match="top_k has no output 'places'; it has values, indices"):
        ulplab.assert_close({"places": right["indices"]}, op="top_k", inputs=given)
    with pytest.raises(TypeError, match="a dictionary of outputs"):
        ulplab.assert_close(right, op="top_k", inputs=given, output="values")
    with pytest.raises(TypeError, match="a dictionary of outputs"):
        ulplab.assert_close({}, op="top_k", inputs=given)


def test_experts_that_scores_cannot_tell_apart():
    rng = np.random.default_rng(1)
    given = moe.sizes(rng, 4, 32, 5, 24)
    # Tokens 0 and 1 have two experts that are equal, or nearly so, for the last place.
    logits = np.array([[3, 2, 2, 0, 1], [3, 2, 2 + 2e-7, 0, 1], [3, 2, 2.001, 0, 1], [0, 1, 2, 3, 4]], np.float32)
    for chosen in ([0, 1], [0, 2]):
        pushed = logits.copy()
        pushed[:2, chosen[1]] += 1e-6
        got = moe.kernel(rng, **given, logits=pushed, top_k=2)
        ulplab.assert_close(got, op="moe", inputs=given, logits=logits, top_k=2)
    pushed = logits.copy()
    pushed[2, 1] += 0.01
    got = moe.kernel(rng, **given, logits=pushed, top_k=2)
    with pytest.raises(AssertionError, match="of 128 elements are outside"):
        ulplab.assert_close(got, op="moe", inputs=given, logits=logits, top_k=2)


def test_more_choices_of_experts_than_are_tried():
    """Equal scores of 12 experts allow 495 choices of 4, of which 64 are tried: what fits none of them is neither right nor wrong."""
    rng = np.random.default_rng(2)
    given = moe.sizes(rng, 3, 32, 12, 24)
    logits = np.zeros((3, 12), np.float32)
    logits[2] = np.arange(12)
    for chosen, judged in ((range(4), True), (range(8, 12), False)):
        pushed = logits.copy()
        pushed[:2, list(chosen)] += 1e-6
        got = moe.kernel(rng, **given, logits=pushed, top_k=4)
        if judged:
            ulplab.assert_close(got, op="moe", inputs=given, logits=logits, top_k=4)
        else:
            with pytest.raises(ValueError, match="not judged: moe: row 0 fits none of the 64 choices of experts that were tried"):
                ulplab.assert_close(got, op="moe", inputs=given, logits=logits, top_k=4)
        # A row whose scores decide is wrong by itself.
        got[2] = -got[2]
        with pytest.raises(AssertionError, match="elements are outside"):
            ulplab.assert_close(got, op="moe", inputs=given, logits=logits, top_k=4)


def test_decisions_of_a_kernel_are_followed_where_errors_allow_it():
    """Operands in bf16 make later events decide by chance; three of them with the kernel's own decisions are right, and without are not."""
    rng = np.random.default_rng(5)
    given = swap.drawn(rng, [2, 200, 40, 96, 3, 7]) | {"events": 3, "steps": 1, "operands": "bf16"}
    got = swap.swap_ffn(rng, **given)
    ulplab.assert_close(got, op="swap_ffn", inputs={**given, "decisions": got["decisions"]})
    with pytest.raises(AssertionError):
        ulplab.assert_close(got, op="swap_ffn", inputs=given)
    # What errors do not allow is not followed, and is outside.
    wrong = got["decisions"].copy()
    wrong[0, :, :3] ^= 4
    with pytest.raises(AssertionError, match="6 of 1,200 elements are outside the bound of 'decisions'"):
        ulplab.assert_close(wrong, op="swap_ffn", inputs={**given, "decisions": wrong}, output="decisions")


def test_a_token_is_right_if_no_other_is_surely_better():
    logits = np.array([[1, 1 + 1e-7, 0], [1, 1.01, 0], [2, 2, 1]], np.float32)
    given = {"logits": logits, "temperature": np.array([0.5, 0.5, 0], np.float32), "noise": np.zeros((3, 3), np.float32)}
    for first in (0, 1):
        ulplab.assert_close(np.array([first, 1, 0]), op="sample", inputs=given)
    for wrong in ([2, 1, 0], [0, 0, 0], [0, 1, 1]):
        with pytest.raises(AssertionError, match="1 of 3 elements are outside"):
            ulplab.assert_close(np.array(wrong), op="sample", inputs=given)


def test_a_seed_of_64_bits_is_given_as_two_words():
    rng = np.random.default_rng(6)
    given = {"logits": normal(rng, 20, 50), "temperature": np.ones(20, np.float32)}
    got = sampling.sample(rng, **given, seed=0x0123456789ABCDEF)
    ulplab.assert_close(got, op="sample", inputs={**given, "seed_words": np.array([0x89ABCDEF, 0x01234567])})
    with pytest.raises(AssertionError):
        ulplab.assert_close(got, op="sample", inputs={**given, "seed": 0x0123456789ABC})


def test_what_is_moved_must_be_equal_to_the_bit():
    x = np.array([[[1.0, -0.0, np.inf], [np.nan, 1e-45, 3.0]]], np.float32)
    right = np.swapaxes(x, 1, 2).copy()
    ulplab.assert_close(right, op="state_transpose", inputs={"x": x})
    assert ulplab.reference.state_transpose(x=x).bound("float32").max() == 0
    for at, wrong, said in (((0, 1, 0), 0.0, "the sign of zero is the other one"),
        ((0, 0, 0), np.nextafter(np.float32(1), np.float32(0)), "where 0 is allowed"), ((0, 1, 1), 0.0, "1 of 6")):
        bad = right.copy()
        bad[at] = wrong
        with pytest.raises(AssertionError, match=said):
            ulplab.assert_close(bad, op="state_transpose", inputs={"x": x})


def test_weights_of_attention_that_are_rounded():
    rng = np.random.default_rng(7)
    given = sparse.given_sparse_attention(rng)[0]
    given["position"][:] = 31
    got = sparse.sparse_attention(rng, **given, p="bf16", dtype=np.float32)
    ulplab.assert_close(got, op="sparse_attention", inputs=given, p="bf16")
    with pytest.raises(AssertionError, match='with p = "bf16", whose bound is wider, 0 elements'):
        ulplab.assert_close(got, op="sparse_attention", inputs=given)


def test_equal_elements_in_any_order_but_each_once():
    x = np.array([[1, 5, 5, 5, 0]], np.float32)
    for indices in ([1, 2, 3], [3, 1, 2]):
        ulplab.assert_close(np.array([indices]), op="top_k", inputs={"x": x, "k": 3}, output="indices", ties="any")
    for indices in ([1, 1, 2], [0, 1, 2]):
        with pytest.raises(AssertionError):
            ulplab.assert_close(np.array([indices]), op="top_k", inputs={"x": x, "k": 3}, output="indices", ties="any")
    with pytest.raises(AssertionError, match='looks like ties = "any"'):
        ulplab.assert_close(np.array([[3, 1, 2]]), op="top_k", inputs={"x": x, "k": 3}, output="indices")


def test_heads_without_channels_have_outputs_of_the_right_shape():
    found = ulplab.reference.compute("attention", q=ones(1, 2, 2, 0), k=ones(1, 3, 2, 0), v=ones(1, 3, 2, 4))
    assert found["o"].value.shape == (1, 2, 2, 4) and found["lse"].value.shape == (1, 2, 2)


def test_the_base_of_lse_is_said():
    rng = np.random.default_rng(2)
    given = {name: normal(rng, 1, 7, 2, 16) for name in "qkv"}
    got = attention.kernel(rng, **given, lse_base="2")["lse"]
    ulplab.assert_close(got, op="attention", inputs=given, output="lse", lse_base="2")
    with pytest.raises(AssertionError, match='looks like lse_base = "2"'):
        ulplab.assert_close(got, op="attention", inputs=given, output="lse")


def test_operands_that_are_dequantized_are_the_same_as_codes_with_scales():
    rng = np.random.default_rng(3)
    given = matmul.nvfp4(rng, 5, 8, 64)
    got = matmul.kernel(rng, **given)
    ulplab.assert_close(got, op="matmul", inputs=given)
    whole = {}
    for name in "ab":
        x = matmul.codes(given[name], "e2m1")
        whole[name] = x * matmul.spread(given[f"{name}_scale"], x.shape)
    ulplab.assert_close(got, op="matmul", inputs=whole, b_rows="n", alpha=given["alpha"], dtype=got.dtype)


def test_a_state_in_bf16_over_many_tokens():
    """Errors of one token meet those of the next: 200 tokens in float32, the state stored once at the end."""
    rng = np.random.default_rng(4)
    given = gated_delta.inputs(rng, 1, 200, 2, 4, 32, 16)
    given |= {"beta": rng.uniform(0, 1, (1, 200, 4)).astype(np.float32), "l2norm": True}
    got = gated_delta.kernel(rng, **given, state_dtype=bfloat16)
    ulplab.assert_close(got, op="gated_delta", inputs=given)
    wrong = {"o": rounded(got["o"].astype(np.float32) * 1.02, bfloat16)}
    with pytest.raises(AssertionError, match="elements are outside"):
        ulplab.assert_close(wrong, op="gated_delta", inputs=given)


def ones(*shape):
    return np.ones(shape, np.float32)


def qkv(queries=(2, 1, 4, 8), keys=(6, 4, 2, 8)):
    return {"q": ones(*queries), "k": ones(*keys), "v": ones(*keys)}


def ragged():
    """Two sequences, one behind the other."""
    starts = {"cu_seqlens_q": [0, 2, 5], "cu_seqlens_k": [0, 4, 6]}
    return {"q": ones(5, 4, 8), "k": ones(6, 2, 8), "v": ones(6, 2, 8), **starts}


SPARSE = {"q": ones(2, 3, 8), "window": ones(2, 4, 8), "position": np.array([0, 9]), "entries": ones(2, 5, 8)}
RING = {"kv": ones(2, 8), "gate": ones(2, 8), "ape": ones(4, 8), "cos": ones(9, 1), "sin": ones(9, 1), "position": np.array([3, -1])}
RING |= {"ring_kv": ones(2, 8, 8), "ring_gate": ones(2, 8, 8), "entries": ones(2, 2, 4)}
STREAMS = {"x": ones(2, 4, 6), "fn": ones(24, 24), "base": ones(24), "scale": ones(3)}
SWAP = {"x": ones(2, 3, 8), "ram": ones(2, 3, 4, 8), "map": 228 * ones(2, 3), "router": ones(5, 8), "router_bias": ones(5)}
SWAP |= {"ffn_g": ones(8), "w1": ones(6, 8), "w3": ones(6, 8), "w2": ones(8, 6)}
SSM = {"u": ones(3, 9), "a": ones(3, 4), "b": ones(3, 4), "c": ones(3, 4)}
TABLE = np.array([[0, 1], [2, 6]], np.int32)
# 384 elements in two blocks: of 256 and the rest, or of 192.
WIDE = {"a": ones(4, 384), "b": ones(384, 3), "a_scale": ones(4, 2)}


@pytest.mark.parametrize(
    ("op", "given", "said"),
    [
        ("matmul", {"a": ones(4, 64), "b": ones(64, 3), "a_scale": ones(3, 2)}, r"'a_scale' is \[3, 2\] for a of \[4, 64\]"),
        ("matmul", WIDE, "2 scales for 384 elements .* say k_block = 256 or k_block = 192"),
        ("matmul", {**WIDE, "k_block": 128}, "2 scales for 384 elements, where k_block = 128"),
        ("matmul", {**WIDE, "k_block": 0.5}, "k_block = 0.5, expected a whole number"),
        ("matmul", {**WIDE, "a_scale": ones(4, 2).astype(np.uint8)}, "'a_scale' is uint8: bytes .* float8_e8m0fnu"),
        ("matmul", {**WIDE, "a": ones(4, 384).astype(np.uint8)}, "'a' is uint8: bytes .* a_codes = "),
        ("matmul", {"a": ones(4, 64), "b": ones(64), "b_scale": ones(1)}, r"'b' is \[64\], expected a matrix"),
        ("matmul", {"a": ones(4, 64), "b": ones(64, 3), "b_codes": "e2m1"}, "expected b_rows = \"n\""),
        ("matmul", {"a": 300 * ones(4, 8), "b": ones(16, 3), "a_codes": "e2m1"}, "'a' has an element 300, expected bytes"),
        ("matmul", {"a": ones(2, 4, 8), "b": ones(3, 8, 5)}, r"'b' is \[3, 8, 5\]"),
        ("attention", {**qkv(), "block_table": TABLE, "seq_lens": [8, 5]}, "'block_table' has 6 for a page that is used"),
        ("attention", {**qkv(), "block_table": TABLE, "seq_lens": [9, 4]}, "'seq_lens' has 9, expected whole numbers of at most 8"),
        ("attention", {**qkv(), "block_table": TABLE[:1]}, r"'block_table' is \[1, 2\], expected \[2, pages of a sequence\]"),
        ("attention", {**qkv(keys=(0, 4, 2, 8)), "block_table": TABLE, "seq_lens": [1, 1]}, "expected one of the 0 pages"),
        ("attention", {**qkv(keys=(2, 4, 2, 8)), "seq_lens": [1, 1, 1]}, r"'seq_lens' is \[3\], expected \[2\]"),
        ("attention", {**ragged(), "cu_seqlens_q": [0, 3, 2, 5]}, r"'cu_seqlens_q' is \[0.0, 3.0, 2.0, 5.0\], expected whole numbers that"),
        ("attention", {**ragged(), "cu_seqlens_q": [0, 4]}, "ascend and end with 5"),
        ("attention", {**ragged(), "cu_seqlens_k": [0, 6]}, "'cu_seqlens_k' is of 1 sequences, expected 2"),
        ("attention", {**ragged(), "cu_seqlens_k": None}, "with a block_table"),
        ("attention", {**ragged(), "layout": "bhtd"}, 'expected layout = "bthd"'),
        ("causal_conv1d", {"x": ones(2, 3, 4), "weight": ones(4, 4)}, r"'weight' is \[4, 4\], expected \[3, W\]"),
        ("causal_conv1d", {"x": ones(2, 3), "weight": ones(3, 4), "state": ones(2, 3, 2)}, "with S of 3 or more"),
        ("moe", {"x": ones(2, 3), "w13": ones(4, 6, 3), "w2": ones(4, 3, 3), "top_k": 2}, "expected one of them"),
        ("moe", {"x": ones(2, 3), "w13": ones(4, 6, 3), "w2": ones(4, 3, 3), "logits": ones(2, 4)}, "'top_k' is missing"),
        ("moe", {"x": ones(2, 3), "w13": ones(4, 5, 3), "w2": ones(4, 3, 3), "top_k": 2}, r"'w13' is \[4, 5, 3\]"),
        ("gated_delta", {"q": ones(1, 2, 2, 4), "k": ones(1, 2, 2, 4), "v": ones(1, 2, 3, 4), "g": -ones(1, 2, 3)}, "HV a multiple of 2"),
        ("gated_delta", {**{x: ones(1, 2, 2, 4) for x in "qkv"}, "g": ones(1, 2, 2)}, "'g' has 1, expected logs of decays"),
        ("top_k", {"x": ones(2, 3), "k": 4}, "'k' is 4, expected a whole number of at most 3 columns"),
        ("rope", {"x": ones(5, 2, 8), "cos": ones(5, 3), "sin": ones(5, 3), "width": "full"}, "expected .* with an even R up to 8"),
        ("layernorm", {"x": ones(5, 2), "eps": -1.0}, "eps = -1, expected 0 or more"),
        ("diagonal_ssm", {**SSM, "u": ones(9)}, r"'u' is \[9\], expected \[..., H, S\]"),
        ("diagonal_ssm", {**SSM, "a": ones(2, 4)}, r"'a' is \[2, 4\], expected \[3, N\]"),
        ("diagonal_ssm", {**SSM, "b": ones(3, 5)}, r"'b' is \[3, 5\], expected \[3, 4\]"),
        ("diagonal_ssm", {**SSM, "state": ones(3, 5)}, r"'state' is \[3, 5\], expected \[3, 4\]"),
        ("state_transpose", {"x": ones(3)}, r"'x' is \[3\], expected \[..., K, V\]"),
        ("sample", {"logits": ones(3)}, r"'logits' is \[3\], expected \[B, V\]"),
        ("sample", {"logits": ones(3, 5), "temperature": ones(2)}, r"'temperature' is \[2\], expected \[3\]"),
        ("sample", {"logits": ones(3, 5), "temperature": -ones(3)}, "'temperature' has -1, expected 0 or more"),
        ("sample", {"logits": ones(3, 5), "position": np.array([0, -2, 3])}, "'position' has -2, expected whole numbers from -1"),
        ("sample", {"logits": ones(3, 5), "seed": 2.0**60}, "expected a whole number from 0 to 2.53, or seed_words"),
        ("sample", {"logits": ones(3, 5), "seed": 1, "seed_words": ones(2)}, r"'seed_words' \[1.0, 1.0\], expected one of them"),
        ("sparse_attention", {**SPARSE, "window": ones(2, 0, 8)}, r"'window' is \[2, 0, 8\], expected \[2, 1 or more, 8\]"),
        ("sparse_attention", {**SPARSE, "entries": ones(2, 5, 7)}, r"'entries' is \[2, 5, 7\], expected \[2, N, 8\]"),
        ("sparse_attention", {**SPARSE, "indices": np.array([[1], [5]])}, "'indices' has 5, expected whole numbers from -1 to 4"),
        ("sparse_attention", {**SPARSE, "count": np.array([6, 1])}, "'count' has 6, expected whole numbers from 0 to 5"),
        ("sparse_attention", {**SPARSE, "indices": ones(2, 1), "count": ones(2)}, "and 'count' .* expected one of them"),
        ("mhc_pre", {**STREAMS, "fn": ones(24, 6)}, r"'fn' is \[24, 6\], expected \[24, 24\]"),
        ("mhc_pre", {**STREAMS, "scale": ones(1)}, r"'scale' is \[1\], expected \[3\]"),
        ("mhc_pre", {**STREAMS, "iterations": 0}, "'iterations' is 0, expected a whole number of 1 or more"),
        ("hyper_head", {**STREAMS, "fn": ones(4, 24), "scale": ones(1)}, r"'base' is \[24\], expected \[4\]"),
        ("hyper_head", {"x": ones(4), "fn": ones(4, 4), "base": ones(4), "scale": ones(1)}, r"'x' is \[4\], expected \[..., N, C\]"),
        ("compressor", {**RING, "entries": ones(2, 2, 5)}, r"'entries' is \[2, 2, 5\] for kv of \[2, 8\]"),
        ("compressor", {**RING, "ring_kv": ones(2, 4, 8)}, r"'ring_kv' is \[2, 4, 8\], expected \[2, 8, 8\]"),
        ("compressor", {**RING, "position": np.array([3, 8])},
            "'position' has 8, expected whole numbers from -1 to 7, as there are 2 places of 4"),
        ("swap_ffn", {**SWAP, "ram": ones(2, 3, 8)}, r"'ram' is \[2, 3, 8\], expected \[B, C, 4, D\]"),
        ("swap_ffn", {**SWAP, "w2": ones(6, 8)}, r"'w2' is \[6, 8\], expected \[8, 6\]"),
        ("swap_ffn", {**SWAP, "map": 256 * ones(2, 3)}, "'map' has 256, expected whole numbers from 0 to 255"),
        ("swap_ffn", {**SWAP, "x_in": ones(2, 8)}, "of 'x' and 'x_in' expected one"),
        ("swap_ffn", {**SWAP, "basis": ones(2, 5, 8)}, "'film_alpha' is missing, which belongs to 'basis'"),
    ],
)
def test_mistakes_are_named(op, given, said):
    with pytest.raises(ValueError, match=said):
        ulplab.assert_close(ones(2, 2), op=op, inputs=given)


def test_scales_of_any_block():
    """384 columns in two blocks of 192: a right kernel, whose blocks are no power of two."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 384)).astype(np.float32) for rows in (5, 7))
    a_scale = rng.uniform(0.5, 2, (5, 2)).astype(np.float32)
    got = (a * a_scale.repeat(192, 1)) @ b.T
    given = dict(a=a, b=b, a_scale=a_scale, b_rows="n")
    ulplab.assert_close(got, op="matmul", inputs={**given, "k_block": 192})
    with pytest.raises(AssertionError):
        ulplab.assert_close(got, op="matmul", inputs={**given, "k_block": 256})


def test_bytes_that_are_integers_are_read():
    """Products of uint8 without scales are those of integers."""
    a, b = (np.random.default_rng(2).integers(0, 256, shape).astype(np.uint8) for shape in ((2, 64), (64, 3)))
    ulplab.assert_close(a.astype(np.int32) @ b.astype(np.int32), op="matmul", inputs=dict(a=a, b=b), accumulate="i32")


def test_a_scale_of_both_that_is_ignored_is_named():
    rng = np.random.default_rng(1)
    given = {name: rng.standard_normal((2, 7, 3, 16)).astype(np.float32) for name in "qkv"}
    got = ulplab.reference.attention(**given)["o"].value.astype(np.float32)
    with pytest.raises(AssertionError, match="looks like no_kv_scales: k_scale and v_scale are left out"):
        ulplab.assert_close(got, op="attention", inputs={**given, "k_scale": 0.5, "v_scale": 2.0}, output="o")
