"""The module in the process of its caller: it forks, its tensors have no memory, it is killed. A sentence, never a hang or a crash."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

import ulplab
from ulplab import _native
from ulplab._files import Stored
from ulplab._tensors import array

RNG = np.random.default_rng(0)
X = RNG.standard_normal((64, 512)).astype(np.float32)
RIGHT = ulplab.reference.softmax(x=X).value.astype(np.float32)
LARGE = RNG.standard_normal(2_000_000).astype(np.float32)


def everything(_=0):
    """What computes on threads."""
    ulplab.assert_close(RIGHT, op="softmax", inputs={"x": X})
    ulplab.assert_close(LARGE + 0, LARGE, rtol=1e-6, sqnr=60)
    q = ulplab.quantize(X, "nvfp4")
    ulplab.assert_quantized(q.codes, q.scales, X, "nvfp4", q.global_scale)
    with pytest.raises(AssertionError):
        ulplab.assert_close(RIGHT * 2, op="softmax", inputs={"x": X})
    return os.getpid()


def child(work, seconds=120):
    """The exit code of a child that works; it is killed if it does not end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture
def quiet():
    """Python warns of forks next to threads, which are what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@forks
def test_children_work_and_so_do_theirs(quiet):
    everything()
    assert child(everything) == 0
    assert child(lambda: [everything(), os._exit(child(everything))]) == 0
    everything()


@forks
def test_a_pool_of_children(quiet):
    everything()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert len(pool.map_async(everything, range(4)).get(timeout=240)) == 4


@forks
def test_a_fork_during_calls_of_other_threads(quiet):
    ends = threading.Event()
    failed = []

    def work():
        while not ends.is_set():
            try:
                ulplab.assert_close(LARGE + 0, LARGE, rtol=1e-6, sqnr=60)
                ulplab.assert_close(RIGHT, op="softmax", inputs={"x": X})
            except BaseException as error:  # noqa: BLE001 -- told below
                failed.append(error)
                return

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        codes = [child(lambda: ulplab.assert_close(LARGE + 0, LARGE, rtol=1e-6, sqnr=60)) for _ in range(5)]
    finally:
        ends.set()
        for thread in threads:
            thread.join(timeout=60)
    assert codes == [0] * 5 and not failed and not any(thread.is_alive() for thread in threads)


@forks
def test_a_fork_that_fails_leaves_the_module_usable(quiet):
    _native.before_fork()
    _native.after_fork()
    everything()


class Exporter:
    """A library whose tensors raise, or are no tensors."""

    def __init__(self, what, device=(1, 0)):
        self.what, self.device = what, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if isinstance(self.what, Exception):
            raise self.what
        return self.what


@pytest.mark.parametrize("what", [None, "text", 3, ZeroDivisionError("planted"), KeyError("planted"), RecursionError("planted")], ids=repr)
def test_libraries_that_export_nothing(what):
    with pytest.raises(TypeError, match="'got'"):
        ulplab.assert_close(Exporter(what), X, rtol=0)
    with pytest.raises(TypeError, match="'got'"):
        ulplab.assert_close(Exporter(what, device=what), X, rtol=0)


def capsule(data=0, shape=(3,), strides=None, ndim=None, code=2, bits=32, offset=0):
    """A capsule of a producer that is wrong, which leaks."""
    import ctypes

    class Tensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8)]
        _fields_ += [("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p)]
        _fields_ += [("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    def numbers(values):
        return None if values is None else (ctypes.c_int64 * len(values))(*values)

    sizes, steps = numbers(shape), numbers(strides)
    of = Tensor(data, (1, 0), len(shape or ()) if ndim is None else ndim, code, bits, 1, ctypes.addressof(sizes) if sizes else None,
                ctypes.addressof(steps) if steps else None, offset)
    KEPT.append((of, sizes, steps))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(of), b"dltensor", None)


KEPT = []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no memory behind it"),
        ({"shape": ()}, "no memory behind it"),
        ({"shape": (2, 3), "strides": (3, 1)}, "no memory behind it"),
        ({"shape": (-1,)}, "no memory can hold"),
        ({"shape": (2**62, 2**62)}, "no memory can hold"),
        ({"shape": (2**61,)}, "no memory can hold"),
        ({"shape": (3,), "strides": (2**62,)}, "no memory can hold"),
        ({"shape": (3,), "strides": (-(2**63),)}, "no memory can hold"),
        ({"ndim": -1}, "dimensions"),
        ({"ndim": 2**30}, "dimensions"),
        ({"shape": None, "ndim": 2}, "no sizes"),
        ({"bits": 4}, "4 bits"),
        ({"code": 99}, "type 99"),
    ],
)
def test_capsules_of_no_memory(given, said):
    with pytest.raises(TypeError, match=said):
        ulplab.assert_close(Exporter(capsule(**given)), X, rtol=0)


def test_no_elements_need_no_memory():
    assert array(Exporter(capsule(shape=(0, 3))), "x").shape == [0, 3]


def test_what_several_kernels_give_is_no_tensor():
    with pytest.raises(TypeError, match=r"'got' is a tuple of 2: NoneType, ndarray; give one of them, got\[0\]"):
        ulplab.assert_close((X, None), X, rtol=0)
    with pytest.raises(TypeError, match="masked array"):
        ulplab.assert_close(np.ma.masked_array(X, X > 0), X, rtol=0)


def signs(torch):
    """Tensors whose memory has the other sign."""
    z = torch.randn(6, 4, dtype=torch.complex64)
    real = torch.randn(6, 4)
    return {
        "z.conj().imag": z.conj().imag,
        "a slice": z.conj().imag[1:, ::2],
        "transposed": z.conj().imag.T,
        "_neg_view": torch._neg_view(real),
        "twice": torch._neg_view(torch._neg_view(real)),
        "f64": torch._neg_view(real.double()),
        "bf16": torch._neg_view(real.bfloat16()),
        "f16": torch._neg_view(real.half()),
        "requires grad": torch._neg_view(real.clone().requires_grad_()),
        "f8": torch._neg_view(real).to(torch.float8_e4m3fn),
    }


def test_negative_bits_are_applied():
    torch = pytest.importorskip("torch")
    for name, x in signs(torch).items():
        plain = np.array((x.detach() * 1.0 if x.dtype != torch.float8_e4m3fn else x.detach()).resolve_neg().double().tolist())
        ulplab.assert_close(x, plain, rtol=0)
        with pytest.raises(AssertionError):
            ulplab.assert_close(x, -plain, rtol=0)
            pytest.fail(name)
        assert (Stored.of(x).widened() == plain).all(), name
    x = signs(torch)["_neg_view"]
    plain = np.array(x.resolve_neg().tolist(), np.float32)
    ulplab.assert_close(torch.softmax(x, -1), op="softmax", inputs={"x": x})
    assert (ulplab.quantize(x, "mxfp8").codes == ulplab.quantize(plain, "mxfp8").codes).all()


def strange(torch):
    """Tensors that have no memory with their numbers, and what is said of each."""
    x = torch.randn(4, 4)

    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return super().__torch_function__(function, types, args, kwargs or {})

    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, size):
            return torch.Tensor._make_wrapper_subclass(cls, size)

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise RuntimeError("planted")

    freed = torch.randn(4, 4)
    freed.untyped_storage().resize_(0)
    found = {
        "lazy": (x.as_subclass(Lazy), "operations of its own"),
        "wrapped": (Wrapped((4, 4)), "operations of its own"),
        "meta": (torch.empty(4, 4, device="meta"), "meta"),
        "sparse": (x.to_sparse(), "layout"),
        "sparse rows": (x.to_sparse_csr(), "layout"),
        "nested": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        "jagged": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested|operations"),
        "quantized": (torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "quantized"),
        "freed": (freed, "it was freed"),
        "complex": (torch.randn(4, dtype=torch.complex64), "complex64"),
        "conjugate": (torch.randn(4, dtype=torch.complex64).conj(), "complex64"),
    }
    from torch._subclasses.fake_tensor import FakeTensorMode

    with contextlib.suppress(ImportError):
        found["fake"] = (FakeTensorMode().from_tensor(x), "operations of its own|no memory")
    return found


def test_tensors_without_memory_are_refused():
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = strange(torch)
    for name, (x, said) in found.items():
        for call in (
            lambda: ulplab.assert_close(x, np.zeros((4, 4)), rtol=0),
            lambda: ulplab.assert_close(np.zeros((4, 4)), x, rtol=0),
            lambda: ulplab.assert_close(np.zeros((4, 4)), op="softmax", inputs={"x": x}),
            lambda: ulplab.quantize(x, "mxfp8"),
            lambda: Stored.of(x),
        ):
            with pytest.raises(TypeError, match=said):
                call()
                pytest.fail(name)


def test_plain_tensors_of_every_kind():
    torch = pytest.importorskip("torch")
    x = torch.randn(6, 4)

    class Plain(torch.Tensor):
        pass

    with torch.inference_mode():
        inference = x * 1.0
    kinds = [x, torch.nn.Parameter(x), x.clone().requires_grad_(), (x.clone().requires_grad_() * 1.0), x.as_subclass(Plain), inference]
    kinds += [x.expand(3, 6, 4), x.T, x[::2], x[1:], x.unsqueeze(0), torch._efficientzerotensor((2, 3))]
    for one in kinds:
        want = np.array(one.detach().double().tolist())
        ulplab.assert_close(one, want, rtol=0)
        with torch.inference_mode():
            ulplab.assert_close(one, want, rtol=0)
    ulplab.assert_close(torch.tensor(3.0), np.array(3.0), rtol=0)
    assert array(x, "x").address == x.data_ptr(), "nothing is copied"


def test_modes_and_transforms():
    torch = pytest.importorskip("torch")
    x = torch.randn(6, 4)
    want = x.numpy().copy()
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        ulplab.assert_close(x, want, rtol=0)
        with pytest.raises(TypeError, match="'got'"):
            ulplab.assert_close(torch.ones(6, 4), want, rtol=0)
    told = []

    def inside(row):
        with pytest.raises(TypeError, match="inside vmap, grad or another transform") as error:
            ulplab.assert_close(row, want[0], rtol=0)
        told.append(error)
        return row.sum()

    torch.func.vmap(inside)(x)
    torch.func.grad(inside)(x[0])
    assert len(told) == 2


def test_compiled_functions_break_their_graph():
    torch = pytest.importorskip("torch")
    x = torch.randn(6, 4)
    wrong = []

    def step(x, want):
        y = x * 2
        ulplab.assert_close(y, want, rtol=0)
        return y + 1

    compiled = torch.compile(step, backend="eager")
    compiled(x, x.numpy() * 2)
    try:
        compiled(x, x.numpy() * 3)
    except AssertionError as error:
        wrong.append(str(error))
    assert len(wrong) == 1 and "24 of 24 elements are outside" in wrong[0]
    # Once torch's compiler is there, warnings still point here.
    with pytest.warns(ulplab.UlplabWarning, match="all elements that are wanted are equal") as told:
        ulplab.assert_close(np.ones(4), np.ones(4), rtol=0)
    assert told[0].filename == __file__


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import numpy as np, ulplab
from test_record import Model, normal, RNG
model = Model()
with ulplab.record(model, sys.argv[1], max_calls=100000):
    for at in range(int(sys.argv[2])):
        model(normal(RNG, 4, 32))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("steps", [0, 1, 10])
def test_a_killed_recording_has_the_calls_that_had_ended(tmp_path, steps):
    code = KILLED.format(tests=os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "calls"), str(steps)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if not steps:
        with pytest.raises(ValueError, match="holds no calls"):
            ulplab.replay(tmp_path)
        return
    found = ulplab.replay(tmp_path)
    assert len(found.of("passed")) == 5 * steps and not found.of("failed")
    assert [one.message for one in found if one.function == "recording"] == [
        "the recording was cut off: it has the calls that had ended, and no later ones"
    ]


def test_a_recording_that_is_cut_anywhere_is_read_up_to_there(tmp_path):
    from test_record import Model, normal

    model = Model()
    recording = ulplab.record(model, tmp_path, max_calls=1000)
    recording.__enter__()
    for _ in range(3):
        model(normal(RNG, 4, 32))
    log = tmp_path / "recording.jsonl"
    whole = log.read_bytes()
    counts = set()
    for end in range(0, len(whole), 97):
        log.write_bytes(whole[:end])
        found = ulplab.replay(tmp_path)
        assert not found.of("failed")
        counts.add(len(found.of("passed")))
    assert 0 in counts and 14 <= max(counts) <= 15
    log.write_bytes(whole)
    recording.__exit__(None, None, None)
    assert not log.exists() and len(ulplab.replay(tmp_path).of("passed")) == 15
    assert not list(tmp_path.glob(".*")), "nothing is left beside"


def test_one_bad_call_of_a_recording_leaves_the_rest(tmp_path):
    import json

    from test_record import Model, normal

    with ulplab.record(Model(), tmp_path) as recording:
        recording._chosen[0][1](normal(RNG, 4, 32))
    index = tmp_path / "recording.json"
    about = json.loads(index.read_text())
    right = len(ulplab.replay(tmp_path).of("passed"))
    norm = next(at for at, call in enumerate(about["calls"]) if call["module"] == "norm")
    for change in (
        None, 3, [], {}, {"class": 3}, {"class": []}, {"settings": 1}, {"inputs": 3}, {"inputs": {"arg_0": {"tensor": 3, "file": "x"}}},
        {"inputs": {"arg_0": {"tensor": "a", "file": "../../../etc/passwd"}}}, {"inputs": {"arg_0": {"tensor": "a",
            "file": "/etc/passwd"}}},
        {"inputs": {"arg_0": {"tensor": "none", "file": "calls-00001.safetensors"}}}, {"outputs": {"tensor": [], "file": []}},
    ):
        calls = list(about["calls"])
        calls[norm] = {**calls[norm], **change} if isinstance(change, dict) and change else change
        index.write_text(json.dumps({**about, "calls": calls}))
        found = ulplab.replay(tmp_path)
        assert len(found.of("passed")) >= right - 2 and not found.of("failed"), change
        assert len(found.of("not judged")) >= 3 or isinstance(change, dict), change


def test_what_is_exported():
    public = {name for names in ulplab._MODULES.values() for name in names} | {"reference"}
    assert ulplab.__all__ == sorted(public)
    import ast
    import pathlib

    tree = ast.parse(pathlib.Path(ulplab.__file__).read_text())
    lists = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
    assert [ast.literal_eval(one) for one in lists] == [ulplab.__all__], "type checkers read a list that is written out"
    assert all(getattr(ulplab, name) is not None for name in ulplab.__all__)
