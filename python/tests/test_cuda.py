"""Tensors in memory of CUDA are read through its driver: a fake one everywhere, and a real one where there is a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ulplab
from ulplab import _native

HERE = Path(__file__).parent


def test_a_fake_driver(tmp_path):
    driver = tmp_path / "driver.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", driver, HERE / "fake_cuda.c"], check=True)
    environment = {**os.environ, "ULPLAB_CUDA_DRIVER": str(driver), "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    subprocess.run([sys.executable, HERE / "fake_cuda.py"], env=environment, check=True)


def test_no_driver():
    """A file that is not there is no error: tensors are copied by their own library."""
    environment = {**os.environ, "ULPLAB_CUDA_DRIVER": "/nowhere/libcuda.so", "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-c", "from ulplab import _native; print(_native.reads_cuda())"],
        env=environment, check=True, capture_output=True, text=True,
    )
    assert said.stdout == "False\n"


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("there is no GPU")
    assert _native.reads_cuda()
    return found


@pytest.fixture
def no_copies(torch, monkeypatch):
    def copy(*_, **__):
        raise AssertionError("torch was asked for a copy")

    for name in ("cpu", "to", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, copy)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_tensors_of_torch(torch, no_copies, name):
    generator = torch.Generator("cuda").manual_seed(0)
    want = torch.randn((4096, 1025), generator=generator, device="cuda", dtype=getattr(torch, name))
    got = want.clone()
    ulplab.assert_close(got, want, rtol=0, atol=0)
    got[4095, 1024] = 9
    with pytest.raises(AssertionError, match=r"1 of 4,198,400 elements .*\n  worst at \[4095, 1024\]: got 9"):
        ulplab.assert_close(got, want, rtol=1e-3, atol=0)


def test_work_that_is_under_way_is_waited_for(torch, no_copies):
    want = torch.zeros(1 << 24, device="cuda")
    stream = torch.cuda.Stream()
    for _ in range(20):
        got = torch.zeros_like(want)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            got += 1
            ulplab.assert_close(got, want, rtol=0, atol=1)
            with pytest.raises(AssertionError, match="16,777,216 of 16,777,216"):
                ulplab.assert_close(got, want, rtol=0, atol=0.5)


def test_operations_on_a_gpu(torch, no_copies):
    x = torch.randn((64, 512), device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(512, device="cuda", dtype=torch.bfloat16)
    wide = x.double()
    y = (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6) * weight.double()).bfloat16()
    inputs = {"x": x, "weight": weight, "eps": 1e-6}
    ulplab.assert_close(y, op="rmsnorm", inputs=inputs)
    with pytest.raises(AssertionError, match="looks like"):
        ulplab.assert_close(y.roll(1, 0), op="rmsnorm", inputs=inputs)


def test_what_is_not_contiguous_is_copied_by_torch(torch):
    x = torch.randn((300, 200), device="cuda")
    ulplab.assert_close(x.T, np.ascontiguousarray(x.cpu().numpy().T), rtol=0, atol=0)
