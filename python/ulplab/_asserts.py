"""Assertions of test files: where they stand, which of them ran, and how their expressions are asked again."""

from __future__ import annotations

import ast
import copy
import importlib.machinery
import importlib.util
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Callable, Iterator

import numpy

from . import _planted

# The name by which a test file calls the audit: no file can have it.
_HOOK = "@ulplab"
# Calls that are assertions by their names.
_ASSERTING = re.compile(r"assert|all_?close|^_?(check|verify|compare|expect)(_|$)|^_?(check|verify|compare|expect)[A-Z]")
# Functions and methods that give the same again and change nothing.
_PURE = set(
    "abs absolute all allclose amax amin any approx argmax argmin array array_equal asarray astype bfloat16 bool clamp clip clone contiguous "
    "cosine_similarity count_nonzero cpu cuda dequantize detach dict div dot double enumerate eq equal fabs flatten float from_numpy full_tensor "
    "ge get getattr gt half int is_close isclose isfinite isinf isnan item items keys le list log log10 logical_and logical_not logical_or lt max "
    "maximum mean median min minimum mse_loss l1_loss mul ne nan_to_num nanmax nanmean nonzero norm numpy ones_like permute pow prod quantile "
    "range ravel relative_error reshape round sorted sqrt square squeeze std sub subtract sum t tensor to to_local tolist transpose true_divide "
    "tuple type unsqueeze values var vector_norm view vdot where zeros_like zip".split()
)
# Parts of names of functions that measure a distance: they give the same again, too.
_MEASURE = re.compile(r"(?i)compute_error|sqnr|snr|cos(ine)?_?sim|err|diff|rmse|mse|dist|similarity|close|equal|assert|corr")
# Functions and methods of a tensor that do not look at its numbers.
_SHAPES = set(
    "callable data_ptr dim element_size get_device hasattr id is_contiguous is_floating_point isinstance issubclass len ndimension numel repr "
    "requires_grad_ size str stride".split()
)
_WANTED = re.compile(r"(?i)(^|_|\.)(refs?|references?|expect(ed)?|desired|want(ed)?|gold(en)?|targets?|truth|baseline|correct|naive|eager)(_|\d|$)")
# Names of arguments that hold no number to compare.
TOLERANCES = set("rtol atol tol rel abs delta places ratio eps threshold max_ulp maxulp nulp decimal significant msg err_msg prefix verbose".split())
NO_NUMBERS = "it has no floating-point numbers"
DIFFERS = "it passes only what differs"
MAYBE = "it may be an assertion: name its function with --ulplab-gate"
# Assignments that are followed back, one after another.
_STEPS = 6


class NotAsked(Exception):
    """Why an assertion is not asked."""


@dataclass
class Statement:
    """An assertion of a file."""

    file: str
    line: int
    end: int
    #: The function that it stands in, and the first line of it.
    function: str
    function_line: int
    text: str
    expression: ast.expr
    #: The blocks that lead to it, outermost first, and its place in each.
    blocks: list[tuple[list[ast.stmt], int]]
    #: False for a call in a test that is an assertion only if its function is one.
    asserts: bool = True


def _name(function: ast.expr) -> str:
    """The last name of what is called."""
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _raises(body: list[ast.stmt]) -> bool:
    """True if a block ends with a failure of the test."""
    last = body[-1]
    if isinstance(last, ast.Raise):
        raised = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
        return raised is not None and _name(raised) == "AssertionError"
    return isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and _name(last.value.func) == "fail"


def _asserted(node: ast.stmt, in_test: bool) -> ast.expr | None:
    """The expression that an assertion asserts, or that a test calls for nothing that it returns; None for other statements."""
    if isinstance(node, ast.Assert):
        return node.test
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and (in_test or _ASSERTING.search(_name(node.value.func))):
        return node.value
    if isinstance(node, ast.If) and not node.orelse and _raises(node.body):
        return ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
    return None


def statements(source: str | bytes, file: str) -> tuple[ast.Module, list[Statement]]:
    """The tree of a file, in which each assertion is followed by a call of the audit, and its assertions."""
    tree = ast.parse(source, filename=file)
    found: list[Statement] = []

    def visit(block: list[ast.stmt], above: list[tuple[list[ast.stmt], int]], function: str, line: int, owner: Any) -> None:
        added: list[tuple[int, ast.stmt]] = []
        call: ast.stmt
        for at, node in enumerate(block):
            inside, inside_line, start = function, line, [*above, (block, at)]
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inside = f"{function}.{node.name}" if function else node.name
                inside_line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                start = []
            expression = _asserted(node, function.rpartition(".")[2].startswith("test"))
            for part in ("body", "orelse", "finalbody"):
                # What fails the test in an `if` is part of that assertion.
                if getattr(node, part, None) and not (expression and isinstance(node, ast.If)):
                    visit(getattr(node, part), start, inside, inside_line, (node, part))
            for case in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
                visit(case.body, start, inside, inside_line, (case, "body"))
            if expression is not None:
                text = f"if {ast.unparse(node.test)}: …" if isinstance(node, ast.If) else ast.unparse(node)
                call = ast.Expr(ast.Call(ast.Name(_HOOK, ast.Load()), [ast.Constant(len(found))], []))
                for inner in ast.walk(call):
                    ast.copy_location(inner, node)
                added.append((at + 1, call))
                end = node.end_lineno or node.lineno
                asserts = not isinstance(expression, ast.Call) or isinstance(node, ast.Assert) or bool(_ASSERTING.search(_name(expression.func)))
                found.append(Statement(file, node.lineno, end, function, line, text, expression, [*above, (block, at)], asserts))
        if added:
            marked = list(block)
            for at, call in reversed(added):
                marked.insert(at, call)
            pending.append((owner, marked))

    pending: list[tuple[Any, list[ast.stmt]]] = []
    visit(tree.body, [], "", 0, (tree, "body"))
    # Blocks as they were written are kept for those who look back; the tree gets others.
    for (owner, part), marked in pending:
        setattr(owner, part, marked)
    return tree, found


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a file whose assertions call the audit. Nothing is cached: later sessions have none of it."""

    def __init__(self, name: str, path: str, after: Callable[[Statement, FrameType], None], keep: dict[str, list[Statement]], config: Any) -> None:
        super().__init__(name, path)
        self.after, self.keep, self.config = after, keep, config

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        tree, self.keep[path] = statements(source, path)
        tree = copy.deepcopy(tree)
        if self.config is not None:
            from _pytest.assertion.rewrite import rewrite_asserts

            rewrite_asserts(tree, source, path, self.config)
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        found = self.keep

        def hook(at: int) -> None:
            frame = sys._getframe(1)
            self.after(found[self.path][at], frame)

        module.__dict__[_HOOK] = hook
        super().exec_module(module)


class Finder:
    """Finds test files, and modules in folders of tests, before pytest does."""

    def __init__(self, is_own: Callable[[str], bool], after: Callable[[Statement, FrameType], None], config: Any) -> None:
        self.is_own, self.after, self.config = is_own, after, config
        #: The assertions of each file that was loaded.
        self.files: dict[str, list[Statement]] = {}

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        from _pytest.assertion.rewrite import AssertionRewritingHook

        spec = None
        for other in sys.meta_path:
            if isinstance(other, AssertionRewritingHook):
                spec = other.find_spec(name, path, target)
        rewrites = spec is not None
        try:
            spec = spec or importlib.machinery.PathFinder.find_spec(name, path, target)
        except Exception:  # noqa: BLE001 -- another finder says what is wrong
            return None
        origin = spec and spec.origin
        if not spec or not origin or not origin.endswith(".py") or not self.is_own(origin):
            return None
        if not rewrites and not self._is_next_to_tests(Path(origin)):
            return None
        loader = _Loader(name, origin, self.after, self.files, self.config if rewrites else None)
        return importlib.util.spec_from_file_location(name, origin, loader=loader, submodule_search_locations=spec.submodule_search_locations)

    @staticmethod
    def _is_next_to_tests(path: Path) -> bool:
        """True for a module in a folder of tests, which helps them."""
        named = any(part in ("test", "tests", "testing") for part in path.parts)
        return named or any(path.parent.glob("test_*.py")) or any(path.parent.glob("*_test.py"))


def _assigned(name: str, blocks: list[tuple[list[ast.stmt], int]]) -> tuple[ast.expr, list[tuple[list[ast.stmt], int]]] | None:
    """The last assignment to a name before a place, and its own place; None if there is none, or which one ran is not known."""
    for depth in range(len(blocks) - 1, -1, -1):
        block, at = blocks[depth]
        for before in range(at - 1, -1, -1):
            node = block[before]
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else getattr(node, "target", None)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name) and target.id == name and node.value is not None:
                return node.value, [*blocks[:depth], (block, before)]
            if any(isinstance(one, ast.Name) and one.id == name and not isinstance(one.ctx, ast.Load) for one in ast.walk(node)):
                return None
    return None


def _calls(node: ast.expr) -> Iterator[ast.Call]:
    """The calls in an expression that may do something."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and _name(one.func) not in _PURE | _SHAPES and not _MEASURE.search(_name(one.func)):
            yield one


@dataclass
class Leaf:
    """A value that an expression names."""

    source: str
    value: Any


@dataclass
class _Leaves(ast.NodeTransformer):
    """Takes the values that an expression names out of it: each becomes a name of its own."""

    scope: dict[str, Any]
    found: list[Leaf] = field(default_factory=list)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and not any(isinstance(one, (ast.Call, ast.BinOp)) for one in ast.walk(node)):
            return self.leaf(node)
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return node
        if isinstance(node, ast.Call):
            if _name(node.func) in _SHAPES:
                return node
            # A method's tensor is looked at, its name is not.
            if isinstance(node.func, ast.Attribute):
                node.func.value = self.visit(node.func.value)
            node.args = [self.visit(one) for one in node.args]
            for keyword in node.keywords:
                if keyword.arg not in TOLERANCES:
                    keyword.value = self.visit(keyword.value)
            return node
        return super().generic_visit(node)

    def leaf(self, node: ast.expr) -> ast.expr:
        source = ast.unparse(node)
        known = [at for at, one in enumerate(self.found) if one.source == source]
        if not known:
            try:
                value = eval(source, self.scope)  # noqa: S307 -- the test's own expression
            except Exception:  # noqa: BLE001 -- a name of a comprehension, or what was deleted since
                return node
            if isinstance(value, ModuleType) or not _planted.has_numbers(value):
                return node
            known = [len(self.found)]
            self.found.append(Leaf(source, value))
        return ast.copy_location(ast.Name(f"_ulplab_{known[0]}", ast.Load()), node)


def _is_number(x: Any) -> bool:
    return isinstance(x, (float, complex, numpy.inexact)) or getattr(x, "shape", None) == ()


def roles(named: list[tuple[str, Any]]) -> tuple[int, int] | None:
    """The places of two values that can be compared: what is asked about, and what it should be."""
    held = [at for at, (name, value) in enumerate(named) if name not in TOLERANCES and _planted.has_numbers(value)]
    choices = [
        (one, other)
        for at, one in enumerate(held)
        for other in held[at + 1 :]
        if not (_is_number(named[one][1]) and _is_number(named[other][1])) or [one, other] == held[:2]
    ]
    # Tensors go before numbers, which may be tolerances.
    choices.sort(key=lambda pair: _is_number(named[pair[0]][1]))
    for one, other in choices:
        if any(True for _ in _planted.pairs(named[one][1], named[other][1])):
            swap = _WANTED.search(named[one][0]) and not _WANTED.search(named[other][0])
            return (other, one) if swap else (one, other)
    return None


def _same(x: Any, y: Any) -> bool:
    try:
        if hasattr(x, "detach"):
            x, y = x.detach().cpu(), y.detach().cpu()
            return bool(x.shape == y.shape and ((x == y) | (x != x) & (y != y)).all())
        return bool(numpy.array_equal(x, y)) or x == y or (x != x and y != y)
    except Exception:  # noqa: BLE001 -- values that cannot be compared are not known to be the same
        return False


@dataclass
class Expression:
    """An assertion as a gate: its expression, with the values that it names taken out."""

    code: CodeType
    scope: dict[str, Any]
    leaves: list[Leaf]
    got: int
    want: int
    elements: int

    def __call__(self, got: Any, want: Any) -> bool:
        values = {f"_ulplab_{at}": leaf.value for at, leaf in enumerate(self.leaves)}
        shape = getattr(self.leaves[self.got].value, "shape", None)
        if getattr(got, "shape", None) != shape:
            for at, leaf in enumerate(self.leaves):
                if getattr(leaf.value, "shape", None) == shape:
                    values[f"_ulplab_{at}"] = _planted.sampled(leaf.value, self.elements)
        values |= {f"_ulplab_{self.want}": want, f"_ulplab_{self.got}": got}
        try:
            said = eval(self.code, self.scope | values)  # noqa: S307 -- the test's own expression
            return said is None or bool(said)
        except Exception:  # noqa: BLE001 -- an error does not pass
            return False


def _numbers(expression: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of expressions that are compared with each other as numbers."""
    for node in ast.walk(expression):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            yield node.left, node.right
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            yield node.left, node.comparators[0]
        elif isinstance(node, ast.Call) and re.search("close|[eE]qual", _name(node.func)) and len(node.args) > 1:
            yield node.args[0], node.args[1]


def _number_pair(expression: ast.expr, leaves: list[Leaf]) -> tuple[int, int] | None:
    """The two numbers that an expression compares: a constant becomes a value, too."""
    at = {f"_ulplab_{place}": place for place in range(len(leaves))}
    for pair in _numbers(expression):
        places: list[int] = []
        for side in pair:
            inside = [at[one.id] for one in ast.walk(side) if isinstance(one, ast.Name) and one.id in at]
            if inside and _is_number(leaves[inside[0]].value):
                places.append(inside[0])
            elif constants := [one.value for one in ast.walk(side) if isinstance(one, ast.Constant) and isinstance(one.value, (int, float))]:
                leaves.append(Leaf(str(constants[0]), float(constants[0])))
                places.append(len(leaves) - 1)
        if len(places) == 2 and (places[0] in at.values() or places[1] in at.values()):
            one, other = places
            return (one, other) if one in at.values() and not _WANTED.search(leaves[one].source) or other not in at.values() else (other, one)
    return None


def _denies(expression: ast.expr) -> bool:
    """True if an assertion says that two values are not close."""
    inside = expression
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
        inside = expression.operand
    elif isinstance(expression, ast.Call) and _name(expression.func) == "assertFalse" and expression.args:
        inside = expression.args[0]
    name = _name(inside.func) if isinstance(inside, ast.Call) else ""
    return bool(re.search("(?i)not_?(almost_?)?equal", name) or (inside is not expression and re.search("close|equal", name)))


def gate(statement: Statement, frame: FrameType, elements: int) -> Expression:
    """The gate that an assertion is, where it has just passed. Raises NotAsked."""
    refused, denies = False, _denies(statement.expression)
    for found in _gates(statement, frame, elements):
        want = found.leaves[found.want].value
        small = _planted.sampled(want, elements) if _planted.is_tensor(want) else want
        if not denies and found(small, small):
            return found
        refused = True
    raise NotAsked(DIFFERS if refused else _planted.NO_PAIR)


def _gates(statement: Statement, frame: FrameType, elements: int) -> Iterator[Expression]:
    """Gates that an assertion may be: of the values that it names, then of those that these were computed from. Raises NotAsked."""
    scope = {**frame.f_globals, **frame.f_locals}
    current, known = copy.deepcopy(statement.expression), dict[str, Any]()
    if not statement.asserts:
        leaves = _Leaves(scope)
        leaves.visit(current)
        on_tensor = isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute) and "_ulplab_" in ast.unparse(current.func)
        raise NotAsked(_planted.NO_PAIR if on_tensor or roles([(leaf.source, leaf.value) for leaf in leaves.found]) is None else MAYBE)
    # A look for NaN compares with nothing, however the values were computed.
    looks = any(isinstance(one, ast.Call) and _name(one.func) in ("isnan", "isfinite", "isinf") for one in ast.walk(current))
    numbers = given = False
    first: tuple[ast.expr, list[Leaf]] | None = None
    blocks = {name.id: statement.blocks for name in ast.walk(current) if isinstance(name, ast.Name)}
    for _ in range(_STEPS):
        leaves = _Leaves(scope)
        replaced = leaves.visit(copy.deepcopy(current))
        numbers |= bool(leaves.found)
        first = first or (replaced, leaves.found)
        tensors = [(leaf.source, None if _is_number(leaf.value) else leaf.value) for leaf in leaves.found]
        found = roles(tensors)
        if found:
            given = True
            yield _gate(current, replaced, leaves.found, found, scope, elements, known)
        # Names of numbers, and of tensors that are compared with nothing, stand for what was assigned to them.
        more = {}
        for name, places in blocks.items():
            assigned = _assigned(name, places)
            if assigned and not any(_calls(assigned[0])):
                more[name] = assigned
        if not more or looks:
            break

        class Inlined(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.expr:
                return copy.deepcopy(more[node.id][0]) if node.id in more and isinstance(node.ctx, ast.Load) else node

        current = Inlined().visit(current)
        known |= {name: scope[name] for name in more if name in scope and not known}
        blocks = {one.id: places for value, places in more.values() for one in ast.walk(value) if isinstance(one, ast.Name)} | {
            name: places for name, places in blocks.items() if name not in more
        }
    assert first is not None
    if found := _number_pair(*first):
        given = True
        yield _gate(statement.expression, first[0], first[1], found, scope, elements, {})
    if given:
        return
    unknown = [ast.unparse(one) for one in _calls(current)]
    if unknown and (numbers or _ASSERTING.search(_name(getattr(statement.expression, "func", statement.expression)))):
        raise NotAsked(f"'{unknown[0][:60]}' would run again")
    raise NotAsked(_planted.NO_PAIR if numbers else NO_NUMBERS)


def _gate(
    current: ast.expr, replaced: ast.expr, leaves: list[Leaf], found: tuple[int, int], scope: dict[str, Any], elements: int, known: dict[str, Any]
) -> Expression:
    """An expression that can be evaluated again. Raises NotAsked."""
    for call in _calls(current):
        raise NotAsked(f"'{ast.unparse(call)[:60]}' would run again")
    text = ast.unparse(current)
    for at in found:
        if f"_ulplab_{at}" not in ast.unparse(replaced):
            constant = leaves[at].source
            replaced = _Constant(constant, f"_ulplab_{at}").visit(replaced)
    code = compile(ast.fix_missing_locations(ast.Expression(replaced)), "<assertion>", "eval")
    made = Expression(code, scope, leaves, *found, elements)
    if known:
        values = {f"_ulplab_{at}": leaf.value for at, leaf in enumerate(leaves)}
        try:
            said = eval(code, scope | values)  # noqa: S307 -- the test's own expression
        except Exception as error:  # noqa: BLE001 -- an expression of the test's
            raise NotAsked(f"'{text[:60]}' raises {type(error).__name__} when it is evaluated again") from error
        if not (said is None or bool(said)):
            raise NotAsked("it does not pass when it is evaluated again")
    return made


@dataclass
class _Constant(ast.NodeTransformer):
    """Puts a name in the place of the first constant of this value."""

    source: str
    name: str
    done: bool = False

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not self.done and isinstance(node.value, (int, float)) and str(node.value) == self.source:
            self.done = True
            return ast.copy_location(ast.Name(self.name, ast.Load()), node)
        return node
