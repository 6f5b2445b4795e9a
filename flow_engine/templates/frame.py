"""The state of one rendering: what the template may see, what it may spend, and what it has written.

Steps are the deterministic bound: one for each operation of a loop's body, each element visited and
each 64 characters handled, so the same template with the same values is cut at the same place everywhere.
The CPU clock is the second bound, for slow machines. Both are checked before work is done, never by
interrupting it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_OUTPUT_BYTES = 256 * 1024
MAX_STEPS = 40_000
MAX_CPU_SECONDS = 0.05

_LOOK_EVERY = 1_000
"""Steps between two looks at the clock; a look is a system call."""
_CHARACTERS_A_STEP = 64


class OutOfBudget(Exception):
    """The rendering is cut here; `marker` is what the reader sees. Stays inside this package."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.marker = f"[template cut: {reason}]"


class Budget:
    """Counts down during one rendering; every method may raise `OutOfBudget`."""

    __slots__ = ("_clock", "_deadline", "_look_at", "steps_left")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deadline = clock() + MAX_CPU_SECONDS
        self._look_at = MAX_STEPS - _LOOK_EVERY
        self.steps_left = MAX_STEPS

    def charge(self, steps: int) -> None:
        """Pay for `steps` operations that are about to happen."""
        self.steps_left -= steps
        if self.steps_left < self._look_at:
            if self.steps_left < 0:
                raise OutOfBudget(f"more than {MAX_STEPS} steps")
            if self._clock() > self._deadline:
                raise OutOfBudget(f"more than {MAX_CPU_SECONDS * 1000:.0f} ms")
            self._look_at = self.steps_left - _LOOK_EVERY

    def charge_text(self, characters: int, weight: int = 1) -> None:
        """Pay for a text of that length that is about to be made or searched, `weight` times over."""
        if characters > MAX_OUTPUT_BYTES:
            raise OutOfBudget(f"a text of more than {MAX_OUTPUT_BYTES} characters")
        self.charge(1 + weight * characters // _CHARACTERS_A_STEP)


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
