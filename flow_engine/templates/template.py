"""Compile, cache, lint and render templates.

`set` and macros are left out with all other blocks: without them no text can grow by being joined to itself.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from jinja2 import nodes

from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.templates import parsing
from flow_engine.templates.expressions import Expressions
from flow_engine.templates.frame import Allowance, Frame, OutOfBudget, TemplateScope
from flow_engine.templates.names import (
    Compared,
    Expression,
    VariableUse,
    label_of,
    spaced_name,
    spaced_names,
    suspicions_in_prose,
)
from flow_engine.templates.values import Absent, elements, text, truth
from flow_engine.values import listed

_TAGS = ("{{", "{%", "{#")
_CACHED_CHARACTERS = 1_000_000
"""Of source. Compiled, a template of nothing but tags takes about a hundred times its source."""
_CACHE_ENTRY_CHARACTERS = 500
"""What an entry weighs beside its source."""
_NAMES_IN_A_MESSAGE = 10


T = TypeVar("T")

Statement = Callable[[Frame], None]


@dataclass(frozen=True, slots=True)
class Rendering:
    """What became of a template. `whole`: nothing was cut, unknown or broken in it. `text` has at most 256
    KiB of UTF-8."""

    text: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Template:
    """A template compiled once and rendered often; made by `compile_template`.

    `problems` make it unusable: it renders as its own source under a visible marker. `suspicions` do not,
    and neither do unknown variables among `uses`. `reads`: on what of the scope the text depends, beside the
    names of variables; each the name of a root and keys, as `("$tenant", "name")`.
    """

    source: str
    problems: tuple[parsing.Problem, ...] = ()
    suspicions: tuple[parsing.Problem, ...] = ()
    uses: tuple[VariableUse, ...] = ()
    reads: frozenset[tuple[str, ...]] = frozenset()
    compared: tuple[Compared, ...] = ()
    _program: Statement | None = None
    _slots: int = 0

    def render(self, scope: TemplateScope, allowance: Allowance | None = None) -> Rendering:
        """The text for one task entry, at most `MAX_OUTPUT_BYTES` of UTF-8. Never raises.

        What does not fit the bounds is cut with a visible marker, and an unknown name becomes one. Without
        an `allowance` the text has one of its own.
        """
        if self._program is None and not self.problems:
            return Rendering(self.source, whole=True)
        allowance = allowance or Allowance()
        frame = Frame(scope, self._slots, allowance)
        steps = frame.budget.steps_left
        whole = self._program is not None
        try:
            if self._program is None:
                frame.write(f"[template error: {self.problems[0]}]\n{self.source}")
            else:
                self._program(frame)
        except OutOfBudget as cut:
            whole = False
            allowance.cut = True
            frame.parts.append(cut.marker)
        rendered = "".join(frame.parts)
        allowance.steps_left -= steps - frame.budget.steps_left
        allowance.bytes_left -= len(rendered.encode(errors="replace"))
        return Rendering(rendered, whole and not frame.budget.met_absent)


# --- statements to closures -------------------------------------------------------------------

_BLOCKS: Mapping[type[nodes.Node], str] = {
    nodes.Assign: "set",
    nodes.AssignBlock: "set",
    nodes.CallBlock: "call",
    nodes.FilterBlock: "filter",
    nodes.FromImport: "from",
    nodes.Scope: "autoescape",
}
"""Blocks whose node is not named like their tag."""


class _Compiler:
    """Statements to closures: output, `if` and `for` with one loop variable; no other block exists."""

    def __init__(self) -> None:
        self.expressions = Expressions()
        self.slots = 0

    def priced(self, compiling: Callable[[], T]) -> tuple[T, int]:
        """What was compiled, with the steps that one run of it costs."""
        before = self.expressions.operations
        compiled = compiling()
        return compiled, 1 + self.expressions.operations - before

    def block(self, body: Sequence[nodes.Node]) -> Statement:
        statements = tuple(self.compile(node) for node in body)
        if len(statements) == 1:
            return statements[0]

        def run(frame: Frame) -> None:
            for statement in statements:
                statement(frame)

        return run

    def compile(self, node: nodes.Node) -> Statement:
        visit: Callable[[Any], Statement] | None = getattr(self, f"visit_{type(node).__name__}", None)
        if visit is not None:
            self.expressions.descend(node)
            compiled = visit(node)
            self.expressions.depth -= 1
            return compiled
        self.expressions.operations += 1
        tag = _BLOCKS.get(type(node), type(node).__name__.lower())
        self.expressions.forbid(node, f"there is no {tag!r} here, only if, for and raw")
        return lambda _: None

    def visit_Output(self, node: nodes.Output) -> Statement:
        parts: list[str | Expression] = []
        for part in node.nodes:
            if not isinstance(part, nodes.TemplateData):
                parts.append(self.expressions.compile(part))
                continue
            data = cast("str | parsing.Run", part.data)
            if isinstance(data, str):
                parts.append(self.prose(data, part.lineno + data.count("\n")))
                continue
            for line, prose, path in data:
                if prose:
                    parts.append(self.prose(prose, line))
                parts.append(self.expressions.path(path, line))

        def run(frame: Frame) -> None:
            for part in parts:
                frame.write(part if isinstance(part, str) else text(part(frame), frame.budget))

        return run

    def prose(self, plain: str, last_line: int) -> str:
        self.expressions.operations += 1
        self.expressions.suspicions += suspicions_in_prose(plain, last_line)
        return plain

    def visit_If(self, node: nodes.If) -> Statement:
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

    def visit_For(self, node: nodes.For) -> Statement:
        iterable, label = self.expressions.condition(node.iter), label_of(node.iter)
        otherwise = self.block(node.else_)
        if node.recursive:
            self.expressions.forbid(node, "recursive loops do not exist here")
        outer, slot = self.expressions.names, self.slots
        self.slots += 2
        target = node.target
        if isinstance(target, nodes.Name) and target.name[0] not in "$_" and target.name != "loop":
            self.expressions.names = {**outer, target.name: slot}
        else:
            self.expressions.forbid(target, "a loop has one variable, a plain name without $ or _ in front")
        condition = node.test
        test, test_steps = self.priced(
            lambda: None if condition is None else self.expressions.condition(condition)
        )
        self.expressions.names = {**self.expressions.names, "loop": slot + 1}
        body, body_steps = self.priced(lambda: self.block(node.body))
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
                slots[slot + 1] = {
                    "index": index + 1,
                    "index0": index,
                    "first": index == 0,
                    "last": index == count - 1,
                    "length": count,
                }
                body(frame)
            if not count:
                otherwise(frame)

        return run


# --- compiling once ---------------------------------------------------------------------------


class _TemplateCache:
    """Templates by source, the least recently used leave first; bounded by the length of the sources.

    Single dict operations only, each atomic, so that threads may share it: at worst one compiles twice,
    and the running weight misses what another thread added until it is counted anew.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._templates: dict[str, Template] = {}
        self._weight = 0

    def get(self, source: str) -> Template:
        template = self._templates.pop(source, None)
        if template is None:
            template = _compile(source)
            self.make_room_for(source)
        self._templates[source] = template
        return template

    def make_room_for(self, source: str) -> None:
        """Drop the templates that were used longest ago, as many as a source of that length needs."""
        self._weight += _weight(source)
        if self._weight <= self._capacity:
            return
        sources = list(self._templates)
        self._weight = sum(map(_weight, sources)) + _weight(source)
        if self._weight <= self._capacity:
            return
        # An eighth more than needed, or each template to come would count them all again.
        for oldest in sources:
            if self._weight <= self._capacity * 7 // 8:
                return
            self._templates.pop(oldest, None)
            self._weight -= _weight(oldest)


def _weight(source: str) -> int:
    return len(source) + _CACHE_ENTRY_CHARACTERS


_cache = _TemplateCache(_CACHED_CHARACTERS)


def compile_template(source: str, *, lenient: bool = False) -> Template:
    """The compiled template, from a cache when it was met before.

    Raises `CorrectTheInput("template_invalid")` with every problem found. A `lenient` call never raises: what
    cannot be used renders as its own source under a marker, so that a stored document with a bad template
    does not stop a conversation. A source has at most 200 KiB of UTF-8.
    """
    template = _cache.get(source)
    if template.problems and not lenient:
        raise CorrectTheInput(
            "template_invalid",
            f"{len(template.problems)} problem(s) in the template, first in {template.problems[0]}",
            [_finding("", problem) for problem in template.problems],
        )
    return template


def is_template(source: str) -> bool:
    """Whether anything in the text is the template language's."""
    return any(tag in source for tag in _TAGS)


def render_source(source: str, scope: TemplateScope, allowance: Allowance) -> Rendering:
    """Compile, unless it was met before, and render; only a marker once the allowance is spent. At most 256
    KiB of UTF-8. Never raises."""
    if not is_template(source):
        return Rendering(source, whole=True)
    if allowance.is_spent:
        allowance.cut = True
        return Rendering("[template cut: the texts of this task take too long]", whole=False)
    template = compile_template(source, lenient=True)
    allowance.compiled(source)
    return template.render(scope, allowance)


def lint_template(
    source: str, known_variables: Collection[str], pointer: str
) -> tuple[list[Finding], list[Finding]]:
    """Errors, which forbid a save, and warnings, for the template at `pointer` in a document (F9).

    `known_variables` holds every accepted key, ids and names. Errors are forbidden constructs and broken
    limits; bad syntax, JavaScript and unknown names are warnings. An RFC 6901 pointer.
    """
    template = _cache.get(source)
    known = frozenset(known_variables)
    missing = [use for use in template.uses if use.key not in known]
    # By the label of a use: `$vars.pick-up` is `$vars.pick` to a template, less something.
    hyphenated = dict(reversed([*spaced_names(source, known.__contains__)])) if missing else {}
    there = f"; there are {listed(sorted(known), _NAMES_IN_A_MESSAGE)}" if missing else ""
    problems = [
        *(
            replace(each, message=each.message + spaced_name(source, known.__contains__))
            if each.code == parsing.SYNTAX
            else each
            for each in template.problems
        ),
        *(
            replace(each, message=f"{each.name!r} is unknown; write $vars.{each.name}")
            if each.code == parsing.UNKNOWN_NAME and each.name in known
            else each
            for each in template.suspicions
        ),
        *(
            parsing.Problem(
                use.line,
                parsing.UNKNOWN_NAME,
                f"{use.label}: no variable {use.key!r}{hyphenated.get(use.label, there)}",
            )
            for use in missing
        ),
    ]
    errors: list[Finding] = []
    warnings: list[Finding] = []
    for problem in sorted(problems, key=lambda problem: problem.line):
        (errors if problem.code in parsing.ERROR_CODES else warnings).append(_finding(pointer, problem))
    return errors, warnings


def _compile(source: str) -> Template:
    try:
        parsing.check_size(source)
        if not is_template(source):
            return Template(source, suspicions=suspicions_in_prose(source, 1 + source.count("\n")))
        compiler = _Compiler()
        program = compiler.block(parsing.parse(source).body)
    except parsing.UnusableTemplate as error:
        return Template(source, error.problems)
    found = compiler.expressions
    return Template(
        source,
        tuple(found.problems),
        tuple(found.suspicions),
        tuple(found.uses),
        frozenset(found.reads),
        tuple(found.compared),
        None if found.problems else program,
        compiler.slots,
    )


def _finding(pointer: str, problem: parsing.Problem) -> Finding:
    return Finding(pointer, problem.code, str(problem))
