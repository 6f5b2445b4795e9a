"""V2, V12: a call from its first event to its end, in virtual time."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from channels.voice.call.events import (
    AgentAudio,
    FunctionCall,
    InputTranscript,
    ItemAdded,
    MarkReturned,
    ResponseEnded,
    ResponseStarted,
    SessionUpdated,
    StreamStarted,
    StreamStopped,
)
from channels.voice.call.ports import CallControls, Caller, Refused, SessionSettings
from channels.voice.runner import CallPlan, CallRunner
from channels.voice.testing.recording import RecordingLine, RecordingModel
from channels.voice.virtual_time import run_in_virtual_time
from channels.voice.wires.model_side import ModelUnreachable, RealtimeListener
from flow_engine.values import JsonValue
from tests.channels.voice.books import Book, Watcher

FRAME = base64.b64encode(b"\xff" * 160)
CONFIRMED = SessionUpdated("g711_ulaw", "g711_ulaw", "sage")
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
        elif how == "insists":
            loop.call_later(0.1, side.event, SessionUpdated("pcm16", "pcm16", None))
        elif how != "never confirms":
            loop.call_later(0.1, side.event, CONFIRMED)
        return link


@dataclass
class Stage:
    book: Book = field(default_factory=Book)
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

        def open_handler(caller: Caller, controls: CallControls) -> Book:
            self.callers.append(caller)
            self.controls = controls
            return self.book

        async def transfer(target: str) -> bool:
            self.moved.append(target)
            return self.moves_succeed

        plan = CallPlan(
            connect=self.models,
            open_handler=open_handler,
            apology_settings=SessionSettings("Apologise."),
            clock=loop.time,
            wall=lambda: datetime(2026, 3, 1, tzinfo=UTC),
            watching=self.watcher,
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
def test_without_a_model_the_line_closes_within_15_seconds_and_no_lifecycle_runs(how: str) -> None:  # V12
    stage = Stage(models=Models([how])).play(lambda stage, runner: asyncio.sleep(0))
    assert stage.finished_at <= 15
    assert (stage.book.asked, stage.watcher.ended) == (["open", "closed"], ["failed"])
    assert stage.line.told == [("close",)]


def test_the_second_try_may_succeed() -> None:  # V12
    stage = Stage(models=Models(["refuses", "confirms"])).play(hangs_up)
    assert stage.book.asked == ["open", "started", "ended"]


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


def test_a_caller_who_hangs_up_while_the_model_is_being_reached_ends_it_there() -> None:  # V12
    stage = Stage(models=Models(["hangs"])).play(lambda stage, runner: hangs_up(stage, runner, 1.0))
    assert (stage.book.asked, stage.watcher.ended) == (["open", "closed"], ["caller_hung_up"])
    assert stage.finished_at < 2


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
    assert len(stage.models.sides) == 3  # two tries
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


def test_a_tool_that_breaks_has_an_answer_too() -> None:  # V6
    async def breaks(name: str) -> JsonValue:
        raise RuntimeError("a bug")

    async def asks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(FunctionCall("r1", "i", "c1", "look_up", "{}"))
        await hangs_up(stage, runner)

    stage = Stage(Book(tool=breaks)).play(asks)
    assert stage.models.links[0].said("send_function_output") == [
        ("send_function_output", "c1", '{"error":"the tool failed"}')
    ]


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
        stage.event(FunctionCall("r1", "i", "c1", "slow", "{}"))
        await asyncio.sleep(1)
        stage.event(FunctionCall("r1", "j", "c2", "change_task", "{}"))
        await hangs_up(stage, runner)

    stage.book.tool = works
    stage.play(asks)
    assert slow_ended == ["stopped"]
    assert [told[1] for told in stage.models.links[0].said("send_function_output")] == ["c1", "c2"]
    assert stage.models.links[0].said("add_text")[-1] == ("add_text", "user", "Go on.")


def test_tools_that_run_at_the_end_are_stopped() -> None:  # V12
    async def works(name: str) -> JsonValue:
        await asyncio.sleep(50)
        return None

    async def asks(stage: Stage, runner: CallRunner) -> None:
        await asyncio.sleep(1)
        stage.event(FunctionCall("r1", "i", "c1", "slow", "{}"))
        await hangs_up(stage, runner)

    assert Stage(Book(tool=works)).play(asks).finished_at < 5


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


def test_a_call_that_could_not_be_moved_is_the_playbooks_again() -> None:  # V2
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
