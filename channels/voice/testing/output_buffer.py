"""The speaker of a session whose audio goes another way (SIP): the server plays, and says when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class OutputBuffer:
    """`tell` takes the kind of an event and the id of the response that plays."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[str, str], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._plays_until = 0.0
        self._response_id = ""
        self._timer: asyncio.TimerHandle | None = None

    def play(self, response_id: str, ms: int) -> None:
        now = self._loop.time()
        if self._timer is None:
            self._tell("output_audio_buffer.started", response_id)
            self._plays_until = now
        else:
            self._timer.cancel()
        self._response_id = response_id
        self._plays_until += ms / 1000
        self._timer = self._loop.call_at(self._plays_until, self._drained)

    def clear(self) -> None:
        if self._timer is not None:
            self.stop()
            self._tell("output_audio_buffer.cleared", self._response_id)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drained(self) -> None:
        self._timer = None
        self._tell("output_audio_buffer.stopped", self._response_id)
