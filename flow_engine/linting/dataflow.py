"""Which tasks can be entered, given what may have been written on the way.

An analysis of the flow of data over the graph of tasks. Its facts, per path from the first task:

1. The dialogue can fill every variable that is not custom, in any task (F37, F38), the first included.
2. A custom variable is written by tools only (F18). Which tool writes which variable is not declared, so
   a tool that any task before has selected may have written any of them.
3. Nothing can be stored in an enum without usable values.
4. A task's requirements are asked when it is entered from another, not at the start (F11).

So all that matters about a path is its last task and whether a tool was selected on it: these pairs are
the nodes of the graph that is explored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from flow_engine.linting.graph import components, explore

Arrival = tuple[str, bool]
"""A task, and whether a tool was selected in a task before it."""


@dataclass(frozen=True, slots=True)
class Barriers:
    """Tasks by what closes them: `with_tools` select one; `needing_tools` require a custom variable;
    `impossible` require what can never be stored."""

    with_tools: Set[str]
    needing_tools: Set[str]
    impossible: Set[str]


@dataclass(frozen=True, slots=True)
class Exploration:
    """`arrivals`: each with the one before it on a shortest path. `closed_moves`: those that cannot be
    made on an arrival that can happen. `_later`: the tasks that can be entered after an arrival, as bits."""

    arrivals: Mapping[Arrival, Arrival | None]
    open_moves: frozenset[tuple[str, str]]
    closed_moves: Sequence[tuple[Arrival, str]]
    _later: Mapping[Arrival, int]
    _bits: Mapping[str, int]

    @property
    def entered(self) -> frozenset[str]:
        return frozenset(task_id for task_id, _ in self.arrivals)

    def can_follow(self, arrival: Arrival, task_id: str) -> bool:
        """Whether the task can be entered at any time after the arrival."""
        return bool(self._later[arrival] & self._bits[task_id])


def explore_arrivals(
    first_task: str, connections: Mapping[str, Sequence[str]], barriers: Barriers
) -> Exploration:
    moves: dict[Arrival, list[Arrival]] = {}
    closed: list[tuple[Arrival, str]] = []
    for task_id, targets in connections.items():
        for before in (False, True):
            tools = before or task_id in barriers.with_tools
            refused = barriers.impossible if tools else barriers.impossible | barriers.needing_tools
            moves[task_id, before] = [(target, tools) for target in targets if target not in refused]
            closed += [((task_id, before), target) for target in targets if target in refused]
    arrivals = explore((first_task, False), moves)
    bits = {task_id: 1 << number for number, task_id in enumerate(connections)}
    return Exploration(
        arrivals=arrivals,
        open_moves=frozenset((a[0], target) for a in arrivals for target, _ in moves.get(a, ())),
        closed_moves=[(source, target) for source, target in closed if source in arrivals],
        _later=_later(moves, bits),
        _bits=bits,
    )


def _later(moves: Mapping[Arrival, Sequence[Arrival]], bits: Mapping[str, int]) -> dict[Arrival, int]:
    """Components come after those that they lead to, so that one pass is enough."""
    later: dict[Arrival, int] = {}
    for component in components(moves):
        reached = 0
        for arrival in component:
            for target in moves[arrival]:
                # Still unknown within the component: its own targets are counted one by one.
                reached |= bits[target[0]] | later.get(target, 0)
        later.update(dict.fromkeys(component, reached))
    return later
