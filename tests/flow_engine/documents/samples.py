"""Sample documents as raw JSON. Every call gives a fresh one, free to be changed."""

from __future__ import annotations

from typing import Any

from flow_engine.documents import ReviewEnvironment

JsonObject = dict[str, Any]

ENVIRONMENT = ReviewEnvironment(
    api_versions=frozenset({"v1"}),
    audio_presets=frozenset({"default", "noisy-line"}),
    system_prompt_languages=frozenset({"it-IT", "en-US", "es-ES"}),
    url_refusal=lambda url: "it leads inside" if "//10." in url else None,
)


def variables() -> list[JsonObject]:
    """One variable of each type but `email`."""
    plain = ("string", "number", "boolean", "date", "phone")
    return [
        *({"_id": f"var_{kind}", "name": f"a {kind}", "type": kind, "prompt": f"a {kind}"} for kind in plain),
        {"_id": "var_enum", "name": "size", "type": "enum", "enumValues": ["S", "M", 42], "prompt": "size"},
        {"_id": "var_custom", "name": "appointment", "type": "custom"},
    ]


def aio_task(task_id: str = "reception", **changes: Any) -> JsonObject:
    return {
        "_id": task_id,
        "type": "AIO",
        "description": "The caller says what the call is about",
        "prompt": "Find out what the caller needs.",
        "transitionParameters": [],
        "closureConfig": {"multiContact": False},
        "enabledCheckpoints": [],
        "connectedTasks": [],
        **changes,
    }


def hum_task(task_id: str = "operator", **changes: Any) -> JsonObject:
    return aio_task(task_id, **{"type": "HUM", "routingParameters": {"timeout": 60}, **changes})


def minimal_version(**changes: Any) -> JsonObject:
    """What a version must have, with an AIO and a HUM task and a variable of each type."""
    return {
        "_id": "version-1",
        "schemaVersion": "1.0.0",
        "conversationalFlowId": "flow-1",
        "globalPrompt": "You answer the phone of a clinic.",
        "channels": ["phone", "chat"],
        "mandatoryChannels": ["phone"],
        "closureConfig": {"multiContact": False},
        "mediaConfig": {"audio": {"presetId": "default"}, "text": {}},
        "defaultLanguage": "en-US",
        "supportedLanguages": ["en-US", "it-IT"],
        "systemPromptsLanguage": "en-US",
        "apiVersion": "v1",
        "variables": variables(),
        "uiMetadata": {},
        "mcpServers": [],
        "aiHelpers": [],
        "tasks": [
            aio_task(connectedTasks=["operator"]),
            hum_task(
                connectedTasks=["reception"],
                transitionParameters=[{"variableId": "var_string", "required": True}],
            ),
        ],
        "firstTask": "reception",
        "checkpoints": [],
        "reasonsOfContact": [],
        "results": [],
        "createdBy": "designer",
        "createdAt": "2026-01-31T09:30:00Z",
        "draft": False,
        **changes,
    }


def stt(provider: str = "google") -> JsonObject:
    return {
        "provider": provider,
        "recognitionTimeout": 3,
        "streaming": True,
        "interimResults": True,
        "hints": ["MRI"],
        "hintsBoost": 2.5,
        "minEndpointingDelay": 1,
        "maxEndpointingDelay": 4,
        "minInterruptionDuration": 0.5,
    }


def tts(provider: str = "elevenlabs") -> JsonObject:
    return {"provider": provider, "voice": "{{ $tenant.voice }}", "speed": 1.1}


def full_audio() -> JsonObject:
    return {
        "llm": {"provider": "openai", "model": "gpt-4.1", "temperature": 0.2},
        "stt": {
            "default": stt(),
            "fallback": stt("{{ $tenant.stt }}"),
            "languageCustomConfig": [{"language": "it", "config": stt("deepgram")}],
        },
        "tts": {
            "default": tts(),
            "fallback": tts("google"),
            "languageCustomConfig": [{"language": "it", "config": tts("openai")}],
        },
        "vad": {
            "activationThreshold": 0.4,
            "maxBufferedSpeech": 30,
            "minSilenceDuration": 0.6,
            "minSpeechDuration": 0.1,
            "prefixPaddingDuration": 0.3,
        },
        "allowInterruptionsOnStart": False,
        "allowInterruptions": True,
        "courtesyMessageConfig": {
            "provider": "groq",
            "timeout": 2,
            "silenceAfterMessage": 0.5,
            "providerParams": {
                "historyMessages": 3,
                "prompt": "Say something kind.",
                "temperature": 0.1,
                "maxCompletionTokens": 20,
                "topP": 0.9,
                "model": "meta-llama/llama-4-scout-17b-16e-instruct",
            },
        },
        "enableRecording": True,
        "userInteractionTimeout": 15,
        "preemptiveGeneration": True,
    }


def full_version(**changes: Any) -> JsonObject:
    """A version that uses every property of every schema."""
    checkpoint = {"_id": "cp-1", "name": "identified", "prompt": "The caller is known", "required": True}
    multi_contact = {
        "multiContact": True,
        "conversationTimeLimit": 86400,
        "customHandler": "https://hooks.example.com/close?flow=1",
    }
    selection = {
        "mcpServerName": "agenda",
        "selectedTools": [
            {
                "toolName": "book",
                "toolParameters": [
                    parameter("who", "variable", "var_string"),
                    parameter("where", "fixed", "Rome"),
                    parameter("when", "prompt", "the date that the caller prefers"),
                ],
            }
        ],
    }
    version = minimal_version(
        closureConfig=multi_contact,
        mediaConfig={
            "audio": {"presetId": "noisy-line", **full_audio()},
            "text": {
                "llm": {"provider": "google", "model": "gemini-2.5-flash", "temperature": 0.3},
                "courtesyMessageConfig": {
                    "provider": "random",
                    "timeout": 1.5,
                    "providerParams": {"messages": [{"language": "en", "text": "One moment."}]},
                },
                "userInteractionTimeout": None,
            },
        },
        languageDetection={
            "enableLanguageDetection": True,
            "minWordsForLanguageDetection": 3,
            "languageDetector": "lingua",
        },
        mcpServers=[
            {
                "name": "agenda",
                "url": "http://agenda.internal:8080/mcp",
                "includedTools": [{"toolName": "book", "uiToolDescription": "Books a visit"}],
            }
        ],
        aiHelpers=[{"name": "convMiner", "turns": 6}],
        checkpoints=[checkpoint],
        reasonsOfContact=[{"name": "booking", "prompt": "The caller wants a visit"}],
        results=[{"name": "booked", "prompt": "A visit was booked", "resultTypes": ["CL", "Y"]}],
        uiMetadata={"nodes": [{"x": 1, "y": 2.5}]},
    )
    version["tasks"] = [
        aio_task(
            name="Reception",
            hideTranscriptionToHuman=True,
            mcpToolSelection=[selection],
            enabledCheckpoints=[checkpoint],
            connectedTasks=["operator", "supervised"],
            aiHelpers=[{"name": "convMiner"}],
            channels=None,
        ),
        hum_task(
            name="Operator",
            connectedTasks=["reception"],
            channels=["phone"],
            suspendTranscription=True,
            routingParameters=full_routing(),
            transitionParameters=[{"variableId": "var_phone", "required": True}],
        ),
        hum_task("supervised", name="Supervised", type="AIS", connectedTasks=["reception"]),
    ]
    return {**version, **changes}


def parameter(name: str, strategy: str, value: str) -> JsonObject:
    return {"parameterName": name, "assignmentStrategy": strategy, "assignmentValue": value}


def full_routing() -> JsonObject:
    return {
        "timeout": 90,
        "agentSkills": ["radiology"],
        "agentOptionalSkills": ["english"],
        "agentIds": ["agent-7"],
        "waitingMusic": "https://media.example.com/wait.mp3",
        "waitingMusicDuration": 20,
        "waitingMessagesConfiguration": {
            "generationStrategy": "fixed",
            "messagesList": [{"language": "en", "text": "Please hold the line."}],
        },
    }


def many_tasks(count: int, **changes: Any) -> JsonObject:
    """A ring of AIO tasks, each with as much text as a real one has."""
    names = [f"task-{number}" for number in range(count)]
    tasks = [
        aio_task(
            name,
            prompt="Ask for the caller's name. " * 30,
            connectedTasks=[names[(number + step) % count] for step in (1, 2, 3)],
            transitionParameters=[{"variableId": "var_string", "required": number > 0}],
        )
        for number, name in enumerate(names)
    ]
    return minimal_version(tasks=tasks, firstTask=names[0], **changes)
