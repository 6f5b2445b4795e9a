"""Function declarations for the model: those of a config, and those that a business sends for a call."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias, cast

from adapters.models.argument_schemas import schema_fault
from channels.http_tools.documents import TOOL_NAME
from flow_engine.documents.findings import quoted
from flow_engine.values import JsonValue

Declaration: TypeAlias = Mapping[str, JsonValue]
"""`{type: "function", name, description?, parameters}`"""

_TOOL_NAME = re.compile(TOOL_NAME)
_NO_PARAMETERS: Final[Mapping[str, JsonValue]] = {"type": "object", "properties": {}}


class NotDeclarations(ValueError):
    """What should be function declarations is something else. `found` are the problems: the number of an
    item, None for the whole of it, and what would be accepted; the text has the first ten."""

    def __init__(self, found: Sequence[tuple[int | None, str]]) -> None:
        told = (message if index is None else f"item {index}: {message}" for index, message in found[:10])
        super().__init__("; ".join(told))
        self.found = found


def declarations(value: JsonValue) -> tuple[Declaration, ...]:
    """The declarations of a JSON list, none for null. Raises NotDeclarations.

    The nested form of the chat protocol, `{type: "function", function: {...}}`, is made flat; fields that the
    model's protocol does not have are left out.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise NotDeclarations([(None, "accepted is a list of function declarations")])
    fields = [_flat(item) for item in value]
    found = [(index, problem) for index, each in enumerate(fields) for problem in _problems(each)]
    first: dict[str, int] = {}
    for index, each in enumerate(fields):
        name = None if each is None else each.get("name")
        if isinstance(name, str) and first.setdefault(name, index) < index:
            found.append((index, f"{quoted(name)} is declared before"))
    if found:
        raise NotDeclarations(found)
    return tuple(_declared(each) for each in fields if each is not None)


def template_parts(value: JsonValue) -> list[JsonValue]:
    """What is a template in each item of a list, whether it declares a tool or not."""
    items = value if isinstance(value, list) else []
    return [
        {name: given for name, given in (_flat(item) or {}).items() if name in ("description", "parameters")}
        for item in items
    ]


def _flat(item: JsonValue) -> Mapping[str, JsonValue] | None:
    if not isinstance(item, dict) or item.get("type", "function") != "function":
        return None
    nested = item.get("function")
    return nested if isinstance(nested, dict) else item


def _problems(fields: Mapping[str, JsonValue] | None) -> Iterator[str]:
    if fields is None:
        yield "accepted is an object with `type` 'function'"
        return
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        yield f"accepted is a `name` of at most 64 letters, digits, _ and -, not {quoted(name)}"
    if description is not None and not isinstance(description, str):
        yield "accepted is a `description` in words"
    parameters = fields.get("parameters")
    if parameters is not None:
        if not isinstance(parameters, dict):
            problem = f", not {quoted(parameters)}"
        elif (kind := parameters.get("type", "object")) != "object":
            problem = f", not of the type {quoted(kind)}"
        else:
            fault = schema_fault(parameters)
            problem = fault and f": {fault[:200]}"
        if problem:
            yield f"accepted are `parameters` as a JSON Schema of an object{problem}"


def _declared(fields: Mapping[str, JsonValue]) -> Declaration:
    declared: dict[str, JsonValue] = {"type": "function", "name": fields["name"]}
    if fields.get("description") is not None:
        declared["description"] = fields["description"]
    parameters = cast("Mapping[str, JsonValue]", fields.get("parameters") or _NO_PARAMETERS)
    # An empty schema, as some businesses send it for a tool without parameters, is refused by the model.
    return {**declared, "parameters": {**_NO_PARAMETERS, **parameters}}
