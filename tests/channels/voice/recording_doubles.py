"""Doubles for everything around a call's machine: they write down what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from channels.voice.call.events import Audio, FunctionCall, ModelError
from channels.voice.call.ports import (
    CallerSilent,
    EndReason,
    HistoryItem,
    KeysPressed,
    MachineNotice,
    ModelStalled,
    SessionSettings,
    Turn,
)

Told = tuple[object, ...]


@dataclass(slots=True)
class RecordingLine:
    """Implements `Line`. `told` holds each method's name and arguments, oldest first."""

    told: list[Told] = field(default_factory=list[Told])

    def play(self, audio: Audio) -> None:
        self.told.append(("play", audio))

    def mark(self, name: str) -> None:
        self.told.append(("mark", name))

    def clear(self) -> None:
        self.told.append(("clear",))

    def close(self) -> None:
        self.told.append(("close",))

    @property
    def marks(self) -> list[str]:
        return [str(told[1]) for told in self.told if told[0] == "mark"]


@dataclass(slots=True)
class RecordingModel:
    """Implements `ModelLink`. New items are named `own1`, `own2`, …"""

    told: list[Told] = field(default_factory=list[Told])
    items: int = 0

    def append_audio(self, audio: Audio) -> None:
        self.told.append(("append_audio", audio))

    def configure(self, settings: SessionSettings) -> None:
        self.told.append(("configure", settings))

    def configure_again(self, refused: ModelError) -> None:
        self.told.append(("configure_again", refused))

    def add_text(self, role: Literal["user", "system"], text: str) -> str:
        return self._item("add_text", role, text)

    def add_history(self, items: Sequence[HistoryItem]) -> None:
        self.told.append(("add_history", tuple(items)))

    def send_function_output(self, call_id: str, output: str) -> str:
        return self._item("send_function_output", call_id, output)

    def create_response(self) -> None:
        self.told.append(("create_response",))

    def cancel(self, response_id: str) -> None:
        self.told.append(("cancel", response_id))

    def truncate(self, item_id: str, content_index: int, heard_ms: int) -> None:
        self.told.append(("truncate", item_id, content_index, heard_ms))

    def delete_item(self, item_id: str) -> None:
        self.told.append(("delete_item", item_id))

    def close(self) -> None:
        self.told.append(("close",))

    def _item(self, *told: object) -> str:
        self.items += 1
        self.told.append(told)
        return f"own{self.items}"

    def said(self, *methods: str) -> list[Told]:
        """What it was told through these methods; without names, all but audio."""
        return [told for told in self.told if (told[0] in methods if methods else told[0] != "append_audio")]


@dataclass(slots=True)
class RecordingHooks:
    """Implements `CallHooks`. Tools that were started are running until the test finishes them."""

    tools: list[FunctionCall] = field(default_factory=list[FunctionCall])
    calling: str | None = None
    """The id of the call that `stop_other_tools` spares."""
    turns: list[Turn] = field(default_factory=list[Turn])
    silences: int = 0
    pressed: list[str] = field(default_factory=list[str])
    stalls: int = 0
    errors: list[ModelError] = field(default_factory=list[ModelError])
    moves: list[str] = field(default_factory=list[str])
    ended: list[EndReason] = field(default_factory=list[EndReason])

    def start_tool(self, call: FunctionCall) -> None:
        self.tools.append(call)

    def stop_other_tools(self) -> tuple[str, ...]:
        return tuple(call.call_id for call in self.tools if call.call_id != self.calling)

    def notice(self, notice: MachineNotice) -> None:
        match notice:
            case Turn():
                self.turns.append(notice)
            case CallerSilent():
                self.silences += 1
            case KeysPressed():
                self.pressed.append(notice.text)
            case ModelStalled():
                self.stalls += 1
            case ModelError():
                self.errors.append(notice)

    def transfer(self, target: str) -> None:
        self.moves.append(target)

    def over(self, reason: EndReason) -> None:
        self.ended.append(reason)


@dataclass(slots=True)
class RecordingControls:
    """Implements `CallSeat`. `told` holds each method's name and arguments, oldest first; `settings` are
    the latest that the handler gave. A test appends to `turns` what is to be the transcript, and says by
    `awaits_transcript` that something is still being written down."""

    told: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    settings: SessionSettings | None = None
    turns: list[Turn] = field(default_factory=list[Turn])
    awaits_transcript: bool = False

    @property
    def transcript(self) -> tuple[Turn, ...]:
        return tuple(self.turns)

    @property
    def names(self) -> list[object]:
        """The methods' names alone."""
        return [told[0] for told in self.told]

    def reconfigure(self, settings: SessionSettings) -> None:
        self.settings = settings
        self.told.append(("reconfigure", settings))

    def switch_task(self, settings: SessionSettings, command: str | None) -> None:
        self.settings = settings
        self.told.append(("switch_task", settings, command))

    def instruct(self, text: str) -> None:
        self.told.append(("instruct", text))

    def hang_up(self) -> None:
        self.told.append(("hang_up",))

    def transfer(self, target: str) -> None:
        self.told.append(("transfer", target))
