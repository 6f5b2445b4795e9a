"""What a save refuses, warns of and sets, beyond the schema and the references."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from adapters.outbound.policy import AllowList
from flow_engine.documents import DocumentLimits
from flow_engine.errors import CorrectTheInput
from flow_engine.use_cases.submissions import Submission, Submissions
from system_prompts.loader import load_system_prompts
from tests.flow_engine.documents.samples import JsonObject, aio_task, full_version, hum_task, minimal_version

NOW = datetime(2026, 1, 15, 9, 30, tzinfo=UTC)
MULTI = {"multiContact": True, "customHandler": "https://hooks.example.com/close"}
ALLOW = AllowList.parse("10.1.0.0/16, inner.example.com")
SUBMISSIONS = Submissions(load_system_prompts(), DocumentLimits(), lambda: "fresh", ALLOW.visible_refusal)


def submitted(body: bytes | JsonObject) -> Submission:
    text = body if isinstance(body, bytes) else orjson.dumps(body)
    return SUBMISSIONS.check(text, flow_id="flow-1", created_by="ada", now=NOW)


def errors(body: bytes | JsonObject) -> list[tuple[str, str]]:
    with pytest.raises(CorrectTheInput) as refusal:
        submitted(body)
    return [(finding.pointer, finding.code) for finding in refusal.value.findings]


def warnings(body: JsonObject, code: str) -> list[tuple[str, str]]:
    return [(w.pointer, w.message) for w in submitted(body).warnings if w.code == code]


class TestTimes:
    @pytest.mark.parametrize("seconds", [-1, -0.5, -1e300, 315_360_001, 1e300, 2**63])
    def test_a_time_that_no_clock_reaches_is_refused(self, seconds: float) -> None:  # D10 A10
        closure = {**MULTI, "conversationTimeLimit": seconds}
        raw = minimal_version(
            closureConfig=closure,
            tasks=[
                aio_task(connectedTasks=["operator"], closureConfig=closure),
                hum_task(routingParameters={"timeout": seconds, "agentSkills": ["desk"]}),
            ],
        )
        assert errors(raw) == [
            ("/closureConfig/conversationTimeLimit", "out_of_range"),
            ("/tasks/0/closureConfig/conversationTimeLimit", "out_of_range"),
            ("/tasks/1/routingParameters/timeout", "out_of_range"),
        ]

    def test_ten_years_are_accepted(self) -> None:  # D10
        raw = minimal_version(closureConfig={**MULTI, "conversationTimeLimit": 315_360_000})
        assert submitted(raw).entry.version_id == "version-1"


class TestEveryErrorAtOnce:
    def test_unknown_names_do_not_hide_templates_and_conditions(self) -> None:  # F2 F9
        raw = minimal_version(
            globalPrompt="Answer {{ $vars.name",
            firstTask="nowhere",
            variables=[{"_id": "age", "name": "age", "type": "number", "prompt": "How old"}],
            tasks=[
                aio_task(
                    "welcome",
                    connectedTasks=["elsewhere"],
                    entryCondition={"when": "vars.age == 'old'", "reason": "no"},
                    connectionConditions={"welcome": {"when": "vars.years > 3", "reason": "no"}},
                )
            ],
        )
        assert sorted(errors(raw)) == [
            ("/firstTask", "unknown_task"),
            ("/globalPrompt", "template_unclosed"),
            ("/tasks/0/connectedTasks/0", "unknown_task"),
            ("/tasks/0/connectionConditions/welcome/when", "condition_unknown_name"),
            ("/tasks/0/entryCondition/when", "condition_type_clash"),
        ]

    def broken_texts(self, **changes: Any) -> JsonObject:
        tool = {"toolName": "search", "when": "vars.age >", "resultMapping": {"a/b": "$.a[0"}}
        selection = {"mcpServerName": "agenda", "selectedTools": [tool]}
        welcome = aio_task(
            "welcome",
            prompt="{% set x = 1 %}",
            entryCondition={"when": "vars.age == 'old'", "reason": "no"},
            connectionConditions={"a/b": {"when": "entries('nowhere') > 1", "reason": "no"}},
            mcpToolSelection=[selection],
        )
        speech = {"provider": "google", "voice": "{% if"}
        return minimal_version(
            **{
                "globalPrompt": "Answer {{ $vars.name",
                "variables": [{"_id": "age", "name": "age", "type": "number", "prompt": "How old"}],
                "tasks": [welcome],
                "mediaConfig": {
                    "audio": {"presetId": "default", "tts": {"default": speech, "fallback": speech}},
                    "text": {},
                },
                **changes,
            }
        )

    IN_TEXTS = frozenset(
        {
            ("/globalPrompt", "template_unclosed"),
            ("/tasks/0/prompt", "template_forbidden"),
            ("/tasks/0/mcpToolSelection/0/selectedTools/0/when", "condition_syntax"),
            ("/tasks/0/mcpToolSelection/0/selectedTools/0/resultMapping/a~1b", "result_path_invalid"),
            ("/mediaConfig/audio/tts/default/voice", "template_unclosed"),
            ("/mediaConfig/audio/tts/fallback/voice", "template_unclosed"),
        }
    )
    IN_NAMES = frozenset(
        {
            ("/tasks/0/entryCondition/when", "condition_type_clash"),
            ("/tasks/0/connectionConditions/a~1b/when", "condition_unknown_name"),
        }
    )

    @pytest.mark.parametrize(
        ("schema", "told"),
        [
            ({"closureConfig": {"multiContact": "yes"}}, ("/closureConfig/multiContact", "wrong_type")),
            ({"retention": {"days": 0}}, ("/retention/days", "not_allowed")),
            ({"surplus": 1}, ("/surplus", "unknown_property")),
        ],
    )
    def test_an_error_of_the_schema_hides_none_of_them(
        self, schema: JsonObject, told: tuple[str, str]
    ) -> None:  # F2 F9
        found = errors(self.broken_texts(**schema))
        assert {told} | self.IN_TEXTS | self.IN_NAMES <= set(found)
        assert len(found) == len(set(found))

    @pytest.mark.parametrize(
        ("variables", "named"),
        [
            ({"_id": "age", "name": "age", "type": "numbr", "prompt": "How old"}, True),
            ({"_id": "age", "name": "age", "type": "enum", "enumValues": "old", "prompt": "How old"}, True),
            ({"_id": 5, "name": "age", "type": "number", "prompt": "How old"}, False),
            ({"_id": "age", "type": "number", "prompt": "How old"}, False),
            ("age", False),
        ],
    )
    def test_names_in_conditions_are_judged_where_those_of_the_version_can_be_read(
        self, variables: object, named: bool
    ) -> None:  # F2
        found = set(errors(self.broken_texts(variables=[variables])))
        assert found >= self.IN_TEXTS
        unknown = ("/tasks/0/connectionConditions/a~1b/when", "condition_unknown_name")
        assert found & self.IN_NAMES == ({unknown} if named else set())

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"firstTask": "nowhere"}, [("/firstTask", "unknown_task")]),
            ({"retention": {"days": 0}}, [("/retention/days", "not_allowed")]),
            ({"globalPrompt": "{{ x"}, [("/globalPrompt", "template_unclosed")]),
            ({"draft": True, "_id": "a/b"}, [("/_id", "invalid_id")]),
            ({}, []),
        ],
    )
    def test_the_name_of_another_flow_is_told_with_whatever_else_is_wrong(
        self, changes: JsonObject, told: list[tuple[str, str]]
    ) -> None:  # F2 F9
        raw = minimal_version(conversationalFlowId="other", **changes)
        assert errors(raw) == [*told, ("/conversationalFlowId", "flow_mismatch")]

    def test_a_flow_that_is_no_text_is_an_error_of_the_schema_alone(self) -> None:  # F2
        raw = minimal_version(conversationalFlowId=5)
        assert errors(raw) == [("/conversationalFlowId", "wrong_type")]

    @pytest.mark.parametrize("first_task", ["nowhere", "welcome"])
    def test_the_refusal_counts_all_that_it_lists(self, first_task: str) -> None:  # F2
        raw = minimal_version(
            conversationalFlowId="other",
            firstTask=first_task,
            tasks=[aio_task("welcome")],
            uiMetadata={"n": "N"},
        )
        with pytest.raises(CorrectTheInput) as refusal:
            submitted(orjson.dumps(raw).replace(b'"N"', b"9" * 30))
        listed = len(refusal.value.findings)
        assert listed == (3 if first_task == "nowhere" else 2)
        assert refusal.value.detail == f"the version has {listed} errors"

    @pytest.mark.parametrize(
        ("when", "told"),
        [
            ("vars.yaers > 3", ["'vars.yaers' names no variable of the version; known: 'age', 'years'"]),
            ("entries('nope') > 1", ["'nope' is no _id of a task; known: 'desk', 'welcome'"]),
            (
                "foo.x > 1 and bar.y == 3",
                ["'foo' is unknown; accepted are", "'bar' is unknown; accepted are"],
            ),
        ],
    )
    def test_names_that_a_condition_lacks_are_told_with_the_known_ones(
        self, when: str, told: list[str]
    ) -> None:  # F2
        raw = minimal_version(
            variables=[{"_id": "age", "name": "years", "type": "number", "prompt": "How old"}],
            tasks=[aio_task("welcome", entryCondition={"when": when, "reason": "no"}), aio_task("desk")],
            firstTask="welcome",
        )
        with pytest.raises(CorrectTheInput) as refusal:
            submitted(raw)
        found = [(each.code, each.message) for each in refusal.value.findings]
        assert [code for code, _ in found] == ["condition_unknown_name"] * len(told)
        for (_, message), part in zip(found, told, strict=True):
            assert part in message

    def test_nothing_is_told_twice(self) -> None:  # F2
        speech = {"provider": "{{ $tenant.voice", "voice": "anna"}
        media = {"audio": {"presetId": "default", "tts": {"default": speech, "fallback": speech}}, "text": {}}
        assert errors(minimal_version(mediaConfig=media)) == [
            ("/mediaConfig/audio/tts/default/provider", "invalid_provider"),
            ("/mediaConfig/audio/tts/fallback/provider", "invalid_provider"),
        ]

    @pytest.mark.parametrize("draft", [{}, {"draft": "false"}, {"draft": None}])
    def test_a_draft_that_cannot_be_told_hides_none(self, draft: JsonObject) -> None:  # F2 F9
        raw = {name: value for name, value in minimal_version().items() if name != "draft"}
        told = errors({**raw, **draft, "firstTask": "nowhere", "globalPrompt": "{% set x = 1 %}"})
        assert [place for place, _ in told] == ["/draft", "/firstTask", "/globalPrompt"]

    def test_names_that_are_taken_twice_hide_none_either(self) -> None:  # F2 F9
        raw = minimal_version(
            tasks=[aio_task("welcome", prompt="{% if %}"), aio_task("welcome", prompt="{{ 1 }")],
            firstTask="welcome",
        )
        found = [code for _, code in errors(raw)]
        assert {"duplicate_id", "template_unclosed"} <= set(found)

    def test_what_is_only_suspicious_is_not_told_with_errors(self) -> None:  # F9
        raw = minimal_version(globalPrompt="{{ $vars.nothing }}", firstTask="nowhere")
        assert errors(raw) == [("/firstTask", "unknown_task")]


class TestIds:
    @pytest.mark.parametrize("bad", ["", "  ", "a/b", "/", "x" * 513])
    def test_an_id_that_no_address_can_hold_is_refused(self, bad: str) -> None:  # D10 A17
        raw = minimal_version(
            _id=bad,
            variables=[{"_id": bad, "name": "odd", "type": "custom"}],
            tasks=[aio_task(bad)],
            firstTask=bad,
        )
        assert errors(raw) == [
            ("/_id", "invalid_id"),
            ("/tasks/0/_id", "invalid_id"),
            ("/variables/0/_id", "invalid_id"),
        ]

    def test_drafts_have_ids_too(self) -> None:  # D10
        assert errors({"draft": True, "_id": "a/b"}) == [("/_id", "invalid_id")]


class TestIntegers:
    @pytest.mark.parametrize("digits", ["12345678901234567890123", "-9223372036854775809", "1" * 300])
    def test_one_that_would_come_back_changed_is_refused_with_every_other_error(
        self, digits: str
    ) -> None:  # weakness f
        raw = orjson.dumps(minimal_version(firstTask="lobby", uiMetadata={"a/b": ["PLACE"]}))
        body = raw.replace(b'"PLACE"', digits.encode())
        assert errors(body) == [
            ("/uiMetadata/a~1b/0", "integer_too_large"),
            ("/firstTask", "unknown_task"),
        ]

    @pytest.mark.parametrize("digits", ["18446744073709551615", "-9223372036854775808"])
    def test_64_bits_are_kept(self, digits: str) -> None:  # weakness f
        body = orjson.dumps(minimal_version(uiMetadata={"n": "PLACE"})).replace(b'"PLACE"', digits.encode())
        assert digits.encode() in submitted(body).document


class TestRepeatedProperties:
    def test_each_is_refused_with_every_other_error(self) -> None:  # F9
        raw = orjson.dumps(minimal_version(firstTask="lobby", uiMetadata={"a/b": [{"PLACE": 1}]}))
        body = raw.replace(b'{"PLACE":1}', b'{"x": {"y": 1, "y": 1}, "x": {}, "z": 2}')
        body = body[:-1] + b',"firstTask":"lobby"}'
        found = errors(body)
        assert found[-1] == ("/firstTask", "unknown_task")
        assert sorted(found[:-1]) == [
            ("/firstTask", "duplicate_key"),
            ("/uiMetadata/a~1b/0/x", "duplicate_key"),
        ]


class TestUnknownProperties:
    def test_a_misspelled_one_is_warned_of_with_the_nearest_name_wherever_it_stands(self) -> None:  # D10
        raw = full_version()
        raw["mediaConfig"]["audio"]["presetId"] = "default"
        raw["tasks"][0]["promt"] = "x"
        raw["tasks"][0]["closureConfig"]["conversationTimeLimits"] = 1
        raw["mediaConfig"]["audio"]["stt"]["default"]["recognitionTimeOut"] = 1
        raw["variables"][0]["a~/b"] = None
        found = dict(warnings(raw, "unknown_property"))
        assert set(found) == {
            "/tasks/0/promt",
            "/tasks/0/closureConfig/conversationTimeLimits",
            "/mediaConfig/audio/stt/default/recognitionTimeOut",
            "/variables/0/a~0~1b",
        }
        assert "nearest are 'prompt'" in found["/tasks/0/promt"]
        assert "'conversationTimeLimit'" in found["/tasks/0/closureConfig/conversationTimeLimits"]

    def test_a_condition_that_nothing_asks_is_warned_of(self) -> None:  # peers row 4, peers 2
        raw = minimal_version()
        raw["tasks"][1]["transitionParameters"][0]["condition"] = "mood == 'good'"
        assert [place for place, _ in warnings(raw, "unknown_property")] == [
            "/tasks/1/transitionParameters/0/condition"
        ]

    def test_what_is_open_or_read_all_the_same_is_not(self) -> None:  # F40
        raw = minimal_version(uiMetadata={"zoom": 2}, aiHelpers=[{"anything": 1}])
        raw["tasks"][1] |= {"hideTranscriptionToHuman": True, "suspendTranscription": True}
        assert warnings(raw, "unknown_property") == []


class TestHandlers:
    @pytest.mark.parametrize(
        "url",
        [
            "http://10.0.0.5/close",
            "http://127.0.0.1:8080/close",
            "http://localhost/close",
            "http://[::1]/close",
            "http://169.254.169.254/latest",
            "http://user:pw@hooks.example.com/close",
            "http://2130706433/",
            "http://hooks.example.com:0/close",
        ],
    )
    def test_one_that_the_policy_forbids_by_its_text_is_warned_of(self, url: str) -> None:  # D3
        closure: dict[str, Any] = {**MULTI, "conversationTimeLimit": 600, "customHandler": url}
        raw = minimal_version()
        raw["tasks"][0]["closureConfig"] = closure
        [(place, message)] = warnings(raw, "custom_handler_forbidden")
        assert place == "/tasks/0/closureConfig/customHandler"
        assert "pw" not in message

    @pytest.mark.parametrize(
        "url", ["https://hooks.example.com/x", "http://10.1.2.3/x", "http://inner.example.com:81/x"]
    )
    def test_names_are_not_resolved_and_the_allow_list_counts(self, url: str) -> None:  # D3
        raw = minimal_version()
        raw["tasks"][0]["closureConfig"] = {**MULTI, "conversationTimeLimit": 600, "customHandler": url}
        assert warnings(raw, "custom_handler_forbidden") == []


def test_an_edited_version_gets_a_new_id_and_with_it_a_new_hash() -> None:  # D7
    first = submitted(minimal_version())
    renewed = SUBMISSIONS.renewed(first)
    assert renewed.entry.version_id == orjson.loads(renewed.document)["_id"] == "fresh"
    assert renewed.entry.content_hash != first.entry.content_hash
    assert submitted(renewed.document).entry.content_hash == renewed.entry.content_hash
