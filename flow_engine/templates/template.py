"""Compile, cache, lint and render templates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.templates.compiler import Statement, compile_tree
from flow_engine.templates.frame import Allowance, Frame, OutOfBudget, TemplateScope
from flow_engine.templates.names import VariableUse, suspicions_in_prose
from flow_engine.templates.parsing import (
    ERROR_CODES,
    UNKNOWN_NAME,
    Problem,
    UnusableTemplate,
    check_size,
    parse,
)

_TAGS = ("{{", "{%", "{#")
_CACHED_CHARACTERS = 1_000_000
"""Of source. Compiled, a template of nothing but tags takes about a hundred times its source."""
_CACHE_ENTRY_CHARACTERS = 500
"""What an entry weighs beside its source."""
_NAMES_IN_A_MESSAGE = 10


@dataclass(frozen=True, slots=True)
class Rendering:
    """What became of a template. `whole`: nothing was cut, unknown or broken in it."""

    text: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Template:
    """A template compiled once and rendered often; made by `compile_template`.

    `problems` make it unusable: it renders as its own source under a visible marker. `suspicions` do not,
    and neither do unknown variables among `uses`.
    """

    source: str
    problems: tuple[Problem, ...] = ()
    suspicions: tuple[Problem, ...] = ()
    uses: tuple[VariableUse, ...] = ()
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
            frame.parts.append(cut.marker)
        text = "".join(frame.parts)
        allowance.steps_left -= steps - frame.budget.steps_left
        allowance.bytes_left -= len(text.encode(errors="replace"))
        return Rendering(text, whole and not frame.budget.met_absent)


class _Cache:
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
            self._make_room_for(source)
        self._templates[source] = template
        return template

    def _make_room_for(self, source: str) -> None:
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


_cache = _Cache(_CACHED_CHARACTERS)


def compile_template(source: str, *, lenient: bool = False) -> Template:
    """The compiled template, from a cache when it was met before.

    Raises `CorrectTheInput("template_invalid")` with every problem found. A `lenient` call never raises:
    what cannot be used renders as its own source under a marker, so that a stored document with a bad
    template does not stop a conversation.
    """
    template = _cache.get(source)
    if template.problems and not lenient:
        raise CorrectTheInput(
            "template_invalid",
            f"{len(template.problems)} problem(s) in the template, first in {template.problems[0]}",
            [_finding("", problem) for problem in template.problems],
        )
    return template


def render_source(source: str, scope: TemplateScope, allowance: Allowance) -> Rendering:
    """Compile, unless it was met before, and render; only a marker once the allowance is spent."""
    if not any(tag in source for tag in _TAGS):
        return Rendering(source, whole=True)
    if allowance.is_spent:
        return Rendering("[template cut: the texts of this task take too long]", whole=False)
    return compile_template(source, lenient=True).render(scope, allowance)


def lint_template(
    source: str, known_variables: Collection[str], pointer: str
) -> tuple[list[Finding], list[Finding]]:
    """Errors, which forbid a save, and warnings, for the template at `pointer` in a document (F9).

    `known_variables` holds every accepted key, ids and names. Errors are forbidden constructs and broken
    limits; bad syntax, JavaScript and unknown names are warnings.
    """
    template = _cache.get(source)
    known = frozenset(known_variables)
    missing = [use for use in template.uses if use.key not in known]
    listed = _some(known) if missing else ""
    problems = [
        *template.problems,
        *template.suspicions,
        *(
            Problem(use.line, UNKNOWN_NAME, f"{use.label}: no variable {use.key!r}; {listed}")
            for use in missing
        ),
    ]
    errors: list[Finding] = []
    warnings: list[Finding] = []
    for problem in sorted(problems, key=lambda problem: problem.line):
        (errors if problem.code in ERROR_CODES else warnings).append(_finding(pointer, problem))
    return errors, warnings


def _compile(source: str) -> Template:
    try:
        check_size(source)
        if not any(tag in source for tag in _TAGS):
            return Template(source, suspicions=tuple(suspicions_in_prose(source, 1)))
        compiled = compile_tree(parse(source))
    except UnusableTemplate as error:
        return Template(source, error.problems)
    program = None if compiled.problems else compiled.program
    return Template(source, compiled.problems, compiled.suspicions, compiled.uses, program, compiled.slots)


def _finding(pointer: str, problem: Problem) -> Finding:
    return Finding(pointer, problem.code, str(problem))


def _some(names: Collection[str]) -> str:
    if not names:
        return "there are none"
    shown = ", ".join(map(repr, sorted(names)[:_NAMES_IN_A_MESSAGE]))
    more = len(names) - _NAMES_IN_A_MESSAGE
    return f"there are {shown}" + (f" and {more} more" if more > 0 else "")
