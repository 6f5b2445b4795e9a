"""One response of a fake model: a reaction's steps as events of the wire, in their order and pace."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import orjson

from channels.voice.call.ports import AudioFormat
from channels.voice.testing import conversation, script, signals
from flow_engine.values import JsonValue

CancelReason = Literal["client_cancelled", "turn_detected"]

_MS_PER_AUDIO_TOKEN: Final = 50
_LETTERS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a model is: audio in chunks, `speed` times as fast as it plays.

    `late_ms` of audio still come after a cancel, as from a model that learns of it late. `transcription_ms`
    is what the caller's words take to be written down.
    """

    chunk_ms: int = 200
    speed: float = 20.0
    late_ms: int = 0
    transcription_ms: int = 20


class ResponseContext(Protocol):
    """What a response needs of its session."""

    @property
    def output_format(self) -> AudioFormat: ...

    @property
    def plays_itself(self) -> bool: ...

    def emit(self, kind: str, **fields: JsonValue) -> None: ...

    def new_item(self, kind: Literal["message", "function_call"]) -> tuple[int, conversation.Item]:
        """The item at the end of the conversation, with the number that its audio carries."""
        ...

    def item_added(self, item: conversation.Item) -> None: ...

    def item_done(self, item: conversation.Item) -> None: ...

    def play(self, response_id: str, ms: int) -> None:
        """Where the model's side plays the audio itself."""
        ...


@dataclass(slots=True)
class FakeResponse:
    """Audio goes out in chunks of milliseconds. `over` is called when the last event was sent, of a response
    that failed too."""

    stage: ResponseContext
    response_id: str
    reaction: script.Reaction
    pace: Pace
    over: Callable[[], None]
    output: list[conversation.Item] = field(default_factory=list[conversation.Item])
    _cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    _reason: CancelReason = "client_cancelled"

    def cancel(self, reason: CancelReason) -> None:
        self._reason = reason
        self._cancelled.set()

    async def run(self) -> None:
        failed: script.Fail | None = None
        await self._pass(self.reaction.think_ms / 1000)
        for index, step in enumerate(self.reaction.steps):
            if self._cancelled.is_set():
                break
            if isinstance(step, script.Fail):
                failed = step
                break
            if isinstance(step, script.Say):
                await self._say(step, index)
            else:
                await self._use(step, index)
        # Over first: what the last event makes the other side do may be the next response.
        self.over()
        response: dict[str, JsonValue] = {"status": "completed", "status_details": None}
        if self._cancelled.is_set():
            details: dict[str, JsonValue] = {"type": "cancelled", "reason": self._reason}
            response = {"status": "cancelled", "status_details": details}
        elif failed is not None and failed.status == "incomplete":
            details = {"type": "incomplete", "reason": failed.code}
            response = {"status": "incomplete", "status_details": details}
        elif failed is not None:
            error = {"type": "server_error", "code": failed.code, "message": failed.message}
            response = {"status": "failed", "status_details": {"type": "failed", "error": {**error}}}
        output: list[JsonValue] = [item.wire() for item in self.output]
        # Of the kind that a model bills, counted roughly.
        audio = sum(item.audio_ms for item in self.output) // _MS_PER_AUDIO_TOKEN
        words = sum(len(item.text) for item in self.output) // _LETTERS_PER_TOKEN
        self.stage.emit(
            "response.done",
            response={
                "object": "realtime.response",
                "id": self.response_id,
                **response,
                "output": output,
                "usage": {
                    "input_tokens": 0,
                    "output_tokens": audio + words,
                    "total_tokens": audio + words,
                    "output_token_details": {"audio_tokens": audio, "text_tokens": words},
                },
            },
        )

    async def _say(self, step: script.Say, index: int) -> None:
        number, item = self.stage.new_item("message")
        self._begin(item, index)
        place: dict[str, JsonValue] = {
            "response_id": self.response_id,
            "item_id": item.item_id,
            "output_index": index,
            "content_index": 0,
        }
        audio = {"type": "audio", "transcript": ""}
        self.stage.emit("response.content_part.added", part={**audio}, **place)
        lasts_ms = step.lasts_ms
        self.stage.emit("response.output_audio_transcript.delta", delta=step.text, **place)
        while item.audio_ms < lasts_ms:
            if self._cancelled.is_set():
                lasts_ms = min(lasts_ms, item.audio_ms + self.pace.late_ms)
                await self._speak(number, item, lasts_ms, place, is_late=True)
                break
            await self._speak(number, item, min(lasts_ms, item.audio_ms + self.pace.chunk_ms), place)
        item.text = step.text
        item.status = "incomplete" if self._cancelled.is_set() else "completed"
        self.stage.emit("response.output_audio.done", **place)
        self.stage.emit("response.output_audio_transcript.done", transcript=item.text, **place)
        self.stage.emit("response.content_part.done", part={**audio, "transcript": item.text}, **place)
        self._finish(item, index)

    async def _speak(
        self,
        number: int,
        item: conversation.Item,
        until_ms: int,
        place: dict[str, JsonValue],
        *,
        is_late: bool = False,
    ) -> None:
        """Audio of the item up to a position, chunk by chunk."""
        while item.audio_ms < until_ms:
            ms = min(self.pace.chunk_ms, until_ms - item.audio_ms)
            raw = signals.agent_audio(number, item.audio_ms, ms, self.stage.output_format)
            item.audio_ms += ms
            if self.stage.plays_itself:
                self.stage.play(self.response_id, ms)
            else:
                self.stage.emit("response.output_audio.delta", delta=base64.b64encode(raw).decode(), **place)
            seconds = ms / 1000 / self.pace.speed
            await (asyncio.sleep(seconds) if is_late else self._pass(seconds))

    async def _use(self, step: script.UseTool, index: int) -> None:
        _, item = self.stage.new_item("function_call")
        item.name, item.call_id = step.tool, f"call_{item.item_id.removeprefix('item_')}"
        self._begin(item, index)
        written = step.arguments
        item.text = written if isinstance(written, str) else orjson.dumps(written).decode()
        place: dict[str, JsonValue] = {
            "response_id": self.response_id,
            "item_id": item.item_id,
            "output_index": index,
            "call_id": item.call_id,
        }
        self.stage.emit("response.function_call_arguments.delta", delta=item.text, **place)
        await self._pass(0)
        item.status = "incomplete" if self._cancelled.is_set() else "completed"
        self.stage.emit("response.function_call_arguments.done", name=item.name, arguments=item.text, **place)
        self._finish(item, index)

    def _begin(self, item: conversation.Item, index: int) -> None:
        item.status = "in_progress"
        self.output.append(item)
        self.stage.emit(
            "response.output_item.added",
            response_id=self.response_id,
            output_index=index,
            item=item.wire(),
        )
        self.stage.item_added(item)

    def _finish(self, item: conversation.Item, index: int) -> None:
        self.stage.item_done(item)
        self.stage.emit(
            "response.output_item.done", response_id=self.response_id, output_index=index, item=item.wire()
        )

    async def _pass(self, seconds: float) -> None:
        """Let time pass, not beyond a cancel."""
        try:
            async with asyncio.timeout(seconds):
                await self._cancelled.wait()
        except TimeoutError:
            pass
