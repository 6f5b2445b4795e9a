"""How values compare and add up, and how a condition is read into words, in tables (F11)."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.conditions.comparing import added, compare, identity, time_of
from flow_engine.conditions.evaluation import Condition
from flow_engine.conditions.language import ConditionMistake, UnknownName, parse, read
from flow_engine.conditions.lexing import Mistake, Reader, path_of
from tests.flow_engine.conditions.expressions import VARIABLES, facts

ROME = ZoneInfo("Europe/Rome")
DAY = date(2026, 3, 29)
MOMENT = datetime(2026, 3, 29, 10, tzinfo=UTC)
HOUR, ONE_DAY = timedelta(hours=1), timedelta(days=1)

TABLE = [
    # left, right, and what == < are
    (1, 1, True, False),
    (1, 2, False, True),
    (2, 1, False, False),
    (1, 1.0, True, False),
    (0.1, 0.2, False, True),
    (-1, 0, False, True),
    ("a", "a", True, False),
    ("a", "A", False, False),
    ("A", "a", False, True),
    ("a", "b", False, True),
    ("", "a", False, True),
    (True, True, True, None),
    (True, False, False, None),
    (True, 1, None, None),
    (0, False, None, None),
    ("1", 1, None, None),
    ("true", True, None, None),
    (None, None, None, None),
    (None, 1, None, None),
    ([], [], True, None),
    ([1], [1.0], True, None),
    ([1], [True], False, None),
    ([1], [1, 2], False, None),
    ({}, {}, True, None),
    ({"a": 1}, {"a": 1}, True, None),
    ({"a": 1}, {"b": 1}, False, None),
    ({"a": [1]}, {"a": [2]}, False, None),
    ([], {}, None, None),
    ([], "", None, None),
    ({}, 1, None, None),
    (DAY, DAY, True, False),
    (DAY, DAY + ONE_DAY, False, True),
    (MOMENT, MOMENT + HOUR, False, True),
    (MOMENT, DAY, True, False),
    (MOMENT, "2026-03-29", None, None),
    (DAY, 1, None, None),
    (HOUR, HOUR, True, False),
    (HOUR, ONE_DAY, False, True),
    (HOUR, 1, None, None),
    (HOUR, DAY, None, None),
]


def negated(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


class TestComparing:
    @pytest.mark.parametrize(("left", "right", "equal", "less"), TABLE)
    def test_each_sign_follows_from_equal_and_less(
        self, left: Any, right: Any, equal: bool | None, less: bool | None
    ) -> None:
        signs = ("==", "!=", "<", ">=", ">", "<=")
        found = [compare(left, sign, right, ROME) for sign in signs]
        greater = None if less is None else not less and not equal
        assert found == [  # F11: what cannot be compared is unknown, not false
            *(equal, negated(equal)),
            *(less, negated(less)),
            *(greater, negated(greater)),
        ]

    @pytest.mark.parametrize(("left", "right", "equal", "less"), TABLE)
    def test_the_other_way_round_it_is_the_mirror(
        self, left: Any, right: Any, equal: bool | None, less: bool | None
    ) -> None:
        assert compare(right, "==", left, ROME) == equal
        assert compare(right, ">", left, ROME) == less

    @pytest.mark.parametrize(("left", "right", "equal", "less"), TABLE)
    def test_what_a_value_is_told_by_tells_the_same(
        self, left: Any, right: Any, equal: bool | None, less: bool | None
    ) -> None:
        one, other = identity(left, UTC), identity(right, UTC)
        if left is not None and right is not None:
            assert (one[0] == other[0]) is (equal is not None)  # F11
        if not isinstance(left, list | dict) and {type(left), type(right)} != {datetime}:
            assert (one == other and left is not None) is bool(equal)

    @pytest.mark.parametrize(
        ("moment", "zone", "same_day"),
        [
            (datetime(2026, 3, 28, 23, 30, tzinfo=UTC), ROME, True),
            (datetime(2026, 3, 28, 22, 30, tzinfo=UTC), ROME, False),
            (datetime(2026, 3, 29, 22, 30, tzinfo=UTC), ROME, False),
            (datetime(2026, 3, 28, 23, 30, tzinfo=UTC), UTC, False),
            (datetime(2026, 3, 29, 1, tzinfo=ROME), ZoneInfo("America/New_York"), False),
        ],
    )
    def test_a_moment_beside_a_date_is_its_day_in_the_tenants_zone(
        self, moment: datetime, zone: Any, same_day: bool
    ) -> None:
        assert compare(moment, "==", DAY, zone) is same_day  # F11, F24

    def test_at_the_ends_of_the_calendar_nothing_is_known(self) -> None:
        edge = datetime(1, 1, 1, tzinfo=UTC)
        assert compare(edge, "<", DAY, ZoneInfo("America/New_York")) is None  # A9


class TestAdding:
    @pytest.mark.parametrize(
        ("left", "sign", "right", "result"),
        [
            (DAY, 1, ONE_DAY, DAY + ONE_DAY),
            (DAY, -1, ONE_DAY, DAY - ONE_DAY),
            (ONE_DAY, 1, DAY, DAY + ONE_DAY),
            (ONE_DAY, -1, DAY, None),
            (DAY, 1, HOUR, datetime(2026, 3, 29, 0, tzinfo=UTC)),
            (MOMENT, 1, HOUR, MOMENT + HOUR),
            (HOUR, 1, MOMENT, MOMENT + HOUR),
            (MOMENT, -1, HOUR, MOMENT - HOUR),
            (DAY, -1, DAY - ONE_DAY, ONE_DAY),
            (MOMENT, -1, MOMENT - HOUR, HOUR),
            (MOMENT, -1, DAY - ONE_DAY, ONE_DAY),
            (DAY, 1, DAY, None),
            (MOMENT, 1, MOMENT, None),
            (HOUR, 1, HOUR, 2 * HOUR),
            (HOUR, -1, ONE_DAY, HOUR - ONE_DAY),
            (date(9999, 12, 31), 1, ONE_DAY, None),
            (date(1, 1, 1), -1, ONE_DAY, None),
            (timedelta.max, 1, ONE_DAY, None),
            (1, 1, 1, None),
            ("a", 1, "b", None),
            (None, 1, ONE_DAY, None),
            (DAY, 1, None, None),
        ],
    )
    def test_dates_moments_and_durations_add_up(self, left: Any, sign: int, right: Any, result: Any) -> None:
        assert added(left, sign, right, ROME) == result  # F11

    def test_an_hour_is_an_hour_when_the_clocks_change(self) -> None:
        before = datetime(2026, 3, 29, 1, 30, tzinfo=ROME)
        after = added(before, 1, HOUR, ROME)
        assert isinstance(after, datetime)
        assert after.isoformat() == "2026-03-29T03:30:00+02:00"  # F11

    @settings(max_examples=30)
    @given(st.dates(date(2, 1, 1), date(9998, 12, 31)), st.integers(-300, 300))
    def test_what_is_added_can_be_taken_away_again(self, day: date, days: int) -> None:
        there = added(day, 1, timedelta(days=days), ROME)
        assert added(there, -1, timedelta(days=days), ROME) == day
        assert added(there, -1, day, ROME) == timedelta(days=days)


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "time"),
        [
            ("2026-03-29", DAY),
            (" 2026-03-29 ", DAY),
            ("20260329", DAY),
            ("2026-03-29T10:00:00Z", MOMENT),
            ("2026-03-29t10:00z", MOMENT),
            ("2026-03-29T12:00:00+02:00", MOMENT),
            ("2026-03-29T12:00", datetime(2026, 3, 29, 12, tzinfo=ROME)),
            ("2026-02-30", None),
            ("2026-3-29", None),
            ("yesterday", None),
            ("", None),
            (20260329, None),
            (None, None),
            (["2026-03-29"], None),
        ],
    )
    def test_a_text_is_a_date_a_moment_or_neither(self, text: object, time: Any) -> None:
        assert time_of(text, ROME) == time  # F5, F11


class TestWords:
    def tokens(self, text: str) -> list[tuple[str, str, int]]:
        reader = Reader(text, 0, Mistake)
        found: list[tuple[str, str, int]] = []
        while reader.current.kind not in ("end", "unreadable"):
            token = reader.advance()
            found.append((token.kind, token.text, token.at))
        return found

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("", []),
            ("  ", []),
            ("a", [("path", "a", 0)]),
            ("a.b[0]['c d'].e-f", [("path", "a.b[0]['c d'].e-f", 0)]),
            ("not a and b", [("word", "not", 0), ("path", "a", 4), ("word", "and", 6), ("path", "b", 10)]),
            ("notable", [("path", "notable", 0)]),
            ("not.a", [("path", "not.a", 0)]),
            ("a-1", [("path", "a-1", 0)]),
            ("a -1", [("path", "a", 0), ("number", "-1", 2)]),
            ("a - 1", [("path", "a", 0), ("sign", "-", 2), ("number", "1", 4)]),
            ("1.5e-3", [("number", "1.5e-3", 0)]),
            ("'it''s'", [("text", "'it'", 0), ("text", "'s'", 4)]),
            ("'it\\'s'", [("text", "'it\\'s'", 0)]),
            ("a>=1", [("path", "a", 0), ("sign", ">=", 1), ("number", "1", 3)]),
            ("{{x}}", [("sign", "{{", 0), ("path", "x", 2), ("sign", "}}", 3)]),
        ],
    )
    def test_a_text_is_read_into_its_words(self, text: str, found: list[Any]) -> None:
        assert self.tokens(text) == found

    @pytest.mark.parametrize(
        ("text", "parts"),
        [
            ("a", ("a",)),
            ("a.b", ("a", "b")),
            ("a.0.b", ("a", "0", "b")),
            ("a[0][-1]", ("a", "0", "-1")),
            ("a['b c']", ("a", "b c")),
            ('a["it\'s"]', ("a", "it's")),
            (r"a['it\'s']", ("a", "it's")),
            (r"a['back\\slash']", ("a", "back\\slash")),
            ("$.a", ("$", "a")),
            ("è.é-ù", ("è", "é-ù")),
        ],
    )
    def test_a_path_has_its_parts(self, text: str, parts: tuple[str, ...]) -> None:
        assert path_of(Reader(text, 0, Mistake).current) == parts

    @pytest.mark.parametrize(
        ("text", "number"),
        [
            *(("0", 0), ("-7", -7), ("1.50", 1.5), ("1e2", 100.0)),
            ("123456789012345678", 123456789012345678),
            *(("18446744073709551615", 2**64 - 1), ("-9223372036854775808", -(2**63))),
            *(("0.30000000000000004", 0.30000000000000004), ("0.00000000000000000001", 1e-20)),
        ],
    )
    def test_a_whole_number_stays_whole(self, text: str, number: float) -> None:
        reader = Reader(text, 0, Mistake)
        found = reader.number_of(reader.advance())
        assert (found, type(found)) == (number, type(number))


class TestMistakes:
    """Each is told at its character, counted from 1, with what would have been accepted."""

    @pytest.mark.parametrize(
        ("text", "at", "part"),
        [
            ("", 1, "the end was not expected"),
            ("vars.age >", 11, "the end was not expected"),
            ("vars.age = 1", 10, "'=' was not expected (`==` compares)"),
            ("vars.vip && true", 10, "'&' was not expected (`and` is written out)"),
            ("!vars.vip", 1, "'!' was not expected (`not` is written out)"),
            ("vars.vip || true", 10, "'|' was not expected (`or` is written out)"),
            ("vars.vip AND true", 10, "'AND' was not expected (`and` has small letters)"),
            ("vars.vip == True", 13, "'True' was not expected (`true` has small letters)"),
            ("vars.name is 'x'", 11, "'is' was not expected (`==` compares)"),
            ("{{ vars.vip }}", 1, "a condition has no braces around it"),
            ("$vars.age > 1", 1, "'$' is for templates, names have none here"),
            ("vars.name == 'x", 14, '"\'" was not expected (the text has no closing quote)'),
            ("vars.name == 'a\\x'", 14, r"'\\x' is no escape; accepted are \' \" \\ \/ \n \r \t"),
            ("vars.age == null", 13, "has(…) asks whether there is a value"),
            ("(vars.vip", 10, "the end was not expected"),
            ("vars.vip)", 9, "')' was not expected"),
            ("1 1", 3, "'1' was not expected"),
            ("vars.age == 18446744073709551616", 13, "-9223372036854775808 to 18446744073709551615"),
            ("vars.age in [1, 999999999999999999999999]", 17, "at most 64 bits"),
            ("vars.age == 5.", 13, "'5.' is no number here; accepted are numbers"),
            ("vars.age == -0.5.5", 13, "'-0.5.5' is no number here"),
            ("vars.age == 007", 13, "as JSON writes them"),
            ("days(1e300) == 1", 6, "at most 64 bits"),
            ("x" * 2001, 2001, "accepted are at most 2000 characters"),
        ],
    )
    def test_it_is_told_where_it_is(self, text: str, at: int, part: str) -> None:
        with pytest.raises(ConditionMistake) as raised:
            parse(text)
        assert raised.value.at == at  # F9
        assert part in str(raised.value)
        assert str(raised.value).startswith(f"character {at}: ")

    @pytest.mark.parametrize(
        ("text", "at", "part"),
        [
            ("weather == 1", 1, "'weather' is unknown; accepted are vars.x"),
            ("now-1 > today", 1, "'now-1' is unknown: a minus needs a space before it"),
            ("years(3) == 1", 1, "'years' is no function"),
            ("vars.vip and size == 1", 14, "'size' is unknown"),
        ],
    )
    def test_a_name_that_the_language_lacks_is_told_as_one(self, text: str, at: int, part: str) -> None:
        with pytest.raises(UnknownName) as raised:
            parse(text)
        assert raised.value.at == at  # F9
        assert part in str(raised.value)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("foo.x > 1 and bar.y == 3 and foo.z > 2", [(1, True), (15, True)]),
            ("has(foo.x) or vars or foo.x > 1", [(5, True), (15, True)]),
            ("foo.x > 1 and", [(1, True), (14, False)]),
            ("foo.x > 1 and years(3) == 1 and bar > 1", [(1, True), (15, True)]),
            ("vars.age > 1", []),
        ],
    )
    def test_every_name_that_it_lacks_is_told_once(self, text: str, told: list[tuple[int, bool]]) -> None:
        tree, mistakes = read(text)
        assert [(each.at, isinstance(each, UnknownName)) for each in mistakes] == told  # F2
        assert (tree is None) == bool(told)


TRUTHS = {"true": True, "false": False, "vars.age > 1": None}


class TestTruth:
    """Unknown is neither: `not unknown` is unknown, `true or unknown` true, `false and unknown` false."""

    @pytest.mark.parametrize("left", TRUTHS)
    @pytest.mark.parametrize("right", TRUTHS)
    def test_and_or_and_not_are_kleenes(self, left: str, right: str) -> None:
        one, other = TRUTHS[left], TRUTHS[right]
        both = False if False in (one, other) else None if None in (one, other) else True
        either = True if True in (one, other) else None if None in (one, other) else False

        def truth(text: str) -> bool | None:
            return Condition.compile(text, VARIABLES).truth(facts())

        assert truth(f"{left} and {right}") is both  # F11
        assert truth(f"{left} or {right}") is either
        assert truth(f"not ({left})") is negated(one)
        assert truth(f"not ({left} or {right})") is negated(either)

    @pytest.mark.parametrize(
        ("when", "truth"),
        [
            ("entries('menu') == 2", True),
            ("entries('a task') == 0", True),
            ("refusals('menu') >= 2", False),
            ("tenant.plan == 'gold'", True),
            ("tenant.plan in ['silver', 'gold']", True),
            ("tenant.plan not in ['silver']", True),
            ("'a' in tenant.tags", True),
            ("1 in tenant.tags", True),
            ("2 in tenant.tags", None),
            ("tenant.absent == 1", None),
            ("has(tenant.absent)", False),
            ("has(tenant.none)", False),
            ("has(tenant.plan)", True),
            ("contact.room.floor == 2", True),
            ("channel == 'phone' and language == 'it-IT'", True),
            ("today == '2026-03-29'", True),
            ("now < '2026-03-29T00:00:00Z'", True),
            ("now + hours(1) > '2026-03-29'", False),
            ("today - days(1) == '2026-03-28'", True),
            ("today in ['2026-03-28', '2026-03-29', tenant.absent]", True),
            ("today in ['2026-03-28']", False),
            ("today not in ['2026-03-28']", True),
            ("today in ['2026-03-28', tenant.absent]", None),
        ],
    )
    def test_a_condition_reads_what_the_conversation_has(self, when: str, truth: bool | None) -> None:
        assert Condition.compile(when, VARIABLES).truth(facts()) is truth  # F11
