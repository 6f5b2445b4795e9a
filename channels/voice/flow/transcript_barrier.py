"""What the caller has just said, waited for where it decides.

A realtime model hears, and may act at once; the engine reads the words, which come later. A task that needs
a day would be refused right after the caller has named it, and a tool would run without the number that has
just been dictated.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from channels.engine_client.client import Utterance
from channels.voice.call.ports import CallTranscript
from channels.voice.flow.prompt_refresh import PromptRefresher

log: Any = structlog.get_logger("flow_engine.voice")

READ_WITHIN_S: Final = 2.0
"""Nobody listens to silence any longer for the sake of a value that may not even be there."""

_LOOK_S: Final = 0.02


class TranscriptBarrier:
    """Whether all that the caller has said is known to the engine, and has been read there for values."""

    def __init__(self, transcript: CallTranscript, watch: PromptRefresher) -> None:
        self._call = transcript
        self._watch = watch
        self._last: Utterance | None = None

    def told(self, said: Utterance) -> None:
        """A turn of the caller has arrived at the engine."""
        self._last = said

    async def read(self, within_s: float = READ_WITHIN_S) -> None:
        """Until everything has been read, or for that long."""
        now = asyncio.get_running_loop().time
        began = now()
        # Words that are not understood end the waiting too, and nobody is told of those.
        while self._are_on_their_way() and now() - began < within_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        left_s = max(within_s - (now() - began), 0.0)
        if not await self._watch.look(round(left_s * 1000)):
            log.info("words_not_read", within_s=within_s)

    def _are_on_their_way(self) -> bool:
        if self._call.awaits_transcript:
            return True
        said = [turn for turn in self._call.transcript if turn.role == "user"]
        return bool(said) and (self._last is None or self._last.at < said[-1].at)
