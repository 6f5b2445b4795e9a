"""V2, V12: a call from its first event to its end, in virtual time."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from channels.voice.call.events import (
    AgentAudio,
    FunctionCall,
    InputTranscript,
    ItemAdded,
    MarkReturned,
    ModelError,
    ResponseEnded,
    ResponseStarted,
    SessionUpdated,
    StreamStarted,
    StreamStopped,
)
from channels.voice.call.ports import (
    AnsweredCall,
    CallControls,
    CallEnd,
    Caller,
    CallLifecycle,
    CallSeat,
    Ending,
    ModelUnreachable,
    NoLifecycle,
    RealtimeListener,
    Refused,
    SessionSettings,
)
from channels.voice.replay import run_in_virtual_time
from channels.voice.runner import CallPlan, CallRunner
from flow_engine.values import JsonValue
from tests.channels.voice.books import Book, Watcher
from tests.channels.voice.recording_doubles import RecordingLine, RecordingModel

FRAME = base64.b64encode(b"\xff" * 160)
CONFIRMED = SessionUpdated("g711_ulaw", "g711_ulaw")
STARTED = StreamStarted("MZ1", "CA1", {"callerPhone": "+390212345678"})


@dataclass
class Models:
    """Opens sessions: one per entry of `plan`, which says how each goes; the last one repeats."""

    plan: list[str] = field(default_factory=lambda: ["confirms"])
    sides: list[RealtimeListener] = field(default_factory=list)
    links: list[RecordingModel] = field(default_factory=list)

    async def __call__(self, settings: SessionSettings, side: RealtimeListener) -> RecordingModel:
        how = self.plan[min(len(self.sides), len(self.plan) - 1)]
        self.sides.append(side)
        if how == "refuses":
            raise ModelUnreachable("503")
        if how == "hangs":
            await asyncio.sleep(3600)
        link = RecordingModel()
        self.links.append(link)
        loop = asyncio.get_running_loop()
        if how == "closes":
            loop.call_later(0.1, side.lost)
        elif how == "is refused":
            error = ModelError(
                "invalid_value", "Unknown voice", "session.update:1", "session.audio.output.voice"
            )
            loop.call_later(0.1, side.event, error)
        elif how == "confirms and closes":
            loop.call_later(0.1, lambda: (side.event(CONFIRMED), side.lost()))
        elif how == "insists":
            loop.call_later(0.1, side.event, SessionUpdated("pcm16", "pcm16"))
        elif how != "never confirms":
            loop.call_later(0.1, side.event, CONFIRMED)
        return link


@dataclass
class Stage:
    book: Book = field(default_factory=Book)
    lifecycle: CallLifecycle = field(default_factory=NoLifecycle)
    models: Models = field(default_factory=Models)
    line: RecordingLine = field(default_factory=RecordingLine)
    watcher: Watcher = field(default_factory=Watcher)
    moved: list[str] = field(default_factory=list)
    moves_succeed: bool = True
    controls: CallControls | None = None
    callers: list[Caller] = field(default_factory=list)
    finished_at: float = 0.0

    def play(self, scene: Callable[[Stage, CallRunner], Awaitable[None]]) -> Stage:
        run_in_virtual_time(self._play(scene))
        return self

    async def _play(self, scene: Callable[[Stage, CallRunner], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()

        def open_call(caller: Caller, seat: CallSeat) -> AnsweredCall:
            self.callers.append(caller)
            self.controls = seat
            return AnsweredCall(self.book, self.lifecycle)

        async def transfer(target: str) -> bool:
            self.moved.append(target)
            return self.moves_succeed

        plan = CallPlan(
            connect=self.models,
            open_call=open_call,
            apology_settings=SessionSettings("Apologise."),
            clock=loop.time,
            wall=lambda: datetime(2026, 3, 1, tzinfo=UTC),
            metrics=self.watcher,
            max_duration_s=3 * 3600,
        )
        runner = CallRunner(plan, self.line, STARTED, transfer=transfer)
        running = asyncio.create_task(runner.run())
        talking = asyncio.create_task(self._frames(runner))
        await scene(self, runner)
        await asyncio.wait({running}, timeout=600)
        self.finished_at = loop.time()
        assert running.done()
        running.result()
        talking.cancel()
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task not in (asyncio.current_task(), talking)]
        assert left == []  # no task outlives its call

    async def _frames(self, runner: CallRunner) -> None:
        while True:
            await asyncio.sleep(1)
            runner.call.caller_audio(FRAME)

    def event(self, *events: object) -> None:
        for event in events:
            self.models.sides[-1].event(event)  # type: ignore[arg-type]


@dataclass
class Records(NoLifecycle):
    """A lifecycle that writes down what it was asked for, when it is done."""

    began_takes_s: float = 0.0
    done: list[str] = field(default_factory=list)

    async def refusal(self) -> Refused | None:
        self.done.append("refusal")
        return None

    async def began(self) -> None:
        await asyncio.sleep(self.began_takes_s)
        self.done.append("began")

    async def ended(self, ending: Ending) -> None:
        self.done.append(f"ended {ending.reason}")


async def hangs_up(stage: Stage, runner: CallRunner, after: float = 2.0) -> None:
    await asyncio.sleep(after)
    runner.call.line_event(StreamStopped())


def test_the_steps_of_a_call_come_in_their_order() -> None:  # V2
    stage = Stage().play(hangs_up)
    assert stage.book.asked == ["open", "started", "ended"]
    assert stage.callers[0].phone == "+390212345678"
    assert [told[0] for told in stage.models.links[0].said()] == [
        "configure",
        "add_text",
        "create_response",
        "close",
    ]
    assert stage.line.told == [("close",)]
    assert stage.book.ending is not None
    assert (stage.book.ending.reason, stage.watcher.ended) == ("caller_hung_up", ["caller_hung_up"])


def test_a_call_that_is_not_taken_runs_no_lifecycle() -> None:  # V2, V3
    stage = Stage(Book(opens=Refused())).play(lambda stage, runner: asyncio.sleep(1))
    assert (stage.book.asked, stage.models.links) == (["open", "closed"], [])
    assert stage.line.told == [("close",)]


def test_an_apology_is_spoken_before_the_line_closes() -> None:  # V2
    async def speaks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ResponseStarted("r1"), AgentAudio("r1", "a", 0, FRAME), ResponseEnded("r1", "completed"))
        assert stage.line.told[-1][0] == "mark"
        runner.call.line_event(MarkReturned(stage.line.marks[-1]))

    stage = Stage(Book(opens=Refused("We are closed."))).play(speaks)
    assert "We are closed." in str(stage.models.links[0].said("add_text"))
    assert stage.book.asked == ["open", "closed"]
    assert stage.watcher.ended == ["refused"]


@pytest.mark.parametrize("how", ["refuses", "hangs", "never confirms", "closes", "insists"])
def test_without_a_model_the_line_closes_within_3_seconds_and_the_lifecycle_runs(how: str) -> None:  # voice-9
    lifecycle = Records()
    stage = Stage(models=Models([how]), lifecycle=lifecycle).play(lambda stage, runner: asyncio.sleep(0))
    assert stage.finished_at <= 3
    assert (stage.book.asked, stage.watcher.ended) == (["open", "closed"], ["model_unreachable"])
    assert lifecycle.done == ["refusal", "began", "ended model_unreachable"]
    assert stage.line.told == [("close",)]


def test_a_refused_configuration_is_told_with_its_reason_and_waited_for_no_longer() -> None:  # voice-9
    with capture_logs() as logged:
        stage = Stage(models=Models(["is refused"])).play(lambda stage, runner: asyncio.sleep(0))
    assert stage.finished_at <= 0.5
    (unreachable,) = [entry for entry in logged if entry["event"] == "model_unreachable"]
    assert "invalid_value: Unknown voice" in unreachable["reason"]
    (error, _) = [entry for entry in logged if entry["event"] == "model_error"]
    assert (error["message"], error["param"]) == ("Unknown voice", "session.audio.output.voice")


def test_an_apology_that_no_model_can_speak_ends_the_call_as_unreachable() -> None:  # voice-9
    stage = Stage(Book(opens=Refused("Sorry.")), models=Models(["refuses"]))
    stage.lifecycle = lifecycle = Records()
    stage.play(lambda stage, runner: asyncio.sleep(0))
    assert stage.watcher.ended == ["model_unreachable"]
    assert lifecycle.done == ["refusal"]


def test_a_blocked_caller_whose_message_no_model_can_speak_is_refused_with_it() -> None:  # 20, V3
    @dataclass
    class Blocks(Records):
        async def refusal(self) -> Refused | None:
            await super().refusal()
            return Refused("Not you.")

    ends: list[CallEnd | None] = []

    async def notes(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(3)
        ends.append(runner.end)

    stage = Stage(models=Models(["refuses"]), lifecycle=Blocks()).play(notes)
    assert ends == [CallEnd("refused", "Not you.")]
    assert (stage.watcher.ended, stage.book.asked) == (["refused"], [])


def test_a_call_that_takes_too_long_to_open_is_one_without_a_model() -> None:  # 20, voice-9
    @dataclass
    class Hangs(Records):
        async def refusal(self) -> Refused | None:
            await asyncio.sleep(3600)
            return None

    stage = Stage(lifecycle=Hangs()).play(lambda stage, runner: asyncio.sleep(0))
    assert stage.watcher.ended == ["failed"]  # the carrier speaks then
    assert stage.finished_at == pytest.approx(30, abs=0.5)


def test_the_second_try_may_succeed() -> None:  # V12
    stage = Stage(models=Models(["refuses", "confirms"])).play(hangs_up)
    assert stage.book.asked == ["open", "started", "ended"]


def test_the_second_try_is_told_what_the_first_one_was() -> None:  # V12
    async def instructs(stage: Stage, runner: CallRunner) -> None:
        runner.call.instruct("Ask for the name.")
        await hangs_up(stage, runner)

    stage = Stage(models=Models(["closes", "confirms"])).play(instructs)
    assert "Ask for the name." in str(stage.models.links[1].told)


def test_a_session_that_closes_while_it_is_opened_is_opened_by_one_side_only() -> None:  # V12
    stage = Stage(models=Models(["closes", "confirms"])).play(hangs_up)
    assert len(stage.models.sides) == 2
    assert (stage.watcher.renewed, stage.watcher.ended) == (0, ["caller_hung_up"])


def test_a_machine_that_breaks_ends_its_call() -> None:
    async def breaks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        runner.call.tick = lambda: 1 / 0  # type: ignore[method-assign, assignment]

    stage = Stage().play(breaks)
    assert (stage.book.asked[-1], stage.watcher.ended) == ("ended", ["failed"])


def test_a_handler_that_breaks_ends_the_call_and_nothing_else() -> None:
    stage = Stage(Book(opens=ValueError("a bug"))).play(lambda stage, runner: asyncio.sleep(1))
    assert stage.watcher.ended == ["failed"]


def test_a_handler_that_something_else_cancels_ends_the_call_as_failed() -> None:  # 20
    class Cancelled(Book):
        async def open(self) -> SessionSettings | Refused:
            raise asyncio.CancelledError

    stage = Stage(Cancelled()).play(lambda stage, runner: asyncio.sleep(1))
    assert stage.watcher.ended == ["failed"]  # the carrier speaks then


def test_a_caller_who_hangs_up_while_the_model_is_being_reached_ends_it_there() -> None:  # V12
    stage = Stage(models=Models(["hangs"])).play(lambda stage, runner: hangs_up(stage, runner, 1.0))
    assert (stage.book.asked, stage.watcher.ended) == (["open", "closed"], ["caller_hung_up"])
    assert stage.finished_at < 2


def test_a_caller_who_hangs_up_while_the_model_is_being_reached_is_in_the_books() -> None:  # V5, V12
    lifecycle = Records()
    stage = Stage(models=Models(["hangs"]), lifecycle=lifecycle)
    stage.play(lambda stage, runner: hangs_up(stage, runner, 1.0))
    assert lifecycle.done == ["refusal", "began", "ended caller_hung_up"]


def test_a_lost_model_is_replaced_and_told_what_was_said() -> None:  # V12
    async def loses(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ItemAdded("u", "user"), InputTranscript("u", "A table"), ResponseStarted("r1"))
        stage.models.sides[0].lost()
        stage.models.sides[0].lost()
        await asyncio.sleep(2)
        stage.models.sides[0].event(ResponseStarted("ghost"))  # type: ignore[arg-type]
        await hangs_up(stage, runner)

    stage = Stage().play(loses)
    assert stage.book.asked == ["open", "started", "ended"]  # on_start is not repeated
    second = stage.models.links[1]
    assert [told[0] for told in second.said()] == ["configure", "add_history", "create_response", "close"]
    assert (stage.watcher.renewed, stage.watcher.ended) == (1, ["caller_hung_up"])


def test_a_model_that_stays_away_ends_the_call_once() -> None:  # V12
    async def loses(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.models.sides[0].lost()

    stage = Stage(models=Models(["confirms", "refuses"])).play(loses)
    assert len(stage.models.sides) == 6  # five tries
    assert (stage.book.asked[-1], stage.watcher.ended) == ("ended", ["model_lost"])


def test_a_model_that_refuses_for_some_seconds_is_waited_for() -> None:  # V12
    async def loses(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.models.sides[0].lost()
        await hangs_up(stage, runner, 9)

    stage = Stage(models=Models(["confirms", *["refuses"] * 4, "confirms"])).play(loses)
    assert (len(stage.models.links), stage.watcher.ended) == (2, ["caller_hung_up"])


@pytest.mark.parametrize("how", ["refuses", "hangs", "never confirms", "closes", "is refused"])
def test_a_model_that_stays_away_is_given_up_within_the_time_for_it(how: str) -> None:  # V12
    async def loses(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.models.sides[0].lost()

    stage = Stage(models=Models(["confirms", how])).play(loses)
    assert stage.watcher.ended == ["model_lost"]
    assert 1 + 7.5 <= stage.finished_at <= 1 + 10.5


def test_a_task_that_changes_while_there_is_no_model_is_the_next_one_s() -> None:  # V2, V12
    class Slow(Models):
        async def __call__(self, settings: SessionSettings, side: RealtimeListener) -> RecordingModel:
            await asyncio.sleep(1)
            return await super().__call__(settings, side)

    async def loses(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(3)
        stage.models.sides[0].lost()
        await asyncio.sleep(0.5)
        runner.call.switch_task(SessionSettings("Next."), "Go on.")
        await hangs_up(stage, runner)

    stage = Stage(models=Slow()).play(loses)
    assert stage.models.links[1].said("configure") == [("configure", SessionSettings("Next."))]


def test_a_model_that_goes_with_the_caller_is_not_replaced() -> None:  # V12, V14
    async def leaves(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        runner.call.line_event(StreamStopped())
        stage.models.sides[0].lost()

    stage = Stage().play(leaves)
    assert (stage.watcher.renewed, len(stage.models.sides)) == (0, 1)


@pytest.mark.parametrize("before", [[], ["confirms"]])
def test_a_session_that_closes_as_it_is_confirmed_is_no_session(before: list[str]) -> None:  # V12
    async def loses(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        if before:
            stage.models.sides[0].lost()
        await hangs_up(stage, runner, 5)

    stage = Stage(models=Models([*before, "confirms and closes", "confirms"])).play(loses)
    assert len(stage.models.sides) == len(before) + 2
    assert stage.watcher.ended == ["caller_hung_up"]


@pytest.mark.parametrize("rounds", range(6))
def test_a_session_that_closes_soon_after_it_was_renewed_is_renewed_again(rounds: int) -> None:  # V12
    async def loses(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.models.sides[0].lost()
        await asyncio.sleep(1)
        stage.event(CONFIRMED)
        for _ in range(rounds):  # of the event loop
            await asyncio.sleep(0)
        stage.models.sides[1].lost()
        await hangs_up(stage, runner, 5)

    stage = Stage(models=Models(["confirms", "never confirms", "confirms"])).play(loses)
    assert (len(stage.models.sides), stage.watcher.ended) == (3, ["caller_hung_up"])


@pytest.mark.parametrize("breaks_by", [ValueError("a bug"), asyncio.CancelledError()])
def test_a_renewal_that_breaks_ends_the_call(breaks_by: BaseException) -> None:  # V12
    class Breaks(Models):
        async def __call__(self, settings: SessionSettings, side: RealtimeListener) -> RecordingModel:
            if self.sides:
                raise breaks_by
            return await super().__call__(settings, side)

    async def loses(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.models.sides[0].lost()

    stage = Stage(models=Breaks()).play(loses)
    assert (stage.book.asked[-1], stage.watcher.ended) == ("ended", ["model_lost"])


def test_a_session_is_renewed_before_it_expires_and_only_when_nobody_speaks() -> None:  # V12
    async def talks_long(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ResponseStarted("r0"), ResponseEnded("r0", "completed"))
        await asyncio.sleep(54 * 60)
        stage.event(ResponseStarted("r1"), AgentAudio("r1", "a", 0, FRAME))
        for _ in range(12):
            await asyncio.sleep(10)
            stage.event(AgentAudio("r1", "a", 0, FRAME))
        assert len(stage.models.links) == 1
        stage.event(ResponseEnded("r1", "completed"))
        for mark in stage.line.marks:
            runner.call.line_event(MarkReturned(mark))
        await asyncio.sleep(1)
        assert len(stage.models.links) == 2
        assert stage.models.links[0].said()[-1] == ("close",)
        await hangs_up(stage, runner)

    stage = Stage().play(talks_long)
    assert stage.models.links[1].said("create_response") == []
    assert stage.watcher.ended == ["caller_hung_up"]


@pytest.mark.parametrize("is_lost", [False, True], ids=["serves on", "is lost meanwhile"])
def test_a_session_that_cannot_be_renewed_in_time_serves_on_and_is_renewed_later(  # V12
    is_lost: bool,
) -> None:
    async def scene(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ResponseStarted("r0"), ResponseEnded("r0", "completed"))
        await asyncio.sleep(55 * 60 + 7)
        assert (len(stage.models.sides), stage.watcher.renewed) == (6, 1)  # all tries have failed
        if is_lost:
            stage.models.sides[0].lost()
        else:
            runner.call.caller_audio(FRAME)
            assert stage.models.links[0].told[-1] == ("append_audio", FRAME)
            await asyncio.sleep(19)
        await asyncio.sleep(3)
        assert (len(stage.models.links), stage.watcher.renewed) == (2, 2)
        runner.call.line_event(StreamStopped())

    stage = Stage(models=Models(["confirms", *["refuses"] * 5, "confirms"])).play(scene)
    assert stage.watcher.ended == ["caller_hung_up"]


def test_a_session_that_is_lost_while_no_new_one_is_to_be_had_ends_the_call() -> None:  # V12
    async def scene(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ResponseStarted("r0"), ResponseEnded("r0", "completed"))
        await asyncio.sleep(55 * 60 - 0.7)
        assert stage.watcher.renewed == 1
        stage.models.sides[0].lost()
        await asyncio.sleep(1)

    stage = Stage(models=Models(["confirms", "refuses"])).play(scene)
    assert stage.watcher.ended == ["model_lost"]


def test_a_session_is_renewed_in_time_only_when_the_callers_words_are_written_down() -> None:  # voice-1, V12
    async def talks_long(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ResponseStarted("r0"), ResponseEnded("r0", "completed"))
        await asyncio.sleep(55 * 60 - 2)
        stage.event(ItemAdded("u1", "user"))
        await asyncio.sleep(3)
        assert len(stage.models.links) == 1
        stage.event(InputTranscript("u1", "two pizzas"))
        await asyncio.sleep(1)
        await hangs_up(stage, runner)

    _, renewed = Stage().play(talks_long).models.links
    [(_, history)] = renewed.said("add_history")
    assert [turn.text for turn in history] == ["Greet.", "two pizzas"]


def test_a_tool_that_breaks_has_an_answer_too() -> None:  # V6
    async def breaks(name: str) -> JsonValue:
        raise RuntimeError("a bug")

    async def asks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(FunctionCall("r1", "c1", "look_up", "{}"))
        await hangs_up(stage, runner)

    stage = Stage(Book(tool=breaks)).play(asks)
    assert stage.models.links[0].said("send_function_output") == [
        ("send_function_output", "c1", '{"error":"the tool failed"}')
    ]


def test_a_tool_has_all_the_time_that_a_config_may_give_it_and_no_more_than_300_s() -> (
    None
):  # V6, voice-smaller
    async def takes(name: str) -> JsonValue:
        await asyncio.sleep(float(name))
        return {"took": float(name)}

    async def asks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ResponseStarted("r1"), *(FunctionCall("r1", each, each, "{}") for each in ("119", "400")))
        stage.event(ResponseEnded("r1", "completed"))
        await hangs_up(stage, runner, 310)

    stage = Stage(Book(tool=takes)).play(asks)
    assert stage.models.links[0].said("send_function_output") == [
        ("send_function_output", "119", '{"took":119.0}'),
        ("send_function_output", "400", '{"error":"no answer within 300 s"}'),
    ]


def test_a_tool_that_something_else_cancels_has_an_answer_too() -> None:  # V6
    async def cancelled(name: str) -> JsonValue:
        raise asyncio.CancelledError

    async def asks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ResponseStarted("r1"), FunctionCall("r1", "c1", "look_up", "{}"))
        stage.event(ResponseEnded("r1", "completed"))
        await hangs_up(stage, runner)

    stage = Stage(Book(tool=cancelled)).play(asks)
    assert stage.models.links[0].said("send_function_output") == [
        ("send_function_output", "c1", '{"error":"the tool failed"}')
    ]
    assert stage.watcher.counts[0].tools_failed == 1


def test_a_tool_that_changes_the_scene_stops_the_others_and_not_itself() -> None:  # V2
    stage = Stage()
    slow_ended: list[str] = []

    async def works(name: str) -> JsonValue:
        if name == "slow":
            try:
                await asyncio.sleep(50)
            except asyncio.CancelledError:
                slow_ended.append("stopped")
                raise
        assert stage.controls is not None
        stage.controls.switch_task(SessionSettings("Next."), "Go on.")
        return {"result": True}

    async def asks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ResponseStarted("r0"), ResponseEnded("r0", "completed"))
        stage.event(FunctionCall("r1", "c1", "slow", "{}"))
        await asyncio.sleep(1)
        stage.event(FunctionCall("r1", "c2", "change_task", "{}"))
        await hangs_up(stage, runner)

    stage.book.tool = works
    stage.play(asks)
    assert slow_ended == ["stopped"]
    assert [told[1] for told in stage.models.links[0].said("send_function_output")] == ["c1", "c2"]
    assert stage.models.links[0].said("add_text")[-1] == ("add_text", "user", "Go on.")


def test_a_tool_under_way_is_waited_for_after_the_caller_has_hung_up() -> None:  # 21, voice-2
    done: list[float] = []

    async def works(name: str) -> JsonValue:
        await asyncio.sleep(5)
        done.append(asyncio.get_running_loop().time())
        return {"order": 7}

    async def asks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(FunctionCall("r1", "c1", "order", "{}"))
        await hangs_up(stage, runner)
        await asyncio.sleep(0.01)
        assert stage.line.told[-1] == ("close",)

    stage = Stage(Book(tool=works)).play(asks)
    assert done == [pytest.approx(6)]
    assert stage.book.asked[-1] == "ended"
    assert stage.watcher.counts[0].tools_answered == 1
    assert stage.book.ending is not None
    assert stage.book.ending.duration_s == pytest.approx(3)  # the call's, without what was waited for


def test_what_the_caller_said_last_is_waited_for() -> None:  # 21, voice-3
    async def talks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ItemAdded("u", "user"))
        runner.call.line_event(StreamStopped())
        await asyncio.sleep(0.8)
        assert stage.book.ending is None
        stage.event(InputTranscript("u", "Cancel my order"))

    stage = Stage().play(talks)
    assert stage.book.turns == ["Cancel my order"]
    assert stage.book.ending is not None
    assert [turn.text for turn in stage.book.ending.transcript] == ["Cancel my order"]
    assert stage.finished_at < 2


def test_words_that_nobody_writes_down_are_waited_for_three_seconds() -> None:  # 21, voice-3
    async def talks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ItemAdded("u", "user"))
        runner.call.line_event(StreamStopped())

    stage = Stage().play(talks)
    assert 3.9 <= stage.finished_at <= 4.2
    assert stage.book.turns == []


def test_a_slow_on_start_does_not_hold_up_the_greeting_but_the_tools() -> None:  # voice-smaller
    lifecycle = Records(began_takes_s=6.0)

    async def asks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(2)
        assert ("add_text", "user", "Greet.") in stage.models.links[0].told
        stage.event(FunctionCall("r1", "c1", "order", "{}"))
        await asyncio.sleep(1)
        assert stage.book.asked == ["open", "started"]
        await asyncio.sleep(4)
        assert stage.book.asked[-1] == "tool order"
        await hangs_up(stage, runner)

    Stage(lifecycle=lifecycle).play(asks)
    assert lifecycle.done == ["refusal", "began", "ended caller_hung_up"]


def test_the_end_waits_for_a_slow_on_start() -> None:  # voice-smaller
    lifecycle = Records(began_takes_s=6.0)
    Stage(lifecycle=lifecycle).play(hangs_up)
    assert lifecycle.done == ["refusal", "began", "ended caller_hung_up"]


def test_an_end_that_fails_at_the_handler_is_still_told_to_the_business() -> None:  # V5
    class Broken(Book):
        async def ended(self, ending: Ending) -> None:
            raise RuntimeError("a bug")

    lifecycle = Records()
    Stage(Broken(), lifecycle=lifecycle).play(hangs_up)
    assert lifecycle.done[-1] == "ended caller_hung_up"


def test_tools_that_still_run_ten_seconds_after_the_end_are_stopped() -> None:  # V12, voice-2
    async def works(name: str) -> JsonValue:
        await asyncio.sleep(50)
        return None

    async def asks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(FunctionCall("r1", "c1", "slow", "{}"))
        await hangs_up(stage, runner)

    stage = Stage(Book(tool=works)).play(asks)
    assert stage.finished_at < 15
    assert stage.watcher.counts[0].tools_stopped == 1


def test_every_turn_is_told_in_order_before_the_end_and_a_bug_in_one_loses_no_other() -> None:  # V11
    async def talks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        for number, text in enumerate(("one", "boom", "three")):
            stage.event(ItemAdded(f"u{number}", "user"), InputTranscript(f"u{number}", text))
        runner.call.line_event(StreamStopped())

    stage = Stage().play(talks)
    assert stage.book.turns == ["one", "boom", "three"]
    assert stage.book.ending is not None
    assert [turn.text for turn in stage.book.ending.transcript] == ["one", "boom", "three"]


def test_a_transfer_moves_the_line() -> None:  # V2
    async def moves(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ResponseStarted("r0"), ResponseEnded("r0", "completed"))
        runner.call.transfer("+390299999")

    stage = Stage().play(moves)
    assert (stage.moved, stage.watcher.ended) == (["+390299999"], ["transferred"])


def test_a_call_that_could_not_be_transferred_is_the_handlers_again() -> None:  # V2
    async def moves(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(ResponseStarted("r0"), ResponseEnded("r0", "completed"))
        runner.call.transfer("+390299999")
        await asyncio.sleep(1)
        assert stage.watcher.ended == []
        await hangs_up(stage, runner)

    stage = Stage(moves_succeed=False).play(moves)
    assert stage.book.asked == ["open", "started", "not transferred +390299999", "ended"]
    assert stage.watcher.ended == ["caller_hung_up"]


def test_a_program_that_ends_ends_its_calls_with_their_lifecycle() -> None:  # V12
    async def ends(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        runner.call.end("shut_down")

    stage = Stage().play(ends)
    assert (stage.book.asked[-1], stage.watcher.ended) == ("ended", ["shut_down"])
