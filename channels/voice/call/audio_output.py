"""What the caller hears and has heard: the line's play-out, and the transcript that follows from it (V11).

Text comes late and out of order: the caller's after it was understood, the agent's before it was heard. An
item takes its place when the model adds it, and is given out as a turn when its text is known, when it has
been heard, and when everything before it has been given out. A text that never comes is waited for only so
long.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from channels.voice.call.events import AgentAudio
from channels.voice.call.playback_tracker import Cut, Interruption, PlaybackTracker
from channels.voice.call.ports import AudioFormat, Line, Turn
from channels.voice.wires.frames import duration_ms

TEXT_WITHIN_S = 5.0
MS_PER_LETTER = 65.0
"""About what speech takes, where nobody says how long an item is."""


@dataclass(slots=True)
class _Entry:
    item_id: str
    role: Literal["user", "assistant"]
    at: datetime
    waits_since: float
    text: str | None = None
    heard: bool = False
    cut: Cut | None = None
    pieces: str = ""
    is_broken_off: bool = False

    def turn(self) -> Turn | None:
        text = (self.pieces if self.text is None else self.text).strip()
        if self.cut is not None:
            text = heard_part(text, self.cut.heard_ms / (self.cut.sent_ms or _ms_of(text)))
        interrupted = self.is_broken_off or self.cut is not None
        return Turn(self.role, text, self.at, interrupted=interrupted) if text else None


class Transcript:
    """The turns of one call. `now` arguments are seconds of one monotonic clock. `spoken` is called with the
    id of each item as it takes its place."""

    def __init__(self, wall: Callable[[], datetime], spoken: Callable[[str], None]) -> None:
        self._wall = wall
        self._spoken = spoken
        self._entries: deque[_Entry] = deque()
        self._known: dict[str, _Entry] = {}
        self._dropped: set[str] = set()
        self._turns: list[Turn] = []
        self._given_out: dict[str, Turn] = {}

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(self._turns)

    @property
    def awaits_transcript(self) -> bool:
        """Something that the caller said has not been given out yet."""
        return any(entry.role == "user" for entry in self._entries)

    @property
    def awaits_text(self) -> bool:
        """Something that the caller said has no text yet."""
        return any(entry.role == "user" and entry.text is None for entry in self._entries)

    def turn_of(self, item_id: str) -> Turn | None:
        """The turn of an item: as it was given out, or as far as it is known now. None where nothing of it
        was heard or understood."""
        if (entry := self._known.get(item_id)) is not None:
            return entry.turn()
        return self._given_out.get(item_id)

    def added(self, item_id: str, role: Literal["user", "assistant"], now: float) -> None:
        if item_id not in self._known and item_id not in self._dropped:
            entry = _Entry(item_id, role, self._wall(), now, heard=role == "user")
            self._entries.append(entry)
            self._known[item_id] = entry
            self._spoken(item_id)

    def text(self, item_id: str, role: Literal["user", "assistant"], text: str, now: float) -> None:
        self.added(item_id, role, now)
        if (entry := self._known.get(item_id)) is not None:
            entry.text = text

    def piece(self, item_id: str, text: str) -> None:
        """A part of the text of an item that the agent is speaking."""
        if (entry := self._known.get(item_id)) is not None:
            entry.pieces += text

    def broken_off(self, item_id: str, sent_ms: float | None) -> None:
        """Nothing more of an item comes, `sent_ms` milliseconds of its audio did; None where that is unknown.
        Its text is what was spoken until then."""
        entry = self._known.get(item_id)
        if entry is not None and entry.text is None:
            share = 1.0 if sent_ms is None else sent_ms / _ms_of(entry.pieces.strip())
            entry.text, entry.is_broken_off = heard_part(entry.pieces.strip(), share), True

    def heard(self, item_id: str, now: float) -> None:
        """The item has been played to its end."""
        if (entry := self._known.get(item_id)) is not None:
            entry.heard, entry.waits_since = True, now

    def cut(self, cut: Cut, now: float) -> None:
        """Only so much of the item was heard."""
        if (entry := self._known.get(cut.item_id)) is not None:
            entry.cut, entry.heard, entry.waits_since = cut, True, now

    def drop(self, item_id: str) -> None:
        """Nothing of the item was heard."""
        self._dropped.add(item_id)
        if (entry := self._known.pop(item_id, None)) is not None:
            self._entries.remove(entry)

    def unheard(self) -> list[str]:
        """Items of the agent whose playing has not been confirmed."""
        return [entry.item_id for entry in self._entries if not entry.heard]

    def ready(self, now: float) -> list[Turn]:
        """The turns that can be given out now, each once. A text that does not come within 5 seconds is not
        waited for."""
        turns: list[Turn] = []
        while self._entries:
            entry = self._entries[0]
            is_late = entry.heard and now - entry.waits_since >= TEXT_WITHIN_S
            if not (entry.heard and entry.text is not None) and not is_late:
                break
            turns += self._give_out()
        return turns

    def rest(self) -> list[Turn]:
        """What is left when the call is over: nothing is waited for any more."""
        turns: list[Turn] = []
        while self._entries:
            turns += self._give_out()
        return turns

    def _give_out(self) -> list[Turn]:
        entry = self._entries.popleft()
        del self._known[entry.item_id]
        self._dropped.add(entry.item_id)
        turn = entry.turn()
        if turn is None:
            return []
        self._turns.append(turn)
        self._given_out[entry.item_id] = turn
        return [turn]


def _ms_of(text: str) -> float:
    """About how long a text takes to be spoken, at least 1."""
    return max(1, len(text)) * MS_PER_LETTER


def heard_part(text: str, share: float) -> str:
    """About the first `share` (0 to 1) of the characters, to the end of a word, with an ellipsis for the
    rest."""
    if share >= 1:
        return text
    end = int(len(text) * max(0.0, share))
    if end == 0:
        return ""
    in_a_word = not any(character.isspace() for character in text[end - 1 : end + 1])
    if in_a_word:
        following = text.find(" ", end)
        end = len(text) if following < 0 else following
    return text if end >= len(text) else f"{text[:end].rstrip()} …"


MOST_WAITING_MS = 180_000.0


class AudioOutput:
    """One call's. `now` arguments are seconds of one monotonic clock.

    `line_plays` is false where the model's side plays and stops the audio itself (SIP): then it only says
    whether it is playing.
    """

    __slots__ = ("_line", "_remote_since", "_tracker", "_unknown", "audio_format", "line_plays", "transcript")

    def __init__(
        self, line: Line, wall: Callable[[], datetime], spoken: Callable[[str], None], *, line_plays: bool
    ) -> None:
        self.line_plays = line_plays
        self.audio_format: AudioFormat | None = None
        """Of what is played; None before a model is there, and when the call is over: nothing is played."""
        self._remote_since: float | None = None
        self.transcript = Transcript(wall, spoken)
        self._line = line
        self._tracker = PlaybackTracker()
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

    @property
    def heard_by(self) -> float:
        """When all that was sent has been heard, by the clock, in seconds. What the model's side plays is
        taken to last 180 seconds."""
        if self._remote_since is not None:
            return self._remote_since + MOST_WAITING_MS / 1000
        return self._tracker.plays_until_ms / 1000

    def play(self, audio: AgentAudio, now: float) -> bool:
        """Hands audio in base64 to the line. Returns False when so much is waiting on the line, 180 seconds,
        that no more should be sent."""
        if not self.line_plays or self.audio_format is None:
            return True
        payload = audio.payload
        self._line.play(payload)
        audio_ms = duration_ms(payload, self.audio_format)
        mark = self._tracker.add(audio.item_id, audio.content_index, audio_ms, now * 1000)
        if mark is None:
            return True
        self._line.mark(mark)
        return self._tracker.waiting_ms(now * 1000) <= MOST_WAITING_MS

    def item_ended(self, item_id: str) -> None:
        self._send(self._tracker.item_ended(item_id))

    def model_gone(self) -> None:
        """What is on the line is still played, but the next model knows nothing of its items, and no text of
        them comes any more."""
        for item_id in self.transcript.unheard():
            sent_ms = self._tracker.sent_ms(item_id) if self.line_plays else None
            self.transcript.broken_off(item_id, sent_ms)
        self._send(self._tracker.nothing_follows())
        self._unknown |= self._tracker.sounded

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
            if item_id in self._tracker.sounded:
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
