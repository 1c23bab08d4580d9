"""Peers of kernels with a recurrent state: linear attention by flash-linear-attention, the diagonal model by Triton and an FFT.

Each section yields (operation/case, peer, prepare), as in kernels_model.py.
"""
import functools
import logging

import torch
import torch.nn.functional as F

from kernels_common import DEVICE, relative

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# --- gated delta rule and Kimi delta attention

HEADS, DIM = 64, 128


class Tokens:
    """Inputs of `tokens` steps of `sequences`, as fla takes them: gates and beta as logits."""

    def __init__(self, sequences, tokens):
        torch.manual_seed(1)
        normal = lambda *shape: torch.randn(sequences, tokens, HEADS, *shape, device=DEVICE).bfloat16()
        self.q, self.k, self.v, self.gates = (normal(DIM) for _ in range(4))
        self.gate, self.beta = normal(), normal()
        self.A_log = torch.log(1 + 15 * torch.rand(HEADS, device=DEVICE))
        self.dt_bias = 0.1 * torch.randn(HEADS, device=DEVICE)
        self.dt_biases = 0.1 * torch.randn(HEADS * DIM, device=DEVICE)
        self.state = 0.1 * torch.randn(sequences, HEADS, DIM, DIM, device=DEVICE)

    def arguments(self, kind, vk):
        own = {"g": self.gate, "dt_bias": self.dt_bias} if kind == "gdn" else {"g": self.gates, "dt_bias": self.dt_biases}
        return own | {
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "beta": self.beta,
            "A_log": self.A_log,
            "initial_state": self.state,
            "output_final_state": True,
            "use_qk_l2norm_in_kernel": True,
            "use_gate_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
            "state_v_first": vk,
        } | ({"lower_bound": -5.0} if kind == "kda" else {})

    def want(self, kind, vk, tokens):
        """o and the state after the first tokens of sequence 0, step by step in float64."""
        of = lambda x: x[0, :tokens].double()
        unit = lambda x: x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        q, k, v = unit(of(self.q)) * DIM**-0.5, unit(of(self.k)), of(self.v)
        rate = self.A_log.double().exp()
        if kind == "gdn":
            decay = (-rate * F.softplus(of(self.gate) + self.dt_bias)).exp()[..., None, None]
        else:
            decay = (-5 * torch.sigmoid(rate[:, None] * (of(self.gates) + self.dt_biases.view(HEADS, DIM)))).exp()[..., None]
        beta = of(self.beta).sigmoid()[..., None]
        state = self.state[0].double()
        state = state.mT if vk else state
        out = []
        for t in range(tokens):
            state = state * decay[t]
            step = beta[t] * (v[t] - torch.einsum("hkv,hk->hv", state, k[t]))
            state = state + torch.einsum("hk,hv->hkv", k[t], step)
            out.append(torch.einsum("hkv,hk->hv", state, q[t]))
        return torch.stack(out), state.mT if vk else state


def check(tokens, kind, vk, few):
    """The error of o's first tokens, and of the state if there are no other tokens."""
    o, state = tokens.want(kind, vk, few)
    whole = few == tokens.q.shape[1]

    def error(got):
        errors = [relative(o)(got[0][0, :few])] + ([relative(state)(got[1][0])] if whole else [])
        return max(errors)

    return error


def delta_decode():
    logging.disable(logging.WARNING)
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule
    from fla.ops.kda import fused_recurrent_kda
    from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

    def prepare(kind, vk, batch, in_place):
        tokens = Tokens(batch, 1)
        arguments = tokens.arguments(kind, vk)
        error = check(tokens, kind, vk, 1)
        if in_place:
            out = torch.empty_like(tokens.v)
            arguments |= {"inplace_final_state": True, "out": out, "initial_state": tokens.state.clone()}
            # In place, a repeated run continues from the previous state: only the first run is checked, and only o.
            o = tokens.want(kind, vk, 1)[0]
            return lambda: fused_recurrent_kda_fwd(**arguments), lambda got: relative(o)(out[0, :1]), 2**-6
        of = fused_recurrent_gated_delta_rule if kind == "gdn" else fused_recurrent_kda
        return lambda: of(**arguments), error, 2**-6

    for batch in (256, 32, 1):
        for kind in ("gdn", "kda"):
            for layout in ("vk", "kv"):
                key = f"delta_decode/{kind}.{layout}.f32.b{batch}"
                ways = [("fla", False)] + ([("fla, in place", True)] if kind == "kda" else [])
                for name, in_place in ways:
                    yield key, name, functools.partial(prepare, kind, layout == "vk", batch, in_place)


def delta_prefill():
    logging.disable(logging.WARNING)
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda

    def prepare(kind, vk, length):
        tokens = Tokens(1, length)
        arguments = tokens.arguments(kind, vk) | ({"safe_gate": True} if kind == "kda" else {})
        of = chunk_gated_delta_rule if kind == "gdn" else chunk_kda
        return lambda: of(**arguments), check(tokens, kind, vk, min(length, 128)), 2**-6

    for length in (8192, 64):
        for kind in ("gdn", "kda"):
            # fla's flag sets the layout of both states; the kernel here transposes only the final state.
            for layout, case in (("kv", "kv"), ("vk", "kv_to_vk")):
                key = f"delta_prefill/{kind}.bf16.t{length}.{case}"
                yield key, f"fla, states [{', '.join(layout.upper())}]", functools.partial(prepare, kind, layout == "vk", length)


def delta_handover():
    logging.disable(logging.WARNING)
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    from fla.ops.kda import chunk_kda, fused_recurrent_kda

    def prepare(kind, vk, sequences, length):
        before, after = Tokens(sequences, length), Tokens(sequences, 1)
        prefill = chunk_gated_delta_rule if kind == "gdn" else chunk_kda
        decode = fused_recurrent_gated_delta_rule if kind == "gdn" else fused_recurrent_kda
        first = before.arguments(kind, vk) | ({"safe_gate": True} if kind == "kda" else {})
        then = after.arguments(kind, True)

        def work():
            state = prefill(**first)[1]
            return decode(**then | {"initial_state": state if vk else state.permute(0, 1, 3, 2).contiguous()})

        state = before.want(kind, vk, length)[1]
        after.state[0] = state if vk else state.mT
        o = after.want(kind, True, 1)[0]
        return work, lambda got: relative(o)(got[0][0, :1]), 2**-6

    for sequences, length in ((256, 16), (32, 64), (1, 64)):
        for kind in ("gdn", "kda"):
            key = f"delta_handover/{kind}.b{sequences}"
            yield key, "fla, states turned between", functools.partial(prepare, kind, False, sequences, length)
            yield key, "fla, states [V, K]", functools.partial(prepare, kind, True, sequences, length)


# --- diagonal state-space model

STATE = 32

if triton is not None:

    @triton.jit
    def step_by_step(x, a, b, c, y, LENGTH: tl.constexpr, STATE: tl.constexpr):
        head = tl.program_id(0).to(tl.int64)
        n = head * STATE + tl.arange(0, STATE)
        decay, into, out = tl.load(a + n), tl.load(b + n), tl.load(c + n)
        state = tl.zeros((STATE,), dtype=tl.float32)
        for t in range(LENGTH):
            state = state * decay + into * tl.load(x + head * LENGTH + t)
            tl.store(y + head * LENGTH + t, tl.sum(state * out, axis=0))


def diagonal_ssm():
    def inputs(heads, length):
        torch.manual_seed(1)
        normal = lambda *shape: torch.randn(*shape, device=DEVICE)
        a = 1 - 10 ** (-3 + 2 * torch.rand(heads, STATE, device=DEVICE))
        return normal(heads, length), a, normal(heads, STATE), normal(heads, STATE) * STATE**-0.5

    def error(x, a, b, c):
        """The error of the first steps of the first heads, in float64."""
        x, a, b, c = x[:8, :256].double(), a[:8].double(), b[:8].double(), c[:8].double()
        state, want = torch.zeros_like(a), []
        for t in range(x.shape[1]):
            state = state * a + b * x[:, t : t + 1]
            want.append((c * state).sum(-1))
        want = torch.stack(want, -1)
        return lambda got: relative(want)(got[:8, :256])

    def loop(heads, length, warps):
        x, a, b, c = inputs(heads, length)
        y = torch.empty_like(x)

        def work():
            step_by_step[(heads,)](x, a, b, c, y, length, STATE, num_warps=warps)
            return y

        return work, error(x, a, b, c), 1e-5

    def fft(heads, length):
        x, a, b, c = inputs(heads, length)
        kernel, log = torch.zeros(heads, length, device=DEVICE), torch.log(a)
        steps = torch.arange(length, device=DEVICE, dtype=torch.float32)
        for n in range(STATE):
            kernel += (b[:, n] * c[:, n])[:, None] * torch.exp(log[:, n, None] * steps)
        kernel = torch.fft.rfft(kernel, n=2 * length)
        work = lambda: torch.fft.irfft(torch.fft.rfft(x, n=2 * length) * kernel, n=2 * length)[:, :length]
        return work, error(x, a, b, c), 1e-4

    for heads in (32768, 1024, 16):
        key = f"diagonal_ssm/h{heads}"
        yield key, "FFT convolution, its kernel made before", functools.partial(fft, heads, 8192)
        if triton is not None:
            yield key, "Triton, step by step", functools.partial(loop, heads, 8192, 1)


SECTIONS = {"delta_prefill": delta_prefill, "delta_decode": delta_decode, "diagonal_ssm": diagonal_ssm}
#: Its kernels are those of the prefill: fla finds on disk what was chosen there.
LATER = {"delta_handover": delta_handover}
