"""Versions that can run and are suspicious all the same."""

from __future__ import annotations

import pytest

from flow_engine.documents import parse_version, review_version
from tests.documents import samples
from tests.documents.samples import ENVIRONMENT, aio_task, full_version, hum_task, minimal_version


def warned(raw: samples.JsonObject) -> list[tuple[str, str]]:
    version = parse_version(raw, environment=ENVIRONMENT)
    return [(finding.pointer, finding.code) for finding in review_version(version, environment=ENVIRONMENT)]


@pytest.mark.parametrize("raw", [minimal_version(), full_version()])
def test_a_sound_version_has_no_warnings(raw: samples.JsonObject) -> None:  # F9
    assert warned(raw) == []


def test_a_draft_is_not_reviewed() -> None:  # F8
    assert warned(minimal_version(draft=True, tasks=[aio_task("a"), aio_task("b")])) == []


def test_tasks_that_no_chain_leads_to_are_unreachable() -> None:  # F9
    raw = minimal_version()
    raw["tasks"] += [aio_task("c", connectedTasks=["d"]), aio_task("d", connectedTasks=["c"])]
    assert warned(raw) == [("/tasks/2", "unreachable_task"), ("/tasks/3", "unreachable_task")]


def test_tasks_that_lead_nowhere_are_dead_ends() -> None:  # F9
    raw = minimal_version()
    raw["tasks"][1]["connectedTasks"] = ["operator"]
    assert warned(raw) == [("/tasks/1/connectedTasks", "dead_end")]


def test_the_only_task_is_no_dead_end() -> None:  # F9
    assert warned(minimal_version(tasks=[aio_task()])) == []


@pytest.mark.parametrize(("count", "suspicious"), [(20, False), (21, True)])
def test_a_model_chooses_badly_between_many_connections(count: int, suspicious: bool) -> None:  # F9
    others = [f"t{number}" for number in range(count)]
    tasks = [
        aio_task(connectedTasks=others * 2),
        *(aio_task(name, connectedTasks=["reception"]) for name in others),
    ]
    found = warned(minimal_version(tasks=tasks))
    assert found == ([("/tasks/0/connectedTasks", "too_many_connections")] if suspicious else [])


def test_required_parameters_of_the_first_task_are_not_asked_for_at_the_start() -> None:  # F9
    raw = minimal_version()
    raw["tasks"][0]["transitionParameters"] = [
        {"variableId": "var_date", "required": False},
        {"variableId": "var_string", "required": True},
    ]
    assert warned(raw) == [("/tasks/0/transitionParameters/1", "first_task_requires_parameter")]


class TestChannels:
    def test_a_task_on_none_of_the_channels_can_never_be_entered(self) -> None:  # F9
        raw = minimal_version()
        raw["tasks"][1]["channels"] = ["sms", "mail"]
        assert warned(raw) == [("/tasks/1/channels", "task_without_channel")]

    def test_a_channel_on_which_the_first_task_is_closed_starts_nothing(self) -> None:  # F9
        raw = minimal_version()
        raw["tasks"][0]["channels"] = ["phone"]
        assert warned(raw) == [("/channels/1", "channel_without_first_task")]

    def test_a_version_without_channels_starts_nothing(self) -> None:  # F9
        assert warned(minimal_version(channels=[], mandatoryChannels=[])) == [("/channels", "no_channels")]


@pytest.mark.parametrize("values", [None, []])
def test_an_enum_without_values_cannot_match(values: list[str] | None) -> None:  # F9
    raw = minimal_version()
    del raw["variables"][5]["enumValues"]
    raw["variables"][5] |= {} if values is None else {"enumValues": values}
    assert warned(raw) == [("/variables/5/enumValues", "enum_cannot_match")]


class TestLanguages:
    def test_the_default_language_should_be_supported(self) -> None:  # F9
        raw = minimal_version(defaultLanguage="fr-FR")
        assert warned(raw) == [("/defaultLanguage", "default_language_not_supported")]

    def test_system_prompts_in_a_missing_language_are_replaced(self) -> None:  # F26
        raw = minimal_version(systemPromptsLanguage="fr-FR")
        assert warned(raw) == [("/systemPromptsLanguage", "system_prompts_language_unavailable")]


@pytest.mark.parametrize("name", ["operator", "Opérator"])
def test_a_name_that_is_another_tasks_id_never_means_its_own_task(name: str) -> None:  # F4
    tasks = [
        aio_task("reception", name=name, connectedTasks=["operator"]),
        hum_task("operator", name="Human", connectedTasks=["reception"]),
    ]
    assert warned(minimal_version(tasks=tasks)) == [("/tasks/0/name", "ambiguous_name")]


def test_flags_that_say_neither_yes_nor_no_are_pointed_out() -> None:  # F40
    raw = minimal_version()
    raw["tasks"][0]["hideTranscriptionToHuman"] = "yes"
    raw["tasks"][1]["suspendTranscription"] = None
    assert warned(raw) == [
        ("/tasks/0/hideTranscriptionToHuman", "value_ignored"),
        ("/tasks/1/suspendTranscription", "value_ignored"),
    ]
