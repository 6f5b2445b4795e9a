"""What designers choose from, and the rewriting of descriptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from api.editors import MODEL_PROVIDERS, STT_PROVIDERS, VOICE_PROVIDERS
from flow_engine.documents.media import LlmConfig
from flow_engine.errors import CallTheOperator
from flow_engine.use_cases.model_catalog import speaks
from system_prompts.loader import load_model_catalog, load_system_prompts
from tests.api.harness import Scene, open_scene

pytestmark = pytest.mark.anyio

FILE = Path(__file__).resolve().parents[2] / "system_prompts" / "model_catalog.json"


async def got(scene: Scene, what: str) -> Any:
    reply = await scene.http.get(f"/v1/helpers/{what}")
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_models_are_listed_with_what_they_are_for() -> None:  # F27
    async with open_scene() as scene:
        models = {(each["provider"], each["id"]): each for each in await got(scene, "models")}
        assert models["openai", "gpt-realtime"] == {
            "id": "gpt-realtime",
            "provider": "openai",
            "name": "GPT Realtime",
            "kind": "realtime",
            "channels": ["phone"],
        }
        google = await got(scene, "models?provider=google")
        assert google
        assert {each["provider"] for each in google} == {"google"}


async def test_voices_are_chosen_by_provider_and_language() -> None:  # F27
    async with open_scene() as scene:
        italian = await got(scene, "voices?provider=google&language=it-IT")
        assert "it-IT-Neural2-A" in {each["id"] for each in italian}
        assert {tuple(each["languages"]) for each in italian} == {("it-IT",)}
        of_all_kinds = {each["provider"] for each in await got(scene, "voices?language=it")}
        assert of_all_kinds == set(VOICE_PROVIDERS)


async def test_speech_recognisers_are_listed_with_their_languages() -> None:  # F27
    async with open_scene() as scene:
        assert [
            each["provider"] for each in await got(scene, "stt-engines?language=it-IT&provider=deepgram")
        ] == ["deepgram"]
        assert await got(scene, "stt-engines?language=xx") == []


async def test_languages_tell_which_ones_the_platform_itself_speaks() -> None:  # F26 F27
    async with open_scene() as scene:
        languages = {each["code"]: each for each in await got(scene, "languages")}
        assert languages["it-IT"] == {
            "code": "it-IT",
            "name": "italiano (Italia)",
            "englishName": "Italian (Italy)",
            "systemPrompts": True,
        }
        assert {code for code, each in languages.items() if each["systemPrompts"]} == {
            "it-IT",
            "en-US",
            "es-ES",
        }


async def test_audio_presets_come_whole_with_their_ids() -> None:  # F3 F27
    async with open_scene() as scene:
        presets = {each["presetId"]: each for each in await got(scene, "audio-presets")}
        assert set(presets) == {"default", "low-latency", "realtime"}
        assert presets["realtime"]["llm"]["model"] == "gpt-realtime"


@pytest.mark.parametrize("what", ["models", "voices", "stt-engines"])
async def test_an_unknown_provider_is_told_the_known_ones(what: str) -> None:
    async with open_scene() as scene:
        refused = await scene.http.get(f"/v1/helpers/{what}?provider=nobody")
        assert (refused.status_code, refused.json()["code"]) == (422, "provider_invalid")
        assert "openai" in refused.json()["detail"]


async def test_without_a_model_a_description_is_not_rewritten_and_the_setting_is_named() -> None:  # F27
    async with open_scene() as scene:
        body = {"description": "books visits", "taskName": "booking", "language": "en-US"}
        refused = await scene.post("/v1/helpers/improve-description", body)
        assert (refused.status_code, refused.json()["code"]) == (503, "model_not_configured")
        assert "FLOW_ENGINE_LLM_MODEL" in refused.json()["detail"]
        assert "retry-after" not in refused.headers


@pytest.mark.parametrize("body", [{}, {"description": ""}, {"description": "x", "language": "not a tag"}])
async def test_a_request_without_a_description_is_refused(body: dict[str, str]) -> None:
    async with open_scene() as scene:
        assert (await scene.post("/v1/helpers/improve-description", body)).status_code == 422


# --- the model_catalog's file ---------------------------------------------------------------------


def test_what_the_presets_use_is_offered() -> None:  # F3 F27
    model_catalog = load_model_catalog()
    models = {(model.provider, model.id) for model in model_catalog.models}
    voices = {(voice.provider, voice.id) for voice in model_catalog.voices}
    languages = [language.code for language in model_catalog.languages]
    for preset in load_system_prompts().audio_presets().values():
        plain: Any = preset
        assert (plain["llm"]["provider"], plain["llm"]["model"]) in models
        for role in ("default", "fallback"):
            voice = plain["tts"][role]
            known = {voice["voice"].replace("{{ $language }}", code) for code in languages}
            assert known & {voice_id for provider, voice_id in voices if provider == voice["provider"]}


def test_every_provider_that_a_document_may_name_offers_something() -> None:  # F2
    model_catalog = load_model_catalog()
    assert {model.provider for model in model_catalog.models} == set(MODEL_PROVIDERS)
    assert {voice.provider for voice in model_catalog.voices} == set(VOICE_PROVIDERS)
    assert {engine.provider for engine in model_catalog.stt_engines} == set(STT_PROVIDERS)
    in_documents = LlmConfig.model_fields["provider"].annotation
    assert set(MODEL_PROVIDERS) == {name for part in get_args(in_documents) for name in get_args(part)}


def test_every_mistake_in_the_file_is_told_at_once(tmp_path: Path) -> None:
    model_catalog = json.loads(FILE.read_bytes())
    model_catalog["models"].append(model_catalog["models"][0])
    model_catalog["voices"][0]["languages"] = ["xx-XX"]
    (tmp_path / "model_catalog.json").write_text(json.dumps(model_catalog))
    with pytest.raises(CallTheOperator) as refused:
        load_model_catalog(tmp_path / "model_catalog.json")
    assert refused.value.code == "catalogue_invalid"
    assert len(refused.value.detail.splitlines()) == 2


@pytest.mark.parametrize("text", ["", "[]", '{"models": [{"id": ""}]}'])
def test_a_file_that_is_no_catalogue_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model_catalog.json").write_text(text)
    with pytest.raises(CallTheOperator, match="catalogue_invalid"):
        load_model_catalog(tmp_path / "model_catalog.json")
    with pytest.raises(CallTheOperator, match="cannot be read"):
        load_model_catalog(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("asked", "spoken"), [("it-IT", True), ("it", True), ("IT-it", True), ("it-CH", False), ("i", False)]
)
def test_a_language_asks_for_all_its_kinds(asked: str, spoken: bool) -> None:
    assert speaks(("en-US", "it-IT"), asked) is spoken
    assert speaks(None, asked)
