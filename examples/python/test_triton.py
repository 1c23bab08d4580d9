"""A Triton kernel with its backward pass, and a compiled module, against plain references in torch. They need a GPU."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402
import triton.language as tl  # noqa: E402
import ulplab  # noqa: E402


@triton.jit
def norm(x, w, y, rstd, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    of_x = tl.load(x + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(of_x * of_x) / width + eps)
    tl.store(rstd + row, scale)
    of_w = tl.load(w + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(y + row * width + at, of_x * scale * of_w, mask=at < width)


@triton.jit
def norm_back(dy, x, w, rstd, dx, dw, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < width
    hat = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32) * tl.load(rstd + row)
    of_dy = tl.load(dy + row * width + at, mask=inside, other=0.0).to(tl.float32)
    scaled = of_dy * tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
    share = tl.sum(scaled * hat) / width
    tl.store(dx + row * width + at, (scaled - hat * share) * tl.load(rstd + row), mask=inside)
    tl.atomic_add(dw + at, of_dy * hat, mask=inside)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps=1e-6):
        y, rstd = torch.empty_like(x), torch.empty(len(x), device=x.device)
        block = triton.next_power_of_2(x.shape[1])
        norm[(len(x),)](x, w, y, rstd, x.shape[1], eps, BLOCK=block)
        ctx.save_for_backward(x, w, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, rstd = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.zeros(x.shape[1], device=x.device)
        block = triton.next_power_of_2(x.shape[1])
        norm_back[(len(x),)](dy.contiguous(), x, w, rstd, dx, dw, x.shape[1], BLOCK=block)
        return dx, dw.to(w.dtype), None


def reference(x, w):
    return F.rms_norm(x, x.shape[-1:], w, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [96, 1000])
def test_forward_and_backward(dtype, width):
    x, w = torch.randn(33, width, device="cuda", dtype=dtype), torch.randn(width, device="cuda", dtype=dtype)
    ulplab.assert_grad(Norm.apply, op=reference, inputs=(x, w))


def test_a_compiled_module_is_that_of_its_eager_form():
    block = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64), torch.nn.LayerNorm(64)).cuda()
    x = torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        ulplab.assert_close(torch.compile(block)(x), op=block, inputs=(x,))
    ulplab.assert_grad(torch.compile(block), op=block, inputs=(x,))
