"""A few conversations of the samples, with faults: what is rebuilt of them is what was sent.

`make proof-journal` holds 500 to the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import orjson
import pytest

from flows.samples import load_samples
from memory.connection import connect
from tests.redis_fixture import RedisServer
from tests.scripted.conversations import scripts
from tests.scripted.playing import play, samples_served
from tests.scripted.rebuilding import differences, forked, gone_on, outside

pytestmark = pytest.mark.anyio

NUMBER = 15


def test_scripts_are_the_same_each_time_and_meet_every_operation_and_fault() -> None:
    first, again = list(scripts(60)), list(scripts(60))
    assert first == again
    assert first != list(scripts(60, seed=2))
    asks = [ask for script in first for ask in script.asks]
    assert set(Counter(ask.op for ask in asks)) == {
        *("handle-new-contact", "change-task", "memory", "handle-utterance"),
        *("handle-end-contact", "handle-human-task"),
    }
    assert {ask.fault for ask in asks} == {None, "repeated", "cut_within", "cut_after"}
    assert len({ask.key for ask in asks}) == len(asks)
    assert {script.version_id for script in first} == {sample.version_id for sample in load_samples()}


async def test_every_revision_is_rebuilt_as_it_was_sent_and_nothing_outside_is_called(
    start_redis: Callable[[], RedisServer],
) -> None:
    async with samples_served(connect(start_redis().url)) as (scene, wire):  # journal: must be shown 2
        played = [await play(scene, wire, script) for script in scripts(NUMBER)]
        assert sum(each.faults for each in played) > NUMBER
        assert sum(each.refused for each in played) > NUMBER
        gone_out = await outside(scene)
        assert gone_out[0] > 0, "the closure handler was asked, so the double counts"
        assert [line for each in played for line in await differences(wire, each)] == []
        forks = [await forked(wire, each, random.Random(1)) for each in played]
        assert await outside(scene) == gone_out
        for each, fork in zip(played, forks, strict=True):
            assert await gone_on(wire, each, fork) == []


async def test_an_entry_that_was_changed_is_found() -> None:
    """The control: what is compared can be different."""
    async with samples_served() as (scene, wire):
        (script,) = scripts(1)
        played = await play(scene, wire, script)
        key, client = f"{{default:{script.conversation_id}}}::journal", scene.memory.driver.client  # type: ignore[attr-defined]
        entries = await client.xrange(key)
        await client.delete(key)
        for number, fields in entries:
            if number == b"1-0":
                session = orjson.loads(fields[b"session"])
                session["task"]["prompt"] += " And smile."
                fields[b"session"] = orjson.dumps(session)
            await client.xadd(key, fields, id=number)
        assert any("another prompt" in line for line in await differences(wire, played))
