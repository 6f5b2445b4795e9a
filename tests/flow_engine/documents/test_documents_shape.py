"""Hostile and malformed input: always a clear refusal, never a crash, never a long wait."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.documents import (
    DocumentLimits,
    changed_by_reading,
    content_hash,
    parse_json,
    parse_version,
)
from flow_engine.documents.parsing import check_shape
from flow_engine.errors import CorrectTheInput
from tests.flow_engine.documents import samples
from tests.flow_engine.documents.samples import minimal_version

SECONDS_FOR_ONE_MEGABYTE = 5.0
"""Of CPU: ten times what it takes, so that a slow machine passes and a quadratic rule does not."""
MOST_FOR_FOUR_TIMES_THE_SIZE = 9.0
"""Where the time is linear it is 4, where it is quadratic 16."""


def nested(levels: int, kind: str = "array") -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "array" else {"a": value}
    return value


def refusal_of(call: Any, *arguments: Any, **options: Any) -> CorrectTheInput:
    with pytest.raises(CorrectTheInput) as refusal:
        call(*arguments, **options)
    assert refusal.value.findings
    return refusal.value


class TestDepth:
    @pytest.mark.parametrize("kind", ["array", "object"])
    def test_a_hundred_levels_are_accepted_and_no_more(self, kind: str) -> None:  # F9
        check_shape(nested(100, kind))
        assert refusal_of(check_shape, nested(101, kind)).code == "too_deep"

    @pytest.mark.parametrize("levels", [101, 1_000, 1_024, 1_025, 10_000, 400_000])
    @pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"":', b"}")])
    def test_deep_json_is_refused_at_any_depth(
        self, levels: int, opening: bytes, closing: bytes
    ) -> None:  # F9
        limits = DocumentLimits(max_bytes=10_000_000)
        body = opening * levels + b"1" + closing * levels
        assert refusal_of(parse_json, body, limits).code == "too_deep"

    def test_unclosed_deep_json_is_refused(self) -> None:  # F9
        assert refusal_of(parse_json, b"[" * 900_000).code == "too_deep"

    def test_a_deep_document_is_refused_before_it_is_read(self) -> None:  # F9
        raw = minimal_version(uiMetadata={"deep": nested(10_000)})
        assert refusal_of(parse_version, raw).code == "too_deep"

    def test_a_document_of_a_hundred_levels_is_read(self) -> None:  # F9
        raw = minimal_version(uiMetadata={"deep": nested(98)})
        assert parse_version(raw).model_dump(by_alias=True, exclude_unset=True, mode="json") == raw

    def test_the_limit_can_be_set(self) -> None:  # F9
        assert refusal_of(parse_json, b"[[1]]", DocumentLimits(max_depth=1)).code == "too_deep"


class TestSize:
    def test_a_megabyte_is_accepted_and_no_more(self) -> None:  # F9
        body = b'"' + b"a" * 999_998 + b'"'
        assert parse_json(body) == "a" * 999_998
        assert refusal_of(parse_json, body + b" ").code == "too_large"

    def test_a_decoded_document_is_measured_as_compact_json(self) -> None:  # F9
        assert refusal_of(parse_version, minimal_version(globalPrompt="a" * 1_000_000)).code == "too_large"

    @pytest.mark.parametrize(
        "raw",
        [
            minimal_version(supportedLanguages=[1] * 480_000),
            minimal_version(tasks=[samples.aio_task(connectedTasks=["x"] * 230_000)]),
            minimal_version(tasks=[{}] * 300_000),
            minimal_version(tasks=[samples.aio_task(enabledCheckpoints=[{}] * 300_000)]),
            minimal_version(**{f"p{number}": 0 for number in range(90_000)}),
            minimal_version(
                tasks=[samples.aio_task("a" * 40_000 + str(number)) for number in range(20)]
                + [samples.aio_task(connectedTasks=["x"] * 40_000)]
            ),
        ],
        ids=["texts", "connections", "tasks", "checkpoints", "properties", "long-ids"],
    )
    def test_a_megabyte_of_errors_is_refused_in_time_and_in_few_words(  # F2 F9
        self, raw: samples.JsonObject
    ) -> None:
        started = time.process_time()
        refusal = refusal_of(parse_version, raw)
        assert time.process_time() - started < SECONDS_FOR_ONE_MEGABYTE
        assert refusal.code == "document_invalid"
        assert len(refusal.findings) == 1001
        assert refusal.findings[-1].code == "more_findings"
        assert sum(len(finding.message) for finding in refusal.findings) < 2_000_000

    @pytest.mark.parametrize(
        "of_size",
        [
            lambda size: minimal_version(supportedLanguages=[1] * size),
            lambda size: minimal_version(tasks=[{}] * (size // 2)),
            lambda size: minimal_version(channels=["x"] * (size // 3)),
        ],
        ids=["texts", "tasks", "channels"],
    )
    def test_the_time_for_errors_grows_with_the_document_and_no_faster(  # F9
        self, of_size: Callable[[int], samples.JsonObject]
    ) -> None:
        quarter, whole = (of_size(size) for size in (100_000, 400_000))

        def seconds(raw: samples.JsonObject) -> float:
            started = time.process_time()
            refusal_of(parse_version, raw)
            return time.process_time() - started

        best = min(seconds(whole) / seconds(quarter) for _ in range(3))
        assert best < MOST_FOR_FOUR_TIMES_THE_SIZE

    def test_sound_items_use_up_nothing_of_what_is_listed(self) -> None:  # F2 F9
        raw = minimal_version(supportedLanguages=["en-US"] * 5_000 + [1, "en-US", 2])
        findings = refusal_of(parse_version, raw).findings
        assert [finding.pointer for finding in findings] == [
            "/supportedLanguages/5000",
            "/supportedLanguages/5002",
        ]

    def test_a_thousand_tasks_are_refused(self) -> None:  # F9
        raw = samples.many_tasks(1000)
        for task in raw["tasks"]:
            task["prompt"] = ""
        assert [finding.code for finding in refusal_of(parse_version, raw).findings] == ["too_many_tasks"]


class TestJson:
    @pytest.mark.parametrize(
        "body",
        [
            *(b"NaN", b"[Infinity]", b"-Infinity", b"1e999", b"-1e999", b"1" * 400),
            *(b"", b"{", b"{'a': 1}", b"[1,]", b"\xff", b"\xef\xbb\xbf{}", b'"\\ud800"', b"01", b"[1] [2]"),
            b'"\x00"',
        ],
    )
    def test_what_is_not_json_is_refused(self, body: bytes) -> None:  # F9
        assert refusal_of(parse_json, body).code == "json_invalid"

    def test_a_text_of_another_encoding_is_told_where_it_is_none_of_utf_8(self) -> None:  # F2
        detail = refusal_of(parse_json, '{\n"a": "é"}'.encode("latin-1")).detail
        assert detail == "the text is not JSON: accepted is UTF-8, and byte 8, in line 2, is none"

    @pytest.mark.parametrize(
        "raw", [{"a": {1, 2}}, {1: 2}, {"a": b"x"}, {"a": 2**70}, {"a": "\ud800"}, {"a": object()}]
    )
    def test_a_decoded_document_that_is_no_json_is_refused(self, raw: object) -> None:  # F9
        assert refusal_of(parse_version, raw).code == "json_invalid"

    @pytest.mark.parametrize(
        ("item", "most_listed"), [(b"0", 1), (b'{"a":0,"a":1}', 51)], ids=["integers", "twice the same"]
    )
    def test_a_long_name_is_not_written_again_for_all_that_is_below_it(
        self, item: bytes, most_listed: int
    ) -> None:  # F2 F9
        body = b'{"%s":[%s,12345678901234567890123]}' % (b"k" * 20_000, b",".join([item] * 4_000))
        tracemalloc.start()
        findings = changed_by_reading(body)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 1 <= len(findings) <= most_listed
        assert peak < 10_000_000

    def test_the_last_of_two_equal_properties_counts(self) -> None:  # F2
        assert parse_json(b'{"a": 1, "a": 2}') == {"a": 2}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(JSON)
def test_any_json_is_decoded_to_what_it_was(raw: object) -> None:  # F2
    assert parse_json(orjson.dumps(raw)) == raw


@settings(deadline=None)
@given(JSON)
def test_any_json_is_either_a_version_or_refused(raw: object) -> None:  # F2
    refusal_of(parse_version, raw)


@settings(deadline=None)
@given(st.dictionaries(TEXTS, JSON))
def test_the_hash_does_not_depend_on_the_order_of_properties(raw: dict[str, object]) -> None:  # F13
    assert content_hash(raw) == content_hash(dict(reversed(raw.items())))


def test_the_hash_tells_documents_apart() -> None:  # F13
    digests = {content_hash(raw) for raw in ({}, [], {"a": 1}, {"a": "1"}, {"a": None}, [1, 2], [2, 1])}
    assert len(digests) == 7
    assert all(len(digest) == 64 for digest in digests)


def test_a_hundred_tasks_are_parsed_in_a_few_milliseconds() -> None:  # F9
    raw = samples.many_tasks(100)
    parse_version(raw)
    durations: list[float] = []
    for _ in range(5):
        started = time.process_time()
        parse_version(raw)
        durations.append(time.process_time() - started)
    # A few milliseconds on an idle core; the bound only catches a rule that has become quadratic.
    assert min(durations) < 0.05
