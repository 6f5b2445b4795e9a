"""What a call's machine has done for it: the way out to everything that takes time."""

from __future__ import annotations

from typing import Protocol

from channels.voice.call.events import FunctionCall, ModelError, SessionUpdated
from channels.voice.call.ports import EndReason, Turn


class CallHooks(Protocol):
    """What the machine has done for it. All methods return at once."""

    def start_tool(self, asked: FunctionCall) -> None: ...

    def stop_other_tools(self) -> tuple[str, ...]:
        """Stop every tool but the one that is calling, if one is. Returns the ids of their calls."""
        ...

    def turn(self, turn: Turn) -> None: ...

    def silence(self) -> None: ...

    def session_updated(self, confirmed: SessionUpdated) -> None: ...

    def model_stalled(self) -> None: ...

    def model_refused(self, error: ModelError) -> None: ...

    def move(self, target: str) -> None:
        """Give the line to `target`, and say by `Call.moved` whether that was done."""
        ...

    def over(self, reason: EndReason) -> None:
        """The call has ended; said once."""
        ...
