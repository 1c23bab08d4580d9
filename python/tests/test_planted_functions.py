"""Planted faults of fused kernels: what is off by more than twice the bound is refused, right kernels never are."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
import ulplab  # noqa: E402
from functions import normal, positive, whole  # noqa: E402
from reenacted import Bounds, drawn, judge, table  # noqa: E402

CASES, case = table()


def kept(*shape):
    return lambda rng: (torch.rand(shape, generator=rng) > 0.3).float()


def short(x, when=True):
    """Numbers that went through bf16."""
    return x.bfloat16().to(x.dtype) if when else x


@case(
    "fused linear cross entropy",
    normal(12, 32),
    normal(96, 32),
    whole(96, 12),
    faults="lost_chunk no_rescale bf16_logits next_target mean",
    little="bf16_logits",
)
def fused_linear_cross_entropy():
    def op(x, w, at):
        return F.cross_entropy(F.linear(x, w), at, reduction="sum")

    def kernel(fault, x, w, at):
        top, total = torch.full((12,), -torch.inf, dtype=x.dtype), torch.zeros(12, dtype=x.dtype)
        for start in range(0, 72 if fault == "lost_chunk" else 96, 24):
            part = short(x @ w[start : start + 24].T, fault == "bf16_logits")
            new = torch.maximum(top, part.amax(-1))
            total = total * (1 if fault == "no_rescale" else (top - new).exp()) + (part - new[:, None]).exp().sum(-1)
            top = new
        chosen = (x * w[(at + 1) % 96 if fault == "next_target" else at]).sum(-1)
        loss = top + total.log() - chosen
        return loss.mean() if fault == "mean" else loss.sum()

    return op, kernel


NORM2D = (normal(2, 4, 7, 7), normal(5, 4, 3, 3), normal(5), normal(5), normal(5), positive(5))


@case(
    "convolution, batch norm and relu",
    *NORM2D,
    faults="eps_outside no_mean edges_repeated relu_first no_tap bf16_gain",
    little="eps_outside bf16_gain",
)
def convolution_batch_norm_relu():
    def op(x, w, gamma, beta, mean, var):
        return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, gamma, beta, eps=1e-3))

    def kernel(fault, x, w, gamma, beta, mean, var):
        gain = short(gamma / (var.sqrt() + 1e-3 if fault == "eps_outside" else (var + 1e-3).sqrt()), fault == "bf16_gain")
        shift = beta - (0 if fault == "no_mean" else mean * gain)
        wide = F.pad(x, (1,) * 4, mode="replicate" if fault == "edges_repeated" else "constant")
        folded = (w * gain[:, None, None, None]).flatten(1)
        if fault == "no_tap":
            folded = torch.cat([folded[:, :-1], 0 * folded[:, -1:]], 1)
        y = (folded @ F.unfold(wide, 3)).reshape(2, 5, 7, 7)
        return y.relu() + shift[:, None, None] if fault == "relu_first" else (y + shift[:, None, None]).relu()

    return op, kernel


QKV = [normal(2, 16, 8)] * 3


@case("soft cap, backward", *QKV, normal(2, 16, 8), grads="dq dk dv", faults="no_slope no_scale bf16_delta future bf16_weights half_dv")
def soft_cap_backward():
    mask = torch.ones(16, 16).triu(1).bool()

    def op(q, k, v):
        scores = 4 * torch.tanh(q @ k.mT / 8)
        return scores.masked_fill(mask, -torch.inf).softmax(-1) @ v

    def kernel(fault, q, k, v, dy):
        tanh = torch.tanh(q @ k.mT / 8)
        p = short((4 * tanh).masked_fill(mask, -torch.inf).softmax(-1), fault == "bf16_weights")
        dp = dy @ v.mT
        out = p @ v
        delta = (dy * short(out, fault == "bf16_delta")).sum(-1, keepdim=True)
        ds = p * (dp - delta) * (1 if fault == "no_slope" else 1 - tanh.square()) / 2
        if fault == "future":
            ds = ds + 1e-3 * mask * dp
        dk = ds.mT @ q * (2**0.5 if fault == "no_scale" else 1)
        return {"dq": ds @ k, "dk": dk, "dv": p[..., 8:, :].mT @ dy[:, 8:] if fault == "half_dv" else p.mT @ dy}

    return op, kernel


@case(
    "attention with dropout, backward",
    *QKV,
    kept(2, 16, 16),
    normal(2, 16, 8),
    grads="dq dk dv",
    faults="another_mask no_factor mask_of_dv bf16_saved delta_before_mask",
)
def dropout_backward():
    def op(q, k, v, keep):
        return ((q @ k.mT / 8**0.5).softmax(-1) * keep / 0.7) @ v

    def kernel(fault, q, k, v, keep, dy):
        p = short((q @ k.mT / 8**0.5).softmax(-1), fault == "bf16_saved")
        mask = (keep.roll(1, -1) if fault == "another_mask" else keep) / (1 if fault == "no_factor" else 0.7)
        dp = dy @ v.mT
        delta = (p * (dp if fault == "delta_before_mask" else dp * mask)).sum(-1, keepdim=True)
        ds = p * (dp * mask - delta) * 8**-0.5
        dv = (p * (keep > -1 if fault == "mask_of_dv" else mask)).mT @ dy
        return {"dq": ds @ k, "dk": ds.mT @ q, "dv": dv}

    return op, kernel


@case(
    "rotary embedding, backward",
    normal(3, 12, 16),
    normal(3, 12, 16),
    grads="dx",
    faults="sign pairs next_position bf16_angles base",
    little="base",
)
def rotary_backward():
    def angles(dtype, start=0, base=10000.0):
        return torch.arange(start, start + 12, dtype=torch.float64)[:, None] * base ** (-torch.arange(8, dtype=torch.float64) / 8)

    def op(x):
        cos, sin = angles(x.dtype).cos().float(), angles(x.dtype).sin().float()
        a, b = x[..., :8].float(), x[..., 8:].float()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def kernel(fault, x, dy):
        angle = angles(x.dtype, fault == "next_position", 9999.0 if fault == "base" else 10000.0)
        cos, sin = (short(one.float(), fault == "bf16_angles").to(x.dtype) for one in (angle.cos(), angle.sin()))
        a, b = (dy[..., ::2], dy[..., 1::2]) if fault == "pairs" else (dy[..., :8], dy[..., 8:])
        sin = -sin if fault == "sign" else sin
        return {"dx": torch.cat([a * cos + b * sin, b * cos - a * sin], -1)}

    return op, kernel


SCAN = (normal(2, 8, 6), normal(2, 8, 6), normal(6, 4), normal(2, 8, 4), normal(2, 8, 4), normal(6))


@case("selective scan", *SCAN, faults="no_skip no_softplus lost_carry bf16_state b_of_next_token decay_after")
def selective_scan():
    def op(x, dt, a_log, b, c, d):
        dt, out, state = F.softplus(dt), [], torch.zeros(2, 6, 4, dtype=x.dtype)
        for t in range(8):
            decay = (-dt[:, t, :, None] * a_log.exp()).exp()
            state = decay * state + (dt[:, t] * x[:, t])[..., None] * b[:, t, None]
            out.append((state * c[:, t, None]).sum(-1) + d * x[:, t])
        return torch.stack(out, 1)

    def kernel(fault, x, dt, a_log, b, c, d):
        dt = dt.exp().clamp(max=3) if fault == "no_softplus" else torch.log1p(dt.exp())
        rate, out, state = -a_log.exp(), torch.empty_like(x), torch.zeros(2, 6, 4, dtype=x.dtype)
        for t in range(8):
            if fault == "lost_carry" and t == 5:
                state = 0 * state
            new = (dt[:, t] * x[:, t])[..., None] * b[:, min(t + 1, 7) if fault == "b_of_next_token" else t, None]
            decay = (dt[:, t, :, None] * rate).exp()
            state = short(decay * (state + new) if fault == "decay_after" else decay * state + new, fault == "bf16_state")
            out[:, t] = torch.einsum("bpn,bn->bp", state, c[:, t])
        return out + (0 if fault == "no_skip" else d * x)

    return op, kernel


@case(
    "short convolution with a state",
    normal(2, 10, 8),
    normal(8, 4),
    normal(8),
    normal(2, 3, 8),
    faults="reversed zeros bias_after no_bias last_tap",
)
def short_convolution():
    def op(x, w, b, state):
        return F.silu(F.conv1d(torch.cat([state, x], 1).mT, w[:, None], b, groups=8).mT)

    def kernel(fault, x, w, b, state):
        state = state.flip(1) if fault == "reversed" else 0 * state if fault == "zeros" else state
        wide = torch.cat([state, x], 1)
        y = sum(wide[:, tap : tap + 10] * w[:, tap] for tap in range(3 if fault == "last_tap" else 4))
        s = y if fault in ("bias_after", "no_bias") else y + b
        return s * torch.sigmoid(s) + (b if fault == "bias_after" else 0)

    return op, kernel


@case(
    "contrastive loss",
    normal(16, 24),
    normal(16, 24),
    faults="one_direction bf16_norms no_diagonal times_temperature not_normalised eps_large",
    little="bf16_norms eps_large no_diagonal",
)
def contrastive_loss():
    def op(a, b):
        scores = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.07
        at = torch.arange(16)
        return (F.cross_entropy(scores, at) + F.cross_entropy(scores.T, at)) / 2

    def kernel(fault, a, b):
        eps = 1e-2 if fault == "eps_large" else 0.0
        norms = [short((x.square().sum(-1, keepdim=True) + eps).rsqrt(), fault == "bf16_norms") for x in (a, b)]
        a, b = (a, b * norms[1]) if fault == "not_normalised" else (a * norms[0], b * norms[1])
        scores = a @ b.T * (0.07 if fault == "times_temperature" else 1 / 0.07)
        best = scores.diagonal()
        others = scores.masked_fill(torch.eye(16).bool(), -torch.inf) if fault == "no_diagonal" else scores
        rows, columns = others.logsumexp(1) - best, others.logsumexp(0) - best
        return rows.mean() if fault == "one_direction" else (rows + columns).sum() / 32

    return op, kernel


def logarithms(rng):
    return 0.3 * torch.randn(4, 12, generator=rng)


POLICY = (logarithms, logarithms, logarithms, normal(4), kept(4, 12))


@case("GRPO, backward", *POLICY, normal(), grads="dnew", faults="clip_by_sign kl_sign flows_when_clipped over_all_tokens kl_of_first_order")
def grpo_backward():
    def op(new, old, ref, advantage, mask):
        ratio, adv = (new - old).exp(), advantage[:, None]
        loss = -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv) + 0.04 * ((ref - new).exp() - (ref - new) - 1)
        return ((loss * mask).sum(-1) / mask.sum(-1)).mean()

    def kernel(fault, new, old, ref, advantage, mask, dy):
        ratio, adv = (new - old).exp(), advantage[:, None]
        clipped = (ratio > 1.2) | (ratio < 0.8) if fault == "clip_by_sign" else torch.where(adv > 0, ratio > 1.2, ratio < 0.8)
        pushed = -adv * ratio * (1 if fault == "flows_when_clipped" else ~clipped)
        kl = 1 - (ref - new).exp() if fault != "kl_of_first_order" else new - ref
        count = torch.full((4, 1), 12.0, dtype=new.dtype) if fault == "over_all_tokens" else mask.sum(-1, keepdim=True)
        return {"dnew": dy * (pushed + (-0.04 if fault == "kl_sign" else 0.04) * kl) * mask / count / 4}

    return op, kernel


@case(
    "weight norm, backward",
    normal(24, 32),
    normal(24, 1),
    normal(24, 32),
    grads="dv dg",
    faults="no_projection g_squared bf16_norm norm_of_columns",
    little="bf16_norm",
)
def weight_norm_backward():
    def op(v, g):
        return g * v / v.norm(dim=1, keepdim=True)

    def kernel(fault, v, g, dy):
        norm = short(v.square().sum(1 if fault != "norm_of_columns" else 0, keepdim=True).sqrt(), fault == "bf16_norm")
        hat = v / norm
        dg = (dy * hat).sum(1, keepdim=True)
        dv = (dy - (0 if fault == "no_projection" else hat * dg)) * (g * g if fault == "g_squared" else g) / norm
        return {"dv": dv, "dg": dg}

    return op, kernel


@case("bilinear resize", normal(2, 3, 6, 6), faults="corners no_half_pixel weights_swapped row_above nearest not_clamped")
def bilinear_resize():
    def op(x):
        return F.interpolate(x, size=(12, 12), mode="bilinear")

    def kernel(fault, x):
        i = torch.arange(12, dtype=x.dtype)
        at = i * 5 / 11 if fault == "corners" else i * 6 / 12 if fault == "no_half_pixel" else (i + 0.5) * 6 / 12 - 0.5
        at = at if fault == "not_clamped" else at.clamp(min=0)
        low = at.floor().clamp(min=0)
        share = (at - low).round() if fault == "nearest" else at - low
        low, high = low.long(), (low.long() + 1).clamp(max=5)
        high = low - 1 if fault == "row_above" else high
        share = 1 - share if fault == "weights_swapped" else share
        rows = x[:, :, low] * (1 - share)[:, None] + x[:, :, high] * share[:, None]
        return rows[..., low] * (1 - share) + rows[..., high] * share

    return op, kernel


@case("straight-through quantisation, backward", normal(16, 32), positive(), normal(16, 32), grads="dx", faults="no_mask at_100 half_scale")
def straight_through():
    def op(x, scale):
        scaled = x / (0.02 * scale)
        rounded = scaled + (scaled.detach().round() - scaled.detach())
        return rounded.clamp(-127, 127) * (0.02 * scale)

    def kernel(fault, x, scale, dy):
        most = {"no_mask": 1e9, "at_100": 100.0, "half_scale": 63.5}.get(fault, 127.0)
        return {"dx": dy * ((x / (0.02 * scale)).round().abs() <= most)}

    return op, kernel


@case(
    "layer norm by parts",
    lambda rng: 3 + torch.randn(24, 96, generator=rng),
    normal(96),
    normal(96),
    faults="no_merge unbiased bf16_mean eps_tenfold part",
)
def layer_norm_by_parts():
    def op(x, w, b):
        return F.layer_norm(x, (96,), w, b, 1e-3)

    def kernel(fault, x, w, b):
        parts = x.reshape(24, 4, 24)
        means = parts.mean(-1)
        mean = short(means.mean(-1, keepdim=True), fault == "bf16_mean")
        within = (parts - means[..., None]).square().sum((1, 2))
        between = 24 * (means - mean).square().sum(-1)
        var = (within + (0 if fault == "no_merge" else between)) / (95 if fault == "unbiased" else 96)
        y = (x - (means[:, :1] if fault == "part" else mean)) * (var[:, None] + (1e-2 if fault == "eps_tenfold" else 1e-3)).rsqrt()
        return y * w + b

    return op, kernel


CELL = (normal(4, 12), normal(4, 16), normal(4, 16), normal(28, 64), normal(4, 16))


@case("LSTM cell, backward", *CELL, grads="dx dh dc dw", faults="no_tanh gates_swapped no_carry bf16_gates forget_of_new")
def lstm_backward():
    def op(x, h, c, w):
        i, f, g, o = (torch.cat([x, h], -1) @ w).chunk(4, -1)
        return torch.sigmoid(o) * torch.tanh(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g))

    def kernel(fault, x, h, c, w, dy):
        xh = torch.cat([x, h], -1)
        i, f, g, o = (short(one, fault == "bf16_gates") for one in (xh @ w).chunk(4, -1))
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        new = torch.tanh(f * c + i * g)
        dcell = dy * o * (1 if fault == "no_tanh" else 1 - new * new)
        before = new if fault == "forget_of_new" else c
        parts = [dcell * g * i * (1 - i), dcell * before * f * (1 - f), dcell * i * (1 - g * g), dy * new * o * (1 - o)]
        parts = [parts[2], parts[1], parts[0], parts[3]] if fault == "gates_swapped" else parts
        d = torch.cat(parts, -1)
        dxh = d @ w.T
        return {"dx": dxh[:, :12], "dh": dxh[:, 12:], "dc": dcell if fault == "no_carry" else dcell * f, "dw": xh.T @ d}

    return op, kernel


@case("delta rule", *[normal(2, 10, 8)] * 3, positive(2, 10), faults="no_beta read_first key_not_normalised bf16_state no_correction")
def delta_rule():
    def op(q, k, v, beta):
        k, state, out = F.normalize(k, dim=-1), torch.zeros(2, 8, 8, dtype=q.dtype), []
        for t in range(10):
            error = v[:, t] - (state * k[:, t, :, None]).sum(1)
            state = state + beta[:, t, None, None] * k[:, t, :, None] * error[:, None]
            out.append((q[:, t, :, None] * state).sum(1))
        return torch.stack(out, 1)

    def kernel(fault, q, k, v, beta):
        k = k if fault == "key_not_normalised" else k * k.square().sum(-1, keepdim=True).rsqrt()
        state, out = torch.zeros(2, 8, 8, dtype=q.dtype), torch.empty_like(v)
        for t in range(10):
            before = state
            error = v[:, t] - (0 if fault == "no_correction" else torch.einsum("bkv,bk->bv", state, k[:, t]))
            step = torch.einsum("bk,bv->bkv", k[:, t], error * (1 if fault == "no_beta" else beta[:, t, None]))
            state = short(state + step, fault == "bf16_state")
            out[:, t] = torch.einsum("bk,bkv->bv", q[:, t], before if fault == "read_first" else state)
        return out

    return op, kernel


@case("max pool, backward", normal(2, 3, 9, 9), normal(2, 3, 4, 4), grads="dx", faults="last_wins mean least no_padding_row")
def max_pool_backward():
    def op(x):
        return F.max_pool2d(x, 3, 2)

    def kernel(fault, x, dy):
        dx = torch.zeros_like(x)
        for i in range(4):
            for j in range(4 if fault != "no_padding_row" or i < 3 else 3):
                tile = x[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].flatten(2)
                at = (tile.argmin(-1) if fault == "least" else tile.argmax(-1))[..., None]
                one = torch.zeros_like(tile).scatter(-1, at, 1.0) if fault != "mean" else torch.full_like(tile, 1 / 9)
                one = (one * dy[:, :, i, j, None]).reshape(2, 3, 3, 3)
                own = dx[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
                own.copy_(torch.where(one != 0, one, own)) if fault == "last_wins" else own.add_(one)
        return {"dx": dx}

    return op, kernel


@pytest.mark.parametrize("name", CASES)
def test_right_kernels_pass_and_faults_do_not(name):
    one = CASES[name]
    judge(one, "", drawn(one))
    for dtype in one.types:
        bounds = Bounds(one, dtype)
        assert not bounds.refused("")
        for fault in one.faults:
            if dtype == torch.bfloat16 and fault in one.little:
                assert bounds.effect(fault) < 4
            else:
                assert bounds.effect(fault) > 2 and bounds.refused(fault), fault


def resized(x):
    return F.interpolate(x, size=(100, 100), mode="bilinear")


def by_position(x):
    return x * torch.linspace(-1, 1, 64)


def twice(a, b):
    return 2 * a + 3 * b


def masked(x):
    return x.sin() * (x.sin() > 0)


def attention_of_a_masked_row(x):
    mask = torch.where(torch.arange(64) == 3, -torch.inf, 0.0)[:, None]
    return torch.where(mask < 0, 0.0, (x[0, 0] @ x[0, 0].T + mask).softmax(-1)) @ x[0, 0]


X = torch.randn(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
RIGHT = {
    "coordinates of a resize, which kernels compute in f32": lambda: ulplab.assert_close(resized(X), op=resized, inputs=(X,)),
    "positions of a reference, which its own linspace rounds": lambda: ulplab.assert_close(
        X * (2 * torch.arange(64) / 63 - 1), op=by_position, inputs=(X,)
    ),
    "gradients of one tensor that is given twice": lambda: ulplab.assert_grad(twice, op=twice, inputs=(X, X)),
    "products with a mask of computed numbers": lambda: ulplab.assert_close(masked(X), op=masked, inputs=(X,)),
    "rows that are masked as a whole, and put to 0": lambda: ulplab.assert_close(
        attention_of_a_masked_row(X), op=attention_of_a_masked_row, inputs=(X,)
    ),
    "another one of equal numbers": lambda: ulplab.assert_close(torch.tensor([3]), op=lambda x: x.argmax(-1), inputs=(torch.ones(1, 8),)),
}


@pytest.mark.parametrize("what", RIGHT)
def test_right_kernels_pass(what):
    RIGHT[what]()
