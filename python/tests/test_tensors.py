"""What comes in: every type, every order of elements, of every library, without a copy; and what is refused."""

import gc
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest

import ulplab
from ulplab import _native
from ulplab._tensors import array


class Exporter:
    """A tensor of a library that is not numpy."""

    def __init__(self, x, device=(1, 0), versioned=True):
        self.x, self.device, self.versioned = x, device, versioned

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if options and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.x.__dlpack__(**options)


class OnDevice(Exporter):
    def __init__(self, x):
        super().__init__(x, device=(2, 0))

    def cpu(self):
        return Exporter(self.x)


def test_nothing_is_copied():
    x = np.arange(12.0).reshape(3, 4)
    assert array(x, "x").address == x.ctypes.data
    assert array(Exporter(x), "x").address == x.ctypes.data
    brain = x.astype(ml_dtypes.bfloat16)
    assert array(brain, "x").address == brain.ctypes.data
    assert (array(brain, "x").dtype, array(brain, "x").shape) == ("bfloat16", [3, 4])


@pytest.mark.parametrize("versioned", [True, False])
def test_memory_lives_as_long_as_it_is_used(versioned):
    class Owned(np.ndarray):
        pass

    x = np.arange(6.0).view(Owned)
    gone = weakref.ref(x)
    taken = array(Exporter(x, versioned=versioned), "x")
    references = sys.getrefcount(x)
    del taken
    gc.collect()
    assert sys.getrefcount(x) == references - 1
    del x
    assert gone() is None


def test_strides_of_every_kind():
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    views = [x[::-1], x[:, ::2], x[..., 1:4], x.T, x.transpose(2, 0, 3, 1), x[:, :, ::-2, ::3], x[1:2], x[:, 1:2, ::2]]
    views.append(np.broadcast_to(x[0, 0], (3, 4, 5)))
    for view in views:
        ulplab.assert_close(view, view.copy(), rtol=0)
        wrong = view.copy()
        wrong.flat[-1] += 1
        with pytest.raises(AssertionError, match="1 of"):
            ulplab.assert_close(wrong, view, rtol=0)
    misaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32)
    ulplab.assert_close(misaligned, x.ravel(), rtol=0)
    swapped = x.astype(">f4")
    ulplab.assert_close(swapped, x, rtol=0)
    frozen = x.copy()
    frozen.flags.writeable = False
    ulplab.assert_close(frozen, x, rtol=0)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_all_numbers_of_small_types(name):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    bits = np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        wide = bits.view(dtype).astype(np.float64)
    ulplab.assert_close(bits.view(dtype), wide, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e3m4", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"])
def test_types_that_are_widened(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    bits = np.arange(2 ** ml_dtypes.finfo(dtype).bits, dtype=np.uint8)
    ulplab.assert_close(bits.view(dtype), bits.view(dtype).astype(np.float64), rtol=0, equal_nan=True)


def test_scales_of_powers_of_two():
    bits = np.arange(256, dtype=np.uint8)
    values = np.append(2.0 ** (np.arange(255) - 127.0), np.nan)
    ulplab.assert_close(bits.view(ml_dtypes.float8_e8m0fnu), values, rtol=0, equal_nan=True)


def test_tensors_on_a_device_are_copied():
    x = np.arange(4.0)
    ulplab.assert_close(OnDevice(x), x.copy(), rtol=0)
    with pytest.raises(TypeError, match="'got' is a Exporter on a device"):
        ulplab.assert_close(Exporter(x, device=(2, 0)), x, rtol=0)


def test_what_is_no_tensor_is_refused():
    for wrong, said in [
        ("text", "'got' is a str, expected a tensor"),
        (object(), "'got' is a object, expected a tensor"),
        (np.array(["a"]), "'got' is an array of <U1"),
        (np.array([1j]), "complex|DLPack type 5"),
    ]:
        with pytest.raises(TypeError, match=said):
            ulplab.assert_close(wrong, np.ones(1), rtol=0)
    capsule = np.ones(3).__dlpack__()
    _native.Array(capsule)
    with pytest.raises(TypeError, match="not used before"):
        _native.Array(capsule)
    with pytest.raises(TypeError, match="said to be float32"):
        _native.Array(np.ones(3, np.uint8).__dlpack__(), "float32")


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.randn(5, 7, dtype=torch.float64)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        y = x.to(dtype)
        want = y.to(torch.float64).numpy().copy()
        ulplab.assert_close(y, want, rtol=0)
        ulplab.assert_close(y.T, want.T, rtol=0)
    for dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        y = x.to(dtype)
        ulplab.assert_close(y, y.to(torch.float64).numpy(), rtol=0)
    weight = torch.ones(7, requires_grad=True)
    normed = torch.nn.functional.rms_norm(x.to(torch.bfloat16), (7,), weight.to(torch.bfloat16), 1e-6)
    ulplab.assert_close(normed, op="rmsnorm", inputs={"x": x.to(torch.bfloat16), "weight": weight}, cast="before_weight")
    both = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    gate, up = both.chunk(2, -1)
    product = torch.nn.functional.silu(gate) * up
    ulplab.assert_close(product, op="silu_and_mul", inputs={"x": both}, cast="before_up")
    with pytest.raises(AssertionError, match='with cast = "before_up", whose bound is wider, 0 elements are outside'):
        ulplab.assert_close(product, op="silu_and_mul", inputs={"x": both})


def test_torch_pairs_of_4_bits():
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no 4-bit floats")
    codes = np.arange(256, dtype=np.uint8).reshape(8, 32)
    pairs = torch.from_numpy(codes).view(torch.float4_e2m1fn_x2)
    halves = np.stack([codes & 15, codes >> 4], axis=-1).reshape(8, 64)
    ulplab.assert_close(pairs, halves.view(ml_dtypes.float4_e2m1fn).astype(np.float64), rtol=0)


def test_torch_tensors_that_cannot_be_read():
    torch = pytest.importorskip("torch")
    for wrong, said in [
        (torch.empty(3, device="meta"), "'got'.*meta"),
        (torch.eye(3).to_sparse(), "'got'"),
        (torch.ones(3, dtype=torch.complex64), "'got' is of complex64"),
    ]:
        with pytest.raises(TypeError, match=said):
            ulplab.assert_close(wrong, np.ones(3), rtol=0)


def test_no_library_is_imported():
    import subprocess

    code = "import sys, ulplab; print([m for m in ('torch', 'jax', 'cupy', 'ml_dtypes', 'pytest') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
