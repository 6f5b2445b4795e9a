"""The memory's rules: merging, mining, tool writes, the stored form (F17–F20)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_engine.errors import CallTheOperator, CorrectTheInput
from flow_engine.runtime.memory import (
    MemoryEntry,
    MemoryWrite,
    PreviousContact,
    ValueDescription,
    decode_entry,
    decode_previous_contact,
    encode_entry,
    encode_previous_contact,
    merge,
    open_for_mining,
    prepare_tool_writes,
)
from flow_engine.values import GREATEST_INT, LEAST_INT, MAX_TEXT_BYTES
from flow_engine.variables import VariableIndex, VariableSpec
from flow_engine.vocabulary import VariableType

NOW = datetime(2025, 3, 31, 9, 30, tzinfo=UTC)
TYPES: tuple[VariableType, ...] = ("string", "number", "boolean", "enum", "date", "phone", "custom")
SPECS = VariableIndex(
    [
        VariableSpec("v1", "date", "date", "ask"),
        VariableSpec("v2", "size", "number", "ask"),
        VariableSpec("v3", "visit", "custom"),
        VariableSpec("v4", "phone", "phone", "ask"),
    ]
)
DESCRIBED = (ValueDescription("Id", "S"),)

storable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(LEAST_INT, GREATEST_INT)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
entries = st.builds(
    MemoryEntry,
    type=st.sampled_from(TYPES),
    updated_by=st.none() | st.text(),
    updated_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    value=storable,
    contact_id=st.text(),
    description_for_llm=st.none()
    | st.lists(st.builds(ValueDescription, st.text(), st.text()), max_size=3).map(tuple),
)
hashes = st.dictionaries(st.sampled_from(["v1", "v2", "v3", "v4", "v5"]), entries)


def entry(value: Any, by: str = "tool") -> MemoryEntry:
    return MemoryEntry("string", by, NOW, value, "c1", None)


def write(var: str, value: Any, **changes: Any) -> MemoryWrite:
    fields: dict[str, Any] = {"contact_id": "c1", "updated_by": "findVisit", "description_for_llm": None}
    return MemoryWrite(var=var, value=value, **(fields | changes))


def prepared(*writes: MemoryWrite, **settings: Any) -> dict[str, MemoryEntry]:
    return prepare_tool_writes(writes, specs=SPECS, contacts=["c1", "c2"], now=NOW, **settings)


def findings(*writes: MemoryWrite) -> list[tuple[str, str]]:
    with pytest.raises(CorrectTheInput) as raised:
        prepared(*writes)
    assert raised.value.code == "memory_invalid"
    return [(finding.pointer, finding.code) for finding in raised.value.findings]


class TestMerge:
    def test_a_tools_value_wins_however_old_it_is(self) -> None:
        old = MemoryEntry("string", "tool", NOW - timedelta(days=1), "tool's", "c1", None)
        assert merge({"v1": entry("mined", "convMiner")}, {"v1": old}) == {"v1": old}  # F18

    def test_a_tools_entry_without_a_value_hides_nothing(self) -> None:
        mined = entry("mined", "convMiner")
        assert merge({"v1": mined}, {"v1": entry(None)})["v1"] == mined  # F18

    @pytest.mark.parametrize("value", [False, 0])
    def test_false_and_zero_of_a_tool_win_too(self, value: Any) -> None:
        assert merge({"v1": entry("mined")}, {"v1": entry(value)})["v1"].value == value  # F5, F18

    @given(hashes, hashes)
    def test_every_variable_has_the_tools_value_else_the_miners(
        self, mined: dict[str, MemoryEntry], tools: dict[str, MemoryEntry]
    ) -> None:
        merged = merge(mined, tools)
        assert merged.keys() == mined.keys() | tools.keys()  # F18
        for var_id, winner in merged.items():
            if var_id in tools and tools[var_id].has_value:
                assert winner is tools[var_id]
            elif var_id in mined:
                assert winner is mined[var_id]
            else:
                assert winner is tools[var_id]

    @given(hashes, hashes)
    def test_merging_again_changes_nothing_and_neither_hash_is_touched(
        self, mined: dict[str, MemoryEntry], tools: dict[str, MemoryEntry]
    ) -> None:
        before = dict(mined), dict(tools)
        merged = merge(mined, tools)
        assert merge(merged, tools) == merged  # F18
        assert (mined, tools) == before


class TestMining:
    def test_custom_variables_and_those_that_a_tool_has_written_are_not_mined(self) -> None:
        tools = {"v1": entry("2025-03-31"), "v2": entry(None), "v3": entry(None)}
        assert [spec.id for spec in open_for_mining(SPECS, tools)] == ["v2", "v4"]  # F18

    def test_a_card_number_is_not_mined(self) -> None:
        specs = [VariableSpec("v1", "card", "string", "ask", sensitive="card")]
        assert open_for_mining(specs, {}) == ()  # F18: what the dialogue keeps of it is a mask

    def test_a_tools_false_closes_a_variable(self) -> None:
        flag = VariableSpec("v1", "flag", "boolean", "ask")
        assert open_for_mining([flag], {"v1": entry(False)}) == ()  # F18


class TestToolWrites:
    @pytest.mark.parametrize("text", ["sì?", "Ecografia dell’addome", "?", "日本語"])
    def test_texts_of_any_language_are_taken(self, text: str) -> None:  # F19
        described = (ValueDescription("Id", text),)
        assert (
            prepared(write("v3", {"a": 1}, description_for_llm=described))["v3"].description_for_llm
            == described
        )

    def test_an_entry_is_stored_by_id_canonical_and_stamped(self) -> None:
        stored = prepared(write("size", "12.0"), write("v3", {"id": "S"}, description_for_llm=DESCRIBED))
        assert stored == {  # F17, F19
            "v2": MemoryEntry("number", "findVisit", NOW, 12, "c1", None),
            "v3": MemoryEntry("custom", "findVisit", NOW, {"id": "S"}, "c1", DESCRIBED),
        }

    def test_region_and_time_zone_reach_the_values(self) -> None:
        zone = timezone(timedelta(hours=2))
        writes = write("phone", "347 1234567"), write("date", "2025-03-31T09:30")
        stored = prepared(*writes, default_region="IT", timezone=zone)
        assert stored["v1"].value == "2025-03-31T07:30:00Z"  # F5
        assert stored["v4"].value == {"country": "IT", "type": "mobile", "number": "+393471234567"}

    @pytest.mark.parametrize("nothing", [None, "", "  "])
    def test_no_value_takes_the_tools_value_back(self, nothing: Any) -> None:
        stored = prepared(write("visit", nothing, description_for_llm=DESCRIBED))
        assert stored == {"v3": MemoryEntry("custom", "findVisit", NOW, None, "c1", None)}  # F19
        mined = entry("mined", "convMiner")
        assert merge({"v3": mined}, stored) == {"v3": mined}

    def test_every_breach_is_reported_at_once(self) -> None:
        assert findings(  # F19
            write("nowhere", 1),
            write("v1", "soon", contact_id="c9"),
            write("v2", 2**64, updated_by="convMiner"),
            write("v3", {"id": "S"}, updated_by=" "),
            write("visit", 1, description_for_llm=DESCRIBED),
        ) == [
            ("/0/varId", "variable_unknown"),
            ("/1/contactId", "contact_unknown"),
            ("/1/value", "date_invalid"),
            ("/2/updatedBy", "updated_by_reserved"),
            ("/2/value", "number_too_large"),
            ("/3/updatedBy", "updated_by_missing"),
            ("/3/descriptionForLLM", "description_required"),
            ("/4/varId", "variable_twice"),
        ]

    def test_messages_name_what_would_be_accepted(self) -> None:
        with pytest.raises(CorrectTheInput) as raised:
            prepared(write("nowhere", 1, contact_id="c9"))
        contact, variable = raised.value.findings
        assert contact.message == "the conversation's contacts are 'c1', 'c2'"  # F19
        assert variable.message == (
            "there is no variable 'nowhere'; accepted are 'date', 'phone', 'size', 'visit'"
        )

    def test_a_thousand_unknown_names_in_a_large_flow_are_told_in_a_moment(self) -> None:
        specs = VariableIndex(VariableSpec(f"v{n}", f"of customer {n}", "string") for n in range(1_000))
        batch = [write(f"of custommer {n}", "x") for n in range(1_000)]
        began = time.process_time()
        with pytest.raises(CorrectTheInput) as raised:
            prepare_tool_writes(batch, specs=specs, contacts={"c1"}, now=NOW)
        assert time.process_time() - began < 5
        first, *_, last = raised.value.findings  # F19
        assert first.message.startswith("there is no variable 'of custommer 0'; nearest are 'of customer 0'")
        assert last.message.endswith("'of customer 114', 'of customer 115' and 980 more")

    def test_a_thousand_values_for_a_large_enum_are_refused_in_a_moment(self) -> None:
        specs = VariableIndex([VariableSpec("e", "e", "enum", enum_values=tuple(range(20_000)))])
        began = time.process_time()
        with pytest.raises(CorrectTheInput) as raised:
            prepare_tool_writes([write("e", "0.5")] * 1_000, specs=specs, contacts={"c1"}, now=NOW)
        assert time.process_time() - began < 5
        first, *others = raised.value.findings  # F19
        assert first.message.endswith("18, 19 and 19980 more")
        assert {found.code for found in others} == {"variable_twice"}

    @pytest.mark.parametrize("author", ["convMiner", " convminer ", "CONVMINER"])
    def test_no_tool_can_pass_for_the_miner(self, author: str) -> None:
        assert findings(write("v2", 1, updated_by=author)) == [("/0/updatedBy", "updated_by_reserved")]  # F19

    def test_a_custom_value_needs_a_description_with_something_in_it(self) -> None:
        assert findings(write("v3", [], description_for_llm=())) == [  # F19
            ("/0/descriptionForLLM", "description_required")
        ]

    def test_an_empty_description_of_another_type_is_none(self) -> None:
        assert prepared(write("v2", 1, description_for_llm=()))["v2"].description_for_llm is None  # F17

    def test_a_variable_may_come_once_under_either_of_its_keys(self) -> None:
        assert findings(write("v2", 1), write("size", 1)) == [("/1/varId", "variable_twice")]  # F19

    def test_a_batch_of_nothing_is_refused(self) -> None:
        assert findings() == [("", "batch_empty")]  # F32

    def test_texts_beside_the_value_are_checked_too(self) -> None:
        described = (ValueDescription("\ud800", "ok"), ValueDescription("ok", "x" * (MAX_TEXT_BYTES + 1)))
        assert findings(write("v2", 1, updated_by="\ud800", description_for_llm=described)) == [  # F19
            ("/0/updatedBy", "text_invalid"),
            ("/0/descriptionForLLM/0/name", "text_invalid"),
            ("/0/descriptionForLLM/1/value", "text_too_long"),
        ]

    @given(st.integers() | st.floats() | st.text(st.characters()) | storable)
    def test_any_value_is_stored_as_json_or_refused(self, value: Any) -> None:
        try:
            stored = prepared(write("v3", value, description_for_llm=DESCRIBED))
        except CorrectTheInput:
            return
        assert decode_entry(encode_entry(stored["v3"])) == stored["v3"]  # F21


class TestStoredForm:
    def test_an_empty_entry_has_the_agreed_shape(self) -> None:
        assert orjson.loads(encode_entry(MemoryEntry("date", None, None, None, "c1", None))) == {  # F17
            "updatedBy": None,
            "updatedAt": None,
            "type": "date",
            "contactId": "c1",
            "value": None,
            "descriptionForLLM": None,
        }

    def test_a_written_entry_has_the_agreed_shape(self) -> None:
        assert orjson.loads(encode_entry(MemoryEntry("custom", "t", NOW, [1], "c1", DESCRIBED))) == {  # F17
            "updatedBy": "t",
            "updatedAt": "2025-03-31T09:30:00Z",
            "type": "custom",
            "contactId": "c1",
            "value": [1],
            "descriptionForLLM": [{"name": "Id", "value": "S"}],
        }

    @given(entries)
    def test_an_entry_reads_back_as_it_was(self, original: MemoryEntry) -> None:
        assert decode_entry(encode_entry(original)) == original  # F17

    @given(st.builds(PreviousContact, st.datetimes(timezones=st.just(UTC)), st.text(), st.text()))
    def test_a_previous_contact_reads_back_as_it_was(self, original: PreviousContact) -> None:
        assert decode_previous_contact(encode_previous_contact(original)) == original  # F20

    def test_a_previous_contact_has_the_agreed_shape(self) -> None:
        contact = PreviousContact(NOW, "phone", "Booked a visit.")
        stored = {"date": "2025-03-31T09:30:00Z", "channel": "phone", "resume": "Booked a visit."}
        assert orjson.loads(encode_previous_contact(contact)) == stored  # F20

    @pytest.mark.parametrize(
        "change",
        [
            {"type": []},
            {"updatedBy": 7},
            {"updatedAt": "yesterdayZ"},
            {"updatedAt": "2025-03-31T09:30:00"},
            {"updatedAt": 7},
            {"contactId": None},
            {"descriptionForLLM": 7},
            {"descriptionForLLM": ["Id"]},
            {"descriptionForLLM": [{"name": "Id"}]},
        ],
    )
    def test_an_entry_of_another_shape_calls_the_operator(self, change: dict[str, Any]) -> None:
        stored = orjson.loads(encode_entry(MemoryEntry("custom", "t", NOW, [1], "c1", DESCRIBED))) | change
        with pytest.raises(CallTheOperator) as raised:
            decode_entry(orjson.dumps(stored))
        assert raised.value.code == "memory_unreadable"  # F17

    def test_an_entry_of_a_type_that_only_a_newer_release_knows_is_carried_as_it_is(self) -> None:
        stored = orjson.loads(encode_entry(entry("12 EUR"))) | {"type": "money"}
        read = decode_entry(orjson.dumps(stored))
        assert orjson.loads(encode_entry(read)) == stored  # D4

    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"7", b"{}", b"\xff"])
    def test_what_is_no_entry_at_all_calls_the_operator(self, data: bytes) -> None:
        with pytest.raises(CallTheOperator):
            decode_entry(data)  # F17
        with pytest.raises(CallTheOperator):
            decode_previous_contact(data)  # F20


def test_sixty_entries_are_read_and_merged_in_far_less_than_a_millisecond() -> None:
    """The goal is 150 µs; the bound leaves room for a busy machine. F18"""
    stored = {f"v{at}": encode_entry(entry("10 October")) for at in range(60)}

    def read_and_merge() -> float:
        start = time.perf_counter()
        mined = {var_id: decode_entry(data) for var_id, data in stored.items()}
        merge(mined, mined)
        return time.perf_counter() - start

    assert min(read_and_merge() for _ in range(20)) < 0.001
