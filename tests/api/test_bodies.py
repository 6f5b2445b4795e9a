"""Request bodies: what each takes, and every finding of what it does not, in full (F2, F28–F34, F36)."""

from __future__ import annotations

import gzip
import time
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from api.bodies import (
    LARGE_BODY_BYTES,
    MOST_ENTRIES,
    MOST_ERRORS,
    MOST_FINDINGS,
    Body,
    ChangeTask,
    CreateFlow,
    HandleEndContact,
    HandleHumanTask,
    HandleNewContact,
    HandleUtterance,
    MemoryBatch,
    PutTag,
    RenameFlow,
    parse_body,
    utterance_of,
)
from api.playing_tools import TryTurnArguments
from api.replays import ReplayBody
from api.simulations import SimulateBody
from api.tries import BeginTry, RenderBody, Turn
from flow_engine.errors import CorrectTheInput
from flow_engine.use_cases.dialogue import Utterance
from tests.flow_engine.documents.samples import JsonObject

IDS = {"contactId": "call-1", "conversationId": "conv-1"}
NEW_CONTACT = {**IDS, "channel": "phone", "conversationalFlowVersionId": "version-1"}
UTTERANCE = {
    **IDS,
    "messageId": "m-1",
    "ts": "2026-01-15T09:30:00Z",
    "type": "message",
    "src": "user",
    "body": "Good morning",
}
ENTRY = {"updatedBy": "crm", "contactId": "call-1", "varId": "var_string", "value": "Ada"}
GUARD = {"metric": "refused", "worseBy": 1, "minimum": 1}
VERSION_NEEDED = "give either 'conversationalFlowVersionId', or 'flowId' and 'tag'"

Found = list[tuple[str, str, str]]


def parsed(shape: Any, body: object) -> Any:
    adapter: TypeAdapter[Any] = shape if isinstance(shape, TypeAdapter) else TypeAdapter(shape)
    return parse_body(body if isinstance(body, bytes) else orjson.dumps(body), adapter)


def refusal(shape: Any, body: object) -> CorrectTheInput:
    with pytest.raises(CorrectTheInput) as raised:
        parsed(shape, body)
    return raised.value


def findings(shape: Any, body: object) -> Found:
    return [(finding.pointer, finding.code, finding.message) for finding in refusal(shape, body).findings]


class TestWhatIsNoObject:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b"", "Invalid JSON: EOF while parsing a value at line 1 column 0"),
            (b"{", "Invalid JSON: EOF while parsing an object at line 1 column 1"),
            (b"\xff", "Invalid JSON: expected value at line 1 column 1"),
            (b"{'a': 1}", "Invalid JSON: key must be a string at line 1 column 2"),
            (b"\xef\xbb\xbf{}", "accepted is JSON without a byte order mark before it"),
            ("{}".encode("utf-16"), "accepted is JSON in UTF-8"),
            (gzip.compress(b"{}"), "accepted is JSON that is not compressed"),
            (b'{"a": 1} {', "Invalid JSON: trailing characters at line 1 column 10"),
            (b'{"a": NaN}', None),
            (b"[" * 100_000, None),
        ],
        ids=["nothing", "cut", "bytes", "quotes", "marked", "wide", "packed", "two", "nan", "deep"],
    )
    def test_what_is_no_json_is_one_finding_about_the_whole(self, body: bytes, message: str | None) -> None:
        error = refusal(ChangeTask, body)
        finding = error.findings[0]
        if message is None:  # how far the parser came is its own
            assert error.code in {"json_invalid", "body_invalid"}  # F36
            return
        assert (error.code, error.detail) == ("json_invalid", message)  # F36
        assert (finding.pointer, finding.code, finding.message) == ("", "json_invalid", message)

    @pytest.mark.parametrize(
        ("body", "found"),
        [
            (b"[]", "an array"),
            (b"null", "null"),
            (b"7", "a number"),
            (b'"text"', "a string"),
            (b"true", "a boolean"),
        ],
    )
    @pytest.mark.parametrize("shape", [HandleNewContact, ChangeTask, HandleUtterance, CreateFlow])
    def test_other_json_is_no_object(self, shape: type[Body], body: bytes, found: str) -> None:
        assert findings(shape, body) == [("", "model_type", f"must be an object, not {found}")]  # F36

    def test_of_a_name_that_comes_twice_the_last_counts(self) -> None:
        body = b'{"contactId":"a","contactId":"b","conversationId":"c","task":"t"}'
        assert parsed(ChangeTask, body).contact_id == "b"  # as every JSON parser of the field does


class TestRequiredAndUnknownProperties:
    @pytest.mark.parametrize(
        ("shape", "required"),
        [
            (HandleNewContact, ["contactId", "conversationId", "channel"]),
            (ChangeTask, ["contactId", "conversationId", "task"]),
            (HandleEndContact, ["contactId", "conversationId"]),
            (HandleHumanTask, ["contactId", "conversationId", "outcome"]),
            (
                HandleUtterance,
                ["contactId", "conversationId", "messageId", "ts", "type", "src", "body"],
            ),
            (CreateFlow, ["name", "campaignId", "updatedBy"]),
            (RenameFlow, ["name", "updatedBy"]),
            (PutTag, ["updatedBy"]),
        ],
    )
    def test_all_that_is_missing_is_told_at_once(self, shape: type[Body], required: list[str]) -> None:
        error = refusal(shape, {})
        told = [*required, *([""] if shape in (HandleNewContact, PutTag) else [])]  # these name a version
        assert error.detail == f"{len(told)} field(s) of the body cannot be taken"  # F36
        assert sorted(f.pointer for f in error.findings) == sorted(
            f"/{name}" if name else "" for name in told
        )
        missing = [(f.pointer, f.code, f.message) for f in error.findings if f.pointer]
        assert sorted(missing) == [
            (f"/{name}", "missing", f"{name!r} is required here") for name in sorted(required)
        ]

    def test_a_size_is_told_without_words_of_python(self) -> None:
        body = {"split": [{"versionId": "a", "weight": 1}], "updatedBy": "ada"}
        assert findings(PutTag, orjson.dumps(body)) == [
            ("/split", "too_short", "must have at least 2 items, not 1")  # F36
        ]

    @pytest.mark.parametrize(
        ("shape", "body", "pointers"),
        [
            (HandleNewContact, {**IDS, "channel": "fax", "flowId": "f"}, ["", "/channel"]),
            (HandleNewContact, {**IDS, "channel": "fax", "flowId": "", "tag": "t"}, ["/flowId", "/channel"]),
            (PutTag, {"versionId": "v", "guard": GUARD}, ["", "/updatedBy"]),
            (PutTag, {"versionId": "v", "split": [], "guard": GUARD}, ["/split", "/updatedBy"]),
            (PutTag, {"versionId": "", "split": []}, ["/versionId", "/split", "/updatedBy"]),
            (HandleUtterance, {**UTTERANCE, "messageId": "", "body": {}}, ["/messageId", "/body"]),
            (Turn, {"text": 1, "wait": 3}, ["/text", ""]),
            (Turn, {"wait": 3, "language": 1}, ["/language", ""]),
            (BeginTry, {"document": {}, "versionId": "v", "channel": "fax"}, ["/channel", ""]),
            (RenderBody, {"document": {}, "versionId": "v", "task": 1}, ["/conversationId", "/task", ""]),
            (ReplayBody, {"conversations": ["c"], "from": "prod", "last": 0}, ["/last", ""]),
            (SimulateBody, {"runs": "2", "document": {}, "versionId": "v"}, ["/runs", "", ""]),
            (TryTurnArguments, {"tryId": "t", "channel": "fax"}, ["/flowId", "/channel", "", ""]),
        ],
    )
    def test_what_fields_make_together_is_told_beside_what_each_of_them_is(
        self, shape: type[Body], body: JsonObject, pointers: list[str]
    ) -> None:
        assert [pointer for pointer, _, _ in findings(shape, body)] == pointers  # F36

    def test_what_no_property_is_called_is_told_with_what_is_near(self) -> None:
        body = {**NEW_CONTACT, "Channel": "chat", "conversationID": "x", "zzz": 1}
        assert findings(HandleNewContact, body) == [  # F36
            ("/Channel", "unknown_property", "is no property here; nearest are 'channel'"),
            (
                "/conversationID",
                "unknown_property",
                "is no property here; nearest are 'conversationId', 'conversationalFlowVersionId'",
            ),
            (
                "/zzz",
                "unknown_property",
                "is no property here; accepted are 'channel', 'contact', 'contactId', 'conversationId', "
                "'conversationalFlowVersionId', 'flowId', 'language', 'tag', 'tenant'",
            ),
        ]

    @pytest.mark.parametrize(
        ("name", "pointer"), [("a/b", "/a~1b"), ("a~b", "/a~0b"), ("", "/"), ("è" * 200, "/" + "è" * 200)]
    )
    def test_its_pointer_is_escaped(self, name: str, pointer: str) -> None:
        ((found, code, _),) = findings(RenameFlow, {"name": "n", "updatedBy": "ada", name: 1})
        assert (found, code) == (pointer, "unknown_property")  # F2, RFC 6901

    def test_the_names_of_python_are_none_of_the_wire(self) -> None:
        body = {"contact_id": "call-1", "conversation_id": "conv-1"}
        assert [(pointer, code) for pointer, code, _ in findings(HandleEndContact, body)] == [
            ("/contactId", "missing"),
            ("/conversationId", "missing"),
            ("/contact_id", "unknown_property"),
            ("/conversation_id", "unknown_property"),
        ]

    def test_nested_ones_are_told_where_they_stand(self) -> None:
        entry = {**ENTRY, "descriptionForLLM": [{"name": "a", "value": "b", "Value": "c"}]}
        assert findings(MemoryBatch, [entry]) == [
            (
                "/0/descriptionForLLM/0/Value",
                "unknown_property",
                "is no property here; nearest are 'value'",
            )
        ]


class TestNewContacts:
    def test_what_may_be_left_out_has_its_default(self) -> None:
        body = parsed(HandleNewContact, NEW_CONTACT)
        assert (body.flow_id, body.tag, body.tenant, body.contact, body.language) == (  # F28
            *(None, None),
            *({}, {}),
            None,
        )

    @pytest.mark.parametrize(
        "named",
        [
            {"conversationalFlowVersionId": "v"},
            {"flowId": "f", "tag": "t"},
            {"conversationalFlowVersionId": "v", "flowId": None, "tag": None},
        ],
    )
    def test_a_version_is_named_by_itself_or_by_flow_and_tag(self, named: JsonObject) -> None:
        assert parsed(HandleNewContact, {**IDS, "channel": "chat", **named}).channel == "chat"  # F6, F28

    @pytest.mark.parametrize(
        "named",
        [
            {},
            {"flowId": "f"},
            {"tag": "t"},
            {"conversationalFlowVersionId": "v", "flowId": "f", "tag": "t"},
            {"conversationalFlowVersionId": "v", "flowId": "f"},
            {"conversationalFlowVersionId": "v", "tag": "t"},
        ],
        ids=["nothing", "flow-alone", "tag-alone", "all", "version-and-flow", "version-and-tag"],
    )
    def test_and_in_no_other_way(self, named: JsonObject) -> None:
        body = {**IDS, "channel": "chat", **named}
        assert findings(HandleNewContact, body) == [("", "value_error", VERSION_NEEDED)]  # F28

    def test_every_field_of_a_wrong_type_is_told_at_once(self) -> None:
        wrong = {
            "contactId": "",
            "conversationId": "x" * 513,
            "conversationalFlowVersionId": 7,
            "channel": "fax",
            "language": ["it"],
            "tenant": [],
            "contact": None,
        }
        assert findings(HandleNewContact, wrong) == [  # F28, F36
            ("/contactId", "string_too_short", "must have at least 1 character"),
            ("/conversationId", "string_too_long", "must have at most 512 characters"),
            ("/conversationalFlowVersionId", "string_type", "must be a string, not a number"),
            ("/channel", "literal_error", "must be 'phone', 'whatsapp', 'sms', 'mail' or 'chat'"),
            ("/tenant", "dict_type", "must be an object, not an array"),
            ("/contact", "dict_type", "must be an object, not null"),
            ("/language", "string_type", "must be a string, not an array"),
        ]

    @pytest.mark.parametrize("place", ["tenant", "contact"])
    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (
                b"123456789012345678901234567890",
                "accepted are numbers from -9223372036854775808 to 18446744073709551615; "
                "one beyond can be kept as the text of a string or custom variable",
            ),
            (b"1e400", None),
        ],
    )
    def test_numbers_that_nobody_can_keep_are_refused(
        self, place: str, value: bytes, message: str | None
    ) -> None:
        body = orjson.dumps(NEW_CONTACT)[:-1] + b',"%b":{"n":%b}}' % (place.encode(), value)
        ((pointer, code, found),) = findings(HandleNewContact, body)
        assert (pointer, code) == (f"/{place}", "value_error")  # F21, A9
        assert message in (None, found)

    @pytest.mark.parametrize("length", [1, 512])
    def test_ids_have_up_to_512_characters(self, length: int) -> None:
        assert parsed(HandleNewContact, {**NEW_CONTACT, "contactId": "è" * length}).contact_id == "è" * length


class TestTasks:
    @pytest.mark.parametrize("task", ["", "visit", "x" * 512, "Visita Perché"])
    def test_a_task_is_named_by_any_text(self, task: str) -> None:
        assert parsed(ChangeTask, {**IDS, "task": task}).task == task  # F29: an unknown one is a refusal

    @pytest.mark.parametrize(
        ("changes", "found"),
        [
            ({"task": None}, ("/task", "string_type", "must be a string, not null")),
            ({"task": 7}, ("/task", "string_type", "must be a string, not a number")),
            ({"task": "x" * 513}, ("/task", "string_too_long", "must have at most 512 characters")),
            (
                {"task": "t", "reason": "x" * 2001},
                ("/reason", "string_too_long", "must have at most 2000 characters"),
            ),
        ],
        ids=["null", "number", "long-task", "long-reason"],
    )
    def test_and_by_nothing_else(self, changes: JsonObject, found: tuple[str, str, str]) -> None:
        assert findings(ChangeTask, {**IDS, **changes}) == [found]  # F29

    def test_an_outcome_is_one_of_ten(self) -> None:
        for outcome in ("connected", "completed", "failed", "taken_over", "released"):
            assert parsed(HandleHumanTask, {**IDS, "outcome": outcome}).outcome == outcome  # F34
        assert findings(HandleHumanTask, {**IDS, "outcome": "done"}) == [
            (
                "/outcome",
                "literal_error",
                "must be 'connected', 'completed', 'failed', 'taken_over', 'released', 'waiting', "
                "'approved', 'edited', 'rejected' or 'timeout'",
            )
        ]

    @pytest.mark.parametrize("reason", [None, "", "x" * 2000])
    @pytest.mark.parametrize("shape", [HandleEndContact, HandleHumanTask])
    def test_a_reason_is_a_text_or_none(self, shape: type[Body], reason: str | None) -> None:
        body = {**IDS, "reason": reason} | ({"outcome": "failed"} if shape is HandleHumanTask else {})
        assert parsed(shape, body).reason == reason  # F30, F34


class TestUtterances:
    def test_one_is_taken_over_field_by_field(self) -> None:
        body = {**UTTERANCE, "srcId": "u-1", "srcName": "Ada", "language": "it-IT"}
        assert utterance_of(parsed(HandleUtterance, body)) == Utterance(  # F33
            contact_id="call-1",
            message_id="m-1",
            ts=datetime(2026, 1, 15, 9, 30, tzinfo=UTC),
            type="message",
            src="user",
            body="Good morning",
            src_id="u-1",
            src_name="Ada",
            language="it-IT",
        )

    @pytest.mark.parametrize(
        ("ts", "moment"),
        [
            ("2026-01-15T09:30:00Z", datetime(2026, 1, 15, 9, 30, tzinfo=UTC)),
            ("2026-01-15T10:30:00+01:00", datetime(2026, 1, 15, 9, 30, tzinfo=UTC)),
            ("2026-01-15T09:30:00", datetime(2026, 1, 15, 9, 30, tzinfo=UTC)),
            ("2026-01-15T09:30:00.123456Z", datetime(2026, 1, 15, 9, 30, 0, 123456, tzinfo=UTC)),
            ("2026-01-15", datetime(2026, 1, 15, tzinfo=UTC)),
            (1768469400, datetime(2026, 1, 15, 9, 30, tzinfo=UTC)),
            (1768469400123, datetime(2026, 1, 15, 9, 30, 0, 123000, tzinfo=UTC)),
            ("0002-01-01T00:00:00Z", datetime(2, 1, 1, tzinfo=UTC)),
            ("9998-12-31T23:59:59Z", datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ],
    )
    def test_a_moment_is_read_as_utc(self, ts: object, moment: datetime) -> None:
        found = parsed(HandleUtterance, {**UTTERANCE, "ts": ts}).ts
        assert (found, found.utcoffset()) == (moment, moment.utcoffset())  # F33

    @pytest.mark.parametrize(
        "ts", ["0001-01-01T00:00:00Z", "0001-12-31T23:59:59Z", "9999-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
    )
    def test_the_ends_of_the_calendar_are_refused(self, ts: str) -> None:
        message = "accepted are moments of the years 2 to 9998"
        assert findings(HandleUtterance, {**UTTERANCE, "ts": ts}) == [("/ts", "value_error", message)]  # A9

    @pytest.mark.parametrize("ts", ["yesterday", "", "2026-13-01T00:00:00Z", None, [], {}])
    def test_what_is_no_moment_is_refused_where_it_stands(self, ts: object) -> None:
        assert [pointer for pointer, _, _ in findings(HandleUtterance, {**UTTERANCE, "ts": ts})] == ["/ts"]

    @pytest.mark.parametrize("body", ["", "text", {}, {"subtype": "hangup", "by": "user", "n": [1, 2.5]}])
    def test_its_body_is_a_text_or_an_object(self, body: object) -> None:
        said = {**UTTERANCE, "type": "system", "body": body}
        assert parsed(HandleUtterance, said).body == body  # F33, weakness g

    @pytest.mark.parametrize("body", [7, None, True, [], ["text"], 1.5])
    def test_any_other_is_one_finding_at_the_body(self, body: object) -> None:
        message = "must be a string or an object"  # F36: the pointer is one of what was sent
        assert findings(HandleUtterance, {**UTTERANCE, "body": body}) == [
            ("/body", "text_or_object_type", message)
        ]

    def test_an_object_that_nobody_can_keep_is_one_finding_too(self) -> None:
        body = orjson.dumps({**UTTERANCE, "body": 0}).replace(b'"body":0', b'"body":{"n":1e400}')
        ((pointer, code, _),) = findings(HandleUtterance, body)
        assert (pointer, code) == ("/body", "value_error")  # A9, F36

    @pytest.mark.parametrize(
        ("changes", "found"),
        [
            ({"type": "note"}, ("/type", "literal_error", "must be 'tool', 'system' or 'message'")),
            ({"src": "caller"}, ("/src", "literal_error", "must be 'user', 'bot' or 'agent'")),
            (
                {"messageId": ""},
                ("/messageId", "string_too_short", "must have at least 1 character"),
            ),
            (
                {"srcName": "x" * 257},
                ("/srcName", "string_too_long", "must have at most 256 characters"),
            ),
            (
                {"language": ""},
                ("/language", "string_too_short", "must have at least 1 character"),
            ),
        ],
        ids=["type", "src", "messageId", "srcName", "language"],
    )
    def test_every_other_field_has_its_bounds(self, changes: JsonObject, found: tuple[str, str, str]) -> None:
        assert findings(HandleUtterance, {**UTTERANCE, **changes}) == [found]  # F33


class TestBatches:
    def test_an_entry_may_bring_a_time_that_counts_for_nothing(self) -> None:
        (entry,) = parsed(MemoryBatch, [{**ENTRY, "updatedAt": "whatever"}])
        assert (entry.value, entry.description_for_llm) == ("Ada", None)  # F19

    @pytest.mark.parametrize("value", [None, "", 0, False, [], {"a": [1]}, 2**63])
    def test_its_value_is_any_json_and_must_be_there(self, value: object) -> None:
        (entry,) = parsed(MemoryBatch, [{**ENTRY, "value": value}])
        assert entry.value == value  # F19: what it may be is its variable's business
        without = {name: part for name, part in ENTRY.items() if name != "value"}
        assert findings(MemoryBatch, [ENTRY, without]) == [
            ("/1/value", "missing", "'value' is required here")
        ]

    @pytest.mark.parametrize(
        ("batch", "found"),
        [
            pytest.param({}, [("", "tuple_type", "must be an array, not an object")], id="object"),
            pytest.param(
                [{}],
                [(f"/0/{name}", "missing", f"{name!r} is required here") for name in ENTRY],
                id="empty-entry",
            ),
            pytest.param(
                [{**ENTRY, "descriptionForLLM": [{"name": "a"}]}],
                [("/0/descriptionForLLM/0/value", "missing", "'value' is required here")],
                id="half-a-description",
            ),
            pytest.param(
                [{**ENTRY, "descriptionForLLM": "x"}],
                [("/0/descriptionForLLM", "tuple_type", "must be an array, not a string")],
                id="a-text-for-descriptions",
            ),
            pytest.param(
                [{**ENTRY, "descriptionForLlm": []}],
                [
                    (
                        "/0/descriptionForLlm",
                        "unknown_property",
                        "is no property here; nearest are 'descriptionForLLM'",
                    )
                ],
                id="misspelled",
            ),
        ],
    )
    def test_findings_are_told_by_entry(self, batch: object, found: Found) -> None:
        assert findings(MemoryBatch, batch) == found  # F19

    def test_a_batch_of_none_is_left_to_the_memorys_rules(self) -> None:
        assert parsed(MemoryBatch, []) == ()  # F19

    def test_it_has_at_most_a_thousand_entries(self) -> None:
        assert len(parsed(MemoryBatch, [ENTRY] * MOST_ENTRIES)) == MOST_ENTRIES  # A9
        error = refusal(MemoryBatch, [ENTRY] * (MOST_ENTRIES + 1))
        (finding,) = error.findings
        assert (error.code, error.detail) == ("body_invalid", "a batch has at most 1000 entries")
        assert (finding.pointer, finding.code) == ("", "too_long")


class TestBoundsOfRefusals:
    """However wrong a body is, its refusal has a size (A9, F36)."""

    def test_the_first_hundred_breaches_are_described_and_all_are_counted(self) -> None:
        body = {f"property {number}": 1 for number in range(MOST_FINDINGS + 50)}
        error = refusal(RenameFlow, {"name": "n", "updatedBy": "ada", **body})
        assert error.detail == "150 field(s) of the body cannot be taken"
        assert [f.pointer for f in error.findings] == [f"/property {n}" for n in range(MOST_FINDINGS)]

    def test_of_very_many_only_their_number_is_told(self) -> None:
        count = MOST_ERRORS + 1
        error = refusal(RenameFlow, {"name": "n", "updatedBy": "ada", **{f"{n:x}": 1 for n in range(count)}})
        message = f"{count} errors are too many to be described one by one"
        assert [(f.pointer, f.code, f.message) for f in error.findings] == [("", "too_many_errors", message)]

    def test_very_many_are_soon_counted_where_fields_make_a_breach_together(self) -> None:
        started = time.process_time()
        error = refusal(ReplayBody, {"conversations": [1] * 300_000, "last": 1})
        assert time.process_time() - started < 2
        assert [f.code for f in error.findings] == ["too_many_errors"]

    def test_what_was_sent_is_not_repeated_in_messages(self) -> None:
        secret = "+39 347 1234567"
        error = refusal(HandleUtterance, {**UTTERANCE, "src": secret, "type": secret, "ts": secret})
        assert secret not in str([finding.message for finding in error.findings])  # F46


class TestFlows:
    @pytest.mark.parametrize("version", ["1.0.0", "0.0.1", "12.34.56"])
    def test_a_schema_version_has_three_numbers(self, version: str) -> None:
        body = {"name": "n", "campaignId": "c", "updatedBy": "ada", "schemaVersion": version}
        assert parsed(CreateFlow, body).schema_version == version  # F1

    @pytest.mark.parametrize("version", ["", "1", "1.0", "1.0.0.0", "v1.0.0", "1.0.0\n", "1.0.x"])
    def test_any_other_is_refused(self, version: str) -> None:
        body = {"name": "n", "campaignId": "c", "updatedBy": "ada", "schemaVersion": version}
        ((pointer, code, _),) = findings(CreateFlow, body)
        assert (pointer, code) == ("/schemaVersion", "string_pattern_mismatch")  # F1

    def test_without_one_it_is_the_first(self) -> None:
        body = {"name": "n", "campaignId": "c", "updatedBy": "ada"}
        assert parsed(CreateFlow, body).schema_version == "1.0.0"  # F1


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*UTTERANCE, *ENTRY, *NEW_CONTACT]), inner, max_size=4)
    ),
    max_leaves=6,
)


@settings(max_examples=30)
@given(JSON_VALUES, st.sampled_from([HandleNewContact, HandleUtterance, MemoryBatch, ChangeTask]))
def test_a_body_is_taken_or_refused_and_pointers_point_into_it(value: Any, shape: Any) -> None:
    try:
        body = orjson.dumps(value)
    except TypeError:
        return  # an integer that JSON writers refuse
    try:
        parsed(shape, body)
    except CorrectTheInput as error:
        for finding in error.findings:  # F2, F36: of what is missing the parent is there
            *parents, last = finding.pointer.split("/")[1:] or [""]
            place = value
            for part in parents:
                place = place[int(part) if isinstance(place, list) else part]
            assert finding.code == "missing" or last == "" or isinstance(place, dict | list)


def _told(shape: Any, body: bytes) -> object:
    try:
        return parsed(shape, body)
    except CorrectTheInput as error:
        return error.code, error.detail, [finding.pointer for finding in error.findings]


@settings(max_examples=30)
@given(JSON_VALUES, st.sampled_from([HandleNewContact, HandleUtterance, MemoryBatch, ChangeTask]))
def test_a_long_body_is_read_as_a_short_one(value: Any, shape: Any) -> None:  # F36
    try:
        body = orjson.dumps(value)
    except TypeError:
        return
    assert _told(shape, b" " * LARGE_BODY_BYTES + body) == _told(shape, body)
