"""``pytest --ulplab-audit``: which faults the assertions of a suite would let pass; ``--ulplab-report DIR``: what those of ulplab said.

Nothing but pytest is imported until it is asked for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import sys
from typing import Any, Callable

import pytest

# Functions that say whether two tensors are close, and whether they raise or return it.
_GATES = [
    ("numpy.testing", "assert_allclose"),
    ("numpy.testing", "assert_array_almost_equal"),
    ("numpy.testing", "assert_almost_equal"),
    ("numpy", "allclose"),
    ("torch.testing", "assert_close"),
    ("torch", "allclose"),
    ("ulplab", "assert_close"),
]
_KEY = "ulplab_audit"
# What gates call the tensors that they compare.
_COMPARED = [{"actual", "a", "x", "input", "got"}, {"desired", "expected", "b", "y", "other", "want"}]


def _compared(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """The tensors that a call compares, and its other arguments by position or name; None if it names no two."""
    args, options = list(given), dict(named)
    for at, names in enumerate(_COMPARED):
        if len(args) <= at:
            given_by = names & options.keys()
            if len(given_by) != 1:
                return None
            args.append(options.pop(given_by.pop()))
    return args, options


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ulplab")
    group.addoption(
        "--ulplab-audit",
        action="store_true",
        help="ask every assertion that two tensors are close again, with faults in what it passed, and report which it lets pass",
    )
    group.addoption(
        "--ulplab-gate",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="another function to ask: it compares its first two arguments, and raises AssertionError or returns whether they are close",
    )
    group.addoption(
        "--ulplab-report",
        metavar="DIR",
        default=os.environ.get("ULPLAB_REPORT") or None,
        help="write what assertions of ulplab said to DIR/index.html, and inputs of what failed to DIR/capsules (or ULPLAB_REPORT=DIR)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("ulplab_report"):
        from ._report import Reporter

        config.pluginmanager.register(Reporter(config, folder), "ulplab_reporter")
    if config.getoption("ulplab_gate") and not config.getoption("ulplab_audit"):
        raise pytest.UsageError("--ulplab-gate is for --ulplab-audit, which is not given")
    if config.getoption("ulplab_audit"):
        config.pluginmanager.register(_Auditor(config), "ulplab_auditor")


class _Auditor:
    """Wraps gates while the session runs, and reports in the end."""

    def __init__(self, config: pytest.Config) -> None:
        from . import _audit

        self.audit, self.config = _audit, config
        self.places: dict[str, Any] = {}
        self.asking = False
        self.wrapped: list[tuple[Any, str, Callable[..., Any]]] = []
        named = []
        for gate in config.getoption("ulplab_gate") or ():
            module, colon, function = gate.partition(":")
            if not colon or importlib.util.find_spec(module.partition(".")[0]) is None:
                raise pytest.UsageError(f"--ulplab-gate {gate}: expected MODULE:FUNCTION of a module that can be imported")
            named.append((module, function))
        for module, function in _GATES + named:
            if importlib.util.find_spec(module.partition(".")[0]) is not None:
                try:
                    found = importlib.import_module(module)
                except ImportError as error:
                    raise pytest.UsageError(f"--ulplab-gate {module}:{function}: {error}") from error
                self.wrap(found, function)

    def wrap(self, module: Any, function: str) -> None:
        original = getattr(module, function, None)
        if original is None:
            raise pytest.UsageError(f"--ulplab-gate {module.__name__}:{function}: there is no such function")

        @functools.wraps(original)
        def gate(*args: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            said = original(*args, **options)
            compared = None if self.asking else _compared(args, options)
            if compared is not None and (said is None or bool(said)):
                self.asking = True
                try:
                    self.ask(f"{module.__name__}.{function}", original, *compared)
                finally:
                    self.asking = False
            return said

        self.wrapped.append((module, function, original))
        setattr(module, function, gate)

    def ask(self, name: str, original: Callable[..., Any], args: list[Any], options: dict[str, Any]) -> None:
        def passes(got: Any) -> bool:
            try:
                said = original(got, *args[1:], **options)
            except Exception:  # noqa: BLE001 -- whatever it raises, it does not pass
                return False
            return said is None or bool(said)

        import warnings

        frame = sys._getframe(2)
        where = f"{os.path.relpath(frame.f_code.co_filename, self.config.rootpath)}:{frame.f_lineno}"
        place = self.places.setdefault(where, self.audit.Place(name))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.audit.ask(passes, args[0], args[1], place)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for module, function, original in self.wrapped:
            setattr(module, function, original)
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            # A worker of pytest-xdist: its controller reports.
            output[_KEY] = json.dumps({where: vars(place) for where, place in self.places.items()})

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        for where, found in json.loads(getattr(node, "workeroutput", {}).get(_KEY, "{}")).items():
            place = self.places.setdefault(where, self.audit.Place(found["gate"]))
            place.join(self.audit.Place(**found))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("ulplab audit")
        if not self.places:
            terminalreporter.write_line("no assertion that two tensors are close was called and passed")
        for where, place in sorted(self.places.items(), key=lambda item: (-len(item[1].survivors()), item[0])):
            for line in place.lines(where):
                terminalreporter.write_line(line)
