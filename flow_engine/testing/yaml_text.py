"""YAML as files of scenarios use it: text that nobody vouches for, read into JSON values with their lines.

Narrower than YAML, so that a value is what it looks like and a small file stays small:

1. One document, without tags, at most `MAX_BYTES` long where its reader takes no more, and `MAX_DEPTH` levels
   deep.
2. An unquoted scalar is null (also `~` or nothing), true, false, or a number as JSON writes it. All
   else is text: `no`, `12:30`, `2026-03-01`, `007` and `+39 06` keep every character.
3. Keys are text, and none is given twice. `<<` is a key like any other.
4. An alias repeats what its anchor holds and weighs as much again; a document weighs its nodes and its
   characters, at most `MAX_WEIGHT`, in a longer file as much more, so that aliases of aliases end early.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import yaml

from flow_engine.errors import pointer
from flow_engine.values import JsonValue, ValueRejected, check_json

MAX_BYTES = 512 * 1024
MAX_DEPTH = 64
MAX_WEIGHT = 2_000_000
MOST_MISTAKES = 100
"""Of a file, that are told at once."""

_MAX_NUMBER_CHARS = 400
_CONSTANTS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is not in every build of PyYAML
_HINTS: Mapping[str, str] = {
    "mapping values are not allowed": "; a text with a colon and a space in it stands in quotes",
    "cannot start any token": "; indent by spaces, not tabs; a text that begins with @ has quotes",
}
"""What was probably meant, by what stands in the parser's message, with and without libyaml."""

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong in a file of scenarios. `line` counts from 1; `pointer` is an RFC 6901 pointer."""

    line: int
    pointer: str
    code: str
    message: str


class FileRejected(Exception):
    """The file cannot be used. `mistakes` are what was found, by line, the first 100. Lines count from 1."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(f"{len(mistakes)} mistake(s)")
        self.mistakes = by_line(mistakes)


def by_line(mistakes: Iterable[Mistake]) -> tuple[Mistake, ...]:
    """The first `MOST_MISTAKES`."""
    return tuple(sorted(mistakes, key=lambda mistake: mistake.line)[:MOST_MISTAKES])


@dataclass(frozen=True, slots=True)
class Node:
    """A value with the line where it starts; what stands under a key starts with the key. A JSON value; lines
    count from 1."""

    value: JsonValue
    line: int
    weight: int = 1
    children: Mapping[str | int, Node] = field(default_factory=dict[str | int, "Node"])

    def line_of(self, path: Path) -> int:
        """The line of what `path` leads to, or of the last part of the way that is there."""
        node = self
        for part in path:
            if part not in node.children:
                break
            node = node.children[part]
        return node.line


def read_yaml(text: bytes, max_bytes: int = MAX_BYTES) -> tuple[Node, list[Mistake]]:
    """The document, and what is wrong inside of it though it could be read on.

    Raises FileRejected when it could not be read to its end. At most `max_bytes` bytes of UTF-8.
    """
    if len(text) > max_bytes:
        raise _rejected(1, "too_large", f"the file has {len(text)} bytes, at most {max_bytes} are accepted")
    try:
        max_weight = max(MAX_WEIGHT, MAX_WEIGHT * len(text) // MAX_BYTES)
        composer = _Composer(yaml.parse(text.decode("utf-8"), Loader=_LOADER), max_weight)
        return composer.document(), composer.mistakes
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise _rejected(line, "not_utf8", "accepted is text in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        hint = next((told for part, told in _HINTS.items() if part in reason), "")
        line = 1 if mark is None else mark.line + 1
        raise _rejected(line, "not_yaml", f"not YAML: {reason}{hint}") from None
    except yaml.YAMLError:
        raise _rejected(1, "not_yaml", "not YAML: a control character stands somewhere in it") from None


def _rejected(line: int, code: str, message: str, path: Path = ()) -> FileRejected:
    return FileRejected([Mistake(line, pointer(*path), code, message)])


class _Composer:
    """Turns the parser's events into nodes. It recurses only as deep as `MAX_DEPTH`."""

    def __init__(self, events: Iterator[yaml.Event], max_weight: int) -> None:
        self._events = events
        self._max_weight = max_weight
        self._anchors: dict[str, Node] = {}
        self._weight = 0
        self.mistakes: list[Mistake] = []

    def document(self) -> Node:
        event = next(self._events)
        while isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
            event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            raise _rejected(1, "empty", "the file is empty; accepted is one document")
        root = self.node(event, (), 0)
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                raise _rejected(
                    _line(event), "several_documents", "accepted is one document, without another `---`"
                )
        return root

    def node(self, event: yaml.Event, path: Path, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _rejected(_line(event), "too_deep", f"accepted are at most {MAX_DEPTH} levels", path)
        if getattr(event, "tag", None) is not None:
            raise _rejected(_line(event), "tag", "tags (`!…`) are not accepted; put text in quotes", path)
        if isinstance(event, yaml.AliasEvent):
            known = self._anchors.get(event.anchor or "")
            if known is None:
                message = f"no anchor `&{event.anchor}` is complete before this"
                raise _rejected(_line(event), "alias_unknown", message, path)
            self._spend(known.weight, event)
            return replace(known, line=_line(event))
        self._spend(1, event)
        if isinstance(event, yaml.ScalarEvent):
            node = self.scalar(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            children: dict[str | int, Node] = {}
            while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
                children[len(children)] = self.node(item, (*path, len(children)), depth + 1)
            values = [child.value for child in children.values()]
            node = Node(values, _line(event), _weight(children), children)
        else:
            node = self.mapping(event, path, depth)
        anchor: str | None = getattr(event, "anchor", None)
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def scalar(self, event: yaml.ScalarEvent, path: Path) -> Node:
        text: str = event.value
        self._spend(len(text), event)
        value: JsonValue = text
        try:
            if event.implicit[0]:
                value = unquoted(text)
            check_json(value)
        except ValueRejected as refused:
            value = None
            self.mistakes.append(Mistake(_line(event), pointer(*path), refused.code, refused.message))
        return Node(value, _line(event), 1 + len(text))

    def mapping(self, start: yaml.Event, path: Path, depth: int) -> Node:
        children: dict[str | int, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                raise _rejected(_line(event), "key_not_text", "accepted as a key is text", path)
            key: str = event.value
            self._spend(1 + len(key), event)
            child = replace(self.node(next(self._events), (*path, key), depth + 1), line=_line(event))
            if key in children:
                message = f"{key!r} stands in line {children[key].line} already; accepted is once"
                self.mistakes.append(Mistake(_line(event), pointer(*path, key), "duplicate_key", message))
            children.setdefault(key, child)
        value: JsonValue = {str(key): child.value for key, child in children.items()}
        return Node(value, _line(start), _weight(children), children)

    def _spend(self, weight: int, event: yaml.Event) -> None:
        self._weight += weight
        if self._weight > self._max_weight:
            message = f"with its aliases repeated, the file is larger than {self._max_weight}"
            raise _rejected(_line(event), "too_large", message)


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return 1 if mark is None else mark.line + 1


def _weight(children: Mapping[str | int, Node]) -> int:
    return 1 + sum(child.weight + len(str(key)) for key, child in children.items())


def unquoted(text: str) -> JsonValue:
    """What an unquoted scalar stands for (rule 2). Raises ValueRejected for a number of too many digits. More
    than 400 characters."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    spelled = _JSON_NUMBER.fullmatch(text)
    if spelled is None:
        return text
    if len(text) > _MAX_NUMBER_CHARS:
        raise ValueRejected("number_too_large", f"accepted are numbers of at most {_MAX_NUMBER_CHARS} digits")
    return float(text) if any(spelled.groups()) else int(text)
