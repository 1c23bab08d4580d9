"""assert_close and assert_grad with a function of jax: right kernels pass, wrong ones fail, and what is not followed is not judged."""

import functools

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import ulplab  # noqa: E402
from functions_jax import FUNCTIONS, HEADS, KEY, X, normal  # noqa: E402
from ulplab import _functions, _jax_primitives, _judged, _records  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::ulplab.UlplabWarning")


def stored(result, dtype):
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, result)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_right_kernels_pass_and_wrong_ones_fail(name, monkeypatch):
    function, *inputs = FUNCTIONS[name]
    bounds_of = functools.cache(lambda sums, rounds: _functions.bounds_of(function, inputs, sums, rounds))
    monkeypatch.setattr(_judged, "bounds_of", lambda function, inputs, sums, rounds, *_: bounds_of(sums, rounds))
    want = function(*inputs)
    for got in (want, jax.jit(function)(*inputs)):
        ulplab.assert_close(got, op=function, inputs=inputs)
    ulplab.assert_close(stored(want, jnp.bfloat16), op=function, inputs=inputs, dtype="any")
    if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(want)):
        return
    for wrong in (lambda x: x * 1.001, lambda x: jnp.roll(x, 1) if x.ndim else x + 1):
        with pytest.raises(AssertionError, match="outside the bound"):
            ulplab.assert_close(jax.tree.map(wrong, want), op=function, inputs=inputs)


#: Backward passes of each kind: sums, products, chosen elements, steps of a loop, own rules.
DIFFERENTIATED = (
    "softmax gelu relu layer_norm matmul attention rope experts ragged loop branch remat custom_vjp rows columns segments scatter_set "
    "slice update interior sorted product convolution transposed max_pool mean_pool triangular cholesky dropout"
).split()


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_right_gradients_pass_and_wrong_ones_fail(name):
    function, *inputs = FUNCTIONS[name]
    ulplab.assert_grad(jax.jit(function), op=function, inputs=inputs)

    @jax.custom_vjp
    def wrong(x):
        return function(x, *inputs[1:])

    def back(pull, grad):
        (found,) = pull(grad)
        return (found.at[(0,) * found.ndim].add(0.01 * jnp.abs(found).max()),)

    wrong.defvjp(lambda x: jax.vjp(wrong.fun, x), back)
    with pytest.raises(AssertionError, match=": d0 "):
        ulplab.assert_grad(lambda x, *more: wrong(x), op=function, inputs=inputs, wrt=0)


def test_a_kernel_that_rounds_between_its_steps_fails():
    w, v = normal(16, 8), normal(16, 8)
    function = FUNCTIONS["swiglu"][0]

    def kernel(x, w, v):
        hidden = (jax.nn.silu(x @ w)).astype(jnp.bfloat16).astype(jnp.float32)
        return hidden * (x @ v)

    with pytest.raises(AssertionError, match="bf16 after"):
        ulplab.assert_close(kernel(X, w, v), op=function, inputs=(X, w, v))
    # A cast in the reference is a rounding that a kernel may make.
    ulplab.assert_close(function(X, w, v), op=kernel, inputs=(X, w, v))


def test_messages_name_the_line_of_the_function():
    bound = ulplab.bound_of(FUNCTIONS["softmax"][0], (X,))
    assert {line.partition(":")[0] for _, line, _ in bound.largest_terms(3)} == {"test_functions_jax.py"}
    bound = ulplab.bound_of(FUNCTIONS["rope"][0], (X,))
    assert {line.partition(":")[0] for _, line, _ in bound.largest_terms(3)} == {"functions_jax.py"}


def test_inputs_by_name_in_pytrees_and_of_numpy_and_outputs_by_name():
    def function(x, layers, scale=1.0):
        return {"y": x @ layers[0]["w"] * scale, "largest": jnp.argmax(x, -1)}

    inputs = dict(x=X, layers=[{"w": np.asarray(normal(16, 5))}], scale=0.3)
    got = function(**inputs)
    ulplab.assert_close(got, op=function, inputs=inputs)
    with pytest.raises(AssertionError, match="y "):
        ulplab.assert_close({**got, "y": got["y"] * 1.001}, op=function, inputs=inputs)
    with pytest.raises(AssertionError, match="largest"):
        ulplab.assert_close({**got, "largest": got["largest"].at[1].add(1)}, op=function, inputs=inputs)


def test_gradients_of_a_loss_and_of_a_named_input_need_no_more_than_their_names():
    def loss(x, w):
        return ((x @ w) ** 2).mean()

    w = normal(16, 3)
    value, (dx, dw) = jax.value_and_grad(loss, (0, 1))(X, w)
    words = dict(op=loss, inputs=dict(x=X, w=w), grads={"dx": "x", "dw": "w"})
    ulplab.assert_close({"out": value, "dx": dx, "dw": dw}, **words)
    with pytest.raises(AssertionError, match="dw"):
        # A sum in the place of the mean.
        ulplab.assert_close({"dx": dx, "dw": dw * 18}, **words)
    with pytest.raises(ValueError, match="no single number"):
        ulplab.assert_close({"out": 2 * X, "dx": 2 * X}, op=jnp.sin, inputs=(X,), grads={"dx": 0})
    with pytest.raises(ValueError, match=r"grad_output is \[3\], expected \[6, 16\]"):
        ulplab.assert_close({"out": 2 * X, "dx": 2 * X}, op=jnp.sin, inputs=(X,), grads={"dx": 0}, grad_output=w[0])


@pytest.mark.parametrize(
    "function, why",
    [
        (lambda x: jax.lax.igamma(jnp.abs(x), jnp.abs(x)), "jax.igamma .*test_functions_jax.py:.* does not know this primitive"),
        (lambda x: jax.pure_callback(lambda x: np.sin(x), x, x), "jax.pure_callback"),
        (lambda x: jax.lax.reduce_precision(x, 4, 3), "4 exponent and 3 mantissa bits"),
        (lambda x: jnp.lexsort((x[0], x[1])) * x[0], "several keys"),
        (lambda x: jax.lax.cond(x.sum() > x[::-1, ::-1].sum(), jnp.sin, jnp.cos, x), "a branch of the function flips"),
        (lambda x: jax.lax.while_loop(lambda y: (y * 1e8).sum() > x.sum() * 1e8, lambda y: y - 1, x[::-1]), "a branch of the function flips"),
    ],
)
def test_what_is_not_followed_is_not_judged(function, why):
    with pytest.raises(ValueError, match=f"not judged: .*{why}"):
        ulplab.assert_close(function(X), op=function, inputs=(X,))


def test_a_translation_that_differs_from_jax_is_not_judged(monkeypatch):
    monkeypatch.setitem(_jax_primitives._PRIMITIVES, "sin", lambda params, x: x.cos())
    with pytest.raises(ValueError, match="not judged: .*jax's function gives .* and its translation"):
        ulplab.assert_close(jnp.sin(X), op=jnp.sin, inputs=(X,))


def test_inputs_of_torch_next_to_those_of_jax_are_refused():
    with pytest.raises(TypeError, match="some are arrays of jax, and some are tensors of torch"):
        ulplab.assert_close(2 * X, op=jnp.add, inputs=(X, torch.ones(6, 16)))
    with pytest.raises(TypeError, match="a function of jax needs an array of jax among its inputs"):
        ulplab.assert_close(X, op=lambda: X, inputs={})
    with pytest.raises(TypeError, match="give a function of jax"):
        ulplab.assert_grad(jnp.sin, op="softmax", inputs=(X,))


def test_a_function_of_jax_wherever_a_name_is_taken(tmp_path):
    function = FUNCTIONS["attention"][0]
    inputs = dict(q=HEADS, k=HEADS, v=HEADS)
    ulplab.assert_close(kernel=jax.jit(lambda q, k, v: function(q, k, v)), op=lambda q, k, v: function(q, k, v), inputs=inputs)
    found = ulplab.calibrate(jax.nn.softmax, op=jax.nn.softmax, inputs=lambda rng: (jnp.asarray(rng.standard_normal((4, 9)), jnp.float32),), seeds=3)
    assert 0 < max(found.ratios) <= 1
    said = ulplab.audit(lambda got, want: type(got) is np.ndarray and np.allclose(got, want, 1e-5, 1e-6), jax.nn.softmax, (X,))
    assert said.right_passes and len(said.noticed) >= 4
    recorder = _records.Recorder(str(tmp_path))
    _records.start(recorder)
    try:
        with pytest.raises(AssertionError) as said:
            ulplab.assert_close(X.astype(jnp.bfloat16), op=jax.nn.silu, inputs=(X.astype(jnp.bfloat16),))
    finally:
        _records.start(None)
    (record,) = recorder.records
    with pytest.raises(AssertionError) as again:
        ulplab.reproduce(tmp_path / record["capsule"], op=jax.nn.silu)
    assert str(again.value).splitlines()[:3] == str(said.value).splitlines()[:3]


def test_keys_and_whole_numbers_are_those_of_jax():
    bound = ulplab.bound_of(lambda x, key: jnp.where(jax.random.bits(key, (40,)) % 2 == 1, x[0, 0], 0), (X, KEY))
    assert not bound.unknown and not bound.sigma.any()
    assert np.array_equal(bound.value != 0, np.asarray(jax.random.bits(KEY, (40,))) % 2 == 1)
