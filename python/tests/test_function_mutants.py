"""Graphs with one step changed: what is off by more than twice the bound fails, forward and backward."""

import pytest

torch = pytest.importorskip("torch")

import functions as known  # noqa: E402
import numpy as np  # noqa: E402
from ulplab import _functions, _graph_faults, _judged  # noqa: E402

FORWARD = ["block", "attention", "cell", "gemm_gelu_softmax", "experts", "conv2d", "group_norm", "logsumexp", "huber", "in_place"]
BACKWARD = ["rms_norm", "layer_norm", "softmax", "gelu", "cross_entropy", "attention"]


def mutants(tape):
    """Changed calls of steps: leave out, lose, round, scale, shift."""
    for number, step in enumerate(tape.steps):
        for fault in _graph_faults.faults(step):
            yield number, fault.what, fault.call
        if step.local is not None:
            yield number, f"{step.name} times 1.001", lambda *given, step=step: step.call(*given) * 1.001
            yield number, f"{step.name} of the next row", lambda *given, step=step: step.call(*given).roll(1, 0) if given[0].ndim else step.call(*given)


def judged(bound, got):
    """Verdict of a mutant: failed or not."""
    found = _judged.Found(got.float().double().numpy(), bound, "float32")
    found.settle()
    return bool(found.compared()["outside"])


def missed(bound):
    """Mutants that pass and have an effect of more than twice the bound of some element; and how many have such an effect."""
    tape, value = bound._tape, bound._value
    elements = range(value.z.numel())
    some = list(elements)[:: max(1, len(elements) // 48)]
    allowed = np.array([_functions.stored_bound(bound.value.reshape(-1)[i : i + 1], [bound.of(i).bound], "float32")[0] for i in some])
    passed, count = [], 0
    for number, what, call in mutants(tape):
        try:
            got = _graph_faults.run(tape, value, number, call)
        except (RuntimeError, TypeError, IndexError):
            continue
        off = np.abs(got.numpy().reshape(-1)[some] - bound.value.reshape(-1)[some])
        if (off > 2 * allowed).any():
            count += 1
            if not judged(bound, got):
                passed.append((number, what, float((off / allowed).max())))
    return passed, count


@pytest.mark.parametrize("name", FORWARD)
def test_changed_steps_fail(name):
    function = known.FUNCTIONS[name][0]
    bound = _functions.bounds_of(function, known.drawn(name, 5), "f32")["out"]
    passed, count = missed(bound)
    assert count >= 5 and passed == [], passed[:5]


@pytest.mark.parametrize("name", BACKWARD)
def test_changed_steps_of_gradients_fail(name):
    function = known.FUNCTIONS[name][0]
    inputs = known.drawn(name, 5)
    out = function(*inputs)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    bound = _functions.bounds_of(function, inputs, "f32", grads={"dx": 0}, grad_output=grad)["dx"]
    passed, count = missed(bound)
    assert count >= 5 and passed == [], passed[:5]
