"""Syntax tree to a program: output, `if` and `for` with one loop variable; no other block exists.

`set` and macros are left out with the rest: without them no text can grow by being joined to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import nodes

from flow_engine.templates.expressions import Expressions
from flow_engine.templates.frame import Frame
from flow_engine.templates.names import Expression, VariableUse, label_of, suspicions_in_prose
from flow_engine.templates.parsing import Problem
from flow_engine.templates.values import Absent, elements, text, truth

Statement = Callable[[Frame], None]

_TAGS: Mapping[type[nodes.Node], str] = {
    nodes.Assign: "set",
    nodes.AssignBlock: "set",
    nodes.CallBlock: "call",
    nodes.FilterBlock: "filter",
    nodes.FromImport: "from",
    nodes.Scope: "autoescape",
}
"""Blocks whose node is not named like their tag."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A template's program, with what was noticed while it was made.

    `problems` is empty exactly when `program` may run.
    """

    program: Statement
    slots: int
    problems: tuple[Problem, ...]
    suspicions: tuple[Problem, ...]
    uses: tuple[VariableUse, ...]


def compile_tree(tree: nodes.Template) -> Compiled:
    """Never raises: what is not allowed is among the `problems`, each with its line."""
    compiler = _Compiler()
    program = compiler.block(tree.body)
    expressions = compiler.expressions
    return Compiled(
        program,
        compiler.slots,
        tuple(expressions.problems),
        tuple(expressions.suspicions),
        tuple(expressions.uses),
    )


class _Compiler:
    def __init__(self) -> None:
        self.expressions = Expressions()
        self.slots = 0
        # Handlers by exact type, so that no node passes for its base class.
        self._handlers: Mapping[type[nodes.Node], Callable[[Any], Statement]] = {
            nodes.Output: self._output,
            nodes.If: self._if,
            nodes.For: self._for,
        }

    def block(self, body: Sequence[nodes.Node]) -> Statement:
        statements = tuple(self._statement(node) for node in body)
        if len(statements) == 1:
            return statements[0]

        def run(frame: Frame) -> None:
            for statement in statements:
                statement(frame)

        return run

    def _statement(self, node: nodes.Node) -> Statement:
        self.expressions.operations += 1
        handler = self._handlers.get(type(node))
        if handler is not None:
            return handler(node)
        tag = _TAGS.get(type(node), type(node).__name__.lower())
        self.expressions.forbid(node, f"there is no {tag!r} here, only if, for and raw")
        return lambda _: None

    def _output(self, node: nodes.Output) -> Statement:
        parts: list[str | Expression] = []
        for part in node.nodes:
            if isinstance(part, nodes.TemplateData):
                self.expressions.suspicions += suspicions_in_prose(part.data, part.lineno)
                self.expressions.operations += 1
                parts.append(part.data)
            else:
                parts.append(self.expressions.compile(part))

        def run(frame: Frame) -> None:
            for part in parts:
                frame.write(part if isinstance(part, str) else text(part(frame), frame.budget))

        return run

    def _if(self, node: nodes.If) -> Statement:
        branches = [
            (self.expressions.condition(branch.test), self.block(branch.body))
            for branch in (node, *node.elif_)
        ]
        otherwise = self.block(node.else_)

        def run(frame: Frame) -> None:
            for condition, body in branches:
                if truth(condition(frame)):
                    body(frame)
                    return
            otherwise(frame)

        return run

    def _for(self, node: nodes.For) -> Statement:
        iterable, label = self.expressions.condition(node.iter), label_of(node.iter)
        otherwise = self.block(node.else_)
        if node.recursive:
            self.expressions.forbid(node, "recursive loops do not exist here")
        outer, slot = self.expressions.names, self.slots
        self.slots += 2
        self.expressions.names = {**outer, self._loop_variable(node.target): slot}
        before = self.expressions.operations
        test = None if node.test is None else self.expressions.condition(node.test)
        test_steps = 1 + self.expressions.operations - before
        self.expressions.names = {**self.expressions.names, "loop": slot + 1}
        before = self.expressions.operations
        body = self.block(node.body)
        body_steps = 1 + self.expressions.operations - before
        self.expressions.names = outer

        def run(frame: Frame) -> None:
            items = elements(iterable(frame), label, frame.budget)
            if isinstance(items, Absent):
                frame.write(text(items, frame.budget))
                items = ()
            slots = frame.slots
            if test is not None:
                kept: list[object] = []
                for item in items:
                    frame.budget.charge(test_steps)
                    slots[slot] = item
                    if truth(test(frame)):
                        kept.append(item)
                items = kept
            count = len(items)
            for index, item in enumerate(items):
                frame.budget.charge(body_steps)
                slots[slot] = item
                slots[slot + 1] = _loop(index, count)
                body(frame)
            if not count:
                otherwise(frame)

        return run

    def _loop_variable(self, target: nodes.Node) -> str:
        if isinstance(target, nodes.Name) and target.name[0] not in "$_" and target.name != "loop":
            return target.name
        self.expressions.forbid(target, "a loop has one variable, a plain name without $ or _ in front")
        return ""


def _loop(index: int, count: int) -> Mapping[str, object]:
    return {
        "index": index + 1,
        "index0": index,
        "first": index == 0,
        "last": index == count - 1,
        "length": count,
    }
