"""How values of a document are quoted in messages.

Quotes are cut: a hostile document must not blow up the list of its own errors.
"""

from __future__ import annotations

from collections.abc import Iterable

_QUOTED = 60
"""Characters of a text that are shown."""
_LISTED = 20
"""Alternatives that are named; the rest is counted."""

_JSON_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    str: "a string",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "an array",
}


def json_type(value: object) -> str:
    """The JSON name of a value's type, with its article."""
    return _JSON_TYPES.get(type(value), "no JSON value")


def quoted(value: object) -> str:
    """A scalar as it was written, anything else by its type."""
    if isinstance(value, str):
        return repr(value if len(value) <= _QUOTED else value[: _QUOTED - 1] + "…")
    return repr(value) if isinstance(value, int | float) else json_type(value)


def listed(names: Iterable[str]) -> str:
    """Names in order, to be offered as alternatives."""
    ordered = sorted(names)
    shown = ", ".join(quoted(name) for name in ordered[:_LISTED]) or "none"
    return shown if len(ordered) <= _LISTED else f"{shown} and {len(ordered) - _LISTED} more"
