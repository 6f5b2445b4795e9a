"""The language of conditions: what is read, what it means, what is known of it without values."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flow_engine.conditions import language as lang
from flow_engine.conditions.evaluation import Condition, Explanation, Facts
from flow_engine.conditions.review import Budget, Names, can_hold, problems_of
from flow_engine.conditions.syntax import MAX_CHARS, MAX_NESTING, All, Any, Membership, Not, leaves
from flow_engine.values import JsonValue
from tests.flow_engine.conditions.expressions import (
    TASKS,
    VARIABLES,
    all_facts,
    facts,
    parts,
    trees,
    truth,
)

EXAMPLES = int(os.environ.get("FLOW_ENGINE_TEST_EXAMPLES", "1"))
many = settings(max_examples=60 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
CALLER: dict[str, JsonValue] = {
    "age": 17,
    "name": "Ada",
    "vip": False,
    "size": "S",
    "day": "2026-04-01",
    "phone": {"country": "IT", "type": "mobile", "number": "+393471234567"},
    "any id": {"list": [], "items": [{"price": 3}], "zero": 0, "empty": "", "tags": ["new"]},
}


def test_every_name_is_on_the_page_for_designers_and_in_what_a_mistake_accepts() -> None:
    page = (Path(__file__).parents[3] / "docs/flow-document.md").read_text("utf-8")
    conditions = page.split("\n## Conditions\n")[1].split("\n## ")[0]
    for word in (*lang.ROOTS, *lang.COUNTS, *lang.UNITS):
        assert re.search(rf"`{word}\b", conditions), word
        assert re.search(rf"\b{word}\b", lang.ACCEPTED), word


def condition(text: str) -> Condition:
    return Condition.compile(text, VARIABLES)


def of(tree: lang.Tree) -> Condition:
    return condition(lang.text_of(tree))


def asked(text: str, **values: JsonValue) -> bool | None:
    return condition(text).truth(facts({**CALLER, **values}))


# --- what is read -------------------------------------------------------------------------------


@many
@given(trees)
def test_a_tree_that_is_written_down_reads_back(tree: lang.Tree) -> None:
    text = lang.text_of(tree)
    read = lang.parse(text)
    assert lang.text_of(read) == text
    assert repr(lang.parse(lang.text_of(read))) == repr(read)


WORDS = ("(", ")", "[", "]", "not", "and", "or", "in", "vars.age", "==", "1", "'a'", "-", "has", ",", "now")


@many
@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_read_or_refused_with_its_place(text: str) -> None:
    place = 1
    try:
        lang.parse(text)
    except lang.ConditionMistake as mistake:
        place = mistake.at
    assert 1 <= place <= len(text) + 1


@pytest.mark.parametrize(
    ("text", "at", "hint"),
    [
        ("vars.age >", 11, "accepted is vars.x"),
        ("vars.age = 18", 10, "`==` compares"),
        ("vars.age & 1", 10, "`and` is written out"),
        ("vars.age == null", 13, "has(…)"),
        ("(vars.age == 1", 15, "')'"),
        ("has(1)", 5, "vars.x"),
        ("days('1') > days(2)", 6, "a number"),
        ("entries(menu) > 1", 9, "in quotes"),
        ("vars.age in 5", 13, "a list"),
        ("'open", 1, "no closing quote"),
        ("1e99 == 1", 1, "64 bits"),
    ],
)
def test_what_cannot_be_read_says_where_and_what_would_be(text: str, at: int, hint: str) -> None:
    with pytest.raises(lang.ConditionMistake) as refused:
        condition(text)
    assert refused.value.at == at
    assert hint in refused.value.message


@pytest.mark.parametrize(
    "text", ["age > 1", "vars > 1", "channel.x == 1", "today-days(1) < now", "sum(1) > 2"]
)
def test_a_name_that_the_language_lacks_is_told_apart(text: str) -> None:
    with pytest.raises(lang.UnknownName, match="accepted"):
        condition(text)


def test_length_and_depth_are_bounded() -> None:
    with pytest.raises(lang.ConditionMistake, match="2000 characters"):
        condition("true or " * MAX_CHARS)
    assert condition("not " * MAX_NESTING + "true").truth(facts()) is True
    with pytest.raises(lang.ConditionMistake, match="40 levels"):
        condition("(" * (MAX_NESTING + 1) + "true" + ")" * (MAX_NESTING + 1))


# --- what it means ------------------------------------------------------------------------------


@many
@given(trees, all_facts)
def test_the_truth_is_that_of_a_second_reading(tree: lang.Tree, known: Facts) -> None:
    assert of(tree).truth(known) is truth(tree, known)


@many
@given(trees, trees, trees, all_facts)
def test_the_laws_of_kleene_hold(one: lang.Tree, two: lang.Tree, three: lang.Tree, known: Facts) -> None:
    def same(left: lang.Tree, right: lang.Tree) -> bool:
        return of(left).truth(known) is of(right).truth(known)

    assert same(Not(Not(one)), one)
    assert same(Not(All((one, two))), Any((Not(one), Not(two))))
    assert same(Not(Any((one, two))), All((Not(one), Not(two))))
    assert same(All((one, two)), All((two, one)))
    assert same(All((one, All((two, three)))), All((All((one, two)), three)))
    assert same(All((one, Any((two, three)))), Any((All((one, two)), All((one, three)))))
    assert same(Any((one, All((one, two)))), one)


@pytest.mark.parametrize(
    "text",
    [
        "vars.age < 18 and vars.age >= 17 and vars.age != 3.5",
        "vars.name == 'Ada' and vars.name < 'Adb' and vars.name != 'ada'",
        "vars.vip == false and not vars.vip",
        "has(vars.vip) and has(vars.age) and not has(vars.gone)",
        "vars.phone == '+393471234567'",
        'vars["any id"].items[0].price == 3 and has(vars["any id"].list) and has(vars["any id"].zero)',
        'not has(vars["any id"].empty) and not has(tenant.none) and not has(tenant.blank)',
        "'new' in vars['any id'].tags and 'old' not in vars['any id'].tags",
        "vars.size in ['S', 'M'] and vars.age not in [1, 2]",
        "tenant.plan == 'gold' and tenant.seats > 2 and contact.room.floor == 2",
        "channel == 'phone' and language == 'it-IT'",
        "today == '2026-03-29' and now < '2026-03-29' or today == '2026-03-29'",
        "now == '2026-03-28T23:30:00Z' and now == '2026-03-29T00:30:00'",
        "vars.day - today == days(3) and vars.day > today + days(2)",
        "today + hours(24) == now + hours(22) + minutes(30)",
        "vars.day <= '2026-04-01' and '2026-04-02' - vars.day == hours(24)",
        "entries('menu') == 2 and refusals('menu') >= 1 and entries('gone') == 0",
        "days(1) == hours(24)",
        "vars.age in [] or true",
        "not (vars.age in [])",
    ],
)
def test_what_holds(text: str) -> None:
    assert asked(text) is True
    assert asked(f"not ({text})") is False


@pytest.mark.parametrize(
    "text",
    [
        "vars.gone == 1",
        "vars.gone != 1",
        "not (vars.gone == 1)",
        "vars.gone in []",
        "vars.gone not in [1]",
        "vars.age == '17'",
        "vars.age != '17'",
        "vars.vip < true",
        "vars.vip == 0",
        "vars.name",
        "vars.gone == vars.gone",
        "vars.age in ['17']",
        "vars.age in vars.name",
        "vars.age in [vars.gone, 3]",
        "vars.day == vars.name",
        "tenant.plan < today",
        "vars['any id'].empty == ''",
        "today + days(9000000) > today",
        "days(99999999999) > days(1)",
        "vars.day + 1 > vars.day",
        "true and vars.gone",
        "false or vars.gone",
    ],
)
def test_what_is_unknown(text: str) -> None:
    assert asked(text) is None


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("now - vars['any id'].at < hours(2) and vars['any id'].at < now", True),
        ("vars['any id'].day == today and vars['any id'].day in [vars.day, today]", True),
        ("vars.day - tenant.since == days(31) and contact.until - tenant.since == days(27)", True),
        ("contact.until + days(1) == today and not (contact.until > today)", True),
        ("vars['any id'].word < today", None),
        ("now - vars['any id'].word < hours(2)", None),
    ],
)
def test_a_text_of_json_beside_a_date_is_read_as_one(text: str, known: bool | None) -> None:  # F9, F11
    order: JsonValue = {"at": "2026-03-28T22:30:00Z", "day": "2026-03-29", "word": "soon"}
    memory: dict[str, JsonValue] = {**CALLER, "any id": order}
    there = facts(memory, tenant={"since": "2026-03-01"}, contact={"until": "2026-03-28"})
    assert condition(text).truth(there) is known
    assert not list(problems_of(lang.parse(text), Names(VARIABLES, frozenset(TASKS))))
    assert holds_ever(text)


def test_unknown_gives_way_to_what_decides() -> None:
    assert asked("true or vars.gone") is True
    assert asked("false and vars.gone") is False
    assert asked("vars.gone or vars.age == 17") is True


@many
@given(trees, all_facts)
def test_every_way_that_an_explanation_names_would_do(tree: lang.Tree, known: Facts) -> None:
    found = of(tree).explain(known)
    assert found.truth is of(tree).truth(known)
    if found.truth is True:
        assert found.would_hold == ()
    for way in found.would_hold:
        # Where its parts come true, so does the whole: the others stay what they are.
        assert not condition(way).truth(known)
    assert [part.truth for part in found.parts] == [
        of(part).truth(known) for part in leaves(lang.parse(lang.text_of(tree)))
    ]


def explained(text: str, **values: JsonValue) -> Explanation:
    return condition(text).explain(facts({**CALLER, **values}))


def test_an_explanation_tells_each_part_with_its_values_and_what_would_change_it() -> None:
    text = "vars.age >= 18 and (has(vars.gone) or tenant.plan  == 'gold') and not (now > vars.day)"
    found = explained(text)
    assert found.truth is False
    assert [(part.expression, part.truth, dict(part.values)) for part in found.parts] == [
        ("vars.age >= 18", False, {"vars.age": 17}),
        ("has(vars.gone)", False, {"vars.gone": None}),
        ("tenant.plan  == 'gold'", True, {"tenant.plan": "gold"}),
        ("now > vars.day", False, {"now": "2026-03-28T23:30:00Z", "vars.day": "2026-04-01"}),
    ]
    assert found.would_hold == ("vars.age >= 18",)
    assert explained("vars.vip or vars.age > 17 and has(vars.gone)").would_hold == (
        "vars.vip",
        "vars.age > 17 and has(vars.gone)",
    )
    assert explained("not (vars.age == 17 or vars.size in ['S'])").would_hold == (
        "vars.age != 17 and vars.size not in ['S']",
    )
    assert explained("1 == 2").would_hold == ()


def test_long_values_are_cut_in_an_explanation() -> None:
    (part,) = explained("vars['any id'] == vars.name", **{"any id": ["x" * 5_000], "name": "y" * 5_000}).parts
    assert len(str(part.values)) < 1_300


def test_a_hostile_condition_is_answered_at_once() -> None:
    started = time.process_time()
    text = " or ".join(f"(vars.age == {n} and vars.x == {n})" for n in range(48))
    assert len(text) <= MAX_CHARS
    found = condition(text).explain(facts({"age": 999}))
    assert len(found.would_hold) <= 5
    tree = lang.parse(f"not ({text})")
    assert can_hold([(tree, "true")], VARIABLES, {}, Budget())
    assert time.process_time() - started < 5


# --- what is known without values ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("vars.age > 1 and vars.gone == vars.other", ["condition_unknown_name"] * 2),
        ("entries('nowhere') > 1", ["condition_unknown_name"]),
        ("vars.age.years > 1", ["condition_unknown_name"]),
        ("vars.age == '17'", ["condition_type_clash"]),
        ("vars.vip > false", ["condition_type_clash"]),
        ("vars.day > 'tomorrow'", ["condition_type_clash"]),
        ("vars.day + 1 > now", ["condition_type_clash"]),
        ("now + today > now", ["condition_type_clash"]),
        ("days(1) - now > days(1)", ["condition_type_clash"]),
        ("now > days(1)", ["condition_type_clash"]),
        ("vars.name", ["condition_type_clash"]),
        ("vars.age in ['a', 1]", ["condition_type_clash"]),
        ("vars.age in vars.name", ["condition_type_clash"]),
        ("vars.size == true", ["condition_type_clash"]),
        ("vars.age > 1 and tenant.x == 'a' and vars.any.deep[0] == 3", []),
        ("vars.day > '2026-01-01' and vars.vip and vars.size in ['S', 42]", []),
        ("now - vars.day > days(1) + hours(2) and vars.phone == '+39'", []),
        ("'2026-01-01' + days(3) > vars.day and vars.age in vars['any id']", []),
    ],
)
def test_names_and_types_are_checked(text: str, codes: list[str]) -> None:
    found = list(problems_of(lang.parse(text), Names(VARIABLES, frozenset(TASKS))))
    assert [code for code, _ in found] == codes
    assert all(reason for _, reason in found)


def test_a_name_that_stands_alone_is_told_how_it_is_asked_for() -> None:  # F9
    [(_, reason)] = problems_of(lang.parse("not vars.name"), Names(VARIABLES, frozenset(TASKS)))
    assert reason == "'vars.name': a text is not true or false; has(vars.name) asks whether there is one"


def holds_ever(*texts: str) -> bool:
    channels = {lang.Reference("channel"): ("phone", "chat")}
    return can_hold([(lang.parse(text), "true") for text in texts], VARIABLES, channels, Budget())


@pytest.mark.parametrize(
    "text",
    [
        "vars.age > 5 and vars.age < 3",
        "vars.age > 3 and not (vars.age > 2)",
        "vars.size == 'XL'",
        "vars.size in ['XL', 'L']",
        "channel == 'fax'",
        "has(vars.age) and not has(vars.age)",
        "vars.name == 'a' and vars.name == 'b'",
        "vars.vip and not vars.vip",
        "vars.age < vars['any id'] and vars['any id'] <= vars.age",
        "entries('menu') < 0",
        "vars.day > '2026-02-01' and vars.day < '2026-01-01'",
        "today - vars.day > days(3) and today - vars.day < days(2)",
        "tenant.day > days(1) and tenant.day == 'x'",
        "false",
        "vars.age in []",
        "vars.name == ''",
        "vars.age > 1 and not has(vars.age)",
    ],
)
def test_what_can_never_hold_is_seen(text: str) -> None:
    assert not holds_ever(text)


@pytest.mark.parametrize(
    "text",
    [
        "vars.age > 3 and vars.age < 4",
        "entries('menu') == 0",
        "channel == 'chat'",
        "not (vars.age == 3)",
        "vars.size != 'S'",
        "vars.name > 'a' and vars.name < 'b'",
        "vars.day == '2026-01-05' and vars.day < '2026-01-05T00:00:00Z'",  # east of Greenwich
        "vars.age == vars['any id'] and vars['any id'] > 2",
    ],
)
def test_what_can_hold_is_not_accused(text: str) -> None:
    assert holds_ever(text)


@settings(many, max_examples=100 * EXAMPLES)
@given(st.lists(trees, min_size=1, max_size=2), st.lists(all_facts, min_size=1, max_size=4))
def test_what_is_said_to_be_impossible_never_happens(conjuncts: list[lang.Tree], known: list[Facts]) -> None:
    goals = [lang.parse(lang.text_of(tree)) for tree in conjuncts]
    truths = [[of(tree).truth(each) for tree in conjuncts] for each in known]
    channels = {lang.Reference("channel"): ("phone", "chat")}
    if any(all(found) for found in truths):
        assert can_hold([(tree, "true") for tree in goals], VARIABLES, channels, Budget())
    if any(not found[0] for found in truths):
        assert can_hold([(goals[0], "not_true")], VARIABLES, channels, Budget())


@many
@given(parts, all_facts)
def test_what_clashes_is_never_true_nor_false(part: lang.Part, known: Facts) -> None:
    codes = [code for code, _ in problems_of(part, Names(VARIABLES, frozenset(TASKS)))]
    membership = isinstance(part, Membership)  # one member may clash, and another be the value
    if "condition_type_clash" in codes and not membership:
        assert of(part).truth(known) is None


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([], False),
        ([2, 3.5], False),
        ([2, 1.0], True),
        ([2, "1"], None),
        ([2, True], None),
        ([None, 1], True),
        ([[1], {}], None),
    ],
)
def test_a_list_of_many_kinds_is_judged_member_by_member(
    members: list[JsonValue], expected: bool | None
) -> None:
    assert condition("1 in vars['any id']").truth(facts({"any id": members})) is expected
    opposite = None if expected is None else not expected
    assert condition("1 not in vars['any id']").truth(facts({"any id": members})) is opposite


@pytest.mark.parametrize("members", [[*range(50_000)], ["code", 7] * 25_000], ids=["numbers", "both"])
def test_a_list_of_numbers_takes_no_longer_than_one_of_texts(members: list[JsonValue]) -> None:
    def seconds(text: str, known: Facts) -> float:
        asked, started = condition(text), time.process_time()
        for _ in range(20):
            asked.truth(known)
        return time.process_time() - started

    texts, others = facts({"any id": [f"code {n}" for n in range(50_000)]}), facts({"any id": members})
    asked = ("'none' in vars['any id']", texts), ("-1 in vars['any id']", others)
    assert min(seconds(*asked[1]) / seconds(*asked[0]) for _ in range(4)) < 4


def test_a_long_list_is_looked_through_in_a_moment() -> None:
    known = facts({"any id": [f"code {n}" for n in range(20_000)]})
    for text, expected in (("'none' in vars['any id']", False), ("'code 19999' in vars['any id']", True)):
        asked, started = condition(text), time.process_time()
        assert {asked.truth(known) for _ in range(1_000)} == {expected}
        assert time.process_time() - started < 5
