"""Calls that the model's SIP connector takes: the audio goes past, the session is steered from here (V12).

What differs from a line of our own:

1. The call waits with the model's server until it is accepted, which is done when the handler has said who
   is to speak. One that is not taken is declined; otherwise it would ring on.
2. The session is the call's, not the connection's: after a loss the same session is joined again, which has
   kept what was said.
3. The session ends when the caller hangs up. Its connection is closed with a close frame then; one that ends
   without is a connection that broke.
4. Whether an accept has arrived is not known when its answer has not: whatever may have been answered is hung
   up at the end.
"""

from collections.abc import Sequence
from typing import Any

import structlog

from channels.voice.bridge import ModelSocket, Realtime, open_socket
from channels.voice.call import ports
from channels.voice.call.events import ModelEvent, StreamStarted, StreamStopped
from channels.voice.carriers.call_control import LineControlFailed, is_transferred
from channels.voice.carriers.sip.calls import SipCall, SipCalls, SipLine
from channels.voice.recording import Recorder
from channels.voice.runner import CallRunner
from channels.voice.wires import openai_realtime

log: Any = structlog.get_logger("flow_engine.voice")

DECLINED = 603


class SipConnection(SipLine):
    """One call's line, and the way to the session that goes with it. `runner` is set before it runs."""

    runner: CallRunner

    def __init__(self, call: SipCall, calls: SipCalls, realtime: Realtime, recorder: Recorder | None) -> None:
        super().__init__(call.call_id, calls)
        self._call = call
        self._sip = calls
        self._realtime = realtime
        self._recorder = recorder
        self._was_accepting = False
        self._is_accepted = False
        self._link: openai_realtime.RealtimeLink | None = None

    @property
    def started(self) -> StreamStarted:
        return StreamStarted(self._call.call_id, None, self._call.parameters)

    def clear(self) -> None:
        if self._link is not None:
            self._link.clear_playback()

    def close(self) -> None:
        if self._was_accepting:
            super().close()

    async def ended(self) -> None:
        """Returns when the model's server has been sent the end of the call."""
        await self.left()
        if not self._is_accepted:
            try:
                await self._sip.reject(self._call.call_id, DECLINED)
            except LineControlFailed as failed:
                log.warning("sip_reject_failed", reason=str(failed))

    async def connect(self, settings: ports.SessionSettings, side: ports.RealtimeListener) -> ports.ModelLink:
        """Accept the call and join its session. Raises ModelUnreachable."""
        if not self._is_accepted:
            may_be_accepted, self._was_accepting = self._was_accepting, True
            wire = {**openai_realtime.session_of(settings, carries_audio=False), "model": settings.model}
            try:
                await self._sip.accept(self._call.call_id, wire)
            except LineControlFailed as failed:
                if not may_be_accepted:
                    raise ports.ModelUnreachable(str(failed)) from failed
                log.warning("sip_accept_failed", reason=str(failed))
            else:
                self._is_accepted = True
        session = _Session(side, self)
        socket = session.socket = ModelSocket(session, self._recorder)
        url = openai_realtime.realtime_url(self._realtime.url, "call_id", self._call.call_id)
        await open_socket(socket, url, self._realtime.headers)
        self._is_accepted = True
        self._link = _SipLink(session, socket)
        return self._link

    async def refer(self, target: str) -> bool:
        return await is_transferred(self.transfer(target), self.runner.log)


class _Session:
    """One connection to the call's session: whoever ends it, and why, is told apart here."""

    socket: ModelSocket

    def __init__(self, side: ports.RealtimeListener, connection: SipConnection) -> None:
        self._side = side
        self._connection = connection
        self.was_left = False

    def event(self, event: ModelEvent) -> None:
        self._side.event(event)

    def lost(self) -> None:
        if self.socket.said_goodbye and not self.was_left:
            self._connection.runner.call.line_event(StreamStopped())
        self._side.lost()

    def audio_dropped(self) -> None:
        self._side.audio_dropped()


class _SipLink(openai_realtime.RealtimeLink):
    def __init__(self, session: _Session, socket: ModelSocket) -> None:
        super().__init__(socket.send, socket.close, carries_audio=False)
        self._session_of_call = session

    def add_history(self, items: Sequence[ports.HistoryItem]) -> None:
        """The session has kept it."""

    def close(self) -> None:
        self._session_of_call.was_left = True
        super().close()
