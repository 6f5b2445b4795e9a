"""The rules of a fleet: what is wanted × what runs → what to do. No I/O, no clock, no randomness.

An agent has a process, and one for its SIP bridge. Each passes through

    idle ──start──▶ starting ──answers──▶ running ──changed, removed──▶ draining ──▶ ending ──▶ idle
                                          running ──config changed──▶ reloading ──has it──▶ running

1. A process is started only when the one before it is gone.
2. A process that runs what is wanted and is healthy is left alone.
3. What changed or is not wanted any more ends only after its calls, at most `drain_s` later. A process
   that never answered has no calls.
4. A process that ends unasked has crashed, and so has one that does not answer: it comes back after a
   pause that doubles with every crash in a row. A stable time ends the row, and so does a changed
   config, which is tried at once.
5. At most `starts_at_once` agents are starting, since a machine that starts all of them together would
   take longer than `start_s` for each, and give up on all of them. Who crashed least goes first.
6. A bridge carries its agent's calls. It is started for an agent that answers, outlives a crash of it,
   and ends for a change only when the agent's calls have ended.
7. Where nothing but the config has changed, an agent that says which one it runs takes up the new one while
   it goes on: no caller hears a busy tone. One agent of the fleet does so at a time. One that has not after
   `reload_s` is drained.
8. An agent that reports draining without having been asked takes no calls: it is restarted after those
   it has.

`reconcile` is called again and again; each call takes one step with each process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import SecretStr

from channels.voice.sip_bridge.account import Account

Role = Literal["agent", "bridge"]


@dataclass(frozen=True, slots=True)
class BridgeSpec:
    """What a bridge's process is started from. `port` is its agent's."""

    port: int
    sip: Account


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What an agent's processes are started from; equal specs need no restart. `config` is the SHA-256
    of the config file's bytes in hexadecimal, `sip` None for an agent without a bridge. `public_url` and
    `webhook_secret` are the agent's own, None where it has those of the manager's environment."""

    port: int
    config: str
    sip: Account | None = None
    public_url: str | None = None
    webhook_secret: SecretStr | None = None

    @property
    def bridge(self) -> BridgeSpec | None:
        return None if self.sip is None else BridgeSpec(self.port, self.sip)


class Phase(StrEnum):
    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    RELOADING = "reloading"
    DRAINING = "draining"
    ENDING = "ending"


class Action(StrEnum):
    """`TERMINATE` asks the process to end, `KILL` ends it."""

    START = "start"
    RELOAD = "reload"
    DRAIN = "drain"
    TERMINATE = "terminate"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a healthy agent says of itself. `config` as in `AgentSpec`, None from an agent that cannot reload
    it."""

    live_calls: int
    draining: bool
    config: str | None = None


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A health check that failed: no usable answer within its seconds."""


Health: TypeAlias = Answer | NoAnswer


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as it was found. `health` is a check's result since the last look, None where there was
    none."""

    alive: bool = False
    health: Health | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds. `failures` health checks in a row make an agent unhealthy. `settle_s` after the word
    to drain, a count of no calls is believed: one that was let in before may still be on its way. `stop_s`
    is for ending what calls there still are, in order."""

    start_s: float = 60.0
    reload_s: float = 15.0
    drain_s: float = 300.0
    settle_s: float = 3.0
    stop_s: float = 40.0
    stable_s: float = 60.0
    failures: int = 3
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    starts_at_once: int = 4


Spec = TypeVar("Spec")


@dataclass(frozen=True)  # generic, frozen and slotted together fail in Python 3.11
class ProcessState(Generic[Spec]):
    """`spec` is what the process runs, or ran last. `since` is when the phase began, `not_before` when an
    idle one may be started: monotonic seconds both. `crashes` and `failures` are counted in a row,
    `starts` ever. `config` is what the process last said that it runs. `faulty` tells an end for bad health
    from one that was wanted."""

    phase: Phase = Phase.IDLE
    spec: Spec | None = None
    since: float = 0.0
    not_before: float = 0.0
    failures: int = 0
    crashes: int = 0
    starts: int = 0
    live_calls: int = 0
    config: str | None = None
    faulty: bool = False


@dataclass(frozen=True, slots=True)
class AgentState:
    agent: ProcessState[AgentSpec] = field(default_factory=ProcessState[AgentSpec])
    bridge: ProcessState[BridgeSpec] = field(default_factory=ProcessState[BridgeSpec])

    @property
    def idle(self) -> bool:
        return self.agent.phase is Phase.IDLE and self.bridge.phase is Phase.IDLE


class Command(NamedTuple):
    agent_id: str
    role: Role
    action: Action


@dataclass(frozen=True, slots=True)
class Moment:
    """What a step depends on beside a process's state. `now` is monotonic seconds; `jitter` gives
    numbers from 0 to 1 that spread restarts."""

    now: float
    limits: Limits
    jitter: Callable[[], float]


def reconcile(
    wanted: Mapping[str, AgentSpec],
    states: Mapping[str, AgentState],
    seen: Mapping[tuple[str, Role], Seen],
    moment: Moment,
) -> tuple[dict[str, AgentState], tuple[Command, ...]]:
    """The states after one step, and what is to be done for it to be so. `seen` has every process that was
    started. An agent that is neither wanted nor has a process is no longer there."""
    after: dict[str, AgentState] = {}
    commands: list[Command] = []
    free = moment.limits.starts_at_once - sum(u.agent.phase is Phase.STARTING for u in states.values())
    may_reload = not any(state.agent.phase is Phase.RELOADING for state in states.values())
    for agent_id in sorted(
        {**states, **wanted}, key=lambda each: states.get(each, AgentState()).agent.crashes
    ):
        before, spec = states.get(agent_id, AgentState()), wanted.get(agent_id)
        agent, action = step_agent(
            before.agent, spec, seen.get((agent_id, "agent"), Seen()), moment, free > 0, may_reload
        )
        bridge, bridge_action = step_bridge(
            before.bridge, spec, agent.phase, seen.get((agent_id, "bridge"), Seen()), moment
        )
        free -= action is Action.START
        may_reload = may_reload and action is not Action.RELOAD
        stepped = AgentState(agent, bridge)
        if spec is not None or not stepped.idle:
            after[agent_id] = stepped
        if action is not None:
            commands.append(Command(agent_id, "agent", action))
        if bridge_action is not None:
            commands.append(Command(agent_id, "bridge", bridge_action))
    return after, tuple(commands)


def step_agent(
    state: ProcessState[AgentSpec],
    wanted: AgentSpec | None,
    seen: Seen,
    moment: Moment,
    may_start: bool = True,
    may_reload: bool = True,
) -> tuple[ProcessState[AgentSpec], Action | None]:
    if state.phase is Phase.IDLE:
        return _fill(state, wanted, moment, Phase.STARTING) if may_start else (state, None)
    if not seen.alive:
        return _emptied(state, moment), None
    match seen.health:
        case Answer(live_calls=live_calls, config=config):
            state = replace(state, failures=0, live_calls=live_calls, config=config)
        case NoAnswer():
            state = replace(state, failures=state.failures + 1)
        case None:
            pass
    match state.phase:
        case Phase.STARTING:
            return _starting(state, wanted, seen.health, moment)
        case Phase.RUNNING:
            return _running(state, wanted, seen.health, moment, may_reload)
        case Phase.RELOADING:
            return _reloading(state, wanted, seen.health, moment)
        case Phase.DRAINING:
            drained = isinstance(seen.health, Answer) and seen.health.draining and seen.health.live_calls == 0
            drained = drained and moment.now >= state.since + moment.limits.settle_s
            late = moment.now >= state.since + moment.limits.drain_s
            if drained or late or state.failures >= moment.limits.failures:
                return replace(state, phase=Phase.ENDING, since=moment.now), Action.TERMINATE
            # An agent that does not know of it yet is asked again: the first request may have been lost.
            unaware = isinstance(seen.health, Answer) and not seen.health.draining
            return state, Action.DRAIN if unaware else None
        case _:
            return _ending(state, moment)


def step_bridge(
    state: ProcessState[BridgeSpec],
    agent_wanted: AgentSpec | None,
    agent: Phase,
    seen: Seen,
    moment: Moment,
) -> tuple[ProcessState[BridgeSpec], Action | None]:
    """`agent` is the agent's phase after its own step: it is running only with what is wanted."""
    wanted = None if agent_wanted is None else agent_wanted.bridge
    if state.phase is Phase.IDLE:
        return _fill(state, wanted, moment, Phase.RUNNING) if agent is Phase.RUNNING else (state, None)
    if not seen.alive:
        return _emptied(state, moment), None
    if state.phase is Phase.ENDING:
        return _ending(state, moment)
    if wanted != state.spec and agent not in (Phase.DRAINING, Phase.ENDING):
        return replace(state, phase=Phase.ENDING, since=moment.now), Action.TERMINATE
    return _steadied(state, moment), None


def _fill(
    state: ProcessState[Spec], wanted: Spec | None, moment: Moment, phase: Phase
) -> tuple[ProcessState[Spec], Action | None]:
    same = wanted == state.spec
    if wanted is None or (same and moment.now < state.not_before):
        return state, None
    crashes = state.crashes if same else 0
    return ProcessState(
        phase, wanted, since=moment.now, crashes=crashes, starts=state.starts + 1
    ), Action.START


def _emptied(state: ProcessState[Spec], moment: Moment) -> ProcessState[Spec]:
    was_requested = state.phase is Phase.DRAINING or (state.phase is Phase.ENDING and not state.faulty)
    idle = ProcessState(spec=state.spec, since=moment.now, not_before=moment.now, starts=state.starts)
    if was_requested:
        return idle
    crashes = _steadied(state, moment).crashes + 1
    # The exponent is bounded: a crash loop of weeks would make a number that no float holds. Half of the
    # pause is chance, so that what crashed together does not come back together.
    longest = min(moment.limits.backoff_max_s, moment.limits.backoff_s * 2 ** min(crashes - 1, 32))
    return replace(idle, crashes=crashes, not_before=moment.now + longest * (1 + moment.jitter()) / 2)


def _starting(
    state: ProcessState[AgentSpec], wanted: AgentSpec | None, health: Health | None, moment: Moment
) -> tuple[ProcessState[AgentSpec], Action | None]:
    if isinstance(health, Answer):
        running = replace(state, phase=Phase.RUNNING, since=moment.now)
        return _running(running, wanted, health, moment, may_reload=False)
    if wanted != state.spec:
        return replace(state, phase=Phase.ENDING, since=moment.now), Action.TERMINATE
    if moment.now >= state.since + moment.limits.start_s:
        return replace(state, phase=Phase.ENDING, since=moment.now, faulty=True), Action.TERMINATE
    return state, None


def _running(
    state: ProcessState[AgentSpec],
    wanted: AgentSpec | None,
    health: Health | None,
    moment: Moment,
    may_reload: bool,
) -> tuple[ProcessState[AgentSpec], Action | None]:
    if state.failures >= moment.limits.failures:
        return replace(state, phase=Phase.ENDING, since=moment.now, faulty=True), Action.TERMINATE
    if wanted != state.spec and _is_another_config(state, wanted):
        if not may_reload:
            return state, None
        return replace(state, phase=Phase.RELOADING, since=moment.now), Action.RELOAD
    if wanted != state.spec:
        return replace(state, phase=Phase.DRAINING, since=moment.now), Action.DRAIN
    if isinstance(health, Answer) and health.draining:
        return replace(state, phase=Phase.DRAINING, since=moment.now), None
    return _steadied(state, moment), None


def _is_another_config(state: ProcessState[AgentSpec], wanted: AgentSpec | None) -> bool:
    """Whether nothing but the config is another one, for a process that can reload it."""
    if wanted is None or state.spec is None or state.config is None:
        return False
    return replace(wanted, config=state.spec.config) == state.spec


def _reloading(
    state: ProcessState[AgentSpec], wanted: AgentSpec | None, health: Health | None, moment: Moment
) -> tuple[ProcessState[AgentSpec], Action | None]:
    if state.failures >= moment.limits.failures:
        return replace(state, phase=Phase.ENDING, since=moment.now, faulty=True), Action.TERMINATE
    late = moment.now >= state.since + moment.limits.reload_s
    drains = isinstance(health, Answer) and health.draining
    if wanted is not None and state.config == wanted.config and _is_another_config(state, wanted):
        return replace(state, phase=Phase.RUNNING, spec=wanted, since=moment.now), None
    if late or drains or not _is_another_config(state, wanted):
        return replace(state, phase=Phase.DRAINING, since=moment.now), None if drains else Action.DRAIN
    return state, Action.RELOAD if isinstance(health, Answer) else None


def _ending(state: ProcessState[Spec], moment: Moment) -> tuple[ProcessState[Spec], Action | None]:
    if moment.now < state.since + moment.limits.stop_s:
        return state, None
    return replace(state, since=moment.now), Action.KILL


def _steadied(state: ProcessState[Spec], moment: Moment) -> ProcessState[Spec]:
    stable = state.phase is Phase.RUNNING and moment.now >= state.since + moment.limits.stable_s
    return replace(state, crashes=0) if stable and state.crashes else state


def next_wanted(
    wanted: Mapping[str, AgentSpec],
    accepted: Mapping[str, AgentSpec],
    held: frozenset[str],
    *,
    complete: bool,
) -> dict[str, AgentSpec]:
    """What is wanted after a refresh. `held` are agents that are listed and could not be accepted: those
    that run go on as they are. Nothing is removed unless the list was understood to be complete."""
    kept = {agent_id: spec for agent_id, spec in wanted.items() if agent_id in held or not complete}
    return {**kept, **accepted}
