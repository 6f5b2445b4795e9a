"""What the journal costs a request: CPU of the service and of Redis with it and without it, in turns of
requests of one run.

    python -m benchmarks.journal [--blocks 120] [--most 8]

Requests are asked as `benchmarks.steps` asks them, so that neither a socket nor a load client is in the
figures, and no line is logged for them; Redis is a server of its own. Exits with 1 where a call takes more
CPU of the service with a journal than `--most` percent.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from adapters.http_whole import AnswersWhole
from benchmarks import documents, scenarios
from benchmarks.client import Request
from benchmarks.processes import Cores, cpu_seconds
from benchmarks.servers import redis_server
from benchmarks.steps import Lane, service_on
from flow_engine.use_cases import transitions

MOST_PERCENT, TASKS, BLOCK = 8.0, 12, 12
_NOTED = transitions._noted  # pyright: ignore[reportPrivateUsage]


class Cost(NamedTuple):
    """CPU in seconds."""

    service: float
    redis: float


async def measure(app: AnswersWhole, redis_pid: int, blocks: int) -> Mapping[str, Mapping[bool, Cost]]:
    """For each call the CPU of a request, with a journal (True) and without: two conversations, which take
    turns, so that both meet the same machine. Every variable is known, so that every change of task is
    taken."""
    lane = Lane(app)
    target = await scenarios.publish(lane, 8080, TASKS, multi_contact=True)
    walk = documents.walk(TASKS)
    calls: Mapping[str, Callable[[str, int], Request]] = {
        "change task": lambda name, number: target.change_task(name, walk[(number - 1) % len(walk)]),
        "memory put": lambda name, number: target.put_memory(name, [number % 8]),
        "utterance": lambda name, number: target.utterance(name, 2 * number),  # the bot's, which nobody reads
        "new contact": lambda name, number: target.new_contact(f"{name}-{number}"),
    }
    used: dict[tuple[str, bool], list[Cost]] = defaultdict(list)
    for block in range(blocks):
        for call, request in calls.items():
            for number in range(BLOCK + 1):
                for journaled in (True, False) if (block + number) % 2 else (False, True):
                    name = f"{call.replace(' ', '-')}-{block}-{journaled}"
                    setattr(transitions, "_noted", _NOTED if journaled else lambda *_: None)  # noqa: B010
                    if number == 0:
                        await scenarios.fill(lane, target, [name])
                        continue
                    asked = request(name, number)
                    of_redis, own = cpu_seconds(redis_pid), time.process_time()
                    await lane.ask(asked)
                    cost = Cost(time.process_time() - own, cpu_seconds(redis_pid) - of_redis)
                    used[call, journaled].append(cost)
    return {call: {j: _typical(used[call, j]) for j in (True, False)} for call in calls}


def _typical(costs: Sequence[Cost]) -> Cost:
    """Of a request, in seconds: the mean of the middle half, so that neither what else the machine does nor a
    single request decides."""
    of_parts = [sorted(part)[len(part) // 4 : -(len(part) // 4) or None] for part in zip(*costs, strict=True)]
    return Cost(*(statistics.mean(part) for part in of_parts))


async def run(blocks: int, most_percent: float) -> int:
    """The exit code; the figures are printed."""
    cores = Cores.choose()
    async with redis_server(core=cores.rest, aof=False) as redis, service_on(redis.port) as app:
        figures = await measure(app, redis.pid, blocks)
    table = Table("Call", "CPU of the service", "CPU of Redis", title="Added by the journal to a request")
    missed = False
    for call, costs in figures.items():
        pairs = list(zip(costs[True], costs[False], strict=True))
        added = [100 * (journaled / bare - 1) for journaled, bare in pairs]
        missed = missed or added[0] > most_percent
        row = [
            f"{percent:+.1f} %, {(journaled - bare) * 1e6:.0f} of {journaled * 1e6:.0f} µs"
            for percent, (journaled, bare) in zip(added, pairs, strict=True)
        ]
        table.add_row(call, *row)
    Console().print(table)
    return int(missed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=120)
    parser.add_argument("--most", type=float, default=MOST_PERCENT)
    options = parser.parse_args()
    sys.exit(asyncio.run(run(options.blocks, options.most)))
