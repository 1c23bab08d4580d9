"""Questions to a gate about the steps of a function: faults that it must notice, with names that say where they are."""

import pytest

torch = pytest.importorskip("torch")

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import ulplab  # noqa: E402
from ulplab import _functions, _graph_faults  # noqa: E402

RNG = torch.Generator().manual_seed(0)
X, W = torch.randn(8, 64, generator=RNG), torch.randn(3, 64, generator=RNG)


def lets_all_pass(got, want):
    return True


def is_equal(got, want):
    return bool((got == want).all())


def two_outputs(x, w):
    return x * w[0] + 0.0 * x.exp(), x - w[1]


def in_a_loop(x, w):
    for row in w:
        x = x + row
    return F.gelu(x)


def at(function, line):
    """A line of a function, as names of faults have it."""
    return f"(test_function_audit.py:{function.__code__.co_firstlineno + line})"


def test_faults_that_right_kernels_may_have_are_not_counted():
    for gate in (lets_all_pass, is_equal):
        found = ulplab.audit(gate, two_outputs, (X, W))
        asked = found.noticed if gate is is_equal else found.survivors
        assert len(asked) == len(found.noticed) + len(found.survivors) == 6, found
        # A product by 0 stays 0, and the other output has faults of its own.
        assert [ratio for fault, ratio in found.below_bound.items() if "exp" in fault] == [0.0]
        assert f"not counted: bf16 after exp {at(two_outputs, 1)}: it changes no element of the output" in str(found)
        assert not any(" sub " in fault for fault in [*asked, *found.below_bound])
    # A bias of 5e-7 is half a spacing of f32 there, which right kernels may be off by, and much in f64.
    for x, counted in ((X.abs() + 8, False), (X.abs().double() + 8, True)):
        found = ulplab.audit(lets_all_pass, lambda x: x + 5e-7, (x,))
        (missing,) = [fault for fault in [*found.survivors, *found.below_bound] if fault.startswith("a missing term")]
        assert (missing in found.survivors) == counted and 0 < found.below_bound.get(missing, 0.5) <= 1
    assert "times the bound of right kernels at most" in str(ulplab.audit(is_equal, lambda x: x + 5e-7, (X.abs() + 8,)))
    # Roundings that right kernels have, as they are said to compute.
    fused, eager = (ulplab.audit(is_equal, lambda x: x.exp() + 1, (X.bfloat16(),), rounds=rounds) for rounds in ("end", "as_written"))
    assert any(fault.startswith("bf16 after exp") for fault in fused.noticed)
    assert any(fault.startswith("bf16 after exp") for fault in eager.below_bound)
    # Also: named operations.
    named = ulplab.audit(lets_all_pass, "rmsnorm", {"x": X, "weight": W[0]})
    assert named.below_bound["gate_without_silu"] == 0 < named.below_bound["no_eps"] <= 1 and "no_weight" in named.survivors
    with pytest.raises(TypeError, match="audit: rounds is for op=function"):
        ulplab.audit(is_equal, "rmsnorm", {"x": X}, rounds="as_written")


def test_names_of_faults_say_where_they_are():
    found = ulplab.audit(lets_all_pass, in_a_loop, (X, W))
    names = list(found.survivors)
    place = at(in_a_loop, 2)
    assert [name for name in names if name.startswith("bf16 after add")] == [f"bf16 after add {place}, call {call} of 3" for call in (1, 2, 3)]
    assert f"a missing term of add {place}, call 2 of 3, the first" in names
    assert f"bf16 after gelu {at(in_a_loop, 3)}, step 3 of 5: erf" in names
    for function, inputs in ((in_a_loop, (X, W)), (lambda x: F.layer_norm(x, (64,)).logsumexp(-1), (X,)), (two_outputs, (X, W))):
        bound = next(iter(_functions.bounds_of(function, inputs).values()))
        every = [name for name, _ in _graph_faults.named_results(bound._tape, bound._value)]
        assert len(set(every)) == len(every) > 5 and not any("[" in name for name in every)


@pytest.mark.parametrize(
    "inputs, words, kind, dtype",
    [
        ((X, W), {}, torch.Tensor, torch.float32),
        ((X.bfloat16(), W.bfloat16()), {}, torch.Tensor, torch.bfloat16),
        ((X, W), {"dtype": ml_dtypes.bfloat16}, torch.Tensor, torch.bfloat16),
        ((X, W), {"dtype": torch.float16}, torch.Tensor, torch.float16),
        ((X.double(), W.double()), {}, torch.Tensor, torch.float64),
        ((X.numpy(), W.numpy()), {}, np.ndarray, np.float32),
        ((X.double().numpy(), W.double().numpy()), {}, np.ndarray, np.float64),
        ((X.numpy(), W.numpy()), {"dtype": ml_dtypes.bfloat16}, np.ndarray, ml_dtypes.bfloat16),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_gate_is_given_tensors_of_the_kind_of_the_inputs(inputs, words, kind, dtype, named):
    seen = []

    def gate(got, want):
        seen.append(all(isinstance(x, kind) and x.dtype == dtype for x in (got, want)) and got is not want)

    if named:
        ulplab.audit(gate, "rmsnorm", {"x": inputs[0], "weight": inputs[1][0]}, **{"dtype": dtype} | words)
    else:
        assert ulplab.audit(gate, lambda x, w: x * w[0], inputs, **words).right_passes
    assert len(seen) > 2 and all(seen)
