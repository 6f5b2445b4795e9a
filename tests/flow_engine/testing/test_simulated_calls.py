"""`flow-engine flow simulate --channel voice`: personas that telephone the voice agent on a fake line."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from adapters.models.scripted import Fails, Says
from channels.voice.testing.sockets import eventually
from flow_engine.ports.dialogue import DialogueTurn
from flow_engine.ports.models import LanguageModel, ModelFailed, NoModel
from flow_engine.testing import simulation
from flow_engine.testing.bench import InstalledFlow, Stage
from service import simulated_calls
from service.scenarios import RunOptions, installed_flow
from tests.flow_engine.testing.scene import ORDER
from tests.flow_engine.testing.test_simulations import (
    PERSONA,
    PERSONAS,
    RECORDED,
    Actors,
    broken,
    calls,
    id_of,
    played,
    says,
    simulate,
    without_connection,
)

pytestmark = pytest.mark.anyio


@dataclass
class Staged:
    """An installed flow that remembers the conversations on it."""

    installed: InstalledFlow
    stages: list[Stage] = field(default_factory=list[Stage])

    @property
    def flow(self) -> Any:
        return self.installed.flow

    def stage(self, start: datetime | None = None) -> Stage:
        self.stages.append(self.installed.stage(start))
        return self.stages[-1]


@dataclass(frozen=True, slots=True)
class Called:
    run: simulation.Run
    verdict: simulation.RunVerdict
    turns: Sequence[DialogueTurn]
    phase: str | None

    def said(self, src: str) -> list[str]:
        return [turn.body for turn in self.turns if turn.src == src and turn.type == "message"]


async def call(
    persona: str = PERSONA,
    recorded: str | None = RECORDED,
    *,
    model: LanguageModel | None = None,
    flow: Path = ORDER,
) -> Called:
    who = simulation.read_file(simulation.Persona, persona.encode())
    run = None
    if recorded is not None:
        run = simulation.read_file(simulation.Recording, recorded.encode()).runs[0]
    async with installed_flow(flow, RunOptions()) as installed:
        staged = Staged(installed)
        done, verdict = await simulated_calls.call(who, staged, 1, run, model or NoModel())  # type: ignore[arg-type]
        [stage] = staged.stages
        loaded = await stage.transactor.memory.load(stage.conversation, with_turns=True)
    phase = None if loaded.session is None else loaded.session.states.phase
    return Called(done, verdict, loaded.turns, phase)


def recorded_turns(*turns: Mapping[str, object]) -> str:
    return orjson.dumps({"runs": [{"turns": turns}]}).decode()  # JSON is YAML


# --- recorded personas ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["order-present", "order-status", "order-pickup"])
async def test_a_recorded_persona_has_the_verdict_by_voice_that_it_has_in_text(name: str) -> None:
    persona, recorded = PERSONAS / f"{name}.yaml", PERSONAS / f"{name}.recorded.yaml"
    found = await call(persona.read_text("utf-8"), recorded.read_text("utf-8"))
    assert found.verdict.failures == ()
    run = simulation.read_file(simulation.Recording, recorded.read_bytes()).runs[0]
    assert [turn.user for turn in found.run.turns] == [turn.user for turn in run.turns]
    assert found.said("user") == [turn.user for turn in run.turns]  # as the engine was told


async def test_a_call_does_and_records_what_was_recorded(tmp_path: Path) -> None:
    name = "order-present"
    text = (PERSONAS / f"{name}.recorded.yaml").read_bytes()
    recording = simulation.read_file(simulation.Recording, text)
    found = await call((PERSONAS / f"{name}.yaml").read_text("utf-8"), text.decode())
    assert simulation.Recording(runs=(found.run,)) == recording


def test_a_flow_that_was_broken_on_purpose_fails_by_voice_too(tmp_path: Path) -> None:
    flow = broken(ORDER, tmp_path, without_connection(id_of(ORDER, "payment"), id_of(ORDER, "goodbye")))
    files = [f"{PERSONAS / 'order-present'}{end}" for end in (".yaml", ".recorded.yaml")]
    done = simulate(flow, "--persona", files[0], "--recorded", files[1], "--channel", "voice", "--json")
    assert done.exit_code == 1, done.output
    report = orjson.loads(done.stdout)
    assert (report["runs"], report["failed"], report["passK"]) == (1, 1, 0)
    [result] = report["results"]
    assert any("change_task: goodbye: refused with task_not_connected" in line for line in result["failures"])
    assert any("at the end, task: expected 'goodbye'" in line for line in result["failures"])


def test_several_calls_are_conversations_of_their_own(tmp_path: Path) -> None:
    done = played(tmp_path, "--runs", 2, "--channel", "voice", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    report = orjson.loads(done.stdout)
    assert (report["runs"], report["passed"], report["passK"]) == (2, 2, 1)


async def test_a_recorded_call_is_the_same_each_time() -> None:
    first, second = [await call() for _ in range(2)]
    assert [(t.src, t.body, t.ts) for t in first.turns] == [(t.src, t.body, t.ts) for t in second.turns]


async def test_the_verdict_is_that_of_the_moment_before_the_contact_ends() -> None:
    persona = PERSONA.replace("{task: colleague}", "{task: take order, conversation: active}")
    found = await call(persona, recorded_turns({"user": "Hello.", "agent": [{"change_task": "take order"}]}))
    assert found.verdict.failures == ()
    assert found.phase != "active"  # the caller has hung up since


async def test_a_marked_refusal_is_none_and_another_one_fails_the_call() -> None:
    refused = {"change_task": "delivery", "refused": "task_not_connected"}
    turn = {"user": "A person.", "agent": [refused, {"change_task": "colleague"}]}
    assert (await call(recorded=recorded_turns(turn))).verdict.passed
    turn["agent"] = [{"change_task": "delivery"}, {"change_task": "colleague"}]
    found = await call(recorded=recorded_turns(turn))
    assert found.verdict.failures[0].startswith("change_task: delivery: refused with task_not_connected")
    assert found.run.turns[0].agent[0].refused == "task_not_connected"


async def test_a_value_that_a_variable_cannot_hold_fails_the_call() -> None:
    wrong = [{"memory": {"deliveryMethod": "by balloon"}}, {"change_task": "colleague"}]
    found = await call(recorded=recorded_turns({"user": "A person.", "agent": wrong}))
    assert any("memory_invalid" in line for line in found.verdict.failures)


async def test_what_the_agent_does_unasked_belongs_to_the_turn_before() -> None:
    found = await call(
        recorded=recorded_turns(
            {"agent": [{"say": "Harbour Coffee, good morning."}]},
            {"user": "A person, please."},
            {"agent": [{"change_task": "colleague"}]},
        )
    )
    assert found.verdict.failures == ()
    assert found.verdict.turns == 1
    assert found.said("bot") == ["Harbour Coffee, good morning."]
    assert [turn.user for turn in found.run.turns] == [None, "A person, please."]


async def test_what_the_caller_says_is_read_by_the_rules_before_a_task_is_refused() -> None:  # F18, F23
    found = await call(
        PERSONA.replace("{task: colleague}", "{task: order status, memory: {orderNumber: 40917}}"),
        recorded_turns({"user": "My order number is 40917.", "agent": [{"change_task": "order status"}]}),
    )
    assert found.verdict.failures == ()


async def test_a_flow_that_is_on_no_telephone_takes_no_call(tmp_path: Path) -> None:
    def in_writing_only(version: dict[str, Any]) -> None:
        version["channels"] = [each for each in version["channels"] if each != "phone"]
        for task in version["tasks"]:
            task["channels"] = None

    found = await call(flow=broken(ORDER, tmp_path, in_writing_only))
    assert any("channel_not_supported" in line for line in found.verdict.failures)
    assert not found.verdict.passed


async def test_nothing_of_a_call_is_left_when_it_is_over() -> None:
    def threads() -> set[threading.Thread]:
        """Those of a loop's pool are kept for whoever needs one next."""
        return {each for each in threading.enumerate() if not each.name.startswith("asyncio_")}

    tasks, before = asyncio.all_tasks(), threads()
    await call()
    assert asyncio.all_tasks() == tasks
    await eventually(lambda: threads() <= before)


async def test_a_call_that_is_given_up_ends() -> None:
    long = recorded_turns(*[{"user": "What tea? " * 300, "agent": [{"say": LONG * 30}]}] * 60)
    with capture_logs() as logs:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await call(recorded=long)
        await eventually(lambda: any(log["event"] == "call_ended" for log in logs))
    [ended] = [log for log in logs if log["event"] == "call_ended"]
    assert ended["duration_ms"] < 30 * 60_000  # of an hour


# --- how somebody behaves on the telephone ----------------------------------------------------------

LONG = (
    "We have Darjeeling, Assam and Ceylon, and a mixture of all three that many of our customers like best."
)
CHAT = recorded_turns(
    {"user": "What tea do you have?", "agent": [{"say": LONG}]},
    {"user": "Stop. A person, please.", "agent": [{"change_task": "colleague"}]},
)


async def test_an_impatient_caller_speaks_into_the_agents_words() -> None:
    patient, impatient = (
        await call(recorded=CHAT),
        await call(PERSONA + "    phone: {interruptsAfterMs: 900}\n", CHAT),
    )
    assert patient.said("bot") == [LONG]
    [heard] = impatient.said("bot")
    assert len(heard) < len(LONG) / 2
    assert LONG.startswith(heard.rstrip("… —-"))
    assert impatient.verdict.passed
    assert impatient.verdict.turns == 2


async def test_a_caller_hangs_up_in_the_midst_of_an_answer() -> None:
    found = await call(PERSONA + "    phone: {hangsUpAfterTurns: 1}\n", CHAT)
    assert found.verdict.turns == 1
    assert found.verdict.failures == ("at the end, task: expected 'colleague', found 'welcome'",)
    assert found.phase != "active"
    assert len("".join(found.said("bot"))) < len(LONG) / 2


@pytest.mark.parametrize(
    ("phone", "pointer"),
    [
        ("{interruptsAfterMs: -1}", "/phone/interruptsAfterMs"),
        ("{hangsUpAfterTurns: 0}", "/phone/hangsUpAfterTurns"),
        ("{shouts: true}", "/phone/shouts"),
    ],
)
def test_a_behaviour_that_there_is_not_is_refused_at_its_place(
    tmp_path: Path, phone: str, pointer: str
) -> None:
    done = played(tmp_path, "--channel", "voice", persona=f"{PERSONA}    phone: {phone}\n")
    assert done.exit_code == 2
    assert pointer in done.stderr


# --- by a model -------------------------------------------------------------------------------------


async def test_a_model_plays_caller_and_agent_and_the_call_can_be_played_again(tmp_path: Path) -> None:
    actors = Actors(
        [says("A person, please."), says("Thanks, bye.", done=True)],
        [
            Says("Harbour Coffee."),
            calls("change_task", task="delivery"),
            calls("remember_values", values={"giftWrap": True}),
            Says("May I ask why?"),
            calls("change_task", task="colleague"),
            Says("One moment."),
        ],
    )
    found = await call(recorded=None, model=actors.model)
    shown = [(turn.user, [a.model_dump(exclude_none=True) for a in turn.agent]) for turn in found.run.turns]
    assert [user for user, _ in shown] == [None, "A person, please.", "Thanks, bye."]
    assert shown[0][1] == [{"say": "Harbour Coffee."}]
    refused = {"change_task": "delivery", "refused": "task_not_connected"}
    assert [shown[1][1][0], shown[1][1][2]] == [refused, {"say": "May I ask why?"}]
    assert {"change_task": "colleague"} in shown[2][1]
    assert found.verdict.opinion == simulation.Opinion(reached=False, why="Nobody answered.")
    assert not found.verdict.passed  # a model that is refused has not done well

    first, *_, last = actors.asked("simulated_agent")
    assert [tool.name for tool in first.tools] == ["change_task", "remember_values", "end_call"]
    assert "Find out whether the customer wants to order" in first.messages[0].content
    assert "Find out whether" not in last.messages[0].content

    recording = simulation.write_recording(simulation.Recording(runs=(found.run,)))
    again = await call(recorded=recording)
    assert again.verdict.failures == ()
    assert again.run == found.run


async def test_an_agent_that_begins_leaves_the_caller_all_turns_that_there_are() -> None:
    actors = Actors([says("Hello?")] * 100, [Says("Hi.")] * 101)
    found = await call(f"{PERSONA}    maxTurns: 100\n", recorded=None, model=actors.model)
    assert (found.verdict.turns, len(found.run.turns)) == (100, 101)
    recording = simulation.write_recording(simulation.Recording(runs=(found.run,)))
    assert simulation.read_file(simulation.Recording, recording.encode()).runs == (found.run,)


async def test_an_agent_that_hangs_up_ends_the_call() -> None:
    actors = Actors([says("Never mind."), says("And?")], [Says("Hello."), calls("end_call"), Says("Well?")])
    found = await call(recorded=None, model=actors.model)
    assert found.verdict.turns == 1
    assert found.phase != "active"


@pytest.mark.parametrize("tool", ["change_task", "remember_values", "open_door"])
async def test_a_call_of_a_tool_that_is_no_action_is_answered(tool: str) -> None:
    actors = Actors([says("Hello.", done=True)], [Says("Hello."), calls(tool, values=7), Says("Sorry.")])
    found = await call(recorded=None, model=actors.model)
    assert [action.say for turn in found.run.turns for action in turn.agent] == ["Hello.", "Sorry."]
    last = actors.asked("simulated_agent")[-1].messages[-1]
    assert last.role == "tool"
    assert "error" in orjson.loads(last.content)


async def test_an_agent_that_calls_and_calls_is_cut_short() -> None:
    actors = Actors(
        [says("Hello.", done=True)],
        [Says("Hi."), *[calls("remember_values", values={"giftWrap": True})] * 50],
    )
    found = await call(recorded=None, model=actors.model)
    assert len(actors.asked("simulated_agent")) == 1 + 8
    assert found.verdict.turns == 1


async def test_a_model_that_fails_ends_the_call_and_the_simulation() -> None:
    tasks = asyncio.all_tasks()
    with pytest.raises(ModelFailed, match="timeout"):
        await call(recorded=None, model=Actors([Fails("timeout")], [Says("Hello.")]).model)
    with pytest.raises(ModelFailed, match="timeout"):
        await call(recorded=None, model=Actors([says("Hello.")], [Fails("timeout")]).model)
    assert asyncio.all_tasks() == tasks
