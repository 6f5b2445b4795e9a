"""`flow-engine flow validate`: the verdict of a save, from files alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli import app
from tests.flow_engine.linting.versions import BOOKING, JsonObject, sound_version, task

SAMPLES = Path(__file__).parents[2] / "flows" / "samples"


def validate(*arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["flow", "validate", *arguments], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def as_json(*arguments: str, stdin: str | None = None) -> tuple[int, Any]:
    code, out, _ = validate("--json", *arguments, stdin=stdin)
    return code, json.loads(out)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "version.json"


def suspicious() -> JsonObject:
    raw = sound_version()
    raw["tasks"].append(task("survey", ["welcome"]))
    return raw


def broken() -> JsonObject:
    raw = sound_version(firstTask="nowhere")
    raw["tasks"][BOOKING]["type"] = "BOT"
    return raw


def test_the_samples_are_clean() -> None:  # F9
    files = [str(path) for path in sorted(SAMPLES.glob("*.json"))]
    code, out, err = validate("--strict", *files)
    assert (code, out) == (0, "")
    assert err == "3 file(s), 0 error(s), 0 warning(s)\n"


def test_warnings_are_told_and_allowed(file: Path) -> None:  # F9
    file.write_text(json.dumps(suspicious()), "utf-8")
    code, out, _ = validate(str(file))
    assert code == 0
    assert out.startswith(f"{file}:/tasks/3: unreachable_task no chain of 'connectedTasks' leads from")
    assert out.count("\n") == 1


def test_strict_lets_warnings_fail(file: Path) -> None:  # F9
    file.write_text(json.dumps(suspicious()), "utf-8")
    assert validate("--strict", str(file))[0] == 1


def test_errors_fail_and_are_all_told(file: Path) -> None:  # F2 F9
    file.write_text(json.dumps(broken()), "utf-8")
    code, out, err = validate(str(file))
    assert code == 1
    assert [line.removeprefix(f"{file}:").split(" ")[:2] for line in out.splitlines()] == [
        ["/tasks/1/type:", "not_allowed"],
        ["/firstTask:", "unknown_task"],
    ]
    assert err == "1 file(s), 2 error(s), 0 warning(s)\n"


def test_templates_that_could_not_be_rendered_fail(file: Path) -> None:  # F9 F22
    file.write_text(json.dumps(sound_version(globalPrompt="{% set a = 1 %}")), "utf-8")
    code, report = as_json(str(file))
    assert code == 1
    assert [row["code"] for row in report["files"][0]["errors"]] == ["template_forbidden"]


def test_what_the_server_sets_may_be_missing(file: Path) -> None:  # F2
    raw = sound_version()
    for name in ("_id", "conversationalFlowId", "createdAt", "createdBy"):
        del raw[name]
    file.write_text(json.dumps(raw), "utf-8")
    assert validate("--strict", str(file))[0] == 0


def test_the_routing_of_a_task_without_a_human_is_not_read(file: Path) -> None:  # F2
    raw = sound_version()
    raw["tasks"][BOOKING]["routingParameters"] = {"timeout": "never", "agentSkills": [{}]}
    file.write_text(json.dumps(raw), "utf-8")
    assert validate("--strict", str(file))[0] == 0


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_integer_that_would_come_back_changed_fails_however_the_version_is_wrapped(
    file: Path, wrapped: bool
) -> None:  # F2 weakness f
    raw: JsonObject = sound_version(firstTask="nowhere", uiMetadata={"version": "PLACE"})
    whole = (
        {"flow": {"_id": raw["conversationalFlowId"], "size": "PLACE"}, "version": raw} if wrapped else raw
    )
    file.write_text(json.dumps(whole).replace('"PLACE"', "12345678901234567890123"), "utf-8")
    code, report = as_json(str(file))
    assert code == 1
    place = "/version" if wrapped else ""
    assert [(row["pointer"], row["code"]) for row in report["files"][0]["errors"]] == [
        (f"{place}/uiMetadata/version", "integer_too_large"),
        (f"{place}/firstTask", "unknown_task"),
    ]


@pytest.mark.parametrize(
    "text", ['{"version": {"draft": true, "draft": true}}', '{"version": {}, "version": {}}']
)
def test_a_property_that_stands_twice_fails_at_its_place_in_the_file(file: Path, text: str) -> None:  # F9
    file.write_text(text, "utf-8")
    code, report = as_json(str(file))
    assert code == 1
    twice = [row["pointer"] for row in report["files"][0]["errors"] if row["code"] == "duplicate_key"]
    assert twice == ["/version/draft" if "draft" in text else "/version"]


def test_one_that_is_too_deep_fails_whatever_its_integers_are(file: Path) -> None:  # F9 weakness f
    file.write_text(
        '{"version": {"draft": true, "n": ' + "[" * 1_000 + "9" * 30 + "]" * 1_000 + "}}", "utf-8"
    )
    code, report = as_json(str(file))
    assert code == 1
    assert [row["code"] for row in report["files"][0]["errors"]] == ["too_deep"]


@pytest.mark.parametrize(
    "text", ["[" * 2_000 + "]" * 2_000, '{"version": ' + "[" * 200_000], ids=["", "open"]
)
def test_one_that_is_too_deep_to_be_decoded_is_refused_as_by_a_save(file: Path, text: str) -> None:  # F9
    file.write_text(text, "utf-8")
    code, report = as_json(str(file))
    [found] = report["files"]
    assert (code, "unreadable" in found) == (1, False)
    assert [(row["pointer"], row["code"]) for row in found["errors"]] == [("", "too_deep")]


def test_pointers_lead_into_the_file_that_was_given(file: Path) -> None:  # F9
    wrapped = {"flow": {"_id": "flow-1"}, "version": suspicious()}
    file.write_text(json.dumps(wrapped), "utf-8")
    code, report = as_json(str(file))
    assert code == 0
    [row] = report["files"][0]["warnings"]
    assert row["pointer"] == "/version/tasks/3"


def test_a_version_of_another_flow_is_told_as_a_save_would(file: Path) -> None:  # F9
    wrapped = {"flow": {"_id": "other"}, "version": {**sound_version(), "conversationalFlowId": "flow-1"}}
    file.write_text(json.dumps(wrapped), "utf-8")
    code, report = as_json(str(file))
    assert code == 1
    assert [row["code"] for row in report["files"][0]["errors"]] == ["flow_mismatch"]


def test_standard_input_is_a_file_too() -> None:  # F9
    code, out, _ = validate("-", stdin=json.dumps(suspicious()))
    assert code == 0
    assert out.startswith("<stdin>:/tasks/3: unreachable_task")


def test_a_draft_is_only_checked_against_the_schema() -> None:  # F8
    code, out, err = validate("-", stdin='{"draft": true}')
    assert (code, out) == (0, "")
    assert "<stdin>: a draft, which never runs" in err
    assert "set 'draft' to false to have all of it checked" in err


@pytest.mark.parametrize("text", ["", "{", "\udcff"])
def test_what_is_no_json_cannot_be_read(file: Path, text: str) -> None:  # F9
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    code, report = as_json(str(file))
    assert code == 2
    assert report["files"][0]["unreadable"].startswith("not JSON")


@pytest.mark.parametrize(
    ("text", "is_yaml"), [("draft: false\ntasks: []", True), ("# A flow\n", True), ("{'draft': 1}", False)]
)
def test_yaml_is_told_as_yaml(file: Path, text: str, is_yaml: bool) -> None:  # F9
    file.write_text(text, "utf-8")
    _, report = as_json(str(file))
    assert report["files"][0]["unreadable"].endswith("YAML: a flow document is JSON") == is_yaml


def test_a_finding_about_the_whole_has_a_place(file: Path) -> None:  # F9
    file.write_text("[]", "utf-8")
    assert validate(str(file))[1] == f"{file}:/: wrong_type a version is a JSON object\n"


def test_what_cannot_be_read_is_counted_apart(file: Path, tmp_path: Path) -> None:  # F9
    file.write_text(json.dumps(sound_version()), "utf-8")
    code, _, err = validate(str(tmp_path / "none.json"), str(file))
    assert code == 2
    assert err.splitlines()[-1] == "2 file(s), 0 error(s), 0 warning(s), 1 unreadable"


@pytest.mark.parametrize("text", ["[]", "3", "null"])
def test_json_that_is_no_object_is_an_error(text: str) -> None:  # F2
    code, report = as_json("-", stdin=text)
    assert code == 1
    assert report["files"][0]["errors"][0]["code"] == "wrong_type"


def test_a_missing_file_does_not_hide_the_others(file: Path, tmp_path: Path) -> None:  # F9
    file.write_text(json.dumps(broken()), "utf-8")
    code, report = as_json(str(tmp_path / "none.json"), str(tmp_path), str(file))
    assert code == 2
    assert [row.get("unreadable") for row in report["files"]] == [
        "No such file or directory",
        "Is a directory",
        None,
    ]
    assert report["errors"] == 2


def test_limits_are_those_of_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:  # F9
    monkeypatch.setenv("FLOW_ENGINE_MAX_TASKS", "2")
    _, report = as_json("-", stdin=json.dumps(sound_version()))
    assert [row["code"] for row in report["files"][0]["errors"]] == ["too_many_tasks"]
    monkeypatch.setenv("FLOW_ENGINE_MAX_TASKS", "none")
    assert validate("-", stdin="{}")[0] == 2


def test_messages_are_not_read_as_markup(file: Path) -> None:  # F9
    raw = sound_version()
    raw["tasks"].append(task("[bold]survey[/bold]", ["welcome"]))
    file.write_text(json.dumps(raw), "utf-8")
    assert "'[bold]survey[/bold]'" in validate(str(file))[1]


def test_the_command_starts_without_servers_and_stores() -> None:  # F42
    """What it loads decides how fast it starts."""
    program = (
        "import sys, service.cli\n"
        "heavy = {'redis', 'fakeredis', 'pymongo', 'uvicorn', 'fastapi', 'httpx', 'statemachine'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
