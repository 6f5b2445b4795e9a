"""Errors of a document in full: one thing is wrong where all else is sound, and this is told (F2, F9).

`...` takes the property away.
"""

from __future__ import annotations

from typing import Any

import pytest

from flow_engine.documents import parse_version
from flow_engine.errors import CorrectTheInput
from tests.flow_engine.documents.samples import ENVIRONMENT, JsonObject, full_version

Found = list[tuple[str, str, str]]

ERRORS = [
    pytest.param(
        "/draft",
        "yes",
        [
            ("/draft", "wrong_type", "must be a boolean, not a string"),
        ],
        id="draft='yes'",
    ),
    pytest.param(
        "/draft",
        ...,
        [
            ("/draft", "missing_property", "'draft' is required here"),
        ],
        id="draft=missing",
    ),
    pytest.param(
        "/_id",
        7,
        [
            ("/_id", "wrong_type", "must be a string, not a number"),
        ],
        id="_id=7",
    ),
    pytest.param(
        "/_id",
        "",
        [
            ("/_id", "invalid_id", "must be a text of 1 to 512 characters without '/', not ''"),
        ],
        id="_id=''",
    ),
    pytest.param(
        "/_id",
        "a/b",
        [
            ("/_id", "invalid_id", "must be a text of 1 to 512 characters without '/', not 'a/b'"),
        ],
        id="_id='a/b'",
    ),
    pytest.param(
        "/schemaVersion",
        "one",
        [
            (
                "/schemaVersion",
                "invalid_schema_version",
                "must be three numbers joined by dots, such as '1.0.0', not 'one'",
            ),
        ],
        id="schemaVersion='one'",
    ),
    pytest.param(
        "/globalPrompt",
        ...,
        [
            ("/globalPrompt", "missing_property", "'globalPrompt' is required when 'draft' is false"),
        ],
        id="globalPrompt=missing",
    ),
    pytest.param(
        "/globalPrompt",
        None,
        [
            ("/globalPrompt", "wrong_type", "must be a string, not null"),
        ],
        id="globalPrompt=None",
    ),
    pytest.param(
        "/channels",
        "phone",
        [
            ("/channels", "wrong_type", "must be an array, not a string"),
        ],
        id="channels='phone'",
    ),
    pytest.param(
        "/channels",
        ["phone", "fax"],
        [
            ("/channels/1", "not_allowed", "must be 'phone', 'whatsapp', 'sms', 'mail' or 'chat', not 'fax'"),
        ],
        id="channels=['phone', 'fax']",
    ),
    pytest.param(
        "/channels",
        ["phone", True],
        [
            ("/channels/1", "not_allowed", "must be 'phone', 'whatsapp', 'sms', 'mail' or 'chat', not true"),
        ],
        id="channels=['phone', True]",
    ),
    pytest.param(
        "/mandatoryChannels",
        ["mail"],
        [
            (
                "/mandatoryChannels/0",
                "mandatory_channel_not_in_channels",
                "'mail' is not among 'channels': 'chat', 'phone'",
            ),
        ],
        id="mandatoryChannels=['mail']",
    ),
    pytest.param(
        "/closureConfig",
        {"multiContact": True},
        [
            (
                "/closureConfig/conversationTimeLimit",
                "missing_property",
                "'conversationTimeLimit' is required when 'multiContact' is true",
            ),
            (
                "/closureConfig/customHandler",
                "missing_property",
                "'customHandler' is required when 'multiContact' is true",
            ),
        ],
        id="closureConfig={'multiContact': True}",
    ),
    pytest.param(
        "/closureConfig",
        {"multiContact": "yes"},
        [
            ("/closureConfig/multiContact", "wrong_type", "must be a boolean, not a string"),
        ],
        id="closureConfig={'multiContact': 'yes'}",
    ),
    pytest.param(
        "/closureConfig",
        {},
        [
            ("/closureConfig/multiContact", "missing_property", "'multiContact' is required here"),
        ],
        id="closureConfig={}",
    ),
    pytest.param(
        "/closureConfig",
        {"multiContact": True, "conversationTimeLimit": -1, "customHandler": "https://a.example/"},
        [
            (
                "/closureConfig/conversationTimeLimit",
                "out_of_range",
                "must be between 0 and 315360000 seconds (10 years), not -1",
            ),
        ],
        id="closureConfig={'multiContact': True, 'conversationTimeLimit': -1, 'cus",
    ),
    pytest.param(
        "/closureConfig",
        {"multiContact": True, "conversationTimeLimit": 60, "customHandler": "ftp://a.example/"},
        [
            (
                "/closureConfig/customHandler",
                "invalid_url",
                "must be an http:// or https:// URL with a host, not 'ftp://a.example/'",
            ),
        ],
        id="closureConfig={'multiContact': True, 'conversationTimeLimit': 60, 'cus",
    ),
    pytest.param(
        "/mediaConfig",
        ...,
        [
            ("/mediaConfig", "missing_property", "'mediaConfig' is required when 'draft' is false"),
        ],
        id="mediaConfig=missing",
    ),
    pytest.param(
        "/mediaConfig/audio/presetId",
        "loud",
        [
            (
                "/mediaConfig/audio/presetId",
                "unknown_audio_preset",
                "'loud' is no audio preset; known: 'default', 'noisy-line'",
            ),
        ],
        id="mediaConfig.audio.presetId='loud'",
    ),
    pytest.param(
        "/mediaConfig/audio/stt/default/provider",
        "xdeepgram; rm",
        [
            (
                "/mediaConfig/audio/stt/default/provider",
                "invalid_provider",
                (
                    "must be one of 'google', 'deepgram', 'openai' or a template '{{ … }}', not "
                    "'xdeepgram; rm'"
                ),
            ),
        ],
        id="mediaConfig.audio.stt.default.provider='xdeepgram; rm'",
    ),
    pytest.param(
        "/mediaConfig/audio/stt/default/provider",
        "{{ $tenant.stt",
        [
            (
                "/mediaConfig/audio/stt/default/provider",
                "invalid_provider",
                (
                    "must be one of 'google', 'deepgram', 'openai' or a template '{{ … }}', not '{{ "
                    "$tenant.stt'"
                ),
            ),
        ],
        id="mediaConfig.audio.stt.default.provider='{{ $tenant.stt'",
    ),
    pytest.param(
        "/mediaConfig/audio/tts/default/provider",
        "polly",
        [
            (
                "/mediaConfig/audio/tts/default/provider",
                "invalid_provider",
                "must be one of 'google', 'elevenlabs', 'openai' or a template '{{ … }}', not 'polly'",
            ),
        ],
        id="mediaConfig.audio.tts.default.provider='polly'",
    ),
    pytest.param(
        "/mediaConfig/audio/tts/fallback",
        ...,
        [
            ("/mediaConfig/audio/tts/fallback", "missing_property", "'fallback' is required here"),
        ],
        id="mediaConfig.audio.tts.fallback=missing",
    ),
    pytest.param(
        "/mediaConfig/audio/courtesyMessageConfig/provider",
        "llama",
        [
            (
                "/mediaConfig/audio/courtesyMessageConfig/provider",
                "not_allowed",
                "must be 'groq' or 'random', not 'llama'",
            ),
        ],
        id="mediaConfig.audio.courtesyMessageConfig.provider='llama'",
    ),
    pytest.param(
        "/mediaConfig/audio/courtesyMessageConfig/providerParams",
        [],
        [
            (
                "/mediaConfig/audio/courtesyMessageConfig/providerParams",
                "wrong_type",
                "must be an object, not an array",
            ),
        ],
        id="mediaConfig.audio.courtesyMessageConfig.providerParams=[]",
    ),
    pytest.param(
        "/mediaConfig/audio/vad/minSpeechDuration",
        "0.1",
        [
            ("/mediaConfig/audio/vad/minSpeechDuration", "wrong_type", "must be a number, not a string"),
        ],
        id="mediaConfig.audio.vad.minSpeechDuration='0.1'",
    ),
    pytest.param(
        "/apiVersion",
        "v9",
        [
            ("/apiVersion", "unknown_api_version", "'v9' is no API version; known: 'v1'"),
        ],
        id="apiVersion='v9'",
    ),
    pytest.param(
        "/defaultLanguage",
        7,
        [
            ("/defaultLanguage", "wrong_type", "must be a string, not a number"),
        ],
        id="defaultLanguage=7",
    ),
    pytest.param(
        "/variables/0/type",
        "text",
        [
            (
                "/variables/0/type",
                "not_allowed",
                (
                    "must be 'string', 'number', 'boolean', 'enum', 'date', 'phone', 'email' or "
                    "'custom', not 'text'"
                ),
            ),
        ],
        id="variables.0.type='text'",
    ),
    pytest.param(
        "/variables/0/prompt",
        ...,
        [
            ("/variables/0/prompt", "missing_property", "'prompt' is required unless 'type' is 'custom'"),
        ],
        id="variables.0.prompt=missing",
    ),
    pytest.param(
        "/variables/1/name",
        "a string",
        [
            (
                "/variables/1/name",
                "duplicate_name",
                "'a string' is taken already, by 'a string' at /variables/0/name",
            ),
        ],
        id="variables.1.name='a string'",
    ),
    pytest.param(
        "/variables/1/_id",
        "var_string",
        [
            (
                "/variables/1/_id",
                "duplicate_id",
                "'var_string' is taken already, by 'var_string' at /variables/0/_id",
            ),
        ],
        id="variables.1._id='var_string'",
    ),
    pytest.param(
        "/variables/5/enumValues",
        ["S", True],
        [
            ("/variables/5/enumValues/1", "wrong_type", "must be a string or a number, not a boolean"),
        ],
        id="variables.5.enumValues=['S', True]",
    ),
    pytest.param(
        "/tasks",
        "none",
        [
            ("/tasks", "wrong_type", "must be an array, not a string"),
        ],
        id="tasks='none'",
    ),
    pytest.param(
        "/tasks/0/type",
        "BOT",
        [
            ("/tasks/0/type", "not_allowed", "must be 'AIO', 'AIS' or 'HUM', not 'BOT'"),
        ],
        id="tasks.0.type='BOT'",
    ),
    pytest.param(
        "/tasks/0/prompt",
        7,
        [
            ("/tasks/0/prompt", "wrong_type", "must be a string, not a number"),
        ],
        id="tasks.0.prompt=7",
    ),
    pytest.param(
        "/tasks/0/description",
        ...,
        [
            ("/tasks/0/description", "missing_property", "'description' is required here"),
        ],
        id="tasks.0.description=missing",
    ),
    pytest.param(
        "/tasks/0/connectedTasks",
        ["nowhere"],
        [
            (
                "/tasks/0/connectedTasks/0",
                "unknown_task",
                "'nowhere' is no task; known: 'operator', 'reception', 'supervised'",
            ),
        ],
        id="tasks.0.connectedTasks=['nowhere']",
    ),
    pytest.param(
        "/tasks/0/name",
        "OPERATOR",
        [
            (
                "/tasks/1/name",
                "duplicate_name",
                "'Operator' is taken already, by 'OPERATOR' at /tasks/0/name",
            ),
        ],
        id="tasks.0.name='OPERATOR'",
    ),
    pytest.param(
        "/tasks/1/routingParameters",
        ...,
        [
            (
                "/tasks/1/routingParameters",
                "missing_property",
                "'routingParameters' is required in tasks of type 'HUM' and 'AIS'",
            ),
        ],
        id="tasks.1.routingParameters=missing",
    ),
    pytest.param(
        "/tasks/1/routingParameters",
        {},
        [
            ("/tasks/1/routingParameters/timeout", "missing_property", "'timeout' is required here"),
        ],
        id="tasks.1.routingParameters={}",
    ),
    pytest.param(
        "/tasks/1/routingParameters/timeout",
        "60",
        [
            ("/tasks/1/routingParameters/timeout", "wrong_type", "must be a number, not a string"),
        ],
        id="tasks.1.routingParameters.timeout='60'",
    ),
    pytest.param(
        "/tasks/1/routingParameters/waitingMusic",
        "file:///etc/passwd",
        [
            (
                "/tasks/1/routingParameters/waitingMusic",
                "invalid_url",
                "must be an http:// or https:// URL with a host, not 'file:///etc/passwd'",
            ),
        ],
        id="tasks.1.routingParameters.waitingMusic='file:///etc/passwd'",
    ),
    pytest.param(
        "/tasks/1/routingParameters/waitingMessagesConfiguration",
        {"generationStrategy": "fixed"},
        [
            (
                "/tasks/1/routingParameters/waitingMessagesConfiguration/messagesList",
                "missing_property",
                "'messagesList' is required when 'generationStrategy' is 'fixed'",
            ),
        ],
        id="tasks.1.routingParameters.waitingMessagesConfiguration={'generationStr",
    ),
    pytest.param(
        "/tasks/1/routingParameters/waitingMessagesConfiguration",
        {"generationStrategy": "prompt"},
        [
            (
                "/tasks/1/routingParameters/waitingMessagesConfiguration/prompt",
                "missing_property",
                "'prompt' is required when 'generationStrategy' is 'prompt'",
            ),
        ],
        id="tasks.1.routingParameters.waitingMessagesConfiguration={'generationStr",
    ),
    pytest.param(
        "/tasks/1/routingParameters/waitingMessagesConfiguration/generationStrategy",
        "random",
        [
            (
                "/tasks/1/routingParameters/waitingMessagesConfiguration/generationStrategy",
                "not_allowed",
                "must be 'fixed' or 'prompt', not 'random'",
            ),
        ],
        id="tasks.1.routingParameters.waitingMessagesConfiguration.generationStrat",
    ),
    pytest.param(
        "/tasks/1/transitionParameters/0/variableId",
        "var_nothing",
        [
            (
                "/tasks/1/transitionParameters/0/variableId",
                "unknown_variable",
                (
                    "'var_nothing' is no variable; known: 'var_boolean', 'var_custom', 'var_date', "
                    "'var_enum', 'var_number', 'var_phone', 'var_string'"
                ),
            ),
        ],
        id="tasks.1.transitionParameters.0.variableId='var_nothing'",
    ),
    pytest.param(
        "/tasks/1/transitionParameters/0/variableId",
        "",
        [
            (
                "/tasks/1/transitionParameters/0/variableId",
                "unknown_variable",
                (
                    "no variable is chosen, and one has to be; known: 'var_boolean', 'var_custom', "
                    "'var_date', 'var_enum', 'var_number', 'var_phone', 'var_string'"
                ),
            ),
        ],
        id="tasks.1.transitionParameters.0.variableId=''",
    ),
    pytest.param(
        "/tasks/1/transitionParameters/0/required",
        "true",
        [
            ("/tasks/1/transitionParameters/0/required", "wrong_type", "must be a boolean, not a string"),
        ],
        id="tasks.1.transitionParameters.0.required='true'",
    ),
    pytest.param(
        "/tasks/1/transitionParameters",
        {},
        [
            ("/tasks/1/transitionParameters", "wrong_type", "must be an array, not an object"),
        ],
        id="tasks.1.transitionParameters={}",
    ),
    pytest.param(
        "/tasks/0/mcpToolSelection/0/mcpServerName",
        "unknown",
        [
            (
                "/tasks/0/mcpToolSelection/0/mcpServerName",
                "unknown_mcp_server",
                "'unknown' is no MCP server; known: 'agenda'",
            ),
        ],
        id="tasks.0.mcpToolSelection.0.mcpServerName='unknown'",
    ),
    pytest.param(
        "/tasks/0/mcpToolSelection/0/selectedTools/0/toolName",
        "cancel",
        [
            (
                "/tasks/0/mcpToolSelection/0/selectedTools/0/toolName",
                "unknown_mcp_tool",
                "'cancel' is no tool included from MCP server 'agenda'; known: 'book'",
            ),
        ],
        id="tasks.0.mcpToolSelection.0.selectedTools.0.toolName='cancel'",
    ),
    pytest.param(
        "/tasks/0/mcpToolSelection/0/selectedTools/0/toolParameters/0/assignmentStrategy",
        "guess",
        [
            (
                "/tasks/0/mcpToolSelection/0/selectedTools/0/toolParameters/0/assignmentStrategy",
                "not_allowed",
                "must be 'variable', 'fixed' or 'prompt', not 'guess'",
            ),
        ],
        id="tasks.0.mcpToolSelection.0.selectedTools.0.toolParameters.0.assignment",
    ),
    pytest.param(
        "/tasks/0/mcpToolSelection/0/selectedTools/0/toolParameters/0/assignmentValue",
        "var_nothing",
        [
            (
                "/tasks/0/mcpToolSelection/0/selectedTools/0/toolParameters/0/assignmentValue",
                "unknown_variable",
                (
                    "'var_nothing' is no variable; known: 'var_boolean', 'var_custom', 'var_date', "
                    "'var_enum', 'var_number', 'var_phone', 'var_string'"
                ),
            ),
        ],
        id="tasks.0.mcpToolSelection.0.selectedTools.0.toolParameters.0.assignment",
    ),
    pytest.param(
        "/firstTask",
        "nowhere",
        [
            (
                "/firstTask",
                "unknown_task",
                "'nowhere' is no task; known: 'operator', 'reception', 'supervised'",
            ),
        ],
        id="firstTask='nowhere'",
    ),
    pytest.param(
        "/firstTask",
        ...,
        [
            ("/firstTask", "missing_property", "'firstTask' is required when 'draft' is false"),
        ],
        id="firstTask=missing",
    ),
    pytest.param(
        "/mcpServers/0/url",
        "mcp.example.com",
        [
            (
                "/mcpServers/0/url",
                "invalid_url",
                "must be an http:// or https:// URL with a host, not 'mcp.example.com'",
            ),
        ],
        id="mcpServers.0.url='mcp.example.com'",
    ),
    pytest.param(
        "/mcpServers/0/name",
        ...,
        [
            ("/mcpServers/0/name", "missing_property", "'name' is required here"),
            (
                "/tasks/0/mcpToolSelection/0/mcpServerName",
                "unknown_mcp_server",
                "'agenda' is no MCP server; known: none",
            ),
        ],
        id="mcpServers.0.name=missing",
    ),
    pytest.param(
        "/checkpoints/0/name",
        7,
        [
            ("/tasks/0/enabledCheckpoints/0/name", "wrong_type", "must be a string, not a number"),
            ("/checkpoints/0/name", "wrong_type", "must be a string, not a number"),
        ],
        id="checkpoints.0.name=7",
    ),
    pytest.param(
        "/results/0/resultTypes",
        "CL",
        [
            ("/results/0/resultTypes", "wrong_type", "must be an array, not a string"),
        ],
        id="results.0.resultTypes='CL'",
    ),
    pytest.param(
        "/createdAt",
        "yesterday",
        [
            (
                "/createdAt",
                "invalid_date_time",
                (
                    "must be an RFC 3339 date and time with an offset, such as '2026-01-31T09:30:00Z', "
                    "not 'yesterday'"
                ),
            ),
        ],
        id="createdAt='yesterday'",
    ),
    pytest.param(
        "/createdBy",
        None,
        [
            ("/createdBy", "wrong_type", "must be a string, not null"),
        ],
        id="createdBy=None",
    ),
]


def changed(pointer: str, value: object) -> JsonObject:
    """The version with one value in another's place."""
    raw: Any = full_version()
    *parents, last = pointer.split("/")[1:]
    place = raw
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return raw


def test_the_version_itself_is_sound() -> None:
    assert parse_version(full_version(), environment=ENVIRONMENT).id == "version-1"  # F2


@pytest.mark.parametrize(("pointer", "value", "told"), ERRORS)
def test_an_error_is_told_where_it_is_with_what_would_do(pointer: str, value: object, told: Found) -> None:
    with pytest.raises(CorrectTheInput) as raised:
        parse_version(changed(pointer, value), environment=ENVIRONMENT)
    findings = raised.value.findings
    assert [(found.pointer, found.code, found.message) for found in findings] == told  # F2, F9
    assert raised.value.code == "document_invalid"


def test_all_of_them_are_told_at_once() -> None:
    raw: Any = full_version()
    raw["channels"], raw["apiVersion"], raw["tasks"][0]["prompt"] = "phone", 7, 7
    with pytest.raises(CorrectTheInput) as raised:
        parse_version(raw, environment=ENVIRONMENT)
    assert [found.pointer for found in raised.value.findings] == [  # F2
        "/channels",
        "/apiVersion",
        "/tasks/0/prompt",
    ]


class TestWhatIsWrittenByHabit:
    def test_a_property_by_nearly_its_name_is_told_with_it_and_nothing_follows_from_it(
        self,
    ) -> None:  # F2, F9
        raw: Any = full_version()
        for task in raw["tasks"]:
            task["id"] = task.pop("_id")
        assert refusals(raw) == [
            (f"/tasks/{number}/_id", "'_id' is required here, not 'id'")
            for number in range(len(raw["tasks"]))
        ]

    def test_where_an_object_belongs_its_required_properties_are_named(self) -> None:  # F2
        raw: Any = full_version()
        raw["tasks"][0]["transitionParameters"] = ["age"]
        raw["tasks"][0]["entryCondition"] = "vars.age > 17"
        assert refusals(raw) == [
            (
                "/tasks/0/transitionParameters/0",
                "must be an object with 'variableId', 'required', not a string",
            ),
            ("/tasks/0/entryCondition", "must be an object with 'when', not a string"),
        ]


def refusals(raw: object) -> list[tuple[str, str]]:
    with pytest.raises(CorrectTheInput) as raised:
        parse_version(raw, environment=ENVIRONMENT)
    return [(found.pointer, found.message) for found in raised.value.findings]
