"""The seam behind which connections to a model are made, whoever the model is."""

from __future__ import annotations

from typing import Protocol

from channels.voice.call.events import ModelEvent
from channels.voice.call.ports import ModelLink, SessionSettings


class ModelUnreachable(Exception):
    """No session with the model could be opened; the message says why, without keys."""


class RealtimeListener(Protocol):
    """Who is told what a connection to the model receives."""

    def event(self, event: ModelEvent) -> None: ...

    def lost(self) -> None: ...

    def audio_dropped(self) -> None:
        """A frame of the caller was left out, because the model's side does not keep up."""
        ...


class ConnectModel(Protocol):
    async def __call__(self, settings: SessionSettings, side: RealtimeListener) -> ModelLink:
        """Raises ModelUnreachable."""
        ...
