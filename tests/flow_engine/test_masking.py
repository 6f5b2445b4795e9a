"""What is masked in texts: values that are known, and card numbers (journal: sensitive)."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_engine import masking
from flow_engine.masking import (
    DEEPEST,
    MASKS,
    MOST_AT_ONCE,
    Secrets,
    StandIns,
    cards_masked,
    shown,
    without_cards,
)
from flow_engine.runtime.compiled import compile_flow
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.privacy import values_known
from flow_engine.values import JsonValue
from flow_engine.variables import VariableSpec
from flow_engine.vocabulary import VariableType
from tests.flow_engine.documents.samples import minimal_version
from tests.timing import takes_less_than

CARD = "[hidden card]"


def secrets(value: JsonValue, kind: VariableType = "string", *, shortest: int = 4) -> Secrets:
    return Secrets([(VariableSpec("v", "v", kind, sensitive="identity"), value)], shortest=shortest)


QUOTABLE = st.text("aBßſsKkİıiσςΣ 1２3.-/+é@_", min_size=1, max_size=8)
"""Letters of which several are one in any case, digits, and what stands between them."""


def quotes_of(value: str) -> str:
    """What a text has where it quotes the value (rule 2), written down a second time."""
    separated = r"[\s.,/_·\-\u00ad\u200b\u2010-\u2015\u2060]{0,3}"
    if not re.fullmatch(rf"\+?\d({separated}\d)*", value):
        words = r"\s+".join(map(re.escape, value.split(" ")))
        return rf"(?<!\w){words}(?!\w)"
    digits = re.findall(r"\d", value)
    if value[0] != "+" or len(digits) <= 8:
        return rf"(?<!\d){separated.join(digits)}(?!\d)"
    prefix = rf"\+?(?:\d{separated}){{0,{len(digits)}}}?"
    return rf"(?<!\d){prefix}{separated.join(digits[-8:])}(?!\d)"


def luhn_digit(digits: str) -> str:
    """The check digit, written down a second time: every other digit from the right counts double."""
    total = sum(sum(divmod(int(d) * (2 - at % 2), 10)) for at, d in enumerate(reversed(digits)))
    return str(-total % 10)


class TestCards:
    @pytest.mark.parametrize(
        ("text", "masked"),
        [
            ("4111 1111 1111 1111", CARD),
            ("it is 4111-1111-1111-1111, thanks", f"it is {CARD}, thanks"),
            ("378282246310005.", f"{CARD}."),
            ("4111.1111.1111.1111/123", f"{CARD}/123"),
            ("4111, 1111, 1111, 1111", CARD),
            ("4111\u00a01111\u20111111\u00ad1111", CARD),
            ("x4111111111111111y", f"x{CARD}y"),
            ("5105105105105100 or 6011 1111 1111 1117", f"{CARD} or {CARD}"),
            ("order 12 4111 1111 1111 1111", f"order 12 {CARD}"),
            ("\uff14\uff11\uff11\uff11 1111 1111 1111", CARD),
        ],
    )
    def test_are_masked_with_the_usual_separators(self, text: str, masked: str) -> None:
        assert without_cards(text) == masked

    @pytest.mark.parametrize(
        "text",
        [
            "4111 1111 1111 1112",  # the check digit is wrong
            "+39 347 123 4567",
            "4111 1111 1111",
            "2026-01-15 09:31",
            "41111111111111114111111111111111",  # too long for one, and nothing tells where one ends
            "",
        ],
    )
    def test_what_is_none_stays(self, text: str) -> None:
        assert without_cards(text) == text

    @given(
        digits=st.text("0123456789", min_size=12, max_size=18),
        separators=st.lists(st.sampled_from(["", "", "", " ", "-", ". ", "/"]), min_size=19, max_size=19),
        around=st.sampled_from(["", " ", "Card: ", "è "]),
    )
    def test_every_number_with_a_right_check_digit_goes(
        self, digits: str, separators: list[str], around: str
    ) -> None:
        number = digits + luhn_digit(digits)
        written = "".join(d + s for d, s in zip(number, separators, strict=False)).rstrip(" -./")
        assert without_cards(f"{around}{written}{around[::-1]}") == f"{around}{CARD}{around[::-1]}"

    def test_objects_are_searched_and_other_values_stay(self) -> None:
        said = {"card": "4111111111111111", "n": 4111111111111111, "list": [True, None, 1.5, "no"]}
        assert cards_masked(said) == {"card": CARD, "n": CARD, "list": [True, None, 1.5, "no"]}

    def test_one_that_is_written_with_a_fraction_is_masked(self) -> None:
        assert cards_masked({"n": 4111111111111111.0}) == {"n": f"{CARD}.0"}

    def test_what_lies_too_deep_is_masked_as_a_whole(self) -> None:
        deep: object = "4111111111111111"
        for _ in range(DEEPEST + 1):
            deep = [deep]
        assert "4111" not in repr(cards_masked(deep))
        assert "4111" not in repr(secrets("4111111111111111").json(deep))


class TestValues:
    @pytest.mark.parametrize(
        ("kind", "value", "text", "masked"),
        [
            ("string", "RSSMRA80A01H501U", "my code: rssmra80a01h501u.", "my code: [hidden identity]."),
            ("string", "type 2  diabetes", "Type 2\ndiabetes, yes", "[hidden identity], yes"),
            ("string", "anna", "Annabelle and Anna", "Annabelle and [hidden identity]"),
            ("number", 12345, "12,345 euro, not 112345", "[hidden identity] euro, not 112345"),
            ("email", "a.b+c@example.com", "write to A.B+C@example.com!", "write to [hidden identity]!"),
            ("custom", {"deep": ["needle", 7]}, "needle 7", "[hidden identity] 7"),
        ],
    )
    def test_a_text_that_quotes_one_shows_the_mask(
        self, kind: VariableType, value: JsonValue, text: str, masked: str
    ) -> None:
        assert secrets(value, kind).text(text) == masked

    def test_a_phone_is_known_with_and_without_its_prefix_and_its_kind_is_no_secret(self) -> None:
        known = secrets({"country": "IT", "type": "mobile", "number": "+393471234567"}, "phone")
        told = "mobile 347 123 4567, or +39 347-1234567, or 00393471234567"
        assert known.text(told) == "mobile [hidden identity], or [hidden identity], or [hidden identity]"

    def test_short_values_are_left_unless_they_are_asked_for(self) -> None:
        assert secrets("flu").text("the flu") == "the flu"
        assert secrets("flu", shortest=1).text("vars.x != 'flu'") == "vars.x != '[hidden identity]'"
        assert secrets(True, "boolean", shortest=1).text("x == true") == "x == [hidden identity]"

    def test_numbers_in_json_are_masked_and_names_of_properties_stay(self) -> None:
        found = secrets(12345, "number").json({"12345": [12345, 1, False, None, "is 12345"]})
        assert found == {"12345": ["[hidden identity]", 1, False, None, "is [hidden identity]"]}

    def test_without_a_value_nothing_is_looked_for(self) -> None:
        assert secrets(None).text("anything") == "anything"

    def test_a_text_is_searched_for_those_that_it_may_quote_however_many_are_known(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        searched: list[int] = []

        def search(texts: tuple[str, ...]) -> re.Pattern[str]:
            searched.append(len(texts))
            return re.compile("|".join(f"({re.escape(text)})" for text in texts))

        monkeypatch.setattr(masking, "_search", search)
        spec = VariableSpec("v", "v", "string", sensitive=True)
        known = Secrets(())
        for number in range(2_000):
            known.add(spec, f"the secret value of {number:04}")
            known.add(spec, f"06 {number:04} 1234")
            assert known.text(f"it is the secret value of {number:04}") == "it is [hidden]"
        assert known.text("06 0007 1234") == "[hidden]"
        assert max(searched) <= 8

    def test_a_long_value_is_looked_for_in_texts_that_have_room_for_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = "needlitis " * 6_000
        known = secrets(report)
        assert known.text(f"quoted: {report.upper()}!") == "quoted: [hidden identity] !"
        monkeypatch.setattr(masking, "_search", None)
        assert known.text("needlitis of the knee") == "needlitis of the knee"

    def test_long_values_are_found_in_a_moment_however_many_a_text_may_quote(self) -> None:
        spec = VariableSpec("v", "v", "custom", sensitive="health")
        notes = [f"electrocardiographically {'no finding ' * 2_500}{number:02}" for number in range(60)]
        began = time.process_time()
        known = Secrets([(spec, [{"note": note} for note in notes])])
        assert known.json(notes) == ["[hidden health]"] * 60
        assert (
            known.text(f"{notes[7]}, {notes[8]}x, {notes[9]}")
            == f"[hidden health], {notes[8]}x, [hidden health]"
        )
        assert time.process_time() - began < 5

    @given(
        letters=st.lists(QUOTABLE, min_size=60, max_size=80),
        before=QUOTABLE,
        after=QUOTABLE,
        gap=st.sampled_from([" ", "  ", ".\n", "x", ""]),
    )
    def test_a_long_value_is_found_where_a_pattern_would(
        self, letters: list[str], before: str, after: str, gap: str
    ) -> None:
        value = " ".join(f"a {''.join(letters)} b".replace("ß", "s").split())
        value = " ".join([value] * (1 + 101 // len(value)))
        told = gap.join((before, value.replace(" ", " \n"), after, value.swapcase(), value[1:], after))
        expected = re.sub(quotes_of(value), "[hidden identity]", told, flags=re.IGNORECASE)
        assert secrets(value).text(told) == expected

    def test_a_value_of_many_digits_is_found_in_a_moment(self) -> None:
        def found() -> None:
            assert secrets("7" * 30_000).text(f"it is {'7' * 30_000}.") == "it is [hidden identity]."

        assert takes_less_than(3, found)
        assert secrets("7" * 100).text(f"it is {'7 ' * 100}") == "it is [hidden identity] "

    def test_a_text_in_which_too_many_may_stand_is_masked_as_a_whole(self) -> None:
        spec = VariableSpec("v", "v", "string", sensitive="health")
        words = [f"word{number}" for number in range(MOST_AT_ONCE + 1)]
        known = Secrets((spec, word) for word in words)
        assert known.text(" ".join(words[1:])) == " ".join(["[hidden health]"] * MOST_AT_ONCE)
        assert known.text(" ".join(words)) == MASKS[True]

    @given(
        values=st.lists(QUOTABLE, min_size=1, max_size=6, unique=True),
        text=st.lists(QUOTABLE | st.integers(0, 5), max_size=6),
        between=st.sampled_from(["", " ", "  ", "-", ".\n", "x", "7"]),
    )
    def test_every_quote_is_found_by_its_mark(
        self, values: list[str], text: list[str | int], between: str
    ) -> None:
        told = between.join(part if isinstance(part, str) else values[part % len(values)] for part in text)
        told = told if len(told) % 2 else told.swapcase()
        known = {" ".join(value.split()) for value in values}
        wanted = sorted((each for each in known if len(each) >= 4), key=lambda each: (-len(each), each))
        spec = VariableSpec("v", "v", "string", sensitive=True)
        pattern = "|".join(map(quotes_of, wanted))
        expected = re.sub(pattern, "[hidden]", told, flags=re.IGNORECASE) if wanted else told
        assert Secrets((spec, value) for value in values).text(told) == expected

    @given(value=st.text(min_size=1, max_size=40), before=st.text(max_size=5), after=st.text(max_size=5))
    def test_any_text_can_be_a_value(self, value: str, before: str, after: str) -> None:
        told = secrets(value).text(f"{before} {value} {after}")
        quoted = " ".join(value.split())
        if len(quoted) >= 4 and quoted == value:
            assert "[hidden identity]" in told


def test_each_kind_has_its_mask_and_what_is_missing_none() -> None:
    for sensitive, mask in MASKS.items():
        spec = VariableSpec("v", "v", "string", sensitive=sensitive)
        assert (shown(spec, "x"), shown(spec, False), shown(spec, None)) == (mask, mask, None)
    plain = VariableSpec("v", "v", "string")
    assert (shown(plain, "x"), shown(None, "x")) == ("x", "x")


def test_values_that_agree_have_one_stand_in_however_many_there_are() -> None:
    contested, stand_ins = VariableSpec("v", "v", "string", sensitive=True, precedence="latest"), StandIns()
    began = time.process_time()
    first = [stand_ins(contested, f"Value {number}") for number in range(10_000)]
    assert first == [stand_ins(contested, f" value  {number} ") for number in range(10_000)]
    assert time.process_time() - began < 5
    assert (first[0], first[-1]) == ("[hidden]", "[hidden] 10000")


@pytest.mark.parametrize("spec", [None, VariableSpec("v", "v", "string")])
def test_what_is_not_sensitive_stands_for_itself(spec: VariableSpec | None) -> None:  # journal: sensitive
    assert [StandIns()(spec, value) for value in ("Ann", 5, None)] == ["Ann", 5, None]


def test_of_a_value_that_several_variables_have_the_mask_of_the_flow_s_first_is_shown() -> None:
    raw = minimal_version()
    kinds = ("card", "health", "identity") * 3
    raw["variables"] += [
        {"_id": f"v{number}", "name": f"n{number}", "type": "string", "prompt": "p", "sensitive": kind}
        for number, kind in enumerate(kinds)
    ]
    flow = compile_flow(raw, "hash")
    told = MemoryEntry("string", "miner", None, "Rosa Parker", "call-1", None)
    known = Secrets(values_known(flow, dict.fromkeys(sorted(flow.sensitive, reverse=True), told)))
    assert known.text("I am Rosa Parker") == "I am [hidden card]"
