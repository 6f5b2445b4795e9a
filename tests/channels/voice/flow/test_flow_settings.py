"""From a flow's media settings to a realtime session (V2, F28)."""

from __future__ import annotations

from typing import Any

import pytest

from channels.engine_client.replies import AgentData, Routing
from channels.voice.call.ports import SessionSettings, TurnDetection
from channels.voice.flow.task_context import session_settings
from tests.channels.engine_client.test_engine_tools import data
from tests.channels.voice.flow.flow_call import BASE, OPERATOR, start


def settings(**changes: Any) -> SessionSettings:
    told = data().model_dump(by_alias=True, mode="json") | changes
    return session_settings(BASE, AgentData.model_validate(told), (), first_words=False)


def test_the_prompt_is_the_instructions_and_the_rest_is_the_agent_s_own() -> None:
    plain = settings()
    assert (plain.instructions, plain.model, plain.voice) == ("p", BASE.model, BASE.voice)
    assert plain.turn_detection == BASE.turn_detection
    assert plain.silence_s is None


@pytest.mark.parametrize(
    ("llm", "model"),
    [
        ({"provider": "openai", "model": "gpt-realtime-mini"}, "gpt-realtime-mini"),
        ({"provider": "openai", "model": "gpt-4.1"}, BASE.model),
        ({"provider": "azure", "model": "gpt-realtime"}, BASE.model),
        ({"provider": "openai"}, BASE.model),
        (None, BASE.model),
    ],
)
def test_only_a_realtime_model_can_hold_the_call(llm: object, model: str) -> None:
    assert settings(llm=llm).model == model


@pytest.mark.parametrize(
    ("active", "voice", "speed"),
    [
        ({"provider": "openai", "voice": "marin", "speed": 1.2}, "marin", 1.2),
        ({"provider": "openai", "voice": "marin", "speed": 4}, "marin", 1.5),
        ({"provider": "openai", "voice": "nova", "speed": 1.2}, BASE.voice, BASE.speed),
        ({"provider": "elevenlabs", "voice": "marin", "speed": 1.2}, BASE.voice, BASE.speed),
        (None, BASE.voice, BASE.speed),
    ],
)
def test_a_voice_is_taken_over_when_the_model_has_it(active: object, voice: str, speed: float | None) -> None:
    given = settings(tts={"active": active})
    assert (given.voice, given.speed) == (voice, speed)


def test_seconds_of_the_flow_are_milliseconds_of_the_model() -> None:
    vad = {"activationThreshold": 0.6, "minSilenceDuration": 0.8, "prefixPaddingDuration": 0.25}
    assert settings(vad=vad).turn_detection == TurnDetection(0.6, 800, 250)
    assert settings(vad={"activationThreshold": 7}).turn_detection == TurnDetection(1.0, 500, 300)


@pytest.mark.parametrize(
    ("detects", "supported", "spoken"),
    [
        (True, ["it-IT", "en-US"], None),
        (True, ["it-IT"], "it"),
        (False, ["it-IT", "en-US"], "it"),
        (None, [], "it"),
    ],
)
def test_the_recogniser_is_told_the_language_only_where_it_is_sure(
    detects: bool | None, supported: list[str], spoken: str | None
) -> None:
    detection = None if detects is None else {"enableLanguageDetection": detects}
    assert settings(languageDetection=detection, supportedLanguages=supported).language == spoken


@pytest.mark.parametrize(
    ("routing", "target"),
    [
        ({"agentSkills": ["other", "segreteria"]}, OPERATOR),
        ({"agentOptionalSkills": ["segreteria"]}, OPERATOR),
        ({"agentIds": ["ada"], "agentSkills": ["segreteria"]}, "sip:ada@example.com"),
        ({"agentSkills": ["other"]}, None),
        (None, None),
    ],
)
def test_a_person_is_found_by_name_then_by_skill(routing: object, target: str | None) -> None:
    begun = start("v", transfers={"segreteria": OPERATOR, "ada": "sip:ada@example.com"})
    assert begun.target(None if routing is None else Routing.model_validate(routing)) == target


def test_whoever_has_no_address_of_their_own_has_that_for_everything_else() -> None:
    assert start("v", transfers={}, transfer_to=OPERATOR).target(None) == OPERATOR
