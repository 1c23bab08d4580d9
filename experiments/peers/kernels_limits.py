"""Limits: Triton kernels that move the same bytes as a case, in the same pattern, and compute nothing.

What a kernel could reach at most is not the bandwidth of a large copy: a pattern, a size, or a cache that must be written back costs as
well. So each limit is the fastest of a few shapes of thread blocks. Each section yields (operation/case, name, prepare), as in
kernels_model.py; one bit of each number is flipped, so that no compiler takes a store for superfluous.
"""
import functools

import torch

from kernels_common import DEVICE, unequal

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

#: Elements of a thread block that were the fastest shapes on an H200, or nearly so: one to four 16-byte vectors for each thread.
BLOCKS = (512, 1024, 2048, 4096)

if triton is not None:

    @triton.jit
    def move(x, y, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, (tl.load(x + at) ^ 1).to(y.dtype.element_ty))

    @triton.jit
    def move_tails(x, ROWS: tl.constexpr, D: tl.constexpr, R: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        at = row[:, None] * D + (D - R) + tl.arange(0, R)[None, :]
        tl.store(x + at, tl.load(x + at) ^ 1)


def moved(shape, of, to, in_place, block):
    """Reads integers of type `of` and stores as many of type `to`."""
    x = torch.randint(-128, 127, shape, dtype=torch.int8, device=DEVICE).to(of)
    y = x if in_place else torch.empty(shape, dtype=to, device=DEVICE)
    want = (x ^ 1).to(to)
    return lambda: (move[(x.numel() // block,)](x, y, block, num_warps=4), y)[1], unequal(want), 0


def tails(rows, block):
    """Reads and writes the last 64 of every 512 bfloat16."""
    x = torch.zeros(rows, 512, dtype=torch.int16, device=DEVICE)
    want = torch.zeros_like(x)
    want[:, 448:] = 1
    return lambda: (move_tails[(rows // block,)](x, block, 512, 64, num_warps=4), x)[1], unequal(want), 0


def limits():
    if triton is None:
        return
    rows = (8192, 7168)
    one_byte = ("fp8_b128_f32", "fp8_b128", "mxfp8")
    cases = [(f"quantize/{name}.bf16.random.8192x7168", (rows, torch.int16, torch.int8, False)) for name in one_byte]
    cases += [
        ("rmsnorm/bf16.timed.8192x7168", (rows, torch.int16, torch.int16, False)),
        ("state_transpose/f32.b256", ((256, 64, 128, 128), torch.int32, torch.int32, False)),
        ("state_transpose/bf16.b256", ((256, 64, 128, 128), torch.int16, torch.int16, False)),
    ]
    for kind in ("gdn", "kda"):
        for layout in ("vk", "kv"):
            cases.append((f"delta_decode/{kind}.{layout}.f32.b256", ((256, 64, 128, 128), torch.int32, torch.int32, True)))
    # Four-bit codes of two numbers are a byte, which is read for, or written in place of, two bfloat16.
    pairs = (8192, 3584)
    cases += [
        ("dequantize/fp8_b128_f32.bf16.random.8192x7168", (rows, torch.int8, torch.int16, False)),
        ("dequantize/mxfp8.bf16.random.8192x7168", (rows, torch.int8, torch.int16, False)),
        ("dequantize/nvfp4.bf16.random.8192x7168", (pairs, torch.int8, torch.int32, False)),
        ("quantize/nvfp4.bf16.random.8192x7168", (pairs, torch.int32, torch.int8, False)),
        ("rmsnorm_quantize/nvfp4.bf16.timed.8192x7168", (pairs, torch.int32, torch.int8, False)),
    ]
    for key, case in cases:
        for block in BLOCKS:
            yield key, f"limit: {block} numbers a block", functools.partial(moved, *case, block)
    for block in (16, 64, 128):
        yield "rope/bf16.forward.t16384", f"limit: {block} rows a block", functools.partial(tails, 16384 * 128, block)


SECTIONS = {"limits": limits}
