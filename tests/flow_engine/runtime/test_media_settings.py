"""What an agent is told about model, voice and recogniser, and about tools (F3, F26, F28)."""

from __future__ import annotations

from typing import Any

import pytest

from flow_engine.documents import FlowVersion
from flow_engine.documents.checks import prompt_language
from flow_engine.ports.system_prompts import SystemMcpServer
from flow_engine.runtime.commands import NewContact
from flow_engine.runtime.compiled import compile_flow
from flow_engine.runtime.platform import audio_settings
from flow_engine.runtime.rendered import scope_of
from flow_engine.templates.names import KEYS
from flow_engine.vocabulary import Channel
from system_prompts.loader import FileSystemPrompts
from tests.flow_engine.documents.samples import (
    JsonObject,
    aio_task,
    hum_task,
    minimal_version,
    parameter,
    stt,
    tts,
)
from tests.flow_engine.runtime.conversation_steps import ADDRESS, Conversation, entries

PRESET: JsonObject = {
    "llm": {"provider": "openai", "model": "gpt-preset", "temperature": 0.4},
    "stt": {"default": {"provider": "deepgram"}, "fallback": {"provider": "google"}},
    "tts": None,
    "vad": {"activationThreshold": 0.5, "minSilenceDuration": 0.8},
    "allowInterruptions": True,
    "enableRecording": False,
    "userInteractionTimeout": 20,
}


def audio(**settings: Any) -> JsonObject:
    """The audio settings of a version that holds these, over the preset above."""
    raw = minimal_version(mediaConfig={"audio": {"presetId": "default", **settings}, "text": {}})
    return dict(audio_settings(version_of(raw), {"default": PRESET}))


def version_of(raw: JsonObject) -> FlowVersion:
    return compile_flow(raw, "hash").document


def reply(
    prompts: FileSystemPrompts,
    media: JsonObject,
    *,
    channel: Channel = "phone",
    tenant: JsonObject | None = None,
    language: str | None = None,
    data: JsonObject | None = None,
) -> JsonObject:
    """The media part of what an agent gets."""
    raw = minimal_version(mediaConfig={"audio": {"presetId": "default"}, "text": {}, **media})
    talk = Conversation(prompts, raw, channel=channel, tenant=tenant, language=language, data=data)
    names = (
        *("llm", "tts", "stt", "vad", "courtesyMessages", "allowInterruptionsOnStart", "allowInterruptions"),
        *("enableRecording", "userInteractionTimeout", "preemptiveGeneration"),
    )
    sent = talk.agent_data()
    return {name: sent[name] for name in names}


class TestPresets:
    """Only the keys that the document really holds override the preset's (F3)."""

    def test_without_any_they_are_the_presets(self) -> None:
        assert audio() == {**PRESET, "presetId": "default"}

    @pytest.mark.parametrize(
        ("held", "key", "merged"),
        [
            pytest.param(
                {"llm": {"model": "gpt-own"}},
                "llm",
                {"provider": "openai", "model": "gpt-own", "temperature": 0.4},
                id="one-setting-of-the-model",
            ),
            pytest.param(
                {"llm": {"temperature": 0}},
                "llm",
                {"provider": "openai", "model": "gpt-preset", "temperature": 0},
                id="zero-is-a-setting",
            ),
            pytest.param({"llm": {}}, "llm", PRESET["llm"], id="an-empty-object-holds-nothing"),
            pytest.param(
                {"vad": {"minSilenceDuration": 1.5}},
                "vad",
                {"activationThreshold": 0.5, "minSilenceDuration": 1.5},
                id="one-duration",
            ),
            pytest.param({"allowInterruptions": False}, "allowInterruptions", False, id="false"),
            pytest.param({"enableRecording": True}, "enableRecording", True, id="true"),
            pytest.param({"userInteractionTimeout": 0}, "userInteractionTimeout", 0, id="zero"),
        ],
    )
    def test_what_is_held_overrides_key_by_key(self, held: JsonObject, key: str, merged: object) -> None:
        found = audio(**held)
        assert found[key] == merged  # F3
        assert {**found, key: None} == {**PRESET, "presetId": "default", key: None}

    def test_a_recogniser_or_voice_is_taken_whole_since_its_settings_belong_together(self) -> None:
        own = {"default": stt("google"), "fallback": stt("openai")}
        found = audio(stt=own)["stt"]
        assert found == {**own, "languageCustomConfig": None}  # F3

    def test_a_preset_that_is_not_there_is_an_error(self) -> None:
        raw = minimal_version(mediaConfig={"audio": {"presetId": "none"}, "text": {}})
        with pytest.raises(KeyError):
            audio_settings(version_of(raw), {"default": PRESET})


MEDIA = {
    "audio": {
        "presetId": "default",
        "llm": {"provider": "openai", "model": "spoken", "temperature": 0.1},
        "allowInterruptionsOnStart": True,
        "enableRecording": True,
        "preemptiveGeneration": True,
        "userInteractionTimeout": 15,
    },
    "text": {
        "llm": {"provider": "google", "model": "written", "temperature": 0.3},
        "userInteractionTimeout": 300,
    },
}


class TestChannels:
    def test_the_phone_takes_the_audio_settings(self, prompts: FileSystemPrompts) -> None:
        found = reply(prompts, MEDIA)
        assert found["llm"]["model"] == "spoken"  # F28
        assert found["vad"]["activationThreshold"] == 0.5
        assert found["stt"]["active"]["provider"] == "deepgram"
        assert found["tts"]["active"]["provider"] == "elevenlabs"
        switches = ("allowInterruptionsOnStart", "allowInterruptions", "enableRecording")
        assert [found[name] for name in switches] == [True] * 3
        assert (found["preemptiveGeneration"], found["userInteractionTimeout"]) == (True, 15)

    def test_every_other_channel_takes_the_text_settings(self, prompts: FileSystemPrompts) -> None:
        assert reply(prompts, MEDIA, channel="chat") == {  # F28
            "llm": {"provider": "google", "model": "written", "temperature": 0.3},
            "tts": None,
            "stt": None,
            "vad": None,
            "courtesyMessages": None,
            "allowInterruptionsOnStart": False,
            "allowInterruptions": False,
            "enableRecording": False,
            "userInteractionTimeout": 300,
            "preemptiveGeneration": False,
        }


class TestTheActiveEntry:
    def speech(self, prompts: FileSystemPrompts, config: JsonObject, **call: Any) -> JsonObject:
        held = {"audio": {"presetId": "default", "tts": config}}
        return reply(prompts, held, **call)["tts"]

    def config(self, **changes: Any) -> JsonObject:
        entry = {"language": "it", "config": tts("openai")}
        default = {**tts("elevenlabs"), "voice": "v-default"}
        return {
            "default": default,
            "fallback": {**tts("google"), "voice": "v-fallback"},
            "languageCustomConfig": [{**entry, "config": {**entry["config"], "voice": "v-it"}}],  # type: ignore[dict-item]
            **changes,
        }

    @pytest.mark.parametrize(
        ("language", "entries_of", "voice"),
        [
            (None, ["it"], "v-default"),
            ("it-IT", ["it"], "v-it"),
            ("it-IT", ["IT"], "v-it"),
            ("it-IT", ["it-CH"], "v-it"),
            ("it-IT", ["fr"], "v-default"),
            ("it-IT", [], "v-default"),
            ("it-IT", None, "v-default"),
        ],
    )
    def test_it_is_that_of_the_conversations_language_else_the_default(
        self, prompts: FileSystemPrompts, language: str | None, entries_of: list[str] | None, voice: str
    ) -> None:
        own = {**tts("openai"), "voice": "v-it"}
        listed = entries_of and [{"language": each, "config": own} for each in entries_of]
        config = self.config(languageCustomConfig=listed)
        assert self.speech(prompts, config, language=language)["active"]["voice"] == voice  # F28

    def test_of_several_entries_for_a_language_the_first_counts(self, prompts: FileSystemPrompts) -> None:
        listed = [
            {"language": "it", "config": {**tts("openai"), "voice": "first"}},
            {"language": "it-IT", "config": {**tts("openai"), "voice": "second"}},
        ]
        config = self.config(languageCustomConfig=listed)
        assert self.speech(prompts, config, language="it-IT")["active"]["voice"] == "first"  # F28

    @pytest.mark.parametrize(
        ("voice", "tenant", "active"),
        [
            ("{{ $tenant.voice }}", {"voice": "anna"}, "anna"),
            ("{{ $tenant.voice }}", {}, "v-fallback"),
            ("{{ $tenant.voice }}", {"voice": ""}, "v-fallback"),
            ("{{ $tenant.voice }}", {"voice": "  "}, "v-fallback"),
            ("{{ $vars.var_string }}", {}, "v-fallback"),
            ("{{ $contact.voice }}", {}, "bella"),
            ("{{ $language }}-A", {}, "en-US-A"),
            ("{{ broken", {}, "v-fallback"),
            ("{% if $language == 'en-US' %}anna{% else %}bella{% endif %}", {}, "anna"),
            ("{% if $tenant.voice %}anna{% endif %}", {}, "v-fallback"),
            ("{% if broken", {}, "v-fallback"),
            ("v-{# the voice of the house #}anna", {}, "v-anna"),
        ],
    )
    def test_a_template_without_a_value_has_the_fallback_chosen(
        self, prompts: FileSystemPrompts, voice: str, tenant: JsonObject, active: str
    ) -> None:
        config = self.config(default={**tts("elevenlabs"), "voice": voice})
        found = self.speech(prompts, config, tenant=tenant, data={"voice": "bella"})
        assert found["active"]["voice"] == active  # F3, F28

    def test_the_whole_config_comes_with_its_templates_rendered(self, prompts: FileSystemPrompts) -> None:
        config = self.config(default={**tts("elevenlabs"), "voice": "{{ $tenant.voice }}"})
        found = self.speech(prompts, config, tenant={"voice": "anna"}, language="it-IT")
        assert [found[key]["voice"] for key in ("default", "fallback", "active")] == [  # F28
            "anna",
            "v-fallback",
            "v-it",
        ]
        assert found["languageCustomConfig"] == [
            {"language": "it", "config": {"provider": "openai", "voice": "v-it", "speed": 1.1}}
        ]

    @pytest.mark.parametrize(
        ("model", "tenant", "told"),
        [
            ("gpt-4.1", {}, "gpt-4.1"),
            ("{{ $tenant.model }}", {"model": "gpt-own"}, "gpt-own"),
            ("{{ $tenant.model }}", {}, None),
            ("{% if $tenant.large %}large{% else %}small{% endif %}", {"large": True}, "large"),
            ("{% if $tenant.large %}large{% endif %}", {}, None),
        ],
    )
    def test_a_model_without_a_value_is_null(
        self, prompts: FileSystemPrompts, model: str, tenant: JsonObject, told: str | None
    ) -> None:
        held = {"audio": {"presetId": "default", "llm": {"model": model}}}
        assert reply(prompts, held, tenant=tenant)["llm"]["model"] == told  # F28


class TestWhichSystemPrompts:
    @pytest.mark.parametrize(
        ("model", "known"),
        [
            ("gpt-4.1", "gpt-4.1"),
            ("{{ $tenant.model }}", None),
            ("{% if $tenant.large %}large{% endif %}", None),
            (None, "gpt-4.1-mini"),
        ],
    )
    def test_the_model_chooses_them_unless_a_template_does(
        self, prompts: FileSystemPrompts, model: str | None, known: str | None
    ) -> None:
        llm = {} if model is None else {"llm": {"model": model}}
        raw = minimal_version(mediaConfig={"audio": {"presetId": "default", **llm}, "text": {}})
        talk = Conversation(prompts, raw)
        media = talk.platform.media(talk.flow)
        assert media.model("phone") == known  # F26
        assert media.model("chat") is None
        assert talk.platform.media(talk.flow) is media

    @pytest.mark.parametrize(
        ("own", "default", "available", "chosen"),
        [
            ("it-IT", "en-US", ("en-US", "it-IT"), "it-IT"),
            ("it-IT", "es-ES", ("en-US", "es-ES"), "es-ES"),
            ("it-IT", "es-ES", ("en-US",), "en-US"),
            ("it-IT", "es-ES", (), "en-US"),
        ],
    )
    def test_the_language_is_the_flows_else_its_default_else_english(
        self, own: str, default: str, available: tuple[str, ...], chosen: str
    ) -> None:
        raw = minimal_version(systemPromptsLanguage=own, defaultLanguage=default)
        assert prompt_language(version_of(raw), available) == chosen  # F26


class TestWhatIsMadeOnce:
    @pytest.mark.parametrize(
        ("model", "reads"),
        [
            ("gpt-4.1", []),
            ("{{ $language }}-{{ $channel }}", []),
            ("{{ $language }}-{{ $task.id }}", [("$task", ["id"])]),
            ("{{ $tenant.model }}", [("$tenant", ["model"])]),
            ("{{ $language }}-{{ $values.size }}", [("$values", ["size"])]),
            ("{{ $contact.name }}", [("$contact", ["name"])]),
            ("{{ $flow.campaignId }}", [("$flow", ["campaignId"])]),
            ("{% if $tenant.large %}large{% endif %}", [("$tenant", ["large"])]),
        ],
    )
    def test_settings_tell_what_their_templates_read_beside_language_and_channel(
        self, prompts: FileSystemPrompts, model: str, reads: list[tuple[str, list[str]]]
    ) -> None:
        raw = minimal_version(
            mediaConfig={"audio": {"presetId": "default", "llm": {"model": model}}, "text": {}}
        )
        talk = Conversation(prompts, raw)
        assert talk.platform.media(talk.flow).reads("phone") == reads  # F28
        assert talk.platform.media(talk.flow).reads("chat") == []

    @pytest.mark.parametrize(
        "voice", ["{{ $language }}-A", "{{ $tenant.region }}-A", "{{ $contact.region }}-A"]
    )
    def test_each_conversation_has_its_own_voice_whoever_asked_before(
        self, prompts: FileSystemPrompts, voice: str
    ) -> None:
        speech = {"default": {**tts("google"), "voice": voice}, "fallback": tts("openai")}
        raw = minimal_version(
            mediaConfig={"audio": {"presetId": "default", "tts": speech}, "text": {}},
            supportedLanguages=["it-IT", "es-ES"],
        )
        talk = Conversation(prompts, raw)
        for region in ("it-IT", "es-ES", "it-IT"):
            known = {"region": region}
            talk.load(session=None, tenant=known)
            talk.begin(NewContact("call-1", "phone", known, known, region))
            assert talk.agent_data()["tts"]["active"]["voice"] == f"{region}-A"  # F28

    def test_each_task_has_its_own_voice_where_a_template_reads_the_task_or_a_value(
        self, prompts: FileSystemPrompts
    ) -> None:
        voice = "{{ $task.id }} of {{ $values.var_string }} for {{ $flow.campaignId }}"
        speech = {"default": {**tts("google"), "voice": voice}, "fallback": tts("openai")}
        raw = minimal_version(
            mediaConfig={"audio": {"presetId": "default", "tts": speech}, "text": {}},
            tasks=[aio_task("hall", connectedTasks=["office"]), aio_task("office", connectedTasks=["hall"])],
            firstTask="hall",
        )
        talk = Conversation(prompts, raw)
        seen: list[object] = []
        for task, name in (("office", "Ada"), ("hall", "Ada"), ("office", "Bob"), ("hall", "Ada")):
            talk.load(tools=entries({"var_string": name}))
            talk.change(task)
            seen.append(talk.agent_data()["tts"]["active"]["voice"])
        assert seen == [
            f"{task} of {name} for campaign"  # F28
            for task, name in (("office", "Ada"), ("hall", "Ada"), ("office", "Bob"), ("hall", "Ada"))
        ]


class OwnServers:
    """The prompts of a test, with a platform's own MCP servers."""

    def __init__(self, prompts: FileSystemPrompts, *servers: SystemMcpServer) -> None:
        self._prompts = prompts
        self._servers = servers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prompts, name)

    def mcp_servers(self, api_version: str) -> tuple[SystemMcpServer, ...]:
        return self._servers


BOOK = [
    {"parameterName": "who", "assignmentStrategy": "variable", "assignmentValue": "var_string"},
    {"parameterName": "size", "assignmentStrategy": "variable", "assignmentValue": "var_enum"},
    {
        "parameterName": "where",
        "assignmentStrategy": "fixed",
        "assignmentValue": "Rome",
        "value": "Rome",
    },
    {
        "parameterName": "when",
        "assignmentStrategy": "prompt",
        "assignmentValue": "the date that the caller prefers",
    },
]


class TestTools:
    def document(self, **tool: Any) -> JsonObject:
        chosen = {
            "toolName": "book",
            "toolParameters": [
                parameter("who", "variable", "var_string"),
                parameter("size", "variable", "var_enum"),
                parameter("where", "fixed", "Rome"),
                parameter("when", "prompt", "the date that the caller prefers"),
            ],
            **tool,
        }
        plain = {"toolName": "free", "toolParameters": []}
        selection = [{"mcpServerName": "agenda", "selectedTools": [chosen, plain]}]
        included = [{"toolName": name, "uiToolDescription": name} for name in ("book", "free")]
        server = {"name": "agenda", "url": "https://agenda.example.com/mcp", "includedTools": included}
        return minimal_version(
            mcpServers=[server],
            tasks=[aio_task(mcpToolSelection=selection, connectedTasks=["operator"]), hum_task()],
        )

    def told(self, who: object, size: object) -> JsonObject:
        first, second, *others = BOOK
        return {
            "serverName": "agenda",
            "url": "https://agenda.example.com/mcp",
            "tools": [
                {
                    "toolName": "book",
                    "parameters": [{**first, "value": who}, {**second, "value": size}, *others],
                },
                {"toolName": "free", "parameters": []},
            ],
        }

    @pytest.mark.parametrize(
        ("memory", "who", "size"),
        [
            ({}, None, None),
            ({"var_string": "Ada"}, "Ada", None),
            ({"var_string": "Ada", "var_enum": 42}, "Ada", 42),
            ({"var_string": 'a "quoted"\0text', "var_enum": False}, 'a "quoted"\0text', False),
        ],
    )
    def test_parameters_come_with_the_values_of_their_variables(
        self, prompts: FileSystemPrompts, memory: JsonObject, who: object, size: object
    ) -> None:
        sent = Conversation(prompts, self.document(), memory=memory).agent_data()
        assert sent["mcpTools"] == [self.told(who, size)]  # F28
        assert sent["mcpServers"] == ["https://agenda.example.com/mcp"]

    def test_values_are_those_of_now_though_the_rest_is_kept(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, self.document(), memory={"var_string": "Ada"})
        assert talk.agent_data()["mcpTools"] == [self.told("Ada", None)]
        talk.load(tools=entries({"var_string": "Grace", "var_enum": "M"}))
        assert talk.agent_data()["mcpTools"] == [self.told("Grace", "M")]  # F28

    @pytest.mark.parametrize(
        ("flag", "tools"), [(True, ["book", "free"]), (False, ["free"]), (None, ["free"])]
    )
    def test_a_conditional_tool_is_there_while_its_condition_is_true(
        self, prompts: FileSystemPrompts, flag: bool | None, tools: list[str]
    ) -> None:
        raw = self.document(when="vars.var_boolean == true")
        sent = Conversation(prompts, raw, memory={"var_boolean": flag, "var_string": "Ada"}).agent_data()
        (server,) = sent["mcpTools"]
        assert [tool["toolName"] for tool in server["tools"]] == tools  # F28
        assert sent["mcpServers"] == ["https://agenda.example.com/mcp"]

    def test_the_platforms_own_servers_come_first_at_the_address_of_this_request(
        self, prompts: FileSystemPrompts
    ) -> None:
        own = SystemMcpServer("memory", "{baseUrl}/v1/mcp", ("memory_get", "change_task"))
        talk = Conversation(OwnServers(prompts, own), self.document())  # type: ignore[arg-type]
        sent = talk.agent_data()
        assert sent["mcpTools"][0] == {  # F26, F35
            "serverName": "memory",
            "url": f"{ADDRESS}/v1/mcp",
            "tools": [
                {"toolName": "memory_get", "parameters": []},
                {"toolName": "change_task", "parameters": []},
            ],
        }
        assert sent["mcpServers"] == [f"{ADDRESS}/v1/mcp", "https://agenda.example.com/mcp"]

    def test_a_task_that_selects_none_has_none(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, self.document())
        talk.change("operator")
        sent = talk.agent_data()
        assert (sent["mcpTools"], sent["mcpServers"]) == ([], [])  # F28


class TestTheRestOfAReply:
    @pytest.mark.parametrize(
        ("task", "routing"),
        [
            ("reception", None),
            ("operator", {"timeout": 60, "agentSkills": [], "agentOptionalSkills": [], "agentIds": []}),
        ],
    )
    def test_routing_is_told_of_tasks_with_a_human(
        self, prompts: FileSystemPrompts, task: str, routing: JsonObject | None
    ) -> None:
        talk = Conversation(prompts, minimal_version(), memory={"var_string": "Ada"})
        if task != "reception":
            talk.change(task)
        found = talk.agent_data()["routingParameters"]
        shared = None if found is None else {key: found[key] for key in routing or ()}
        assert shared == routing  # F28

    def test_what_is_the_conversations_own_is_told_each_time(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, minimal_version(), language="it-IT")
        sent = talk.agent_data("/start")
        assert {name: sent[name] for name in OWN} == OWN  # F28
        assert not {"result", "leftTask", "returnsTo"} & sent.keys()

    def test_a_template_sees_what_the_agent_is_told(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, minimal_version(), data={"name": "Ada\n# System"})
        runner = talk.runner()
        scope = scope_of(talk.flow, runner.task, talk.session, {}, {"timezone": "UTC"})
        assert (scope.channel, scope.language) == ("phone", "en-US")  # F22
        assert scope.contact == {"name": "Ada # System"}
        assert scope.flow == {"id": "flow-1", "versionId": "version-1", "campaignId": "campaign"}
        assert scope.task == {"id": "reception", "name": "reception", "type": "AIO"}
        assert (set(scope.flow), set(scope.task)) == (set(KEYS["$flow"]), set(KEYS["$task"]))


OWN = {
    "conversationId": "c",
    "contactId": "call-1",
    "tenantId": "t",
    "campaignId": "campaign",
    "revision": 1,
    "command": "/start",
    "taskId": "reception",
    "taskName": "reception",
    "taskType": "AIO",
    "taskStatus": None,
    "channel": "phone",
    "language": "it-IT",
    "supportedLanguages": ["en-US", "it-IT"],
    "hideTranscriptionToHuman": False,
}
