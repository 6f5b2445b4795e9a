"""What the caller hears and has heard: the line's play-out and the transcript that follows from it."""

from collections.abc import Callable
from datetime import datetime

from channels.voice.call.events import AgentAudio
from channels.voice.call.playback_tracker import Cut, Interruption, PlaybackTracker
from channels.voice.call.ports import AudioFormat, Line, Turn
from channels.voice.call.transcript import Transcript
from channels.voice.wires.frames import duration_ms

MOST_WAITING_MS = 180_000.0


class AudioOutput:
    """One call's. `now` arguments are seconds of one monotonic clock.

    `line_plays` is false where the model's side plays and stops the audio itself (SIP): then it only says
    whether it is playing.
    """

    def __init__(self, line: Line, wall: Callable[[], datetime], *, line_plays: bool) -> None:
        self.line_plays = line_plays
        self._remote_since: float | None = None
        self.transcript = Transcript(wall)
        self._line = line
        self._tracker = PlaybackTracker()
        self._sounded: set[str] = set()
        self._unknown: set[str] = set()

    @property
    def remote_playing(self) -> bool:
        return self._remote_since is not None

    def remote(self, playing: bool, now: float) -> None:
        """Where the model's side plays: it begins to, or has played everything."""
        if not playing:
            self._remote_since = None
        elif self._remote_since is None:
            self._remote_since = now

    @property
    def is_drained(self) -> bool:
        """Everything that was sent has been heard or thrown away."""
        return self._tracker.is_drained and not self.remote_playing

    def play(self, audio: AgentAudio, audio_format: AudioFormat, now: float) -> bool:
        """Hands audio in base64 to the line. Returns False when so much is waiting on the line, 180 seconds,
        that no more should be sent."""
        if not self.line_plays:
            return True
        now_ms = now * 1000
        self._line.play(audio.payload)
        self._sounded.add(audio.item_id)
        audio_ms = duration_ms(audio.payload, audio_format)
        mark = self._tracker.add(audio.item_id, audio.content_index, audio_ms, now_ms)
        if mark is None:
            return True
        self._line.mark(mark)
        return self._tracker.waiting_ms(now_ms) <= MOST_WAITING_MS

    def item_ended(self, item_id: str) -> None:
        self._send(self._tracker.item_ended(item_id))

    def model_gone(self) -> None:
        """What is on the line is still played, but the next model knows nothing of its items, and no text of
        them comes any more."""
        for item_id in self.transcript.unheard():
            sent_ms = self._tracker.sent_ms(item_id) if self.line_plays else None
            self.transcript.broken_off(item_id, sent_ms)
        self._send(self._tracker.nothing_follows())
        self._unknown |= self._sounded

    def is_known(self, item_id: str) -> bool:
        """Whether the model that is there now has the item."""
        return item_id not in self._unknown

    def mark_rest(self) -> None:
        """See that the end of what was sent is noticed."""
        self._send(self._tracker.mark_rest())

    def mark_returned(self, name: str, now: float) -> bool:
        return self._tracker.mark_returned(name, now * 1000)

    def interrupt(self, now: float) -> Interruption:
        """Silence the line now; the transcript keeps what was heard."""
        interruption = self._interruption(now)
        if interruption.had_audio:
            self._line.clear()
        if interruption.audible is not None:
            self.transcript.cut(interruption.audible, now)
        for item_id in interruption.unheard:
            self.transcript.drop(item_id)
        return interruption

    def _interruption(self, now: float) -> Interruption:
        if self._remote_since is None:
            return self._tracker.interrupt(now * 1000)
        heard_ms, self._remote_since = int((now - self._remote_since) * 1000), None
        items = self.transcript.unheard()
        audible = Cut(items[0], 0, heard_ms, 0.0) if items else None
        return Interruption(audible, tuple(items[1:]), had_audio=True)

    def note_heard(self, now: float, *, speaking: bool) -> list[str]:
        """Mark in the transcript what has been heard. Returns items that never will be: nobody is `speaking`
        any more, and there was no audio of them."""
        never: list[str] = []
        for item_id in self.transcript.unheard():
            if item_id in self._sounded:
                if self._tracker.is_heard(item_id, now * 1000):
                    self.transcript.heard(item_id, now)
            elif not speaking and self.line_plays:
                self.transcript.drop(item_id)
                never.append(item_id)
            elif not speaking and not self.remote_playing:
                self.transcript.heard(item_id, now)
        return never

    def rest(self, now: float) -> list[Turn]:
        """The turns that were still waited for, when the call is over."""
        self.note_heard(now, speaking=False)
        interruption = self._interruption(now)
        if interruption.audible is not None:
            self.transcript.cut(interruption.audible, now)
        for item_id in self.transcript.unheard():
            self.transcript.drop(item_id)
        return self.transcript.rest()

    def _send(self, mark: str | None) -> None:
        if mark is not None:
            self._line.mark(mark)
