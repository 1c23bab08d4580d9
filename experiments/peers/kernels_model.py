"""Peers of kernels on unquantized tensors of the model: hyper-connections, rotary embedding, layouts.

Each section yields (operation/case, peer, prepare). prepare() makes the inputs and returns the work, a function for the error of
its result, and the bound of that error.
"""
import functools

import torch
import torch.nn.functional as F

from kernels_common import DEVICE, EPS, compiled, normal, relative, unequal

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# --- rotary embedding

if triton is not None:

    @triton.jit
    def rope_kernel(x, cos, sin, sign, HEADS: tl.constexpr, D: tl.constexpr, R: tl.constexpr):
        token = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        at = (token * tl.num_programs(1) * HEADS + head[:, None]) * D + (D - R) + tl.arange(0, R)[None, :]
        a, b = tl.split(tl.reshape(tl.load(x + at), (HEADS, R // 2, 2)).to(tl.float32))
        i = tl.arange(0, R // 2)
        c = tl.load(cos + token * (R // 2) + i)[None, :]
        s = tl.load(sin + token * (R // 2) + i)[None, :] * sign
        y = tl.reshape(tl.join(a * c - b * s, b * c + a * s), (HEADS, R))
        tl.store(x + at, y.to(x.dtype.element_ty))


def rope_triton(heads):
    def work(x, cos, sin, sign):
        grid = (x.shape[0], x.shape[1] // heads)
        rope_kernel[grid](x, cos, sin, sign, heads, x.shape[2], 2 * cos.shape[-1], num_warps=4 if heads >= 32 else 1)
        return x

    return work


def rope_slices(x, cos, sin, sign):
    part = x[..., -2 * cos.shape[-1] :]
    a, b = part[..., 0::2].clone(), part[..., 1::2].clone()
    cos, sin = cos.unsqueeze(1), sign * sin.unsqueeze(1)
    part[..., 0::2] = (a * cos - b * sin).to(x.dtype)
    part[..., 1::2] = (b * cos + a * sin).to(x.dtype)
    return x


def rope_complex(x, cos, sin, sign):
    """RoPE as in DeepSeek's own code."""
    part = x[..., -2 * cos.shape[-1] :]
    angle = torch.complex(cos, sign * sin).unsqueeze(1)
    part.copy_(torch.view_as_real(torch.view_as_complex(part.float().unflatten(-1, (-1, 2))) * angle).flatten(-2))
    return x


def rope():
    def prepare(work, dtype, tokens, sign):
        x = normal(tokens, 128, 512, dtype=dtype)
        angle = torch.arange(1, tokens + 1, device=DEVICE)[:, None] * 1e4 ** (-torch.arange(32, device=DEVICE) / 32)
        cos, sin = angle.cos(), angle.sin()
        # Large cases are checked only in their first tokens, because float64 takes much memory.
        few = min(tokens, 64)
        turn = torch.polar(torch.ones_like(angle[:few], dtype=torch.float64), sign * angle[:few].double()).unsqueeze(1)
        pairs = torch.view_as_complex(x[:few, :, 448:].double().unflatten(-1, (-1, 2)))
        want = torch.view_as_real(pairs * turn).flatten(-2)
        return lambda: work(x, cos, sin, sign), lambda y: relative(want)(y[:few, :, 448:]), 2**-7

    peers = {"torch, complex": rope_complex, "torch.compile": compiled(rope_slices)}
    if triton is not None:
        peers |= {f"triton, {heads} heads a block": rope_triton(heads) for heads in (8, 64)}
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "f32")):
        for direction, sign in (("forward", 1.0), ("inverse", -1.0)):
            for tokens in (16384, 1024, 1) if name == "bf16" and sign == 1 else (1024, 1):
                for peer, work in peers.items():
                    key = f"rope/{name}.{direction}.t{tokens}"
                    yield key, peer, functools.partial(prepare, work, dtype, tokens, sign)


# --- layouts


def state_transpose():
    def prepare(work, dtype, batch):
        x = normal(batch, 64, 128, 128, dtype=dtype)
        return lambda: work(x), unequal(torch.stack([x.select(-1, v) for v in range(128)], -2)), 0

    turned = lambda x: x.permute(0, 1, 3, 2).contiguous()
    for dtype, name in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        for batch in (256, 8, 1):
            for peer, work in (("torch", turned), ("torch.compile", compiled(turned))):
                yield f"state_transpose/{name}.b{batch}", peer, functools.partial(prepare, work, dtype, batch)


def swizzled(x):
    """Swizzles scales [H, W] into tiles of 128 × 4, each stored as 32 rows of 4 × 4."""
    h, w = x.shape
    x = F.pad(x, (0, -w % 4, 0, -h % 128))
    tiles = x.unflatten(0, (-1, 4, 32)).unflatten(-1, (-1, 4)).permute(0, 3, 2, 1, 4)
    return tiles.contiguous().flatten()


def swizzled_groups(axis, ends, x):
    """Groups of rows (axis 0) or columns (1), each swizzled separately, one after the other, as in torchao."""
    h, w = x.shape
    shape = (h + 128 * len(ends), -(-w // 4) * 4) if axis == 0 else (-(-h // 128) * 128, w + 4 * len(ends))
    out = x.new_zeros(shape).flatten()
    at = begin = 0
    for end in ends:
        if end > begin:
            tiles = swizzled(x.narrow(axis, begin, end - begin))
            out[at : at + tiles.numel()] = tiles
            at += tiles.numel()
        begin = end
    return out


def scale_layout():
    def prepare(work, h, w, axis=None, ends=()):
        torch.manual_seed(1)
        x = torch.randint(0, 255, (h, w), device=DEVICE, dtype=torch.uint8)
        # The expected layout follows the definition: the offset of each element is computed independently.
        r, c = torch.meshgrid(torch.arange(h, device=DEVICE), torch.arange(w, device=DEVICE), indexing="ij")
        at, want = torch.zeros_like(r), x.new_zeros(h * w)
        if axis is None:
            at = tile_offset(r, c, w)
        else:
            rows, cols = (h + 128 * len(ends), -(-w // 4) * 4) if axis == 0 else (-(-h // 128) * 128, w + 4 * len(ends))
            want, start, begin = x.new_zeros(rows * cols), 0, 0
            for end in ends:
                here = ((r if axis == 0 else c) >= begin) & ((r if axis == 0 else c) < end)
                inner = tile_offset(r - begin, c, w) if axis == 0 else tile_offset(r, c - begin, end - begin)
                at = torch.where(here, start + inner, at)
                start += -(-(end - begin) // 128) * 128 * cols if axis == 0 else -(-(end - begin) // 4) * 4 * rows
                begin = end
        want[at.flatten()] = x.flatten()
        offsets = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
        return lambda: work(x, offsets), unequal(want), 0

    def tile_offset(r, c, w):
        return (r // 128 * -(-w // 4) + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4

    try:
        from torchao.prototype.moe_training.kernels.mxfp8 import quant
        from torchao.prototype.mx_formats.kernels import triton_mx_block_rearrange as ao_plain

        ao = (quant.triton_mx_block_rearrange_2d_M_groups, quant.triton_mx_block_rearrange_2d_K_groups)
    except ImportError:
        ao = ao_plain = None
    for h, w in ((8192, 4096), (2048, 1024)):
        key = f"scale_layout/plain.{h}x{w}.one"
        yield key, "torch", functools.partial(prepare, lambda x, _: swizzled(x), h, w)
        yield key, "torch.compile", functools.partial(prepare, compiled(lambda x, _: swizzled(x)), h, w)
        if ao:
            work = lambda x, _: ao_plain(x.view(torch.float8_e8m0fnu))
            yield key, "torchao triton_mx_block_rearrange", functools.partial(prepare, work, h, w)
    shapes = [("m", 0, h, w) for h, w in ((16384, 224), (131072, 64), (131072, 224))]
    shapes += [("k", 1, h, w) for h in (2048, 5120, 7168, 8192) for w in (1024, 2048, 4096)]
    for groups, axis, h, w in shapes:
        even = [end * (w if axis else h) // 32 for end in (1, 3, 8, 9, 16, 21, 30, 32)]
        ragged = [end - less for end, less in zip(even, (3, 10, 6, 2, 9, 5, 1, 0))]
        for spread, ends in (("even", even), ("ragged", ragged)):
            key = f"scale_layout/{groups}.{h}x{w}.{spread}"
            plain = lambda x, _, axis=axis, ends=ends: swizzled_groups(axis, ends, x)
            yield key, "torch, group by group", functools.partial(prepare, plain, h, w, axis, ends)
            if ao:
                yield key, f"torchao triton, {groups} groups", functools.partial(prepare, ao[axis], h, w, axis, ends)


# --- hyper-connections


def hyper_connection(x, fn, base, scale, weight):
    """Projection, Sinkhorn normalization in 20 rounds, mix, and the norm of the result."""
    tokens, n, _ = x.shape
    v = x.flatten(1).to(fn.dtype)
    mu = F.linear(v, fn) * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS)
    pre = torch.sigmoid(mu[:, :n] * scale[0] + base[:n]) + EPS
    post = 2 * torch.sigmoid(mu[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = torch.softmax((mu[:, 2 * n :] * scale[2] + base[2 * n :]).view(tokens, n, n), -1) + EPS
    comb = comb / (comb.sum(-2, keepdim=True) + EPS)
    for _ in range(19):
        comb = comb / (comb.sum(-1, keepdim=True) + EPS)
        comb = comb / (comb.sum(-2, keepdim=True) + EPS)
    mixed = (pre.unsqueeze(-1) * v.view_as(x)).sum(1)
    return F.rms_norm(mixed.to(x.dtype), mixed.shape[-1:], weight.to(x.dtype), EPS), post, comb


def mhc_pre():
    def prepare(work, tokens):
        x = normal(tokens, 4, 7168)
        fn = normal(24, 4 * 7168, dtype=torch.float32) / (4 * 7168) ** 0.5
        rest = (normal(24, dtype=torch.float32) / 2, torch.tensor([0.9, 1.1, 1.3], device=DEVICE), normal(7168).float())
        few = min(tokens, 64)
        parts = lambda got: torch.cat([part[:few].flatten(1).double() for part in got], -1)
        want = parts(hyper_connection(*[t.double() for t in (x[:few], fn, *rest)]))
        return lambda: work(x, fn, *rest), lambda got: relative(want)(parts(got)), 2**-7

    for tokens in (4096, 128, 1):
        yield f"mhc_pre/t{tokens}", "torch.compile", functools.partial(prepare, compiled(hyper_connection), tokens)


SECTIONS = {
    "mhc_pre": mhc_pre,
    "rope": rope,
    "state_transpose": state_transpose,
    "scale_layout": scale_layout,
}
