"""`make proof-journal`: 500 conversations of the samples, with faults: rebuilt to the byte, forked, gone on.

Needs `redis-server`. Ends with 1 where a revision is rebuilt otherwise than it was sent, a fork does not go
on, something went outside meanwhile, or the control, an entry that was changed, is not found.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import structlog

from memory.connection import connect
from tests.api.harness import Scene
from tests.ports import free_port
from tests.redis_fixture import RedisServer, client_of
from tests.scripted.conversations import Script, scripts
from tests.scripted.playing import Played, Wire, play, samples_served
from tests.scripted.rebuilding import differences, forked, gone_on, outside


async def main(number: int, seed: int) -> list[str]:
    """What does not hold."""
    chance = random.Random(number)
    with TemporaryDirectory() as folder:
        redis = RedisServer(Path(folder), free_port())
        try:
            async with samples_served(connect(redis.url)) as (scene, wire):
                return await _proof(scene, wire, [*scripts(number, seed=seed)], chance)
        finally:
            redis.stop()


async def _proof(scene: Scene, wire: Wire, scripted: Sequence[Script], chance: random.Random) -> list[str]:
    began = time.monotonic()
    played = [await play(scene, wire, script) for script in scripted]
    asked, faults = sum(len(each.script.asks) for each in played), sum(each.faults for each in played)
    _tell(began, f"{len(played)} conversations, {asked} requests, {faults} of them with faults")
    before = await outside(scene)
    broken = [line for each in played for line in await differences(wire, each)]
    revisions = sum(len(each.sent) for each in played)
    _tell(began, f"{revisions} replies rebuilt, {len(broken)} otherwise than they were sent")
    forks = [(each, await forked(wire, each, chance)) for each in played]
    if await outside(scene) != before:
        broken.append(f"rebuilding and forking went outside: {before}, then {await outside(scene)}")
    _tell(began, f"{len(forks)} forks made, {before[0]} calls outside before and after")
    broken += [line for each, fork in forks for line in await gone_on(wire, each, fork)]
    _tell(began, "forks gone on")
    await _change_an_entry(scene, played[0])
    if not await differences(wire, played[0]):
        broken.append("the control: an entry that was changed was not found")
    _tell(began, "control: a changed entry is found")
    return broken


async def _change_an_entry(scene: Scene, played: Played) -> None:
    key, client = f"{{default:{played.script.conversation_id}}}::journal", client_of(scene.memory)
    entries = await client.xrange(key)
    await client.delete(key)
    for number, fields in entries:
        if number == b"1-0":
            session = orjson.loads(fields[b"session"])
            session["task"]["prompt"] += " And smile."
            fields[b"session"] = orjson.dumps(session)
        await client.xadd(key, fields, id=number)


def _tell(began: float, what: str) -> None:
    print(f"{time.monotonic() - began:5.1f} s  {what}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="make proof-journal", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--number", type=int, default=500, help="conversations")
    parser.add_argument("--seed", type=int, default=1, help="of the scripts")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = asyncio.run(main(options.number, options.seed))
    for line in found[:20]:
        print(line[:300])
    print("holds" if not found else f"BROKEN: {len(found)}")
    sys.exit(0 if not found else 1)
