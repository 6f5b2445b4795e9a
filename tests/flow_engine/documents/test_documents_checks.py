"""Versions that satisfy the schema and are refused nevertheless, because they cannot run."""

from __future__ import annotations

import pytest

from flow_engine.documents import DocumentLimits, ReviewEnvironment, Task, parse_version
from flow_engine.documents.checks import check_version
from flow_engine.errors import CorrectTheInput
from tests.flow_engine.documents import samples
from tests.flow_engine.documents.samples import ENVIRONMENT, aio_task, full_version, hum_task, minimal_version


def refused(raw: samples.JsonObject, limits: DocumentLimits | None = None) -> list[tuple[str, str]]:
    """Place and code of every error, once found at the parse and once by the checks alone."""
    found = list(check_version(raw, limits=limits or DocumentLimits(), environment=ENVIRONMENT))
    if found:
        with pytest.raises(CorrectTheInput) as refusal:
            parse_version(raw, limits=limits, environment=ENVIRONMENT)
        assert list(refusal.value.findings) == found
    return [(finding.pointer, finding.code) for finding in found]


def checkpoint(number: int, name: str | None = None) -> samples.JsonObject:
    return {"_id": f"cp-{number}", "name": name or f"checkpoint {number}", "prompt": "reached"}


@pytest.mark.parametrize("raw", [minimal_version(), full_version(), {"draft": True}])
def test_a_sound_version_has_no_errors(raw: samples.JsonObject) -> None:  # F9
    assert refused(raw) == []


class TestReferences:
    def test_first_and_connected_tasks_must_exist(self) -> None:  # F9
        raw = minimal_version(firstTask="Reception")
        raw["tasks"][1]["connectedTasks"] = ["reception", "lobby"]
        assert refused(raw) == [
            ("/firstTask", "unknown_task"),
            ("/tasks/1/connectedTasks/1", "unknown_task"),
        ]

    def test_an_empty_version_has_no_first_task(self) -> None:  # F9
        assert refused(minimal_version(tasks=[])) == [("/firstTask", "unknown_task")]

    def test_tasks_are_connected_by_id_not_by_name(self) -> None:  # F4
        raw = minimal_version(tasks=[aio_task("t1", name="Lobby", connectedTasks=["Lobby"])], firstTask="t1")
        assert refused(raw) == [("/tasks/0/connectedTasks/0", "unknown_task")]

    def test_transition_parameters_name_variables_by_id(self) -> None:  # F9
        raw = minimal_version()
        raw["tasks"][1]["transitionParameters"] = [{"variableId": "a string", "required": False}]
        assert refused(raw) == [("/tasks/1/transitionParameters/0/variableId", "unknown_variable")]

    def test_a_tool_that_is_only_named_is_not_told_again_wherever_it_is_selected(self) -> None:  # F2
        raw = full_version()
        raw["mcpServers"][0]["includedTools"] = ["book"]
        with pytest.raises(CorrectTheInput) as refusal:
            parse_version(raw, environment=ENVIRONMENT)
        found = [(each.pointer, each.code) for each in refusal.value.findings]
        assert found == [("/mcpServers/0/includedTools/0", "wrong_type")]

    def test_parameters_taken_from_a_variable_name_one(self) -> None:  # F9
        raw = full_version()
        tool = raw["tasks"][0]["mcpToolSelection"][0]["selectedTools"][0]
        tool["toolParameters"] = [
            samples.parameter("who", "variable", "nobody"),
            samples.parameter("where", "fixed", "nobody"),
            samples.parameter("when", "prompt", "nobody"),
        ]
        place = "/tasks/0/mcpToolSelection/0/selectedTools/0/toolParameters/0/assignmentValue"
        assert refused(raw) == [(place, "unknown_variable")]

    def test_enabled_checkpoints_are_declared_by_the_version(self) -> None:  # F9
        raw = minimal_version(checkpoints=[checkpoint(1)])
        raw["tasks"][0]["enabledCheckpoints"] = [checkpoint(1), checkpoint(2)]
        assert refused(raw) == [("/tasks/0/enabledCheckpoints/1/_id", "unknown_checkpoint")]

    def test_selected_servers_and_tools_are_declared_by_the_version(self) -> None:  # F9
        raw = full_version()
        selection = raw["tasks"][0]["mcpToolSelection"]
        selection[0]["selectedTools"].append({"toolName": "cancel"})
        selection.append({"mcpServerName": "billing", "selectedTools": [{"toolName": "pay"}]})
        assert refused(raw) == [
            ("/tasks/0/mcpToolSelection/1/mcpServerName", "unknown_mcp_server"),
            ("/tasks/0/mcpToolSelection/0/selectedTools/1/toolName", "unknown_mcp_tool"),
        ]

    def test_mandatory_channels_are_among_the_channels(self) -> None:  # F9
        raw = minimal_version(mandatoryChannels=["phone", "sms"])
        assert refused(raw) == [("/mandatoryChannels/1", "mandatory_channel_not_in_channels")]

    def test_api_version_and_preset_are_known_to_the_platform(self) -> None:  # F3
        raw = minimal_version(apiVersion="v2")
        raw["mediaConfig"]["audio"]["presetId"] = "loud"
        assert refused(raw) == [
            ("/apiVersion", "unknown_api_version"),
            ("/mediaConfig/audio/presetId", "unknown_audio_preset"),
        ]

    def test_messages_list_what_is_known(self) -> None:  # F2
        environment = ReviewEnvironment(frozenset({"v2", "v1"}), frozenset({"default"}), frozenset())
        with pytest.raises(CorrectTheInput) as refusal:
            parse_version(minimal_version(firstTask="lobby", apiVersion="v3"), environment=environment)
        messages = [finding.message for finding in refusal.value.findings]
        assert messages == [
            "'lobby' is no task; known: 'operator', 'reception'",
            "'v3' is no API version; known: 'v1', 'v2'",
        ]

    def test_a_name_in_place_of_an_id_is_told_the_id(self) -> None:  # F2 F4
        raw = minimal_version(firstTask="Front desk")
        raw["tasks"][0]["name"] = "Front desk"
        raw["tasks"][1]["transitionParameters"] = [{"variableId": "a date", "required": True}]
        with pytest.raises(CorrectTheInput) as refusal:
            parse_version(raw)
        told = [finding.message.partition(";")[0] for finding in refusal.value.findings]
        assert told == [
            "'Front desk' is the name of 'reception', and ids count here",
            "'a date' is the name of 'var_date', and ids count here",
        ]


class TestIdentity:
    def test_ids_are_unique(self) -> None:  # F9
        raw = minimal_version(checkpoints=[checkpoint(1), checkpoint(1, "other")])
        raw["variables"].append({"_id": "var_date", "name": "other", "type": "custom"})
        raw["tasks"].append(aio_task("reception", name="Other"))
        assert refused(raw) == [
            ("/variables/7/_id", "duplicate_id"),
            ("/checkpoints/1/_id", "duplicate_id"),
            ("/tasks/2/_id", "duplicate_id"),
        ]

    def test_unnamed_tasks_with_one_id_are_reported_once(self) -> None:  # F4
        raw = minimal_version(tasks=[aio_task(), aio_task(), hum_task()])
        assert refused(raw) == [("/tasks/1/_id", "duplicate_id")]

    def test_names_are_unique(self) -> None:  # F9
        named = {"name": "same", "prompt": "x"}
        server = {"name": "same", "url": "http://a", "includedTools": []}
        raw = minimal_version(
            checkpoints=[checkpoint(1, "same"), checkpoint(2, "same")],
            mcpServers=[server, server],
            reasonsOfContact=[named, named],
            results=[{**named, "resultTypes": []}, {**named, "resultTypes": ["CL"]}],
        )
        raw["variables"].append({"_id": "v", "name": "size", "type": "custom"})
        assert refused(raw) == [
            ("/variables/7/name", "duplicate_name"),
            ("/checkpoints/1/name", "duplicate_name"),
            ("/mcpServers/1/name", "duplicate_name"),
            ("/reasonsOfContact/1/name", "duplicate_name"),
            ("/results/1/name", "duplicate_name"),
        ]

    @pytest.mark.parametrize("name", ["Città Nuova", "citta nuova", "CITTA_NUOVA", " città  nuova "])
    def test_task_names_are_compared_normalised(self, name: str) -> None:  # F4
        raw = minimal_version(
            tasks=[aio_task("a", name="città nuova"), aio_task("b", name=name)], firstTask="a"
        )
        assert refused(raw) == [("/tasks/1/name", "duplicate_name")]

    @pytest.mark.parametrize("name", [None, "", "  "])
    def test_a_task_without_a_name_is_called_by_its_id(self, name: str | None) -> None:  # F4
        unnamed = aio_task("città") if name is None else aio_task("città", name=name)
        raw = minimal_version(tasks=[aio_task("a", name="CITTA"), unnamed], firstTask="a")
        assert Task.model_validate(raw["tasks"][1]).effective_name == "città"
        assert refused(raw) == [("/tasks/1/_id", "duplicate_name")]

    def test_a_task_name_must_be_a_string(self) -> None:  # F4
        with pytest.raises(CorrectTheInput) as refusal:
            parse_version(minimal_version(tasks=[aio_task(name=None)]))
        assert [finding.pointer for finding in refusal.value.findings] == ["/tasks/0/name"]

    def test_a_variable_may_not_be_called_as_another_ones_id(self) -> None:  # F5
        raw = minimal_version(
            variables=[
                {"_id": "var_string", "name": "var_string", "type": "custom"},
                {"_id": "b", "name": "c", "type": "custom"},
                {"_id": "c", "name": "d", "type": "custom"},
            ]
        )
        assert refused(raw) == [("/variables/1/name", "name_is_other_id")]

    @pytest.mark.parametrize("task_id", ["{x}", "{{ x }}", "a:b", "two words", "line\nbreak", "é~1"])
    def test_any_text_is_an_id(self, task_id: str) -> None:  # F9
        variable = {"_id": task_id, "name": "odd", "type": "custom"}
        task = aio_task(task_id, transitionParameters=[{"variableId": task_id, "required": False}])
        raw = minimal_version(tasks=[task], firstTask=task_id, variables=[variable])
        assert refused(raw) == []


class TestLimits:
    def test_a_version_has_at_most_so_many_tasks(self) -> None:  # F9
        assert refused(samples.many_tasks(300)) == []
        assert refused(samples.many_tasks(301)) == [("/tasks", "too_many_tasks")]

    def test_the_limit_can_be_set(self) -> None:  # F9
        assert refused(minimal_version(), DocumentLimits(max_tasks=1)) == [("/tasks", "too_many_tasks")]


class TestBrokenDocuments:
    """References are checked as far as a document that breaks the schema can be read."""

    def places(self, raw: samples.JsonObject) -> dict[str, str]:
        with pytest.raises(CorrectTheInput) as refusal:
            parse_version(raw, environment=ENVIRONMENT)
        return {finding.pointer: finding.code for finding in refusal.value.findings}

    def test_nothing_is_said_about_references_to_what_is_missing_as_a_whole(self) -> None:  # F2
        raw = full_version()
        for name in ("tasks", "variables", "checkpoints", "mcpServers", "channels"):
            broken = {**raw, name: "none"}
            assert self.places(broken) == {f"/{name}": "wrong_type"}

    def test_one_broken_item_does_not_hide_the_errors_of_the_others(self) -> None:  # F2
        raw = minimal_version(tasks=[7, aio_task("a", connectedTasks=["b"]), {"_id": "c"}], firstTask="c")
        places = self.places(raw)
        assert places["/tasks/0"] == "wrong_type"
        assert places["/tasks/1/connectedTasks/0"] == "unknown_task"
        assert "/firstTask" not in places
