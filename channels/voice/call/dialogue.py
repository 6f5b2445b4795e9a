"""What the model is sent besides audio, the tools that it waits for, and when it is asked to speak (V12).

Everything that the model was sent or has done is remembered in its order, so that a model that takes the
place of another one can be told all of it: texts, the turns of both sides, function calls and their outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import orjson

from channels.voice.call.events import FunctionCall
from channels.voice.call.playback_tracker import Interruption
from channels.voice.call.ports import (
    FunctionCallItem,
    FunctionOutputItem,
    HistoryItem,
    ModelLink,
    SessionSettings,
    TextItem,
    Turn,
)
from channels.voice.call.response_scheduler import ResponseScheduler
from channels.voice.call.state import OpenTools
from flow_engine.values import JsonValue

STOPPED = '{"error": "stopped: the task has changed"}'


@dataclass(frozen=True, slots=True)
class _Spoken:
    """The place of a turn, whose text may come much later."""

    item_id: str


class Dialogue:
    """One call's side of the conversation with its model. Without a model, texts wait for the next one.
    `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.model: ModelLink | None = None
        self.responses = ResponseScheduler()
        self.tools = OpenTools()
        self._clock = clock
        self._own_items: set[str] = set()
        self._spoken: set[str] = set()
        self._past: list[TextItem | FunctionCallItem | FunctionOutputItem | _Spoken] = []
        self._waiting: list[TextItem] = []
        self._command: str | None = None

    def attach(
        self, model: ModelLink, settings: SessionSettings, turn_of: Callable[[str], Turn | None] | None
    ) -> None:
        """`turn_of` gives the turns by their items' ids where the model takes the place of another one, which
        is told everything that was before."""
        self.model = model
        model.configure(settings)
        if turn_of is not None:
            turns = (turn_of(past.item_id) if isinstance(past, _Spoken) else past for past in self._past)
            history: list[HistoryItem] = [item for item in turns if item is not None]
            model.add_history(history)
        texts, self._waiting = self._waiting, []
        for item in texts:
            self.add_text(item.role, item.text)

    def detach(self) -> None:
        """What the model was doing is due on the next one."""
        self.model = None
        self.responses.connection_lost()

    def add_text(self, role: Literal["user", "system"], text: str) -> None:
        item = TextItem(role, text)
        if self.model is None:
            self._waiting.append(item)
        else:
            self._past.append(item)
            self._own(self.model.add_text(role, text))

    def is_own(self, item_id: str) -> bool:
        """Whether an item that the model reports is one that this side has sent. It has arrived then."""
        return self.responses.confirmed(item_id) or item_id in self._own_items

    def spoken(self, item_id: str) -> None:
        """An item of what was said is in the conversation from here on."""
        if item_id not in self._spoken:
            self._spoken.add(item_id)
            self._past.append(_Spoken(item_id))

    def begin_tool(self, call: FunctionCall) -> bool:
        """False for a call that was asked for before. Its arguments stay the JSON text of the model."""
        if not self.tools.begin(call.call_id):
            return False
        self._past.append(FunctionCallItem(call.call_id, call.name, call.arguments))
        return True

    def put_command(self, command: str | None) -> None:
        """To be given, as text, when no tool is left to be answered before; None for none."""
        self._command = command
        self._give_command()

    def tool_answered(self, call_id: str, output: JsonValue) -> None:
        """To be called once for a call that is running, with what the model gets as JSON."""
        self._answer(call_id, orjson.dumps(output).decode())
        self._give_command()

    def tool_stopped(self, call_id: str) -> None:
        """To be called once for a call that is running: the model is not left waiting."""
        self._answer(call_id, STOPPED)

    def silence(self, response_id: str) -> None:
        """Nothing of the response is to be heard from now on."""
        self.responses.silence(response_id)
        if self.model is not None:
            self.model.cancel(response_id)

    def interrupted(self, interruption: Interruption, is_known: Callable[[str], bool]) -> None:
        """Have the model know what was heard, of the items that are its own."""
        if self.model is None:
            return
        cut = interruption.audible
        if cut is not None and is_known(cut.item_id):
            self.model.truncate(cut.item_id, cut.content_index, cut.heard_ms)
        for item_id in filter(is_known, interruption.unheard):
            self.model.delete_item(item_id)

    def delete_item(self, item_id: str) -> None:
        if self.model is not None:
            self.model.delete_item(item_id)

    def respond_if_due(self) -> None:
        now = self._clock()
        if self.model is not None and not self.tools.running and self.responses.may_request(now):
            self.responses.requested(now)
            self.model.create_response()

    def _answer(self, call_id: str, output: str) -> None:
        """Without a model the next one is told, among what was before."""
        self.tools.running.discard(call_id)
        self._past.append(FunctionOutputItem(call_id, output))
        if self.model is not None:
            self._own(self.model.send_function_output(call_id, output))

    def _own(self, item_id: str) -> None:
        self._own_items.add(item_id)
        self.responses.sent(item_id)

    def _give_command(self) -> None:
        if self._command is not None and not self.tools.running:
            command, self._command = self._command, None
            self.add_text("user", command)  # as the prompts of the flow engine announce it
