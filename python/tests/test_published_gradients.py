"""Published bugs of backward passes: the gradients of a plain reference refuse each, and pass right kernels."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
import ulplab  # noqa: E402
from functions import normal, positive, whole  # noqa: E402
from reenacted import gradients, table, tell_apart  # noqa: E402

CASES, case = table()


EXPERT = (normal(6, 32), normal(24, 32), normal(24, 32), normal(32, 24))


@case("linkedin/Liger-Kernel#1413", *EXPERT, normal(6, 32), grads="dx", cause="a missing term of add")
def input_gradient_of_experts():
    """Two products are added to one accumulator, which loses that of the gate."""

    def op(x, gate, up, down):
        return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def kernel(fault, x, gate, up, down, dy):
        g, u, dh = x @ gate.T, x @ up.T, dy @ down
        s = torch.sigmoid(g)
        dg = dh * u * (s + g * s * (1 - s))
        return {"dx": (0 if fault else dg @ gate) + (dh * g * s) @ up}

    return op, kernel


@case("linkedin/Liger-Kernel#968", normal(10, 16), normal(48, 16), whole(48, 10), normal(10), grads="dx dw")
def gradient_of_each_loss():
    """With reduction = none, all losses get the gradient of the first."""

    def op(x, w, at):
        return F.cross_entropy(F.linear(x, w), at, reduction="none")

    def kernel(fault, x, w, at, dy):
        dx, dw = torch.zeros_like(x), torch.zeros_like(w)
        for rows in torch.arange(len(x)).split(4):
            logits = (x[rows] @ w.T).softmax(-1)
            logits[torch.arange(len(rows)), at[rows]] -= 1
            logits = logits * (dy[0] if fault else dy[rows, None])
            dx[rows] = logits @ w
            dw += logits.T @ x[rows]
        return {"dx": dx, "dw": dw}

    return op, kernel


@case("uxlfoundation/oneDNN#616", normal(12, 96), normal(12, 96), grads="dx")
def gradient_of_log_softmax():
    """The gradient is dy − Σ dy·y, in the place of dy − exp(y)·Σ dy."""

    def op(x):
        return x.log_softmax(-1)

    def kernel(fault, x, dy):
        y = x.log_softmax(-1)
        return {"dx": dy - (dy * y).sum(-1, keepdim=True) if fault else dy - y.exp() * dy.sum(-1, keepdim=True)}

    return op, kernel


def norm_gradients(x, w, dy, *, mean=1.0, rows=None, count=None):
    """Gradients of a layer norm: ``mean`` times the mean of dy·w is subtracted, and the weight's gradient takes some rows."""
    count = count or x.shape[-1]
    flat, dflat = x.reshape(-1, count), dy.reshape(-1, count)
    centred = flat - flat.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    hat, scaled = centred * rstd, dflat * w.repeat(count // w.numel())
    dx = rstd * (scaled - mean * scaled.mean(-1, keepdim=True) - hat * (scaled * hat).mean(-1, keepdim=True))
    part = (dflat * hat).reshape(-1, w.numel())
    return {"dx": dx.reshape(x.shape), "dw": (part if rows is None else part[rows]).sum(0)}


def layer_norm(x, w):
    return F.layer_norm(x, w.shape, w)


@case("tenstorrent/tt-metal#53204", normal(12, 96), normal(96), normal(12, 96), grads="dx dw")
def mean_subtracted_twice():
    """The register holds the mean of dy·γ already when a product is added to it."""
    return layer_norm, lambda fault, x, w, dy: norm_gradients(x, w, dy, mean=2.0 if fault else 1.0)


@case("meta-pytorch/tritonbench#1266", normal(64, 96), normal(96), normal(64, 96), grads="dx dw")
def partial_sum_overwritten():
    """A lock is given back too early: a block of rows overwrites the sum of another."""
    return layer_norm, lambda fault, x, w, dy: norm_gradients(x, w, dy, rows=[*range(24), *range(32, 64)] if fault else None)


@case("flagos-ai/FlagGems#5392", normal(4, 6, 48), normal(48), normal(4, 6, 48), grads="dx dw")
def rows_of_three_dimensions():
    """The backward pass takes all but the first dimension for one row."""
    return layer_norm, lambda fault, x, w, dy: norm_gradients(x, w, dy, count=6 * 48 if fault else 48)


@case("flagos-ai/FlagGems#59", normal(12, 96), normal(96), normal(12, 96), grads="dx")
def rows_of_a_block():
    """The sums of one row are those of all four rows of a block."""

    def kernel(fault, x, w, dy):
        rstd = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        hat, scaled = x * rstd, dy * w
        share = (scaled * hat).sum(-1, keepdim=True)
        if fault:
            share = share.reshape(3, 4).sum(-1).repeat_interleave(4)[:, None]
        return {"dx": rstd * (scaled - hat * share / 96)}

    return lambda x, w: F.rms_norm(x, (96,), w, 1e-6), kernel


def sinks(q, k, v, sink):
    scores = torch.cat([q @ k.transpose(-1, -2) / 4, sink[:, None, None].expand(-1, q.shape[1], 1)], -1)
    return scores.softmax(-1)[..., :-1] @ v


@case("Dao-AILab/flash-attention#1973", *[normal(4, 16, 16)] * 3, normal(4), normal(4, 16, 16), grads="dq dk dv dsink")
def gradient_of_the_sink():
    """The backward pass gives no gradient of the learnt sink."""

    def kernel(fault, q, k, v, sink, dy):
        scores = q @ k.transpose(-1, -2) / 4
        total = scores.exp().sum(-1, keepdim=True) + sink[:, None, None].exp()
        p, dp = scores.exp() / total, dy @ v.transpose(-1, -2)
        delta = (p * dp).sum(-1, keepdim=True)
        ds = p * (dp - delta) / 4
        dsink = -(sink[:, None, None].exp() / total * delta).sum((1, 2))
        return {"dq": ds @ k, "dk": ds.transpose(-1, -2) @ q, "dv": p.transpose(-1, -2) @ dy, "dsink": 0 * dsink if fault else dsink}

    return sinks, kernel


@case("fla-org/flash-linear-attention#875", positive(2, 24, 8), positive(2, 24, 8), normal(2, 24, 8), normal(2, 24, 8), grads="dq dk dv")
def gradient_through_the_normaliser():
    """The sum of the keys is computed outside of autograd: k gets no gradient through it."""

    def op(q, k, v):
        return (q @ k.transpose(-1, -2)).tril() @ v / (q * k.cumsum(1)).sum(-1, keepdim=True)

    def kernel(fault, q, k, v, dy):
        total = (q * k.cumsum(1)).sum(-1, keepdim=True)
        scores, du = (q @ k.transpose(-1, -2)).tril(), dy / total
        ds = (du @ v.transpose(-1, -2)).tril()
        dtotal = -(du * (scores @ v)).sum(-1, keepdim=True) / total
        dk = ds.transpose(-1, -2) @ q
        more = (dtotal * q).flip(1).cumsum(1).flip(1)
        return {"dq": ds @ k + dtotal * k.cumsum(1), "dk": dk if fault else dk + more, "dv": scores.transpose(-1, -2) @ du}

    return op, kernel


@case("fla-org/flash-linear-attention#1071", normal(12, 32), normal(12, 32), normal(16, 32), normal(12, 16), grads="dx dg dw")
def output_recomputed_without_its_gate():
    """The backward pass recomputes the input of the linear layer, and leaves the gate out."""

    def op(x, g, w):
        return F.linear(F.rms_norm(x, (32,)) * F.silu(g), w)

    def kernel(fault, x, g, w, dy):
        found = gradients(op, (x, g, w), dy, "dx dg -")
        y = F.rms_norm(x, (32,))
        return found | {"dw": torch.einsum("ni,no->oi", y if fault else y * g * torch.sigmoid(g), dy)}

    return op, kernel


def short_convolution(x, w):
    return (F.pad(x, (0, 0, 3, 0)).unfold(1, 4, 1) * w).sum(-1)


@case("fla-org/flash-linear-attention#955", normal(16, 12, 8), normal(8, 4), normal(16, 12, 8), grads="dx dw", cause="a gain of 16;")
def weight_gradient_of_each_sequence():
    """Each of the 16 sequences of the batch adds up the weight's gradient of all."""

    def kernel(fault, x, w, dy):
        found = gradients(lambda x, w: F.conv1d(F.pad(x.mT, (3, 0)), w[:, None], groups=8).mT, (x, w), dy, "dx dw")
        return found | {"dw": found["dw"] * (16 if fault else 1)}

    return short_convolution, kernel


@case("fla-org/flash-linear-attention#1140", normal(2, 2, 8), normal(2, 3, 8), normal(2, 3, 8), grads="dx dstate")
def slots_of_a_short_chunk():
    """A chunk of 2 tokens is shorter than the state of 3, and the gradient goes to the slots from 0 on."""

    def kernel(fault, x, state, dy):
        return {"dx": dy[:, :2] if fault else dy[:, 1:], "dstate": F.pad(dy[:, :1], (0, 0, 2, 0))}

    return lambda x, state: torch.cat([state, x], 1)[:, -3:] * 1.0, kernel


@case("NVIDIA/TransformerEngine#3351", normal(2, 6, 8), normal(2, 6, 8), normal(2, 8), normal(2, 6, 8), grads="dx da dstate")
def gradient_of_the_initial_state():
    """The gradient of the initial state is dropped."""

    def op(x, a, state):
        out = []
        for t in range(6):
            state = torch.sigmoid(a[:, t]) * state + x[:, t]
            out.append(state)
        return torch.stack(out, 1)

    def kernel(fault, x, a, state, dy):
        gate, states, back = torch.sigmoid(a), [state], torch.zeros_like(state)
        for t in range(6):
            states.append(gate[:, t] * states[-1] + x[:, t])
        dx, da = torch.empty_like(x), torch.empty_like(a)
        for t in reversed(range(6)):
            back = back + dy[:, t]
            dx[:, t], da[:, t] = back, back * states[t] * gate[:, t] * (1 - gate[:, t])
            back = back * gate[:, t]
        return {"dx": dx, "da": da, "dstate": 0 * back if fault else back}

    return op, kernel


@case("NX-AI/mlstm_kernels#16", *[normal(2, 16, 8)] * 3, normal(2, 16), normal(2, 16), normal(2, 16, 8), grads="dq dk dv di df")
def gradients_without_the_decay():
    """The gradients of q, k and the gates are wrong, as if without the decay matrix; that of v is right."""

    def decay(i, f):
        sums = F.logsigmoid(f).cumsum(-1)
        return (sums[:, :, None] - sums[:, None] + i[:, None]).masked_fill(torch.ones(16, 16).triu(1).bool(), float("-inf")).exp()

    def op(q, k, v, i, f):
        return (q @ k.mT / 8**0.5 * decay(i, f)) @ v

    def kernel(fault, q, k, v, i, f, dy):
        d, back = decay(i, f), dy @ v.mT
        ds = back * (d > 0) if fault else back * d
        found = gradients(decay, (i, f), back * (q @ k.mT) / 8**0.5, "di df")
        found = {"dq": ds @ k / 8**0.5, "dk": ds.mT @ q / 8**0.5} | found
        return found | {"dv": (q @ k.mT / 8**0.5 * d).mT @ dy}

    return op, kernel


@case("jmschrei/cherimoya#25", normal(2, 3, 20), normal(3), normal(2, 3, 20), grads="dx dw")
def overlapping_writes():
    """Three taps of a dilated convolution are loaded, added to and stored: of two lanes one is lost."""

    def op(x, w):
        return F.conv1d(x, w.expand(3, 1, 3), padding=2, dilation=2, groups=3)

    def kernel(fault, x, w, dy):
        dx = torch.zeros(2, 3, 24, dtype=x.dtype)
        for tap in range(3):
            dx[..., 2 * tap : 2 * tap + 20] += dy * w[tap]
        if fault:
            dx[..., 8] -= dy[..., 8] * w[0]
        wide = F.pad(x, (2, 2))
        return {"dx": dx[..., 2:-2], "dw": torch.stack([(wide[..., 2 * tap : 2 * tap + 20] * dy).sum() for tap in range(3)])}

    return op, kernel


@case("pytorch/pytorch#26302", whole(20, 60), normal(20, 8), normal(60, 8), grads="- dw")
def gradient_of_the_padding():
    """The row of the padding's index gets a gradient."""

    def kernel(fault, at, w, dy):
        rows = torch.stack([dy[at == row].sum(0) for row in range(20)])
        return {"dw": rows if fault else rows * (torch.arange(20) != 3)[:, None]}

    return lambda at, w: F.embedding(at, w, padding_idx=3), kernel


@case("pytorch/pytorch#190063", normal(20, 8), normal(8), grads="dw")
def frequency_of_another_index():
    """The gradient is divided by how often another index occurs."""
    at = torch.tensor([1, 1, 3, 7, 7, 7, 9])
    counts = torch.bincount(at, minlength=20).clamp(min=1)

    def op(w):
        scaled = w / counts[:, None]
        return scaled[at].sum(0)

    def kernel(fault, w, dy):
        found = torch.zeros_like(w)
        for n, row in enumerate(at.unique().tolist()):
            found[row] = int((at == row).sum()) * dy / counts[at[n] if fault else row]
        return {"dw": found}

    return op, kernel


def combined(y, weights, at):
    return torch.zeros(6, 8, dtype=y.dtype).index_add(0, at, y * weights[:, None])


@case("AI-Hypercomputer/maxtext#5042", normal(12, 8), positive(12), whole(6, 12), normal(6, 8), grads="dy dweights")
def gradient_of_the_routing_weights():
    """The weights of the combination get no gradient."""

    def kernel(fault, y, weights, at, dy):
        dweights = torch.einsum("nh,nh->n", y, dy[at])
        return {"dy": dy[at] * weights[:, None], "dweights": 0 * dweights if fault else dweights}

    return combined, kernel


@case("NVIDIA/TransformerEngine#3484", normal(16, 8), normal(12, 8), normal(16, 12), grads="- dw")
def rows_of_padding():
    """The weight's gradient also adds up the rows behind the last token, which nobody has written."""

    def op(x, w):
        return torch.cat([x[:13] @ w.T, torch.zeros(3, 12)])

    def kernel(fault, x, w, dy):
        rows = 16 if fault else 13
        return {"dw": torch.einsum("ni,no->oi", x[:rows], dy[:rows])}

    return op, kernel


@pytest.mark.parametrize("name", CASES)
def test_right_kernels_pass_and_bugs_do_not(name):
    tell_apart(CASES[name])


class Norm(torch.autograd.Function):
    """RMSNorm whose backward pass reads the gradient of the output as the memory has it, and may leave the weight out."""

    contiguous, weight = True, True

    @staticmethod
    def forward(context, x, w):
        rstd = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        context.save_for_backward(x, w, rstd)
        return x * rstd * w

    @staticmethod
    def backward(context, dy):
        x, w, rstd = context.saved_tensors
        if not Norm.contiguous:
            # The kernel is given a pointer, and takes rows of consecutive numbers.
            memory = torch.as_strided(dy, (dy.untyped_storage().nbytes() // 4,), (1,), 0)
            dy = memory.repeat(-(-x.numel() // memory.numel()))[: x.numel()].reshape(x.shape)
        hat, scaled = x * rstd, dy * w
        dx = rstd * (scaled - hat * (scaled * hat).mean(-1, keepdim=True))
        return dx, (dy * hat).sum(0) if Norm.weight else None


def rms_norm(x, w):
    return F.rms_norm(x, (48,), w, 1e-6)


RNG = torch.Generator().manual_seed(0)
X, W, DY = (torch.randn(shape, generator=RNG) for shape in ((16, 48), (48,), (16, 96)))


def test_a_weight_without_a_gradient(monkeypatch):
    """unslothai/unsloth#4533: the weight of RMSNorm gets None."""
    ulplab.assert_grad(Norm.apply, op=rms_norm, inputs=(X, W))
    monkeypatch.setattr(Norm, "weight", False)
    with pytest.raises(AssertionError, match="d1: the kernel gives no gradient of this input"):
        ulplab.assert_grad(Norm.apply, op=rms_norm, inputs=(X, W))


@pytest.mark.parametrize(
    "dy",
    [
        pytest.param(DY[:, ::2], id="unslothai/unsloth#10617"),
        pytest.param(DY[:, 48:], id="pytorch/pytorch#194719"),
        pytest.param(torch.ones(()).expand(16, 48), id="ROCm/TransformerEngine#623"),
    ],
)
def test_gradients_of_outputs_with_strides(monkeypatch, dy):
    """The gradient of the output is every second column, a part of another one, or one number that is expanded."""
    ulplab.assert_grad(Norm.apply, op=rms_norm, inputs=(X, W), grad_output=dy)
    monkeypatch.setattr(Norm, "contiguous", False)
    with pytest.raises(AssertionError, match="called again, with a gradient of the output that is not contiguous"):
        ulplab.assert_grad(Norm.apply, op=rms_norm, inputs=(X, W))
    if dy.stride() == (0, 0):
        # What lies behind the number is not the test's to read.
        return
    with pytest.raises(AssertionError, match=r"d0 \(float32\[16, 48\]\)"):
        ulplab.assert_grad(Norm.apply, op=rms_norm, inputs=(X, W), grad_output=dy)
