"""The prompt sections, MCP servers and presets that the platform ships, and how broken files are reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_engine.documents import AudioMediaConfigPreset, parse_document
from flow_engine.errors import CallTheOperator
from flow_engine.ports.system_prompts import SystemMcpServer, SystemPrompts
from flow_engine.templates import lint_template
from system_prompts.loader import (
    SECTIONS,
    ApiVersionFiles,
    FileSystemPrompts,
    load_system_prompts,
    placeholders,
    problems_of_section,
)

PACKAGE = Path(__file__).parents[2] / "system_prompts"
LANGUAGES = ("en-US", "es-ES", "it-IT")
GROUP_FILES = sorted(path for path in (PACKAGE / "v1").glob("*/*.json") if path.parent.name != "default")


@pytest.fixture(scope="module")
def shipped() -> FileSystemPrompts:
    return load_system_prompts()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the shipped files, to break."""
    shutil.copytree(PACKAGE / "v1", tmp_path / "v1")
    shutil.copytree(PACKAGE / "audio_presets", tmp_path / "audio_presets")
    return tmp_path


def change(path: Path, **changes: object) -> None:
    """Set top-level keys of a JSON file; None takes a key away."""
    value = cast(dict[str, object], json.loads(path.read_text(encoding="utf-8"))) | changes
    kept = {key: item for key, item in value.items() if item is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")


def problems(root: Path) -> list[str]:
    with pytest.raises(CallTheOperator) as caught:
        load_system_prompts(root)
    assert caught.value.code == "system_prompts_invalid"
    return caught.value.detail.splitlines()


class TestShippedPieces:
    def test_are_the_same_set_in_every_language(self, shipped: FileSystemPrompts) -> None:  # F26
        assert shipped.available_languages("v1") == LANGUAGES
        for language in LANGUAGES:
            assert shipped.prompt_sections("v1", None, language).keys() == SECTIONS.keys()

    @pytest.mark.parametrize("name", sorted(SECTIONS))
    def test_hold_the_same_placeholders_in_every_language(
        self, shipped: FileSystemPrompts, name: str
    ) -> None:  # F26
        for language in LANGUAGES:
            assert placeholders(shipped.prompt_sections("v1", None, language)[name]) == SECTIONS[name]

    def test_are_translated_wherever_they_hold_words(self, shipped: FileSystemPrompts) -> None:  # F26
        markup_only = {
            "reachable_task",
            "checkpoint",
            "previous_contact",
            "contact_field",
            "mining_variable",
            "condition_unmet",
            "suggested_task",
        }
        for name in SECTIONS.keys() - markup_only:
            texts = {shipped.prompt_sections("v1", None, language)[name] for language in LANGUAGES}
            assert len(texts) >= 2, name  # Italian and Spanish share some single words

    @pytest.mark.parametrize("language", LANGUAGES)
    def test_explain_every_command_that_the_history_may_hold(
        self, shipped: FileSystemPrompts, language: str
    ) -> None:  # F25
        explained = shipped.prompt_sections("v1", None, language)["commands"]
        for command in (
            "`/start`",
            "`/resume`",
            "`/start_task <",
            "`/error <",
            "`/human_task_completed`",
            "`/human_task_failed <",
        ):
            assert command in explained

    @pytest.mark.parametrize("model", [None, "gpt-realtime", "llama"])
    @pytest.mark.parametrize("language", LANGUAGES)
    def test_name_the_tool_and_the_references_that_the_engine_uses(
        self, shipped: FileSystemPrompts, language: str, model: str | None
    ) -> None:  # F22, F35
        sections = shipped.prompt_sections("v1", model, language)
        assert "`change_task`" in sections["task_change"]
        assert "`memory->" in sections["memory_reference"]

    @pytest.mark.parametrize("language", LANGUAGES)
    def test_take_values_that_hold_braces_themselves(
        self, shipped: FileSystemPrompts, language: str
    ) -> None:  # F24
        for text in shipped.prompt_sections("v1", None, language).values():
            filled = text.format(**dict.fromkeys(placeholders(text), "{x}"))
            assert filled.count("{x}") >= len(placeholders(text))

    @pytest.mark.parametrize("path", GROUP_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
    def test_of_a_model_group_differ_from_the_default(
        self, shipped: FileSystemPrompts, path: Path
    ) -> None:  # F26
        default = shipped.prompt_sections("v1", None, path.stem)
        for name, text in json.loads(path.read_text(encoding="utf-8")).items():
            assert default[name] != text


class TestFallbacks:
    @pytest.mark.parametrize(
        ("model", "group"),
        [
            ("gpt-realtime", "gpt-realtime"),
            ("gpt-realtime-mini", "gpt-realtime"),
            ("GPT-Realtime-2026-01", "gpt-realtime"),
            ("meta-llama/llama-4-scout-17b-16e-instruct", "llama"),
            ("gpt-4.1-mini", "default"),
            ("gpt", "default"),
            ("", "default"),
            (None, "default"),
        ],
    )
    def test_a_model_is_matched_to_its_group(
        self, shipped: FileSystemPrompts, model: str | None, group: str
    ) -> None:  # F26
        assert shipped.versions["v1"].group_of(model) == group

    @given(
        groups=st.sets(st.text("ab-", min_size=1, max_size=4), max_size=6),
        model=st.text("ab-", max_size=6),
    )
    def test_the_longest_group_that_begins_the_model_wins(self, groups: set[str], model: str) -> None:  # F26
        longest_first = tuple(sorted(groups, key=len, reverse=True))
        files = ApiVersionFiles((), longest_first, {}, ())
        beginning = [group for group in groups if model[: len(group)] == group]
        assert files.group_of(model) == (max(beginning, key=len) if beginning else "default")

    def test_a_group_overrides_piece_by_piece(self, shipped: FileSystemPrompts) -> None:  # F26
        spoken = shipped.prompt_sections("v1", "gpt-realtime", "it-IT")
        default = shipped.prompt_sections("v1", None, "it-IT")
        assert spoken["style"] != default["style"]
        assert spoken["commands"] == default["commands"]

    def test_a_language_that_is_not_there_is_answered_in_english(
        self, shipped: FileSystemPrompts
    ) -> None:  # F26
        assert shipped.prompt_sections("v1", None, "fr-FR") is shipped.prompt_sections("v1", None, "en-US")
        assert shipped.prompt_sections("v1", "gpt-realtime", "fr-FR") is shipped.prompt_sections(
            "v1", "gpt-realtime", "en-US"
        )

    def test_a_group_without_the_language_gives_the_default_text_in_that_language(
        self, root: Path
    ) -> None:  # F26
        (root / "v1" / "gpt-realtime" / "it-IT.json").unlink()
        loaded = load_system_prompts(root)
        assert loaded.prompt_sections("v1", "gpt-realtime", "it-IT") == loaded.prompt_sections(
            "v1", None, "it-IT"
        )

    def test_a_second_api_version_has_its_own_files(self, root: Path) -> None:  # F26
        shutil.copytree(root / "v1", root / "v10")
        shutil.copytree(root / "v1", root / "v2")
        change(root / "v2" / "default" / "en-US.json", role="You are new.")
        loaded = load_system_prompts(root)
        assert loaded.api_versions() == ("v1", "v2", "v10")
        assert loaded.prompt_sections("v2", None, "en-US")["role"] == "You are new."
        assert loaded.prompt_sections("v1", None, "en-US")["role"] != "You are new."

    def test_an_unknown_api_version_is_for_the_operator(self, shipped: FileSystemPrompts) -> None:  # F26
        with pytest.raises(CallTheOperator, match=r"'v9'.*v1") as caught:
            shipped.prompt_sections("v9", None, "en-US")
        assert caught.value.code == "api_version_unknown"


class TestWhatIsReturned:
    def test_fulfils_the_port(self, shipped: FileSystemPrompts) -> None:  # F26
        port: SystemPrompts = shipped
        assert port.api_versions() == ("v1",)

    def test_is_one_object_for_equal_requests(self, shipped: FileSystemPrompts) -> None:  # F23
        first = shipped.prompt_sections("v1", "gpt-realtime", "es-ES")
        assert first is shipped.prompt_sections("v1", "gpt-realtime-mini", "es-ES")

    def test_cannot_be_changed(self, shipped: FileSystemPrompts) -> None:  # F26
        sections = cast(dict[str, str], shipped.prompt_sections("v1", None, "en-US"))
        with pytest.raises(TypeError):
            sections["role"] = "You are a pirate."
        presets = cast(dict[str, Any], shipped.audio_presets())
        with pytest.raises(TypeError):
            presets["default"]["vad"] = None
        with pytest.raises(FrozenInstanceError):
            cast(Any, shipped).presets = {}

    def test_declares_the_engine_as_the_default_mcp_server(self, shipped: FileSystemPrompts) -> None:  # F35
        assert shipped.mcp_servers("v1") == (
            SystemMcpServer("flow-engine", "{baseUrl}/mcp", ("change_task", "get_memory", "set_memory")),
        )

    def test_every_audio_preset_is_whole_and_default_is_there(self, shipped: FileSystemPrompts) -> None:  # F3
        assert "default" in shipped.audio_presets()
        for preset in shipped.audio_presets().values():
            parse_document(AudioMediaConfigPreset, dict(preset), "the audio preset")

    def test_voices_of_the_presets_are_sound_templates(self, shipped: FileSystemPrompts) -> None:  # F3
        for preset in shipped.audio_presets().values():
            speech = parse_document(AudioMediaConfigPreset, dict(preset), "the audio preset").tts
            for each in (speech.default, speech.fallback):
                assert lint_template(each.voice, (), "") == ([], [])


BROKEN_FILES: Mapping[str, tuple[str, str, str]] = {
    "not JSON": ("v1/default/it-IT.json", "{", "is not JSON"),
    "not an object": ("v1/llama/it-IT.json", "[]", "must hold a JSON object"),
    "null": ("v1/llama/it-IT.json", "null", "must hold a JSON object"),
    "an empty default file": ("v1/default/es-ES.json", "{}", "lacks ago_days"),
    "a language that default lacks": ("v1/llama/fr-FR.json", "{}", "its languages are en-US, es-ES, it-IT"),
    "servers not a list": ("v1/mcp_servers.json", "{}", "list of {name, url, tools}"),
    "a server without tools": ("v1/mcp_servers.json", '[{"name": "a", "url": "https://a.test"}]', "/0/tools"),
    "a server with another placeholder": (
        "v1/mcp_servers.json",
        '[{"name": "a", "url": "{host}/mcp", "tools": []}]',
        "/0/url",
    ),
    "a server named twice": (
        "v1/mcp_servers.json",
        json.dumps([{"name": "a", "url": "https://a.test", "tools": []}] * 2),
        "names must differ",
    ),
    "a preset that is not whole": ("audio_presets/default.json", '{"llm": {}}', "/stt"),
    "a preset that is a list": ("audio_presets/default.json", "[]", "must hold a JSON object"),
}


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("place", "content", "expected"), list(BROKEN_FILES.values()), ids=list(BROKEN_FILES)
    )
    def test_are_named_with_what_is_expected(
        self, root: Path, place: str, content: str, expected: str
    ) -> None:  # F26
        (root / place).write_text(content, encoding="utf-8")
        found = problems(root)
        assert all(line.startswith(f"{place}: ") for line in found)
        assert any(expected in line for line in found)

    @pytest.mark.parametrize(
        "place", ["v1/default/en-US.json", "v1/mcp_servers.json", "audio_presets/default.json"]
    )
    def test_that_are_missing_are_named(self, root: Path, place: str) -> None:  # F26, F3
        (root / place).unlink()
        assert any(line.startswith(f"{place}: ") for line in problems(root))

    def test_a_missing_piece_is_named(self, root: Path) -> None:  # F26
        change(root / "v1" / "default" / "it-IT.json", role=None, weekdays=None)
        assert problems(root) == ["v1/default/it-IT.json: must hold every section, and lacks role, weekdays"]

    def test_every_problem_is_told_at_once(self, root: Path) -> None:  # F26
        change(root / "v1" / "default" / "it-IT.json", now="ore {time}")
        change(root / "v1" / "llama" / "en-US.json", rôle="typo")
        (root / "audio_presets" / "low-latency.json").write_text("?", encoding="utf-8")
        assert len(problems(root)) == 3

    def test_a_directory_without_api_versions_is_refused(self, tmp_path: Path) -> None:  # F26
        assert any("such as v1" in line for line in problems(tmp_path))

    def test_two_directories_of_one_group_are_refused(self, root: Path) -> None:  # F26
        (root / "v1" / "LLAMA").mkdir()
        assert any("same group" in line for line in problems(root))


class TestRulesOfAPiece:
    @pytest.mark.parametrize(
        ("name", "text", "expected"),
        [
            ("greeting", "Hello", "unknown"),
            ("role", "", "not empty"),
            ("role", 3, "not empty"),
            ("role", "You are {name}.", "no placeholder"),
            ("previous_contact", "{date}: {resume}", "{channel}, {date}, {resume}"),
            ("reachable_requires", "Requires {variables}, {extra}.", "holds {extra}, {variables}"),
            ("ago_days", "{n!r} d {n}", "brace"),
            ("language", "Speak {language} {", "brace"),
            ("role", "Answer with {}", "brace"),
            ("weekdays", "Monday, Tuesday", "seven days"),
        ],
    )
    def test_a_breach_says_what_is_expected(self, name: str, text: object, expected: str) -> None:  # F26
        assert any(expected in problem for problem in problems_of_section(name, text))

    def test_a_good_piece_has_no_problem(self) -> None:  # F26
        assert problems_of_section("now", "{weekday} {date} {time} {timezone}") == []
