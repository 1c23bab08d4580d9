"""Shared by the peers of kernels.py: inputs, compilation, and the comparison of results with expected values."""
import torch

from kernels_turns import TURNS

DEVICE = "cuda"
EPS = 1e-6


def launching_alone(graph, inputs):
    """Inductor, as a backend of torch.compile whose code has the card for itself: at its first call, it chooses among kernels by their times."""
    from torch._inductor.compile_fx import compile_fx

    run = compile_fx(graph, inputs)

    def launch(*args):
        with TURNS.alone():
            return run(*args)

    return launch


def compiled(function):
    """torch.compile; what it does at the first call, others need not wait for."""
    made = torch.compile(function, dynamic=False, fullgraph=True, backend=launching_alone)

    def work(*args):
        with TURNS.away():
            return made(*args)

    return work


def normal(*shape, dtype=torch.bfloat16):
    """N(0, 1), rows of different sizes."""
    torch.manual_seed(1)
    x = torch.randn(*shape, device=DEVICE)
    rows = torch.arange(shape[0], device=DEVICE) % 7 - 4
    return (x * torch.exp2(rows.float()).view(-1, *[1] * (len(shape) - 1))).to(dtype)


def relative(want):
    """The error of a result, ‖got − want‖ / ‖want‖."""
    return lambda got: ((got.float() - want.float()).norm() / want.float().norm()).item()


def unequal(want):
    """The share of bytes of a result that differ."""
    differing = lambda got: torch.count_nonzero(got.view(torch.uint8).flatten() != want.view(torch.uint8).flatten())
    return lambda got: differing(got).item() / want.view(torch.uint8).numel()
