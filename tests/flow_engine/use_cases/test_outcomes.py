"""What the counts of a split can tell: intervals, too few, and when a guard gives a side up."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_engine.ports.flow_store import Guard, GuardMetric, Split, SplitSide
from flow_engine.use_cases.outcomes import Estimate, mean, outcomes_of, share, worse_side

BASE, NEXT, THIRD = SplitSide("base", 80), SplitSide("next", 10), SplitSide("third", 10)


def bounds(estimate: Estimate) -> tuple[float, float]:
    assert estimate["low"] is not None
    assert estimate["high"] is not None
    return estimate["low"], estimate["high"]


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(10, 100, 0.0552, 0.1744), (0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0), (1, 1, 0.2065, 1.0)],
)
def test_a_share_has_wilsons_interval(hits: int, n: int, low: float, high: float) -> None:
    found = share(hits, n)
    assert (found["value"], found["n"]) == (hits / n, n)
    assert bounds(found) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("numbers", "half"),  # 12.7062·σ/√n for two, 2.5706 for six, 2.0452 for thirty
    [([1.0, 3.0], 12.7062), ([1.0, 2, 3, 4, 5, 6], 1.9633), ([4.0] * 15 + [8.0] * 15, 0.7595)],
)
def test_a_mean_has_students_interval(numbers: list[float], half: float) -> None:
    found = mean(sum(numbers), sum(x * x for x in numbers), len(numbers))
    middle = sum(numbers) / len(numbers)
    assert found["value"] == middle
    assert bounds(found) == pytest.approx((max(0.0, middle - half), middle + half), abs=2e-3)


def test_nothing_tells_nothing_and_one_number_no_interval() -> None:
    nothing = Estimate(value=None, low=None, high=None, n=0)
    assert share(0, 0) == mean(0, 0, 0) == nothing
    assert mean(7, 49, 1) == Estimate(value=7, low=None, high=None, n=1)


def test_nineteen_of_twenty_intervals_hold_what_is_true() -> None:
    draw = random.Random(4)
    inside = 0
    for _ in range(400):
        low, high = bounds(share(sum(draw.random() < 0.1 for _ in range(60)), 60))
        inside += low <= 0.1 <= high
    assert 0.92 <= inside / 400 <= 0.99
    inside = 0
    for _ in range(400):
        numbers = [draw.gauss(50, 10) for _ in range(12)]
        low, high = bounds(mean(math.fsum(numbers), math.fsum(x * x for x in numbers), 12))
        inside += low <= 50 <= high
    assert 0.92 <= inside / 400 <= 0.98


def split(metric: GuardMetric = "refused", *, worse_by: float = 0.2, minimum: int = 40) -> Split:
    return Split("s", (BASE, NEXT, THIRD), Guard(metric, worse_by, minimum))


def sums(n: int, **counts: int) -> Mapping[str, int]:
    return {"conversations": n, **counts}


class TestGuard:
    def test_a_side_that_is_worse_by_enough_is_given_up(self) -> None:
        counted = {"base": sums(100, refused=10), "next": sums(40, refused=12), "third": sums(40, refused=4)}
        assert worse_side(split(), counted) == "next"  # exactly 0.2 worse

    def test_the_worst_of_several_is_named(self) -> None:
        counted = {"base": sums(100), "next": sums(40, refused=20), "third": sums(40, refused=30)}
        assert worse_side(split(), counted) == "third"

    @pytest.mark.parametrize(
        "counted",
        [
            {"base": sums(39), "next": sums(40, refused=40)},
            {"base": sums(40), "next": sums(39, refused=39)},
            {"base": sums(40, refused=4), "next": sums(40, refused=11)},
            {"base": sums(40, refused=40), "next": sums(40)},
            {"next": sums(400, refused=400)},
            {},
        ],
    )
    def test_too_few_on_a_side_or_a_smaller_difference_judges_nobody(
        self, counted: Mapping[str, Mapping[str, int]]
    ) -> None:
        assert worse_side(split(), counted) is None

    def test_means_are_compared_in_their_unit(self) -> None:
        counted = {"base": sums(50, durationS=50 * 600), "next": sums(50, durationS=50 * 890)}
        assert worse_side(split("durationS", worse_by=30), counted) is None
        assert worse_side(split("durationS", worse_by=29), counted) == "next"
        longer = {"base": sums(50, turns=100), "next": sums(50, turns=200)}
        assert worse_side(split("turns", worse_by=2), longer) == "next"

    def test_without_a_guard_nobody_is_judged(self) -> None:
        counted = {"base": sums(100), "next": sums(100, refused=100)}
        assert worse_side(Split("s", (BASE, NEXT)), counted) is None


def test_every_side_tells_every_result_and_whether_it_is_too_few() -> None:
    counted = {
        "base": {**sums(40), "concluded": 20, "result:booked": 15, "result:gone": 5},
        "next": {**sums(39), "concluded": 10, "result:booked": 2},
    }
    base, other, third = outcomes_of(split(), counted)
    assert [(side["versionId"], side["conversations"], side["tooFew"]) for side in (base, other, third)] == [
        ("base", 40, False),
        ("next", 39, True),
        ("third", 0, True),
    ]
    assert base["metrics"]["results"]["booked"]["value"] == 0.75
    assert other["metrics"]["results"]["gone"] == share(0, 10)
    assert third["metrics"]["results"]["gone"]["value"] is None
    without_guard = outcomes_of(Split("s", (BASE, NEXT)), {"base": sums(30), "next": sums(29)})
    assert [side["tooFew"] for side in without_guard] == [False, True]


# Laws -----------------------------------------------------------------------------------------------

COUNTS = st.integers(1, 2_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(COUNTS)
def test_an_interval_of_a_share_holds_it_and_stays_a_share(counted: tuple[int, int]) -> None:
    hits, n = counted
    found = share(hits, n)
    low, high = bounds(found)
    assert found["value"] is not None
    assert 0 <= low <= found["value"] <= high <= 1
    other_low, other_high = bounds(share(n - hits, n))
    assert (other_low, other_high) == pytest.approx((1 - high, 1 - low)), "who was hit and who was not"


@given(COUNTS, st.integers(2, 20))
def test_more_conversations_of_the_same_share_tell_more(counted: tuple[int, int], times: int) -> None:
    hits, n = counted
    low, high = bounds(share(hits, n))
    nearer = bounds(share(hits * times, n * times))
    assert nearer[1] - nearer[0] < high - low


@given(st.lists(st.integers(0, 500), min_size=2, max_size=40))
def test_the_interval_of_a_mean_holds_it_and_is_none_where_all_are_the_same(numbers: list[int]) -> None:
    found = mean(sum(numbers), sum(x * x for x in numbers), len(numbers))
    low, high = bounds(found)
    assert found["value"] is not None
    assert 0 <= low <= found["value"] <= high
    if len(set(numbers)) == 1:
        assert (low, high) == pytest.approx((numbers[0], numbers[0]))


SIDE = st.fixed_dictionaries({"conversations": st.integers(0, 120), "hits": st.integers(0, 120)})


@given(base=SIDE, one=SIDE, other=SIDE, percent=st.integers(1, 90), minimum=st.integers(1, 100))
def test_a_guard_gives_up_only_who_was_counted_enough_and_is_worse_by_enough(
    base: Mapping[str, int], one: Mapping[str, int], other: Mapping[str, int], percent: int, minimum: int
) -> None:
    counted = {
        name: sums(each["conversations"], refused=min(each["hits"], each["conversations"]))
        for name, each in (("base", base), ("next", one), ("third", other))
    }
    found = worse_side(split(worse_by=percent / 100, minimum=minimum), counted)
    worse = {
        name: counted[name]["refused"] / n - counted["base"]["refused"] / counted["base"]["conversations"]
        for name in ("next", "third")
        if (n := counted[name]["conversations"]) >= minimum and counted["base"]["conversations"] >= minimum
    }
    if found is None:
        assert all(by < percent / 100 for by in worse.values())
    else:
        assert worse[found] >= percent / 100 - 1e-9
        assert worse[found] == max(worse.values())
        stricter = worse_side(split(worse_by=worse[found] + 0.01, minimum=minimum), counted)
        assert stricter is None, "nobody is worse than the worst"
