"""JSON Schemas of tools: whether one can be used, and whether arguments fit it, in a bounded number of steps.

Schemas come from strangers (MCP servers, rows, documents of designers), and so does a say in the arguments.
So the part of JSON Schema 2020-12 is read whose cost can be counted; what else a schema says is for the model
and for the tool, and refuses nothing here:

1. `type`, `enum`, `const`; the bounds of numbers, texts, lists and objects; `uniqueItems`.
2. `properties`, `patternProperties`, `additionalProperties`, `propertyNames`; which are required.
3. `items`, `prefixItems`; `allOf`, `anyOf`, `oneOf`, `not`; `if`, `then`, `else`.
4. Patterns in the syntax of RE2; one that RE2 does not take, such as a look-ahead, fits everything.
5. `$ref` to a place in the same schema, `#/…`. What meets another one cannot be checked.
"""

import reprlib
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from math import inf
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote

import re2

from flow_engine.documents.findings import quoted
from flow_engine.json_values import same_json, walk
from flow_engine.values import JsonValue

MOST_PARTS: Final = 5_000
"""Keywords of a schema, its subschemas, and names in its lists."""
MOST_LEVELS: Final = 100
MOST_NAME: Final = 100
"""Characters of a name in a place."""
MOST_SHOWN: Final = 50
"""Of the values of an `enum` in a message."""
MOST_STEPS: Final = 100_000
"""For one check of arguments. A step is a keyword, a value of an `enum`, or 4 compared characters; a
pattern takes 4, and one for 32 characters by pieces."""

_PATTERN_MEMORY: Final = 1 << 16
_RE2_ERROR = cast("type[Exception]", re2.error)


class CannotBeChecked(Exception):
    """Arguments whose check takes too many steps, or leads to what is not in the schema."""


def schema_fault(schema: Mapping[str, Any]) -> str | None:
    """What keeps a schema from being used, with a JSON Pointer into it; None for a good one."""
    waiting: list[tuple[str, object, int]] = [("#", schema, 0)]
    seen = set[int]()
    parts = 0
    while waiting:
        at, part, level = waiting.pop()
        if isinstance(part, bool) or id(part) in seen:
            continue
        if not isinstance(part, Mapping):
            return f"{at}: accepted is a schema, not {quoted(part)}"
        if level > MOST_LEVELS:
            return "nested too deeply to be checked"
        seen.add(id(cast("object", part)))
        for keyword, given in cast("Mapping[str, Any]", part).items():
            form = _FORMS.get(keyword)
            if form is None:
                continue
            parts += 1 + (len(given) if form is not _ANYTHING and type(given) in (dict, list) else 0)
            if parts > MOST_PARTS:
                return f"more than {MOST_PARTS} keywords, subschemas and names"
            if not form[0](given):
                return f"{at}/{keyword}: accepted is {form[1]}, not {quoted(given)}"
            if keyword == "$ref":
                waiting.append((given[:MOST_NAME], _place(schema, given) or {}, 0))
            else:
                waiting += [
                    (f"{at}/{keyword}{name}", each, level + 1) for name, each in _inner(keyword, given)
                ]
    return None


def problems(schema: Mapping[str, Any], arguments: Mapping[str, JsonValue]) -> Iterator[str]:
    """What does not fit a schema without fault, each problem with its place. Raises CannotBeChecked, and
    RecursionError for what is nested too deeply."""
    return _Check(schema).problems(schema, dict(arguments), "arguments")


def _place(root: Mapping[str, Any], reference: str) -> object:
    """What lies at `#/a/b`; None where there is nothing, and for a reference of another kind."""
    first, *names = (name.replace("~1", "/").replace("~0", "~") for name in unquote(reference).split("/"))
    return walk(cast("JsonValue", root), names) if first == "#" else None


def _inner(keyword: str, given: Any) -> Iterator[tuple[str, object]]:
    """The subschemas of a keyword, with their places below it."""
    form = _FORMS[keyword]
    if form is _SCHEMA:
        yield "", given
    elif form is _SCHEMAS:
        yield from ((f"/{index}", each) for index, each in enumerate(given))
    elif form is _NAMED_SCHEMAS:
        yield from ((f"/{name[:MOST_NAME]}", each) for name, each in given.items())


# --- the form of a schema --------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == value // 1,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _types(given: object) -> list[Any]:
    return cast("list[Any]", given) if isinstance(given, list) else [given]


def _is_names(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(each, str) for each in cast("list[object]", given))


_Form: TypeAlias = tuple[Callable[[Any], bool], str]
"""Whether a keyword's value can be used, and what is accepted."""

_ANYTHING: Final[_Form] = (lambda given: True, "anything")
_A_LIST: Final[_Form] = (lambda given: isinstance(given, list), "a list")
_NAMES: Final[_Form] = (_is_names, "a list of names")
_LISTS_OF_NAMES: Final[_Form] = (
    lambda given: isinstance(given, dict) and all(map(_is_names, cast("dict[str, Any]", given).values())),
    "an object of lists of names",
)
_TYPE: Final[_Form] = (
    lambda given: bool(given) and _is_names(_types(given)) and _TYPES.keys() >= set(_types(given)),
    f"one or several of {', '.join(_TYPES)}",
)
_TEXT: Final[_Form] = (_TYPES["string"], "text")
_YES_OR_NO: Final[_Form] = (_TYPES["boolean"], "true or false")
_NUMBER: Final[_Form] = (_is_number, "a number")
_COUNT: Final[_Form] = (lambda given: _is_number(given) and given >= 0, "a number from 0")
_ABOVE_0: Final[_Form] = (lambda given: _is_number(given) and given > 0, "a number above 0")
_SCHEMA: Final[_Form] = (lambda given: isinstance(given, dict | bool), "a schema")
_SCHEMAS: Final[_Form] = (lambda given: bool(given) and isinstance(given, list), "a list of schemas")
_NAMED_SCHEMAS: Final[_Form] = (_TYPES["object"], "an object of schemas")


# --- the check of arguments ------------------------------------------------------------------------


class _Check:
    """One check of arguments, which counts its steps."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MOST_STEPS

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise CannotBeChecked(f"that takes more than {MOST_STEPS} steps")

    def problems(self, schema: Mapping[str, Any] | bool, value: JsonValue, at: str) -> Iterator[str]:
        self.spend(1)
        if isinstance(schema, bool):
            yield from () if schema else [f"{at}: nothing is accepted here"]
            return
        for keyword, given in schema.items():
            if rule := _RULES.get(keyword):
                self.spend(1)
                yield from rule(self, given, value, at, schema)

    def fits(self, schema: Mapping[str, Any] | bool, value: JsonValue) -> bool:
        return next(self.problems(schema, value, ""), None) is None

    def referred(self, reference: str) -> Mapping[str, Any] | bool:
        self.spend(len(reference))
        target = _place(self._root, reference)
        if not isinstance(target, Mapping | bool):
            raise CannotBeChecked(f"there is no {quoted(reference)} in the schema")
        return cast("Mapping[str, Any] | bool", target)

    def equal(self, one: JsonValue, other: JsonValue) -> bool:
        if isinstance(one, dict | list) and isinstance(other, dict | list):
            self.spend((len(str(one)) + len(str(other))) // 4)
        return same_json(one, other)

    def matches(self, pattern: str, text: str) -> bool:
        compiled = _compiled(pattern)
        if compiled is None:
            return True
        expression, pieces = compiled
        self.spend(4 + len(text) * pieces // 32)
        return expression.search(text.encode("utf-8", "replace")) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> tuple[Any, int] | None:
    """The pattern and the number of its pieces; None for one that RE2 does not take."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        compiled = cast("Any", re2.compile(pattern, options))
    except (_RE2_ERROR, UnicodeEncodeError):
        return None
    return compiled, compiled.programsize


_Rule: TypeAlias = Callable[[_Check, Any, Any, str, Mapping[str, Any]], Iterator[str]]
_RULES: Final[dict[str, _Rule]] = {}
_FORMS: Final[dict[str, _Form]] = {"then": _SCHEMA, "else": _SCHEMA}


def _keyword(name: str, form: _Form, of: str | None = None) -> Callable[[_Rule], _Rule]:
    """Enters a keyword: the form of its value, and its rule for values of one type or of all."""

    def entered(rule: _Rule) -> _Rule:
        def asked(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
            return rule(check, given, value, at, schema) if of is None or _TYPES[of](value) else iter(())

        _FORMS[name], _RULES[name] = form, asked
        return rule

    return entered


def _shown(value: JsonValue) -> str:
    """A value of any size as a short text."""
    return reprlib.repr(value)


@_keyword("type", _TYPE)
def _type(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if not any(_TYPES[name](value) for name in _types(given)):
        yield f"{at}: {_shown(value)} is not of type {', '.join(map(repr, _types(given)))}"


@_keyword("enum", _A_LIST)
def _enum(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    is_text = isinstance(value, str)
    check.spend(len(given) // 32 if is_text else len(given))
    if not (value in given if is_text else any(check.equal(each, value) for each in given)):
        yield f"{at}: {_shown(value)} is not one of {', '.join(map(_shown, given[:MOST_SHOWN]))}"


@_keyword("const", _ANYTHING)
def _const(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    return _enum(check, [given], value, at, schema)


@_keyword("required", _NAMES, of="object")
def _required(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    check.spend(len(given))
    yield from (f"{at}: {_shown(name)} is a required property" for name in given if name not in value)


@_keyword("dependentRequired", _LISTS_OF_NAMES, of="object")
def _dependent(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    check.spend(len(given))
    for name in given.keys() & value.keys():
        yield from _required(check, given[name], value, at, schema)


@_keyword("properties", _NAMED_SCHEMAS, of="object")
def _properties(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    check.spend(len(given))
    for name in (name for name in given if name in value):
        yield from check.problems(given[name], value[name], f"{at}.{name[:MOST_NAME]}")


@_keyword("patternProperties", _NAMED_SCHEMAS, of="object")
def _patterned(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for pattern, inner in given.items():
        for name in (name for name in value if check.matches(pattern, name)):
            yield from check.problems(inner, value[name], f"{at}.{name[:MOST_NAME]}")


@_keyword("additionalProperties", _SCHEMA, of="object")
def _additional(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    patterns, known = schema.get("patternProperties", {}), schema.get("properties", {})
    for name, each in value.items():
        if name not in known and not any(check.matches(pattern, name) for pattern in patterns):
            yield from check.problems(given, each, f"{at}.{name[:MOST_NAME]}")


@_keyword("propertyNames", _SCHEMA, of="object")
def _names(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for name in value:
        yield from check.problems(given, name, f"{at} as a name")


@_keyword("items", _SCHEMA, of="array")
def _items(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for index in range(len(schema.get("prefixItems", ())), len(value)):
        yield from check.problems(given, value[index], f"{at}[{index}]")


@_keyword("prefixItems", _SCHEMAS, of="array")
def _prefix(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for index, (inner, each) in enumerate(zip(given, value, strict=False)):
        yield from check.problems(inner, each, f"{at}[{index}]")


@_keyword("allOf", _SCHEMAS)
def _all_of(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for inner in given:
        yield from check.problems(inner, value, at)


@_keyword("anyOf", _SCHEMAS)
def _any_of(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if not any(check.fits(inner, value) for inner in given):
        yield f"{at}: {_shown(value)} is not valid under any of the given schemas"


@_keyword("oneOf", _SCHEMAS)
def _one_of(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    fitting = sum(check.fits(inner, value) for inner in given)
    if fitting != 1:
        yield f"{at}: {_shown(value)} is valid under {fitting} of the given schemas, not under one"


@_keyword("not", _SCHEMA)
def _not(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if check.fits(given, value):
        yield f"{at}: {_shown(value)} should not be valid under {_shown(given)}"


@_keyword("if", _SCHEMA)
def _if(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    return check.problems(schema.get("then" if check.fits(given, value) else "else", True), value, at)


@_keyword("$ref", _TEXT)
def _ref(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
    return check.problems(check.referred(given), value, at)


def _bound(name: str, form: _Form, of: str, holds: Callable[[_Check, Any, Any], bool], told: str) -> None:
    """Enters a keyword that asks one thing of values of one type; `told` says that it does not hold."""

    @_keyword(name, form, of)
    def _(check: _Check, given: Any, value: Any, at: str, schema: Mapping[str, Any]) -> Iterator[str]:
        if not holds(check, value, given):
            yield f"{at}: {_shown(value)} {told} {_shown(given)}"


def _is_multiple(check: _Check, value: Any, given: Any) -> bool:
    """As both are written: 19.99 is one of 0.01, though their floats are not."""
    if not abs(value) < inf or given == inf:
        return True
    whole, part = (Fraction(each if isinstance(each, int) else repr(each)) for each in (value, given))
    return whole % part == 0


def _is_unique(check: _Check, value: Any, given: bool) -> bool:
    check.spend(len(str(value)) // 4)
    return not given or len(set(map(_key, value))) == len(value)


def _key(value: JsonValue) -> object:
    """Equal for values that are equal as JSON."""
    if isinstance(value, bool):
        return value, bool
    if isinstance(value, list):
        return tuple(map(_key, value))
    return frozenset((name, _key(each)) for name, each in value.items()) if isinstance(value, dict) else value


for _kind, _what in (("string", "Length"), ("array", "Items"), ("object", "Properties")):
    _bound(f"min{_what}", _COUNT, _kind, lambda check, value, given: len(value) >= given, "is shorter than")
    _bound(f"max{_what}", _COUNT, _kind, lambda check, value, given: len(value) <= given, "is longer than")
_bound(
    "minimum", _NUMBER, "number", lambda check, value, given: value >= given, "is less than the minimum of"
)
_bound(
    "maximum", _NUMBER, "number", lambda check, value, given: value <= given, "is greater than the maximum of"
)
_bound(
    "exclusiveMinimum", _NUMBER, "number", lambda check, value, given: value > given, "is not greater than"
)
_bound("exclusiveMaximum", _NUMBER, "number", lambda check, value, given: value < given, "is not less than")
_bound("multipleOf", _ABOVE_0, "number", _is_multiple, "is not a multiple of")
_bound("uniqueItems", _YES_OR_NO, "array", _is_unique, "has an item twice, with uniqueItems:")
_bound("pattern", _TEXT, "string", lambda check, value, given: check.matches(given, value), "does not match")
