"""`flow-engine flow import`: files, folders and archives of other systems' flows, from the command line."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.cli.importing import MAX_BYTES
from tests.flow_engine.importing.originals import FOLDER, PACKAGE, imported


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["flow", "import", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("retell", ["retell", FOLDER / "retell.json"]),
        ("pipecat", ["pipecat", FOLDER / "pipecat.json"]),
        ("pipecat of today", ["pipecat", FOLDER / "pipecat.yaml"]),
        ("rasa", ["rasa", FOLDER / "rasa-flows.yml", FOLDER / "rasa-domain.yml"]),
        ("dialogflow-cx", ["dialogflow-cx", PACKAGE]),
    ],
)
def test_files_and_folders_become_a_draft(name: str, arguments: list[object]) -> None:
    code, out, err = run(*arguments)
    expected = imported(name)
    assert (code, json.loads(out)) == (0, expected.document)
    assert len(err.splitlines()) == len(expected.draft.remarks)


def test_an_archive_is_read_as_its_folder_is(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "agent"), "zip", PACKAGE)
    code, out, _ = run("dialogflow-cx", archive)
    assert (code, json.loads(out)) == (0, imported("dialogflow-cx").document)


def test_rasa_s_files_of_one_folder_are_one(tmp_path: Path) -> None:
    for name in ("rasa-flows.yml", "rasa-domain.yml"):
        shutil.copy(FOLDER / name, tmp_path / name)
    (tmp_path / "more.yml").write_text(
        "flows: {goodbye: {description: Say goodbye, steps: [{noop: true}]}}\n"
    )
    code, out, _ = run("rasa", tmp_path)
    assert code == 0
    assert {"goodbye", "transfer_money"} <= {task["_id"] for task in json.loads(out)["tasks"]}


def test_remarks_stand_beside_the_document_in_json() -> None:
    code, out, err = run("retell", FOLDER / "retell.json", "--json")
    printed: Any = json.loads(out)
    assert (code, err) == (0, "")
    assert set(printed) == {"document", "remarks"}
    assert {"pointer": "/mcps/0/headers", "kept": "dropped", "message": "'headers' has no counterpart"} in (
        printed["remarks"]
    )


def test_a_printed_draft_is_valid_and_whole(tmp_path: Path) -> None:
    _, out, _ = run("retell", FOLDER / "retell.json")
    whole = tmp_path / "version.json"
    whole.write_text(json.dumps({**json.loads(out), "draft": False}))
    assert CliRunner().invoke(app, ["flow", "validate", str(whole)]).exit_code == 0


@pytest.mark.parametrize(
    ("kind", "name", "text", "said"),
    [
        ("retell", "a.json", '{"nodes": [{}]}', "/nodes/0/id: missing_property"),
        ("retell", "a.json", "{", "a.json: the text is not JSON"),
        ("rasa", "a.yml", "flows:\n  x: [", "a.yml, line"),
        ("pipecat", "a.yaml", "initial_node: !include b.yaml", "a.yaml, line 1: tags"),
        ("rasa", "a.yml", "slots: {}", "/flows: missing_property"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(
    kind: str, name: str, text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    code, out, err = run(kind, tmp_path / name)
    assert (code, out) == (2, "")
    assert said in err


def test_files_that_are_none_or_too_many_end_with_2(tmp_path: Path) -> None:
    assert run("retell", tmp_path / "none.json")[0] == 2
    code, _, err = run("retell", FOLDER / "retell.json", FOLDER / "pipecat.json")
    assert (code, "accepted is one file" in err) == (2, True)
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK nothing")
    assert run("dialogflow-cx", broken)[0] == 2
    assert run("voiceflow", FOLDER / "retell.json")[0] == 2


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "bomb.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("agent.json", b" " * (MAX_BYTES + 1))
    code, _, err = run("dialogflow-cx", archive)
    assert (code, "unpacked" in err) == (2, True)
