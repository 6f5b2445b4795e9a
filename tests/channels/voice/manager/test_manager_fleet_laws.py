"""Laws of the fleet's rules, over random lives of a machine's processes.

The world below does what the real one does: processes start, answer, crash, hang, ignore what they are told,
drain when their calls have ended. The rules see it through health checks only, which may be late or lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from channels.voice.manager.fleet import (
    Action,
    AgentSpec,
    AgentState,
    Answer,
    BridgeSpec,
    Command,
    Health,
    Limits,
    Moment,
    NoAnswer,
    Phase,
    Role,
    Seen,
    reconcile,
)
from channels.voice.sip_bridge.account import Account

LIMITS = Limits(start_s=10, drain_s=30, settle_s=2, stop_s=5, stable_s=20, backoff_max_s=8, starts_at_once=2)
IDS = ("a", "b", "c")
PORTS = {"a": 5050, "b": 5051, "c": 5052}
RELOADS = ("b", "c")
"""Those that can take up another config while they run."""

QUIET_S = 400
"""Longer than any row of limits."""


@dataclass
class Process:
    spec: AgentSpec | BridgeSpec
    answers_in: int = 2
    calls: int = 0
    draining: bool = False
    deaf: bool = False
    hung: bool = False


@dataclass
class World:
    wanted: dict[str, AgentSpec] = field(default_factory=dict[str, AgentSpec])
    processes: dict[tuple[str, Role], Process] = field(default_factory=dict[tuple[str, Role], Process])
    states: dict[str, AgentState] = field(default_factory=dict[str, AgentState])
    now: float = 0.0

    def health(self, agent_id: str) -> Health:
        process = self.processes[agent_id, "agent"]
        if process.hung or process.answers_in > 0:
            return NoAnswer()
        config = process.spec.config if agent_id in RELOADS and isinstance(process.spec, AgentSpec) else None
        return Answer(process.calls, process.draining, config)

    def tick(self, *, checked: bool = True) -> tuple[Command, ...]:
        """A second. Checks the laws that hold at every moment."""
        self.now += 1
        seen = {
            (agent_id, role): Seen(
                alive=True, health=self.health(agent_id) if checked and role == "agent" else None
            )
            for agent_id, role in self.processes
        }
        before = self.states
        self.states, commands = reconcile(self.wanted, before, seen, Moment(self.now, LIMITS, lambda: 0.5))
        for agent_id, role, action in commands:
            if action is Action.START:
                self._start(agent_id, role)
            else:
                self._tell(agent_id, role, action, before)
        starting = sum(state.agent.phase is Phase.STARTING for state in self.states.values())
        assert starting <= LIMITS.starts_at_once
        for process in self.processes.values():
            process.answers_in -= 1
        return commands

    def _start(self, agent_id: str, role: Role) -> None:
        assert (agent_id, role) not in self.processes, "two processes in one process"
        spec = self.wanted[agent_id] if role == "agent" else self.wanted[agent_id].bridge
        assert spec is not None, "started what is not wanted"
        assert all(
            process.spec.port != spec.port
            for (other, its_role), process in self.processes.items()
            if its_role == "agent" and (other != agent_id or role == "agent")
        ), "two agents on one port"
        self.processes[agent_id, role] = Process(spec)

    def _tell(self, agent_id: str, role: Role, action: Action, before: dict[str, AgentState]) -> None:
        process = self.processes[agent_id, role]
        if role == "agent" and action is Action.TERMINATE and process.calls and not process.hung:
            state = before[agent_id].agent
            waited = state.phase is Phase.DRAINING and self.now - state.since >= LIMITS.drain_s
            missed = state.failures + 1 >= LIMITS.failures or state.phase is Phase.STARTING
            assert waited or missed, "calls were cut"
        if role == "bridge":
            agent = self.states[agent_id].agent.phase
            carries = agent in (Phase.DRAINING, Phase.ENDING)
            assert not carries or action is Action.KILL, "calls were cut off from their line"
        match action:
            case Action.RELOAD:
                assert agent_id in RELOADS, "told what it cannot do"
                assert sum(each.agent.phase is Phase.RELOADING for each in self.states.values()) == 1
                if not (process.hung or process.deaf):
                    wanted = self.wanted[agent_id]
                    assert replace(wanted, config="") == replace(process.spec, config="")  # type: ignore[arg-type]
                    process.spec = wanted
            case Action.DRAIN:
                process.draining = not process.hung
            case Action.TERMINATE:
                if not process.deaf:
                    del self.processes[agent_id, role]
            case Action.KILL:
                del self.processes[agent_id, role]
            case Action.START:
                raise AssertionError("handled before")


CONFIGS = st.sampled_from(("one", "two"))
ACCOUNTS = st.sampled_from((None, Account("d", "u", SecretStr("p")), Account("d", "u", SecretStr("q"))))
SLOTS = st.tuples(st.sampled_from(IDS), st.sampled_from(("agent", "agent", "bridge")))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.sampled_from(IDS), CONFIGS, ACCOUNTS),
        st.tuples(st.just("want all"), CONFIGS, ACCOUNTS),
        st.tuples(st.just("drop"), st.sampled_from(IDS)),
        st.tuples(st.sampled_from(("crash", "deaf", "hang", "drained")), SLOTS),
        st.tuples(st.sampled_from(("call", "hang_up")), st.sampled_from(IDS)),
        st.tuples(st.just("pass"), st.integers(1, 40), st.booleans()),
    ),
    max_size=40,
)


def happen(world: World, event: tuple[object, ...]) -> None:
    match event:
        case ("want", str(agent_id), str(config), sip):
            assert sip is None or isinstance(sip, Account)
            world.wanted[agent_id] = AgentSpec(PORTS[agent_id], config, sip)
        case ("want all", str(config), sip):
            for agent_id in IDS:
                happen(world, ("want", agent_id, config, sip))
        case ("drop", str(agent_id)):
            world.wanted.pop(agent_id, None)
        case ("pass", int(seconds), bool(checked)):
            for _ in range(seconds):
                world.tick(checked=checked)
        case ("call" | "hang_up" as what, str(agent_id)):
            process = world.processes.get((agent_id, "agent"))
            if process is not None and not (process.draining and what == "call"):
                process.calls = max(0, process.calls + (1 if what == "call" else -1))
        case ("crash", key):
            world.processes.pop(key, None)  # type: ignore[call-overload]
        case (str(what), key):
            process = world.processes.get(key)  # type: ignore[call-overload]
            if process is not None:
                process.deaf |= what == "deaf"
                process.hung |= what == "hang"
                process.draining |= what == "drained"
        case _:
            raise AssertionError(event)


def lived(events: list[tuple[object, ...]]) -> World:
    world = World()
    for event in events:
        happen(world, event)
        world.tick()
    return world


LAW = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@LAW
@given(EVENTS)
def test_left_alone_the_fleet_becomes_what_is_wanted(events: list[tuple[object, ...]]) -> None:  # V13
    world = lived(events)
    for _ in range(QUIET_S):
        world.tick()
    running = {key: process.spec for key, process in world.processes.items()}
    wanted: dict[tuple[str, Role], AgentSpec | BridgeSpec] = {}
    for agent_id, spec in world.wanted.items():
        wanted[agent_id, "agent"] = spec
        if spec.bridge is not None:
            wanted[agent_id, "bridge"] = spec.bridge
    assert running == wanted
    agents = [process for (_, role), process in world.processes.items() if role == "agent"]
    assert not any(agent.draining or agent.hung for agent in agents)
    assert set(world.states) == set(world.wanted)


@LAW
@given(EVENTS)
def test_what_is_wanted_and_healthy_is_left_alone(events: list[tuple[object, ...]]) -> None:  # V13
    world = lived(events)
    for _ in range(QUIET_S):
        world.tick()
    assert not any(world.tick() for _ in range(100))


@LAW
@given(EVENTS)
def test_when_nothing_is_wanted_nothing_is_left(events: list[tuple[object, ...]]) -> None:  # V13
    world = lived(events)
    world.wanted = {}
    for _ in range(QUIET_S):
        world.tick()
    assert not world.processes
    assert not world.states
