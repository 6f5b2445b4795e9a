"""The few things about directed graphs that the rules ask. Nothing here recurses: depth is the designer's."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

N = TypeVar("N", bound=Hashable)

Edges = Mapping[N, Sequence[N]]
"""Every node with those that one step leads to."""


def explore(start: N, edges: Edges[N]) -> dict[N, N | None]:
    """Every node that can be reached, nearest first, with the one it was first reached from."""
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
    """A shortest path to `node`, from what `explore` returned."""
    path = [node]
    while (earlier := found[path[-1]]) is not None:
        path.append(earlier)
    return path[::-1]


def reversed_edges(edges: Edges[N]) -> dict[N, list[N]]:
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
