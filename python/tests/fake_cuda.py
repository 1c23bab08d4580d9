"""Compares tensors of a device that is not there: run by test_cuda.py in a process of its own, as the driver is loaded once.

    ULPLAB_CUDA_DRIVER=driver.so python fake_cuda.py
"""

import ctypes
import os

import numpy as np
import pytest

import ulplab
from ulplab import _native

DRIVER = ctypes.CDLL(os.environ["ULPLAB_CUDA_DRIVER"])
DEVICE = 1 << 60
CHUNK = 8 << 20
POINTER = ctypes.pythonapi.PyCapsule_GetPointer
POINTER.restype, POINTER.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def counter(name):
    return ctypes.c_int64.in_dll(DRIVER, f"fake_{name}")


class OnDevice:
    """A tensor that says it is on a CUDA device: numpy's, with another device and address in what it hands over."""

    def __init__(self, x, versioned=True, device=0):
        self.x, self.versioned, self.device = x, versioned, device
        self.streams = []

    def __dlpack_device__(self):
        return (2, self.device)

    def __dlpack__(self, *, stream=None, **version):
        if version and not self.versioned:
            raise TypeError("max_version is not known")
        self.streams.append(stream)
        capsule = self.x.__dlpack__(**version)
        tensor = POINTER(capsule, b"dltensor_versioned") + 32 if version else POINTER(capsule, b"dltensor")
        ctypes.c_uint64.from_address(tensor).value += DEVICE
        ctypes.c_int32.from_address(tensor + 8).value = 2
        ctypes.c_int32.from_address(tensor + 12).value = self.device
        return capsule

    def cpu(self):
        raise AssertionError("the framework was asked for a copy")


class Copied(OnDevice):
    def cpu(self):
        return self.x


def comparisons():
    rng = np.random.default_rng(0)
    # Sizes around that of a chunk, which is 2^20 elements.
    for size in (1, 1 << 20, (1 << 20) + 1, (2 << 20) + 12345):
        for dtypes in ((np.float32, np.float32), (np.float16, np.float16), (np.float64, np.float32), (np.int8, np.int64)):
            want = (rng.standard_normal(size) * 50).astype(dtypes[1])
            got = want.astype(dtypes[0])
            want = got.astype(dtypes[1])
            for at in {0, size // 2, size - 1} if size > 1 else ():
                wrong = got.copy()
                wrong[at] = 101
                older = OnDevice(wrong, versioned=False)
                for a, b in ((OnDevice(wrong), OnDevice(want)), (older, want), (wrong, OnDevice(want))):
                    with pytest.raises(AssertionError, match=rf"1 of {size:,} elements .*\n  worst at \[{at}\]: got 101"):
                        ulplab.assert_close(a, b, rtol=1e-3, atol=0)
            before = counter("copied").value
            ulplab.assert_close(OnDevice(got), OnDevice(want), rtol=0, atol=0)
            assert counter("copied").value - before == got.nbytes + want.nbytes


def failures():
    x = np.arange(3 << 20, dtype=np.float32)
    for after in range(4):
        counter("fails_after").value = after
        with pytest.raises(ValueError, match="cannot copy from the device: CUDA_ERROR_ILLEGAL_ADDRESS .700."):
            ulplab.assert_close(OnDevice(x), OnDevice(x.copy()), rtol=0, atol=0)
        counter("fails_after").value = -1
        ulplab.assert_close(OnDevice(x), OnDevice(x.copy()), rtol=0, atol=0)
    with pytest.raises(ValueError, match="cannot find the device: CUDA_ERROR_INVALID_VALUE"):
        ulplab.assert_close(OnDevice(x, device=1), x, rtol=0, atol=0)


def operations():
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((40, 64), 64))
    got = ulplab.reference.rmsnorm(x=x, weight=weight).value.astype(np.float32)
    inputs = {"x": OnDevice(x), "weight": OnDevice(weight)}
    ulplab.assert_close(OnDevice(got), op="rmsnorm", inputs=inputs)
    ulplab.assert_close(OnDevice(x), OnDevice(x.copy()), cosine=1 - 1e-12)
    with pytest.raises(AssertionError, match="looks like"):
        ulplab.assert_close(OnDevice(np.roll(got, 1, 0)), op="rmsnorm", inputs=inputs)
    # What cannot be read where it is goes the old way.
    ulplab.assert_close(Copied(x.T), x.T.copy(), rtol=0, atol=0)


def main():
    assert _native.reads_cuda()
    told = OnDevice(np.ones(3, np.float32))
    ulplab.assert_close(told, np.arange(3, dtype=np.float32), rtol=0, atol=2)
    assert told.streams == [1] and counter("waited").value == 1
    comparisons()
    # Two tensors at a time, two buffers each, however large they are and however often they are read.
    assert counter("pinned").value == 4 * CHUNK and counter("largest").value == CHUNK
    failures()
    operations()
    assert counter("current").value == 0


main()
