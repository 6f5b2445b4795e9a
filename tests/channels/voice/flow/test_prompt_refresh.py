"""When the model is given a new prompt, and when it is left alone (F23, F24, F31)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from channels.engine_client.client import EngineClient
from channels.engine_client.replies import PromptReply
from channels.voice.flow.engine_sync import WAITS, PromptRefresher, without_clock
from tests.api.harness import BASE_URL, clinic, entry, open_scene
from tests.channels.engine_client.engine_doubles import Pauses
from tests.channels.voice.flow.flow_call import eventually
from tests.timing import takes_less_than

pytestmark = pytest.mark.anyio


class TestWhatStands:
    @pytest.mark.parametrize("language", ["en-US", "it-IT", "es-ES"])
    @pytest.mark.parametrize("memory_format", ["markdown", "toon"])
    async def test_the_clock_alone_changes_nothing(self, language: str, memory_format: str) -> None:  # F24
        document = clinic(systemPromptsLanguage=language)
        async with open_scene(document, memory_format=memory_format) as scene:
            await scene.started(contact={"callerId": "+390612345678"})
            seen = {without_clock((await scene.prompt())["prompt"])}
            await scene.written(entry("var_string", "room 7"))
            first = (await scene.prompt())["prompt"]
            assert without_clock(first) not in seen
            for seconds in (1, 58, 2, 3600, 7200):
                scene.clock.advance(seconds=seconds)
                later = (await scene.prompt())["prompt"]
                assert (later != first, without_clock(later)) == (True, without_clock(first))
            await scene.written(entry("var_string", "room 8"))
            assert without_clock((await scene.prompt())["prompt"]) != without_clock(first)

    def test_a_long_line_of_moments_takes_a_moment(self) -> None:  # F24
        """As the values of a user may make it. All other calls wait meanwhile."""
        line = "x" + " 2026-01-15, 09:31 (a" * 1_000
        prompt = f"{line}\nThursday 2026-01-15, 09:31 (UTC)\n5 min\n\nmemory"
        assert line in without_clock(prompt)
        assert takes_less_than(1, lambda: without_clock(prompt))

    @pytest.mark.parametrize("language", ["en-US", "it-IT", "es-ES"])
    async def test_the_day_alone_changes_nothing_either(self, language: str) -> None:  # F24
        async with open_scene(clinic(systemPromptsLanguage=language)) as scene:
            await scene.started()
            first = (await scene.prompt())["prompt"]
            scene.clock.advance(days=1)
            assert without_clock((await scene.prompt())["prompt"]) == without_clock(first)

    def test_a_count_is_no_clock(self) -> None:  # D2
        asked = "## Asked\n- birthday: {n} times\n- order 2026-01-01, 10:00 (UTC)"
        prompt = "{now}\n\n" + asked + "\n\n## Memory\nage {n}\n\nempty"
        told = [
            without_clock(prompt.format(now=f"Monday 2026-03-02, 1{n}:00 (Europe/Rome)", n=n)) for n in (2, 7)
        ]
        assert "2026-03-02" not in told[0]
        assert "2026-01-01" in told[0]
        assert "birthday: 2 times" in told[0]
        assert "birthday: 7 times" in told[1]


@dataclass
class Engine:
    """Answers GET /prompt as it is told to; a request waits until it has been."""

    waiting: list[asyncio.Future[httpx2.Response]] = field(
        default_factory=list[asyncio.Future[httpx2.Response]]
    )
    requests: list[httpx2.Request] = field(default_factory=list[httpx2.Request])

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]

    def client(self) -> EngineClient:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self), base_url=BASE_URL)
        return EngineClient(http, pause=Pauses())

    async def asked(self, times: int) -> None:
        await eventually(lambda: len(self.waiting) == times)


def prompt(text: str, *, revision: int = 1, memory: int = 1, fresh: bool = True) -> httpx2.Response:
    body = {"prompt": f"{text}\n\n# Memory\nage\n\n{text}", "parts": {"prefix": "", "volatile": ""}}
    counts = {"revision": revision, "memoryRevision": memory, "prefixHash": "h", "memoryFresh": fresh}
    return httpx2.Response(200, json=body | counts, headers={"ETag": f'"{text}-{revision}-{memory}"'})


@dataclass
class Model:
    """Takes prompts, unless it is told not to."""

    takes: bool = True
    prompts: list[str] = field(default_factory=list[str])
    closed: int = 0

    async def changed(self, reply: PromptReply) -> bool:
        self.prompts.append(reply.prompt.partition("\n")[0])
        return self.takes

    def is_closed(self) -> None:
        self.closed += 1


def watched() -> tuple[PromptRefresher, Engine, Model]:
    engine, model = Engine(), Model()
    return PromptRefresher(engine.client(), "conv-1", model.changed, model.is_closed), engine, model


async def looked(watch: PromptRefresher, engine: Engine, *answers: httpx2.Response) -> None:
    """Look once for each answer, one after the other."""
    for answer in answers:
        looking = asyncio.create_task(watch.look())
        await engine.asked(len(engine.waiting) + 1)
        engine.waiting[-1].set_result(answer)
        await looking


class TestWatching:
    async def test_the_same_is_not_told_twice(self) -> None:  # F31
        watch, engine, model = watched()
        await looked(
            watch, engine, prompt("a"), prompt("a", revision=2), httpx2.Response(304), prompt("b", revision=2)
        )
        assert model.prompts == ["a", "b"]

    async def test_the_tag_of_the_last_prompt_is_sent_until_the_model_is_given_another(self) -> None:
        watch, engine, _ = watched()
        await looked(watch, engine, prompt("a"), httpx2.Response(304))
        watch.knows("h", "another")
        await looked(watch, engine, prompt("a"))
        tags = [request.headers.get("if-none-match") for request in engine.requests]
        assert tags == [None, '"a-1-1"', None]

    async def test_what_the_model_did_not_take_is_offered_again(self) -> None:
        watch, engine, model = watched()
        model.takes = False
        await looked(watch, engine, prompt("a"))
        model.takes = True
        await looked(watch, engine, prompt("a"), prompt("a"))
        assert model.prompts == ["a", "a"]

    @pytest.mark.parametrize("older", [{"memory": 1}, {"memory": 2, "revision": 0}])
    async def test_an_answer_that_was_overtaken_is_forgotten(self, older: dict[str, Any]) -> None:
        watch, engine, model = watched()
        slow, fast = asyncio.create_task(watch.look()), asyncio.create_task(watch.look())
        await engine.asked(2)
        engine.waiting[1].set_result(prompt("new", memory=2))
        await fast
        engine.waiting[0].set_result(prompt("old", **older))
        await slow
        assert model.prompts == ["new"]

    async def test_after_a_turn_it_waits_until_the_turn_has_been_read(self) -> None:  # F31
        watch, engine, model = watched()
        watch.after_user_turn()
        for times, answer in enumerate(
            [prompt("a", fresh=False), httpx2.Response(304), prompt("b", memory=2)]
        ):
            await engine.asked(times + 1)
            engine.waiting[-1].set_result(answer)
        await eventually(lambda: model.prompts == ["a", "b"])
        await asyncio.sleep(0.02)
        assert len(engine.waiting) == 3

    async def test_it_does_not_wait_for_ever_and_takes_turns_together(self) -> None:
        watch, engine, _ = watched()
        watch.after_user_turn()
        for times in range(2 * WAITS):
            await engine.asked(times + 1)
            if times == 0:
                watch.after_user_turn()
                watch.after_user_turn()
            engine.waiting[-1].set_result(prompt("a", fresh=False))
        await asyncio.sleep(0.02)
        assert len(engine.waiting) == 2 * WAITS

    async def test_a_closed_conversation_is_told(self) -> None:
        watch, engine, model = watched()
        document = {"status": 409, "code": "conversation_closed", "detail": "closed"}
        await looked(watch, engine, httpx2.Response(409, json=document))
        assert (model.closed, model.prompts) == (1, [])

    async def test_stopping_ends_what_is_being_waited_for(self) -> None:
        watch, engine, _ = watched()
        await watch.stop()
        watch.after_user_turn()
        await engine.asked(1)
        await watch.stop()
        assert engine.waiting[0].cancelled()
