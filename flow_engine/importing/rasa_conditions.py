"""Conditions of Rasa's flows in the engine's language, where they mean what they mean there, to pypred."""

import re
from collections.abc import Callable
from typing import Final

from flow_engine.importing.drafts import Draft
from flow_engine.importing.elements import condition_literal

_COMPARISON: Final = re.compile(
    r"^(?:slots\.)?(?P<name>\w+)\s*(?P<sign>==|=|!=|is not|is|<=|>=|<|>)\s*(?P<value>[^<>=!]+)$"
)
_NOTHING: Final = frozenset({"null", "None", "undefined", "empty"})


def condition_of(draft: Draft, text: str, kind_of: Callable[[str], str]) -> str:
    """A predicate over slots in the engine's language, `""` where it says more than that, or compares
    what has another type. `kind_of`: the type of a slot's values, by its name."""
    words = re.split(r"\s+(and|or)\s+", text.strip())
    parts = [_comparison(draft, part.strip(), kind_of) for part in words[::2]]
    if not all(parts):
        return ""
    condition, before = parts[-1], ""
    for part, word in zip(parts[-2::-1], words[-2::-2], strict=True):
        # To Rasa `and` binds no closer than `or`: all that stands behind either is its other side.
        behind = f"({condition})" if before not in ("", word) else condition
        condition, before = f"{part} {word} {behind}", word
    return "" if draft.fault_in(condition) else condition


def _comparison(draft: Draft, text: str, kind_of: Callable[[str], str]) -> str:
    """Without a value no comparison of Rasa's is true but `!=`, and `not` turns it."""
    bare = text.removeprefix("not ")
    negated, match = bare != text, _COMPARISON.match(bare)
    name = match["name"] if match else bare.removeprefix("slots.")
    if name not in draft.variables:
        return ""
    value, holds = draft.value(name), ""
    if match is None:
        holds = f"{value} == true" if kind_of(name) == "boolean" else ""
    else:
        other, sign = match["value"].strip(), match["sign"]
        sign = {"=": "==", "is": "==", "is not": "!="}.get(sign, sign)
        if other.startswith(("slots.", "context.")):
            return ""
        if other in _NOTHING:
            negated ^= sign == "=="
        else:
            negated ^= sign == "!="
            literal = condition_literal(other, kind_of(name))
            holds = f"{value} {'==' if sign == '!=' else sign} {literal}"
    if not holds:
        return f"{'not ' if negated else ''}has({value})"
    return f"not (has({value}) and {holds})" if negated else holds
