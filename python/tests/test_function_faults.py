"""assert_close with a function of torch: wrong kernels fail, with what explains them, and what has no bound is not judged."""

import re

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
import ulplab  # noqa: E402

RNG = torch.Generator().manual_seed(0)
X, W, B = (torch.randn(shape, generator=RNG) for shape in ((32, 256), (64, 256), (64,)))


def reference(x, w, b):
    return F.gelu(F.linear(x, w, b) / 16).softmax(-1)


def said(got, function=reference, inputs=(X, W, B), **words):
    with pytest.raises(AssertionError) as why:
        ulplab.assert_close(got, op=function, inputs=inputs, **words)
    return str(why.value)


def without_last(x):
    x = x.clone()
    x[:, -1] = 0
    return x


FAULTS = {
    "a missing term of addmm": lambda: reference(X, W, 0 * B),
    "the last term of addmm": lambda: reference(without_last(X), W, B),
    "a missing divisor of div": lambda: F.gelu(F.linear(X, W, B)).softmax(-1),
    "bf16 after addmm": lambda: F.gelu(F.linear(X, W, B).bfloat16().float() / 16).softmax(-1),
    "a neighbouring row": lambda: reference(X, W, B).roll(1, 0),
    "a gain of 0.5": lambda: 0.5 * reference(X, W, B),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault):
    message = said(FAULTS[fault]())
    assert re.search(rf"looks like {re.escape(fault)}.*; then [0-3] elements are outside", message), message


def test_faults_of_numbers_and_of_sums_over_rows_are_named():
    message = said((X * 0.7).sum(0), lambda x: (x * 0.7 + 1).sum(0), (X,))
    assert "looks like a missing term of add (test_function_faults.py:" in message
    message = said((X[:-1] * 0.7).sum(0), lambda x: (x * 0.7).sum(0), (X,))
    assert "looks like the last term of sum (test_function_faults.py:" in message
    # A fault whose numbers are larger than the right ones is compared by the roundings of its own.
    narrow = X.bfloat16()
    message = said((16 * X.bfloat16().float().sin()).bfloat16(), torch.sin, (narrow,))
    assert "looks like a gain of 16; then 0 elements" in message


def test_a_word_explains_only_what_it_lets_pass():
    narrow = [x.bfloat16() for x in (X, W)]
    right = F.linear(X.bfloat16().float(), W.bfloat16().float())
    gain = torch.tensor([1.0] * 8 + [1.05] * 16 + [2.0] * 8)[:, None]
    message = said((gain * right).bfloat16(), F.linear, narrow)
    assert "accumulate = bf16" not in message


def test_a_fault_without_an_effect_explains_nothing():
    def small(x):
        return x * 0.7 + 1e-12

    right = X * 0.7
    assert "looks like" not in said(torch.where(torch.arange(256) == 5, right * (1 + 2.0**-20), right), small, (X,))


def test_small_faults_fail():
    right = reference(X, W, B)
    for got in (
        F.gelu(F.linear(X, W, B) / 16, approximate="tanh").softmax(-1),
        right * (1 + 1e-4),
        torch.cat([right[:-1], right[:1]]),
        reference(X, W.bfloat16().float(), B),
        torch.zeros_like(right),
        torch.where(torch.arange(64) == 5, torch.nan, right),
    ):
        said(got)


def test_messages_name_the_steps_that_weigh_most():
    message = said(2 * reference(X, W, B))
    assert re.search(r"most of what is allowed there: \d+% \w+ \(test_function_faults.py:\d+\), ", message), message


def test_words_that_explain_are_named():
    narrow = [x.bfloat16() for x in (X, W, B)]
    message = said(reference(*narrow), inputs=narrow)
    assert "with rounds = as_written, whose bound is wider, 0 elements are outside" in message
    ulplab.assert_close(reference(*narrow), op=reference, inputs=narrow, rounds="as_written")


def test_a_cast_in_the_reference_is_a_rounding():
    q = torch.randn(2, 2, 16, 32, generator=RNG).bfloat16()

    def plain(q):
        return (q.float() @ q.float().transpose(-1, -2)).softmax(-1) @ q.float()

    def with_cast(q):
        return (q.float() @ q.float().transpose(-1, -2)).softmax(-1).to(q.dtype).float() @ q.float()

    got = with_cast(q)
    said(got, plain, (q,), dtype="float32")
    ulplab.assert_close(got, op=with_cast, inputs=(q,), dtype="float32")


def test_gradients():
    grad = torch.randn(32, 64, generator=RNG)
    x, b = X.clone().requires_grad_(), B.clone().requires_grad_()
    dx, db = torch.autograd.grad(reference(x, W, b), [x, b], grad)
    words = dict(grads={"dx": 0, "db": 2}, grad_output=grad)
    ulplab.assert_close({"dx": dx, "db": db}, op=reference, inputs=(X, W, B), **words)
    for wrong in (0.5 * dx, dx.roll(1, 0), dx.bfloat16().float() + 1e-3, without_last(dx), torch.zeros_like(dx)):
        assert "dx (float32[32, 256])" in said({"dx": wrong, "db": db}, **words)
    assert "db (float32[64])" in said({"dx": dx, "db": db / 32}, **words)


class Norm(torch.autograd.Function):
    """RMSNorm, with a gradient that may lack its second term."""

    term = 1.0

    @staticmethod
    def forward(context, x, w):
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        context.save_for_backward(x, w, rstd)
        return x * rstd * w

    @staticmethod
    def backward(context, grad):
        x, w, rstd = context.saved_tensors
        hat, scaled = x * rstd, grad * w
        return rstd * (scaled - Norm.term * hat * (scaled * hat).mean(-1, keepdim=True)), (grad * hat).sum(0)


def test_kernels_through_autograd(monkeypatch):
    def rms_norm(x, w):
        return F.rms_norm(x, x.shape[-1:], w, 1e-6)

    w = torch.randn(256, generator=RNG)
    ulplab.assert_grad(Norm.apply, op=rms_norm, inputs=(X, w))
    monkeypatch.setattr(Norm, "term", 0.0)
    with pytest.raises(AssertionError, match=r"d0 \(float32\[32, 256\]\)"):
        ulplab.assert_grad(Norm.apply, op=rms_norm, inputs=(X, w))
    with pytest.raises(ValueError, match="not judged: what the kernel gives has no gradient"):
        ulplab.assert_grad(lambda x, w: rms_norm(x, w).detach(), op=rms_norm, inputs=(X, w))


def test_gradients_of_named_operations(monkeypatch):
    def kernel(x, weight, eps):
        return Norm.apply(x, weight)

    inputs = dict(x=X, weight=W[0], eps=1e-6)
    ulplab.assert_grad(kernel, op="rmsnorm", inputs=inputs)
    monkeypatch.setattr(Norm, "term", 0.0)
    with pytest.raises(AssertionError, match=r"rmsnorm: dx \(float32\[32, 256\]\)"):
        ulplab.assert_grad(kernel, op="rmsnorm", inputs=inputs)
    narrow = dict(x=X.bfloat16(), weight=W[0].bfloat16())
    with pytest.raises(AssertionError, match=r"rmsnorm: dweight \(bfloat16\[256\]\)"):
        ulplab.assert_grad(lambda x, weight: F.rms_norm(x, (256,), 1.1 * weight, 1e-6), op="rmsnorm", inputs=narrow)
    for op, given, why in (
        ("top_k", dict(x=X, k=3), "op = 'top_k' has no plain definition in torch, expected one of rmsnorm, .*; pass a function"),
        ("rmsnrm", dict(x=X), "op = 'rmsnrm' is not an operation.*rmsnorm"),
        ("matmul", dict(a=X, b=W.T, a_scale=B), "the plain definition of 'matmul' has no 'a_scale'; pass a function"),
    ):
        with pytest.raises(ValueError, match=why):
            ulplab.assert_grad(kernel, op=op, inputs=given)
    with pytest.raises(TypeError, match="op = 'rmsnorm' takes no 'wait'"):
        ulplab.assert_grad(kernel, op="rmsnorm", inputs=dict(x=X, wait=X))
    with pytest.raises(TypeError, match="inputs is a tuple, expected a dictionary of what 'rmsnorm' takes: x, weight, "):
        ulplab.assert_grad(kernel, op="rmsnorm", inputs=(X, W))


class Strided(torch.autograd.Function):
    """Twice the input, whose gradient reads memory as if it was contiguous, or adds to what the last call left."""

    reads, total = "memory", None

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, dy):
        if Strided.reads == "sum":
            Strided.total = 2 * dy if Strided.total is None else Strided.total + 2 * dy
            return Strided.total
        if Strided.reads == "refuses" and not dy.is_contiguous():
            raise RuntimeError("expected a contiguous gradient")
        return 2 * (dy if Strided.reads == "refuses" else dy.as_strided(dy.shape, torch.empty(dy.shape).stride()))


def test_gradients_are_asked_for_twice_and_strided(monkeypatch):
    def op(x):
        return 2 * x

    for reads in ("memory", "sum"):
        monkeypatch.setattr(Strided, "reads", reads)
        with pytest.raises(AssertionError, match="called again, with a gradient of the output that is not contiguous:\nop: d0 "):
            ulplab.assert_grad(Strided.apply, op=op, inputs=(X,))
    monkeypatch.setattr(Strided, "reads", "refuses")
    with pytest.warns(ulplab.UlplabWarning, match="raises RuntimeError for a gradient of the output that is not contiguous"):
        ulplab.assert_grad(Strided.apply, op=op, inputs=(X,))


@pytest.mark.parametrize(
    "function, why",
    [
        (lambda x: F.dropout(x, 0.5), r"not judged: .*aten\.bernoulli .*random numbers"),
        (lambda x: x * torch.rand(256), r"not judged: .*aten\.rand .*random numbers"),
        (lambda x: x * float(x.mean().item()), r"not judged: .*\.item\(\) of a computed number"),
        (lambda x: x * torch.from_numpy((x + 1.5).numpy()).mean(), r"not judged: .*Tensor\.numpy .*a tensor leaves torch"),
        (lambda x: x * 2 if (x[0, 0] / 3).sin() > (x[0, 0] / 3).sin() * (1 + 1e-9) else x * 3, r"not judged: .*a branch of the function flips"),
        (lambda x: (x * 1e5).half().float() * 2, r"not judged: .*a conversion to float16 that overflows"),
        (lambda x: torch.fft.rfft(x), r"not judged: .*output 'out' is complex; expected real numbers, as of torch.view_as_real"),
        (lambda x: torch.cat([x, torch.empty(1, 256) + 1]), r"not judged: .*elements of memory that the function has not written"),
        (lambda x: torch.linalg.svdvals(x), r"not judged: .*aten\.\w*svd"),
        (lambda x: (x * 1j).log().real, r"not judged: .*aten\.log .*steps for complex numbers"),
        (lambda x: (x.sin() * 0).sqrt(), r"not judged: .*the derivative of sin"),
    ],
)
def test_what_has_no_bound_is_not_judged(function, why):
    with pytest.raises(ValueError, match=why):
        ulplab.assert_close(function(X).real + 0.0, op=function, inputs=(X,))


def test_what_an_output_does_not_depend_on_is_not_asked_about():
    def function(x):
        noise = torch.rand(256)
        return x * 2, x * noise

    with pytest.raises(ValueError, match=r"not judged: .*random numbers"):
        ulplab.assert_close(function(X), op=function, inputs=(X,))
    with pytest.raises(AssertionError, match="out0"):
        ulplab.assert_close((X * 3, X + 1), op=function, inputs=(X,))
    ulplab.assert_close(X * 2, op=lambda x: function(x)[0], inputs=(X,))


def test_a_narrower_type_is_refused_unless_it_is_meant():
    got = reference(X, W, B).bfloat16()
    assert "expected float32, as what reference gives is" in said(got)
    ulplab.assert_close(got, op=reference, inputs=(X, W, B), dtype="bfloat16")
    with pytest.warns(ulplab.UlplabWarning, match="zeros in the place of all"):
        ulplab.assert_close(1e-30 * X, op=lambda x: (x + 1e6) - 1e6 - ((x + 1e6) - 1e6), inputs=(X,))


def test_mistakes_of_the_caller():
    with pytest.raises(TypeError, match="give inputs"):
        ulplab.assert_close(X, op=torch.sin)
    with pytest.raises(ValueError, match="gives no 'y', expected one of out"):
        ulplab.assert_close({"y": X.sin()}, op=torch.sin, inputs=(X,))
    with pytest.raises(ValueError, match=r"grads: no input 3; expected one of 0"):
        ulplab.assert_close({"dx": X.cos()}, op=torch.sin, inputs=(X,), grads={"dx": 3}, grad_output=X)
    with pytest.raises(ValueError, match="give grad_output"):
        ulplab.assert_close({"dx": X.cos()}, op=torch.sin, inputs=(X,), grads={"dx": 0})
    with pytest.raises(ValueError, match="rounds = 'never', expected one of end, as_written, every_step"):
        ulplab.assert_close(X.sin(), op=torch.sin, inputs=(X,), rounds="never")
    with pytest.raises(AssertionError, match=r"out is float32\[32, 255\], expected \[32, 256\]"):
        ulplab.assert_close(X.sin()[:, 1:], op=torch.sin, inputs=(X,))
    with pytest.raises(ValueError, match="not judged: out is the memory of input 0"):
        ulplab.assert_close(X, op=torch.sin, inputs=(X,))
    with pytest.raises(TypeError, match="op = 3, expected the name of an operation or a function"):
        ulplab.assert_close(X, op=3, inputs=(X,))
    with pytest.raises(TypeError, match="grads, grad_output and rounds are for op=function"):
        ulplab.assert_close(X, op="softmax", inputs=dict(x=X), rounds="as_written")


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: ulplab.assert_close(x.sin(), op=torch.sin, inputs=x),
        lambda x: ulplab.assert_grad(torch.sin, op=torch.sin, inputs=x),
        lambda x: ulplab.bound_of(torch.sin, x),
    ],
)
def test_a_single_tensor_is_not_unpacked(ask):
    for x in (X, X[:1]):
        with pytest.raises(TypeError, match=r"inputs is a Tensor, expected a tuple .*; for a single one, say inputs=\(x,\)"):
            ask(x)


def test_gradients_of_outputs_must_have_their_shapes():
    def two(x):
        return x.sin(), x.cos()

    words = dict(op=two, inputs=(X,), grads={"dx": 0})
    with pytest.raises(ValueError, match=r"grad_output is \[32, 256\], expected .* give a tuple with the gradient of each output"):
        ulplab.assert_close({"dx": X + 0}, grad_output=X, **words)
    ulplab.assert_close({"dx": X.cos() - X.sin()}, grad_output=(torch.ones_like(X),) * 2, **words)
    with pytest.raises(ValueError, match=r"grad_output is \[3\], expected \[32, 256\], as what the function gives"):
        ulplab.assert_close({"dx": X + 0}, op=torch.sin, inputs=(X,), grads={"dx": 0}, grad_output=torch.ones(3))
    with pytest.raises(ValueError, match=r"assert_grad: grad_output is \[3\], expected a tensor \[32, 256\]"):
        ulplab.assert_grad(torch.sin, op=torch.sin, inputs=(X,), grad_output=torch.ones(3))
    with pytest.raises(ValueError, match="not judged: what the function gives has no gradient"):
        ulplab.assert_close({"dx": X + 0}, op=lambda x: x.detach() + 1, inputs=(X,), grads={"dx": 0}, grad_output=X)


@pytest.mark.parametrize("gives, kind", [(1.0, "float"), (None, "NoneType"), ("word", "str"), ((None, 2), "tuple")])
def test_a_function_must_give_a_tensor(gives, kind):
    with pytest.raises(TypeError, match=f"<lambda> gives a {kind}, expected a tensor, or a tuple or a dictionary of tensors"):
        ulplab.assert_close(X + 1, op=lambda x: gives, inputs=(X,))


def test_a_kernel_that_gives_its_input_is_called_or_copied():
    with pytest.raises(ValueError, match="out is the memory of input 'x': the kernel gives its input as it is, or has overwritten it; "):
        ulplab.assert_close(X, op=lambda x: x, inputs=dict(x=X))
    ulplab.assert_close(kernel=lambda x: x, op=lambda x: x, inputs=(X,))
    ulplab.assert_close(X.clone(), op=lambda x: x, inputs=(X,))


def test_bounds_of_a_model():
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = torch.randn(2, 7, 32)
    bound = ulplab.bound_of(model, (x,))
    error = abs(model(x).detach().double().numpy() - bound.value)
    assert (error <= 8 * bound.sigma).all() and error.max() > 0.01 * bound.sigma.max()
    assert sum(share for _, _, share in bound.largest_terms(100)) == pytest.approx(1)
    assert "deviations of right kernels up to" in repr(bound)


def test_gates_are_asked_about_faults_of_steps():
    loose = ulplab.audit(lambda got, want: torch.allclose(got, want, rtol=1e-2, atol=1e-2), op=reference, inputs=(X, W, B))
    tight = ulplab.audit(lambda got, want: torch.allclose(got, want, rtol=1e-5, atol=1e-9), op=reference, inputs=(X, W, B))
    assert loose.op == "reference" and loose.right_passes and tight.right_passes
    assert any(fault.startswith("bf16 after addmm (test_function_faults.py:") for fault in loose.survivors), loose
    assert len(tight.survivors) < len(loose.survivors) and len(tight.noticed) >= 15


def test_torch_is_imported_by_the_user_only():
    import subprocess
    import sys

    code = "import sys, ulplab; ulplab.assert_close; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_inputs_and_statistics_stay_as_they_are():
    def grows(x):
        return x.add_(1.0).mul(2.0)

    x = torch.randn(4, 6, generator=RNG)
    before = x.clone()
    ulplab.assert_close(grows(x.clone()), op=grows, inputs=(x,))
    assert torch.equal(x, before)
    norm = torch.nn.BatchNorm1d(6)
    ulplab.bound_of(norm, (x,))
    assert int(norm.num_batches_tracked) == 0 and torch.equal(norm.running_mean, torch.zeros(6))


def test_branches_that_do_not_flip_are_followed():
    def branches(x):
        return x.exp() if x.sin().sum() > -1e6 else x

    ulplab.assert_close(X.exp(), op=branches, inputs=(X,))
    said(X + 1, branches, (X,))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_mode_of_the_caller_does_not_matter(mode):
    model = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    with mode():
        x = torch.randn(2, 7, 32, generator=RNG)
        ulplab.assert_close(model(x), op=model, inputs=(x,))
        said(model(x) * 1.00001, model, (x,))


def test_a_kernel_may_be_called_and_must_not_overwrite():
    ulplab.assert_close(kernel=reference, op=reference, inputs=(X, W, B))
    ulplab.assert_close(kernel=reference, op=reference, inputs=dict(x=X, w=W, b=B))
    with pytest.raises(AssertionError, match="the kernel overwrote its inputs, .*'input 0'"):
        ulplab.assert_close(kernel=lambda x: x.mul_(1.0).add_(1.0), op=lambda x: x + 1, inputs=(X.clone(),))


def test_views_and_memory_are_followed():
    def tangled(x):
        y = torch.empty(33, 8)
        y[:32] = x[:, :8] * 3.1
        y[32] = y[:32].sum(0)
        z = y.T.contiguous().view(-1)[5:40:3]
        z.mul_(0.7)
        return torch.as_strided(y, (16, 8), (16, 1)) + y.unfold(0, 16, 16)[0].T + z.sum()

    ulplab.assert_close(tangled(X), op=tangled, inputs=(X,))
    wrong = tangled(X)
    wrong[3, 3] += 1e-4
    said(wrong, tangled, (X,))


def test_inference_mode_and_numbers_that_are_selected():
    def selected(x):
        with torch.inference_mode():
            y = F.layer_norm(x, (256,)).clamp(max=0.1).masked_fill(x < -1, -0.3) / 0.7
            return F.linear(torch.where(y > 0, y, 0.7), x)

    ulplab.assert_close(selected(X), op=selected, inputs=(X,))
    said(selected(X) * 1.0001, selected, (X,))


def test_a_cast_on_writing_is_a_rounding():
    def into_a_cache(x):
        cache = torch.zeros(32, 256, dtype=torch.bfloat16)
        cache[:] = x
        return cache.float() * 1.0001

    ulplab.assert_close(into_a_cache(X), op=into_a_cache, inputs=(X,))
    ulplab.assert_close(X * 1.0001, op=into_a_cache, inputs=(X,))
    said(into_a_cache(X), lambda x: x * 1.0001, (X,))


def test_all_outputs_and_gradients_must_be_given():
    def two(x):
        return x.sin(), x.cos()

    ulplab.assert_close(two(X), op=two, inputs=(X,))
    with pytest.raises(TypeError, match="two also gives 'out1'"):
        ulplab.assert_close((X.sin(),), op=two, inputs=(X,))
    words = dict(op=lambda x, w: x * w, inputs=(X, X + 1), grads={"dx": 0, "dw": 1}, grad_output=torch.ones_like(X))
    ulplab.assert_close({"dx": X + 1, "dw": X.clone()}, **words)
    with pytest.raises(TypeError, match="also gives 'dw'"):
        ulplab.assert_close({"dx": X + 1}, **words)


def test_the_last_cast_is_the_rounding_of_the_output():
    w = W.T.contiguous()
    product = X @ w
    cut = (product.view(torch.int32) & -65536).view(torch.float32).bfloat16()

    def cast(x, w):
        return (x @ w).to(torch.bfloat16)

    ulplab.assert_close(product.bfloat16(), op=cast, inputs=(X, w))
    said(cut, cast, (X, w))
    codes = X.to(torch.float8_e4m3fn)
    ulplab.assert_close(codes, op=lambda x: x.to(torch.float8_e4m3fn), inputs=(X,))


def test_integers_are_exact():
    def codes(x):
        return (x * 9).round().to(torch.int8).int() @ (x.T * 9).round().to(torch.int8).int()

    ulplab.assert_close(codes(X), op=codes, inputs=(X,))
    said(codes(X) + 1, codes, (X,))

    def counted(x):
        return x / (x > 0).sum(-1, keepdim=True)

    ulplab.assert_close(counted(X), op=counted, inputs=(X,))
    ulplab.assert_grad(lambda x: x.amax(-1), op=lambda x: x.amax(-1), inputs=(torch.tensor([[1.0, 1.0, 0.0]]),))


def test_gradients_within_a_function_and_gradients_of_none():
    def slope(x):
        x = x.requires_grad_()
        return torch.autograd.grad(x.sin().sum(), x)[0]

    ulplab.assert_close(X.cos(), op=slope, inputs=(X,))
    ulplab.assert_grad(lambda x, w: x * 2, op=lambda x, w: x * 2, inputs=(X, W))
    with pytest.raises(AssertionError, match="d1: the kernel gives no gradient of this input, and op gives one"):
        ulplab.assert_grad(lambda x, w: x * w.detach(), op=lambda x, w: x * w, inputs=(X, X))


def test_running_statistics_are_not_judged():
    def statistics(x, mean, var):
        return F.batch_norm(x, mean, var, training=True), mean, var

    mean, var = torch.zeros(256), torch.ones(256)
    out = F.batch_norm(X, None, None, training=True)
    with pytest.raises(ValueError, match="not judged: .*memory that an operation has changed"):
        ulplab.assert_close((out, mean.clone(), var.clone()), op=statistics, inputs=(X, mean, var))


def test_infinite_scores_have_no_part_in_a_maximum():
    mask = torch.tril(torch.ones(32, 32, dtype=torch.bool))

    def masked(x, w):
        s = torch.where(mask, F.linear(x, w), -torch.inf)
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return torch.maximum(e, s)

    right = masked(X, W[:32])
    ulplab.assert_close(right, op=masked, inputs=(X, W[:32]))
    said(right * (1 + 1e-4), masked, (X, W[:32]))
