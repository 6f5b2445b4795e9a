"""JSONPath (RFC 9535) over the answers of a business's API, with placeholders that stay values (V8, V9).

1. A path gives the first value that it finds, null where it finds none.
2. A placeholder stands where RFC 9535 has a literal: `[?@.number == {{args.number}}]`, as a name or index
   in brackets `[{{args.key}}]`, or inside a quoted text. It is put into the read path, never into its text.
3. Compared with a placeholder, a number and the text of that number are equal: people say "forty-two",
   and models write it as either.
4. `match` and `search` are not there: a pattern can take for ever. At most one `..` and three commas, and
   filters look at the whole document only along one fixed way, so that the time grows with the document and
   no faster.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from jsonpath_rfc9535 import (
    JSONPathEnvironment,
    JSONPathError,
    JSONPathNode,
    JSONPathQuery,
    filter_expressions,
)
from jsonpath_rfc9535.lex import tokenize
from jsonpath_rfc9535.node import JSONPathNodeList
from jsonpath_rfc9535.selectors import JSONPathSelector, NameSelector
from jsonpath_rfc9535.tokens import Token, TokenStream, TokenType

from channels.http_tools.placeholders import OPEN, Placeholder, as_text, placeholder_at
from channels.http_tools.scope import Scope
from flow_engine.conditions.lexing import Mistake
from flow_engine.json_paths import MAX_BRACKETS, MAX_COMMAS, MAX_PATH_CHARS, PlainParser, PlainPaths
from flow_engine.values import JsonValue

_HOLE_OPEN: Final = "\ue000"
_HOLE_CLOSE: Final = "\ue001"
_HOLE = re.compile(f"{_HOLE_OPEN}([0-9]{{1,3}}){_HOLE_CLOSE}")
_INDEX = re.compile(r"-?[0-9]{1,9}")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,39})(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,2})?")
_EXAMPLES: Final = "accepted is a JSONPath such as $.id or $.orders[?(@.number == {{args.number}})]"
_NO_SCOPE: Final = Scope()


class PathMistake(Mistake):
    """A JSONPath that is refused: RFC 9535 does not know it, it is too long, or nests too deep. The place is
    in characters from 1."""


@dataclass(frozen=True, slots=True)
class _Hole:
    """Where a placeholder stood. Inside quotes it gives text, elsewhere its value."""

    placeholder: Placeholder
    quoted: bool

    def value(self, scope: Scope) -> JsonValue:
        value = self.placeholder.value(scope)
        return as_text(value) if self.quoted else value


@dataclass(frozen=True, slots=True)
class JsonPath:
    """`query` is the path as it was read, for one without placeholders; `source` has a numbered mark for
    each of `holes`, and is read with their values every time."""

    source: str
    holes: tuple[_Hole, ...]
    query: JSONPathQuery

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """A path of RFC 9535, of at most `MAX_PATH_CHARS` characters. Raises PathMistake, TemplateMistake."""
        if len(text) > MAX_PATH_CHARS:
            raise PathMistake(f"accepted are at most {MAX_PATH_CHARS} characters", MAX_PATH_CHARS + 1)
        if sum(map(text.count, "[(!")) > MAX_BRACKETS:
            raise PathMistake(f"accepted are at most {MAX_BRACKETS} brackets, parentheses and negations", 1)
        if _HOLE_OPEN in text or "\\ue000" in text.lower():
            raise PathMistake("accepted is text without the character U+E000", 1)
        source, holes, origins = _with_holes(text)
        try:
            kinds = Counter(token.type_ for token in tokenize(source))
            query = _Environment([hole.value(_NO_SCOPE) for hole in holes]).compile(source)
        except JSONPathError as error:
            at = error.token.index if error.token else 0
            new, old = max(origin for origin in origins if origin[0] <= at)
            raise PathMistake(f"{error.args[0]}; {_EXAMPLES}", old + at - new + 1) from error
        except (ArithmeticError, AssertionError, LookupError, RecursionError, ValueError) as error:
            # The reader of paths lets some of its own slips through, such as a number beyond all floats.
            raise PathMistake(f"it cannot be read; {_EXAMPLES}", 1) from error
        if kinds[TokenType.DOUBLE_DOT] > 1:
            raise PathMistake("accepted is one `..` in a path", 1)
        if kinds[TokenType.COMMA] > MAX_COMMAS:
            raise PathMistake(f"accepted are at most {MAX_COMMAS} commas in a path", 1)
        return cls(source, holes, query)

    def first(self, document: JsonValue, scope: Scope = _NO_SCOPE) -> JsonValue:
        """The first value that the path finds in a JSON document, else None. Never raises for what a document
        holds."""
        try:
            query = self.query
            if self.holes:
                query = _Environment([hole.value(scope) for hole in self.holes]).compile(self.source)
            node = query.find_one(document)
        except (JSONPathError, RecursionError):  # the document is nested too deeply to be searched
            return None
        return None if node is None else cast("JsonValue", node.value)


class _Argument(filter_expressions.FilterExpressionLiteral[JsonValue]):
    """The value of a placeholder in a filter."""

    __slots__ = ()


class _ArgumentComparison(filter_expressions.ComparisonExpression):
    """A comparison with a placeholder's value, by rule 3."""

    __slots__ = ()

    def evaluate(self, context: filter_expressions.FilterContext) -> bool:
        left, right = _single(self.left.evaluate(context)), _single(self.right.evaluate(context))
        left, right = _alike(left, right), _alike(right, left)
        plain = filter_expressions.ComparisonExpression(
            self.token,
            filter_expressions.FilterExpressionLiteral(self.token, left),
            self.operator,
            filter_expressions.FilterExpressionLiteral(self.token, right),
        )
        return plain.evaluate(context)


class _ArgumentSelector(JSONPathSelector):
    """A placeholder's value as a name of an object or an index of a list."""

    __slots__ = ("value",)

    def __init__(self, *, env: JSONPathEnvironment, token: Token, value: JsonValue) -> None:
        super().__init__(env=env, token=token)
        self.value = value

    def resolve(self, node: JSONPathNode) -> Iterable[JSONPathNode]:
        if isinstance(self.value, bool) or not isinstance(self.value, str | int):
            return
        key, found = str(self.value), node.value
        if isinstance(found, dict):
            members = cast("dict[str, JsonValue]", found)
            if key in members:
                yield node.new_child(members[key], key, node)
        elif isinstance(found, list) and _INDEX.fullmatch(key):
            items = cast("list[JsonValue]", found)
            if -len(items) <= int(key) < len(items):
                yield node.new_child(items[int(key)], int(key), node)


class _Parser(PlainParser):
    """Puts values where the marks are, after quotes and escapes are read."""

    def __init__(self, *, env: JSONPathEnvironment, values: Sequence[JsonValue] = ()) -> None:
        super().__init__(env=env)
        self._values = values

    def parse_string_literal(self, stream: TokenStream) -> filter_expressions.Expression:
        hole = _HOLE.fullmatch(stream.current.value)
        if hole:
            return _Argument(stream.current, self._values[int(hole[1])])
        return super().parse_string_literal(stream)

    def parse_bracketed_selection(self, stream: TokenStream) -> list[JSONPathSelector]:
        return [self._filled(selector) for selector in super().parse_bracketed_selection(stream)]

    def parse_infix_expression(
        self, stream: TokenStream, left: filter_expressions.Expression
    ) -> filter_expressions.Expression:
        read = super().parse_infix_expression(stream, left)
        if isinstance(read, filter_expressions.ComparisonExpression) and (
            isinstance(read.left, _Argument) or isinstance(read.right, _Argument)
        ):
            return _ArgumentComparison(read.token, read.left, read.operator, read.right)
        return read

    def _decode_string_literal(self, token: Token) -> str:
        text = super()._decode_string_literal(token)
        return _HOLE.sub(lambda hole: as_text(self._values[int(hole[1])]), text)

    def _filled(self, selector: JSONPathSelector) -> JSONPathSelector:
        hole = _HOLE.fullmatch(selector.token.value) if isinstance(selector, NameSelector) else None
        if hole is None:
            return selector
        return _ArgumentSelector(env=self.env, token=selector.token, value=self._values[int(hole[1])])


class _Environment(PlainPaths):
    """For one set of values."""

    def __init__(self, values: Sequence[JsonValue]) -> None:
        super().__init__()
        self.parser = _Parser(env=self, values=values)


def _with_holes(text: str) -> tuple[str, tuple[_Hole, ...], list[tuple[int, int]]]:
    """The text with a quoted mark for each placeholder, the placeholders, and where each stretch of the
    new text begins in the old one, as (new, old)."""
    parts: list[str] = []
    holes: list[_Hole] = []
    origins = [(0, 0)]
    quote, at, copied = "", 0, 0
    while at < len(text):
        if text.startswith(OPEN, at):
            parts.append(text[copied:at])
            placeholder, copied = placeholder_at(text, at)
            mark = f"{_HOLE_OPEN}{len(holes)}{_HOLE_CLOSE}"
            parts.append(mark if quote else f"'{mark}'")
            holes.append(_Hole(placeholder, quoted=bool(quote)))
            at = copied
            origins.append((sum(map(len, parts)), at))
            continue
        character = text[at]
        if quote:
            if character == "\\":
                at += 1
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        at += 1
    parts.append(text[copied:])
    return "".join(parts), tuple(holes), origins


def _single(value: object) -> object:
    """A query's only value; a query that finds nothing stays a list of nothing."""
    return value[0].value if isinstance(value, JSONPathNodeList) and len(value) == 1 else value


def _alike(value: object, other: object) -> object:
    """`value` as the number that it spells, where it is compared with a number."""
    if not isinstance(value, str) or isinstance(other, bool) or not isinstance(other, int | float):
        return value
    text = value.strip()
    if not _JSON_NUMBER.fullmatch(text):
        return value
    return float(text) if any(sign in text for sign in ".eE") else int(text)
