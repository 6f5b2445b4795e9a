"""MiningResult along: what the miner takes, what it leaves alone, and what it tells (F18, F33, F37, F39)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from adapters import extraction
from flow_engine.listening.conclusions import RuleSummariser
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.extraction import ExtractionRequest, Extractor, ExtractsNothing
from flow_engine.ports.jobs import Job, TryJobAgain
from flow_engine.ports.models import LLMAnswer, LLMRequest, Message, ModelEvent, ModelFailed
from flow_engine.ports.outbound import OutboundReply
from flow_engine.ports.telemetry import Unobserved
from flow_engine.runtime.platform import Platform
from flow_engine.use_cases.background import BackgroundDependencies, BackgroundWork
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.rollouts import Rollouts
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor
from flow_engine.use_cases.versions_in_use import VersionsInUse
from flow_engine.values import JsonValue
from memory.schedule import RedisJobSchedule
from system_prompts.loader import load_system_prompts
from tests.api.harness import BASE_URL, HANDLER, Scene, clinic, entry, multi_contact, open_scene
from tests.api.test_migrations import migrate, publish_next
from tests.flow_engine.documents.samples import JsonObject

pytestmark = pytest.mark.anyio
CONVERSATION = ConversationRef("default", "conv-1")
MINE = Job("mine", CONVERSATION)

Answers = Callable[[LLMRequest], object]


@dataclass
class Model:
    """Answers what it is told to, and remembers what it was asked. An exception is raised."""

    answers: Answers
    calls: list[LLMRequest] = field(default_factory=list)

    async def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
        self.calls.append(request)
        answer: Any = self.answers(request)
        if isinstance(answer, Exception):
            raise answer
        text = answer if isinstance(answer, str) else ""
        yield LLMAnswer(Message("assistant", text), "scripted", 1, 1, answer)


class Rules:
    """Finds what it is told to find."""

    def __init__(self, found: Mapping[str, JsonValue]) -> None:
        self.found = found
        self.requests: list[ExtractionRequest] = []

    def extract(self, request: ExtractionRequest) -> Mapping[str, JsonValue]:
        self.requests.append(request)
        return self.found


def rollouts_of(scene: Scene) -> Rollouts:
    flow_service = FlowService(
        flows=scene.flows.flows, versions=scene.flows.versions, clock=scene.clock, new_id=lambda: "unused"
    )
    memory, schedule = scene.memory, RedisJobSchedule(scene.memory.driver).schedule
    return Rollouts(
        *(flow_service, memory.outcomes, scene.clock, memory.conversations, memory.listing), schedule
    )


def dependencies_of(scene: Scene) -> ConversationDependencies:
    """What use cases beside the service's own work with."""
    prompts = load_system_prompts()
    flow_service = FlowService(
        flows=scene.flows.flows, versions=scene.flows.versions, clock=scene.clock, new_id=lambda: "unused"
    )
    return ConversationDependencies(
        memory=scene.memory.conversations,
        versions=VersionsInUse(flow_service, scene.memory.definitions),
        platform=Platform(prompts, lambda: BASE_URL, "markdown"),
        clock=scene.clock,
        summariser=RuleSummariser(prompts),
        outbound=scene.outbound,
    )


def working_on(scene: Scene, model: Model | None = None, rules: Extractor | None = None) -> BackgroundWork:
    background = BackgroundDependencies(
        extractor=rules or ExtractsNothing(),
        model=model or Model(lambda call: ModelFailed("not_configured", "none")),
        has_model=model is not None,
        observer=Unobserved(),
        rollouts=rollouts_of(scene),
    )
    return BackgroundWork(Transactor(dependencies_of(scene)), background)


def says(values: Mapping[str, object], *checkpoints: str) -> Model:
    reached = [{"id": c, "reason": "said so"} for c in checkpoints]
    return Model(lambda call: {"values": values, "checkpoints": reached})


@asynccontextmanager
async def talking(document: JsonObject | None = None, **answers: Any) -> AsyncIterator[Scene]:
    async with open_scene(document or clinic(), **answers) as scene:
        await scene.started()
        yield scene


async def dump(scene: Scene) -> dict[str, Any]:
    reply = (await scene.http.get("/v1/memory/conv-1")).json()
    return {variable["varId"]: variable for variable in reply["vars"]}


async def jobs(scene: Scene) -> list[str]:
    return [name.decode() for name in await scene.memory.driver.client.zrange("{flow-engine}:jobs", 0, -1)]


class TestTaking:
    async def test_what_the_model_finds_is_remembered_as_mined(self) -> None:  # F37
        async with talking() as scene:
            await scene.say("m1", "I want an ECG")
            await working_on(scene, says({"var_string": "ECG"})).mine(MINE)
            mined = (await dump(scene))["var_string"]
        assert (mined["value"], mined["updatedBy"], mined["contactId"]) == ("ECG", "convMiner", "call-1")

    async def test_values_that_do_not_fit_are_dropped_and_the_others_stay(self) -> None:  # F37
        async with talking() as scene:
            await scene.say("m1", "An ECG for three")
            model = says({"var_string": "ECG", "var_number": "abc", "nobody": 1, "var_date": "soon"})
            await working_on(scene, model).mine(MINE)
            values = await dump(scene)
            state = (await scene.memory.conversations.load(CONVERSATION)).mining
        assert values["var_string"]["value"] == "ECG"
        assert values["var_number"]["value"] is None
        assert state.dropped["variable_unknown"] == 1
        assert sum(state.dropped.values()) == 3

    @pytest.mark.parametrize("answer", [None, [], "no", 7, {"values": []}, {"values": None}, {}])
    async def test_an_answer_of_any_other_shape_changes_nothing(self, answer: object) -> None:  # F37
        async with talking() as scene:
            await scene.say("m1", "An ECG")
            await working_on(scene, Model(lambda call: answer)).mine(MINE)
            assert all(v["value"] is None for v in (await dump(scene)).values())

    @pytest.mark.parametrize(
        ("ts", "timezone"),
        [
            ("0002-01-01T00:00:00Z", "Pacific/Niue"),
            ("9998-12-31T23:59:59Z", "Pacific/Kiritimati"),
            ("9998-12-31T23:59:59-12:00", "Pacific/Kiritimati"),
        ],
    )
    async def test_the_ends_of_the_calendar_poison_nothing(self, ts: str, timezone: str) -> None:
        # A9, contract 17
        async with open_scene(clinic()) as scene:
            await scene.started(tenant={"timezone": timezone})
            taken = await scene.say("m1", "In ten days, the day after tomorrow", ts=ts)
            assert taken.status_code in (200, 422)
            await working_on(scene, says({"var_string": "ECG"}), extraction).mine(MINE)
            await scene.say("m2", "An echo")
            await working_on(scene, says({"var_string": "echo"}), extraction).mine(MINE)
            assert (await dump(scene))["var_string"]["value"] == "echo"

    async def test_the_flows_own_prompt_stands_behind_the_list_of_variables(self) -> None:  # weakness i
        document = clinic()
        document["aiHelpers"] = [{"name": "convMiner", "prompt": "Names are those of horses."}]
        async with talking(document) as scene:
            await scene.say("m1", "I want an ECG")
            model = says({})
            await working_on(scene, model).mine(MINE)
            system = "\n".join(message.content for message in model.calls[0].messages)
        lines = system.splitlines()
        heading = next(n for n, line in enumerate(lines) if line.endswith("variables:"))
        assert lines[heading + 1].startswith("- ")
        assert "Names are those of horses." in lines[heading + 2 :]

    async def test_a_tools_value_is_neither_asked_for_nor_overwritten(self) -> None:  # F18
        async with talking() as scene:
            await scene.written(entry("var_string", "MRI"))
            await scene.say("m1", "An ECG")
            model = says({"var_string": "ECG"})
            await working_on(scene, model).mine(MINE)
            schema: Any = model.calls[0].output_schema
            assert "var_string" not in str(schema["properties"]["values"])
            assert (await dump(scene))["var_string"]["value"] == "MRI"

    async def test_a_tool_that_writes_while_the_model_thinks_wins(self) -> None:  # F18
        async with talking() as scene:
            await scene.say("m1", "An ECG")
            work = working_on(scene, Model(lambda call: {"values": {"var_string": "ECG"}}))
            original = work._read  # the moment between the request and the commit

            async def slow(*args: Any) -> Any:
                result = await original(*args)
                await scene.written(entry("var_string", "MRI"))
                return result

            work._read = slow  # type: ignore[method-assign]
            await work.mine(MINE)
            assert (await dump(scene))["var_string"]["value"] == "MRI"

    async def test_a_correction_replaces_what_was_mined_and_keeps_it_as_superseded(self) -> None:  # F18
        async with talking() as scene:
            await scene.say("m1", "An ECG")
            await working_on(scene, says({"var_string": "ECG"})).mine(MINE)
            await scene.say("m2", "No, an MRI")
            await working_on(scene, says({"var_string": "MRI"})).mine(MINE)
            state = (await scene.memory.conversations.load(CONVERSATION)).mining
            assert (await dump(scene))["var_string"]["value"] == "MRI"
        origin = state.provenance["var_string"]
        assert (origin.source, origin.message_id, origin.superseded) == ("model", "m2", "ECG")

    async def test_custom_variables_are_never_asked_for(self) -> None:  # F18
        async with talking() as scene:
            await scene.say("m1", "An ECG")
            model = says({})
            await working_on(scene, model).mine(MINE)
        assert "var_custom" not in model.calls[0].messages[0].content

    async def test_rules_go_first_and_the_model_is_asked_for_the_rest(self) -> None:  # F38
        async with talking() as scene:
            await scene.say("m1", "three")
            model, rules = says({"var_string": "ECG"}), Rules({"var_number": 3})
            await working_on(scene, model, rules).mine(MINE)
            values = await dump(scene)
        assert (values["var_number"]["value"], values["var_string"]["value"]) == (3, "ECG")
        assert "var_number" not in str(model.calls[0].output_schema)

    async def test_without_a_model_the_rules_work_alone(self) -> None:  # F38
        async with talking() as scene:
            await scene.say("b1", "How many?", src="bot")
            await scene.say("m1", "three")
            rules = Rules({"var_number": 3})
            await working_on(scene, rules=rules).mine(MINE)
            assert (await dump(scene))["var_number"]["value"] == 3
            assert (await scene.prompt())["memoryFresh"] is True
        assert (rules.requests[0].utterance, rules.requests[0].previous_bot_turn) == ("three", "How many?")

    async def test_a_burst_is_read_turn_by_turn_and_what_was_said_last_counts(self) -> None:  # F37, F38
        class Numbers(Rules):
            def extract(self, request: ExtractionRequest) -> Mapping[str, JsonValue]:
                self.requests.append(request)
                return {"var_number": int(request.utterance)} if request.utterance.isdigit() else {}

        async with talking() as scene:
            await scene.say("m0", "7")
            await working_on(scene, rules=Numbers({})).mine(MINE)
            await scene.say("b1", "How many?", src="bot")
            for message_id, text in (("m1", "2"), ("m2", "3"), ("m3", "thanks")):
                await scene.say(message_id, text)
            rules = Numbers({})
            await working_on(scene, rules=rules).mine(MINE)
            assert (await dump(scene))["var_number"]["value"] == 3
            state = (await scene.memory.conversations.load(CONVERSATION)).mining
        assert [(r.utterance, r.previous_bot_turn) for r in rules.requests] == [
            ("2", "How many?"),
            ("3", "How many?"),
            ("thanks", "How many?"),
        ]
        assert state.provenance["var_number"].message_id == "m2"
        assert state.mined_through == "call-1/m3"


class TestOnceAndAgain:
    async def test_a_turn_is_read_once(self) -> None:  # F41
        async with talking() as scene:
            await scene.say("m1", "An ECG")
            model = says({"var_string": "ECG"})
            for _ in range(3):
                await working_on(scene, model).mine(MINE)
        assert len(model.calls) == 1

    async def test_a_failed_reading_is_tried_again_and_meanwhile_said(self) -> None:  # F31, F37
        async with talking() as scene:
            await scene.say("m1", "three and an ECG")
            failing = Model(lambda call: ModelFailed("timeout", "slow"))
            with pytest.raises(TryJobAgain):
                await working_on(scene, failing, Rules({"var_number": 3})).mine(MINE)
            prompt = await scene.prompt()
            assert prompt["memoryFresh"] is False
            assert (await dump(scene))["var_number"]["value"] == 3
            await working_on(scene, says({"var_string": "ECG"})).mine(MINE)
            assert (await scene.prompt())["memoryFresh"] is True

    async def test_a_reading_that_a_later_one_overtook_changes_nothing(self) -> None:  # F18, F41
        async with talking() as scene:
            await scene.say("m1", "An ECG")
            work = working_on(scene, says({"var_string": "ECG"}))
            original = work._read  # its worker is slow, and another one has taken the job over

            async def slow(*args: Any) -> Any:
                result = await original(*args)
                await scene.say("m2", "No, an MRI")
                await working_on(scene, says({"var_string": "MRI"})).mine(MINE)
                return result

            work._read = slow  # type: ignore[method-assign]
            await work.mine(MINE)
            assert (await dump(scene))["var_string"]["value"] == "MRI"
            assert (await scene.prompt())["memoryFresh"] is True

    async def test_a_reading_of_an_earlier_version_is_dropped_and_done_again(self) -> None:  # F37, A11
        asks_for_a_number = clinic()
        (variable,) = (v for v in asks_for_a_number["variables"] if v["_id"] == "var_string")
        variable["type"] = "number"
        async with talking(with_checkpoints()) as scene:
            await scene.say("m1", "The red one")
            work = working_on(scene, says({"var_string": "red"}, "greeted"))
            original = work._read  # it takes seconds, and the conversation moves meanwhile

            async def slow(*args: Any) -> Any:
                result = await original(*args)
                flow_id = await publish_next(scene, asks_for_a_number)
                assert (await migrate(scene, flow_id, dry_run=False)).json()["counts"]["migrated"] == 1
                return result

            work._read = slow  # type: ignore[method-assign]
            with pytest.raises(TryJobAgain):
                await work.mine(MINE)
            stored = await scene.memory.conversations.load(CONVERSATION)
            assert (await dump(scene))["var_string"]["value"] is None
            assert (stored.mining.mined_through, stored.mining.checkpoints) == (None, {})
            assert not [e for e in await scene.events() if e.get("type") == "checkpoint"]
            await working_on(scene, says({"var_string": 7})).mine(MINE)
            found = (await dump(scene))["var_string"]
            assert (found["type"], found["value"]) == ("number", 7)

    async def test_a_burst_of_turns_makes_one_job(self) -> None:  # F37
        async with talking() as scene:
            for number in range(5):
                await scene.say(f"m{number}", "hello")
            assert [name for name in await jobs(scene) if name.startswith("mine:")] == [
                "mine:default:conv-1:"
            ]

    async def test_bot_turns_are_context_and_start_nothing(self) -> None:  # F33
        async with talking() as scene:
            await scene.say("b1", "I heard ECG, right?", src="bot")
            assert not [name for name in await jobs(scene) if name.startswith("mine:")]

    async def test_a_conversation_that_has_gone_is_nobodys_business(self) -> None:
        async with open_scene(clinic()) as scene:
            await working_on(scene, says({})).mine(MINE)
            await working_on(scene, says({})).conclude(Job("conclude", CONVERSATION, "call-1"))
            await working_on(scene, says({})).expire(Job("expire", CONVERSATION))

    async def test_a_flow_may_turn_it_off(self) -> None:  # F37
        document = clinic(aiHelpers=[{"name": "convMiner", "enabled": False}])
        async with talking(document) as scene:
            await scene.say("m1", "An ECG")
            assert not [name for name in await jobs(scene) if name.startswith("mine:")]
            assert (await scene.prompt())["memoryFresh"] is True


def with_checkpoints() -> JsonObject:
    point = {"_id": "greeted", "name": "Greeted", "prompt": "They greeted", "required": True}
    document = clinic(checkpoints=[point, {**point, "_id": "paid", "name": "Paid"}])
    document["tasks"][0]["enabledCheckpoints"] = [point]
    document["reasonsOfContact"] = [{"name": "booking", "prompt": "wants a visit"}]
    document["results"] = [{"name": "done", "prompt": "booked", "resultTypes": ["CL"]}]
    return document


class TestCheckpointsAndConclusions:
    async def test_a_checkpoint_is_told_once(self) -> None:  # F39
        async with talking(with_checkpoints()) as scene:
            for number in range(2):
                await scene.say(f"m{number}", "Good morning")
                await working_on(scene, says({}, "greeted", "unknown")).mine(MINE)
            told = [e for e in await scene.events() if e.get("type") == "checkpoint"]
        assert [e["data"]["checkpointId"] for e in told] == ["greeted"]
        assert told[0]["serviceId"] == "campaign-1"

    async def test_an_ended_contact_is_classified_and_what_was_missed_is_reported(self) -> None:  # F39
        async with talking(with_checkpoints()) as scene:
            await scene.say("m1", "Good morning")
            await working_on(scene, says({}, "greeted")).mine(MINE)
            await scene.end()
            judge = Model(lambda call: {"reasonOfContact": "booking", "result": "nonsense", "why": "said so"})
            job = Job("conclude", CONVERSATION, "call-1")
            for _ in range(2):
                await working_on(scene, judge).conclude(job)
            told = [e["body"] for e in await scene.events() if isinstance(e.get("body"), dict)]
        assert [b["name"] for b in told if b["subtype"] == "reason_of_contact"] == ["booking"]
        assert [b["checkpointId"] for b in told if b["subtype"] == "checkpoint_missed"] == ["paid"]
        assert not [b for b in told if b["subtype"] == "result"]

    async def test_what_was_started_anew_is_concluded_in_the_order_of_its_contacts(self) -> None:  # F28, F39
        document = with_checkpoints()
        for task in document["tasks"]:
            task["closureConfig"] = multi_contact()
        calls = [f"call-{number}" for number in range(1, 7)]
        closes = [OutboundReply(200, b"true" if call == calls[-1] else b"false") for call in calls]
        async with talking(document, answers={HANDLER: closes}) as scene:
            for call in calls:
                await scene.started(contactId=call)
                await scene.say(f"m-{call}", "Good morning", contactId=call)
                await scene.end(contactId=call)
            await scene.started(contactId="call-7")
            judge = Model(lambda call: {"reasonOfContact": "booking", "why": "said so"})
            await working_on(scene, judge).conclude(Job("conclude", CONVERSATION, ""))
            told = [e for e in await scene.events() if isinstance(e.get("body"), dict)]
        reasons = [e["contactId"] for e in told if e["body"]["subtype"] == "reason_of_contact"]
        assert reasons == calls

    async def test_a_model_rewrites_the_summary_for_the_next_contact(self) -> None:  # F30
        document = clinic()
        for task in document["tasks"]:
            task["closureConfig"] = multi_contact()
        async with talking(document, answers=_stays_open()) as scene:
            await scene.say("m1", "An ECG")
            assert (await scene.end()).json()["status"] == "between_contacts"
            job = Job("conclude", CONVERSATION, "call-1")
            await working_on(scene, Model(lambda call: "Wants an ECG.")).conclude(job)
            data = await scene.started(contactId="call-2")
        assert "Wants an ECG." in data["prompt"]


def _stays_open() -> Mapping[str, Sequence[Any]]:
    return {HANDLER: [OutboundReply(200, b"false")]}


class TestWatching:
    async def test_what_was_asked_in_vain_is_counted_and_shown(self) -> None:
        async with talking() as scene:
            for number in range(3):
                await scene.say(f"b{number}", "What is the var string you want?", src="bot")
                await scene.say(f"m{number}", "Hm")
                await working_on(scene, says({})).mine(MINE)
            state = (await scene.memory.conversations.load(CONVERSATION)).mining
            assert state.attempts.get("var_string") == 3
            name = (await dump(scene))["var_string"]["name"]
            assert f"- {name}: 3 times" in (await scene.prompt())["parts"]["volatile"]

    async def test_a_task_that_was_refused_again_and_again_is_shown_until_it_can_be_entered(self) -> None:
        async with talking() as scene:
            for _ in range(2):
                await scene.change("visit")
            assert '- task "Visita Perché": refused 2 times' in (await scene.prompt())["parts"]["volatile"]
            await scene.written(entry("var_string", "ECG"), entry("var_boolean", True))
            assert "refused 2 times" not in (await scene.prompt())["prompt"]

    async def test_a_task_that_could_be_entered_for_long_is_reported_once(self) -> None:
        async with talking() as scene:
            await scene.written(entry("var_string", "ECG"), entry("var_boolean", True))
            for number in range(5):
                await scene.say(f"m{number}", "And the weather?")
                await working_on(scene, says({})).mine(MINE)
            told = [e["body"] for e in await scene.events() if isinstance(e.get("body"), dict)]
        stalls = [b for b in told if b["subtype"] == "task_stalled"]
        assert stalls == [{"subtype": "task_stalled", "task": "Visita Perché", "turns": 3}]


class TestExpiry:
    async def test_a_conversation_between_contacts_ends_with_its_time_limit(self) -> None:  # F41
        document = clinic()
        for task in document["tasks"]:
            task["closureConfig"] = multi_contact()
        async with talking(document, answers=_stays_open()) as scene:
            job = Job("expire", CONVERSATION)
            assert "expire:default:conv-1:" in await jobs(scene)
            await scene.end()
            await working_on(scene).expire(job)
            assert (await scene.http.get("/v1/prompt/conv-1")).status_code == 200
            scene.clock.advance(hours=3)
            await working_on(scene).expire(job)
            assert (await scene.http.get("/v1/prompt/conv-1")).json()["code"] == "conversation_closed"
