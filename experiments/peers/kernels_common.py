"""Shared by the peers of kernels.py: inputs, and the comparison of results with expected values."""
import torch

DEVICE = "cuda"
EPS = 1e-6


def compiled(function):
    return torch.compile(function, dynamic=False, fullgraph=True)


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
    return lambda got: (got.view(torch.uint8).flatten() != want.view(torch.uint8).flatten()).float().mean().item()
