"""Conditions: what holds, for every value; what cannot be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.http_tools.expressions import Condition
from channels.http_tools.scope import Scope
from flow_engine.conditions.lexing import Mistake
from flow_engine.json_values import same_json
from flow_engine.values import JsonValue

NAMES = frozenset({"target", "other"})
DOCUMENT: JsonValue = {
    "blocked": True,
    "count": 3,
    "status": "open",
    "list": [{"x": 1}],
    "a b": 1,
    "none": None,
}
SCOPE = Scope(
    pre={"order": {"status": "pending"}},
    args={"n": 3, "text": "open", "attack": "' or true or '", "number": "3"},
    ctx={"placed": True, "off": False, "empty": "", "zero": 0, "my-flag": True},
    session={"vip": True},
    agent={"id": "a-1"},
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)
OPENING_WORDS = ("(", "[", "{{", "not", "null", "1", "'a'", "$.x", "ctx.a", "target")
WORDS = (*OPENING_WORDS, ")", "]", "}}", ",", "==", "<", "in", "and", "or", "|", ".")
SIGNS = ("==", "!=", "<", "<=", ">", ">=")


def holds(text: str, target: JsonValue = None) -> bool:
    return Condition.parse(text, NAMES).holds(SCOPE, DOCUMENT, {"target": target})


@pytest.mark.parametrize(
    "text",
    [
        "$.blocked == true",
        "$.blocked",
        "$.count >= 3 and $.count < 4",
        "$.list[0].x == 1",
        "$.list.0.x == 1",
        "$['a b'] == 1",
        "$.none == null",
        "$.gone == null",
        "$.gone.deeper == null",
        "$ != null",
        "not ctx.off and not ctx.gone and ctx.placed",
        "ctx.my-flag",
        "not ctx.empty",
        "not ctx.zero",
        "not $.none",
        "not (ctx.placed and ctx.off)",
        "not not ctx.placed",
        "not ctx.placed == false",
        "ctx.off or ctx.placed",
        "ctx.placed or ctx.off and ctx.off",
        "(ctx.placed or ctx.off) and session.vip",
        "pre.order.status in ['pending', 'confirmed']",
        "pre.order.status in['pending']",
        'pre.order.status not in ["done", null, 1]',
        "not pre.order.status in []",
        "pre.order.status not in []",
        "args.n in [1, 2, 3.0]",
        "args.n == $.count",
        "args.n == 3.0",
        "args.n > -1",
        "args.n>-1",
        "agent.id == 'a-1'",
        "'b' > 'a'",
        "1.5e1 == 15",
        "target == null",
        "$.blocked == True and $.none == None and ctx.off == False",
        "{{args.n}} == 3",
        "$.status == {{args.text}}",
        "$.status == '{{args.text}}'",
        "'<open>' == '<{{args.text}}>'",
        "{{args.gone | default(3)}} == $.count",
        r"'it\'s' == " + '"it\'s"',
    ],
)
def test_what_holds(text: str) -> None:  # V9
    assert holds(text)
    assert not holds(f"not ({text})")


@pytest.mark.parametrize(
    "text",
    [
        "args.number == 3",
        "args.number in [3]",
        "args.number < 4",
        "args.number >= 3",
        "true == 1",
        "false == 0",
        "ctx.zero == false",
        "ctx.empty == null",
        "null < 1",
        "null >= null",
        "true > false",
        "$.list > 0",
        "$.list == 'x'",
        "'10' == 10",
        "target",
        "other",
    ],
)
def test_values_of_different_types_are_different_and_have_no_order(text: str) -> None:  # V9
    assert not holds(text)


def test_the_names_of_the_extracts_stand_for_themselves() -> None:  # V7
    assert holds("target.status == 'done'", {"status": "done"})
    assert not holds("target == null", {"status": "done"})


class TestAnArgument:
    @given(st.text())
    def test_is_never_syntax(self, text: str) -> None:  # V9
        scope = Scope(args={"x": text}, ctx={"secret": False})
        assert Condition.parse("{{args.x}} == args.x").holds(scope)
        assert Condition.parse("'{{args.x}}' == args.x").holds(scope)
        assert not Condition.parse("'<{{args.x}}>' == ''").holds(scope)

    def test_spelled_as_an_attack_is_a_text(self) -> None:  # V9
        assert not holds("$.status == '{{args.attack}}'")
        assert not holds("$.status == {{args.attack}}")
        assert holds("$.status == '' or true or ''"), "put into the text, it would hold"


class TestForEveryValue:
    @given(values, values)
    def test_every_comparison_has_an_answer(self, left: JsonValue, right: JsonValue) -> None:  # V9
        scope = Scope(args={"l": left, "r": right})
        answers = {sign: Condition.parse(f"args.l {sign} args.r").holds(scope) for sign in SIGNS}
        assert answers["=="] != answers["!="]
        assert not (answers["<"] and answers[">"])
        assert Condition.parse("args.l in [args.r]").holds(scope) == answers["=="]
        assert Condition.parse("args.l not in [args.r]").holds(scope) == answers["!="]
        if type(left) is not type(right) and {type(left), type(right)} != {int, float}:
            assert not any(answers[sign] for sign in SIGNS if sign != "!=")

    @given(values)
    def test_a_lone_value_holds_or_not(self, value: JsonValue) -> None:  # V9
        scope = Scope(args={"l": value})
        assert Condition.parse("args.l").holds(scope) != Condition.parse("not args.l").holds(scope)

    @given(values)
    def test_nothing_is_unequal_to_itself(self, value: JsonValue) -> None:  # V9
        assert same_json(value, value) or "nan" in repr(value)

    def test_depth_is_no_matter(self) -> None:  # V9
        one: JsonValue = []
        other: JsonValue = []
        for _ in range(5000):
            one, other = [one], [other]
        assert same_json(one, other)
        assert not same_json(one, [other])

    @pytest.mark.parametrize(
        ("one", "other"),
        [([1], [True]), ([0], [False]), ({"a": 1}, {"a": True}), ({"a": 1}, {"b": 1}), ([1], [1, 1])],
    )
    def test_booleans_are_no_numbers_inside_of_values_either(
        self, one: JsonValue, other: JsonValue
    ) -> None:  # V9
        assert not same_json(one, other)
        assert same_json(one, one)


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "at", "accepted"),
        [
            ("", 1, "$.x"),
            ("   ", 4, "$.x"),
            ("ctx.a = 1", 7, "`==`"),
            ("ctx.a && ctx.b", 7, "`and`"),
            ("ctx.a || ctx.b", 7, "or"),
            ("!ctx.a", 1, "`not`"),
            ("ctx.a ==", 9, "a number"),
            ("ctx.a == 1 == 1", 12, "the end"),
            ("1 < ctx.a < 3", 11, "the end"),
            ("ctx.a and", 10, "ctx.x"),
            ("(ctx.a", 7, "')'"),
            ("ctx.a)", 6, "the end"),
            ("ctx.a in 'abc'", 10, "a list"),
            ("ctx.a in ctx.b", 10, "a list"),
            ("ctx.a in [1 2]", 13, "','"),
            ("ctx.a in [1", 12, "','"),
            ("ctx.a not 1", 11, "`in`"),
            ("nobody == 1", 1, "other, target"),
            ("caller_phone == 1", 1, "{{placeholder}}"),
            ("len(ctx.a) > 1", 1, "$.x"),
            ("ctx.a + 1 == 2", 7, "accepted"),
            ("ctx.a.b() == 2", 8, "the end"),
            ("__import__('os').system('x')", 1, "$.x"),
            ("ctx.a == 'open", 10, "no closing quote"),
            (r"ctx.a == '\x41'", 10, "no escape"),
            ("ctx.a == 01", 10, "accepted"),
            ("ctx.a == 1 if true else 2", 12, "the end"),
            ("ctx.a == [1]", 10, "a number"),
            ("lambda: 1", 1, "$.x"),
            ("ctx.a == {{args.b", 18, "'}}'"),
            ("ctx.a == {{args.b | up}}", 21, "default(X)"),
            ("ctx.a == 'x{{args.b'", 20, "'}}'"),
            ("ctx.a or " * 300, 2001, "2000"),
            ("not " * 50 + "ctx.a", 161, "40"),
            ("(" * 50 + "ctx.a", 41, "40"),
        ],
    )
    def test_name_the_place_and_what_is_accepted(self, text: str, at: int, accepted: str) -> None:  # V9
        with pytest.raises(Mistake) as caught:
            Condition.parse(text, NAMES)
        assert caught.value.at == at
        assert accepted in str(caught.value)

    @given(st.lists(st.sampled_from(WORDS)))
    def test_are_all_there_is_beside_conditions(self, words: list[str]) -> None:  # V9
        try:
            condition = Condition.parse(" ".join(words), NAMES)
        except Mistake:
            return
        assert condition.holds(SCOPE) in (True, False)
