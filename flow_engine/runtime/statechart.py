"""The statechart of one flow version (F10) and how it is stepped.

    active (compound)
      ├── one state a task; HUM: routing → connected → completed | failed; AIS: ai ↔ human;
      │   AIS with approval: ai → waiting → approved | edited | rejected | timeout → waiting …, all ↔ human
      └── back (shallow history)
    between_contacts            only reached by conversations over several contacts
    closed (final)

Two names for every state: python-statemachine's id, an attribute of the machine's class and so made
from numbers only (ids such as `send`, `model` or ones with spaces break it), and its value, which is
what a snapshot stores and people read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast
from urllib.parse import quote
from weakref import WeakValueDictionary

from msgspec import Struct
from statemachine import StateChart, registry
from statemachine.io import create_machine_class_from_definition  # pyright: ignore[reportUnknownVariableType]
from statemachine.orderedset import OrderedSet
from statemachine.utils import qualname  # pyright: ignore[reportUnknownVariableType]

from flow_engine.task_types import ACTIVE, BETWEEN_CONTACTS, CLOSED, TaskKind
from flow_engine.vocabulary import HumanOutcome, Phase


class TaskNode(Protocol):
    """What the chart must know of a task."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> TaskKind: ...
    @property
    def connected(self) -> tuple[str, ...]: ...


class EntryGuard(Protocol):
    """Asked before a task is entered to which the chart has a way. It reads and answers, no more (F11)."""

    def allows(self, task_id: str) -> bool: ...


class StateConfiguration(Struct, frozen=True):
    """Where a conversation stands: active state values, outermost first, and what history holds. At most
    three values; ids in them are percent-encoded in UTF-8."""

    configuration: tuple[str, ...]
    history: tuple[str, ...] = ()

    @property
    def phase(self) -> Phase:
        return cast("Phase", self.configuration[0])

    @property
    def status(self) -> str | None:
        """The active sub-state of a HUM or AIS task, for example `routing`. None where there is none."""
        return status_in(self.configuration)


def status_in(configuration: tuple[str, ...]) -> str | None:
    """The sub-state of a HUM or AIS task in active state values. None where there is none."""
    return configuration[2].rpartition("/")[2] if len(configuration) > 2 else None


class UnknownStates(ValueError):
    """A stored configuration names states that this chart lacks, or that cannot be active together."""


def task_state(task_id: str) -> str:
    return f"{ACTIVE}/{quote(task_id, safe='')}"


def sub_state(task_id: str, name: str) -> str:
    return f"{task_state(task_id)}/{name}"


REMEMBERED_MOVES = 10_000

_Shape: TypeAlias = tuple[str, tuple[tuple[str, int, tuple[str, ...]], ...]]
"""The first task; of each task its id, which row of kinds it has, and its ways."""

_in_use: WeakValueDictionary[_Shape, "Chart"] = WeakValueDictionary()


class Chart:
    """A compiled chart with its pool of machines.

    Instantiating a machine costs time with the number of states, stepping one does not: a machine is
    taken from the pool, put into the conversation's states, sent one event, and given back. Threads may share
    a chart.
    """

    @classmethod
    def of(cls, tasks: Sequence[TaskNode], first_task: str) -> "Chart":
        """Versions that differ in their texts alone share a chart, as long as one of them is in use: building
        it takes half of the time of compiling."""
        shape = (first_task, tuple([(task.id, id(task.kind), task.connected) for task in tasks]))
        chart = _in_use.get(shape)
        if chart is None:
            chart = _in_use[shape] = cls(tasks, first_task)
        return chart

    def __init__(self, tasks: Sequence[TaskNode], first_task: str) -> None:
        self._kinds = {task.id: task.kind for task in tasks}
        self._owners = {task_state(task.id): task.id for task in tasks}
        self._events = {task.id: f"enter_{number}" for number, task in enumerate(tasks)}
        self._machine_class = _build_class(tasks, first_task, self._events)
        self._idle: list[StateChart[Any]] = []
        self._reached: dict[tuple[StateConfiguration, str], StateConfiguration] = {}
        self._standing: dict[StateConfiguration, str] = {}
        first = self._take()
        self.start = StateConfiguration(_values(first.configuration_values))
        self._values = frozenset(first.states_map)
        self._idle.append(first)

    def enter(self, states: StateConfiguration, task_id: str, guard: EntryGuard) -> StateConfiguration:
        """Try to move to a task. The same configuration comes back when the chart does not allow it.

        The guard is asked every time. Raises KeyError for an unknown task.
        """
        reached = self._after(states, self._events[task_id])
        return reached if reached != states and guard.allows(task_id) else states

    def placed(self, task_id: str) -> StateConfiguration:
        """In a task as it is entered, whatever the way to it: for contacts that have no other place. Raises
        KeyError for an unknown task."""
        kind = self._kinds[task_id]
        inner = (sub_state(task_id, kind.sub_states[0]),) if kind.sub_states else ()
        return StateConfiguration((ACTIVE, task_state(task_id), *inner))

    def human(self, states: StateConfiguration, outcome: HumanOutcome) -> StateConfiguration:
        return self._after(states, f"human_{outcome}")

    def pause(self, states: StateConfiguration) -> StateConfiguration:
        return self._after(states, "contact_ended")

    def resume(self, states: StateConfiguration) -> StateConfiguration:
        return self._after(states, "contact_resumed")

    def close(self, states: StateConfiguration) -> StateConfiguration:
        return self._after(states, "conversation_closed")

    def moved(self, states: StateConfiguration, task_id: str, new_task_id: str) -> StateConfiguration:
        """The same place in a task that has another id in this version, for migrations. Raises UnknownStates
        when it cannot be there."""
        old, new = task_state(task_id), task_state(new_task_id)

        def renamed(values: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(
                new + value.removeprefix(old) if value == old or value.startswith(old + "/") else value
                for value in values
            )

        # What history held before the conversation was taken up again means nothing any more.
        history = () if states.phase == ACTIVE else states.history
        moved = StateConfiguration(renamed(states.configuration), renamed(history))
        self.check(moved)
        return moved

    def current_task(self, states: StateConfiguration) -> str:
        """The active task's id or, between contacts, that of the task which will be resumed. Raises
        UnknownStates for a task that this version lacks."""
        where = states.configuration[1:2] or states.history
        if not where or where[0] not in self._owners:
            raise UnknownStates(f"no task of this version is in {states.configuration!r}")
        return self._owners[where[0]]

    def task_of(self, states: StateConfiguration) -> str:
        """The current task of a stored configuration. Raises UnknownStates for one that this chart cannot be
        in. What is legal is remembered: a conversation is taken up with every request."""
        task_id = self._standing.get(states)
        if task_id is None:
            self.check(states)
            if len(self._standing) >= REMEMBERED_MOVES:
                self._standing.clear()
            task_id = self._standing[states] = self.current_task(states)
        return task_id

    def accepted_outcomes(self, states: StateConfiguration) -> tuple[HumanOutcome, ...]:
        """The outcomes of F34 that move the chart from here. Empty where no human takes part. Raises
        UnknownStates."""
        status = states.status
        if status is None:
            return ()
        moves = self._kinds[self.current_task(states)].events
        return tuple(event for event, arcs in moves.items() if any(source == status for source, _ in arcs))

    def check(self, states: StateConfiguration) -> None:
        """Refuse a stored configuration at load: an unknown state is noticed late by the machine (F13).
        Raises UnknownStates."""
        unknown = [v for v in (*states.configuration, *states.history) if v not in self._values]
        if unknown:
            raise UnknownStates(f"states {unknown!r} are not in this version")
        legal: list[tuple[str, ...]] = []
        if states.configuration and states.phase in (BETWEEN_CONTACTS, CLOSED):
            legal = [(states.phase,)]
        elif states.configuration:
            task_id = self.current_task(StateConfiguration(states.configuration))
            outer, inner = (ACTIVE, task_state(task_id)), self._kinds[task_id].sub_states
            legal = [(*outer, sub_state(task_id, name)) for name in inner] or [outer]
        if states.configuration not in legal:
            raise UnknownStates(f"states {states.configuration!r} cannot be active together")
        remembered = len(states.history)
        if remembered > 1 or any(value not in self._owners for value in states.history):
            raise UnknownStates(f"states {states.history!r} cannot be what history holds")
        if states.phase != ACTIVE and not remembered:
            raise UnknownStates(f"{states.phase!r} without the task that it was reached from")

    def _take(self) -> StateChart[Any]:
        try:
            return self._idle.pop()
        except IndexError:
            return self._machine_class()

    def _after(self, states: StateConfiguration, event: str) -> StateConfiguration:
        """Where an event leads, by the configuration alone: the machine is asked once for each."""
        reached = self._reached.get((states, event))
        if reached is None:
            reached = self._send(states, event)
            if len(self._reached) >= REMEMBERED_MOVES:
                self._reached.clear()
            self._reached[states, event] = reached
        return reached

    def _send(self, states: StateConfiguration, event: str) -> StateConfiguration:
        machine = self._take()
        machine.model.state = OrderedSet(states.configuration)
        remembered = [machine.states_map[value] for value in states.history]
        machine.history_values = {"back": remembered} if remembered else {}
        machine.send(event)
        reached = StateConfiguration(
            _values(machine.configuration_values),
            tuple(state.value for state in machine.history_values.get("back", ())),
        )
        # A machine that reached a final state refuses further events until it is told to run again.
        machine._engine.running = True  # pyright: ignore[reportPrivateUsage]
        # On an error the machine is dropped instead of given back half-stepped.
        self._idle.append(machine)
        return reached


def _values(configuration: Iterable[object]) -> tuple[str, ...]:
    return tuple(sorted((str(value) for value in configuration), key=lambda value: value.count("/")))


def _build_class(
    tasks: Sequence[TaskNode], first_task: str, events: Mapping[str, str]
) -> type[StateChart[Any]]:
    ids = {task.id: f"t{number}" for number, task in enumerate(tasks)}
    leave: dict[str, list[dict[str, object]]] = {
        "contact_ended": [{"target": BETWEEN_CONTACTS}],
        "conversation_closed": [{"target": CLOSED}],
    }
    states: dict[str, Any] = {
        ACTIVE: {
            "initial": True,
            "states": {ids[task.id]: _task_definition(task, first_task, ids[task.id]) for task in tasks},
            "history": {"back": {"type": "shallow"}},
            "on": {**_entries(tasks, ids, events), **leave},
        },
        BETWEEN_CONTACTS: {
            "on": {
                "contact_resumed": [{"target": "back"}],
                "conversation_closed": [{"target": CLOSED}],
            }
        },
        CLOSED: {"final": True},
    }
    machine_class: type[StateChart[Any]] = create_machine_class_from_definition(  # pyright: ignore[reportUnknownVariableType]
        "ConversationChart",
        states=states,
        catch_errors_as_events=False,  # a guard that fails is a bug: raise it, do not turn it into an event
        validate_disconnected_states=False,
        validate_trap_states=False,
        validate_final_reachability=False,
    )
    # The library keeps every class it makes in a global registry, which would grow by every version.
    registry._REGISTRY.pop(qualname(machine_class), None)  # pyright: ignore[reportPrivateUsage]
    return machine_class


def _entries(
    tasks: Sequence[TaskNode], ids: Mapping[str, str], events: Mapping[str, str]
) -> dict[str, list[dict[str, object]]]:
    """The ways into the tasks. Each is one transition inside `active` that is taken from the tasks that name
    its target, since a transition for each pair of tasks would take minutes to build."""
    sources: dict[str, set[str]] = {task.id: set() for task in tasks}
    for task in tasks:
        for target in task.connected:
            if target != task.id:
                sources[target].add(task_state(task.id))
    return {
        events[task.id]: [
            {"target": ids[task.id], "internal": True, "cond": _comes_from(frozenset(sources[task.id]))}
        ]
        for task in tasks
    }


def _comes_from(sources: frozenset[str]) -> Callable[[StateChart[Any]], bool]:
    def comes_from(machine: StateChart[Any]) -> bool:
        return not sources.isdisjoint(machine.configuration_values)

    return comes_from


def _task_definition(task: TaskNode, first_task: str, chart_id: str) -> dict[str, Any]:
    definition: dict[str, Any] = {"value": task_state(task.id), "initial": task.id == first_task}
    if task.kind.sub_states:
        definition["states"] = {
            f"{chart_id}_{name}": {
                "value": sub_state(task.id, name),
                "initial": number == 0,
                "on": {
                    f"human_{event}": [{"target": f"{chart_id}_{target}"}]
                    for event, arcs in task.kind.events.items()
                    for source, target in arcs
                    if source == name
                },
            }
            for number, name in enumerate(task.kind.sub_states)
        }
    return definition
