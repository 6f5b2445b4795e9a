"""Paths through a flow: the few things about directed graphs that the rules ask, and which tasks can be
entered, given what may have been written on the way. Nothing here recurses: depth is the designer's.

The second is an analysis of the flow of data. Its facts, per path from the first task:

1. The dialogue can fill every variable that is neither custom nor a card number, in any task (F37, F38), the
   first included.
2. Those two are written by tools only (F18): by those that say so in `writes` or `resultMapping`, and by
   those that say nothing of what they write, which may write any of them.
3. Nothing can be stored in an enum without usable values.
4. A task's requirements are asked when it is entered from another, not at the start (F11).

So all that matters about a path is its last task and what the tools on it may have written: these pairs are
the nodes of the graph that is explored.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

N = TypeVar("N", bound=Hashable)

Edges = Mapping[N, Sequence[N]]
"""Every node with those that one step leads to."""


def explore(start: N, edges: Edges[N]) -> dict[N, N | None]:
    """Every node that can be reached, nearest first, with the one it was first reached from. Unknown targets
    count as nodes without edges."""
    found: dict[N, N | None] = {start: None}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for target in edges.get(node, ()):
            if target not in found:
                found[target] = node
                waiting.append(target)
    return found


def path_to(node: N, found: Mapping[N, N | None]) -> list[N]:
    """A shortest path to `node`, from what `explore` returned. Raises KeyError for a node that was not
    found."""
    path = [node]
    while (earlier := found[path[-1]]) is not None:
        path.append(earlier)
    return path[::-1]


def reversed_edges(edges: Edges[N]) -> dict[N, list[N]]:
    """Every node with those that lead to it; an empty list where none do."""
    backwards: dict[N, list[N]] = {node: [] for node in edges}
    for node, targets in edges.items():
        for target in targets:
            backwards.setdefault(target, []).append(node)
    return backwards


def leading_to(goals: Iterable[N], edges: Edges[N]) -> set[N]:
    """Every node from which one of the goals can be reached, the goals among them."""
    backwards = reversed_edges(edges)
    found = set(goals)
    waiting = list(found)
    while waiting:
        for source in backwards.get(waiting.pop(), ()):
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def components(edges: Edges[N]) -> list[list[N]]:
    """Strongly connected components, each after all those that it leads to (Tarjan's order)."""
    order: dict[N, int] = {}
    lowest: dict[N, int] = {}
    open_nodes: list[N] = []
    done: set[N] = set()
    result: list[list[N]] = []
    for root in edges:
        if root in order:
            continue
        order[root] = lowest[root] = len(order)
        open_nodes.append(root)
        trail: list[tuple[N, Iterator[N]]] = [(root, iter(edges[root]))]
        while trail:
            node, targets = trail[-1]
            target = next(targets, None)
            if target is None:
                trail.pop()
                if trail:
                    parent = trail[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[node])
                if lowest[node] == order[node]:
                    component = open_nodes[open_nodes.index(node) :]
                    del open_nodes[-len(component) :]
                    done.update(component)
                    result.append(component)
            elif target not in order:
                order[target] = lowest[target] = len(order)
                open_nodes.append(target)
                trail.append((target, iter(edges.get(target, ()))))
            elif target not in done:
                lowest[node] = min(lowest[node], order[target])
    return result


# --- the flow of data -------------------------------------------------------------------------

Arrival = tuple[str, int]
"""A task, and what a tool may have written in a task before it: bit 0 where one was selected at all, the
others for variables of their own."""


@dataclass(frozen=True, slots=True)
class Barriers:
    """`writing` and `needing`: by task the bits that its tools may set, and those that it requires.
    `impossible` tasks require what can never be stored, or a condition that never holds; `closed` are moves
    whose conditions never hold."""

    writing: Mapping[str, int]
    needing: Mapping[str, int]
    impossible: Set[str]
    closed: Set[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Exploration:
    """`arrivals`: each with the one before it on a shortest path. `closed_moves`: those that cannot be
    made on an arrival that can happen. `_moves`: what each arrival leads to."""

    arrivals: Mapping[Arrival, Arrival | None]
    closed_moves: Sequence[tuple[Arrival, str]]
    _moves: Mapping[Arrival, Sequence[Arrival]]

    @cached_property
    def open_moves(self) -> frozenset[tuple[str, str]]:
        """From a task to one that it leads to, as they can be made on an arrival that can happen."""
        return frozenset((a[0], target) for a in self.arrivals for target, _ in self._moves.get(a, ()))

    @property
    def entered(self) -> frozenset[str]:
        return frozenset(task_id for task_id, _ in self.arrivals)

    def can_follow(self, arrival: Arrival, task_id: str) -> bool:
        """Whether the task can be entered at any time after the arrival."""
        return bool(self._later[arrival] & self._bits.get(task_id, 0))

    @cached_property
    def _bits(self) -> Mapping[str, int]:
        return {task_id: 1 << number for number, (task_id, _) in enumerate(self._moves)}

    @cached_property
    def _later(self) -> Mapping[Arrival, int]:
        """The tasks that can be entered after an arrival, as bits. Components come after those that they lead
        to, so that one pass is enough."""
        later: dict[Arrival, int] = {}
        for component in components(self._moves):
            reached = 0
            for arrival in component:
                for target in self._moves[arrival]:
                    # Still unknown within the component: its own targets are counted one by one.
                    reached |= self._bits[target[0]] | later.get(target, 0)
            later.update(dict.fromkeys(component, reached))
        return later


def explore_arrivals(
    first_task: str, connections: Mapping[str, Sequence[str]], barriers: Barriers
) -> Exploration:
    """Every arrival that can happen from the first task on. An unknown first task has none beyond itself."""
    start: Arrival = (first_task, 0)
    arrivals: dict[Arrival, Arrival | None] = {start: None}
    moves: dict[Arrival, list[Arrival]] = {}
    closed: list[tuple[Arrival, str]] = []
    refused: dict[int, Set[str]] = {}
    waiting: deque[Arrival] = deque([start])
    while waiting:
        arrival = waiting.popleft()
        task_id, before = arrival
        written = before | barriers.writing.get(task_id, 0)
        if written not in refused:
            refused[written] = barriers.impossible | {t for t, n in barriers.needing.items() if n & ~written}
        targets, here = connections.get(task_id, ()), refused[written]
        shut = {t for t in targets if t in here or (task_id, t) in barriers.closed}
        onward = moves[arrival] = [(target, written) for target in targets if target not in shut]
        closed += [(arrival, target) for target in targets if target in shut]
        for reached in onward:
            if reached not in arrivals:
                arrivals[reached] = arrival
                waiting.append(reached)
    numbers = {task_id: number for number, task_id in enumerate(connections)}
    closed.sort(key=lambda move: (numbers.get(move[0][0], 0), move[0][1]))
    return Exploration(arrivals=arrivals, closed_moves=closed, _moves=moves)
