"""Peers of kernels on block formats: quantizers alone and fused, dequantizers, KV-cache records.

Each section yields (operation/case, peer, prepare). prepare() makes the inputs and returns the work, a function for the error of
its result, and the bound of that error.
"""
import functools

import torch
import torch.nn.functional as F

from kernels_common import DEVICE, EPS, compiled, normal, relative, unequal

def blocks(x, width):
    return x.float().unflatten(-1, (-1, width))


def power(amax, largest):
    """Exponents of the smallest powers of two that bring amax to at most the largest element."""
    return torch.ceil(torch.log2(amax.clamp(min=2.0**-100) / largest))


def to_e2m1(x):
    """Codes of E2M1, nearest even, two per byte, the first in the low nibble."""
    a = x.abs()
    code = (a > 0.25).to(torch.uint8)
    for bound, ties_up in [(0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)]:
        code = code + ((a >= bound) if ties_up else (a > bound)).to(torch.uint8)
    low, high = (code | ((x < 0).to(torch.uint8) << 3)).unflatten(-1, (-1, 2)).unbind(-1)
    return low | (high << 4)


def fp8_f32(x):
    """Casts activations like DeepGEMM."""
    b = blocks(x, 128)
    scale = b.abs().amax(-1).clamp(min=1e-4) / 448
    return (b * (1 / scale).unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(-2), scale


def fp8_power(x, width):
    b = blocks(x, width)
    e = power(b.abs().amax(-1), 448)
    return (b * torch.exp2(-e).unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(-2), (e + 127).to(torch.uint8)


def mxfp4(x):
    b = blocks(x, 32)
    e = power(b.abs().amax(-1), 6)
    return to_e2m1(b * torch.exp2(-e).unsqueeze(-1)).flatten(-2), (e + 127).to(torch.uint8)


def nvfp4(x, level):
    b = blocks(x, 16)
    scale = (b.abs().amax(-1) / (6 * level)).clamp(2.0**-9, 448).to(torch.float8_e4m3fn)
    return to_e2m1(b / (scale.float() * level).unsqueeze(-1)).flatten(-2), scale


def nvfp4_find(x, _):
    return nvfp4(x, x.abs().amax().float() / (448 * 6))


def torchao_quantizers():
    """torchao's quantizers by format; empty without torchao."""
    try:
        from torchao.kernel.blockwise_quantization import fp8_blockwise_act_quant
        from torchao.prototype.mx_formats.config import ScaleCalculationMode as Mode
        from torchao.prototype.mx_formats.mx_tensor import to_mx
        from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize
    except ImportError:
        return {}
    swapped = lambda pair: (pair[1], pair[0].view(torch.uint8))
    return {
        "fp8_b128_f32": ("torchao fp8_blockwise_act_quant", lambda x, _: fp8_blockwise_act_quant(x, 128)),
        "mxfp8": ("torchao to_mx, compiled", compiled(lambda x, _: swapped(to_mx(x, torch.float8_e4m3fn, 32, Mode.FLOOR)))),
        "mxfp4": ("torchao to_mx, compiled", compiled(lambda x, _: swapped(to_mx(x, torch.float4_e2m1fn_x2, 32, Mode.FLOOR)))),
        "nvfp4": ("torchao nvfp4_quantize, compiled", compiled(lambda x, level: nvfp4_quantize(x, 16, level)[::-1])),
    }


# By format: the quantizer, the elements of a block, the bound of its error on normal random numbers.
FORMATS = {
    "fp8_b128_f32": (lambda x, _: fp8_f32(x), 128, 0.04),
    "fp8_b128": (lambda x, _: fp8_power(x, 128), 128, 0.04),
    "mxfp8": (lambda x, _: fp8_power(x, 32), 32, 0.04),
    "mxfp4": (lambda x, _: mxfp4(x), 32, 0.2),
    "nvfp4": (nvfp4, 16, 0.15),
    "nvfp4.find": (nvfp4_find, 16, 0.15),
}


def dequantized(pair, level, width):
    data, scale = pair
    if data.dtype not in (torch.float8_e4m3fn, torch.bfloat16):
        data = data.view(torch.uint8)
        codes = torch.stack([data & 15, data >> 4], -1).flatten(-2)
        size = (codes & 7).float()
        # Sizes below 2 are subnormal. No table is used, because it would be copied to the device at every call.
        normal_size = (2 + size % 2) * torch.exp2(torch.floor(size / 2) - 2)
        data = torch.where(size < 2, size / 2, normal_size) * (1 - 2 * (codes >> 3).float())
    scale = torch.exp2(scale.float() - 127) if scale.dtype == torch.uint8 else scale.float()
    return (blocks(data, width) * (scale * level).unsqueeze(-1)).flatten(-2)


def level_of(form, values):
    """The global scale above the block scales."""
    return values.float().abs().amax() / (448 * 6) if form.startswith("nvfp4") else torch.ones((), device=DEVICE)


def quantizing(form, work, before, inputs):
    """`work` computes codes and scales from the inputs and a global scale; `before` computes the unquantized numbers from the inputs."""
    _, width, bound = FORMATS[form]
    x = inputs()
    values = before(*[t.float() for t in x])
    level = level_of(form, values)
    return lambda: work(*x, level), lambda pair: relative(values)(dequantized(pair, level, width)), bound


def quantize():
    ao = torchao_quantizers()
    for rows in (8192, 128, 1):
        for form, (plain, *_) in FORMATS.items():
            for peer, work in [("torch.compile", compiled(plain))] + ([ao[form]] if form in ao else []):
                inputs = lambda rows=rows: [normal(rows, 7168)]
                key = f"quantize/{form}.bf16.random.{rows}x7168"
                yield key, peer, functools.partial(quantizing, form, work, lambda x: x, inputs)


def dequantize():
    def prepare(form, rows):
        plain, width, bound = FORMATS[form]
        x = normal(rows, 7168)
        level = level_of(form, x)
        pair = plain(x, level)
        work = compiled(lambda data, scale, level: dequantized((data, scale), level, width).bfloat16())
        return lambda: work(*pair, level), relative(x), bound

    for rows in (8192, 1):
        for form in ("fp8_b128_f32", "mxfp8", "nvfp4"):
            key = f"dequantize/{form}.bf16.random.{rows}x7168"
            yield key, "torch.compile", functools.partial(prepare, form, rows)


# --- norms and activations, alone and fused


def norm(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def norm_inputs(rows):
    return [normal(rows, 7168), normal(7168)]


def swiglu_of(gate_up):
    gate, up = gate_up.float().chunk(2, -1)
    return (F.silu(gate.clamp(max=10)) * up.clamp(-10, 10)).to(gate_up.dtype)


def swiglu_inputs(rows):
    return [normal(rows, 2 * 3072)]


def rows_of(op, function, inputs, width):
    def prepare(work, rows):
        x = inputs(rows)
        # Half a step of bfloat16, rounded once, or also in between.
        return lambda: work(*x), relative(function(*[t.float() for t in x])), 2**-7

    for rows in (8192, 128, 1):
        key = f"{op}/bf16.timed.{rows}x{width}"
        yield key, "torch", functools.partial(prepare, function, rows)
        yield key, "torch.compile", functools.partial(prepare, compiled(function), rows)


def quantize_after(op, before, inputs, width):
    for rows in (8192, 128, 1):
        for form in ("fp8_b128_f32", "fp8_b128", "mxfp8", "nvfp4"):
            work = compiled(lambda *x, form=form: FORMATS[form][0](before(*x[:-1]), x[-1]))
            key = f"{op}/{form}.bf16.timed.{rows}x{width}"
            yield key, "torch.compile", functools.partial(quantizing, form, work, before, functools.partial(inputs, rows))


# --- KV-cache records

# By KV record: bytes of a token in the two regions of a page, quantized channels, elements of a block, bytes of a page.
RECORDS = {"v4_fp8": (576, 8, 448, 64, 37440), "v41_mxfp8": (512, 16, 512, 32, 33792)}


def places(record, slots):
    """Index of the page, and the offsets of a token's codes and scales in it."""
    first, second, channels, width, _ = RECORDS[record]
    row = slots.unsqueeze(-1) % 64
    codes = row * first + torch.arange(first, device=slots.device)
    scales = row * second + 64 * first + torch.arange(channels // width, device=slots.device)
    return slots.unsqueeze(-1) // 64, codes, scales


def read(record, dtype, pages, slots):
    _, _, channels, width, _ = RECORDS[record]
    page, codes, scales = places(record, slots)
    data = pages[page, codes]
    nope = dequantized((data[:, :channels].view(torch.float8_e4m3fn), pages[page, scales]), 1, width)
    low, high = data[:, channels:].int().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.cat([nope, ((low | (high << 8)) << 16).view(torch.float32)], -1).to(dtype)


def write(record, x, pages, slots):
    _, _, channels, width, _ = RECORDS[record]
    page, codes, scales = places(record, slots)
    data, scale = fp8_power(x[:, :channels], width)
    bits = x[:, channels:].bfloat16().view(torch.int16).int()
    rope = torch.stack([bits & 255, (bits >> 8) & 255], -1).flatten(-2).to(torch.uint8)
    pages[page, codes] = torch.cat([data.view(torch.uint8), rope], -1)
    pages[page, scales] = scale
    return pages


def normed(x, weight, cos, sin):
    x = norm(x.float(), weight)
    a, b = x[:, 448:].unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([x[:, :448], turned], -1)


def slots_of(tokens):
    torch.manual_seed(2)
    return torch.randperm(-(-2 * tokens // 64) * 64, device=DEVICE)[:tokens]


def stored(record, x, slots):
    pages = torch.zeros(-(-2 * len(slots) // 64), RECORDS[record][-1], device=DEVICE, dtype=torch.uint8)
    return write(record, x, pages, slots)


def record_read():
    def prepare(record, dtype, tokens):
        x, slots = normal(tokens, 512), slots_of(tokens)
        pages = stored(record, x, slots)
        work = compiled(functools.partial(read, record, dtype))
        return lambda: work(pages, slots), relative(x), 0.04

    def gather(tokens):
        pool, slots = normal(-(-2 * tokens // 64) * 64, 512), slots_of(tokens)
        return lambda: pool[slots], unequal(torch.stack([pool[slot] for slot in slots.tolist()])), 0

    for tokens in (16384, 1):
        yield f"record_read/v4_bf16.bf16.t{tokens}", "torch, gather", functools.partial(gather, tokens)
        for record in RECORDS:
            for name, dtype in [("bf16", torch.bfloat16)] + [("f32", torch.float32)] * (tokens > 1):
                key = f"record_read/{record}.{name}.t{tokens}"
                yield key, "torch.compile", functools.partial(prepare, record, dtype, tokens)


def record_write():
    def prepare(record, form, tokens):
        x, slots = normal(tokens, 512), slots_of(tokens)
        pages = stored(record, x, slots).zero_()
        angle = torch.arange(1, tokens + 1, device=DEVICE)[:, None] * 1e4 ** (-torch.arange(32, device=DEVICE) / 32)
        more = (1 + normal(512, dtype=torch.float32) / 8, angle.cos(), angle.sin()) if form == "normed" else ()
        made = normed if more else lambda x: x
        work = compiled(lambda pages, slots, *x: write(record, made(*x), pages, slots))
        want = relative(made(x.float(), *more))
        return lambda: work(pages, slots, x, *more), lambda got: want(read(record, torch.float32, got, slots)), 0.04

    def scatter(tokens):
        x, slots = normal(tokens, 512), slots_of(tokens)
        pool = torch.zeros(-(-2 * tokens // 64) * 64, 512, device=DEVICE, dtype=torch.bfloat16)
        return lambda: pool.index_copy_(0, slots, x), lambda got: unequal(x)(got[slots]), 0

    yield "record_write/v4_bf16.raw.t16384", "torch, index_copy_", functools.partial(scatter, 16384)
    for form, tokens in (("normed", 16384), ("normed", 1), ("raw", 16384)):
        for record in RECORDS:
            key = f"record_write/{record}.{form}.t{tokens}"
            yield key, "torch.compile", functools.partial(prepare, record, form, tokens)


SECTIONS = {
    "quantize": quantize,
    "rmsnorm_quantize": lambda: quantize_after("rmsnorm_quantize", norm, norm_inputs, 7168),
    "record_write": record_write,
    "record_read": record_read,
    "swiglu_quantize": lambda: quantize_after("swiglu_quantize", swiglu_of, swiglu_inputs, 3072),
    "dequantize": dequantize,
    "swiglu": lambda: rows_of("swiglu", swiglu_of, swiglu_inputs, 3072),
    "rmsnorm": lambda: rows_of("rmsnorm", norm, norm_inputs, 7168),
}
