"""The sample flows are whole products: valid without a warning, in three languages, ready to be run."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from flow_engine.documents import (
    FlowVersion,
    ReviewEnvironment,
    Task,
    content_hash,
    normalise_name,
    parse_version,
)
from flow_engine.errors import CallTheOperator, pointer
from flow_engine.linting import lint
from flow_engine.templates import TemplateScope, compile_template, lint_template
from flows.samples import SampleFlow, load_samples
from system_prompts.loader import load_system_prompts

SAMPLES = load_samples()
VERSIONS = {sample.flow_id: parse_version(orjson.loads(sample.document)) for sample in SAMPLES}
TASK_REFERENCE = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")

each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.flow_id)


def environment() -> ReviewEnvironment:
    prompts = load_system_prompts()
    languages = {language for api in prompts.api_versions() for language in prompts.available_languages(api)}
    return ReviewEnvironment(
        api_versions=frozenset(prompts.api_versions()),
        audio_presets=frozenset(prompts.audio_presets()),
        system_prompt_languages=frozenset(languages),
    )


def task(version: FlowVersion, task_id: str) -> Task:
    return next(each for each in version.tasks if each.id == task_id)


def templates(version: FlowVersion) -> list[tuple[str, str]]:
    """Every template with the JSON pointer of its place."""
    found = [("/globalPrompt", version.global_prompt)]
    for number, each in enumerate(version.tasks):
        found += [
            (pointer("tasks", number, "prompt"), each.prompt),
            (pointer("tasks", number, "description"), each.description),
        ]
    return found


def required(each: Task) -> list[str]:
    return [parameter.variable_id for parameter in each.transition_parameters if parameter.required]


class TestEverySample:
    @each_sample
    def test_is_accepted_without_an_error_or_a_warning(self, sample: SampleFlow) -> None:  # F2, F3, F9
        version = VERSIONS[sample.flow_id]
        assert parse_version(orjson.loads(sample.document), environment=environment()) == version
        assert lint(version, environment()) == []

    @each_sample
    def test_is_a_version_of_its_own_flow_and_no_draft(self, sample: SampleFlow) -> None:  # F1, F8
        version = VERSIONS[sample.flow_id]
        assert version.id == sample.version_id == f"{sample.flow_id}-v1"
        assert version.conversational_flow_id == sample.flow_id
        assert not version.draft
        assert sample.name
        assert sample.campaign_id

    @each_sample
    def test_has_five_to_twelve_named_tasks(self, sample: SampleFlow) -> None:  # F4
        tasks = VERSIONS[sample.flow_id].tasks
        assert 5 <= len(tasks) <= 12
        assert len({normalise_name(each.name or "") for each in tasks}) == len(tasks)
        assert all(each.name for each in tasks)

    @each_sample
    def test_says_how_a_conversation_can_be_classified(self, sample: SampleFlow) -> None:  # F39
        version = VERSIONS[sample.flow_id]
        assert version.checkpoints
        assert version.reasons_of_contact
        assert version.results
        assert any(each.enabled_checkpoints for each in version.tasks)

    @each_sample
    def test_enables_checkpoints_as_the_version_declares_them(self, sample: SampleFlow) -> None:  # F39
        version = VERSIONS[sample.flow_id]
        for each in version.tasks:
            assert set(each.enabled_checkpoints) <= set(version.checkpoints)

    @each_sample
    def test_refers_to_the_memory_in_its_prompts(self, sample: SampleFlow) -> None:  # F22
        version = VERSIONS[sample.flow_id]
        known = {variable.id for variable in version.variables}
        used = {
            name
            for text in (version.global_prompt, *(each.prompt for each in version.tasks))
            for name in re.findall(r"\$vars\.(\w+)", text)
        }
        assert used
        assert used <= known

    @each_sample
    def test_has_templates_that_nothing_can_be_said_against(self, sample: SampleFlow) -> None:  # F9, F22
        version = VERSIONS[sample.flow_id]
        known = {variable.id for variable in version.variables}
        for place, source in templates(version):
            assert lint_template(source, known, place) == ([], [])

    @each_sample
    def test_reads_well_without_data_of_a_tenant_or_a_caller(self, sample: SampleFlow) -> None:  # F22
        version = VERSIONS[sample.flow_id]
        for channel in version.channels:
            scope = TemplateScope(
                variables={variable.id: variable.name for variable in version.variables},
                values={},
                tenant={},
                contact={},
                channel=channel,
                language=version.default_language,
                flow={},
                task={},
            )
            for place, source in templates(version):
                text = compile_template(source).render(scope).text
                assert not re.search(r"[{}$]|  |\bNone\b|undefined|\( *\)", text), (place, text)

    @each_sample
    def test_prompts_name_only_tools_that_their_task_selects(self, sample: SampleFlow) -> None:  # F28
        for each in VERSIONS[sample.flow_id].tasks:
            selected = {
                tool.tool_name for chosen in each.mcp_tool_selection for tool in chosen.selected_tools
            }
            assert set(TASK_REFERENCE.findall(each.prompt)) <= selected, each.id

    @each_sample
    def test_every_custom_variable_that_a_task_requires_has_tools_before_it(
        self, sample: SampleFlow
    ) -> None:  # F9
        version = VERSIONS[sample.flow_id]
        custom = {variable.id for variable in version.variables if variable.type == "custom"}
        needing = {each.id for each in version.tasks if custom & set(required(each))}
        toolless_so_far, reached = [version.first_task], set[str]()
        while toolless_so_far:
            task_id = toolless_so_far.pop()
            if task_id in reached:
                continue
            reached.add(task_id)
            if not task(version, task_id).mcp_tool_selection:
                toolless_so_far.extend(task(version, task_id).connected_tasks)
        assert not needing & reached

    @each_sample
    def test_leads_from_every_task_to_every_other_on_each_of_its_channels(
        self, sample: SampleFlow
    ) -> None:  # F9, F11
        version = VERSIONS[sample.flow_id]
        for channel in version.channels:
            available = {
                each.id: each for each in version.tasks if each.channels is None or channel in each.channels
            }
            for start in available:
                reached, todo = set[str](), [start]
                while todo:
                    task_id = todo.pop()
                    if task_id in available and task_id not in reached:
                        reached.add(task_id)
                        todo.extend(available[task_id].connected_tasks)
                assert reached == available.keys(), (channel, start)


class TestTogether:
    def test_they_show_the_three_prompt_languages(self) -> None:  # F26
        assert {version.system_prompts_language for version in VERSIONS.values()} == {
            "it-IT",
            "en-US",
            "es-ES",
        }

    def test_they_show_every_variable_and_task_type_and_assignment(self) -> None:  # F2, F5
        versions = VERSIONS.values()
        assert {variable.type for version in versions for variable in version.variables} == {
            "string",
            "number",
            "boolean",
            "enum",
            "date",
            "phone",
            "custom",
        }
        assert {each.type for version in versions for each in version.tasks} == {"AIO", "AIS", "HUM"}
        assert {
            parameter.assignment_strategy
            for version in versions
            for each in version.tasks
            for chosen in each.mcp_tool_selection
            for tool in chosen.selected_tools
            for parameter in tool.tool_parameters
        } == {"variable", "fixed", "prompt"}

    def test_they_use_every_audio_preset_that_is_shipped(self) -> None:  # F3
        used = {version.media_config.audio.preset_id for version in VERSIONS.values()}
        assert used == load_system_prompts().audio_presets().keys()

    def test_loading_again_gives_the_same_bytes(self) -> None:  # F7
        assert load_samples() == SAMPLES
        hashes = {content_hash(orjson.loads(sample.document)) for sample in SAMPLES}
        assert len(hashes) == len(SAMPLES)


class TestHealthBooking:
    def test_a_booking_needs_the_service_and_the_day(self) -> None:  # F11
        version = VERSIONS["health-booking"]
        assert version.first_task == "prestazione"
        assert required(task(version, "prenotazione")) == ["idPrestazione", "dataAppuntamento"]
        assert required(task(version, "cancellazione")) == ["codicePrenotazione"]

    def test_a_conversation_ends_with_its_contact(self) -> None:  # F28, F30
        version = VERSIONS["health-booking"]
        assert not version.closure_config.multi_contact
        assert all(each.closure_config == version.closure_config for each in version.tasks)


class TestOrder:
    def test_money_and_complaints_are_supervised(self) -> None:  # F10
        supervised = {each.id for each in VERSIONS["order"].tasks if each.type == "AIS"}
        assert supervised == {"payment", "complaint"}

    def test_a_card_is_taken_on_the_phone_only(self) -> None:  # F11
        assert task(VERSIONS["order"], "card-by-phone").channels == ("phone",)

    def test_an_enum_may_hold_numbers(self) -> None:  # F3
        sizes = next(variable for variable in VERSIONS["order"].variables if variable.id == "bagGrams")
        assert sizes.enum_values == (250, 500, 1000)


class TestClaim:
    def test_the_conversation_outlives_its_contacts_in_every_task_but_the_last(self) -> None:  # F28, F30
        version = VERSIONS["claim"]
        assert version.closure_config.multi_contact
        assert version.closure_config.conversation_time_limit == 30 * 24 * 60 * 60
        single = {each.id for each in version.tasks if each.closure_config != version.closure_config}
        assert single == {"cierre"}
        assert not task(version, "cierre").closure_config.multi_contact

    def test_documents_are_taken_where_files_can_be_sent(self) -> None:  # F11
        assert task(VERSIONS["claim"], "documentacion").channels == ("mail", "whatsapp")

    def test_an_expert_can_be_reached_from_the_opening_of_a_claim(self) -> None:  # F10
        version = VERSIONS["claim"]
        assert "perito" in task(version, "apertura").connected_tasks
        assert task(version, "perito").type == "HUM"
        assert required(task(version, "apertura")) == ["poliza"]


def test_a_broken_sample_is_named(tmp_path: Path) -> None:  # F42
    (tmp_path / "bad.json").write_text('{"flow": {}}', encoding="utf-8")
    with pytest.raises(CallTheOperator, match=r"bad\.json must be"):
        load_samples(tmp_path)
