"""Stubs say what the module has: those of operations are written from the registry, with ULPLAB_BLESS=1."""

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ulplab
from ulplab import _native

#: The sources of the module. An installed one has the same stubs.
FOLDER = Path(__file__).parents[1] / "ulplab"
HEAD = '''# Written by python/tests/test_stubs.py with ULPLAB_BLESS=1.
from typing import Any, Literal

'''
# What every operation takes besides its own, by `ulplab.reference.compute`.
OPTIONS = 'accumulate: str | None = None, dtype: str = "float32", fault: str | None = None'


def parameter(name, kind, default):
    """A parameter of an operation in a stub."""
    if kind == "tensor":
        return f"{name}: Any = None" if default else f"{name}: Any"
    if kind == "number":
        return f"{name}: float | None = None" if default == "None" else f"{name}: float = {float(default)!r}"
    words = default.replace(" | ", ", ")
    return f"{name}: Literal[{words}] = {words.partition(', ')[0]}"


def signature(operation):
    takes = [parameter(*takes[:3]) for takes in operation["takes"]]
    lines = "".join(f"    {one},\n" for one in [*takes, *OPTIONS.split(", ")])
    return f"def {operation['name']}(\n    *,\n{lines}) -> Any: ...\n"


def test_operations_have_the_signatures_of_the_registry():
    written = HEAD + "".join(map(signature, ulplab.reference.operations()))
    ast.parse(written)
    stub = FOLDER / "_operations.pyi"
    if os.environ.get("ULPLAB_BLESS") == "1":
        stub.write_text(written)
    assert stub.read_text() == written, "ULPLAB_BLESS=1 writes it again"


def test_functions_of_the_native_module_have_their_names_and_parameters():
    stub = ast.parse((FOLDER / "_native.pyi").read_text())
    described = {one.name: [arg.arg for arg in one.args.args] for one in stub.body if isinstance(one, ast.FunctionDef)}
    there = {name: getattr(_native, name) for name in dir(_native) if not name.startswith("_") and name != "Array"}
    functions = {name: one for name, one in there.items() if callable(one)}
    assert described == {name: list(inspect.signature(function).parameters) for name, function in functions.items()}
    numbers = {one.target.id for one in stub.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    assert numbers == there.keys() - functions.keys()


@pytest.mark.parametrize("checker", [("mypy", "--strict"), ("pyright",)])
def test_types_of_the_module_are_right(checker, tmp_path):
    if importlib.util.find_spec(checker[0]) is None:
        pytest.skip(f"{checker[0]} is not installed")

    def says(*paths):
        command = [sys.executable, "-m", *checker, *map(str, paths)]
        found = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True)
        return found.returncode, found.stdout + found.stderr

    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text('import ulplab\nulplab.reference.rmsnorm(x=[1.0], cast="before_weight")\nulplab.records("runs/one")\n')
    wrong.write_text('import ulplab\nulplab.reference.rmsnorm(x=[1.0], cast="sideways")\nulplab.reference.rmsnrm(x=[1.0])\n')
    exit_code, said = says(FOLDER, right)
    assert exit_code == 0, said
    exit_code, said = says(wrong)
    assert exit_code != 0 and "sideways" in said and "rmsnrm" in said
