"""Expectations that hold for several configs: what a config says itself is referred to, not repeated.

{"$config": "/greeting/known_customer", "with": {"session.customer.firstName": "Ada"}}
    what the config has there, a text with its templates filled in
{"$config": "/openai/voice", "but": {"nova": "sage"}, "else": "sage"}
    `but` gives what stands for certain values, `else` what stands for none; without `else`, what the
    config lacks is left out of the object or list that it would be in
{"$json": {...}}                  a value, written as JSON text
"${/base_url}/api/calls"          texts of the config inside a text
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import orjson

LACKING: Final = object()

_INSIDE = re.compile(r"\$\{(/[^}]*)\}")
_TEMPLATE = re.compile(r"\{\{\s*([^}]*?)\s*\}\}")
_REPLACED_VOICES: Final = {"nova": "sage"}
"""Voices that configs have and the model lacks."""


def at(config: Any, pointer: str) -> Any:
    """The value at a JSON pointer, or LACKING."""
    value = config
    for part in pointer.split("/")[1:]:
        if isinstance(value, list):
            value = value[int(part)] if int(part) < len(value) else LACKING
        else:
            value = value.get(part, LACKING) if isinstance(value, dict) else LACKING
    return value


def resolved(expected: Any, config: Any) -> Any:
    """The expectation for one config. Raises LookupError where the config lacks what must be there."""
    if isinstance(expected, str):
        return _INSIDE.sub(lambda found: _text(config, found[1]), expected)
    if isinstance(expected, list):
        return [item for item in (resolved(item, config) for item in expected) if item is not LACKING]
    if not isinstance(expected, dict):
        return expected
    if "$config" in expected:
        return _reference(expected, config)
    if "$json" in expected:
        return orjson.dumps(resolved(expected["$json"], config)).decode()
    members = {name: resolved(value, config) for name, value in expected.items()}
    return {name: value for name, value in members.items() if value is not LACKING}


def _reference(reference: dict[str, Any], config: Any) -> Any:
    value = at(config, reference["$config"])
    if value is LACKING or value is None:
        return resolved(reference["else"], config) if "else" in reference else LACKING
    for when, instead in reference.get("but", {}).items():
        if value == when:
            return resolved(instead, config)
    for path, given in reference.get("with", {}).items():
        value = re.sub(r"\{\{\s*" + re.escape(path) + r"\s*\}\}", _literally(resolved(given, config)), value)
    return value


def _literally(text: str) -> Any:
    return lambda _: text


def _text(config: Any, pointer: str) -> str:
    text = at(config, pointer)
    if not isinstance(text, str):
        raise LookupError(f"the config has no text at {pointer}")
    return text


@dataclass(frozen=True)
class Reading:
    """Finds in what was recorded what its config says itself."""

    config: dict[str, Any]

    def referred(self, value: Any, name: str = "") -> Any:
        """The value as an expectation that holds for configs of the same kind."""
        if name == "voice" and value == at(self.config, "/openai/voice"):
            return {"$config": "/openai/voice", "but": _REPLACED_VOICES}
        if name == "tools" and value and value == at(self.config, "/session/tools"):
            return {"$config": "/session/tools"}
        if isinstance(value, list):
            return [self.referred(item) for item in value]
        if isinstance(value, dict):
            return {name: self.referred(member, name) for name, member in value.items()}
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> Any:
        document = _document(text)
        if document is not None:
            return {"$json": self.referred(document)}
        for pointer, pattern, paths in self._sentences:
            if found := pattern.fullmatch(text):
                given = dict(zip(paths, found.groups(), strict=True))
                return {"$config": pointer, "with": given} if given else {"$config": pointer}
        for pointer in ("/base_url", "/agent/id"):
            text = text.replace(at(self.config, pointer), f"${{{pointer}}}")
        return text

    @cached_property
    def _sentences(self) -> list[tuple[str, re.Pattern[str], list[str]]]:
        """The texts of more than one word, as patterns of what they become."""
        found: list[tuple[str, re.Pattern[str], list[str]]] = []
        for pointer, text in texts(self.config):
            if " " in _TEMPLATE.sub("", text):
                parts = _TEMPLATE.split(text)
                pattern = "(.*?)".join(map(re.escape, parts[::2]))
                found.append((pointer, re.compile(pattern, re.DOTALL), parts[1::2]))
        return found


def leaves(value: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a config that is no list and no object, each with its JSON pointer."""
    if isinstance(value, list | dict):
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(member, f"{pointer}/{name}")
    else:
        yield pointer, value


def texts(value: Any) -> Iterator[tuple[str, str]]:
    return ((pointer, leaf) for pointer, leaf in leaves(value) if isinstance(leaf, str))


def _document(text: str) -> Any:
    """The object or list that a text is the JSON of; None where it is none."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    is_compact = isinstance(document, dict | list) and orjson.dumps(document).decode() == text
    return document if is_compact else None


def merged(shipped: Any, bare: Any, pointer: str, value: str) -> Any:
    """One expectation for a config whose text at `pointer` is `value`, and for one that has none there."""
    if shipped == bare:
        return shipped
    if (
        isinstance(shipped, dict)
        and isinstance(bare, dict)
        and not (shipped.keys() ^ bare.keys()) & {"$config"}
    ):
        return {
            name: merged(shipped.get(name, LACKING), bare.get(name, LACKING), pointer, value)
            for name in {**shipped, **bare}
        }
    if isinstance(shipped, list) and isinstance(bare, list) and len(shipped) == len(bare):
        return [merged(*both, pointer, value) for both in zip(shipped, bare, strict=True)]
    if shipped is LACKING:
        raise ValueError(f"{bare!r} comes only without {pointer}")
    reference = {"$config": pointer, "but": {value: shipped}}
    return reference if bare is LACKING else {**reference, "else": bare}
