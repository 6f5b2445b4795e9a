"""The service manager: keeps a process for each agent of a list, and none besides (V13).

What it says of itself in `status.json` are ids, ports, process ids and states, nothing secret.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import structlog

from channels.voice.manager import agents_list, fleet, processes
from channels.voice.manager.directory import Directory
from channels.voice.manager.roster import Roster
from channels.voice.manager.supervisor import Supervisor
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import utc_text

LOOK_S = 0.25
"""Between two looks at everything, if nothing happens."""
FIRST_RETRY_S = 2.0
UNREAD_RETRY_S = 15.0
"""At most, as long as no list has been read: nobody is served until then."""

CRASH_LOOP = 3
"""Crashes in a row from which on a process is said to be in a crash loop."""

_STATES = {
    fleet.Phase.IDLE: "waiting",
    fleet.Phase.STARTING: "starting",
    fleet.Phase.RUNNING: "running",
    fleet.Phase.RELOADING: "reloading",
    fleet.Phase.DRAINING: "draining",
    fleet.Phase.ENDING: "stopping",
}

log: Any = structlog.get_logger("flow_engine.voice.manager")


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between refreshes and between health checks, and the limits of the processes' phases in
    seconds."""

    refresh_s: float = 300.0
    health_s: float = 10.0
    limits: fleet.Limits = field(default_factory=fleet.Limits)


class Manager:
    """`local` reaches this machine's loopback, `wall` is the time that people read."""

    def __init__(
        self,
        roster: Roster,
        programs: processes.Programs,
        local: OutboundSender,
        directory: Directory,
        pace: Pace,
        *,
        wall: Callable[[], datetime],
    ) -> None:
        self._roster = roster
        self._programs = programs
        self._local = local
        self._directory = directory
        self._pace = pace
        self._wall = wall
        self._wake = asyncio.Event()
        self._refresh = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurried = False
        self._refreshed: dict[str, object] = {"at": None, "error": None}
        self._published: dict[str, object] = {}

    def refresh_now(self) -> None:
        self._refresh.set()

    def stop(self) -> None:
        """The first time: end every agent after its calls. After that: at once."""
        self._hurried = self._stopping.is_set()
        self._stopping.set()
        self._wake.set()

    async def run(self) -> None:
        """Returns after `stop`, with no process left, `drain_s` and some seconds later at most. A list that
        cannot be fetched is logged, and fetched again."""
        async with asyncio.TaskGroup() as tasks:
            supervisor = Supervisor(
                self._programs,
                self._local,
                self._pace.limits,
                health_s=self._pace.health_s,
                tasks=tasks,
                wake=self._wake.set,
            )
            refreshing = tasks.create_task(self._keep_refreshed())
            try:
                while not self._stopping.is_set():
                    for agent_id in list(self._roster.wanted):
                        if not supervisor.holds_process(agent_id):
                            self._roster.free_port(agent_id)
                    gone = await supervisor.step(self._roster.wanted)
                    # A refresh meanwhile may want one again.
                    for agent_id in gone - self._roster.wanted.keys():
                        self._roster.forget(agent_id)
                    self._publish(supervisor)
                    await self._pause()
                refreshing.cancel()
                limits = self._pace.limits
                log.info("stopping", agents=len(supervisor.states))
                ends_within_s = limits.drain_s + 2 * limits.stop_s + processes.LAUNCHER_ENDS_WITHIN_S
                until = time.monotonic() + ends_within_s
                while supervisor.states and time.monotonic() < until:
                    if self._hurried:
                        supervisor.hurry()
                    await supervisor.step({})
                    self._publish(supervisor)
                    await self._pause()
            finally:
                refreshing.cancel()
                await supervisor.close()
                self._publish(supervisor)

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._wake.wait()
        self._wake.clear()

    async def _keep_refreshed(self) -> None:
        failures = 0
        while True:
            self._refresh.clear()
            try:
                await self._roster.refresh()
            except agents_list.ListUnavailable as error:
                failures += 1
                # Without any list nobody is served.
                tell = log.warning if self._roster.unread is None else log.error
                agents = len(self._roster.wanted)
                tell("agents_not_refreshed", reason=str(error), failures=failures, agents=agents)
                self._refreshed = {**self._refreshed, "error": str(error)}
            else:
                failures = 0
                self._refreshed = {"at": utc_text(self._wall()), "error": None}
            self._wake.set()
            with suppress(TimeoutError):
                # A list that could not be had is asked for again sooner, then less and less often.
                longest = self._pace.refresh_s
                if self._roster.unread is not None:
                    longest = min(longest, UNREAD_RETRY_S)
                retry_s = FIRST_RETRY_S * 2 ** min(failures - 1, 16)
                async with asyncio.timeout(min(longest, retry_s) if failures else longest):
                    await self._refresh.wait()

    def _publish(self, supervisor: Supervisor) -> None:
        """Written when something in it has changed."""
        roster = self._roster
        status: dict[str, object] = {
            "version": 1,
            "pid": os.getpid(),
            "stopping": self._stopping.is_set(),
            "refreshed": self._refreshed,
            "agents": agents_status(supervisor.states, roster.known, roster.ports, supervisor.pid),
            "notAccepted": [
                {"id": agent_id, "problems": [asdict(each) for each in found]}
                for agent_id, found in sorted(roster.problems.items())
            ],
        }
        if status == self._published:
            return
        self._published = status
        try:
            self._directory.write_status({**status, "writtenAt": utc_text(self._wall())})
        except OSError as error:
            log.warning("status_not_written", reason=str(error))


def agents_status(
    states: Mapping[str, fleet.AgentState],
    known: Mapping[str, agents_list.Listed],
    ports: Mapping[str, int],
    pid: Callable[[str, fleet.Role], int | None],
) -> list[dict[str, object]]:
    """One object, for JSON, for each agent that is wanted or still runs, by id."""
    agents: list[dict[str, object]] = []
    for agent_id in sorted(states):
        state, listed = states[agent_id], known.get(agent_id)
        bridge = _process(state.bridge, pid(agent_id, "bridge")) if state.bridge.spec is not None else None
        agents.append(
            {
                "id": agent_id,
                "name": listed.name if listed else None,
                "type": listed.type if listed else None,
                "port": state.agent.spec.port if state.agent.spec else ports.get(agent_id),
                **_process(state.agent, pid(agent_id, "agent")),
                "liveCalls": state.agent.live_calls,
                "bridge": bridge,
            }
        )
    return agents


def _process(process: fleet.ProcessState[Any], pid: int | None) -> dict[str, object]:
    return {
        "state": _STATES[process.phase],
        "pid": pid,
        "restarts": max(0, process.starts - 1),
        "crashesInARow": process.crashes,
        "crashLoop": process.crashes >= CRASH_LOOP,
    }
