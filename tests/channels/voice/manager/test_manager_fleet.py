"""The rules of a fleet, one step at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import SecretStr

from channels.voice.manager.fleet import (
    Action,
    AgentSpec,
    AgentState,
    Answer,
    BridgeSpec,
    Command,
    Limits,
    Moment,
    NoAnswer,
    Phase,
    ProcessState,
    Seen,
    next_wanted,
    reconcile,
    step_agent,
    step_bridge,
)
from channels.voice.sip_bridge.account import Account

SIP = Account("sip.example", "host", SecretStr("s3cret"))
OLD = AgentSpec(5050, "old", SIP)
NEW = AgentSpec(5050, "new", SIP)
LIMITS = Limits(
    start_s=60, drain_s=300, settle_s=3, stop_s=40, stable_s=60, failures=3, backoff_s=1.0, backoff_max_s=60.0
)
ALIVE = Seen(alive=True)
HEALTHY = Seen(alive=True, health=Answer(0, draining=False))
TALKING = Seen(alive=True, health=Answer(2, draining=False))
DRAINED = Seen(alive=True, health=Answer(0, draining=True))
LAST_CALL = Seen(alive=True, health=Answer(1, draining=True))
MUTE = Seen(alive=True, health=NoAnswer())
GONE = Seen(alive=False)
KNOWS_OLD = Seen(alive=True, health=Answer(2, draining=False, config="old"))
KNOWS_NEW = Seen(alive=True, health=Answer(2, draining=False, config="new"))
ELSEWHERE = replace(NEW, public_url="https://b.example")


def at(now: float, limits: Limits = LIMITS, jitter: float = 0.0) -> Moment:
    return Moment(now, limits, lambda: jitter)


def process(phase: Phase, **more: object) -> ProcessState[AgentSpec]:
    return replace(ProcessState(phase, OLD, since=100.0, starts=1), **more)


IDLE, STARTING, RUNNING, RELOADING, DRAINING, ENDING = map(process, Phase)
RELOADING = replace(RELOADING, config="old")
FAULTY = replace(ENDING, faulty=True)

TABLE = [
    # what was, what is wanted, what is seen, seconds later, what it becomes, what is done
    ("a wanted agent is started", ProcessState[AgentSpec](), OLD, GONE, 0, "starting", "start"),
    ("an unwanted one is not", ProcessState[AgentSpec](), None, GONE, 0, "idle", None),
    ("a pause is kept", replace(IDLE, not_before=110), OLD, GONE, 9.9, "idle", None),
    ("a pause ends", replace(IDLE, not_before=110), OLD, GONE, 10, "starting", "start"),
    ("a changed config is tried at once", replace(IDLE, not_before=110), NEW, GONE, 0, "starting", "start"),
    ("no answer yet is no fault", STARTING, OLD, MUTE, 59, "starting", None),
    ("an answer makes it running", STARTING, OLD, HEALTHY, 5, "running", None),
    ("one that never answers is ended", STARTING, OLD, MUTE, 60, "ending", "terminate"),
    ("one that starts has no calls to drain", STARTING, NEW, ALIVE, 1, "ending", "terminate"),
    ("a change while it starts up", STARTING, NEW, HEALTHY, 1, "draining", "drain"),
    ("a crash at the start", STARTING, OLD, GONE, 1, "idle", None),
    ("what is healthy and wanted stays", RUNNING, OLD, TALKING, 500, "running", None),
    ("a check that is still under way changes nothing", RUNNING, OLD, ALIVE, 500, "running", None),
    ("a change drains", RUNNING, NEW, TALKING, 500, "draining", "drain"),
    ("one that can takes up a new config", RUNNING, NEW, KNOWS_OLD, 500, "reloading", "reload"),
    ("but no new address", RUNNING, ELSEWHERE, KNOWS_OLD, 500, "draining", "drain"),
    ("it has the new config", RELOADING, NEW, KNOWS_NEW, 1, "running", None),
    ("it has not yet, and is told again", RELOADING, NEW, KNOWS_OLD, 1, "reloading", "reload"),
    ("nothing is known of it yet", RELOADING, NEW, ALIVE, 14, "reloading", None),
    ("one that does not is drained", RELOADING, NEW, KNOWS_OLD, 15, "draining", "drain"),
    ("a change of mind", RELOADING, OLD, KNOWS_OLD, 1, "running", None),
    ("a removal while it reloads", RELOADING, None, KNOWS_OLD, 1, "draining", "drain"),
    ("a crash while it reloads", RELOADING, NEW, GONE, 1, "idle", None),
    ("a fault while it reloads", replace(RELOADING, failures=2), NEW, MUTE, 1, "ending", "terminate"),
    ("a removal drains", RUNNING, None, TALKING, 500, "draining", "drain"),
    ("one missed check is none", RUNNING, OLD, MUTE, 1, "running", None),
    ("the third one is a fault", replace(RUNNING, failures=2), OLD, MUTE, 1, "ending", "terminate"),
    ("drained by somebody else", RUNNING, OLD, LAST_CALL, 1, "draining", None),
    ("a crash", RUNNING, OLD, GONE, 1, "idle", None),
    ("calls are waited for", DRAINING, NEW, LAST_CALL, 299, "draining", None),
    ("but not for ever", DRAINING, NEW, LAST_CALL, 300, "ending", "terminate"),
    ("a call may be on its way", DRAINING, NEW, DRAINED, 2.9, "draining", None),
    ("without calls it ends", DRAINING, NEW, DRAINED, 3, "ending", "terminate"),
    ("an old count is not believed", DRAINING, NEW, ALIVE, 3, "draining", None),
    ("who did not hear it is told again", DRAINING, NEW, HEALTHY, 3, "draining", "drain"),
    ("a mute one is ended", replace(DRAINING, failures=2), NEW, MUTE, 3, "ending", "terminate"),
    ("there is no way back from draining", DRAINING, OLD, LAST_CALL, 3, "draining", None),
    ("it ended itself", DRAINING, NEW, GONE, 3, "idle", None),
    ("time to end in command", ENDING, NEW, ALIVE, 39, "ending", None),
    ("then it is killed", ENDING, NEW, ALIVE, 40, "ending", "kill"),
    ("it has ended", ENDING, NEW, GONE, 1, "idle", None),
]


@pytest.mark.parametrize(
    ("before", "wanted", "seen", "later", "phase", "action"),
    [row[1:] for row in TABLE],
    ids=[r[0] for r in TABLE],
)
def test_one_step_of_an_agent(
    before: ProcessState[AgentSpec],
    wanted: AgentSpec | None,
    seen: Seen,
    later: float,
    phase: str,
    action: str | None,
) -> None:  # V13
    after, done = step_agent(before, wanted, seen, at(100 + later))
    assert (after.phase, done) == (phase, action)


def test_one_agent_after_the_other_takes_up_a_changed_config() -> None:  # V13, voice-smaller
    old, new = AgentSpec(5050, "old"), AgentSpec(5050, "new")
    states = {name: AgentState(replace(RUNNING, spec=old, config="old")) for name in "abc"}
    wanted = dict.fromkeys("abc", new)
    seen = {(name, "agent"): KNOWS_OLD for name in "abc"}
    after, commands = reconcile(wanted, states, seen, at(110))
    assert commands == (Command("a", "agent", Action.RELOAD),)
    assert [after[name].agent.phase for name in "abc"] == [Phase.RELOADING, Phase.RUNNING, Phase.RUNNING]
    after, commands = reconcile(wanted, after, {**seen, ("a", "agent"): KNOWS_NEW}, at(111))
    assert (after["a"].agent.phase, after["a"].agent.spec, commands) == (Phase.RUNNING, new, ())
    _, commands = reconcile(wanted, after, seen, at(112))
    assert commands == (Command("b", "agent", Action.RELOAD),)


@pytest.mark.parametrize(
    ("before", "later"), [(STARTING, 60), (replace(RUNNING, failures=2), 1)], ids=["never answered", "mute"]
)
def test_an_end_for_bad_health_counts_as_a_crash(
    before: ProcessState[AgentSpec], later: float
) -> None:  # V13
    ending, action = step_agent(before, OLD, MUTE, at(100 + later))
    assert (ending.phase, action) == (Phase.ENDING, Action.TERMINATE)
    after, _ = step_agent(ending, OLD, GONE, at(170, jitter=1.0))
    assert (after.crashes, after.not_before) == (1, 171)


def test_missed_checks_count_in_a_row_only() -> None:  # V13
    shaken = replace(RUNNING, failures=2)
    after, _ = step_agent(shaken, OLD, TALKING, at(110))
    assert (after.failures, after.live_calls) == (0, 2)
    assert step_agent(shaken, OLD, ALIVE, at(110))[0].failures == 2


@pytest.mark.parametrize("before", [RUNNING, STARTING, FAULTY])
def test_crashes_in_a_row_double_the_pause(before: ProcessState[AgentSpec]) -> None:  # V13
    pauses = [
        step_agent(replace(before, crashes=crashes), OLD, GONE, at(110, jitter=1.0))[0].not_before - 110
        for crashes in range(8)
    ]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_half_of_a_pause_is_chance() -> None:  # V13
    pauses = [
        step_agent(RUNNING, OLD, GONE, at(110, jitter=jitter))[0].not_before - 110 for jitter in (0, 0.5, 1)
    ]
    assert pauses == [0.5, 0.75, 1]


def test_a_crash_loop_of_weeks_is_counted_on() -> None:  # V13
    after, _ = step_agent(replace(STARTING, crashes=100_000), OLD, GONE, at(110, jitter=1.0))
    assert (after.crashes, after.not_before) == (100_001, 170)


def test_a_stable_minute_ends_the_row() -> None:  # V13
    shaken = replace(RUNNING, crashes=5)
    assert step_agent(shaken, OLD, HEALTHY, at(159))[0].crashes == 5
    assert step_agent(shaken, OLD, HEALTHY, at(160))[0].crashes == 0
    assert step_agent(shaken, OLD, GONE, at(159))[0].crashes == 6
    assert step_agent(shaken, OLD, GONE, at(160))[0].crashes == 1


def test_a_long_start_is_no_stable_time() -> None:  # V13
    slow = replace(Limits(), start_s=600)
    assert step_agent(replace(STARTING, crashes=5), OLD, GONE, at(500, slow))[0].crashes == 6


@pytest.mark.parametrize("before", [DRAINING, ENDING])
def test_an_end_that_was_asked_for_is_no_crash(before: ProcessState[AgentSpec]) -> None:  # V13
    after, _ = step_agent(replace(before, crashes=5), OLD, GONE, at(110))
    assert (after.crashes, after.not_before) == (0, 110)


def test_a_changed_config_starts_a_new_row() -> None:  # V13
    after, action = step_agent(replace(IDLE, crashes=5, not_before=200), NEW, GONE, at(110))
    assert (after.crashes, after.spec, action) == (0, NEW, Action.START)


def test_a_kill_is_repeated_until_the_process_is_gone() -> None:  # V13
    once, first = step_agent(ENDING, None, ALIVE, at(140))
    _, soon = step_agent(once, None, ALIVE, at(150))
    _, again = step_agent(once, None, ALIVE, at(180))
    assert (first, soon, again) == (Action.KILL, None, Action.KILL)


def test_nobody_waits_for_calls_when_there_is_no_time_to_drain() -> None:  # V13
    after, action = step_agent(DRAINING, None, LAST_CALL, at(100, replace(LIMITS, drain_s=0)))
    assert (after.phase, action) == (Phase.ENDING, Action.TERMINATE)


class TestBridge:
    BRIDGE = ProcessState(Phase.RUNNING, OLD.bridge, since=100.0, starts=1)

    @pytest.mark.parametrize(
        ("wanted", "agent", "action"),
        [
            (OLD, Phase.IDLE, None),
            (OLD, Phase.STARTING, None),
            (OLD, Phase.RUNNING, Action.START),
            (OLD, Phase.DRAINING, None),
            (OLD, Phase.ENDING, None),
            (replace(OLD, sip=None), Phase.RUNNING, None),
            (None, Phase.DRAINING, None),
        ],
    )
    def test_it_is_started_for_an_agent_that_answers(
        self, wanted: AgentSpec | None, agent: Phase, action: Action | None
    ) -> None:  # V13
        _, done = step_bridge(ProcessState[BridgeSpec](), wanted, agent, GONE, at(110))
        assert done is action

    @pytest.mark.parametrize("agent", list(Phase))
    def test_it_outlives_its_agent_s_crash_and_its_changed_config(self, agent: Phase) -> None:  # V13
        for wanted in (OLD, NEW):
            assert step_bridge(self.BRIDGE, wanted, agent, ALIVE, at(110)) == (self.BRIDGE, None)

    @pytest.mark.parametrize(
        "wanted",
        [
            None,
            replace(OLD, sip=None),
            replace(OLD, sip=Account("sip.example", "host", SecretStr("another"))),
            replace(OLD, port=5051),
        ],
    )
    def test_a_change_ends_it_after_its_agent_s_calls(self, wanted: AgentSpec | None) -> None:  # V13
        for carrying in (Phase.DRAINING, Phase.ENDING):
            assert step_bridge(self.BRIDGE, wanted, carrying, ALIVE, at(110)) == (self.BRIDGE, None)
        after, action = step_bridge(self.BRIDGE, wanted, Phase.IDLE, ALIVE, at(110))
        assert (after.phase, action) == (Phase.ENDING, Action.TERMINATE)

    def test_its_crash_is_its_own(self) -> None:  # V13
        after, action = step_bridge(self.BRIDGE, OLD, Phase.RUNNING, GONE, at(110, jitter=1.0))
        assert (after.phase, after.crashes, after.not_before, action) == (Phase.IDLE, 1, 111, None)

    def test_a_deaf_one_is_killed(self) -> None:  # V13
        ending = replace(self.BRIDGE, phase=Phase.ENDING)
        assert step_bridge(ending, None, Phase.IDLE, ALIVE, at(140))[1] is Action.KILL


class TestFleet:
    def test_no_more_than_some_start_at_once_and_who_crashed_least_goes_first(self) -> None:  # V13
        wanted = {str(number): AgentSpec(6000 + number, "c") for number in range(5)}
        crashed = AgentState(ProcessState(spec=wanted["0"], crashes=3))
        limits = replace(LIMITS, starts_at_once=2)
        states, first = reconcile(wanted, {"0": crashed}, {}, at(10, limits))
        assert first == (Command("1", "agent", Action.START), Command("2", "agent", Action.START))
        seen = {("1", "agent"): HEALTHY, ("2", "agent"): ALIVE}
        states, none = reconcile(wanted, states, seen, at(12, limits))
        _, second = reconcile(wanted, states, seen, at(13, limits))
        assert (none, second) == ((), (Command("3", "agent", Action.START),))

    def test_a_unit_that_is_neither_wanted_nor_there_is_forgotten(self) -> None:  # V13
        states = {"a": AgentState(replace(ENDING)), "b": AgentState(bridge=replace(TestBridge.BRIDGE))}
        states, commands = reconcile({}, states, {("b", "bridge"): ALIVE}, at(110))
        assert list(states) == ["b"]
        assert commands == (Command("b", "bridge", Action.TERMINATE),)


class TestNextWanted:
    A, B = AgentSpec(1, "a"), AgentSpec(2, "b")

    def test_the_list_replaces_what_was_wanted(self) -> None:  # V13
        assert next_wanted({"a": self.A}, {"b": self.B}, frozenset(), complete=True) == {"b": self.B}

    def test_who_is_listed_but_not_accepted_goes_on(self) -> None:  # V13
        after = next_wanted({"a": self.A}, {"b": self.B}, frozenset({"a", "c"}), complete=True)
        assert after == {"a": self.A, "b": self.B}

    def test_nobody_is_removed_by_a_list_that_was_not_understood_whole(self) -> None:  # V13
        changed = replace(self.A, config="changed")
        after = next_wanted({"a": self.A, "b": self.B}, {"a": changed}, frozenset(), complete=False)
        assert after == {"a": changed, "b": self.B}


def test_a_password_is_in_no_text_of_the_rules() -> None:  # V13
    states, commands = reconcile({"a": OLD}, {"a": AgentState(RUNNING)}, {("a", "agent"): HEALTHY}, at(110))
    assert commands == (Command("a", "bridge", Action.START),)
    assert "s3cret" not in repr((OLD, states, commands))
