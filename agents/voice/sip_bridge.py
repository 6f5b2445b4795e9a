"""Calls that the model's own SIP connector takes: the audio goes past, the session is steered from here."""

from __future__ import annotations

from typing import Any

import structlog
from picows import WSError, ws_connect  # pyright: ignore[reportUnknownVariableType] - untyped keywords

from agents.voice.bridge import HANDSHAKE_WITHIN_S, ModelSocket, Realtime, Tap, tapped
from agents.voice.events import ModelEvent, StreamStarted, StreamStopped
from agents.voice.openai_realtime import RealtimeLink, session_of, sideband_url
from agents.voice.ports import ModelLink, SessionSettings
from agents.voice.runner import CallRunner, ModelSide, ModelUnreachable
from agents.voice.server.carriers import LineControlFailed
from agents.voice.server.sip_calls import SipCall, SipCalls, SipLine
from agents.voice.sockets import MAX_MODEL_MESSAGE
from flow_engine.errors import CorrectTheInput

log: Any = structlog.get_logger("flow_engine.voice")

DECLINED = 603


class SipConnection(SipLine):
    """One call's line, and the way to the session that goes with it."""

    def __init__(self, call: SipCall, calls: SipCalls, realtime: Realtime, tap: Tap | None) -> None:
        super().__init__(call.call_id, calls)
        self._call = call
        self._sip = calls
        self._realtime = realtime
        self._tap = tap
        self._is_accepted = False
        self._link: RealtimeLink | None = None
        self.runner: CallRunner | None = None

    @property
    def started(self) -> StreamStarted:
        return StreamStarted(self._call.call_id, None, self._call.parameters)

    def clear(self) -> None:
        if self._link is not None:
            self._link.clear_playback()

    def close(self) -> None:
        if self._is_accepted:
            super().close()

    async def decline_if_open(self) -> None:
        """For a call that ended before it was taken: otherwise it would ring on."""
        if not self._is_accepted:
            try:
                await self._sip.reject(self._call.call_id, DECLINED)
            except LineControlFailed as failed:
                log.warning("sip_reject_failed", reason=str(failed))

    async def connect(self, settings: SessionSettings, side: ModelSide) -> ModelLink:
        """Accept the call and join its session. Raises ModelUnreachable."""
        await self._accept(settings)
        socket = ModelSocket(_OnTheLine(side, self), self._tap)
        try:
            await ws_connect(
                lambda: socket,
                sideband_url(self._realtime.url, self._call.call_id),
                extra_headers=self._realtime.headers,
                websocket_handshake_timeout=HANDSHAKE_WITHIN_S,
                max_frame_size=MAX_MODEL_MESSAGE,
                max_redirects=0,
                enable_auto_ping=True,
            )
        except (OSError, WSError) as error:
            raise ModelUnreachable(f"{type(error).__name__}: {error}") from error
        self._link = RealtimeLink(tapped(socket.send, "model", self._tap), socket.close, carries_audio=False)
        return self._link

    async def move(self, target: str) -> bool:
        try:
            await self.transfer(target)
        except (LineControlFailed, CorrectTheInput) as failed:
            log.error("call_not_transferred", reason=str(failed))
            return False
        return True

    async def _accept(self, settings: SessionSettings) -> None:
        if self._is_accepted:
            return
        try:
            await self._sip.accept(
                self._call.call_id, {**session_of(settings, carries_audio=False), "model": settings.model}
            )
        except LineControlFailed as failed:
            raise ModelUnreachable(str(failed)) from failed
        self._is_accepted = True


class _OnTheLine:
    """A session that ends without being told to: its caller has hung up."""

    def __init__(self, side: ModelSide, connection: SipConnection) -> None:
        self._side = side
        self._connection = connection

    def event(self, event: ModelEvent) -> None:
        self._side.event(event)

    def lost(self) -> None:
        runner = self._connection.runner
        if runner is not None and runner.has_started:
            runner.call.line_event(StreamStopped())
        else:
            self._side.lost()
