"""Peers of a token of Swap-FFN: PyTorch, operation by operation and compiled, all in bf16.

Each section yields (operation/case, peer, prepare), as in kernels_model.py.
"""
import functools

import torch
import torch.nn.functional as F

from kernels_common import DEVICE, compiled, relative

CORES, WIDTH, INNER, EVENTS, STEPS, ROUTER, BANKS, WAYS, RANK = 512, 1024, 4096, 8, 2, 64, 4, 8, 224
IDENTITY = 0xE4


class SwapFfn:
    """Weights, and a token as a PyTorch model computes it; everything that does not depend on the token is computed once."""

    def __init__(self):
        torch.manual_seed(1)
        drawn = lambda *shape: (torch.randn(*shape, device=DEVICE) * shape[-1] ** -0.5).bfloat16()
        self.scale, self.shift = 1 + drawn(CORES, WIDTH), drawn(CORES, WIDTH)
        self.alpha = torch.softmax(drawn(CORES, WAYS).float(), dim=0).bfloat16()
        self.router_w, self.swap_w, self.bank_w = drawn(ROUTER, WIDTH), drawn(ROUTER), drawn(BANKS, ROUTER)
        self.router_g, self.ffn_g = (1 + drawn(WIDTH) for _ in range(2))
        self.w1, self.w3, self.w2 = drawn(INNER, WIDTH), drawn(INNER, WIDTH), drawn(WIDTH, INNER)
        self.basis, self.decoder = drawn(WAYS, RANK, WIDTH), drawn(WIDTH, RANK)

    def exchange(self, x, ram, lanes):
        z = F.linear(F.rms_norm(x, (WIDTH,), self.router_g, 1e-6), self.router_w)
        gate = torch.sigmoid(torch.mv(z.flatten(0, 1), self.swap_w)).view(x.shape[:2]) > 0.5
        bank = torch.softmax(F.linear(z, self.bank_w), dim=-1).argmax(dim=-1)
        lane = [lanes >> 2 * i & 3 for i in range(BANKS)]
        place = torch.where(bank == 0, lane[0], torch.where(bank == 1, lane[1], torch.where(bank == 2, lane[2], lane[3])))
        index = place.long()[..., None, None].expand(-1, -1, 1, WIDTH)
        there = torch.gather(ram, 2, index).squeeze(2)
        here = [(gate & (place == i))[..., None] for i in range(BANKS)]
        ram = torch.stack([torch.where(here[i], x, ram[:, :, i]) for i in range(BANKS)], dim=2)
        x = torch.where(gate[..., None], there, x)
        moved = [torch.where(gate, place, lane[0])]
        moved += [torch.where(gate & (bank == i), lane[0], lane[i]) for i in range(1, BANKS)]
        return x, ram, moved[0] | moved[1] << 2 | moved[2] << 4 | moved[3] << 6

    def ffn(self, x):
        n = F.rms_norm(x, (WIDTH,), self.ffn_g, 1e-6)
        return F.linear(F.silu(F.linear(n, self.w1)) * F.linear(n, self.w3), self.w2)

    def token(self, x_in, ram, lanes):
        x = x_in[:, None] * self.scale + self.shift
        for _ in range(EVENTS):
            x, ram, lanes = self.exchange(x, ram, lanes)
            for _ in range(STEPS):
                x = self.ffn(x)
        pooled = torch.einsum("bcd,ck->bkd", x, self.alpha)
        reduced = torch.einsum("bkd,krd->br", pooled, self.basis)
        return F.linear(F.silu(reduced), self.decoder), ram, lanes


@functools.cache
def model():
    """Drawn when the first peer is prepared."""
    return SwapFfn()


def swap_ffn():
    def prepare(form, batch):
        swap = model()
        torch.manual_seed(2)
        x_in = torch.randn(batch, WIDTH, device=DEVICE).bfloat16()
        ram = torch.randn(batch, CORES, BANKS, WIDTH, device=DEVICE).bfloat16()
        lanes = torch.full((batch, CORES), IDENTITY, dtype=torch.uint8, device=DEVICE)
        token = form(swap.token)
        # One flipped gate changes everything after it, so only a single step of the FFN is compared.
        x = swap.ffn(x_in)
        double = lambda w: w.double()
        n = F.rms_norm(x_in.double(), (WIDTH,), swap.ffn_g.double(), 1e-6)
        h = F.silu(n @ double(swap.w1).T) * (n @ double(swap.w3).T)
        ffn = relative(h @ double(swap.w2).T)(x)
        permuted = torch.tensor([sum(1 << i for i in {b >> 0 & 3, b >> 2 & 3, b >> 4 & 3, b >> 6 & 3}) for b in range(256)])

        def error(got):
            whole = (permuted[got[2].long().cpu()] == 15).all() and torch.isfinite(got[0].float()).all()
            return ffn if whole else float("inf")

        return lambda: token(x_in, ram, lanes), error, 2**-6

    for batch in (1, 4):
        for name, form in (("torch.compile", compiled), ("torch", lambda f: f)):
            yield f"swap_ffn/bf16.transpose.token.b{batch}", name, functools.partial(prepare, form, batch)


SECTIONS = {"swap_ffn": swap_ffn}
