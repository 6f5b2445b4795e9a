"""The state of one rendering: what the template may see, and what it has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flow_engine.templates.budget import MAX_OUTPUT_BYTES, Budget, OutOfBudget

# Room that stays free for the marker of a cut.
_ROOM = MAX_OUTPUT_BYTES - 200


@dataclass(frozen=True, slots=True)
class TemplateScope:
    """What `$` names mean while one task is entered; JSON values throughout.

    `variables` maps each accepted key, a variable's `_id` or its name, to the name the model sees, and
    `values` maps accepted keys to the values at task entry. `flow` and `task` are what a prompt may quote
    of them.
    """

    variables: Mapping[str, str]
    values: Mapping[str, object]
    tenant: Mapping[str, object]
    contact: Mapping[str, object]
    channel: str
    language: str
    flow: Mapping[str, object]
    task: Mapping[str, object]


class Frame:
    """One rendering in progress. `slots` holds the loop variables, numbered when compiled."""

    __slots__ = ("_room", "budget", "parts", "scope", "slots")

    def __init__(self, scope: TemplateScope, slots: int, clock: Callable[[], float]) -> None:
        self.scope = scope
        self.slots: list[object] = [None] * slots
        self.budget = Budget(clock)
        self.parts: list[str] = []
        self._room = _ROOM

    def write(self, text: str) -> None:
        """Append to the output; raises `OutOfBudget` after writing what still fits."""
        room = self._room
        if len(text) <= room:
            size = len(text) if text.isascii() else len(text.encode(errors="replace"))
            if size <= room:
                self._room = room - size
                self.parts.append(text)
                return
        self.parts.append(text[:room].encode(errors="replace")[:room].decode(errors="ignore"))
        raise OutOfBudget(f"more than {MAX_OUTPUT_BYTES} bytes of output")
