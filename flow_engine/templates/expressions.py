"""Expressions to closures, through an allow-list: what has no `visit_…` method here does not exist.

Allowed are names, literals, lists, subscripts and slices, comparisons, `in`, `and`, `or`, `not`,
conditional expressions, `~`, `+`, `-`, and the filters and tests of `values.py`. Multiplication, division,
`%` and `**` are left out: prompts have no use for them, and each can make much out of little. Everything
else is reported, all of it at once.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jinja2 import nodes

from flow_engine.templates import parsing, values
from flow_engine.templates.frame import Frame
from flow_engine.templates.names import (
    KEYS,
    ROOT_NAMES,
    ROOTS,
    VALUES,
    VARS,
    Compared,
    Expression,
    VariableUse,
    compared_in,
    label_of,
    path_of,
    reference_to,
    root_of,
    value_of,
)

_PRIVATE_BUT_DATA = "_id"
"""The one attribute with an underscore that templates may name: how documents call their identifier."""

_JAVASCRIPT_METHODS = {
    "filter": "{% for … if … %}",
    "includes": "needle in haystack",
    "join": "the filter join(…)",
    "map": "{% for … %}",
    "replace": "the filter replace(…, …)",
    "slice": "text[start:stop]",
    "substring": "text[start:stop]",
    "toFixed": "the filter round(…)",
    "toLowerCase": "the filter lower",
    "toString": "the filter string",
    "toUpperCase": "the filter upper",
    "trim": "the filter trim",
}
_JAVASCRIPT_WORDS = {"null": "none", "undefined": "none, or the test is defined"}


def _always(fixed: object) -> Expression:
    return lambda _: fixed


_nothing = _always(values.NOTHING)


def _absent(root: str, label: str) -> object:
    """What a missing part is. Which parts a memory's value has is known in the conversation only: null."""
    return None if root == VALUES else values.unknown(label)


class Expressions:
    """Compiles the expressions of one template and keeps what it notices on the way.

    `names` are the loop variables in sight, by the slot of the frame that holds them; `operations` counts
    what was compiled so far, from which loops learn the price of their body. `reads` are the parts of the
    scope that the template may look at, each the name of a root and keys; all values have no key.
    """

    def __init__(self) -> None:
        self.problems: list[parsing.Problem] = []
        self.suspicions: list[parsing.Problem] = []
        self.uses: list[VariableUse] = []
        self.compared: list[Compared] = []
        self.names: Mapping[str, int] = {}
        self.operations = 0
        self.depth = 0
        self.reads: set[tuple[str, ...]] = set()
        self._read_by_path = False

    # Names and paths

    def visit_Name(self, node: nodes.Name) -> Expression:
        slot = self.names.get(node.name)
        if slot is not None:
            return lambda frame: frame.slots[slot]
        root = ROOTS.get(node.name)
        if root is not None:
            if not self._read_by_path:
                self.reads.add((node.name,))
            return root
        if node.name in (VARS, VALUES):
            hint = f"{node.name} needs the name of a variable: {node.name}.name or {node.name}['a name']"
        elif node.name in _JAVASCRIPT_WORDS:
            hint = f"{node.name!r} is JavaScript; write {_JAVASCRIPT_WORDS[node.name]}"
        elif f"${node.name}" in ROOT_NAMES:
            hint = f"{node.name!r} is unknown; write ${node.name}"
        else:
            hint = f"{node.name!r} is unknown; templates know {', '.join(ROOT_NAMES)}"
        code = parsing.JAVASCRIPT if node.name in _JAVASCRIPT_WORDS else parsing.UNKNOWN_NAME
        self.suspicions.append(parsing.Problem(node.lineno, code, hint, node.name))
        return _always(values.unknown(label_of(node)))

    def path(self, dotted: str, line: int) -> Expression:
        """A path without brackets, such as `$tenant.name`. Raises `UnusableTemplate` where it is too deep."""
        known, expression = _compiled_path(dotted)
        if self.depth + known.operations > parsing.MAX_DEPTH:  # each operation is a level
            raise parsing.UnusableTemplate(parsing.too_deep(line))
        self.operations += known.operations
        self.reads |= known.reads
        self.uses += [VariableUse(line, use.key, use.label) for use in known.uses]
        self.problems += [replace(each, line=line) for each in known.problems]
        self.suspicions += [replace(each, line=line) for each in known.suspicions]
        return expression

    def visit_Getattr(self, node: nodes.Getattr) -> Expression:
        if node.attr.startswith("_") and node.attr != _PRIVATE_BUT_DATA:
            self.forbid(node, f"{node.attr!r}: names after a dot do not start with _")
        if node.attr == "length" and root_of(node) not in self.names:
            self._suspect(
                node, parsing.JAVASCRIPT, ".length is JavaScript, unless a key; write the filter length"
            )
        return self._member(node, node.node, _always(node.attr), node.attr)

    def visit_Getitem(self, node: nodes.Getitem) -> Expression:
        bounds = node.arg
        if not isinstance(bounds, nodes.Slice):
            fixed = bounds.value if isinstance(bounds, nodes.Const) else None
            return self._member(node, node.node, self.compile(bounds), fixed)
        inner = self.compile(node.node)
        absent = _absent(root_of(node), label_of(node))
        start, stop, step = (
            _always(None) if bound is None else self.compile(bound)
            for bound in (bounds.start, bounds.stop, bounds.step)
        )
        return lambda frame: values.section(
            inner(frame), (start(frame), stop(frame), step(frame)), absent, frame.budget
        )

    def _member(self, node: nodes.Expr, base: nodes.Expr, key: Expression, fixed: object) -> Expression:
        label = label_of(node)
        if isinstance(base, nodes.Name) and base.name in (VARS, VALUES):
            if isinstance(fixed, str):
                self.uses.append(VariableUse(node.lineno, fixed, label))
            if base.name == VALUES:
                self.reads.add((VALUES, fixed) if isinstance(fixed, str) else (VALUES,))
            of_variable = reference_to if base.name == VARS else value_of
            return of_variable(key, values.unknown(label))
        root = root_of(node)
        if root == VARS:
            self._suspect(
                node, parsing.UNKNOWN_NAME, f"{label}: a reference has no parts; use $values for the value"
            )
        if isinstance(base, nodes.Name) and isinstance(fixed, str):
            self._check_key(node, base.name, fixed)
        absent = _absent(root, label)
        path = () if self._read_by_path or root in self.names else path_of(node)
        if len(path) > 1 and root in ROOTS:
            self.reads.add(path)
            self._read_by_path = True
            inner = self.compile(base)
            self._read_by_path = False
        else:
            inner = self.compile(base)
        return lambda frame: values.member(inner(frame), key(frame), absent)

    def _check_key(self, node: nodes.Expr, root: str, key: str) -> None:
        keys = KEYS.get(root)
        if keys is not None and key not in keys:
            there = f"it has {', '.join(map(repr, keys))}" if keys else f"it is a text; write {root}"
            self._suspect(node, parsing.UNKNOWN_NAME, f"{label_of(node)}: {root} has no {key!r}; {there}")

    # Operators

    def compile(self, node: nodes.Node) -> Expression:
        """The method of the node's exact class, so that no node passes for its base class."""
        visit: Callable[[Any], Expression] | None = getattr(self, f"visit_{type(node).__name__}", None)
        if visit is not None:
            self.descend(node)
            compiled = visit(node)
            self.depth -= 1
            return compiled
        self.operations += 1
        sign = getattr(node, "operator", None)
        self.forbid(node, f"{sign or type(node).__name__.lower()!r} does not exist in these expressions")
        return _nothing

    def descend(self, node: nodes.Node) -> None:
        """Count an operation, one level below the last. Raises `UnusableTemplate` where that is too deep."""
        self.operations += 1
        self.depth += 1
        if self.depth > parsing.MAX_DEPTH:
            raise parsing.UnusableTemplate(parsing.too_deep(node.lineno or 1))

    def visit_Const(self, node: nodes.Const) -> Expression:
        return _always(node.value)

    def visit_List(self, node: nodes.List | nodes.Tuple) -> Expression:
        items = [self.compile(item) for item in node.items]
        return lambda frame: [item(frame) for item in items]

    visit_Tuple = visit_List

    def visit_Concat(self, node: nodes.Concat) -> Expression:
        parts = [self.compile(part) for part in node.nodes]
        return lambda frame: values.joined([part(frame) for part in parts], "", frame.budget)

    def visit_Add(self, node: nodes.Add | nodes.Sub) -> Expression:
        left, right = self.compile(node.left), self.compile(node.right)
        sign = 1 if isinstance(node, nodes.Add) else -1
        return lambda frame: values.added(left(frame), right(frame), sign, frame.budget)

    visit_Sub = visit_Add

    def visit_Neg(self, node: nodes.Neg | nodes.Pos) -> Expression:
        inner, sign = self.compile(node.node), 1 if isinstance(node, nodes.Pos) else -1
        return lambda frame: values.added(0, inner(frame), sign, frame.budget)

    visit_Pos = visit_Neg

    def visit_And(self, node: nodes.And) -> Expression:
        left, right = self.condition(node.left), self.condition(node.right)

        def run(frame: Frame) -> object:
            value = left(frame)
            return right(frame) if values.truth(value) else value

        return run

    def visit_Or(self, node: nodes.Or) -> Expression:
        left, right = self.condition(node.left), self.condition(node.right)

        def run(frame: Frame) -> object:
            value = left(frame)
            return value if values.truth(value) else right(frame)

        return run

    def visit_Not(self, node: nodes.Not) -> Expression:
        inner = self.condition(node.node)
        return lambda frame: not values.truth(inner(frame))

    def visit_Compare(self, node: nodes.Compare) -> Expression:
        self.compared += compared_in(node)
        first = self.condition(node.expr)
        rest = [(_COMPARISONS[operand.op], self.condition(operand.expr)) for operand in node.ops]

        def run(frame: Frame) -> object:
            left = first(frame)
            for holds, expression in rest:
                right = expression(frame)
                if not holds(left, right, frame):
                    return False
                left = right
            return True

        return run

    def visit_CondExpr(self, node: nodes.CondExpr) -> Expression:
        condition, then = self.condition(node.test), self.compile(node.expr1)
        otherwise = _nothing if node.expr2 is None else self.compile(node.expr2)
        return lambda frame: then(frame) if values.truth(condition(frame)) else otherwise(frame)

    def condition(self, node: nodes.Node) -> Expression:
        """An expression whose value decides something, where a reference is surely not meant."""
        if root_of(node) == VARS:
            instead = label_of(node).replace(VARS, VALUES, 1)
            self._suspect(
                node,
                parsing.REFERENCE_AS_VALUE,
                f"{label_of(node)} is a reference, never its value; write {instead}",
            )
        if isinstance(node, nodes.Name) and "." in node.name:
            return self.path(node.name, node.lineno)
        return self.compile(node)

    # Filters, tests, calls

    def visit_Filter(self, node: nodes.Filter) -> Expression:
        inner = _nothing if node.node is None else self.compile(node.node)
        known = values.FILTERS.get(node.name)
        if known is None:
            self.forbid(node, f"no filter {node.name!r}; there are {', '.join(sorted(values.FILTERS))}")
            return inner
        names, call, takes_absent = list(known.parameters), known.call, known.takes_absent
        by_name = dict(zip(names, node.args, strict=False)) | {pair.key: pair.value for pair in node.kwargs}
        surplus = len(node.args) > len(names) or any(pair.key not in names for pair in node.kwargs)
        if surplus or node.dyn_args is not None or node.dyn_kwargs is not None:
            self.forbid(node, f"the filter {node.name!r} takes ({', '.join(names)})")
        arguments = [
            self.compile(by_name[name]) if name in by_name else _always(default)
            for name, default in known.parameters.items()
        ]

        def run(frame: Frame) -> object:
            value = inner(frame)
            if isinstance(value, values.Absent) and not takes_absent:
                return value
            return call(value, tuple([argument(frame) for argument in arguments]), frame.budget)

        return run

    def visit_Test(self, node: nodes.Test) -> Expression:
        inner, known = self.compile(node.node), values.TESTS.get(node.name)
        if known is None or node.args or node.kwargs or node.dyn_args or node.dyn_kwargs:
            self.forbid(node, f"no test {node.name!r} like this; there are {', '.join(values.TESTS)}")
            return inner
        return lambda frame: known(inner(frame))

    def visit_Call(self, node: nodes.Call) -> Expression:
        method = node.node.attr if isinstance(node.node, nodes.Getattr) else ""
        if method in _JAVASCRIPT_METHODS:
            message = f"{method}(…) is JavaScript; write {_JAVASCRIPT_METHODS[method]}"
            self.problems.append(parsing.Problem(node.lineno, parsing.JAVASCRIPT, message))
        else:
            self.forbid(
                node, f"nothing can be called; there are the filters {', '.join(sorted(values.FILTERS))}"
            )
        return _nothing

    def forbid(self, node: nodes.Node, message: str) -> None:
        self.problems.append(parsing.Problem(node.lineno or 1, parsing.FORBIDDEN, message))

    def _suspect(self, node: nodes.Node, code: str, message: str) -> None:
        self.suspicions.append(parsing.Problem(node.lineno or 1, code, message))


@lru_cache(maxsize=1024)
def _compiled_path(path: str) -> tuple[Expressions, Expression]:
    """A path of names, compiled as if it stood on line 1: the texts of a document name the same few again and
    again."""
    root, *keys = path.split(".")
    node: nodes.Expr = nodes.Name(root, "load", lineno=1)
    for key in keys:
        node = nodes.Getattr(node, key, "load", lineno=1)
    expressions = Expressions()
    return expressions, expressions.compile(node)


_COMPARISONS: Mapping[str, Callable[[object, object, Frame], bool]] = {
    "eq": lambda left, right, frame: values.equal(left, right, frame.budget),
    "ne": lambda left, right, frame: not values.equal(left, right, frame.budget),
    "lt": lambda left, right, frame: values.ordered(left, right, operator.lt, frame.budget),
    "gt": lambda left, right, frame: values.ordered(left, right, operator.gt, frame.budget),
    "lteq": lambda left, right, frame: values.ordered(left, right, operator.le, frame.budget),
    "gteq": lambda left, right, frame: values.ordered(left, right, operator.ge, frame.budget),
    "in": lambda left, right, frame: values.contains(left, right, frame.budget),
    "notin": lambda left, right, frame: not values.contains(left, right, frame.budget),
}
