"""`make proof-replay`: 500 recorded conversations on a draft with three planted changes (shown 3).

1. The replay finds exactly these: in every conversation the fork, the refusals, the variable and the prompts
   that its journal says are concerned, and nothing else.
2. On a draft without a change it finds nothing: all 500 take the same path with the same prompts.
3. It takes less than 30 s of one core, and ends with a page that needs nothing beside it.

Prints what was found; ends with 1 when something does not hold.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

import orjson
import structlog

from flow_engine.testing.replay_page import replay_page
from flow_engine.use_cases.replays import Replay
from memory.connection import connect
from service.replaying import Source, candidate, replay_on
from service.settings import Settings
from tests.proof.fleet import redis_server
from tests.scripted.replaying import breaches, planted, recordings, unchanged

CONVERSATIONS = 500
MOST_CPU_S = 30.0
FROM_ELSEWHERE = ("<script", "src=", "href=", "url(", "@import")


def replayed(directory: Path, document: object) -> tuple[Replay, float]:
    """As the command does it, and the seconds of CPU that it took."""
    version = directory / "version.json"
    version.write_bytes(orjson.dumps(document))
    began = time.process_time()
    replay = replay_on(candidate(version, Settings()), Source(Settings(), directory / "recordings.jsonl"))
    return replay, time.process_time() - began


async def recorded_on_redis() -> list[bytes]:
    async with redis_server() as redis:
        return await recordings(CONVERSATIONS, connect(redis.url))


def main() -> list[str]:
    """What does not hold, one line each."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    recorded = asyncio.run(recorded_on_redis())
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "recordings.jsonl").write_bytes(b"\n".join(recorded))
        planted_found, took_s = replayed(directory, planted())
        control, _ = replayed(directory, unchanged())
    wrong = breaches(planted_found.rows, recorded)
    summary = planted_found.report()["summary"]
    entries = sum(len(orjson.loads(each)["entries"]) for each in recorded)
    print(f"{CONVERSATIONS} conversations, {entries} entries, replayed in {took_s:.1f} s of CPU: {summary}")
    if took_s > MOST_CPU_S:
        wrong.append(f"the replay took {took_s:.1f} s of CPU, more than {MOST_CPU_S:g}")
    page = replay_page(planted_found.report(), planted_found.prompt_changes.values(), "draft")
    print(f"a page of {len(page)} characters")
    if any(each in page for each in FROM_ELSEWHERE) or "+Say &lt;sorry&gt; first." not in page:
        wrong.append("the page lacks the difference of the prompts, or is not by itself")
    same = control.report()["summary"]
    print(f"without a change: {same}")
    if same != {**dict.fromkeys(same, 0), "conversations": CONVERSATIONS, "samePath": CONVERSATIONS}:
        wrong.append(f"without a change: {same}")
    return wrong


if __name__ == "__main__":
    found = main()
    for line in found[:20]:
        print(line)
    print("holds" if not found else f"{len(found)} breaches")
    sys.exit(1 if found else 0)
