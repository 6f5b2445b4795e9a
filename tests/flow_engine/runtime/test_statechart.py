"""The statechart of a version: what it allows, what it stores, what it costs (F10, F11, F13)."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statemachine import StateChart, registry

from flow_engine.runtime.compiled import CompiledFlow, compile_flow
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.rules import TaskGuard, explain
from flow_engine.runtime.statechart import Chart, StateConfiguration, UnknownStates
from flow_engine.task_types import TaskKind, kind_of
from flow_engine.vocabulary import HUMAN_OUTCOMES, TaskType
from tests.flow_engine.documents.samples import aio_task, hum_task, minimal_version

DECIDED = ("approved", "edited", "rejected", "timeout")
NOW = datetime(2026, 1, 15, tzinfo=UTC)
CHANNELS = ("phone", "chat")
VARIABLES = ("var_string", "var_number", "var_boolean")
HOSTILE_IDS = (
    *("send", "model", "states", "active", "closed", "between_contacts", "back", "t0", "enter_1", "class"),
    *("__init__", "a b", "a.b", "a/b", "/", "..", "%2F", "active/x", "è 日本 🏥", "'quote\"", "line\nbreak"),
    *("{}", "0", " "),
)


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    type: TaskType
    connected: tuple[str, ...] = ()
    channels: tuple[str, ...] | None = None
    required: tuple[str, ...] = ()
    approval: bool = False

    @property
    def kind(self) -> TaskKind:
        return kind_of(self.type, approval=self.approval)


@dataclass(frozen=True, slots=True)
class Always:
    """A guard with one answer."""

    answer: bool = True

    def allows(self, task_id: str) -> bool:
        return self.answer


@dataclass
class Reference:
    """The same rules written down plainly, without a chart."""

    nodes: Mapping[str, Node]
    task: str
    phase: str = "active"
    sub: str | None = None
    remembered: str | None = None
    outcomes: Mapping[tuple[str, str | None], Mapping[str, str]] = field(
        default_factory=lambda: {
            ("HUM", "routing"): {"connected": "connected", "failed": "failed"},
            ("HUM", "connected"): {"completed": "completed", "failed": "failed"},
            ("AIS", "ai"): {"taken_over": "human"},
            ("AIS", "human"): {"released": "ai"},
            ("approval", "human"): {"released": "ai"},
            ("approval", "waiting"): {
                **{decision: decision for decision in DECIDED},
                "taken_over": "human",
            },
            **{("approval", sub): {"waiting": "waiting", "taken_over": "human"} for sub in ("ai", *DECIDED)},
        }
    )

    def __post_init__(self) -> None:
        self._stand_in(self.task)

    def _stand_in(self, task: str) -> None:
        self.task, self.phase = task, "active"
        self.sub = {"AIO": None, "HUM": "routing", "AIS": "ai"}[self.nodes[task].type]

    def accepted(self) -> Mapping[str, str]:
        if self.phase != "active":
            return {}
        node = self.nodes[self.task]
        kind = "approval" if node.approval and node.type == "AIS" else node.type
        return self.outcomes.get((kind, self.sub), {})

    def enter(self, target: str, known: frozenset[str], channel: str) -> None:
        node = self.nodes[target]
        if (
            self.phase == "active"
            and target != self.task
            and target in self.nodes[self.task].connected
            and (node.channels is None or channel in node.channels)
            and known.issuperset(node.required)
        ):
            self._stand_in(target)

    def human(self, outcome: str) -> None:
        self.sub = self.accepted().get(outcome, self.sub)

    def pause(self) -> None:
        if self.phase == "active":
            self.phase, self.remembered = "between_contacts", self.task

    def resume(self) -> None:
        if self.phase == "between_contacts" and self.remembered is not None:
            self._stand_in(self.remembered)

    def close(self) -> None:
        if self.phase == "active":
            self.remembered = self.task
        self.phase = "closed"


@st.composite
def charts(draw: st.DrawFn) -> tuple[Node, ...]:
    ids = draw(
        st.lists(st.sampled_from(HOSTILE_IDS) | st.text(max_size=5), min_size=1, max_size=5, unique=True)
    )
    some_ids = st.lists(st.sampled_from(ids), max_size=4, unique=True).map(tuple)
    return tuple(
        Node(
            task_id,
            draw(st.sampled_from(("AIO", "AIS", "HUM"))),
            draw(some_ids),
            draw(st.none() | st.lists(st.sampled_from(CHANNELS), unique=True).map(tuple)),
            draw(st.lists(st.sampled_from(VARIABLES), max_size=2, unique=True).map(tuple)),
            draw(st.booleans()),
        )
        for task_id in ids
    )


def compiled(nodes: tuple[Node, ...]) -> CompiledFlow:
    tasks = [
        (aio_task if node.type == "AIO" else hum_task)(
            node.id,
            name=f"task {number}",  # names must differ after normalising, the ids need not
            type=node.type,
            approval=node.approval,
            connectedTasks=list(node.connected),
            channels=None if node.channels is None else list(node.channels),
            transitionParameters=[{"variableId": v, "required": True} for v in node.required],
        )
        for number, node in enumerate(nodes)
    ]
    return compile_flow(minimal_version(tasks=tasks, firstTask=nodes[0].id), "hash")


def memory(known: frozenset[str]) -> dict[str, MemoryEntry]:
    entries = {v: MemoryEntry("boolean", None, None, None, "c", None) for v in VARIABLES}
    return entries | {v: MemoryEntry("boolean", "tool", NOW, False, "c", None) for v in known}


def stored(states: StateConfiguration) -> StateConfiguration:
    """The states as it comes back from a snapshot."""
    configuration, history = orjson.loads(orjson.dumps([states.configuration, states.history]))
    return StateConfiguration(tuple(configuration), tuple(history))


MOVES = st.one_of(
    st.tuples(
        st.just("enter"),
        st.integers(0, 4),
        st.frozensets(st.sampled_from(VARIABLES)),
        st.sampled_from(CHANNELS),
    ),
    st.tuples(st.just("human"), st.sampled_from((*HUMAN_OUTCOMES, "x"))),
    st.sampled_from([("pause",), ("resume",), ("close",)]),
)


class TestAgainstAPlainModel:
    @given(charts(), st.lists(MOVES, max_size=20))
    @settings(max_examples=120, deadline=None)
    def test_any_walk_over_any_chart_goes_where_the_plain_rules_say(
        self, nodes: tuple[Node, ...], moves: list[Any]
    ) -> None:
        flow, by_id = compiled(nodes), {node.id: node for node in nodes}
        chart, states = flow.chart, flow.chart.start
        expected = Reference(by_id, nodes[0].id)
        self.compare(chart, states, expected)
        for name, *details in moves:
            if name == "enter":
                index, known, channel = details
                target, before = nodes[index % len(nodes)].id, states
                guard = TaskGuard(flow, memory(known), channel)
                states = chart.enter(states, target, guard)
                expected.enter(target, known, channel)
                if before.phase == "active":  # what refuses and what explains agree (F12)
                    here = flow.tasks[chart.current_task(before)]
                    assert (explain(flow, here, target, guard) is None) == (states != before)
            else:
                states = getattr(chart, name)(states, *details)
                getattr(expected, name)(*details)
            self.compare(chart, states, expected)
            states = stored(states)

    def compare(self, chart: Chart, states: StateConfiguration, expected: Reference) -> None:
        chart.check(states)  # F13: whatever was reached can be restored
        assert chart.task_of(states) == chart.task_of(states) == chart.current_task(states)
        assert states.phase == expected.phase  # F10
        assert chart.current_task(states) == expected.task
        assert states.status == (expected.sub if expected.phase == "active" else None)
        assert sorted(chart.accepted_outcomes(states)) == sorted(expected.accepted())
        assert len(states.configuration) <= 3  # exactly one task, with at most one sub-state


class TestEntering:
    CHART = Chart([Node("a", "AIO", ("b", "a")), Node("b", "HUM", ("a",)), Node("c", "AIS", ("a",))], "a")

    @pytest.mark.parametrize("target", ["a", "b", "c"])
    def test_a_guard_that_says_no_leaves_the_position_as_it_was(self, target: str) -> None:
        start = self.CHART.start
        assert self.CHART.enter(start, target, Always(False)) == start  # F11

    def test_a_guard_is_asked_for_the_target_and_only_for_a_connected_one(self) -> None:
        asked: list[str] = []

        class Listening:
            def allows(self, task_id: str) -> bool:
                asked.append(task_id)
                return True

        self.CHART.enter(self.CHART.start, "c", Listening())
        assert asked == []  # F11
        self.CHART.enter(self.CHART.start, "b", Listening())
        assert asked == ["b"]

    def test_a_guard_that_fails_is_raised_and_spoils_no_later_step(self) -> None:
        class Broken:
            def allows(self, task_id: str) -> bool:
                raise LookupError(task_id)

        with pytest.raises(LookupError):
            self.CHART.enter(self.CHART.start, "b", Broken())  # F11
        after = self.CHART.enter(self.CHART.start, "b", Always())
        assert after.configuration == ("active", "active/b", "active/b/routing")

    def test_a_task_connected_to_itself_is_not_entered_again(self) -> None:
        assert self.CHART.enter(self.CHART.start, "a", Always()) == self.CHART.start  # F12


class TestReturning:
    CHART = Chart([Node("a", "AIO", ("h", "s")), Node("h", "HUM", ()), Node("s", "AIS", ())], "a")

    @pytest.mark.parametrize(
        ("task", "outcome", "first"), [("h", "connected", "routing"), ("s", "taken_over", "ai")]
    )
    def test_history_is_shallow_so_the_human_part_begins_again(
        self, task: str, outcome: str, first: str
    ) -> None:
        chart = self.CHART
        inside = chart.human(chart.enter(chart.start, task, Always()), outcome)
        waiting = stored(chart.pause(inside))
        assert waiting == StateConfiguration(("between_contacts",), (f"active/{task}",))  # F10, F14
        assert chart.resume(waiting).status == first

    def test_a_second_pause_remembers_the_task_of_the_second_contact(self) -> None:
        chart = self.CHART
        resumed = chart.resume(chart.pause(chart.start))
        assert chart.current_task(chart.pause(chart.enter(resumed, "h", Always()))) == "h"  # F10

    def test_nothing_leads_out_of_closed(self) -> None:
        chart = self.CHART
        closed = chart.close(chart.start)
        moved = [
            chart.enter(closed, "h", Always()),
            chart.human(closed, "connected"),
            chart.pause(closed),
            chart.resume(closed),
            chart.close(closed),
        ]
        assert moved == [closed] * 5  # F10

    def test_a_pooled_machine_serves_the_next_conversation_after_one_was_closed(self) -> None:
        chart = self.CHART
        for _ in range(3):
            assert chart.close(chart.start).phase == "closed"
            assert chart.current_task(chart.enter(chart.start, "s", Always())) == "s"  # F13


class TestStoredPositions:
    CHART = Chart([Node("a", "AIO", ("h",)), Node("h", "HUM", ("a",)), Node("s", "AIS", ())], "a")

    @pytest.mark.parametrize(
        ("configuration", "history"),
        [
            (("active", "active/gone"), ()),
            (("active", "active/a", "active/a/routing"), ()),
            (("active", "active/h"), ()),
            (("active",), ()),
            (("active/a",), ()),
            ((), ()),
            (("active", "active/a", "active/s"), ()),
            (("active", "active/h", "active/s/ai"), ()),
            (("active", "active/h", "active/h/ai"), ()),
            (("active/a", "active"), ()),
            (("active", "active/a", "closed"), ()),
            (("closed", "between_contacts"), ()),
            (("active", "active/a", "active/a"), ()),
            (("Active", "active/a"), ()),
            (("active", "active/a"), ("active/gone",)),
            (("active", "active/a"), ("closed",)),
            (("active", "active/a"), ("active/a", "active/h")),
            (("between_contacts",), ()),
            (("between_contacts",), ("active/h/routing",)),
            (("between_contacts",), ("between_contacts",)),
        ],
    )
    def test_unknown_and_impossible_positions_are_refused(
        self, configuration: tuple[str, ...], history: tuple[str, ...]
    ) -> None:
        with pytest.raises(UnknownStates):
            self.CHART.check(StateConfiguration(configuration, history))  # F13

    @given(
        st.lists(
            st.sampled_from(["active", "active/a", "active/h", "active/h/routing", "closed", ""]), max_size=4
        ),
        st.lists(st.sampled_from(["active/a", "active/h", "active/x", "closed"]), max_size=2),
    )
    @settings(deadline=None)
    def test_a_position_that_passes_can_be_stepped(
        self, configuration: list[str], history: list[str]
    ) -> None:
        states = StateConfiguration(tuple(configuration), tuple(history))
        try:
            self.CHART.check(states)
        except UnknownStates:
            return
        self.CHART.check(self.CHART.resume(self.CHART.pause(states)))  # F13
        self.CHART.check(self.CHART.close(states))

    def test_an_id_with_a_slash_cannot_be_taken_for_a_sub_state(self) -> None:
        chart = Chart([Node("h", "HUM", ("h/routing",)), Node("h/routing", "AIO", ())], "h")
        inside = chart.enter(chart.start, "h/routing", Always())
        assert chart.current_task(stored(inside)) == "h/routing"  # F10
        assert inside.status is None
        assert chart.start.status == "routing"


def ring(count: int) -> Chart:
    names = [f"task {number}" for number in range(count)]
    return Chart([Node(n, "AIO", (names[(i + 1) % count],)) for i, n in enumerate(names)], names[0])


class TestSharing:
    def test_the_same_tasks_and_ways_have_one_chart_as_long_as_it_is_in_use(self) -> None:  # F13
        def of(*nodes: Node) -> Chart:
            return Chart.of([*nodes, Node("z", "AIO", ("a",))], "a")

        chart = of(Node("a", "AIS", ("z",)))
        assert of(Node("a", "AIS", ("z",), channels=("chat",), required=("v",))) is chart
        others = [
            of(Node("a", "AIS", ("z",), approval=True)),
            of(Node("a", "AIO", ("z",))),
            of(Node("a", "AIS", ())),
            Chart.of([Node("a", "AIS", ("z",)), Node("z", "AIO", ("a",))], "z"),
        ]
        assert chart not in others
        gone = weakref.ref(chart)
        del chart
        gc.collect()
        assert gone() is None

    def test_threads_step_in_one_chart(self) -> None:
        chart = ring(8)

        def walk(_: int) -> list[str]:
            chart._reached.clear()  # so that machines are asked  # pyright: ignore[reportPrivateUsage]
            states, seen = chart.start, list[str]()
            for number in range(1, 8):
                states = chart.enter(states, f"task {number}", Always())
                seen.append(chart.current_task(states))
                chart.pause(states)
            return seen

        with ThreadPoolExecutor(4) as pool:
            walks = list(pool.map(walk, range(40)))
        assert walks == [[f"task {number}" for number in range(1, 8)]] * 40


class TestCost:
    def test_the_librarys_registry_and_memory_do_not_grow_with_versions(self) -> None:
        ring(3)
        gc.collect()
        registered, classes = len(registry._REGISTRY), len(StateChart.__subclasses__())
        for count in range(2, 32):
            ring(count)
        gc.collect()
        assert len(registry._REGISTRY) == registered  # F13
        assert len(StateChart.__subclasses__()) <= classes

    def test_a_steps_cost_does_not_grow_with_the_number_of_tasks(self) -> None:
        def cost(chart: Chart) -> float:
            best = float("inf")
            for _ in range(7):
                started, states = time.perf_counter(), chart.start
                for number in range(1, 11):
                    states = chart.enter(states, f"task {number}", Always())
                best = min(best, time.perf_counter() - started)
                assert chart.current_task(states) == "task 10"
            return best

        small, large = ring(12), ring(100)
        assert cost(large) < 4 * cost(small)  # F13

    def test_building_grows_with_the_tasks_and_hardly_with_their_connections(self) -> None:  # D1
        names = [f"task {number}" for number in range(100)]

        def cost(connections: int) -> float:
            nodes = [Node(name, "AIO", tuple(names[:connections])) for name in names]
            started = time.process_time()
            Chart(nodes, names[0])
            return time.process_time() - started

        cost(1)
        assert min(cost(100) / cost(1) for _ in range(3)) < 3  # 10,000 ways instead of 100

    def test_what_compiling_a_hundred_tasks_takes_is_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        started = time.perf_counter()
        chart = ring(100)
        with capsys.disabled():
            print(f"\ncompiled 100 tasks in {(time.perf_counter() - started) * 1000:.0f} ms")
        assert chart.current_task(chart.start) == "task 0"  # F13
