"""The `$` names: what they stand for, and how a path is told to people."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from jinja2 import nodes

from flow_engine.templates.frame import Frame
from flow_engine.templates.parsing import JAVASCRIPT, PLACEHOLDER, Problem
from flow_engine.templates.values import Absent, member

Expression = Callable[[Frame], object]

REFERENCE = "memory->"
"""What a reference begins with, before the name of the variable in the memory part of the prompt."""
VARS = "$vars"
VALUES = "$values"
ROOTS: Mapping[str, Expression] = {
    "$channel": lambda frame: frame.scope.channel,
    "$contact": lambda frame: frame.scope.contact,
    "$flow": lambda frame: frame.scope.flow,
    "$language": lambda frame: frame.scope.language,
    "$task": lambda frame: frame.scope.task,
    "$tenant": lambda frame: frame.scope.tenant,
}
KEYS: Mapping[str, tuple[str, ...]] = {
    "$channel": (),
    "$flow": ("campaignId", "id", "versionId"),
    "$language": (),
    "$task": ("id", "name", "type"),
}
"""All keys of the roots that the engine fills; none of those that are texts. What the others hold is known in
the conversation only."""
ROOT_NAMES = tuple(sorted([*ROOTS, VARS, VALUES]))

_JAVASCRIPT_IN_PROSE = re.compile(
    r"\$\{\s*\$?(?:" + "|".join(name[1:] for name in ROOT_NAMES) + r")\b[^}]*\}?"
)
_TAG_FORGOTTEN = re.compile(
    r"(?:\{\s*\$?|\$)(?:" + "|".join(name[1:] for name in ROOT_NAMES) + r")\.\w{1,80}\s*\}?"
)
_LONGEST_LABEL = 80


@dataclass(frozen=True, slots=True)
class VariableUse:
    """A variable named at a fixed place: `label` is how the template wrote it."""

    line: int
    key: str
    label: str


@dataclass(frozen=True, slots=True)
class Compared:
    """A `$` name beside what is written out: `path` is the name and its keys, `label` how the template wrote
    it. `sign` is one of a condition's: of what has to differ, the one of being equal."""

    line: int
    path: tuple[str, ...]
    sign: str
    constant: str | int | float | bool
    label: str


_SIGNS: Mapping[str, str] = {
    **dict.fromkeys(("eq", "ne", "in", "notin"), "=="),
    **{"lt": "<", "gt": ">", "lteq": "<=", "gteq": ">="},
}


def compared_in(node: nodes.Compare) -> Iterator[Compared]:
    """Values of variables, the channel and the language beside constants, each member of a list by itself."""
    left = node.expr
    for operand in node.ops:
        right, is_member = operand.expr, operand.op in ("in", "notin")
        sides = [(left, right), (right, left)] if operand.op in ("eq", "ne") else [(left, right)]
        for name, beside in sides:
            path = path_of(name)
            written = beside.items if isinstance(beside, (nodes.List, nodes.Tuple)) else None
            if path[:1] not in ((VALUES,), ("$channel",), ("$language",)) or (written is None) == is_member:
                continue
            for each in [beside] if written is None else written:
                if isinstance(each, nodes.Const) and isinstance(each.value, str | int | float | bool):
                    yield Compared(node.lineno, path, _SIGNS[operand.op], each.value, label_of(name))
        left = right


_NAMED = re.compile(r"(\$?(?:vars|values))\.([\w-]{1,80}(?: [\w-]{1,80}){0,8})")


def spaced_names(source: str, known: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    """How variables' names that no template takes for one name are written: those of several words, with a
    hyphen or a digit first; each behind what stands before its first hyphen. `known` gives something for the
    names that there are."""
    for match in _NAMED.finditer(source):
        words = match[2].split(" ")
        for end in range(len(words), 0, -1):
            name = " ".join(words[:end])
            if (end > 1 or match[1][0] == "$") and not name.isidentifier() and known(name):
                yield match[0].partition("-")[0], f'; write {match[1]}["{name}"]'
                break


def spaced_name(source: str, known: Callable[[str], object]) -> str:
    """How the first of `spaced_names` is written, empty without any."""
    return next((written for _, written in spaced_names(source, known)), "")


def reference_to(key: Expression, absent: Absent) -> Expression:
    """Where the model finds the variable in the memory part of the prompt."""

    def run(frame: Frame) -> object:
        name = member(frame.scope.variables, key(frame), absent)
        return f"{REFERENCE}{name}" if isinstance(name, str) else absent

    return run


def value_of(key: Expression, absent: Absent) -> Expression:
    """The variable's value at task entry, null when the variable is known and has none."""

    def run(frame: Frame) -> object:
        name = key(frame)
        found = member(frame.scope.values, name, absent)
        if found is absent and isinstance(name, str) and name in frame.scope.variables:
            return None
        return found

    return run


def root_of(node: nodes.Node) -> str:
    """The name that a path starts with, empty for what is not a path."""
    while isinstance(node, (nodes.Getattr, nodes.Getitem)):
        node = node.node
    return node.name.partition(".")[0] if isinstance(node, nodes.Name) else ""


def path_of(node: nodes.Node) -> tuple[str, ...]:
    """The name that a path starts with and its keys, empty for a path with a computed or numeric one."""
    keys: list[str] = []
    while isinstance(node, (nodes.Getattr, nodes.Getitem)):
        key = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
        if not isinstance(key, str):
            return ()
        keys.append(key)
        node = node.node
    return (node.name, *reversed(keys)) if isinstance(node, nodes.Name) else ()


def label_of(node: nodes.Node) -> str:
    """How the template wrote a path; computed keys, which may hold personal data, are left out. At most 80
    characters."""
    keys: list[str] = []
    while isinstance(node, (nodes.Getattr, nodes.Getitem)):
        if isinstance(node, nodes.Getattr):
            keys.append(f".{node.attr}")
        else:
            keys.append(f"[{node.arg.value!r}]" if isinstance(node.arg, nodes.Const) else "[…]")
        node = node.node
    start = node.name if isinstance(node, nodes.Name) else "(…)"
    label = start + "".join(reversed(keys))
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"


def suspicions_in_prose(plain: str, last_line: int) -> tuple[Problem, ...]:
    """The first `${vars.x}`, `{vars.x}` or `$vars.x` outside of any tag, which is text like any other; empty
    without one. `last_line` is where the prose ends."""
    code, why = JAVASCRIPT, "is JavaScript and stays as it is"
    match = _JAVASCRIPT_IN_PROSE.search(plain)
    if match is None:
        code, why = PLACEHOLDER, "is in no tag and stays as it is"
        match = _TAG_FORGOTTEN.search(plain)
    if match is None:
        return ()
    shown = f"{match[0][:_LONGEST_LABEL]!r} {why}; write {{{{ $name.key }}}}"
    return (Problem(last_line - plain.count("\n", match.start()), code, shown),)
