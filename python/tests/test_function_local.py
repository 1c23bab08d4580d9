"""ulplab.bounds: each operation of a model is judged by what it was given."""

import re

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
import ulplab  # noqa: E402

RNG = torch.Generator().manual_seed(0)
X = torch.randn(2, 9, 32, generator=RNG)


@torch.library.custom_op("ulplab_tests::norm", mutates_args=())
def norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def rms_norm(x, eps=1e-5):
    return F.rms_norm(x, (32,), eps=eps)


def test_forward_and_backward_passes_are_judged():
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    with ulplab.bounds() as found:
        layer(X).square().mean().backward()
    names = [one.name for one in found.operations]
    assert len(names) > 30 and {"addmm", "native_layer_norm", "native_layer_norm_backward"} <= set(names)
    assert {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"} <= set(names)
    assert all(0 <= one.ratio <= 1 and not one.message for one in found.operations)
    assert "operations judged, 0 not judged" in repr(found) and "test_function_local.py:" in repr(found)


@pytest.mark.parametrize("words", [{}, {"is_causal": True}, {"attn_mask": torch.randn(9, 9, generator=RNG)}, {"scale": 0.3}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_attention_is_judged(words, dtype):
    q = torch.randn(1, 4, 9, 16, generator=RNG).to(dtype)
    words = {name: one.to(dtype) if name == "attn_mask" else one for name, one in words.items()}
    with ulplab.bounds() as found:
        F.scaled_dot_product_attention(q, q, q, **words)
    assert [one.name for one in found.operations] == ["_scaled_dot_product_flash_attention_for_cpu"]


def test_a_custom_operation_is_judged_by_its_definition():
    with ulplab.bounds(references={"ulplab_tests::norm": rms_norm}) as found:
        norm(X).relu()
    assert [one.name for one in found.operations] == ["ulplab_tests::norm"]
    with pytest.raises(AssertionError, match=r"ulplab_tests::norm \(test_function_local.py:\d+\) .*576 of 576 elements are outside"):
        with ulplab.bounds(references={"ulplab_tests::norm": lambda x: rms_norm(x, 1e-3)}):
            norm(X)


@torch.library.custom_op("ulplab_tests::norm_and_root", mutates_args=())
def norm_and_root(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    root = torch.rsqrt(x.square().mean(-1) + 1e-5)
    return x * root[..., None], root


@pytest.mark.parametrize(
    "gives, kinds",
    [
        (lambda x: rms_norm(x)[:1], r"float32[1, 9, 32]"),
        (lambda x: rms_norm(x).mT, r"float32[2, 32, 9]"),
        (lambda x: None, "NoneType"),
        (lambda x: 2.0, "float"),
        (lambda x: (x, x), r"float32[2, 9, 32], float32[2, 9, 32]"),
        (lambda x: (), "nothing"),
        (lambda x: x.long(), r"int64[2, 9, 32]"),
    ],
)
def test_a_reference_gives_what_the_operation_gives(gives, kinds):
    said = rf"not judged: ulplab_tests::norm \(test_function_local.py:\d+\): its reference gives {re.escape(kinds)}; expected float32\[2, 9, 32\]"
    with pytest.raises(ValueError, match=said):
        with ulplab.bounds(references={"ulplab_tests::norm": gives}):
            norm(X)
    # Other floating-point types are other roundings.
    with ulplab.bounds(references={"ulplab_tests::norm": lambda x: rms_norm(x.double())}):
        norm(X)


def test_a_reference_gives_all_outputs():
    name = "ulplab_tests::norm_and_root"
    right = {name: lambda x: (rms_norm(x), torch.rsqrt(x.square().mean(-1) + 1e-5))}
    with ulplab.bounds(references=right) as found:
        norm_and_root(X)
    assert [one.name for one in found.operations] == [name]
    with pytest.raises(ValueError, match=r"its reference gives float32\[2, 9, 32\]; expected float32\[2, 9, 32\], float32\[2, 9\]"):
        with ulplab.bounds(references={name: rms_norm}):
            norm_and_root(X)
    with pytest.raises(ValueError, match=rf"references: '{name}' raises TypeError: .*missing 1 .*; expected a function of {name}\(Tensor x\)"):
        with ulplab.bounds(references={name: lambda x, w: x}):
            norm_and_root(X)


def written_by_others(x):
    y = torch.empty_like(x)
    y.numpy()[:] = x.numpy() * 2
    return y


@pytest.mark.parametrize(
    "function, why",
    [
        (norm, "ulplab_tests::norm .*not an operation of torch itself"),
        (lambda x: F.dropout(x, 0.5), "bernoulli_ .*random numbers"),
        (lambda x: written_by_others(x).exp(), "exp .*reads memory that no operation of torch has written"),
        (lambda x: x.view(-1), "no operation of torch computed anything"),
        (torch.linalg.svdvals, "_linalg_svd .*does not know its rounding error"),
    ],
)
def test_what_has_no_bound_is_not_judged(function, why):
    with pytest.raises(ValueError, match=f"not judged: {why}"):
        with ulplab.bounds():
            function(X)


def test_a_wrong_operation_fails(monkeypatch):
    library = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    try:
        library.impl("exp", lambda x: torch.exp2((1.44 if x.dtype == torch.float32 else 1.4426950408889634) * x), "CPU")
        with pytest.raises(AssertionError, match=r"exp \(test_function_local.py:\d+\)"):
            with ulplab.bounds():
                X.exp()
    finally:
        library._destroy()
    with ulplab.bounds():
        X.exp()


def test_errors_of_the_block_are_its_own():
    with pytest.raises(KeyError):
        with ulplab.bounds():
            raise KeyError("x")
    with pytest.raises(ValueError, match="rounds = 'never', expected one of"):
        ulplab.bounds(rounds="never")
