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
        "--ulplab-reference",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="a plain reference of the project in torch (or FILE.py:FUNCTION): of assertions on what it gave, --ulplab-audit reports what "
        "the bound that follows from it says (or ulplab_references in the ini file)",
    )
    parser.addini("ulplab_references", "plain references of the project, as --ulplab-reference names them", "linelist", [])
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
    for option in ("gate", "reference"):
        if config.getoption(f"ulplab_{option}") and not config.getoption("ulplab_audit"):
            raise pytest.UsageError(f"--ulplab-{option} is for --ulplab-audit, which is not given")
    if config.getoption("ulplab_audit"):
        config.pluginmanager.register(_Auditor(config), "ulplab_auditor")


class _Auditor:
    """Wraps gates while the session runs, and reports in the end."""

    def __init__(self, config: pytest.Config) -> None:
        from . import _audit

        self.audit, self.config = _audit, config
        self.places: dict[str, Any] = {}
        self.asking = False
        self.references: Any = None
        #: What bounds say, by the line of the assertion, and how many assertions compare nothing that a reference gave.
        self.bounds: dict[str, Any] = {}
        self.others = 0
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
            compared = None if self.asking else _compared(args, options)
            try:
                said = original(*args, **options)
            except AssertionError:
                if compared is not None:
                    self.ask(f"{module.__name__}.{function}", original, *compared, False)
                raise
            if compared is not None:
                self.ask(f"{module.__name__}.{function}", original, *compared, said is None or bool(said))
            return said

        self.wrapped.append((module, function, original))
        setattr(module, function, gate)

    def ask(self, name: str, original: Callable[..., Any], args: list[Any], options: dict[str, Any], passed: bool) -> None:
        """Asks a gate about faults in what it passed, and a bound about what a reference gave."""

        def passes(x: Any, at: int = 0) -> bool:
            try:
                said = original(*args[:at], x, *args[at + 1 :], **options)
            except Exception:  # noqa: BLE001 -- whatever it raises, it does not pass
                return False
            return said is None or bool(said)

        import warnings

        frame = sys._getframe(2)
        where = f"{os.path.relpath(frame.f_code.co_filename, self.config.rootpath)}:{frame.f_lineno}"
        self.asking = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if passed:
                    place = self.places.setdefault(where, self.audit.Place(name))
                    self.audit.ask(passes, args[0], args[1], place)
                if self.references is not None:
                    self.compare(where, passes, args, passed)
        finally:
            self.asking = False

    def compare(self, where: str, passes: Callable[..., bool], args: list[Any], passed: bool) -> None:
        """Asks the bound of the reference that gave what is wanted: most often the second argument."""
        from . import _references

        self.references.busy = True
        try:
            for at in (0, 1):
                if found := self.references.gave(args[1 - at]):
                    said = self.bounds.setdefault(where, _references.Said())
                    _references.judge(functools.partial(passes, at=at), passed, args[at], args[1 - at], found, said)
                    return
            self.others += 1
        finally:
            self.references.busy = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        names = [*self.config.getoption("ulplab_reference"), *self.config.getini("ulplab_references")]
        if names and self.references is None:
            from . import _references

            try:
                self.references = _references.References(names)
            except ValueError as error:
                raise pytest.UsageError(f"--ulplab-reference {error}") from error

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.references is not None:
            self.references.restore()
        for module, function, original in self.wrapped:
            setattr(module, function, original)
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            # A worker of pytest-xdist: its controller reports.
            found = [{where: vars(one) for where, one in some.items()} for some in (self.places, self.bounds)]
            output[_KEY] = json.dumps([*found, self.others])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        places, bounds, others = json.loads(getattr(node, "workeroutput", {}).get(_KEY, "[{}, {}, 0]"))
        self.others += others
        for where, found in places.items():
            place = self.places.setdefault(where, self.audit.Place(found["gate"]))
            place.join(self.audit.Place(**found))
        if bounds:
            from . import _references

            for where, found in bounds.items():
                self.bounds.setdefault(where, _references.Said()).join(_references.Said(**found))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("ulplab audit")
        if not self.places:
            terminalreporter.write_line("no assertion that two tensors are close was called and passed")
        for where, place in sorted(self.places.items(), key=lambda item: (-len(item[1].survivors()), item[0])):
            for line in place.lines(where) + self.said(where):
                terminalreporter.write_line(line)
        for where in sorted(self.bounds.keys() - self.places.keys()):
            for line in [f"{where}: passed nothing", *self.said(where)]:
                terminalreporter.write_line(line)
        if self.config.getoption("ulplab_reference") or self.config.getini("ulplab_references"):
            words = ("passed", "refused", "not_judged", "again")
            passed, refused, not_judged, again = (sum(getattr(said, word) for said in self.bounds.values()) for word in words)
            terminalreporter.write_line(
                f"of assertions on what references gave, bounds pass {passed:,} and refuse {refused:,}; {not_judged:,} are not judged, "
                f"and {again:,} stand at a line that was asked before; {self.others:,} compare nothing that one of the last calls gave"
            )

    def said(self, where: str) -> list[str]:
        """What bounds say of the assertions at a line."""
        return self.bounds[where].lines if where in self.bounds else []
