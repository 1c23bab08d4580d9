"""Published bugs of losses, activations and masks: a plain reference refuses each, and passes right kernels."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from functions import normal, positive, whole  # noqa: E402
from reenacted import gradients, table, tell_apart  # noqa: E402

CASES, case = table()
LOGITS = lambda rng: 30 * torch.randn(12, 96, generator=rng)  # noqa: E731


def logsumexp(x, at=-1):
    top = x.amax(at, keepdim=True)
    return (x - top).exp().sum(at, keepdim=True).log() + top


def padded(*shape):
    """Targets, some of which are to be ignored."""

    def draw(rng):
        target = torch.randint(0, 96, shape, generator=rng)
        target.view(-1)[::5] = -100
        return target

    return draw


@case("sgl-project/sglang#39939", normal(16, 256), cause=r"a missing term of add")
def swiglu_of_gpt_oss():
    """β, which gpt-oss adds to the second half, is 0 by default."""

    def op(x):
        gate, up = x[:, ::2].clamp(max=7.0), x[:, 1::2].clamp(-7.0, 7.0)
        return (up + 1) * gate * torch.sigmoid(1.702 * gate)

    def kernel(fault, x):
        gate, up = x[:, ::2].clamp(max=7.0), x[:, 1::2].clamp(-7.0, 7.0)
        return gate / (1 + (-1.702 * gate).exp()) * (up + (0.0 if fault else 1.0))

    return op, kernel


@case("sgl-project/sglang#36173", lambda rng: torch.randn(8, 100, generator=rng).softmax(-1), types=(torch.float32,))
def top_p_after_top_k():
    """Top-p is taken of what top-k left, renormalised."""

    def op(p, k=12, most=0.3):
        s, at = p.sort(-1, descending=True)
        keep = (s.cumsum(-1) - s < most) & (torch.arange(100) < k)
        kept = torch.where(keep, s, 0.0)
        return torch.zeros_like(p).scatter(-1, at, kept / kept.sum(-1, keepdim=True))

    def kernel(fault, p, k=12, most=0.3):
        s, at = p.topk(k, -1)
        before = torch.cat([torch.zeros_like(s[:, :1]), s.cumsum(-1)[:, :-1]], -1)
        kept = s * (before < most * (s.sum(-1, keepdim=True) if fault else 1.0))
        return torch.zeros_like(p).scatter(-1, at, kept / kept.sum(-1, keepdim=True))

    return op, kernel


@case("unslothai/unsloth-zoo#593", LOGITS)
def capped_log_softmax():
    """The cap multiplies by the logit in the place of the cap: l·tanh(l / c)."""

    def op(x):
        return (30.0 * torch.tanh(x / 30.0)).log_softmax(-1)

    def kernel(fault, x):
        capped = (x if fault else 30.0) * torch.tanh(x / 30.0)
        return capped - logsumexp(capped)

    return op, kernel


@case("kyutai-labs/pocket-tts#278", normal(16, 64), normal(96, 64))
def gelu_by_tanh():
    """The model is trained with GELU by tanh, and erf is used."""

    def op(x, w):
        return F.gelu(F.linear(x, w), approximate="tanh")

    def kernel(fault, x, w):
        y = x @ w.T
        inner = y * (1 + 0.044715 * y * y) * (2 / torch.pi) ** 0.5
        return F.gelu(y) if fault else y * torch.sigmoid(2 * inner)

    return op, kernel


@case("verl-project/verl#2656", normal(12, 32), normal(96, 32), whole(96, 12))
def log_probabilities_above_0():
    """The sum of exponentials lacks splits of the vocabulary: log-probabilities above 0."""

    def op(x, w, at):
        return F.linear(x, w).log_softmax(-1).gather(-1, at[:, None])[:, 0]

    def kernel(fault, x, w, at):
        parts = [x @ part.T for part in w.split(24)]
        top = torch.stack([part.amax(-1) for part in parts]).amax(0)
        total = sum((part - top[:, None]).exp().sum(-1) for part in (parts[-1:] if fault else parts))
        return (x * w[at]).sum(-1) - top - total.log()

    return op, kernel


@case("paiml/aprender#2143", normal(8, 24, 16), normal(8, 24, 16), normal(8, 24, 16))
def slopes_of_alibi():
    """The exponent of the slope of head h is −8·h/n, for −8·(h + 1)/n."""

    def attend(q, k, v, slopes):
        far = torch.arange(24)[:, None] - torch.arange(24)
        scores = q @ k.transpose(-1, -2) / 4 - slopes.to(q.dtype)[:, None, None] * far
        return scores.masked_fill(far < 0, float("-inf")).softmax(-1) @ v

    def op(q, k, v):
        return attend(q, k, v, 2.0 ** -(torch.arange(8) + 1.0))

    def kernel(fault, q, k, v):
        return attend(q / 2, k * 2, v, torch.tensor([0.5 ** (h if fault else h + 1) for h in range(8)]))

    return op, kernel


@case("Dao-AILab/flash-attention#1025", normal(4, 24, 16), normal(4, 24, 16), normal(4, 24, 16))
def soft_cap_after_the_mask():
    """The cap of 5 comes after the mask: what is masked gets e^−5 in the place of 0."""

    def op(q, k, v):
        scores = 5 * torch.tanh(q @ k.transpose(-1, -2) / 20)
        return scores.masked_fill(torch.ones(24, 24).triu(1).bool(), float("-inf")).softmax(-1) @ v

    def kernel(fault, q, k, v):
        scores, mask = q @ k.transpose(-1, -2) / 20, torch.ones(24, 24).triu(1).bool()
        scores = (scores if fault else 5 * torch.tanh(scores)).masked_fill(mask, float("-inf"))
        scores = 5 * torch.tanh(scores) if fault else scores
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        return weights @ v / weights.sum(-1, keepdim=True)

    return op, kernel


@case("fla-org/flash-linear-attention#850", positive(2, 4, 24, 8), positive(2, 4, 24, 8), normal(2, 4, 24, 8))
def normaliser_of_linear_attention():
    """The keys of the normaliser are added over the heads, not over the tokens."""

    def op(q, k, v):
        scores = (q @ k.transpose(-1, -2)).tril()
        return scores @ v / (q * k.cumsum(2)).sum(-1, keepdim=True)

    def kernel(fault, q, k, v):
        state = (k[..., None] * v[..., None, :]).cumsum(2)
        return (q[..., None] * state).sum(-2) / (q * k.cumsum(1 if fault else 2)).sum(-1, keepdim=True)

    return op, kernel


@case("state-spaces/mamba#888", *[normal(2, 4, 8, 16), normal(2, 4, 8), normal(2, 16), normal(32)])
def skip_weight_of_each_channel():
    """D has one number for each channel, and the step takes the first ones for those of the heads."""

    def op(state, x, c, d):
        return (state * c[:, None, None]).sum(-1) + d.reshape(4, 8) * x

    def kernel(fault, state, x, c, d):
        skip = d[:4, None].expand(4, 8) if fault else d.reshape(4, 8)
        return torch.einsum("bhpn,bn->bhp", state, c) + skip * x

    return op, kernel


@case("flagos-ai/FlagGems#4985", normal(2, 12, 5, 5), normal(12))
def group_of_three_channels():
    """A group of 3 channels is read as one of 4: the statistics take the first channel of the next group."""

    def op(x, w):
        return F.group_norm(x, 4, w, eps=1e-5)

    def kernel(fault, x, w):
        channels = x.reshape(2, 12, 25)
        out = torch.empty_like(channels)
        for group in range(4):
            own = channels[:, 3 * group : 3 * group + (4 if fault and group < 3 else 3)].reshape(2, -1)
            mean = own.sum(-1) / 75
            rstd = ((own - mean[:, None]).square().sum(-1) / 75 + 1e-5).rsqrt()
            out[:, 3 * group : 3 * group + 3] = (channels[:, 3 * group : 3 * group + 3] - mean[:, None, None]) * rstd[:, None, None]
        return (out * w[:, None]).reshape(x.shape)

    return op, kernel


@case("ROCm/TransformerEngine#336", normal(20, 96), padded(20))
def mean_over_ignored_tokens():
    """The mean of the cross entropy divides by all tokens, not by those that count."""

    def op(x, target):
        return F.cross_entropy(x, target)

    def kernel(fault, x, target):
        kept = target != -100
        loss = logsumexp(x)[:, 0] - x.gather(-1, target.clamp(min=0)[:, None])[:, 0]
        return (loss * kept).sum() / (20 if fault else kept.sum())

    return op, kernel


@case("pytorch/pytorch#73205", normal(20, 96), padded(20))
def smoothing_of_ignored_tokens():
    """The uniform part of label smoothing also takes the tokens that are ignored."""

    def op(x, target):
        return F.cross_entropy(x, target, label_smoothing=0.1)

    def kernel(fault, x, target):
        kept = (target != -100).to(x.dtype)
        log = x - logsumexp(x)
        chosen = log.gather(-1, target.clamp(min=0)[:, None])[:, 0]
        uniform = log.sum(-1) * (torch.ones_like(kept) if fault else kept)
        return -(0.9 * (chosen * kept).sum() + 0.1 * uniform.sum() / 96) / kept.sum()

    return op, kernel


def mask(rng):
    return (torch.rand(6, 20, generator=rng) > 0.3).float()


@case("allenai/open-instruct#535", *[normal(6, 20)] * 3, mask, types=(torch.float32,))
def mean_of_kl_over_padding():
    """The KL term is averaged over all tokens, the policy's term over those of the mask."""

    def op(new, old, ref, mask):
        kl = (ref - new).exp() - (ref - new) - 1
        return (((new - old).exp() + 0.1 * kl) * mask).sum() / mask.sum()

    def kernel(fault, new, old, ref, mask):
        kl = torch.expm1(ref - new) - (ref - new)
        mean = kl.mean() if fault else (kl * mask).sum() / mask.sum()
        return ((new - old).exp() * mask).sum() / mask.sum() + 0.1 * mean

    return op, kernel


@case("huggingface/trl#6586", *[normal(4, 12)] * 3, normal(4, 12), grads="dnew")
def ratio_of_the_sequence():
    """The KL of each token is multiplied by the ratio of the sequence, through which a gradient flows."""

    def op(new, old, ref):
        return (new - old).exp() * ((ref - new).exp() - (ref - new) - 1)

    def kernel(fault, new, old, ref, dy):
        def whole_sequence(new, old, ref):
            return (new - old).mean(-1, keepdim=True).exp() * ((ref - new).exp() - (ref - new) - 1)

        if fault:
            return gradients(whole_sequence, (new, old, ref), dy, "dnew")
        ratio, back = (new - old).exp(), (ref - new).exp()
        return {"dnew": dy * ratio * (back - (ref - new) - back)}

    return op, kernel


@case("NVIDIA-NeMo/Automodel#1408", normal(24, 8), normal(24, 8), normal(), grads="dlogits")
def balance_loss_without_its_gradient():
    """The gradient of the loss that balances experts does not reach the router."""

    def op(logits, y):
        p = logits.softmax(-1)
        return (p * y).sum() + 0.01 * 8 * p.mean(0).square().sum()

    def kernel(fault, logits, y, dy):
        p = logits.softmax(-1)
        dp = y + (0.0 if fault else 0.16 / 24 * p.mean(0))
        return {"dlogits": dy * p * (dp - (p * dp).sum(-1, keepdim=True))}

    return op, kernel


@pytest.mark.parametrize("name", CASES)
def test_right_kernels_pass_and_bugs_do_not(name):
    tell_apart(CASES[name])
