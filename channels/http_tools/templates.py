"""Templates of whole values: bodies, parameters, answers for the model, and addresses (V6, V8).

Null: a field whose template gives null is left out of its object, at every level; a null that the config
itself writes stays, because its author meant it, and so does a null inside a value that a template
brought along. Items of lists keep their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import quote

from adapters.outbound.policy import parse_target
from channels.http_tools.json_paths import JsonPath
from channels.http_tools.placeholders import OPEN, Constant, Placeholder, Template, TemplateMistake, as_text
from channels.http_tools.scope import NAMESPACES, SPECIALS, Scope
from flow_engine.conditions.lexing import Mistake
from flow_engine.ports.outbound import OutboundRefused
from flow_engine.values import JsonValue

__all__ = ["JsonTemplate", "Mistakes", "Template", "TemplateMistake", "Unresolved", "UrlTemplate"]

MAX_DEPTH: Final = 64
MASK: Final = "***"

_PATH_IN_ANSWER = re.compile(r"\$(?:[.\[]|\Z)")
_SCHEME_AND_HOST = re.compile(r"https?://[^/?#\s]+", re.IGNORECASE)
_STEPS: Final = frozenset({".", ".."})
_URL_EXAMPLES: Final = (
    "accepted is {{base_url}}/path, or an address that begins with http:// or https://, "
    "and credentials in a header"
)


class Mistakes(ValueError):
    """Every error in one JSON value: where it stands inside the value, and the mistake."""

    def __init__(self, found: list[tuple[tuple[str | int, ...], Mistake]]) -> None:
        super().__init__("; ".join(f"{'/'.join(map(str, at)) or 'here'}: {mistake}" for at, mistake in found))
        self.found = found


class Unresolved(Exception):
    """A URL lacks a value for a placeholder, or has one that cannot be: it is refused, nothing is sent.
    `placeholder` is how the config writes it."""

    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder)
        self.placeholder = placeholder


@dataclass(frozen=True, slots=True)
class _Object:
    fields: tuple[tuple[str, _Node], ...]


@dataclass(frozen=True, slots=True)
class _List:
    items: tuple[_Node, ...]


_Node: TypeAlias = "Constant | Template | JsonPath | _Object | _List"


@dataclass(frozen=True, slots=True)
class JsonTemplate:
    """A JSON value whose texts are templates. In an answer for the model, a text that is `$` or begins
    with `$.` or `$[` is a JSONPath on the reply."""

    node: _Node

    @classmethod
    def parse(cls, value: JsonValue, *, answer: bool = False) -> JsonTemplate:
        """A JSON value of at most 64 levels. Raises Mistakes."""
        found: list[tuple[tuple[str | int, ...], Mistake]] = []
        node = _read(value, (), found, answer)
        if found:
            raise Mistakes(found)
        return cls(node)

    def render(self, scope: Scope, document: JsonValue = None) -> JsonValue:
        """A JSON value. `document` is the reply that the JSONPaths of an answer look into. Never raises for
        what it holds."""
        return _render(self.node, scope, document)


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    """An address. A value in its path is one percent-encoded segment or a part of one, never a step up;
    a value in its query is one value.

    `base` is the fixed beginning with the host, or the placeholder of a value of the config itself, which
    is inserted as it is. `segments` are what stands between the slashes, `query` the pairs of the query,
    each with its name and its value, which is None without a `=`.
    """

    base: str | Placeholder
    segments: tuple[Template, ...]
    query: tuple[tuple[Template, Template | None], ...]

    @classmethod
    def parse(cls, text: str) -> UrlTemplate:
        """The text of an http or https URL. Raises TemplateMistake."""
        whole = Template.parse(text)
        base, rest = _base(whole)
        if any(isinstance(part, str) and "#" in part for part in rest.parts):
            raise TemplateMistake("accepted is an address without a fragment", text.find("#") + 1)
        path, *query = _split(rest, "?", at_most=1)
        leading, *segments = _split(path, "/")
        if leading.parts:
            raise TemplateMistake(f"between the host and its path a `/` is missing; {_URL_EXAMPLES}", 1)
        pairs = [_split(pair, "=", at_most=1) for part in query for pair in _split(part, "&")]
        return cls(
            base,
            tuple(segments),
            tuple((pair[0], pair[1] if len(pair) > 1 else None) for pair in pairs if pair[0].parts),
        )

    def masked(self, scope: Scope) -> UrlTemplate:
        """The same for a log: `***` stands in the path, and for the names of the query, for every value that
        is none of the config's own."""
        return UrlTemplate(
            self.base,
            tuple(_masked(segment, scope) for segment in self.segments),
            tuple((_masked(name, scope), value) for name, value in self.query),
        )

    def render(self, scope: Scope, params: Iterable[tuple[str, JsonValue]] = ()) -> str:
        """The address, with `params` behind its own query. Null parameters are left out, lists repeated.

        Raises Unresolved where a placeholder of the path, or the base, has no value, and where a segment
        comes to `.` or `..`: the address would name something else.
        """
        base = self.base
        if isinstance(base, Placeholder):
            value = base.value(scope)
            # A base without a host would make a host of the path.
            if not isinstance(value, str) or not _SCHEME_AND_HOST.match(value):
                raise Unresolved(str(base))
            base = value.removesuffix("/")
        pairs: list[str] = []
        for name, template in self.query:
            key = _encoded(name, scope)
            if template is None:
                pairs.append(key)
            elif len(template.parts) == 1 and isinstance(template.parts[0], Placeholder):
                pairs += _encoded_pairs(key, template.render(scope))
            else:
                pairs.append(f"{key}={_encoded(template, scope)}")
        for parameter, value in params:
            pairs += _encoded_pairs(_quoted(parameter), value)
        path = "".join("/" + _segment(segment, scope) for segment in self.segments)
        return base + path + ("?" + "&".join(pairs) if pairs else "")


def _read(
    value: JsonValue,
    at: tuple[str | int, ...],
    found: list[tuple[tuple[str | int, ...], Mistake]],
    answer: bool,
) -> _Node:
    if len(at) > MAX_DEPTH:
        found.append((at, TemplateMistake(f"accepted are at most {MAX_DEPTH} levels", 1)))
    elif isinstance(value, dict):
        found.extend(
            ((*at, key), TemplateMistake("accepted are names without placeholders", 1))
            for key in value
            if OPEN in key
        )
        return _Object(tuple((key, _read(item, (*at, key), found, answer)) for key, item in value.items()))
    elif isinstance(value, list):
        return _List(tuple(_read(item, (*at, index), found, answer) for index, item in enumerate(value)))
    elif isinstance(value, str):
        try:
            return JsonPath.parse(value) if answer and _PATH_IN_ANSWER.match(value) else Template.parse(value)
        except Mistake as mistake:
            found.append((at, mistake))
    return Constant(value)


def _render(node: _Node, scope: Scope, document: JsonValue) -> JsonValue:
    match node:
        case Constant():
            return node.value
        case Template():
            return node.render(scope)
        case JsonPath():
            return node.first(document, scope)
        case _List():
            return [_render(item, scope, document) for item in node.items]
        case _Object():
            rendered = ((name, item, _render(item, scope, document)) for name, item in node.fields)
            return {
                name: value
                for name, item, value in rendered
                if value is not None or isinstance(item, Constant)
            }


def _base(whole: Template) -> tuple[str | Placeholder, Template]:
    """The beginning of an address up to its host, and the rest."""
    first, *rest = whole.parts or ("",)
    if isinstance(first, Placeholder):
        head = first.path[0]
        if head in NAMESPACES or head in SPECIALS:
            raise TemplateMistake(f"{first} cannot be the host; {_URL_EXAMPLES}", 1)
        return first, Template(tuple(rest))
    host = _SCHEME_AND_HOST.match(first)
    if host is None or (host.end() == len(first) and rest):
        raise TemplateMistake(f"no fixed host; {_URL_EXAMPLES}", 1)
    try:
        parse_target(host[0])
    except OutboundRefused as refused:
        raise TemplateMistake(f"{refused}; {_URL_EXAMPLES}", 1) from refused
    behind = first[host.end() :]
    return host[0], Template((behind, *rest) if behind else tuple(rest))


def _split(template: Template, sign: str, at_most: int = -1) -> list[Template]:
    """The stretches between the signs of the fixed texts, all of them or as many as `at_most` signs part."""
    stretches: list[list[str | Placeholder]] = [[]]
    for part in template.parts:
        if isinstance(part, Placeholder):
            stretches[-1].append(part)
            continue
        left = at_most if at_most < 0 else at_most - len(stretches) + 1
        first, *others = part.split(sign, left) if left else [part]
        stretches[-1].append(first)
        stretches.extend([other] for other in others)
    return [Template(tuple(part for part in stretch if part != "")) for stretch in stretches]


def _masked(template: Template, scope: Scope) -> Template:
    return Template(
        tuple(
            part if isinstance(part, str) or scope.is_of_config(part.path) else MASK
            for part in template.parts
        )
    )


def _segment(segment: Template, scope: Scope) -> str:
    for placeholder in segment.placeholders:
        if as_text(placeholder.value(scope)) == "":
            raise Unresolved(str(placeholder))
    encoded = _encoded(segment, scope)
    if segment.placeholders and encoded in _STEPS:  # for many servers `%2E%2E` is a step up, too
        raise Unresolved(str(segment.placeholders[0]))
    return encoded


def _encoded(template: Template, scope: Scope) -> str:
    return "".join(
        part if isinstance(part, str) else _quoted(as_text(part.value(scope))) for part in template.parts
    )


def _encoded_pairs(key: str, value: JsonValue) -> list[str]:
    """None for null, one for each item of a list that is not null, else one."""
    items = value if isinstance(value, list) else [value]
    return [f"{key}={_quoted(as_text(item))}" for item in items if item is not None]


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")
