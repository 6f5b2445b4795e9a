"""What a draft consists of: tasks and ways between them, and how the original's words are written here."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Literal

from flow_engine.conditions.language import Constant, operand_text
from flow_engine.importing.foreign import Place

_DELIMITER: Final = re.compile(r"\{(?=[{%#])|[}%](?=\})")
"""First characters of what opens or closes something in a template."""


@dataclass(slots=True)
class TaskDraft:
    """All texts stand as in the original, with its `{{ name }}` placeholders. `entered_when` are reasons to
    enter the task from anywhere; `needs` tells of each variable whether it is required."""

    id: str
    name: str
    human: bool = False
    description: str = ""
    prompts: list[str] = field(default_factory=list[str])
    entered_when: list[str] = field(default_factory=list[str])
    ways: dict[str, "WayDraft"] = field(default_factory=dict[str, "WayDraft"])
    needs: dict[str, bool] = field(default_factory=dict[str, bool])
    tools: dict[str, dict[str, Mapping[str, object]]] = field(
        default_factory=dict[str, dict[str, Mapping[str, object]]]
    )
    """What stands among `selectedTools`, by server and tool."""
    condition: tuple[str, str] = ("", "")
    returns: bool = False
    position: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way of the original: `when` in the engine's language, `reason` in words, `""` where there is none.
    Where both are given, both have to be true."""

    when: str
    reason: str
    place: Place


@dataclass(slots=True)
class WayDraft:
    """A connection. One of its alternatives is enough."""

    alternatives: list[Alternative] = field(default_factory=list[Alternative])

    @property
    def automatic(self) -> bool:
        """Whether it opens by itself: where a condition says all of a way."""
        return any(each.when and not each.reason for each in self.alternatives)

    @property
    def when(self) -> str:
        return joined((each.when for each in self.alternatives), "or")

    @property
    def reasons(self) -> Sequence[str]:
        return [*dict.fromkeys(each.reason for each in self.alternatives if each.reason)]


def condition_literal(value: str, kind: str) -> str:
    """`value` as a condition compares it with a value of that type; of `custom` and `""` nobody knows it."""
    text = value.strip().strip("\"'")
    if kind in {"number", "custom", ""} and re.fullmatch(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,9})?", text):
        return text
    if kind in {"boolean", "custom", ""} and text.lower() in {"true", "false"}:
        return text.lower()
    return operand_text(Constant(text))


def identifier(text: str) -> str:
    """What stands for `text` where the engine takes an `_id`: 1 to 512 characters without `/`."""
    plain = text.replace("/", "-")[:512]
    return plain if plain.strip() else "unnamed"


def numbered(text: str, before: str) -> Iterator[str]:
    """`text`, then it with `before` and a number, from 2 on: what stands for it where it is taken."""
    yield text
    yield from (f"{text[:500]}{before}{number}" for number in count(2))


def joined(conditions: Iterable[str], word: Literal["and", "or"]) -> str:
    """One condition of several; those that are empty let everything pass."""
    known = list(dict.fromkeys(conditions))
    if word == "or" and not all(known):
        return ""
    given = [each for each in known if each]
    return given[0] if len(given) == 1 else f" {word} ".join(f"({each})" for each in given)


def plain_text(text: str) -> str:
    """Text in which nothing is the template language's."""
    return _DELIMITER.sub(r"\g<0> ", text)
