"""``--ulplab-audit``: gates and assertions are asked again while a session runs, and reported in the end."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import linecache
import os
import re
import sys
import sysconfig
import warnings
from types import FrameType
from typing import Any, Callable, Iterator

import pytest

from . import _asserts, _planted, _ratchet

# Functions that say whether two tensors are close, and whether they raise or return it.
_GATES = [
    ("numpy.testing", "assert_allclose"),
    ("numpy.testing", "assert_array_almost_equal"),
    ("numpy.testing", "assert_almost_equal"),
    ("numpy.testing", "assert_approx_equal"),
    ("numpy.testing", "assert_array_equal"),
    ("numpy.testing", "assert_equal"),
    ("numpy", "allclose"),
    ("numpy", "array_equal"),
    ("torch.testing", "assert_close"),
    ("torch", "allclose"),
    ("torch", "equal"),
    ("torch", "Tensor.allclose"),
    ("torch", "Tensor.equal"),
    ("unittest", "TestCase.assertAlmostEqual"),
    ("ulplab", "assert_close"),
]
# Gates of modules that are imported late, and only asked where a suite has imported them.
_LATE = [
    ("torch.testing._internal.common_utils", "TestCase.assertEqual"),
    ("jax.numpy", "allclose"),
    ("jax.numpy", "array_equal"),
]
_KEY = "ulplab_audit"
# The names of the arguments of functions that have no signature.
_UNNAMED = {"allclose": ("input", "other"), "equal": ("input", "other")}
# Frames above a call that are looked at.
_DEEPEST = 60
_LISTED = 40


def _named(original: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> list[tuple[str, Any]]:
    """The arguments of a call, with their names, in the order of the signature."""
    try:
        signature = inspect.signature(original)
        bound = signature.bind(*args, **options).arguments
    except (TypeError, ValueError):
        names = _UNNAMED.get(getattr(original, "__name__", ""), ())
        return [*zip([*names, *[""] * len(args)], args), *options.items()]
    named: list[tuple[str, Any]] = []
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        several = kind is inspect.Parameter.VAR_KEYWORD
        named += value.items() if several else [("", one) for one in value] if kind is inspect.Parameter.VAR_POSITIONAL else [(name, value)]
    return named


class Gate:
    """A function that compares two of its arguments, in the place of the original."""

    def __init__(self, holder: Any, word: str, title: str, positions: tuple[int, int] | None) -> None:
        self.holder, self.word, self.title, self.positions = holder, word, title, positions
        self.original: Callable[..., Any] = getattr(holder, word)

    def restore(self) -> None:
        setattr(self.holder, self.word, self.original)

    def call(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Callable[[Any, Any], bool], Any, Any] | None:
        """A call as a function of two values, and these values: what is asked about, and what it should be."""
        named = _named(self.original, args, options)
        found = self.positions or _asserts.roles(named)
        if found is None or max(found) >= len(named):
            return None
        got, want = (named[at][1] for at in found)

        def passes(x: Any, y: Any) -> bool:
            left = [(got, x), (want, y)]

            def put(value: Any) -> Any:
                # A tensor that is compared with itself is replaced once.
                for at, (one, other) in enumerate(left):
                    if value is one:
                        del left[at]
                        return other
                return value

            try:
                placed = [put(value) for value in args]
                said = self.original(*placed, **{name: put(value) for name, value in options.items()})
            except Exception:  # noqa: BLE001 -- an error does not pass
                return False
            return said is None or bool(said)

        return passes, got, want


class Auditor:
    """Wraps gates while the session runs, follows assertions, and reports in the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.elements = int(config.getoption("ulplab_audit_elements"))
        self.places: dict[str, _planted.Place] = {}
        #: Assertions that were not asked: their text, and why, with the tests.
        self.listed: dict[str, dict[str, Any]] = {}
        self.test = "(collection)"
        self.asking = False
        self.depth = 0
        self.references: Any = None
        #: What bounds say, by the line of the assertion, and how many assertions compare nothing that a reference gave.
        self.bounds: dict[str, Any] = {}
        self.others = 0
        self.code, self.said_of_baseline = 0, list[str]()
        #: Lines of the test that runs, in which something was asked or listed; assertions that it reached.
        self.marks: set[tuple[str, int]] = set()
        self.reached: set[tuple[str, int]] = set()
        self.ever: set[str] = set()
        self.own: dict[str, bool] = {}
        self.outside = {os.path.realpath(path) for name, path in sysconfig.get_paths().items() if name in ("stdlib", "purelib", "platlib")}
        self.gates: list[Gate] = []
        baseline = config.getoption("ulplab_audit_baseline")
        try:
            self.baseline = _ratchet.read(baseline) if baseline else None
        except ValueError as error:
            raise pytest.UsageError(f"--ulplab-audit-baseline {error}") from error
        for module, function in _GATES:
            if importlib.util.find_spec(module.partition(".")[0]) is not None:
                self.wrap(module, function, None)
        for gate in config.getoption("ulplab_gate") or ():
            parsed = re.fullmatch(r"([\w.]+):([\w.]+)(?:\((\d+), *(\d+)\))?", gate)
            if not parsed or importlib.util.find_spec(parsed[1].partition(".")[0]) is None:
                raise pytest.UsageError(f"--ulplab-gate {gate}: expected MODULE:FUNCTION of a module that can be imported, or MODULE:FUNCTION(1,2)")
            self.wrap(parsed[1], parsed[2], (int(parsed[3]), int(parsed[4])) if parsed[3] else None, f"--ulplab-gate {gate}")
        self.finder = _asserts.Finder(self.is_own, self.after, config if config.getoption("assertmode") == "rewrite" else None)
        sys.meta_path.insert(0, self.finder)

    # Gates.

    def wrap(self, module: str, function: str, positions: tuple[int, int] | None, option: str = "") -> None:
        """Puts a function in the place of a gate, that asks it again."""
        try:
            holder: Any = importlib.import_module(module)
        except ImportError as error:
            raise pytest.UsageError(f"{option or module}: {error}") from error
        *above, word = function.split(".")
        for name in above:
            holder = getattr(holder, name, None)
        if getattr(holder, word, None) is None:
            if not option:
                return
            raise pytest.UsageError(f"{option}: there is no such function")
        gate = Gate(holder, word, f"{module}.{function}", positions)

        @functools.wraps(gate.original)
        def asked(*args: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            if self.asking or self.depth:
                return gate.original(*args, **options)
            self.depth += 1
            try:
                said = gate.original(*args, **options)
            except AssertionError:
                self.called(gate, args, options, False, sys._getframe(1))
                raise
            finally:
                self.depth -= 1
            self.called(gate, args, options, said is None or said is True or (said is not False and bool(said)), sys._getframe(1))
            return said

        self.gates.append(gate)
        setattr(holder, word, asked)

    def called(self, gate: Gate, args: tuple[Any, ...], options: dict[str, Any], passed: bool, frame: FrameType) -> None:
        """Asks a gate that the user's file has called."""
        if not self.is_own(frame.f_code.co_filename):
            return
        try:
            found = gate.call(args, options)
        except Exception:  # noqa: BLE001 -- a test must not fail because of an audit
            found = None
        where = self.where(frame.f_code.co_filename, frame.f_lineno)
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if found is None:
            # An assertion of a file that is followed is looked at when it has passed.
            if passed and frame.f_code.co_filename not in self.finder.files:
                self.unasked(where, frame.f_code.co_name, text, _planted.NO_PAIR)
            return
        self.ask(where, gate.title, frame.f_code.co_name, text, *found, passed)
        if passed:
            self.mark(frame)

    def ask(self, where: str, title: str, function: str, text: str, gate: Callable[[Any, Any], bool], got: Any, want: Any, passed: bool) -> bool:
        """Asks a gate about faults in what it passed, and a bound about what a reference gave. Says whether it was asked."""
        self.asking = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                why = None
                if passed:
                    new = where not in self.places
                    place = self.places.setdefault(where, _planted.Place(title, function, text))
                    if place.wants(self.test):
                        try:
                            why = _planted.ask(gate, got, want, place.of(self.test), self.elements)
                        except Exception as error:  # noqa: BLE001 -- a test must not fail because of an audit
                            why = f"faults cannot be planted: {type(error).__name__}: {str(error)[:80]}"
                        if why:
                            place.of(self.test).calls -= 1
                            if not place.of(self.test).calls:
                                del place.tests[self.test]
                            if new and not place.tests:
                                del self.places[where]
                            self.unasked(where, function, text, why)
                if self.references is not None:
                    self.compare(where, gate, got, want, passed)
        finally:
            self.asking = False
        return why is None

    def compare(self, where: str, gate: Callable[[Any, Any], bool], got: Any, want: Any, passed: bool) -> None:
        """Asks the bound of the reference that gave what is wanted: most often the second value."""
        from . import _references

        self.references.busy = True
        try:
            for one, other, passes in ((got, want, lambda x: gate(x, want)), (want, got, lambda x: gate(got, x))):
                if found := self.references.gave(other):
                    said = self.bounds.setdefault(where, _references.Said())
                    _references.judge(passes, passed, one, other, found, said)
                    return
            self.others += 1
        finally:
            self.references.busy = False

    # Assertions.

    def is_own(self, file: str) -> bool:
        """True for a file of the user's: below pytest's rootdir, and in no folder of installed modules."""
        known = self.own.get(file)
        if known is None:
            path, root = os.path.realpath(file), os.path.realpath(self.config.rootpath)
            installed = "site-packages" in path or "dist-packages" in path or any(path.startswith(one + os.sep) for one in self.outside if one != root)
            known = self.own[file] = path.startswith(root + os.sep) and not installed
        return known

    def where(self, file: str, line: int) -> str:
        return f"{os.path.relpath(file, self.config.rootpath)}:{line}"

    def mark(self, frame: FrameType | None) -> None:
        """Notes the lines that lead to an assertion: those above it are not assertions of their own."""
        for _ in range(_DEEPEST):
            if frame is None or f"{os.sep}_pytest{os.sep}" in frame.f_code.co_filename:
                return
            if self.is_own(frame.f_code.co_filename):
                self.marks.add((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back

    def unasked(self, where: str, function: str, text: str, why: str) -> None:
        """Notes an assertion that was not asked."""
        one = self.listed.setdefault(where, {"function": function, "text": text[:160], "why": {}})
        tests = one["why"].setdefault(why, [])
        if self.test not in tests:
            tests.append(self.test)

    def after(self, statement: _asserts.Statement, frame: FrameType) -> None:
        """Asks an assertion that has passed, if none of the gates that it called was."""
        if self.asking:
            return
        self.reached.add((statement.file, statement.line))
        where = self.where(statement.file, statement.line)
        self.ever.add(where)
        lines = {(statement.file, line) for line in range(statement.line, statement.end + 1)}
        if lines & self.marks:
            self.marks -= lines
            return
        place = self.places.get(where)
        mine = place.tests.get(self.test) if place else None
        if place and mine and mine.asked >= _planted.CALLS:
            mine.calls += 1
            self.mark(frame)
            return
        known = self.listed.get(where)
        if known and any(self.test in tests for tests in known["why"].values()):
            self.mark(frame)
            return
        function = statement.function.rpartition(".")[2]
        self.asking = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gate = _asserts.gate(statement, frame, self.elements)
                got, want = gate.leaves[gate.got].value, gate.leaves[gate.want].value
        except _asserts.NotAsked as why:
            if statement.asserts or str(why) == _asserts.MAYBE:
                self.unasked(where, function, statement.text, str(why))
        except Exception as error:  # noqa: BLE001 -- a test must not fail because of an audit
            if statement.asserts:
                self.unasked(where, function, statement.text, f"{type(error).__name__}: {str(error)[:80]}")
        else:
            self.ask(where, statement.text[:100], function, statement.text, gate, got, want, True)
        finally:
            self.asking = False
        self.mark(frame.f_back)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.test = item.nodeid
        self.marks.clear()
        self.reached.clear()
        try:
            return (yield)
        finally:
            self.test = "(collection)"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        # A test that fails or is skipped raises here.
        result = yield
        function = inspect.unwrap(getattr(item, "function", None) or (lambda: None))
        code = getattr(function, "__code__", None)
        if code is None or not self.is_own(code.co_filename):
            return result
        for one in self.statements_of(code.co_filename, code.co_firstlineno):
            if one.asserts and (one.file, one.line) not in self.reached:
                known = one.file in self.finder.files
                why = "it was not reached" if known else "its file was imported before the audit began"
                self.unasked(self.where(one.file, one.line), one.function.rpartition(".")[2], one.text, why)
        return result

    def statements_of(self, file: str, line: int) -> Iterator[_asserts.Statement]:
        """The assertions in the body of a test."""
        found = self.finder.files.get(file)
        if found is None:
            try:
                found = _asserts.statements("".join(linecache.getlines(file)), file)[1]
            except SyntaxError:
                found = []
        return (one for one in found if one.function_line == line)

    # The session.

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for module, function in _LATE:
            if module in sys.modules and not any(gate.title == f"{module}.{function}" for gate in self.gates):
                self.wrap(module, function, None)
        names = [*self.config.getoption("ulplab_reference"), *self.config.getini("ulplab_references")]
        if names and self.references is None:
            from . import _references

            try:
                self.references = _references.References(names)
            except ValueError as error:
                raise pytest.UsageError(f"--ulplab-reference {error}") from error

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.references is not None:
            self.references.restore()
        for gate in reversed(self.gates):
            gate.restore()
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        # What one test reached is not listed as unreached by another.
        for where in self.ever & self.listed.keys():
            self.listed[where]["why"].pop("it was not reached", None)
            if not self.listed[where]["why"]:
                del self.listed[where]
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            # A worker of pytest-xdist: its controller reports.
            places = {where: {**vars(one), "tests": {test: vars(asked) for test, asked in one.tests.items()}} for where, one in self.places.items()}
            bounds = {where: vars(one) for where, one in self.bounds.items()}
            output[_KEY] = json.dumps([places, bounds, self.others, self.listed, sorted(self.ever)])
            return
        found = _ratchet.document(self.places, self.listed)
        if path := self.config.getoption("ulplab_audit_json"):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(found, file, indent=1)
                file.write("\n")
        if self.baseline is not None:
            self.code, self.said_of_baseline = _ratchet.compared(found, self.baseline)
            if session.exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                session.exitstatus = self.code

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        places, bounds, others, listed, ever = json.loads(getattr(node, "workeroutput", {}).get(_KEY, "[{}, {}, 0, {}, []]"))
        self.others += others
        self.ever |= set(ever)
        for where, found in places.items():
            place = _planted.Place.read(found)
            self.places.setdefault(where, _planted.Place(place.gate, place.function, place.text)).join(place)
        for where, one in listed.items():
            mine = self.listed.setdefault(where, {**one, "why": {}})
            for why, tests in one["why"].items():
                mine["why"].setdefault(why, []).extend(tests)
        if bounds:
            from . import _references

            for where, found in bounds.items():
                self.bounds.setdefault(where, _references.Said()).join(_references.Said(**found))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("ulplab audit")
        if not self.places:
            write("no assertion that two tensors are close was called and passed")
        for where, place in sorted(self.places.items(), key=lambda item: (-len(item[1].whole().survivors()), item[0])):
            for line in place.lines(where) + self.said(where):
                write(line)
        for where in sorted(self.bounds.keys() - self.places.keys()):
            for line in [f"{where}: passed nothing", *self.said(where)]:
                write(line)
        if self.config.getoption("ulplab_reference") or self.config.getini("ulplab_references"):
            words = ("passed", "refused", "not_judged", "again")
            passed, refused, not_judged, again = (sum(getattr(said, word) for said in self.bounds.values()) for word in words)
            write(
                f"of assertions on what references gave, bounds pass {passed:,} and refuse {refused:,}; {not_judged:,} are not judged, "
                f"and {again:,} stand at a line that was asked before; {self.others:,} compare nothing that one of the last calls gave"
            )
        self.write_listed(write, terminalreporter.verbosity > 0)
        if self.baseline is not None:
            write("against the baseline:")
            for line in self.said_of_baseline or ["no gate is blind to more"]:
                write(f"    {line}")

    def write_listed(self, write: Callable[[str], None], every: bool) -> None:
        """Writes the assertions that were not asked: those without numbers are counted, unless every one is wanted."""
        shown = {where: one for where, one in self.listed.items() if every or list(one["why"]) != [_asserts.NO_NUMBERS]}
        asked = sum(bool(place.tests) for place in self.places.values())
        plain = len(self.listed) - sum(list(one["why"]) != [_asserts.NO_NUMBERS] for one in self.listed.values())
        write(f"lines with assertions: {asked} asked, {len(self.listed) - plain} not asked, {plain} without floating-point numbers")
        for where in sorted(shown):
            one = shown[where]
            for why, tests in one["why"].items():
                names = [_planted._called(test) for test in tests]
                more = f", and {len(names) - 3} more" if len(names) > 3 else ""
                write(f"    not asked: {where}: {one['text'].splitlines()[0][:90]}: {why} (in {', '.join(names[:3])}{more})")

    def said(self, where: str) -> list[str]:
        """What bounds say of the assertions at a line."""
        lines: list[str] = self.bounds[where].lines if where in self.bounds else []
        return lines
