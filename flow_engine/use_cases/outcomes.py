"""What came of the conversations of a split: what is counted of one, and what the counts can tell.

1. A conversation counts once, whole as it stood when its last contact ended; what is found out later, such as
   its result, is counted later in its place.
2. A share is told with its Wilson interval, a mean with Student's, both for 95 %.
3. What nothing was counted of has no value. Below the guard's minimum a side has too few conversations to be
   judged, and says so.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import sqrt

from typing_extensions import TypedDict

from flow_engine.ports.dialogue import is_user_turn
from flow_engine.ports.flow_store import Guard, GuardMetric, Split
from flow_engine.runtime.mining_state import Conclusion
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.task_types import TASK_KINDS

MINIMUM = 30
"""Conversations of a side that is no longer called too few, where no guard says otherwise."""
MEANS: tuple[GuardMetric, ...] = ("turns", "durationS")
Z = 1.959963984540054
_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""For 1, 2, … degrees of freedom, where the expansion of `_student` is not near enough."""
_LONGEST_TENTHS = 10 * 864_000
_RESULT = "result:"


class Estimate(TypedDict):
    """`low` and `high` are the bounds of the 95 % interval. `n`: of how many conversations. None where those
    are too few to tell anything. A share of 1, turns, or seconds."""

    value: float | None
    low: float | None
    high: float | None
    n: int


class OutcomeMetrics(TypedDict):
    """`refused`, `stalled`, `humanTransfers`: the share of conversations with at least one refusal, one
    stall, one task that hands over to a human or that a human has taken over. `turns`: messages of the user.
    `durationS`: seconds of all contacts. `results`: by name, the share among the conversations that a model
    has concluded."""

    refused: Estimate
    stalled: Estimate
    humanTransfers: Estimate
    turns: Estimate
    durationS: Estimate
    results: Mapping[str, Estimate]


class VersionOutcomes(TypedDict):
    versionId: str
    weight: float
    conversations: int
    tooFew: bool
    metrics: OutcomeMetrics


Sums = Mapping[str, int]


def counts_of(runner: ConversationalFlowRunner, conclusions: Mapping[str, Conclusion]) -> dict[str, int]:
    """What one conversation adds to its version's sums. `conclusions` by contact id; the latest counts."""
    session, mining = runner.session, runner.loaded.mining
    lasted = sum(
        (
            (contact.ended_at - contact.started_at)
            for contact in session.own_contacts.values()
            if contact.ended_at is not None
        ),
        timedelta(),
    )
    turns = sum(map(is_user_turn, runner.loaded.turns))
    tenths = min(round(lasted / timedelta(seconds=0.1)), _LONGEST_TENTHS)
    transfers = mining.taken_over or any(
        TASK_KINDS[runner.flow.tasks[task_id].type].transfers
        for task_id in session.entered
        if task_id in runner.flow.tasks
    )
    concluded = [conclusions[id] for id in session.own_contacts if id in conclusions]
    counts = {
        "conversations": 1,
        "refused": int(any(session.refused.values())),
        "stalled": int(mining.stalls > 0),
        "humanTransfers": int(transfers),
        "turns": turns,
        "turns²": turns * turns,
        "durationS": tenths,
        "durationS²": tenths * tenths,
        "concluded": int(bool(concluded)),
    }
    if concluded and concluded[-1].result is not None:
        counts[_RESULT + concluded[-1].result] = 1
    return counts


def outcomes_of(split: Split, sums: Mapping[str, Sums]) -> list[VersionOutcomes]:
    """Of each side, in their order; every result that any side has had is told of all."""
    of_sides = {side.version_id: sums.get(side.version_id, {}) for side in split.sides}
    results = sorted({name for each in of_sides.values() for name in each if name.startswith(_RESULT)})
    least = minimum_of(split.guard)
    return [
        VersionOutcomes(
            versionId=side.version_id,
            weight=side.weight,
            conversations=(own := of_sides[side.version_id]).get("conversations", 0),
            tooFew=own.get("conversations", 0) < least,
            metrics=OutcomeMetrics(
                refused=_metric("refused", own),
                stalled=_metric("stalled", own),
                humanTransfers=_metric("humanTransfers", own),
                turns=_metric("turns", own),
                durationS=_metric("durationS", own),
                results={
                    name.removeprefix(_RESULT): share(own.get(name, 0), own.get("concluded", 0))
                    for name in results
                },
            ),
        )
        for side in split.sides
    ]


def minimum_of(guard: Guard | None) -> int:
    return MINIMUM if guard is None else guard.minimum


def worse_side(split: Split, sums: Mapping[str, Sums]) -> str | None:
    """The id of the version that the split's guard gives up, the worst of several; None for none."""
    guard = split.guard
    base = sums.get(split.sides[0].version_id, {})
    if guard is None or base.get("conversations", 0) < guard.minimum:
        return None
    normal, worst = _metric(guard.metric, base)["value"], None
    most = guard.worse_by - 1e-9
    for side in split.sides[1:]:
        own = sums.get(side.version_id, {})
        value = _metric(guard.metric, own)["value"]
        if own.get("conversations", 0) < guard.minimum or value is None or normal is None:
            continue
        if value - normal >= most:
            worst, most = side.version_id, value - normal
    return worst


def _metric(name: GuardMetric, sums: Sums) -> Estimate:
    n, total = sums.get("conversations", 0), sums.get(name, 0)
    if name not in MEANS:
        return share(total, n)
    unit = 10 if name == "durationS" else 1
    return mean(total / unit, sums.get(f"{name}²", 0) / unit**2, n)


def share(hits: int, n: int) -> Estimate:
    """A share of 1 with its Wilson interval."""
    if n == 0:
        return Estimate(value=None, low=None, high=None, n=0)
    value = hits / n
    middle = (value + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * sqrt(value * (1 - value) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    low = 0.0 if hits == 0 else max(0.0, middle - half)
    high = 1.0 if hits == n else min(1.0, middle + half)
    return Estimate(value=value, low=low, high=high, n=n)


def mean(total: float, squares: float, n: int) -> Estimate:
    """The mean of numbers that are not negative, in their unit, with Student's interval. One number has no
    interval."""
    if n == 0:
        return Estimate(value=None, low=None, high=None, n=0)
    value = total / n
    if n == 1:
        return Estimate(value=value, low=None, high=None, n=1)
    half = _student(n - 1) * sqrt(max(0.0, squares - total * value) / (n - 1) / n)
    return Estimate(value=value, low=max(0.0, value - half), high=value + half, n=n)


def _student(freedom: int) -> float:
    """The quantile of Student's distribution that 2.5 % lie above, by the expansion of Cornish and Fisher."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    terms: Sequence[float] = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
    )
    return Z + sum(term / freedom**power for power, term in enumerate(terms, 1))
