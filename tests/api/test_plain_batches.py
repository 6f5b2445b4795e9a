"""A batch for the memory that is plainly one is read by a faster reader: to the same entries, or by the one
that refuses (F36)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api import bodies
from flow_engine.errors import CorrectTheInput

ENTRY = {"updatedBy": "crm", "contactId": "call-1", "varId": "size", "value": 1}


def holding(value: bytes) -> bytes:
    return b'[{"updatedBy":"crm","contactId":"call-1","varId":"size","value":' + value + b"}]"


def told(read: Any, body: bytes) -> object:
    """What was read, by the text of its values: 1 is another number than 1.0, and NaN is itself."""
    try:
        entries: Sequence[Any] = read(body)
    except CorrectTheInput as refused:
        return refused.code, refused.detail, refused.findings
    return [
        (
            repr((each.updated_by, each.updated_at, each.contact_id, each.var_id, each.value)),
            each.description_for_llm and [(part.name, part.value) for part in each.description_for_llm],
        )
        for each in entries
    ]


def by_the_one_that_refuses(body: bytes) -> Sequence[bodies.MemoryEntryBody]:
    return bodies.parse_body(body, bodies.MemoryBatch)


NUMBERS = (
    *(b"-0", b"-0.0", b"1.0", b"1e5", b"1E400", b"-1e400", b"1e-400", b"01", b"1.", b".5", b"+1", b"1e23"),
    *(b"NaN", b"Infinity", b"-Infinity", b"-", b"9007199254740993.0", b"4.9e-324", b"1.7976931348623159e308"),
    *(b"18446744073709551615", b"18446744073709551616", b"-9223372036854775809", b"9" * 400, b"9" * 5_000),
)
TEXTS = (
    *(b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\udc00\\ud800"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc3\xa9"'),
    *(b'"a\nb"', b'"\\u0000"', b'"\x00"', b'"\\/"', b'"\\a"', b'"\x7f"', b'"\xe2\x80\xa8"', b'"', b"'a'"),
)
OTHERS = (
    *(b'{"a":1,"a":2}', b'{"\\ud800":1}', b"[1,]", b'{"a":1,}', b"tru", b"null", b"", b"{}", b"[]"),
    *(b"[" * depth + b"]" * depth for depth in (140, 150, 190, 200, 900)),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (140, 190, 200, 900)),
)
WHOLE = (
    *(b"", b"[]", b"{}", b"null", b"[[]]", b"[null]", b"\xef\xbb\xbf" + holding(b"1"), b"\t" + holding(b"1")),
    *(holding(b"1") + end for end in (b" \r\n", b"x", b"\x00", b"\xff", b",")),
    holding(b'1,"value":2'),
    holding(b'1,"updatedBy":3,"updatedBy":"z"'),
    holding(b'1,"updated_by":"z"'),
    orjson.dumps([ENTRY] * 70),
    orjson.dumps([ENTRY] * 1_001),
)


@pytest.mark.parametrize("body", [*map(holding, (*NUMBERS, *TEXTS, *OTHERS)), *WHOLE])
def test_unusual_json_is_read_or_refused_as_ever(body: bytes) -> None:  # F36
    assert told(bodies.memory_entries, body) == told(by_the_one_that_refuses, body)


@pytest.mark.parametrize("name", ["updatedBy", "contactId", "varId", "updatedAt", "descriptionForLLM", "x"])
@pytest.mark.parametrize(
    "value",
    [
        *("", "a", "é" * 256, "🏥" * 257, "a" * 512, "🏥" * 513, 1, 1.5, True, None, {}, []),
        [{"name": "a", "value": "b"}, {"name": "", "value": "🏥"}],
        *([{"name": "a"}], [{"name": "a", "value": 1}], [{"name": "a", "value": "b", "x": 1}], [None], ["a"]),
    ],
)
def test_every_property_has_the_bounds_that_it_always_had(name: str, value: object) -> None:  # F36
    body = orjson.dumps([ENTRY, {**ENTRY, name: value}])
    assert told(bodies.memory_entries, body) == told(by_the_one_that_refuses, body)


_TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
_ENTRY = st.fixed_dictionaries(
    {"updatedBy": _TEXT, "contactId": _TEXT, "varId": _TEXT, "value": _JSON},
    optional={
        "updatedAt": _JSON,
        "descriptionForLLM": st.none()
        | st.lists(st.fixed_dictionaries({"name": _TEXT, "value": _TEXT}), max_size=3),
    },
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_ENTRY, max_size=3), st.data())
def test_a_batch_is_read_alike_whole_or_with_a_byte_that_is_wrong(
    batch: list[dict[str, object]], data: st.DataObject
) -> None:  # F36
    body = orjson.dumps(batch)
    at = data.draw(st.integers(0, len(body) - 1))
    other = data.draw(st.sampled_from(b'",:[]{}0e.-\\ax\x00\xff'))
    for sent in (body, body[:at], body[:at] + body[at + 1 :], body[:at] + bytes([other]) + body[at + 1 :]):
        assert told(bodies.memory_entries, sent) == told(by_the_one_that_refuses, sent)


@settings(max_examples=300, deadline=None)
@given(st.from_regex(rb"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_numbers_are_the_same_to_the_last_bit(number: bytes) -> None:
    assert told(bodies.memory_entries, holding(number)) == told(by_the_one_that_refuses, holding(number))


def test_what_agents_send_is_read_by_the_faster_one() -> None:
    described = {**ENTRY, "descriptionForLLM": [{"name": "Id", "value": "1"}], "updatedAt": "2026-01-15"}
    entries = bodies.memory_entries(orjson.dumps([ENTRY, described]))
    assert [type(each) for each in entries] == [bodies.PlainEntry] * 2
