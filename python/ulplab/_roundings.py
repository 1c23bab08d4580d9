"""Random roundings of the steps of a function: draws of tensors, stacked, and the hash that roundings come from."""

from __future__ import annotations

import math
from typing import Any, Sequence

from ._torch import Tensor, torch

# A step with fewer distinct numbers than this share of its elements has many equal roundings.
_DISTINCT = 8
# Size of the sample from which the number of distinct numbers is estimated.
_SAMPLE = 4096
# So many random numbers are made at a time on a thread of a CPU, within its cache.
_PIECE = 1 << 16


class Draws:
    """A value of several draws: a tensor for each, and all of them stacked."""

    __slots__ = ("_each", "_whole")

    def __init__(self, each: Sequence[Tensor] | None = None, whole: Tensor | None = None) -> None:
        self._each = each
        self._whole = whole

    def each(self) -> Sequence[Tensor]:
        if self._each is None:
            assert self._whole is not None
            self._each = self._whole.unbind(0)
        return self._each

    def whole(self) -> Tensor:
        if self._whole is None:
            assert self._each is not None
            first = self._each[0]
            if len(self._each) == 1:
                self._whole = first.unsqueeze(0)
            elif first.is_contiguous():
                self._whole = torch.stack(self._each)
            else:
                # Laid out as each draw is, for sums of its elements in the same order.
                order = sorted(range(first.ndim), key=lambda dim: -first.stride(dim))
                stacked = torch.stack([one.permute(order) for one in self._each])
                self._whole = stacked.permute(0, *(1 + order.index(dim) for dim in range(first.ndim)))
            self._each = None
        return self._whole


def half_spacing(z: Tensor, dtype: Any) -> Tensor:
    """Half the spacing of the numbers of a type around each element."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(z).exponent - 1
    least = math.frexp(info.tiny)[1] - 1
    return torch.ldexp(torch.full_like(z, info.eps / 2), exponent.clamp(min=least))


def distinct(z: Tensor) -> bool:
    """False if many elements are equal, and so are their roundings."""
    flat = z.detach().reshape(-1)
    if flat.numel() > _SAMPLE:
        at = torch.arange(_SAMPLE, device=flat.device, dtype=torch.float64) * (flat.numel() * 0.6180339887498949 % 1 + flat.numel() / _SAMPLE)
        flat = flat[at.remainder(flat.numel()).long()]
    flat = flat[flat != 0]
    # Most tensors show in a quarter of the numbers that enough of them are distinct.
    some = (flat[: flat.numel() // 4 + 1], flat)
    return any(_DISTINCT * one.unique().numel() >= flat.numel() for one in some)


_PRIME = -0x61C8864680B583EB  # 2**64 / the golden ratio, as a signed number


def _signed(x: int) -> int:
    """The signed number of 64 bits with the low bits of another."""
    return (x + 2**63) % 2**64 - 2**63


def rounded(z: Tensor, worst: Tensor, deviation: Tensor, number: int, seeds: Tensor, mixed: bool, scale: float) -> Tensor:
    """The outputs of a step in several draws, with roundings. With ``mixed``, equal numbers get other roundings in every second draw."""
    dims = list(range(1, z.ndim)) if z.is_contiguous() else sorted(range(1, z.ndim), key=lambda dim: -z.stride(dim))
    flat = z.permute(0, *dims).reshape(len(z), -1)
    worst, deviation = (one.permute([dim - 1 for dim in dims]).reshape(-1) for one in (worst, deviation))
    index = torch.arange(flat.shape[1], device=z.device).reshape(z.shape[1:]).permute([dim - 1 for dim in dims]).reshape(-1) if mixed else None
    found = torch.empty_like(flat)
    size = max(1, (_PIECE * torch.get_num_threads() if z.device.type == "cpu" else _PIECE << 9) // max(len(z), 1))
    for start in range(0, flat.shape[1], size):
        at = slice(start, start + size)
        noise = noise_of(flat[:, at], number, seeds, None if index is None else index[at]).mul_(deviation[at])
        torch.clamp(noise, -worst[at], worst[at], out=noise)
        torch.add(flat[:, at], noise if scale == 1 else noise.mul_(scale), out=found[:, at])
    back = [0, *(1 + dims.index(dim) for dim in range(1, z.ndim))]
    return found.reshape([len(z), *(z.shape[dim] for dim in dims)]).permute(back)


def noise_of(z: Tensor, number: int, seeds: Tensor, index: Tensor | None) -> Tensor:
    """Random numbers of mean 0 and deviation 1 that a hash gives, of a row for each seed. Equal numbers of a step get equal roundings;
    with their ``index``, they do not where the seed is odd, as equal sums of different terms."""
    salts = seeds * _signed(0xD1B54A32D192ED03) + _signed(number * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D - 2**63)
    bits = z.view(torch.int64) ^ salts.unsqueeze(1)
    if index is not None:
        bits ^= (index * _PRIME) & -(seeds & 1).unsqueeze(1)
    bits *= _PRIME
    # Shifts fill up with the sign, which is masked out.
    high = bits >> 32
    bits ^= high.bitwise_and_(0xFFFFFFFF)
    bits *= -0x4B47D0C5E2A2F5C7
    torch.bitwise_right_shift(bits, 29, out=high)
    bits ^= high.bitwise_and_(0x7FFFFFFFF)
    # The sum of two uniform numbers of 32 bits: rounding errors have no long tails.
    torch.bitwise_right_shift(bits, 32, out=high)
    bits.bitwise_and_(0xFFFFFFFF).add_(high.bitwise_and_(0xFFFFFFFF))
    return bits.double().sub_(2.0**32 - 1).mul_(math.sqrt(6) / 2.0**32)
