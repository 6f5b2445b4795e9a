"""V12: whatever order things happen in, the machine of a call keeps its laws."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from channels.voice.call.audio_output import MOST_WAITING_MS
from channels.voice.call.events import (
    AgentAudio,
    AgentAudioEnded,
    DigitPressed,
    FunctionCall,
    InputTranscript,
    ItemAdded,
    MarkReturned,
    ModelError,
    OutputBufferState,
    OutputTranscript,
    ResponseEnded,
    ResponseStarted,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    StreamStopped,
    Unreadable,
)
from channels.voice.call.machine import Call
from channels.voice.call.ports import SessionSettings, Turn
from channels.voice.call.state import LEAVE_WITHIN_S, MARK_WITHIN_S
from tests.channels.voice.recording_doubles import RecordingHooks, RecordingLine, RecordingModel

FRAME_MS = 100
RESPONSES = st.sampled_from(["r1", "r2", "r3"])
ITEMS = st.sampled_from(["i1", "i2", "i3", "i4"])
CALLS = st.sampled_from(["c1", "c2", "c3", "c4", "c5", "c6"])
SOME_SETTINGS = st.builds(
    SessionSettings,
    instructions=st.just("Answer."),
    allow_interruptions=st.booleans(),
    silence_s=st.sampled_from([None, 3.0]),
)


def audio_of(response: str, item: str) -> bytes:
    """100 ms that say whose they are."""
    return base64.b64encode(f"{response},{item},".encode().ljust(8 * FRAME_MS, b"\xff"))


def owner(payload: object) -> tuple[str, str]:
    assert isinstance(payload, bytes)
    response, item, _ = base64.b64decode(payload).decode("latin-1").split(",", 2)
    return response, item


@dataclass
class Hooks(RecordingHooks):
    """Says of every tool that it was stopped, also of those that have answered or were never asked for."""

    stops: list[str] = field(default_factory=list)

    def stop_other_tools(self) -> tuple[str, ...]:
        return (*(asked.call_id for asked in self.tools), "unknown")


class Talk(RuleBasedStateMachine):
    @initialize(settings=SOME_SETTINGS, line_plays=st.booleans())
    def begin(self, settings: SessionSettings, line_plays: bool) -> None:
        self.now = 1000.0
        self.line = RecordingLine()
        self.hooks = Hooks()
        self.settings = settings
        self.line_plays = line_plays
        began = datetime(2026, 3, 1, tzinfo=UTC)
        self.call = Call(
            self.line,
            self.hooks,
            clock=lambda: self.now,
            wall=lambda: began + timedelta(seconds=self.now - 1000),
            max_duration_s=300,
            line_plays=line_plays,
        )
        self.models: list[RecordingModel] = []
        self.is_attached = False
        self.active: str | None = None
        self.silenced: set[str] = set()
        self.may_ask = True
        self.sent_ms: dict[str, int] = {}
        self.leaves_by: float | None = None
        self.heard_by = 0.0
        self.moves_done = 0
        self.asked_for: set[str] = set()
        self.seen_line = self.seen_model = 0
        self.attach()

    # What happens ----------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_attached)
    @rule()
    def attach(self) -> None:
        model = RecordingModel()
        self.models.append(model)
        self.seen_model, self.may_ask, self.is_attached = 0, True, True
        self.call.attach(model, self.settings)

    @precondition(lambda self: self.is_attached)
    @rule()
    def loses_the_model(self) -> None:
        self.is_attached, self.active = False, None
        self.call.detach()

    @rule(seconds=st.sampled_from([0.0, 0.02, 0.2, 0.5, 1.0, 2.0, 6.0, 16.0]), silent=st.booleans())
    def time_passes(self, seconds: float, silent: bool) -> None:
        for _ in range(max(1, int(seconds / 0.2))):
            self.now += min(seconds, 0.2)
            if not silent:
                self.call.caller_audio(b"/v8=")
            self.call.tick()

    @rule(response=RESPONSES)
    def response_begins(self, response: str) -> None:
        self.active, self.may_ask = response, True
        self.call.model_event(ResponseStarted(response))

    @rule(response=RESPONSES, status=st.sampled_from(["completed", "cancelled", "failed", "incomplete"]))
    def response_ends(self, response: str, status: str) -> None:
        if self.active == response:
            self.active = None
        self.call.model_event(ResponseEnded(response, status, "why"))  # type: ignore[arg-type]

    @rule(response=RESPONSES, item=ITEMS, frames=st.integers(1, 30))
    def agent_speaks(self, response: str, item: str, frames: int) -> None:
        for _ in range(frames):
            self.call.model_event(AgentAudio(response, item, 0, audio_of(response, item)))

    @rule(
        event=st.one_of(
            st.builds(AgentAudioEnded, ITEMS),
            st.builds(
                ItemAdded, st.one_of(ITEMS, st.just("own1")), st.sampled_from(["user", "assistant", None])
            ),
            st.builds(InputTranscript, ITEMS, st.sampled_from(["", "hello there"])),
            st.builds(OutputTranscript, ITEMS, st.sampled_from(["", "one two three four"])),
            st.just(SpeechStopped()),
            st.builds(OutputBufferState, st.booleans()),
            st.builds(DigitPressed, st.sampled_from(["1", "#", "", "12", "x"])),
            st.just(SessionUpdated(None, None)),
            st.just(Unreadable("x")),
        )
    )
    def model_says(self, event: object) -> None:
        if not self.line_plays or not isinstance(event, OutputBufferState):
            self.call.model_event(event)  # type: ignore[arg-type]
        if not self.line_plays and event == OutputBufferState(playing=True):
            self.heard_by = self.now + MOST_WAITING_MS / 1000

    @rule(
        code=st.sampled_from(["conversation_already_has_active_response", "server_error"]), of=st.booleans()
    )
    def model_errs(self, code: str, of: bool) -> None:
        self.may_ask = True
        self.call.model_event(ModelError(code, "why", "response.create:3" if of else None))

    @rule()
    def caller_speaks(self) -> None:
        before = len(self.line.told)
        self.call.model_event(SpeechStarted())
        if ("clear",) in self.line.told[before:] and self.active is not None:
            self.silenced.add(self.active)

    @rule(which=st.integers(0, 5))
    def mark_returns(self, which: int) -> None:
        marks = self.line.marks
        self.call.line_event(MarkReturned(marks[-1 - which % len(marks)] if marks else "none"))

    @rule(call_id=CALLS, response=RESPONSES)
    def tool_is_asked_for(self, call_id: str, response: str) -> None:
        self.asked_for.add(call_id)
        self.call.model_event(FunctionCall(response, call_id, "look_up", "{}"))

    @rule(call_id=CALLS, fails=st.booleans())
    def tool_answers(self, call_id: str, fails: bool) -> None:
        self.call.tool_finished(call_id, {"error": "no"} if fails else {"ok": True})

    @rule()
    def handler_instructs(self) -> None:
        self.call.instruct("Say something.")

    @rule(command=st.sampled_from([None, "Go on."]))
    def task_is_switched(self, command: str | None) -> None:
        before = len(self.line.told)
        self.call.switch_task(self.settings, command)
        if ("clear",) in self.line.told[before:] and self.active is not None:
            self.silenced.add(self.active)

    @rule()
    def prompt_changes(self) -> None:
        self.call.reconfigure(self.settings)

    @rule(how=st.sampled_from(["hang_up", "transfer", "say_last"]))
    def leaves(self, how: str) -> None:
        if self.leaves_by is None:
            self.leaves_by = self.now + 2 * LEAVE_WITHIN_S
        match how:
            case "hang_up":
                self.call.hang_up()
            case "transfer":
                self.call.transfer("+390212345")
            case _:
                self.call.say_last("Goodbye.")

    @precondition(lambda self: len(self.hooks.moves) > self.moves_done)
    @rule(done=st.booleans())
    def the_line_is_moved(self, done: bool) -> None:
        self.moves_done += 1
        self.call.transfer_ended(done)
        if not done:
            self.leaves_by = None  # the call goes on

    @precondition(lambda self: self.leaves_by is not None)
    @rule()
    def the_end_is_waited_for(self) -> None:
        self.time_passes(2 * LEAVE_WITHIN_S + 1, silent=False)

    @precondition(lambda self: len(self.models) > 2)
    @rule()
    def line_stops(self) -> None:
        self.call.line_event(StreamStopped())

    # The laws --------------------------------------------------------------------------------------

    @invariant()
    def ends_once_and_in_time(self) -> None:
        if not hasattr(self, "call"):
            return
        assert len(self.hooks.ended) <= 1
        if self.leaves_by is None:
            return
        if self.now > max(self.leaves_by, self.heard_by + MARK_WITHIN_S) + 0.5:
            assert self.hooks.ended or len(self.hooks.moves) > self.moves_done

    @invariant()
    def the_line_hears_nothing_that_was_silenced(self) -> None:
        if not hasattr(self, "call"):
            return
        for told in self.line.told[self.seen_line :]:
            if told[0] == "play":
                response, item = owner(told[1])
                assert response not in self.silenced
                assert self.line_plays
                self.heard_by = max(self.heard_by, self.now) + FRAME_MS / 1000
                self.sent_ms[item] = self.sent_ms.get(item, 0) + FRAME_MS
        self.seen_line = len(self.line.told)
        assert len(set(self.line.marks)) == len(self.line.marks)

    @invariant()
    def the_model_is_told_only_what_it_can_take(self) -> None:
        if not hasattr(self, "call"):
            return
        for told in self.models[-1].told[self.seen_model :]:
            if told[0] == "create_response":
                assert self.may_ask
                self.may_ask = False
            elif told[0] == "truncate":
                assert isinstance(told[3], int)
                assert self.line_plays
                assert 0 < told[3] <= self.sent_ms[str(told[1])]
        self.seen_model = len(self.models[-1].told)

    @invariant()
    def every_tool_is_answered_at_most_once(self) -> None:
        if not hasattr(self, "call"):
            return
        answered = [told[1] for model in self.models for told in model.said("send_function_output")]
        assert len(set(answered)) == len(answered)
        asked = [tool.call_id for tool in self.hooks.tools]
        assert len(set(asked)) == len(asked)
        assert set(answered) <= self.asked_for  # one of an old scene is answered without being run

    @invariant()
    def turns_are_given_out_once_and_say_something(self) -> None:
        if not hasattr(self, "call"):
            return
        assert all(isinstance(turn, Turn) and turn.text for turn in self.hooks.turns)
        assert tuple(self.hooks.turns) == self.call.transcript

    def teardown(self) -> None:
        if not hasattr(self, "call"):
            return
        self.call.end("shut_down")
        for _ in range(3):
            self.call.tick()
        self.call.close()
        assert len(self.hooks.ended) == 1
        assert tuple(self.hooks.turns) == self.call.transcript


TestTalk = Talk.TestCase
TestTalk.settings = hypothesis_settings(max_examples=80, stateful_step_count=40)
