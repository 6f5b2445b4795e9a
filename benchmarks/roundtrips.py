"""Redis round trips of each call, counted on the wire with one client at a time."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks import documents
from benchmarks.client import Caller, Request, calling
from benchmarks.processes import Cores
from benchmarks.proxy import Traffic, counting_proxy
from benchmarks.results import RoundTrips
from benchmarks.scenarios import Target, fill, publish
from benchmarks.servers import redis_server, service_process

TASKS = 12


async def count_round_trips(cores: Cores, *, repeat: int) -> tuple[RoundTrips, ...]:
    traffic = Traffic()
    async with (
        redis_server(core=cores.rest, aof=False) as redis,
        counting_proxy(redis.port, traffic) as proxied,
        service_process(proxied, core=cores.service, unsafe=True, log_level="warning") as service,
        calling(service.port) as caller,
    ):
        target = await publish(caller, service.port, TASKS, multi_contact=True)
        first = [target.new_contact("cold")]
        cold = await _count(caller, traffic, "new contact, first on its version", None, first)
        await caller.ask(target.prompt("cold"))  # the first read loads its script
        calls = await _calls(caller, target, repeat)
        return (cold, *[await _count(caller, traffic, *row) for row in calls])


async def _calls(caller: Caller, target: Target, repeat: int) -> list[tuple[str, int | None, list[Request]]]:
    names = [f"conversation-{number}" for number in range(repeat)]
    await fill(caller, target, names)
    entered = documents.walk(target.tasks)[0]
    return [
        ("new contact", 1, [target.new_contact(f"fresh-{number}") for number in range(repeat)]),
        ("change task", 1, [target.change_task(name, entered) for name in names]),
        ("resume (second contact)", 2, [target.new_contact(name, "contact-2") for name in names]),
        ("same contact again", 2, [target.new_contact(name, "contact-2") for name in names]),
        ("prompt", 1, [target.prompt(name) for name in names]),
        ("memory put", 1, [target.put_memory(name, [0]) for name in names]),
    ]


async def _count(
    caller: Caller, traffic: Traffic, call: str, goal: int | None, requests: Iterable[Request]
) -> RoundTrips:
    most = RoundTrips(call, 0, goal, ())
    for request in requests:
        traffic.reset()
        await caller.ask(request)
        if traffic.round_trips > most.measured:
            most = RoundTrips(call, traffic.round_trips, goal, tuple(traffic.commands))
    return most
