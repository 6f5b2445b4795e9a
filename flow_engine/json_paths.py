"""JSONPath (RFC 9535) over the result of a tool: which part of it is the value of which variable.

A path gives the first value that it finds. `match` and `search` are not there, since a pattern can take for
ever, and at most one `..` and three commas: each selection beside another one (`[*, 'a']`) may look at all
that is below once more. Filters look at the whole document only along one fixed way, as they do so for each
item. So the time grows with the result and no faster.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, cast

import orjson
from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathError, JSONPathQuery, filter_expressions
from jsonpath_rfc9535.exceptions import JSONPathSyntaxError
from jsonpath_rfc9535.parse import Parser
from jsonpath_rfc9535.tokens import TokenStream

from flow_engine.json_values import deeper_than, read_answer
from flow_engine.values import MAX_DEPTH, JsonValue

MAX_PATH_CHARS: Final = 1_000
MAX_BRACKETS: Final = 40
MAX_COMMAS: Final = 3
DESCRIBED_AT_MOST: Final = 20
"""Members of an object that are described to the model."""
PATHS_KEPT: Final = 1_024


class PathRefused(ValueError):
    """A path that cannot be read, or could take too long; the message is for its author."""


class PlainParser(Parser):
    """Refuses filters that search the whole document."""

    def parse_root_query(self, stream: TokenStream) -> filter_expressions.Expression:
        read = super().parse_root_query(stream)
        if isinstance(read, filter_expressions.RootFilterQuery) and not read.query.singular_query():
            raise JSONPathSyntaxError("inside a filter `$` takes one fixed way", token=read.token)
        return read


class PlainPaths(JSONPathEnvironment):
    """RFC 9535 without patterns, and by `PlainParser`."""

    parser_class = PlainParser

    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        del self.function_extensions["match"], self.function_extensions["search"]


@lru_cache(maxsize=PATHS_KEPT)
def read_path(text: str) -> JSONPathQuery:
    """Of at most 1,000 characters. Raises PathRefused."""
    if len(text) > MAX_PATH_CHARS or sum(map(text.count, "[(!")) > MAX_BRACKETS:
        raise PathRefused(f"accepted are at most {MAX_PATH_CHARS} characters and {MAX_BRACKETS} brackets")
    if text.count("..") > 1:
        raise PathRefused("accepted is one `..` in a path")
    if text.count(",") > MAX_COMMAS:
        raise PathRefused(f"accepted are at most {MAX_COMMAS} commas in a path")
    try:
        return PlainPaths().compile(text)
    except JSONPathError as error:
        reason = str(error.args[0])
    except (ArithmeticError, AssertionError, LookupError, RecursionError, ValueError):
        reason = "it cannot be read"  # slips that the reader of paths lets through
    raise PathRefused(f"{reason}; accepted is a JSONPath such as $.id or $.items[0].price")


def mapped_values(mapping: Mapping[str, str], result: JsonValue) -> dict[str, JsonValue]:
    """By variable id what its path finds in the result of a tool; without those that find nothing, or null. A
    text is read as JSON where it is some. Never raises: a path that cannot be read finds nothing, nor does
    any in what is nested deeper than a value may be."""
    document = result
    if isinstance(result, str):
        try:
            document = read_answer(result.encode())
        except ValueError:
            return {}
    if isinstance(document, dict) and document.keys() == {"error"}:
        return {}  # the tool says that it failed
    if deeper_than(document, MAX_DEPTH):
        return {}
    found: dict[str, JsonValue] = {}
    for var_id, path in mapping.items():
        try:
            node = read_path(path).find_one(document)
        except (PathRefused, JSONPathError, RecursionError):
            continue
        if node is not None and node.value is not None:
            found[var_id] = cast("JsonValue", node.value)
    return found


def description_of(value: JsonValue) -> list[dict[str, str]]:
    """How a custom value is told to the model: the plain members of an object, or the value as it is. Texts
    for `descriptionForLLM`, at least one."""
    members = value if isinstance(value, dict) else {}
    plain = {name: part for name, part in members.items() if not isinstance(part, dict | list)}
    shown = list(plain.items())[:DESCRIBED_AT_MOST] or [("value", value)]
    return [
        {"name": name, "value": part if isinstance(part, str) else orjson.dumps(part).decode()}
        for name, part in shown
    ]
