"""The state of one rendering: what the template may see, what it may spend, and what it has written.

Steps are the deterministic bound: one for each operation of a loop's body, each element visited and
each 64 characters handled, so the same template with the same values is cut at the same place everywhere.
The CPU clock is the second bound, for slow machines. Both are checked before work is done, never by
interrupting it. Of a stretch between two looks at the clock no more counts than the work may have taken: a
collection of garbage and a virtual machine that is not run are CPU time of this thread too, and would cut
the texts of whoever is talking then.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_OUTPUT_BYTES = 256 * 1024
MAX_STEPS = 40_000
MAX_CPU_SECONDS = 0.05

_FOR_MARKERS = 200
"""Bytes of the output that stay free for the marker of a cut."""
_LOOK_EVERY = 1_000
"""Steps between two looks at the clock; a look is a system call."""
_SLOWEST_STRETCH = MAX_CPU_SECONDS / 5
"""Seconds that so many steps count at most, and what is done between two texts."""
_SLOWEST_CHARACTER = 1e-6
"""Seconds that the compiling of a character counts at most; the densest source takes a third."""
_CHARACTERS_A_STEP = 64


MAX_ENTRY_OUTPUT_BYTES = 1024 * 1024
MAX_ENTRY_STEPS = 100_000
MAX_ENTRY_CPU_SECONDS = 0.1
"""What all texts of one task entry may spend together: other conversations wait for as long."""


class OutOfBudget(Exception):
    """The rendering is cut here; `marker` is what the reader sees. Stays inside this package. One line. The
    only error of a rendering."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.marker = f"[template cut: {reason}]"


class Allowance:
    """What the texts that are rendered one after the other may spend together.

    Compiling counts by the clock only. `clock` counts seconds of CPU. `cut`: a text was, so that another
    rendering of the same may become longer.
    """

    __slots__ = ("_clock", "_looked_at", "bytes_left", "cut", "seconds_left", "steps_left")

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._looked_at = clock()
        self.seconds_left = MAX_ENTRY_CPU_SECONDS
        self.steps_left = MAX_ENTRY_STEPS
        self.bytes_left = MAX_ENTRY_OUTPUT_BYTES
        self.cut = False

    def look(self, most: float = _SLOWEST_STRETCH) -> None:
        """Pay for the time since the look before, at most `most` seconds."""
        now = self._clock()
        self.seconds_left -= min(now - self._looked_at, most)
        self._looked_at = now

    def compiled(self, source: str) -> None:
        """Pay for the time that the compiling of `source` took."""
        self.look(_SLOWEST_STRETCH + _SLOWEST_CHARACTER * len(source))

    @property
    def is_spent(self) -> bool:
        return self.steps_left <= 0 or self.bytes_left <= _FOR_MARKERS or self.seconds_left < 0


class Budget:
    """Counts down during one rendering; every method may raise `OutOfBudget`.

    `met_absent` tells whether something that is not there was to be written as text. CPU time in seconds,
    output in characters.
    """

    __slots__ = ("_allowance", "_look_at", "_seconds_for_others", "met_absent", "steps_left")

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._seconds_for_others = max(0.0, allowance.seconds_left - MAX_CPU_SECONDS)
        self.steps_left = min(MAX_STEPS, allowance.steps_left)
        self._look_at = self.steps_left - _LOOK_EVERY
        self.met_absent = False

    def charge(self, steps: int) -> None:
        """Pay for `steps` operations that are about to happen. Raises OutOfBudget, also after 0.05 seconds of
        CPU."""
        self.steps_left -= steps
        if self.steps_left < self._look_at:
            if self.steps_left < 0:
                raise OutOfBudget(f"more than {MAX_STEPS} steps")
            self._allowance.look()
            if self._allowance.seconds_left < self._seconds_for_others:
                raise OutOfBudget(f"more than {MAX_CPU_SECONDS * 1000:.0f} ms")
            self._look_at = self.steps_left - _LOOK_EVERY

    def charge_text(self, characters: int, weight: int = 1) -> None:
        """Pay for a text of that length that is about to be made or searched, `weight` times over. In
        characters. Raises OutOfBudget."""
        if characters > MAX_OUTPUT_BYTES:
            raise OutOfBudget(f"a text of more than {MAX_OUTPUT_BYTES} characters")
        self.charge(1 + weight * characters // _CHARACTERS_A_STEP)


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

    def __init__(self, scope: TemplateScope, slots: int, allowance: Allowance) -> None:
        self.scope = scope
        self.slots: list[object] = [None] * slots
        self.budget = Budget(allowance)
        self.parts: list[str] = []
        self._room = min(MAX_OUTPUT_BYTES, allowance.bytes_left) - _FOR_MARKERS

    def write(self, text: str) -> None:
        """Append to the output; raises `OutOfBudget` after writing what still fits. Counted in bytes of
        UTF-8."""
        room = self._room
        if len(text) <= room:
            size = len(text) if text.isascii() else len(text.encode(errors="replace"))
            if size <= room:
                self._room = room - size
                self.parts.append(text)
                return
        self.parts.append(text[:room].encode(errors="replace")[:room].decode(errors="ignore"))
        raise OutOfBudget(f"more than {MAX_OUTPUT_BYTES} bytes of output")
