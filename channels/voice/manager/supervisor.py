"""Carries out what the rules of the fleet order, and tells them what became of it."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias, cast

import orjson
import structlog

from channels.voice.manager import fleet
from channels.voice.manager.processes import Child, Programs, end_all
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundSender

SOON_S = 1.0
"""Between health checks of an agent whose next answer is waited for."""

TIMEOUT_S = 5.0

Order: TypeAlias = Literal[fleet.Action.DRAIN, fleet.Action.RELOAD]
"""What an agent is asked to do over HTTP, at the path of that name."""

log: Any = structlog.get_logger("flow_engine.voice.manager")


class Supervisor:
    """`local` reaches this machine's loopback. `wake` is called when a step is worth taking. Agents are asked
    for their health every `health_s` seconds, in tasks of `tasks`."""

    def __init__(
        self,
        programs: Programs,
        local: OutboundSender,
        limits: fleet.Limits,
        *,
        health_s: float,
        tasks: asyncio.TaskGroup,
        wake: Callable[[], None],
    ) -> None:
        self._programs = programs
        self._local = local
        self._limits = limits
        self._health_s = health_s
        self._tasks = tasks
        self._wake = wake
        self._children: dict[tuple[str, fleet.Role], Child] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, float] = {}
        self._health: dict[str, fleet.Health] = {}
        self.states: dict[str, fleet.AgentState] = {}

    def pid(self, agent_id: str, role: fleet.Role) -> int | None:
        child = self._children.get((agent_id, role))
        return None if child is None else child.pid

    def holds_process(self, agent_id: str) -> bool:
        return (agent_id, "agent") in self._children

    def hurry(self) -> None:
        """Wait for no call any more."""
        self._limits = replace(self._limits, drain_s=0.0)

    async def step(self, wanted: Mapping[str, fleet.AgentSpec]) -> frozenset[str]:
        """One step of every agent towards what is wanted. Returns those that are gone now."""
        seen: Mapping[tuple[str, fleet.Role], fleet.Seen] = {
            (agent_id, role): fleet.Seen(
                child.alive, self._health.pop(agent_id, None) if role == "agent" else None
            )
            for (agent_id, role), child in self._children.items()
        }
        self._bury()
        before = self.states
        moment = fleet.Moment(time.monotonic(), self._limits, random.random)
        self.states, commands = fleet.reconcile(wanted, before, seen, moment)
        for agent_id, state in self.states.items():
            old = before.get(agent_id, fleet.AgentState())
            for role, was, now in (("agent", old.agent, state.agent), ("bridge", old.bridge, state.bridge)):
                if now.crashes > was.crashes:
                    again_in_s = round(now.not_before - now.since, 1)
                    log.warning(
                        "process_crashed",
                        agent_id=agent_id,
                        role=role,
                        crashes=now.crashes,
                        unhealthy=was.faulty,
                        again_in_s=again_in_s,
                    )
        for command in commands:
            await self._carry_out(command)
        for agent_id in self.states:
            self._ask(agent_id)
        return frozenset(before) - frozenset(self.states)

    async def close(self) -> None:
        """End everything that still runs, in order as far as it goes. Returns when nothing is left; what
        ignores the request is killed after `stop_s` seconds."""
        for task in self._asking.values():
            task.cancel()
        await end_all(list(self._children.values()), self._limits.stop_s)
        self._bury()

    def _bury(self) -> None:
        for (agent_id, role), child in list(self._children.items()):
            if not child.alive:
                log.info(
                    "process_ended", agent_id=agent_id, role=role, pid=child.pid, exit_code=child.exit_code
                )
                del self._children[agent_id, role]

    async def _carry_out(self, command: fleet.Command) -> None:
        agent_id, role, action = command
        if action is fleet.Action.START:
            state = self.states[agent_id]
            process: fleet.ProcessState[Any] = state.agent if role == "agent" else state.bridge
            spec = cast("fleet.AgentSpec | fleet.BridgeSpec", process.spec)  # one that is not idle has one
            try:
                started = await self._programs.start(
                    agent_id, spec, stop_s=self._limits.stop_s, on_end=self._wake
                )
            except OSError as error:  # one that is not there: the rules take it for a crash
                log.error("process_not_started", agent_id=agent_id, role=role, reason=str(error))
            else:
                self._children[agent_id, role] = started
                starts = process.starts
                log.info("process_started", agent_id=agent_id, role=role, port=spec.port, starts=starts)
            return
        child = self._children[agent_id, role]
        log.info("process_told", agent_id=agent_id, role=role, pid=child.pid, action=action.value)
        match action:
            case fleet.Action.DRAIN | fleet.Action.RELOAD:
                self._ask(agent_id, action)
            case fleet.Action.TERMINATE:
                child.terminate()
            case fleet.Action.KILL:
                child.kill()

    def _ask(self, agent_id: str, order: Order | None = None) -> None:
        """Ask an agent how it is, if it is time and nobody does, after an order to it. One that falls on
        another talk is repeated when that has shown that the agent does not know it."""
        process, child = self.states[agent_id].agent, self._children.get((agent_id, "agent"))
        if (
            child is None
            or process.spec is None
            or process.phase is fleet.Phase.ENDING
            or agent_id in self._asking
        ):
            return
        pause = self._health_s if process.phase is fleet.Phase.RUNNING else min(SOON_S, self._health_s)
        if order is not None or time.monotonic() >= self._asked.get(agent_id, 0.0) + pause:
            talk = self._talk(agent_id, child, process.spec.port, order)
            self._asking[agent_id] = self._tasks.create_task(talk)

    async def _talk(self, agent_id: str, child: Child, port: int, order: Order | None) -> None:
        if order is not None and not await give_order(self._local, port, order):
            log.warning("order_refused", agent_id=agent_id, port=port, order=order.value)
        health = await check_health(self._local, port)
        del self._asking[agent_id]
        self._asked[agent_id] = time.monotonic()
        # Another process may have taken its place meanwhile, of which this says nothing.
        if self._children.get((agent_id, "agent")) is child:
            self._health[agent_id] = health
            self._wake()


async def check_health(caller: OutboundSender, port: int) -> fleet.Health:
    """Within 5 s `GET /healthz` answers 200, or 503 for an agent that takes no calls, with `{"liveCalls": 0,
    "draining": false}`, or the agent is not healthy. `config` may be with it."""
    try:
        reply = await caller.request("GET", f"http://127.0.0.1:{port}/healthz", timeout_s=TIMEOUT_S)
        document: object = orjson.loads(reply.body) if reply.status in (200, 503) else None
    except (OutboundRefused, OutboundFailed, orjson.JSONDecodeError):
        return fleet.NoAnswer()
    if not isinstance(document, dict):
        return fleet.NoAnswer()
    fields = cast("dict[str, object]", document)
    live_calls, draining, config = (fields.get(name) for name in ("liveCalls", "draining", "config"))
    if isinstance(live_calls, bool) or not isinstance(live_calls, int) or not isinstance(draining, bool):
        return fleet.NoAnswer()
    return fleet.Answer(live_calls, draining, config if isinstance(config, str) else None)


async def give_order(caller: OutboundSender, port: int, order: Order) -> bool:
    """Whether the agent has agreed, within 5 s."""
    url = f"http://127.0.0.1:{port}/{order.value}"
    try:
        reply = await caller.request("POST", url, timeout_s=TIMEOUT_S)
    except (OutboundRefused, OutboundFailed):
        return False
    return 200 <= reply.status < 300
