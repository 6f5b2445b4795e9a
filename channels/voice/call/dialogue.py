"""What the model is sent besides audio, the tools that it waits for, and when it is asked to speak (V12).

Everything that the model was sent or has done is remembered in its order, so that a model that takes the
place of another one can be sent all of it: texts, the turns of both sides, function calls and their outputs.

A model speaks by itself after the caller's turn. Everything else, such as answers of tools, has to ask for a
response, and only one can be active: what is asked for too early is refused, and what is asked for twice is
said twice. So a wish for a response is kept until

1. no response is active or requested, and the caller is not speaking,
2. no tool is running whose answer the response should have: the last words of a call need none,
3. a turn of the caller that has just ended got its own response, which then grants the wish too, if
   everything that the wish was about had reached the model by then.

Two states say where the model and the caller are:

    response    idle       response.create is sent         requested
                requested  it is refused, or has failed    idle
                any        response.created                active
                active     response.done                   idle
    caller      any        speech_started                  speaking
                speaking   speech_stopped                  awaits a response
                awaiting   a response is active, requested quiet
    both        any        the connection is lost          idle, quiet
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import orjson

from channels.voice.call import ports
from channels.voice.call.events import Audio, FunctionCall, ModelError
from channels.voice.call.playback_tracker import Interruption
from flow_engine.values import JsonValue

TURN_TAKEN_WITHIN_S = 2.0
"""How long the model's own response to a turn is waited for."""

TURN_ANSWERED_WITHIN_S = 5.0
"""After that, the model is asked."""

ANSWERED_WITHIN_S = 15.0
"""A response that was asked for and has not begun by then: the model is stalled."""

AGAIN_AFTER_S = 1.0
"""Before the model is asked again for what it has refused, or failed at."""

MOST_FAILURES = 2
"""In a row. After that it is left to the caller's next turn, if the model has ever answered."""

ALREADY_ACTIVE = "conversation_already_has_active_response"

_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class _Response:
    """`since` is in seconds of the scheduler's clock; `response_id` is None unless it is active."""

    state: Literal["idle", "requested", "active"] = "idle"
    since: float = 0.0
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Caller:
    """Awaiting: a turn has ended, and the model has not begun to answer it."""

    state: Literal["quiet", "speaking", "awaiting"] = "quiet"
    since: float = 0.0


class ResponseScheduler:
    """`now` arguments are seconds of one monotonic clock."""

    __slots__ = (
        "_caller",
        "_failures",
        "_has_answered",
        "_not_before",
        "_response",
        "_unconfirmed",
        "instructed",
        "silenced",
        "wanted",
    )

    def __init__(self) -> None:
        self.wanted = False
        self.instructed = False
        """An instruction is there that no response has begun for."""
        self._response = _Response()
        self._caller = _Caller()
        self._not_before = 0.0
        self._failures = 0
        self._has_answered = False
        self._unconfirmed: set[str] = set()
        self.silenced: OrderedDict[str, None] = OrderedDict()
        """Responses of which nothing is to be heard any more, the last ones."""

    @property
    def active(self) -> str | None:
        """The id of the response that the model is giving."""
        return self._response.response_id

    @property
    def is_requested(self) -> bool:
        return self._response.state == "requested"

    @property
    def is_idle(self) -> bool:
        """No response is active or requested; one may be wanted."""
        return self._response.state == "idle"

    @property
    def caller_speaks(self) -> bool:
        return self._caller.state == "speaking"

    @property
    def is_quiet(self) -> bool:
        """Nobody speaks and nobody is about to."""
        return self.is_idle and not (self.wanted or self.caller_speaks)

    def sent(self, item_id: str) -> None:
        """A new item is on its way to the model."""
        self._unconfirmed.add(item_id)

    def confirmed(self, item_id: str) -> bool:
        """Whether the item was one that this side has sent."""
        known = item_id in self._unconfirmed
        self._unconfirmed.discard(item_id)
        return known

    def may_request(self, now: float) -> bool:
        if not self.wanted or not self.is_idle or self.caller_speaks or now < self._not_before:
            return False
        return self._caller.state == "quiet" or now - self._caller.since >= TURN_TAKEN_WITHIN_S

    def requested(self, now: float) -> None:
        """On its way, at `now` seconds, behind all items that were sent, so that it takes them into
        account."""
        self.wanted = False
        self._response = _Response("requested", now)
        self._answered()
        self._unconfirmed.clear()

    def refused(self, now: float) -> None:
        """Another response was active already: ask again when that one has ended, else after a second. It may
        also have been the model itself that wanted to answer a turn, and does not try again."""
        self._answered()
        self.wanted = True
        if self.active is None:
            self._response = _Response()
            self._not_before = now + AGAIN_AFTER_S

    def failed(self, now: float) -> None:
        """What was asked for, or began, failed by the model's fault: due again after a second, at most twice
        in a row."""
        self._failures += 1
        if self._failures <= MOST_FAILURES:
            if self.is_requested:
                self._response = _Response()
            self.wanted = True
            self._not_before = now + AGAIN_AFTER_S

    def error(self, error: ModelError, now: float) -> bool:
        """Whether anybody has to know of it: False where it only says that a response was active already."""
        if error.code == ALREADY_ACTIVE:
            self.refused(now)
            return False
        if self.is_requested and (error.event_id or "").startswith("response.create"):
            self.failed(now)
        return True

    def is_overdue(self, now: float) -> bool:
        return self.is_requested and now - self._response.since >= ANSWERED_WITHIN_S

    def is_turn_unanswered(self, now: float) -> bool:
        """The model lets a turn of the caller pass: 5 seconds after its end nothing has begun. False where a
        response is wanted anyway."""
        caller = self._caller
        late = caller.state == "awaiting" and now - caller.since >= TURN_ANSWERED_WITHIN_S
        return late and not self.wanted

    def speech_started(self, now: float) -> None:
        self._caller = _Caller("speaking", now)

    def turn_ended(self, now: float) -> None:
        self._caller = _Caller("awaiting", now)

    def started(self, response_id: str, now: float) -> None:
        self._response = _Response("active", now, response_id)
        self._answered()
        if not self._unconfirmed:
            self.wanted = False

    def ended(self, response_id: str) -> None:
        if self.active == response_id:
            self._response = _Response()

    def succeeded(self) -> None:
        self._failures, self._has_answered = 0, True

    @property
    def is_given_up(self) -> bool:
        """The model has failed at everything so far, or once more after it was left to the caller."""
        return self._failures > MOST_FAILURES + self._has_answered

    def silence(self, response_id: str) -> None:
        """Nothing of the response is to be heard from now on."""
        self.silenced[response_id] = None
        while len(self.silenced) > _REMEMBERED:
            self.silenced.popitem(last=False)

    def connection_lost(self) -> None:
        """What was being said or asked for is due again on the next connection."""
        if not self.is_idle or self._caller.state != "quiet":
            self.wanted = True
        self._response, self._caller = _Response(), _Caller()
        self._unconfirmed.clear()

    def _answered(self) -> None:
        if self._caller.state == "awaiting":
            self._caller = _Caller()


KEPT_WHILE_AWAY = 250
"""Frames of the caller kept while there is no model: 5 s of 20 ms each, the newest."""

STOPPED = '{"error": "stopped: the task has changed"}'


@dataclass(frozen=True, slots=True)
class _Spoken:
    """The place of a turn, whose text may come much later."""

    item_id: str


class Dialogue:
    """One call's side of the conversation with its model. Without a model, texts wait for the next one.
    `clock` gives monotonic seconds."""

    __slots__ = (
        "_clock",
        "_command",
        "_is_resumed",
        "_kept",
        "_own_items",
        "_past",
        "_tools_known",
        "_waiting",
        "model",
        "responses",
        "running",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self.model: ports.ModelLink | None = None
        self.responses = ResponseScheduler()
        self.running: set[str] = set()
        """Calls of tools that have not been answered."""
        self._tools_known: set[str] = set()
        self._clock = clock
        self._own_items: set[str] = set()
        self._past: list[ports.TextItem | ports.FunctionCallItem | ports.FunctionOutputItem | _Spoken] = []
        self._waiting: list[ports.TextItem] = []
        self._kept: deque[Audio] = deque(maxlen=KEPT_WHILE_AWAY)
        self._is_resumed = False
        """A model was there and is gone."""
        self._command: str | None = None

    def attach(
        self,
        model: ports.ModelLink,
        settings: ports.SessionSettings,
        turn_of: Callable[[str], ports.Turn | None],
    ) -> None:
        """A model that takes the place of another one is sent everything that was before. `turn_of` gives the
        turns by their items' ids."""
        self.model = model
        model.configure(settings)
        if self._is_resumed:
            turns = (turn_of(past.item_id) if isinstance(past, _Spoken) else past for past in self._past)
            history: list[ports.HistoryItem] = [item for item in turns if item is not None]
            model.add_history(history)
        texts, self._waiting = self._waiting, []
        for item in texts:
            self.add_text(item.role, item.text)
        for audio in self._kept if self._is_resumed else ():
            model.append_audio(audio)
        self._kept.clear()

    def keep_audio(self, audio: Audio) -> int:
        """Of the caller, for the model that takes the place of one that is gone. Returns how many frames that
        loses."""
        lost = len(self._kept) == KEPT_WHILE_AWAY
        self._kept.append(audio)
        return int(lost)

    def detach(self) -> None:
        """What the model was doing is due on the next one."""
        self.model, self._is_resumed = None, True
        self.responses.connection_lost()

    def add_text(self, role: Literal["user", "system"], text: str) -> None:
        item = ports.TextItem(role, text)
        if self.model is None:
            self._waiting.append(item)
        else:
            self._past.append(item)
            self._own(self.model.add_text(role, text))

    def is_own(self, item_id: str) -> bool:
        """Whether an item that the model reports is one that this side has sent. It has arrived then."""
        return self.responses.confirmed(item_id) or item_id in self._own_items

    def spoken(self, item_id: str) -> None:
        """An utterance is in the conversation from here on. To be called once for each."""
        self._past.append(_Spoken(item_id))

    def begin_tool(self, call: FunctionCall) -> bool:
        """False for a call that was asked for before. Its arguments stay the JSON text of the model."""
        if call.call_id in self._tools_known:
            return False
        self._tools_known.add(call.call_id)
        self.running.add(call.call_id)
        self._past.append(ports.FunctionCallItem(call.call_id, call.name, call.arguments))
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

    def respond_if_due(self, *, beside_tools: bool) -> None:
        """`beside_tools`: also while one of them runs."""
        now, is_held_up = self._clock(), bool(self.running) and not beside_tools
        if self.model is not None and not is_held_up and self.responses.may_request(now):
            self.responses.requested(now)
            self.model.create_response()

    def _answer(self, call_id: str, output: str) -> None:
        """Without a model the next one is sent it, among what was before."""
        self.running.discard(call_id)
        self._past.append(ports.FunctionOutputItem(call_id, output))
        if self.model is not None:
            self._own(self.model.send_function_output(call_id, output))

    def _own(self, item_id: str) -> None:
        self._own_items.add(item_id)
        self.responses.sent(item_id)

    def _give_command(self) -> None:
        if self._command is not None and not self.running:
            command, self._command = self._command, None
            self.add_text("user", command)  # as the prompts of the flow engine announce it
