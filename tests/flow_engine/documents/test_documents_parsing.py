"""Parsing: what is accepted, what is refused, and that a refusal tells everything at once."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from flow_engine.documents import (
    AudioMediaConfigPreset,
    CourtesyMessageRandomParams,
    FlowVersion,
    complete_version,
    parse_date_time,
    parse_document,
    parse_version,
)
from flow_engine.documents.base import ErrorBudget
from flow_engine.documents.media import CourtesyMessageGroqParams
from flow_engine.documents.model import Flow, RoutingParameters
from flow_engine.errors import CorrectTheInput, Finding
from tests.flow_engine.documents import samples
from tests.flow_engine.documents.samples import ENVIRONMENT, aio_task, full_version, hum_task, minimal_version


def errors_of(raw: object, **options: Any) -> dict[str, str]:
    """Pointer → code of every finding; no two findings have the same place here."""
    findings = findings_of(raw, **options)
    assert len({finding.pointer for finding in findings}) == len(findings)
    return {finding.pointer: finding.code for finding in findings}


def findings_of(raw: object, **options: Any) -> tuple[Finding, ...]:
    with pytest.raises(CorrectTheInput) as refusal:
        parse_version(raw, **options)
    assert refusal.value.code == "document_invalid"
    return refusal.value.findings


class TestAcceptedDocuments:
    @pytest.mark.parametrize("raw", [minimal_version(), full_version()])
    def test_a_version_round_trips_through_its_model(self, raw: samples.JsonObject) -> None:  # F2
        version = parse_version(raw, environment=ENVIRONMENT)
        assert version.model_dump(by_alias=True, exclude_unset=True, mode="json") == raw

    def test_attributes_are_in_snake_case_and_typed(self) -> None:  # F2
        version = parse_version(full_version())
        operator = version.tasks[1]
        assert (version.id, version.conversational_flow_id, version.first_task) == (
            "version-1",
            "flow-1",
            "reception",
        )
        assert isinstance(operator.routing_parameters, RoutingParameters)
        assert operator.routing_parameters.agent_skills == ("radiology",)
        assert version.tasks[0].mcp_tool_selection[0].selected_tools[0].tool_name == "book"
        assert version.variables[5].enum_values == ("S", "M", 42)

    def test_models_are_frozen(self) -> None:  # F7
        version = parse_version(minimal_version())
        with pytest.raises(ValidationError):
            version.first_task = "operator"  # type: ignore[misc]

    def test_missing_settings_have_their_defaults_and_do_not_count_as_set(self) -> None:  # F3
        audio = parse_version(minimal_version()).media_config.audio
        assert audio.user_interaction_timeout == 20
        assert audio.enable_recording is False
        assert audio.model_fields_set == {"preset_id"}

    def test_what_the_document_holds_counts_as_set_even_when_it_is_the_default(self) -> None:  # F3
        raw = minimal_version()
        raw["mediaConfig"]["audio"].update(userInteractionTimeout=20, courtesyMessageConfig=None)
        audio = parse_version(raw).media_config.audio
        assert audio.model_fields_set == {"preset_id", "user_interaction_timeout", "courtesy_message_config"}

    def test_unknown_properties_are_kept(self) -> None:  # F2
        raw = minimal_version()
        raw["tasks"][0]["colour"] = {"red": 1}
        assert parse_version(raw).tasks[0].model_extra == {"colour": {"red": 1}}

    def test_a_flow_is_parsed(self) -> None:  # F1
        flow = parse_document(
            Flow,
            {
                "_id": "flow-1",
                "name": "Clinic",
                "campaignId": "campaign-1",
                "schemaVersion": "1.0.0",
                "updatedBy": "designer",
                "updatedAt": "2026-01-31T09:30:00Z",
            },
            "the flow",
        )
        assert isinstance(flow, Flow)
        assert (flow.id, flow.campaign_id) == ("flow-1", "campaign-1")

    def test_a_flow_is_closed_to_other_properties(self) -> None:  # F1
        with pytest.raises(CorrectTheInput) as refusal:
            parse_document(Flow, {"_id": "flow-1", "versions": []}, "the flow")
        codes = {finding.pointer: finding.code for finding in refusal.value.findings}
        assert codes.pop("/versions") == "unknown_property"
        assert set(codes.values()) == {"missing_property"}
        assert len(codes) == 5

    def test_an_audio_preset_is_complete(self) -> None:  # F3
        preset = parse_document(AudioMediaConfigPreset, samples.full_audio(), "the audio preset")
        assert isinstance(preset, AudioMediaConfigPreset)
        with pytest.raises(CorrectTheInput) as refusal:
            parse_document(
                AudioMediaConfigPreset, {"llm": {}, "stt": samples.full_audio()["stt"]}, "the preset"
            )
        assert {finding.pointer for finding in refusal.value.findings} == {
            "/tts",
            "/vad",
            "/allowInterruptionsOnStart",
            "/allowInterruptions",
            "/enableRecording",
            "/userInteractionTimeout",
            "/preemptiveGeneration",
        }

    def test_the_models_describe_themselves_as_json_schema(self) -> None:  # F36
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            schema = FlowVersion.model_json_schema(by_alias=True)
        assert set(schema["properties"]) >= {"_id", "draft", "tasks", "mediaConfig"}
        assert schema["additionalProperties"] is False


class TestEveryErrorAtOnce:
    def test_a_version_without_anything_lists_all_that_is_missing(self) -> None:  # F2
        errors = errors_of({"draft": False})
        assert set(errors.values()) == {"missing_property"}
        assert set(errors) == {f"/{name}" for name in minimal_version() if name != "draft"}

    def test_errors_of_all_depths_and_kinds_come_together(self) -> None:  # F2 F9
        raw = minimal_version(schemaVersion="1.0", firstTask="nowhere", surprise=1, createdAt="yesterday")
        del raw["globalPrompt"]
        raw["tasks"][0] |= {"type": "AI", "connectedTasks": ["operator", 7, "elsewhere"]}
        raw["tasks"][1]["closureConfig"] = {"multiContact": True, "customHandler": "mailto:a@b.cd"}
        raw["variables"][0]["prompt"] = None
        raw["mediaConfig"]["audio"]["stt"] = {"default": {"provider": "xdeepgram; rm"}}
        assert errors_of(raw) == {
            "/schemaVersion": "invalid_schema_version",
            "/firstTask": "unknown_task",
            "/surprise": "unknown_property",
            "/createdAt": "invalid_date_time",
            "/globalPrompt": "missing_property",
            "/tasks/0/type": "not_allowed",
            "/tasks/0/connectedTasks/1": "wrong_type",
            "/tasks/0/connectedTasks/2": "unknown_task",
            "/tasks/1/closureConfig/conversationTimeLimit": "missing_property",
            "/tasks/1/closureConfig/customHandler": "invalid_url",
            "/variables/0/prompt": "wrong_type",
            "/mediaConfig/audio/stt/default/provider": "invalid_provider",
            "/mediaConfig/audio/stt/fallback": "missing_property",
        }

    def test_messages_name_what_would_be_accepted(self) -> None:  # F2
        raw = minimal_version(apiVersion="1", channels=["fax"], extra=1)
        messages = {finding.pointer: finding.message for finding in findings_of(raw)}
        assert messages["/apiVersion"] == "must be 'v' and a number, such as 'v1', not '1'"
        assert messages["/channels/0"] == "must be 'phone', 'whatsapp', 'sms', 'mail' or 'chat', not 'fax'"
        assert "'globalPrompt'" in messages["/extra"]
        assert messages["/mandatoryChannels/0"].endswith("'channels': 'fax'")

    def test_errors_of_the_environment_come_with_the_others(self) -> None:  # F3
        raw = minimal_version(apiVersion="v9", firstTask="nowhere")
        raw["mediaConfig"]["audio"]["presetId"] = "loud"
        assert errors_of(raw, environment=ENVIRONMENT) == {
            "/apiVersion": "unknown_api_version",
            "/mediaConfig/audio/presetId": "unknown_audio_preset",
            "/firstTask": "unknown_task",
        }

    def test_all_of_very_many_errors_are_listed_up_to_a_thousand(self) -> None:  # F2
        raw = minimal_version(checkpoints=[{}] * 332 + [{"_id": "a", "name": "b"}])
        assert len(findings_of(raw)) == 332 * 3 + 1
        raw["checkpoints"] += [{}] * 50
        findings = findings_of(raw)
        assert len(findings) == 1001
        assert findings[-1].code == "more_findings"

    @pytest.mark.parametrize("kind", ["courtesy", "waiting", "routing", "mapping"])
    def test_no_more_errors_are_looked_for_than_are_listed(self, kind: str) -> None:  # F9
        raw = full_version()
        routing = raw["tasks"][1]["routingParameters"]
        if kind == "waiting":
            waiting = {"generationStrategy": "fixed", "messagesList": [{}] * 1_000}
            routing["waitingMessagesConfiguration"] = waiting
        elif kind == "routing":
            routing["agentSkills"] = [1] * 1_000
        elif kind == "mapping":
            tool = {"toolName": "search", "resultMapping": dict.fromkeys(map(str, range(1_000)), 1)}
            raw["tasks"][0]["mcpToolSelection"] = [{"mcpServerName": "s", "selectedTools": [tool]}]
        else:
            params = {"messages": [{}] * 1_000}
            courtesy = {"provider": "random", "timeout": 1, "providerParams": params}
            raw["mediaConfig"]["text"]["courtesyMessageConfig"] = courtesy
        with pytest.raises(ValidationError) as refusal:
            FlowVersion.model_validate(raw, context=ErrorBudget(10))
        assert 1 <= refusal.value.error_count() <= 11

    def test_pointers_escape_property_names(self) -> None:  # F2
        assert errors_of(minimal_version(**{"a/b~c": 1})) == {"/a~1b~0c": "unknown_property"}

    def test_a_document_that_is_no_object_is_refused_as_a_whole(self) -> None:  # F2
        assert errors_of([1]) == {"": "wrong_type"}


class TestNullAndTypes:
    @pytest.mark.parametrize("name", sorted(set(minimal_version()) | {"languageDetection"}))
    def test_null_is_refused_where_a_property_may_only_be_missing(self, name: str) -> None:  # F2
        codes = errors_of(minimal_version(**{name: None}))
        assert codes[f"/{name}"] == "wrong_type"

    @pytest.mark.parametrize("value", [1, 1.0, 0.5, -3, 10**15])
    def test_integers_and_fractions_are_numbers(self, value: float) -> None:  # F2
        raw = minimal_version()
        raw["tasks"][1]["routingParameters"] = {"timeout": value}
        routing = parse_version(raw).tasks[1].routing_parameters
        assert routing
        assert routing.timeout == value
        assert type(routing.timeout) is type(value)

    @pytest.mark.parametrize("value", [True, "1", None, [], {}, float("nan"), float("inf")])
    def test_nothing_else_is_a_number(self, value: object) -> None:  # F2
        raw = minimal_version()
        raw["tasks"][1]["routingParameters"] = {"timeout": value}
        assert errors_of(raw) == {"/tasks/1/routingParameters/timeout": "wrong_type"}

    @pytest.mark.parametrize("value", [0, 1, "true", None])
    def test_only_true_and_false_are_booleans(self, value: object) -> None:  # F2
        assert errors_of(minimal_version(draft=value)) == {"/draft": "wrong_type"}

    @pytest.mark.parametrize("channels", [None, [], ["phone"]])
    def test_channels_of_a_task_may_be_null(self, channels: list[str] | None) -> None:  # F2
        raw = minimal_version()
        raw["tasks"][1]["channels"] = channels
        assert parse_version(raw).tasks[1].channels == (None if channels is None else tuple(channels))


class TestConditionalRules:
    def test_multi_contact_needs_its_limit_and_handler(self) -> None:  # F2
        assert errors_of(minimal_version(closureConfig={"multiContact": True})) == {
            "/closureConfig/conversationTimeLimit": "missing_property",
            "/closureConfig/customHandler": "missing_property",
        }

    def test_a_single_contact_needs_neither(self) -> None:  # F2
        closure = parse_version(minimal_version(closureConfig={"multiContact": False})).closure_config
        assert (closure.conversation_time_limit, closure.custom_handler) == (None, None)

    @pytest.mark.parametrize("kind", ["string", "number", "boolean", "enum", "date", "phone", "email"])
    def test_a_variable_that_is_mined_needs_a_prompt(self, kind: str) -> None:  # F2
        raw = minimal_version(variables=[*samples.variables(), {"_id": "v", "name": "v", "type": kind}])
        assert errors_of(raw) == {"/variables/7/prompt": "missing_property"}

    def test_a_custom_variable_needs_no_prompt(self) -> None:  # F2
        assert parse_version(minimal_version()).variables[6].prompt is None

    @pytest.mark.parametrize(("strategy", "needed"), [("prompt", "prompt"), ("fixed", "messagesList")])
    def test_the_generation_strategy_chooses_what_is_needed(self, strategy: str, needed: str) -> None:  # F2
        raw = minimal_version()
        waiting = {"generationStrategy": strategy}
        raw["tasks"][1]["routingParameters"]["waitingMessagesConfiguration"] = waiting
        place = "/tasks/1/routingParameters/waitingMessagesConfiguration/"
        assert errors_of(raw) == {place + needed: "missing_property"}

    @pytest.mark.parametrize("kind", ["HUM", "AIS"])
    def test_human_tasks_need_routing_parameters(self, kind: str) -> None:  # F2
        raw = minimal_version(tasks=[aio_task(type=kind)])
        assert errors_of(raw) == {"/tasks/0/routingParameters": "missing_property"}

    @pytest.mark.parametrize("routing", [{"timeout": 1}, {"timeout": "x"}, None, 7])
    def test_routing_parameters_of_an_ai_task_are_not_read(self, routing: object) -> None:  # F2
        raw = minimal_version(tasks=[aio_task(routingParameters=routing)])
        version = parse_version(raw)
        assert version.tasks[0].routing_parameters is None
        assert version.model_dump(by_alias=True, exclude_unset=True, mode="json") == raw

    @pytest.mark.parametrize(
        ("value", "meaning"), [(True, True), (False, False), ("yes", False), (None, False)]
    )
    def test_flags_that_the_schema_leaves_unread_never_refuse(self, value: object, meaning: bool) -> None:
        """F2 F40"""
        tasks = [aio_task(hideTranscriptionToHuman=value), hum_task(suspendTranscription=value)]
        reception, operator = parse_version(minimal_version(tasks=tasks)).tasks
        assert reception.hide_transcription_to_human is meaning
        assert operator.suspend_transcription is meaning

    def test_only_human_tasks_suspend_their_transcription(self) -> None:  # F40
        raw = minimal_version(tasks=[aio_task(suspendTranscription=True)])
        assert parse_version(raw).tasks[0].suspend_transcription is False


class TestDrafts:
    def test_a_draft_needs_nothing_else(self) -> None:  # F2 F8
        version = parse_version({"draft": True})
        assert version.draft
        assert version.tasks == ()
        assert version.model_fields_set == {"draft"}

    def test_what_a_draft_holds_is_validated(self) -> None:  # F2
        raw = {"draft": True, "apiVersion": "one", "tasks": [{"_id": "a"}], "other": 1}
        errors = errors_of(raw)
        assert errors.pop("/apiVersion") == "invalid_api_version"
        assert errors.pop("/other") == "unknown_property"
        assert {place.rpartition("/")[0] for place in errors} == {"/tasks/0"}

    def test_references_of_a_draft_are_not_checked(self) -> None:  # F8
        raw = minimal_version(draft=True, firstTask="nowhere", mandatoryChannels=["sms"], apiVersion="v9")
        assert parse_version(raw, environment=ENVIRONMENT).first_task == "nowhere"

    @pytest.mark.parametrize(
        ("draft", "code"), [({}, "missing_property"), ({"draft": "false"}, "wrong_type")]
    )
    def test_what_does_not_tell_whether_it_is_a_draft_is_checked_whole(
        self, draft: samples.JsonObject, code: str
    ) -> None:  # F2 F9
        raw = {name: value for name, value in minimal_version().items() if name != "draft"}
        told = errors_of({**raw, **draft, "firstTask": "nowhere"}, environment=ENVIRONMENT)
        assert told == {"/draft": code, "/firstTask": "unknown_task"}

    def test_without_draft_only_that_is_asked_for(self) -> None:  # F2
        assert errors_of({"firstTask": "nowhere"}) == {"/draft": "missing_property"}


class TestServerFields:
    SET_BY_SERVER = ("_id", "conversationalFlowId", "createdAt", "createdBy")

    def complete(self, raw: samples.JsonObject) -> dict[str, object]:
        return complete_version(
            raw, version_id="v-2", flow_id="f-2", created_at="2026-02-01T00:00:00Z", created_by="ada"
        )

    def test_absent_fields_are_filled_in(self) -> None:  # F2
        raw = {key: value for key, value in minimal_version().items() if key not in self.SET_BY_SERVER}
        version = parse_version(self.complete(raw))
        assert (version.id, version.conversational_flow_id) == ("v-2", "f-2")
        assert (version.created_at, version.created_by) == ("2026-02-01T00:00:00Z", "ada")
        assert "_id" not in raw

    def test_given_ids_stay_even_when_they_are_null(self) -> None:  # F2
        assert self.complete(minimal_version())["_id"] == minimal_version()["_id"]
        assert self.complete({"_id": None})["_id"] is None

    def test_author_and_date_are_those_of_the_save(self) -> None:  # D7
        completed = self.complete(minimal_version(createdAt="2020-01-01T00:00:00Z", createdBy=7))
        assert (completed["createdAt"], completed["createdBy"]) == ("2026-02-01T00:00:00Z", "ada")


class TestFixesOfTheSchema:
    @pytest.mark.parametrize("provider", ["google", "deepgram", "openai", "{{ $tenant.stt }}"])
    def test_known_providers_and_templates_are_accepted(self, provider: str) -> None:  # F3
        raw = full_version()
        raw["mediaConfig"]["audio"]["stt"]["default"]["provider"] = provider
        assert parse_version(raw)

    @pytest.mark.parametrize(
        "provider", ["xdeepgram; rm", "deepgram2", "{{ x }} openai", "google\n", "{{x}}", "elevenlabs", ""]
    )
    def test_a_provider_is_matched_as_a_whole(self, provider: str) -> None:  # F3
        raw = full_version()
        raw["mediaConfig"]["audio"]["stt"]["default"]["provider"] = provider
        assert errors_of(raw) == {"/mediaConfig/audio/stt/default/provider": "invalid_provider"}

    def test_the_courtesy_provider_chooses_the_shape_of_its_parameters(self) -> None:  # F3
        media = parse_version(full_version()).media_config
        assert media.audio.courtesy_message_config
        assert media.text.courtesy_message_config
        assert isinstance(media.audio.courtesy_message_config.provider_params, CourtesyMessageGroqParams)
        assert isinstance(media.text.courtesy_message_config.provider_params, CourtesyMessageRandomParams)

    @pytest.mark.parametrize(
        ("provider", "params", "place"),
        [("groq", {"topP": "1"}, "/topP"), ("random", {"messages": "x"}, "/messages"), ("random", 1, "")],
    )
    def test_courtesy_parameters_are_checked_as_their_provider_wants(
        self, provider: str, params: object, place: str
    ) -> None:  # F3
        raw = minimal_version()
        courtesy = {"provider": provider, "timeout": 1, "providerParams": params}
        raw["mediaConfig"]["text"]["courtesyMessageConfig"] = courtesy
        where = "/mediaConfig/text/courtesyMessageConfig/providerParams"
        assert errors_of(raw) == {where + place: "wrong_type"}

    @pytest.mark.parametrize("value", [None, True, [], {}])
    def test_enum_values_are_strings_or_numbers_only(self, value: object) -> None:  # F3
        raw = minimal_version()
        raw["variables"][5]["enumValues"] = ["a", 1, 1.5, value]
        assert errors_of(raw) == {"/variables/5/enumValues/3": "wrong_type"}

    @pytest.mark.parametrize(
        "url",
        [
            "http://localhost:8080/mcp",
            "http://agenda/mcp",
            "https://agenda.internal.svc.cluster.local",
            "http://[fd00::1]:9000/x",
            "https://bücher.example/å?q=ä#ß",
            "https://user@example.com/",
        ],
    )
    def test_urls_may_have_ports_and_internal_names(self, url: str) -> None:  # F3
        raw = full_version()
        raw["mcpServers"][0]["url"] = url
        assert parse_version(raw).mcp_servers[0].url == url

    @pytest.mark.parametrize(
        "url",
        [
            "ftp://example.com",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "http://",
            "http:///x",
            "http://:80",
            "http://example.com:99999",
            "http://exam ple.com",
            "http://example.com\r\nX: y",
            "http://example.com\\@evil.com",
            "http://[::1",
            "example.com",
            "{{ $tenant.url }}",
        ],
    )
    def test_urls_are_http_with_a_host(self, url: str) -> None:  # F3
        raw = full_version()
        raw["mcpServers"][0]["url"] = url
        assert errors_of(raw) == {"/mcpServers/0/url": "invalid_url"}


class TestDateTimes:
    @pytest.mark.parametrize(
        "text",
        [
            "2026-01-31T09:30:00",
            "2026-01-31",
            "2026-02-30T00:00:00Z",
            "2026-01-31T09:30:00Z\n",
            "2026-01-31T09:30:60Z",
            "9999-12-31T23:59:60Z",
            "0000-01-01T00:00:00Z",
        ],
    )
    def test_what_is_no_date_time_is_refused(self, text: str) -> None:  # F2
        assert errors_of(minimal_version(createdAt=text)) == {"/createdAt": "invalid_date_time"}

    def test_a_date_time_keeps_its_offset(self) -> None:  # F2
        moment = parse_date_time("2026-01-31T09:30:00.123456789+02:00")
        assert moment == datetime(2026, 1, 31, 7, 30, 0, 123456, tzinfo=UTC)
        assert moment.utcoffset() == timedelta(hours=2)

    @pytest.mark.parametrize("text", ["2016-12-31T23:59:60Z", "2017-01-01T00:59:60.5+01:00"])
    def test_a_leap_second_is_the_second_after_it(self, text: str) -> None:  # F2
        assert parse_date_time(text) == datetime(2017, 1, 1, tzinfo=UTC)
        assert parse_version(minimal_version(createdAt=text)).created_at == text
