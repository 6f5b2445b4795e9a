"""A call's controls that write down what a handler does with them."""

from __future__ import annotations

from dataclasses import dataclass, field

from channels.voice.call.ports import SessionSettings, Turn


@dataclass(slots=True)
class RecordingControls:
    """Implements `CallControls`. `told` holds each method's name and arguments, oldest first; `settings` are
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
