"""A prompt that was sent is sent again only while a new one would be the same, byte for byte (F15, F31)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import orjson
import pytest
from fakeredis import FakeServer

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime import prompt
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.prompt import Composer, Prompt, PromptInput
from flow_engine.use_cases.dialogue import DialogueService
from flow_engine.use_cases.quiet_replies import QuietReplies, QuietReply
from flow_engine.use_cases.transactor import QUIET_BYTES, ConversationDependencies, Transactor
from tests.api.harness import BASE_URL, T0, Scene, SettableClock, clinic, entry, open_scene
from tests.flow_engine.listening.test_mining import dependencies_of

pytestmark = pytest.mark.anyio
PATH = "/v1/prompt/conv-1"
REF = ConversationRef("default", "conv-1")


class CountingComposer(Composer):
    composed = 0

    def compose(self, inputs: PromptInput) -> Prompt:
        self.composed += 1
        return super().compose(inputs)


def reader(
    scene: Scene, known: ConversationDependencies | None = None, composer: Composer | None = None
) -> DialogueService:
    """A process that has composed nothing yet."""
    known = known or dependencies_of(scene)
    shared = replace(known, platform=Platform(known.platform.prompts, lambda: BASE_URL, "markdown"))
    shared.platform.composer = composer or shared.platform.composer
    return DialogueService(Transactor(shared), shared)


async def step(random: Random, scene: Scene) -> None:
    """One move of a conversation or of its clock."""
    match random.randrange(9):
        case 0:
            await scene.write(entry("size", random.choice(["S", "M", "L"])))
        case 1:
            await scene.write(entry("var_string", "Ada"), entry("var_boolean", True))
        case 2:
            await scene.change(random.choice(["visit", "operator", "supervised", "reception"]))
        case 3:
            await scene.say(f"m-{random.random()}", "An ECG", src=random.choice(["user", "bot"]))
        case 4:
            await scene.human(random.choice(["connected", "failed", "completed"]))
        case 5:
            scene.clock.advance(seconds=random.choice([61, 3_600, 86_400]))
        case _:
            scene.clock.advance(milliseconds=random.choice([1, 300, 999, 1_000, 20_000]))


@pytest.mark.parametrize("seed", range(2))
async def test_two_processes_that_keep_replies_answer_as_one_that_keeps_none(seed: int) -> None:  # F15, F31
    random, server, clock = Random(seed), FakeServer(), SettableClock()
    by_the_clock_alone, seen = 0, ("", b"")
    async with (
        open_scene(clinic(), server=server, clock=clock) as one,
        open_scene(clinic(), server=server, clock=clock) as other,
    ):
        await one.started(tenant={"timezone": random.choice(["Asia/Kathmandu", "Europe/Rome", ""])})
        known = dependencies_of(one)
        for _ in range(50):
            await step(random, random.choice([one, other]))
            for scene in (one, other):
                first = await scene.http.get(PATH)
                if first.status_code == 409:  # closed: it stays so, whoever asks
                    assert (await other.http.get(PATH)).content == first.content
                    continue
                held = known.memory.held(REF)
                if held is not None:  # what its prompts have made is kept beside it
                    held.composed.of_session = held.composed.contact = held.composed.table = None
                cold = await reader(scene, known).prompt(REF)  # after the first: a command is told once
                again = await scene.http.get(PATH)
                assert (again.content, again.headers["etag"]) == (cold.body, cold.etag)
                dump = await scene.http.get("/v1/memory/conv-1")
                assert dump.content == await reader(scene, known).memory_reply(REF)
                if orjson.loads(first.content)["command"] is None:
                    assert first.content == cold.body
                by_the_clock_alone += seen[0] == cold.etag and seen[1] != cold.body
                seen = cold.etag, cold.body
    assert by_the_clock_alone > 5  # else a process that never looked at the clock would pass too


async def test_what_is_unchanged_is_not_made_again() -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        composer = CountingComposer()
        dialogue = reader(scene, composer=composer)
        first = await dialogue.prompt(REF)
        assert await dialogue.prompt(REF) == first
        assert composer.composed == 1
        assert await dialogue.prompt(REF, memory_format="toon") != first
        await scene.written(entry("size", "S"))
        written = await dialogue.prompt(REF)
        assert b"|size||S|" in written.body
        scene.clock.advance(milliseconds=999)
        assert await dialogue.prompt(REF) == written
        assert composer.composed == 3
        scene.clock.advance(milliseconds=1)
        assert await dialogue.prompt(REF) != written  # the memory is a second old
        scene.clock.advance(seconds=-2)
        await dialogue.prompt(REF)
        assert composer.composed == 5  # nor is it right before it was made


async def test_a_kept_reply_shares_its_prefix_and_is_over_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        whole = await reader(scene).prompt(REF)
        monkeypatch.setattr(prompt, "PREFIX_BYTES", 1)  # none is kept
        composer = CountingComposer()
        dialogue = reader(scene, composer=composer)
        for times in (1, 2):
            assert await dialogue.prompt(REF) == whole
            assert composer.composed == times


async def test_who_waits_is_not_answered_with_what_was_not_fresh() -> None:
    async with open_scene(clinic()) as scene:
        await scene.started()
        await scene.say("m1", "An ECG")
        composer = CountingComposer()
        dialogue = reader(scene, composer=composer)
        stale = await dialogue.prompt(REF)
        assert not stale.fresh
        assert await dialogue.prompt(REF) == stale
        assert composer.composed == 1
        await dialogue.prompt(REF, wait_s=0.01)
        assert composer.composed == 2


async def test_an_unchanged_memory_is_not_told_anew() -> None:  # F32
    async with open_scene(clinic()) as scene:
        await scene.started()
        dialogue = reader(scene)
        first = await dialogue.memory_reply(REF)
        assert orjson.loads(first) == await dialogue.get_memory(REF)
        scene.clock.advance(days=1)
        assert await dialogue.memory_reply(REF) is first
        await scene.written(entry("size", "S"))
        after = await dialogue.memory_reply(REF)
        assert after != first
        assert orjson.loads(after) == await dialogue.get_memory(REF)


def test_replies_that_are_kept_have_a_bound_in_bytes() -> None:
    quiet, body = QuietReplies(QUIET_BYTES), b"x" * (QUIET_BYTES // 10)
    refs = [ConversationRef("t", str(number)) for number in range(30)]
    for ref in refs:
        quiet.keep(ref, None, QuietReply((body,), b"state"))
    found = [ref for ref in refs if quiet.find(ref, None, b"state", T0) is not None]
    assert found == refs[-9:]
    assert quiet.find(refs[-1], None, b"another", T0) is None
    quiet.keep(refs[0], None, QuietReply((b"x" * QUIET_BYTES,), b"state"))
    assert quiet.find(refs[0], None, b"state", T0) is None
