"""Which side of a split a conversation is on: shares, stability, and who moves when weights change."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.ports.flow_store import Split, TagEntry
from flow_engine.use_cases.outcomes import share
from flow_engine.use_cases.splits import (
    BUCKETS,
    ShareOrder,
    bucket_of,
    chosen_version,
    share_findings,
    shared_out,
    subject_of,
)
from tests.api.harness import T0

WEIGHTS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.floats(1.0, 1_000.0), min_size=2, max_size=4
)


def orders(weights: dict[str, float]) -> list[ShareOrder]:
    return [ShareOrder(version_id, weight) for version_id, weight in weights.items()]


def split_of(weights: dict[str, float], before: Split | None = None) -> Split:
    return Split("s1", shared_out(orders(weights), before))


def owners(split: Split) -> list[str]:
    """The version of each bucket; a bucket that two sides have, or none, fails here."""
    found: dict[int, str] = {}
    for side in split.sides:
        for first, end in side.buckets:
            for bucket in range(first, end):
                assert bucket not in found
                found[bucket] = side.version_id
    assert len(found) == BUCKETS
    return [found[bucket] for bucket in range(BUCKETS)]


def entry(split: Split) -> TagEntry:
    return TagEntry("prod", split.sides[0].version_id, "ada", T0, split)


@settings(max_examples=12, deadline=None)
@given(WEIGHTS)
def test_every_bucket_has_one_side_and_every_side_its_share(weights: dict[str, float]) -> None:
    counts, total = Counter(owners(split_of(weights))), sum(weights.values())
    for version_id, weight in weights.items():
        assert abs(counts[version_id] - BUCKETS * weight / total) < 1


@settings(max_examples=12, deadline=None)
@given(WEIGHTS, WEIGHTS)
def test_new_weights_move_as_few_buckets_as_can_be(before: dict[str, float], after: dict[str, float]) -> None:
    first = split_of(before)
    second = split_of(after, first)
    had, has = Counter(owners(first)), Counter(owners(second))
    moved = sum(a != b for a, b in zip(owners(first), owners(second), strict=True))
    assert moved == sum(max(0, has[version_id] - had[version_id]) for version_id in has)


def test_ninety_to_ten_over_ten_thousand_conversations_is_that_within_its_interval() -> None:  # shown 4
    tag = entry(split_of({"base": 90, "next": 10}))
    chosen = [chosen_version("flow-1", tag, f"conv-{number}") for number in range(10_000)]
    on_next = share(chosen.count("next"), 10_000)
    assert (on_next["low"] or 1) <= 0.1 <= (on_next["high"] or 0)
    assert chosen == [chosen_version("flow-1", tag, f"conv-{number}") for number in range(10_000)]


def test_another_flow_or_tag_shares_the_same_people_out_otherwise() -> None:
    people = [f"person-{number}" for number in range(1_000)]
    buckets = [
        [bucket_of(flow, tag, person) for person in people]
        for flow, tag in (("f", "prod"), ("f", "beta"), ("g", "prod"))
    ]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert sum(a == b for a, b in zip(buckets[one], buckets[other], strict=True)) < 10


def test_the_buckets_of_ids_are_these_for_ever() -> None:
    """Stored conversations are on their sides: another hash would move them."""
    assert [bucket_of("health-booking", "prod", who) for who in ("anna", "+39 06 1", "\ud800")] == [
        5741,
        7314,
        1394,
    ]


@pytest.mark.parametrize(
    ("contact", "subject"),
    [
        ({"personId": "p", "callerId": "c"}, "p"),
        ({"callerId": "c"}, "c"),
        ({"personId": "", "callerId": "c"}, "c"),
        ({"personId": 17}, "17"),
        ({"personId": True, "callerId": None}, "conv"),
        ({"personId": ["p"]}, "conv"),
        ({}, "conv"),
    ],
)
def test_who_is_talking_is_the_person_else_the_caller_else_the_conversation(
    contact: dict[str, object], subject: str
) -> None:
    assert subject_of(contact, "conv") == subject


def test_all_that_is_wrong_with_the_sides_is_told_with_its_place() -> None:
    sides = [ShareOrder("a", 10_000.0), ShareOrder("a", 2.0), ShareOrder("b", 0.5)]
    found = share_findings(sides, {})
    assert [(f.pointer, f.code) for f in found] == [
        ("/split/1/versionId", "version_repeated"),
        ("/split/2/weight", "weight_too_small"),
    ]
    assert "10002.5" in found[1].message


def test_a_tag_without_a_split_has_one_side() -> None:
    assert chosen_version("f", TagEntry("prod", "v1", "ada", T0), "anybody") == "v1"
