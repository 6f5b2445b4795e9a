"""Background jobs that come at the wrong moment: too early, twice, or to a conversation that has changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job, JobKind
from flow_engine.ports.models import LLMRequest, ModelFailed
from flow_engine.use_cases.background import LAST_WORDS_WITHIN_S
from tests.api.harness import Scene, clinic, open_scene, over_many_contacts
from tests.api.test_conversation_ends import CONVERSATION, LIMIT_S, STAYS_OPEN, bodies
from tests.flow_engine.listening.test_mining import MINE, Model, jobs, says, with_checkpoints, working_on

pytestmark = pytest.mark.anyio

NOBODYS = ConversationRef("default", "nobody")
KINDS: tuple[JobKind, ...] = ("mine", "conclude", "expire", "routing")


async def run(scene: Scene, job: Job, model: Model | None = None) -> None:
    background = working_on(scene, model)
    handlers: dict[str, Callable[[Job], Awaitable[None]]] = {
        "mine": background.mine,
        "conclude": background.conclude,
        "expire": background.expire,
        "routing": background.routing,
    }
    await handlers[job.kind](job)


async def stored(scene: Scene) -> dict[bytes, bytes]:
    """Everything that Redis holds, byte by byte."""
    client = scene.memory.driver.client
    return {key: await client.dump(key) for key in await client.keys("*")}


def meanwhile(scene: Scene, act: Callable[[], Awaitable[object]], answer: object) -> Model:
    """A model that is still answering while `act` is done."""

    class Slow(Model):
        async def stream(self, request: LLMRequest) -> Any:
            await act()
            async for event in super().stream(request):
                yield event

    return Slow(lambda call: answer)


class TestNothingIsLeftToDo:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_job_of_nobody_writes_nothing(self, kind: JobKind) -> None:  # F41
        async with open_scene(clinic()) as scene:
            await scene.started()
            before = await stored(scene)
            await run(scene, Job(kind, NOBODYS, "call-1"), says({}))
            assert await stored(scene) == before

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_job_of_one_that_was_erased_writes_nothing(self, kind: JobKind) -> None:  # F41, F42
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.changed("operator")
            await scene.say("m-1", "It is me, Ada")
            assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200
            before = await stored(scene)
            scene.clock.advance(hours=3)
            await run(scene, Job(kind, CONVERSATION, "call-1"), says({"var_string": "Ada"}))
            assert await stored(scene) == before

    async def test_every_job_that_is_done_twice_changes_nothing_more(self) -> None:  # F41
        async with open_scene(with_checkpoints()) as scene:
            await scene.started()
            await scene.changed("operator")
            await scene.say("m-1", "I want an ECG")
            scene.clock.advance(seconds=61)
            model = says({"var_string": "ECG"}, "greeted")
            for job in (MINE, Job("routing", CONVERSATION)):
                await run(scene, job, model)
            await scene.end()
            judge = Model(lambda call: {"reasonOfContact": "booking", "result": None, "why": "x"})
            for kind in KINDS:
                await run(scene, Job(kind, CONVERSATION, "call-1"), judge)
            told, before = await scene.events(), await journal_length(scene)
            for kind in KINDS:
                await run(scene, Job(kind, CONVERSATION, "call-1"), judge)
            assert (await scene.events(), await journal_length(scene)) == (told, before)

    async def test_a_contact_that_is_still_talking_is_not_concluded(self) -> None:  # F39
        async with open_scene(with_checkpoints()) as scene:
            await scene.started()
            model = says({})
            await run(scene, Job("conclude", CONVERSATION, "call-1"), model)
            await run(scene, Job("conclude", CONVERSATION, "another call"), model)
            assert model.calls == []


async def journal_length(scene: Scene) -> int:
    return len((await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"])


class TestTooEarly:
    async def test_a_transfer_is_failed_at_its_deadline_and_not_before(self) -> None:  # F34, D4
        """Two machines' clocks differ: the job is put off to the deadline, and nobody is told yet."""
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.changed("operator")
            await scene.memory.driver.client.delete("{flow-engine}:jobs")
            scene.clock.advance(seconds=58)
            await run(scene, Job("routing", CONVERSATION))
            assert "routing:default:conv-1:" in await jobs(scene)
            assert await bodies(scene, "human_task") == []
            due_ms = await scene.memory.driver.client.zscore("{flow-engine}:jobs", "routing:default:conv-1:")
            deadline = scene.clock.now() + timedelta(seconds=2)
            assert 0 <= due_ms / 1000 - deadline.timestamp() <= 1
            scene.clock.advance(seconds=3)
            await run(scene, Job("routing", CONVERSATION))
            assert [body["reason"] for body in await bodies(scene, "human_task")] == ["timeout"]

    async def test_somebody_who_was_found_meanwhile_is_left_alone(self) -> None:  # F34
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.changed("operator")
            assert (await scene.human("connected")).status_code == 200
            await scene.memory.driver.client.delete("{flow-engine}:jobs")
            scene.clock.advance(hours=1)
            await run(scene, Job("routing", CONVERSATION))
            assert [body["outcome"] for body in await bodies(scene, "human_task")] == ["connected"]
            assert "routing:default:conv-1:" not in await jobs(scene)

    async def test_a_transfer_of_a_contact_that_has_hung_up_fails_nobody(self) -> None:  # F34
        async with open_scene(over_many_contacts(), answers=STAYS_OPEN) as scene:
            await scene.started()
            await scene.changed("operator")
            await scene.end()
            before = await journal_length(scene)
            scene.clock.advance(seconds=30)
            await run(scene, Job("routing", CONVERSATION))
            assert await bodies(scene, "human_task") == []
            assert await journal_length(scene) == before

    async def test_a_conversation_that_somebody_came_back_to_does_not_expire(self) -> None:  # D1
        async with open_scene(over_many_contacts(), answers=STAYS_OPEN) as scene:
            await scene.started()
            await scene.end()
            await scene.started(contactId="call-2")
            scene.clock.advance(seconds=LIMIT_S + 10)
            await run(scene, Job("expire", CONVERSATION))
            assert await bodies(scene, "conversation_closed") == []
            found = (await scene.http.get("/v1/conversations/conv-1")).json()
            assert (found["status"], found["task"]) == ("active", "reception")


class TestWhileTheModelAnswers:
    """Reading along asks outside of any commit: what it finds is applied to whatever there is by then."""

    async def test_what_was_erased_meanwhile_stays_erased(self) -> None:  # F37, F42
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.say("m-1", "My name is Ada")

            async def erase() -> None:
                assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200

            await run(scene, MINE, meanwhile(scene, erase, {"values": {"var_string": "Ada"}}))
            assert (await scene.http.get("/v1/conversations/conv-1")).status_code == 404
            assert not [key for key in await stored(scene) if b"convMiner" in key]

    async def test_a_conversation_that_began_anew_gets_nothing_of_the_old_one(self) -> None:  # F37
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.say("m-1", "My name is Ada")

            async def anew() -> None:
                scene.clock.advance(seconds=1)
                await scene.started(contactId="call-2")

            await run(scene, MINE, meanwhile(scene, anew, {"values": {"var_string": "Ada"}}))
            found = (await scene.http.get("/v1/memory/conv-1")).json()["vars"]
            assert [each["value"] for each in found if each["varId"] == "var_string"] in ([], [None])

    async def test_a_contact_is_concluded_once_however_many_answers_come(self) -> None:  # F39
        async with open_scene(with_checkpoints()) as scene:
            await scene.started()
            await scene.say("m-1", "Good morning")
            await scene.end()
            scene.clock.advance(seconds=LAST_WORDS_WITHIN_S + 1)
            answer = {"reasonOfContact": "booking", "result": "done", "why": "said so"}
            conclude = Job("conclude", CONVERSATION, "call-1")
            judge = Model(lambda call: answer)

            async def another() -> None:
                if not judge.calls:  # the other process is asked while this one waits
                    await run(scene, conclude, judge)

            await run(scene, conclude, meanwhile(scene, another, answer))
            assert len(judge.calls) == 1
            assert len(await bodies(scene, "reason_of_contact")) == 1
            assert len(await bodies(scene, "result")) == 1

    async def test_an_unusable_answer_leaves_the_rules_values_and_asks_again(self) -> None:  # F37
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.say("m-1", "Good morning")
            failing = Model(lambda call: ModelFailed("timeout", "too slow"))
            for _ in range(2):
                with pytest.raises(Exception, match="no usable answer"):
                    await run(scene, MINE, failing)
            assert len(failing.calls) >= 2, "nothing says that it was read"
