"""How much of a flow its scenarios walk through: tasks entered and connections taken, of all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.testing.running import Played


@dataclass(frozen=True, slots=True)
class Share:
    """`left_out` are the names of what was not reached, in the flow's order."""

    total: int
    left_out: tuple[str, ...]

    @property
    def reached(self) -> int:
        return self.total - len(self.left_out)

    @property
    def percent(self) -> float:
        """A flow that has none of something leaves nothing out."""
        return 100.0 * self.reached / self.total if self.total else 100.0


@dataclass(frozen=True, slots=True)
class Coverage:
    tasks: Share
    transitions: Share


def measure(flow: CompiledFlow, played: Iterable[Played]) -> Coverage:
    """A connection of a task with itself leads nowhere and does not count."""
    scenarios = list(played)
    entered = frozenset[str]().union(*(scenario.entered for scenario in scenarios))
    taken = frozenset[tuple[str, str]]().union(*(scenario.taken for scenario in scenarios))
    arcs = [
        (plan.id, target) for plan in flow.tasks.values() for target in plan.connected if target != plan.id
    ]
    names = {task_id: plan.name for task_id, plan in flow.tasks.items()}
    return Coverage(
        tasks=Share(len(names), tuple(name for task_id, name in names.items() if task_id not in entered)),
        transitions=Share(
            len(arcs),
            tuple(
                f"{names[source]} → {names[target]}"
                for source, target in arcs
                if (source, target) not in taken
            ),
        ),
    )
