"""JSON values as such, pointers, and how findings quote them (F2, F9)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flow_engine.documents.findings import findings_of, json_type, listed, nearest, quoted
from flow_engine.errors import CorrectTheInput, Finding, ReloadAndDecide, RetryLater, pointer
from flow_engine.json_values import as_object, json_bytes, rough_size, same_json, walk

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


class TestSizes:
    @pytest.mark.parametrize(
        ("value", "size"),
        [
            (None, 2),
            (True, 2),
            (7, 2),
            ("", 2),
            ("abc", 5),
            ([], 0),
            ([1, "a"], 5),
            ({}, 0),
            ({"key": 1}, 5),
            ({"a": {"b": ["c"]}}, 5),
        ],
    )
    def test_texts_count_their_characters_and_other_parts_two(self, value: object, size: int) -> None:
        assert rough_size(value) == size  # A16

    def test_depth_is_the_senders_choice(self) -> None:
        deep: Any = "x"
        for _ in range(20_000):
            deep = [deep]
        assert rough_size(deep) == 3  # A9: no recursion
        assert same_json(deep, deep)

    @settings(max_examples=30)
    @given(JSON)
    def test_bytes_are_those_of_the_text(self, value: Any) -> None:
        assert json_bytes(value) == len(orjson.dumps(value))


class TestEquality:
    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            (1, 1.0, True),
            (1, True, False),
            (0, False, False),
            (True, True, True),
            ("1", 1, False),
            (None, False, False),
            ([1, 2], [1, 2], True),
            ([1, 2], [2, 1], False),
            ([1], [1, 1], False),
            ([True], [1], False),
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
            ({"a": 1}, {"a": 1, "b": None}, False),
            ({"a": [{"b": 1}]}, {"a": [{"b": 1.0}]}, True),
            ({"a": [{"b": 1}]}, {"a": [{"b": True}]}, False),
            ([], {}, False),
        ],
    )
    def test_values_are_equal_as_json(self, one: object, other: object, same: bool) -> None:
        assert same_json(one, other) is same  # F9, F11
        assert same_json(other, one) is same

    @settings(max_examples=30)
    @given(JSON)
    def test_what_is_read_back_is_the_same(self, value: Any) -> None:
        assert same_json(value, orjson.loads(orjson.dumps(value)))


NESTED: Any = {"a": {"b": [1, {"c": None}]}, "0": "zero", "": 5}


class TestWalking:
    @pytest.mark.parametrize(
        ("path", "found"),
        [
            ((), NESTED),
            (("a", "b"), [1, {"c": None}]),
            (("a", "b", "0"), 1),
            (("a", "b", "-1", "c"), None),
            (("a", "b", "-2"), 1),
            (("a", "b", "2"), None),
            (("a", "b", "-3"), None),
            (("a", "b", "x"), None),
            (("a", "b", "1" * 12), None),
            (("0",), "zero"),
            (("",), 5),
            (("a", "x", "y"), None),
            (("0", "0"), None),
        ],
    )
    def test_fields_by_name_and_items_by_number(self, path: tuple[str, ...], found: object) -> None:
        assert walk(NESTED, path) == found  # F11, V8

    @pytest.mark.parametrize(("value", "fields"), [({"a": 1}, {"a": 1}), ([], {}), (None, {}), ("x", {})])
    def test_what_is_no_object_is_an_empty_one(self, value: object, fields: dict[str, Any]) -> None:
        assert as_object(value) == fields


class TestPointers:
    @pytest.mark.parametrize(
        ("parts", "text"),
        [
            ((), ""),
            (("",), "/"),
            (("tasks", 0, "name"), "/tasks/0/name"),
            (("a/b",), "/a~1b"),
            (("a~b",), "/a~0b"),
            (("~1",), "/~01"),
            (("~/",), "/~0~1"),
            ((0, 1), "/0/1"),
        ],
    )
    def test_parts_are_joined_by_rfc_6901(self, parts: tuple[str | int, ...], text: str) -> None:
        assert pointer(*parts) == text  # F2

    @settings(max_examples=30)
    @given(st.lists(st.text(max_size=5), max_size=4))
    def test_a_pointer_is_read_back_to_its_parts(self, parts: list[str]) -> None:
        text = pointer(*parts)
        read = [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]
        assert read == parts


class TestErrors:
    def test_each_kind_keeps_what_the_reader_does_next_with_it(self) -> None:
        wrong = CorrectTheInput("c", "d", [Finding("/a", "x", "m")])
        assert (str(wrong), wrong.findings) == ("c: d", (Finding("/a", "x", "m"),))  # F36
        state = {"revision": 3}
        decide = ReloadAndDecide("c", "d", state=state, accepted=["a"])
        state["revision"] = 4
        assert (decide.state, decide.accepted) == ({"revision": 3}, ("a",))
        assert (RetryLater("c", "d").after_seconds, RetryLater("c", "d", after_seconds=7).after_seconds) == (
            1,
            7,
        )


class TestQuoting:
    @pytest.mark.parametrize(
        ("value", "shown", "kind"),
        [
            ("text", "'text'", "a string"),
            ("x" * 60, repr("x" * 60), "a string"),
            ("x" * 61, repr("x" * 59 + "…"), "a string"),
            (7, "7", "a number"),
            (1.5, "1.5", "a number"),
            (True, "true", "a boolean"),
            (None, "null", "null"),
            ([1], "an array", "an array"),
            ({"a": 1}, "an object", "an object"),
            (object, "no JSON value", "no JSON value"),
        ],
    )
    def test_values_are_quoted_short(self, value: object, shown: str, kind: str) -> None:
        assert (quoted(value), json_type(value)) == (shown, kind)  # F9

    @pytest.mark.parametrize(
        ("names", "shown"),
        [
            ([], "none"),
            (["b", "a"], "'a', 'b'"),
            ([f"n{number:02}" for number in range(20)], ", ".join(f"'n{n:02}'" for n in range(20))),
            ([f"n{n:02}" for n in range(23)], ", ".join(f"'n{n:02}'" for n in range(20)) + " and 3 more"),
        ],
    )
    def test_alternatives_are_listed_in_order_and_their_rest_is_counted(
        self, names: list[str], shown: str
    ) -> None:
        assert listed(names) == shown  # F2

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("chanel", "nearest are 'channel'"),
            ("taks", "nearest are 'tasks'"),
            ("zzz", "accepted are 'channel', 'tasks'"),
            ("channel" * 10, "accepted are 'channel', 'tasks'"),
        ],
    )
    def test_what_was_meant_is_guessed(self, name: str, told: str) -> None:
        assert nearest(name, ["tasks", "channel"]) == told  # F2


class Leaf(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["leaf"]
    size: Annotated[int, Field(ge=1)] = 1


class Branch(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["branch"]
    parts: tuple[Leaf, ...] = ()


class Root(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(alias="_name")]
    shape: Leaf | Branch | None = None
    named: dict[Annotated[str, Field(pattern="^[a-z]+$")], Leaf] = Field(default_factory=dict)


class TestFindingsOfModels:
    def findings(self, raw: Any, model: type[BaseModel] | None = Root, most: int = 9) -> list[Any]:
        with pytest.raises(ValidationError) as raised:
            Root.model_validate(raw)
        found = findings_of(raised.value, model, raw, most=most)
        return [(finding.pointer, finding.code, finding.message) for finding in found]

    @pytest.mark.parametrize(
        ("raw", "found"),
        [
            ({}, [("/_name", "missing_property", "'_name' is required here")]),
            ({"_name": 7}, [("/_name", "wrong_type", "must be a string, not a number")]),
            (
                {"_name": "a", "nam": 1},
                [("/nam", "unknown_property", "is no property here; nearest are 'named', '_name'")],
            ),
            (
                {"_name": "a", "named": {"leaf": {"kind": "twig"}}},
                [("/named/leaf/kind", "not_allowed", "must be 'leaf', not 'twig'")],
            ),
            (
                {"_name": "a", "named": {"leaf": {"kind": "leaf", "sizes": 1}}},
                [("/named/leaf/sizes", "unknown_property", "is no property here; nearest are 'size'")],
            ),
            (
                {"_name": "a", "named": {"Leaf": {"kind": "leaf"}}},
                [("/named/Leaf", "string_pattern_mismatch", "accepted are names of the form ^[a-z]+$")],
            ),
        ],
        ids=["missing", "type", "misspelled", "literal", "deep", "key"],
    )
    def test_an_error_of_a_model_is_told_in_json_s_words(self, raw: Any, found: list[Any]) -> None:
        assert self.findings(raw) == found  # F2, V1

    def test_no_more_than_the_first_are_told(self) -> None:
        raw = {"_name": "a", **{f"p{number}": 1 for number in range(9)}}
        assert [place for place, *_ in self.findings(raw, most=3)] == ["/p0", "/p1", "/p2"]

    def test_without_the_model_no_names_are_guessed(self) -> None:
        assert self.findings({"_name": "a", "nam": 1}, model=None) == [
            ("/nam", "unknown_property", "is no property here; accepted are none")
        ]
