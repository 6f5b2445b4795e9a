"""What the model is told besides audio, the tools that it waits for, and when it is asked to speak (V12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from channels.voice.call.playback_tracker import Interruption
from channels.voice.call.ports import ModelLink, SessionSettings, Turn
from channels.voice.call.response_scheduler import ResponseScheduler
from channels.voice.call.state import OpenTools
from flow_engine.values import JsonValue

STOPPED = '{"error": "stopped: the task has changed"}'


class Dialogue:
    """One call's side of the conversation with its model. Without a model, texts wait for the next one.
    `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.model: ModelLink | None = None
        self.responses = ResponseScheduler()
        self.tools = OpenTools()
        self._clock = clock
        self._own_items: set[str] = set()
        self._waiting: list[tuple[str, str]] = []
        self._command: str | None = None

    def attach(self, model: ModelLink, settings: SessionSettings, history: Sequence[Turn] | None) -> None:
        """`history` is given to a model that takes the place of another one."""
        self.model = model
        model.configure(settings)
        if history is not None:
            model.add_history(history)
        texts, self._waiting = self._waiting, []
        for role, text in texts:
            self.add_text(role, text)

    def detach(self) -> None:
        """What the model was doing is due on the next one."""
        self.model = None
        self.responses.connection_lost()
        self.tools.model_gone()

    def add_text(self, role: str, text: str) -> None:
        if self.model is None:
            self._waiting.append((role, text))
        else:
            self._own(self.model.add_text("user" if role == "user" else "system", text))

    def is_own(self, item_id: str) -> bool:
        """Whether an item that the model reports is one that this side has sent. It has arrived then."""
        return self.responses.confirmed(item_id) or item_id in self._own_items

    def put_command(self, command: str | None) -> None:
        """To be given when no tool is left to be answered before."""
        self._command = command
        self._give_command()

    def tool_answered(self, call_id: str, name: str, output: JsonValue) -> None:
        """To be called once for a call that is running."""
        answer = orjson.dumps(output).decode()
        if self.tools.end(call_id) and self.model is not None:
            self._own(self.model.send_function_output(call_id, answer))
        else:
            self.add_text("system", f"The tool {name!r}, called before, has answered: {answer}")
        self._give_command()

    def tool_stopped(self, call_id: str) -> None:
        """To be called once for a call that is running: the model is not left waiting."""
        if self.tools.end(call_id) and self.model is not None:
            self._own(self.model.send_function_output(call_id, STOPPED))

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
        if self.model is not None and not self.tools.running and self.responses.may_ask(now):
            self.responses.asked(now)
            self.model.create_response()

    def _own(self, item_id: str) -> None:
        self._own_items.add(item_id)
        self.responses.sent(item_id)

    def _give_command(self) -> None:
        if self._command is not None and not self.tools.running:
            command, self._command = self._command, None
            self.add_text("user", command)  # as the prompts of the flow engine announce it
