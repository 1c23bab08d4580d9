"""Size and power of gates; the mean of errors."""

import kernels
import kernels_matmul
import numpy as np
import pytest
from ml_dtypes import bfloat16
from test_operations import DRAWS, TYPES, normal

import ulplab
from ulplab import _draws


def norm(dtype, gain=1.0, rows=64, seed=0, cols=512, **options):
    rng = np.random.default_rng(seed)
    given = {"x": normal(rng, rows, cols, dtype=dtype), "weight": kernels.rounded(1 + 0.1 * rng.standard_normal(cols), dtype)}
    value = ulplab.reference.compute("rmsnorm", **given, **options).value * gain
    return kernels.rounded(value, dtype), given


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("op", ["rmsnorm", "softmax", "silu_and_mul", "rope"])
def test_no_right_kernel_of_many_rows_is_biased(op, dtype):
    for seed in range(max(4, DRAWS // 6)):
        rng = np.random.default_rng(seed)
        rows, cols = int(rng.choice([16, 64, 300])), int(rng.choice([2, 16, 256]))
        scale = float(rng.choice([1e-3, 1.0, 8.0]))
        given = {"x": normal(rng, rows, cols, dtype=dtype, scale=scale)}
        if rng.random() < 0.3:
            # Rows that are equal, or differ by a power of two, have the same errors.
            given["x"] = (given["x"][:1].astype(np.float64) * 2.0 ** rng.integers(0, 3, (rows, 1))).astype(dtype)
        elif rng.random() < 0.3:
            # Numbers that are nearly equal are rounded to the same one.
            given["x"] = kernels.rounded(1 + 1e-3 * rng.standard_normal((rows, cols)), dtype)
        if op == "rope":
            angles = rng.uniform(0, 6, (rows, cols // 2))
            given |= {"x": given["x"][:, None], "cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
        if op == "rmsnorm":
            given |= {"weight": np.ones(cols, dtype), "eps": 1e-6}
        got = getattr(kernels, op)(rng, **given, dtype=dtype)
        try:
            ulplab.assert_close(got, op=op, inputs=given, mean_error="fail")
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None


@pytest.mark.parametrize(("dtype", "gain"), [(np.float32, 1e-5), (np.float16, 1e-5), (bfloat16, 1e-5)])
def test_a_gain_below_the_bound_of_elements_shows_in_their_mean(dtype, gain):
    got, given = norm(dtype, 1 + gain, rows=512, cols=2048)
    ulplab.assert_close(got, op="rmsnorm", inputs=given, mean_error=None)
    with pytest.warns(
        ulplab.UlplabWarning, match=r"errors point away from zero: .* right kernels have at most .* as of a gain of \+(9\.|1|1\.)"
    ):
        ulplab.assert_close(got, op="rmsnorm", inputs=given)
    with pytest.raises(AssertionError, match="errors point away from zero"):
        ulplab.assert_close(got, op="rmsnorm", inputs=given, mean_error="fail")
    got, given = norm(dtype, 1 - gain, rows=512, cols=2048)
    with pytest.raises(AssertionError, match="errors point towards zero"):
        ulplab.assert_close(got, op="rmsnorm", inputs=given, mean_error="fail")


def test_a_tenfold_eps_below_the_bound_shows_in_the_mean():
    got, given = norm(np.float32, rows=256, cols=5120, fault="eps_tenfold")
    ulplab.assert_close(got, op="rmsnorm", inputs=given, mean_error=None)
    with pytest.raises(AssertionError, match="as of a gain of -4"):
        ulplab.assert_close(got, op="rmsnorm", inputs=given, mean_error="fail")


def test_errors_of_the_size_of_the_bound_show_in_their_mean_square():
    rng = np.random.default_rng(0)
    right, given = norm(np.float32, rows=256, cols=2048)
    found = ulplab.reference.rmsnorm(**given)
    got = (found.value + 0.95 * found.error * rng.choice([-1, 1], found.value.shape)).astype(np.float32)
    with pytest.raises(AssertionError, match="errors are large: their mean square is 0.8"):
        ulplab.assert_close(got, op="rmsnorm", inputs=given, mean_error="fail")
    ulplab.assert_close(right, op="rmsnorm", inputs=given, mean_error="fail")


def kernel(**given):
    return kernels.rmsnorm(np.random.default_rng(0), **given, dtype=np.float32)


def test_size_and_power():
    found = ulplab.calibrate(kernel, "rmsnorm", seeds=300)
    assert found.failed["bound"] == found.failed["bias"] == 0
    assert len(found.ratios) == 300 and 0 < found.ratios[-1] <= 1
    # The threshold is sharper than the bound, and notices smaller gains.
    assert found.threshold == found.ratios[-1] < 1
    assert found.gains["threshold"] < found.gains["bound"] < 1e-3
    assert found.faults["bound"]["no_variance"] == 1.0
    assert "eps" in found.factors["bound"] and "zero_centered" not in found.factors["bound"]
    text = str(found)
    for words in ("300 seeds", "threshold", "95 % confidence", "size 0 of 300", "power", "eps: "):
        assert words in text


def test_what_seeds_support():
    found = ulplab.calibrate(kernel, "rmsnorm", seeds=20, alarms=1e-3)
    assert found.threshold is None and found.seeds_needed == 2995
    assert found.supported == pytest.approx(1 - 0.05 ** (1 / 20))
    assert "that takes 2,995 seeds; these support 0.14" in str(found)


def test_thresholds_hold_as_often_as_they_say():
    """Of uniform draws, a threshold t has 1 - t false alarms: more than asked for in at most 5 % of trials."""
    from ulplab import _native

    rng, trials, seeds, alarms = np.random.default_rng(0), 4000, 500, 0.02
    above = _native.tolerated(seeds, alarms, 0.95)[0] - 1
    draws = np.sort(rng.random((trials, seeds)), 1)
    broken = (1 - draws[:, seeds - 1 - above] > alarms).mean()
    assert above == 4 and 0.01 < broken <= 0.05 + 3 * (0.05 * 0.95 / trials) ** 0.5


def test_the_mean_of_errors_is_no_input_of_an_operation():
    rng = np.random.default_rng(0)
    given = {"a": normal(rng, 8, 16), "b": normal(rng, 16, 4), "bias": normal(rng, 4)}
    got = kernels_matmul.kernel(rng, **given)
    # What an operation takes may stand beside the inputs.
    ulplab.assert_close(got, op="matmul", inputs={"a": given["a"], "b": given["b"]}, bias=given["bias"])
    with pytest.raises(ValueError, match="mean_error = 'never', expected 'warn', 'fail' or None"):
        ulplab.assert_close(got, op="matmul", inputs=given, mean_error="never")


def test_functions_are_calibrated_as_operations_are():
    torch = pytest.importorskip("torch")

    def reference(x, w, eps):
        return torch.nn.functional.silu(torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps))

    def draw(rng):
        x, w = (torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((8, 64), (64,)))
        return x / 100, w, 1e-6

    found = ulplab.calibrate(reference, op=reference, inputs=draw, seeds=60, alarms=0.05)
    assert (found.op, found.dtype, found.bias) == ("reference", "float32", None)
    assert found.failed == {"bound": 0, "threshold": 0} and 0 < found.ratios[0] < found.ratios[-1] == found.threshold < 1
    assert found.gains["threshold"] < found.gains["bound"] < 1e-4
    missing = [fault for fault in found.faults["bound"] if fault.startswith("a missing factor of mul (test_calibrate.py:")]
    assert missing and all(found.faults["bound"][fault] == 1 for fault in missing) and any(", call 2 of 2, the " in fault for fault in missing)
    assert found.factors["bound"]["input 2"] <= 1.01
    assert "reference, float32, 60 seeds" in str(found) and "input 2: 1.001 times as large is noticed" in str(found)
    # A kernel that is wrong fails on every seed, by any gate.
    wrong = ulplab.calibrate(lambda x, w, eps: reference(x, w, 1.1 * eps), op=reference, inputs=draw, seeds=3)
    assert wrong.failed == {"bound": 3} and wrong.ratios[0] > 1
    assert wrong.outside == 1 and "the kernel is outside its bound in all 3 seeds: it is wrong, or" in str(wrong)
    assert found.outside == 0 and "outside its bound" not in str(found)
    # Outside in some seeds only. Also: a named operation.
    seeds = iter(range(4))
    some = ulplab.calibrate(lambda x, w, eps: reference(x, w, (1.1 if next(seeds) == 2 else 1) * eps), op=reference, inputs=draw, seeds=4)
    assert some.outside == 0.25 and "the kernel is outside its bound in 1 of 4 seeds" in str(some)
    named = ulplab.calibrate(lambda x, scale: 1.01 * torch.tensor(x).softmax(-1), "softmax", seeds=60, alarms=0.05)
    assert named.outside == 1 and named.threshold > 1 and "outside its bound in all 60 seeds" in str(named)
    # Each of several given inputs is a seed; they may have names.
    listed = [dict(zip(("x", "w", "eps"), draw(np.random.default_rng(seed)))) for seed in range(2)]
    assert len(ulplab.calibrate(reference, op=reference, inputs=listed).ratios) == 2
    assert ulplab.calibrate(lambda **given: reference(**given).bfloat16(), op=reference, inputs=listed).failed["bound"] == 0


def test_what_a_function_has_no_bound_for_is_not_calibrated():
    torch = pytest.importorskip("torch")
    x = torch.ones(4, 4)
    for function, inputs, error, said in (
        (torch.sin, None, TypeError, "calibrate: give inputs, a function that draws the arguments of sin"),
        (torch.sin, (x,), TypeError, r"calibrate: inputs is neither .* say inputs=\[\(x, w\)\]"),
        (lambda x: x * torch.rand(4), [(x,)], ValueError, "not judged: .*random numbers"),
        (lambda x: {"y": x}, [(x,)], ValueError, "the kernel gives no 'y', expected one of out; say which by output="),
    ):
        with pytest.raises(error, match=said):
            ulplab.calibrate(lambda x: x + 1, op=function, inputs=inputs)
    with pytest.raises(AssertionError, match=r"sin: out is float32\[3, 4\], expected \[4, 4\]"):
        ulplab.calibrate(lambda x: x[1:].sin(), op=torch.sin, inputs=[(x,)])
    with pytest.raises(AssertionError, match="seed 0: the kernel overwrote its inputs, .*'input 0'"):
        ulplab.calibrate(lambda x: x.sin_().clone(), op=torch.sin, inputs=[(x.clone(),)])
    ulplab.calibrate(lambda x: x.sin_(), op=torch.sin, inputs=[(x.clone(),)], writes=0)
    with pytest.raises(TypeError, match="calibrate: rounds is for op=function"):
        ulplab.calibrate(kernel, "rmsnorm", rounds="every_step")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": 0}, "seeds = 0"),
        ({"alarms": 0}, "alarms = 0, expected"),
        ({"confidence": 1}, "confidence = 1, expected"),
        ({"op": "none"}, "'none'"),
    ],
)
def test_mistakes(options, said):
    with pytest.raises(ValueError, match=said):
        ulplab.calibrate(kernel, **{"op": "rmsnorm", **options})


@pytest.mark.filterwarnings("ignore::ulplab.UlplabWarning")
@pytest.mark.parametrize("op", [operation["name"] for operation in ulplab.reference.operations()])
def test_inputs_of_every_operation_are_drawn(op):
    def right(**given):
        found = getattr(ulplab.reference, op)(**given)
        first = next(iter(found.values())) if isinstance(found, dict) else found
        return first.value.astype(np.float32)

    found = ulplab.calibrate(right, op, seeds=2)
    assert found.failed["bound"] == 0 and found.ratios.max() <= 1
    # Nearly all faults are noticed of such inputs.
    noticed = [share == 1 for share in found.faults["bound"].values()]
    assert sum(noticed) > len(noticed) / 2


def test_inputs_of_cases_are_drawn_for_an_operation_without_a_function(monkeypatch):
    monkeypatch.delitem(_draws._DRAWS, "softmax")
    one, two, other = (_draws.of("softmax")(np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one["x"].dtype == np.float32 and one["x"].shape == (7, 129)
    assert (one["x"] == two["x"]).all() and (one["x"] != other["x"]).any()
    assert _draws.of("moe")(np.random.default_rng(0))["top_k"] == 2
    found = ulplab.calibrate(lambda x: kernels.softmax(np.random.default_rng(0), x, dtype=np.float32), "softmax", seeds=2)
    assert found.failed["bound"] == 0


def test_an_operation_that_nothing_draws_is_named(monkeypatch):
    monkeypatch.delitem(_draws._DRAWS, "rope")
    with pytest.raises(ValueError, match="inputs of 'rope' are not drawn, expected inputs=FUNCTION .*; drawn are .*softmax"):
        _draws.of("rope")
