"""`flow-engine flow import`: files, folders and archives of other systems' flows, from the command line."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli import app, importing
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


def test_files_of_one_name_in_several_folders_are_all_read(tmp_path: Path) -> None:
    for name in ("hello", "goodbye"):
        (tmp_path / name).mkdir()
        text = f"flows: {{{name}: {{description: Say {name}, steps: [{{noop: true}}]}}}}\n"
        (tmp_path / name / "flows.yml").write_text(text)
    code, out, _ = run("rasa", *(tmp_path / name / "flows.yml" for name in ("hello", "goodbye")))
    assert code == 0
    assert {"hello", "goodbye"} <= {task["_id"] for task in json.loads(out)["tasks"]}


def test_no_file_of_a_folder_takes_the_place_of_one_of_another_folder(tmp_path: Path) -> None:
    for folder, name in (("d1", "hello"), ("d2", "goodbye")):
        (tmp_path / folder).mkdir()
        text = f"flows: {{{name}: {{description: Say {name}, steps: [{{noop: true}}]}}}}\n"
        (tmp_path / folder / "flows.yml").write_text(text)
    code, out, _ = run("rasa", tmp_path / "d1", tmp_path / "d2")
    assert code == 0
    assert {"hello", "goodbye"} <= {task["_id"] for task in json.loads(out)["tasks"]}
    (tmp_path / "d2" / "flows.yml").write_text("flows: [")
    assert (
        f"not_yaml: {tmp_path.as_posix()}/d2/flows.yml, line"
        in run("rasa", tmp_path / "d1", tmp_path / "d2")[2]
    )


def test_what_two_files_say_of_one_flow_is_told(tmp_path: Path) -> None:
    flows = "flows: {one: {description: %s}, two: {description: Two}, three: {description: %s}}\n"
    (tmp_path / "a.yml").write_text(flows % ("First", "First"))
    (tmp_path / "b.yml").write_text(flows % ("Second", "Second"))
    (tmp_path / "c.yml").write_text("flows:\n")
    code, out, err = run("rasa", tmp_path)
    assert (code, out) == (2, "")
    for name in ("one", "three"):
        assert f"/flows/{name}: duplicate_key: given twice, the second time in b.yml\n" in err
    assert "/flows/two" not in err


def test_what_rasa_does_not_read_may_be_there_twice(tmp_path: Path) -> None:
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer" / "devcontainer.json").write_text("// with a comment {")
    (tmp_path / "flows.yml").write_text("flows: {one: {description: One, steps: [{noop: true}]}}\n")
    for language in ("de", "en"):
        (tmp_path / f"{language}.yml").write_text(f"labels: {{hello: {language}}}\n")
    code, out, err = run("rasa", tmp_path)
    assert (code, [each["_id"] for each in json.loads(out)["tasks"]]) == (0, ["start", "one"])
    assert err == "dropped /labels: 'labels' has no counterpart\n"


@pytest.mark.parametrize(
    ("kind", "name", "text", "said"),
    [
        (
            "dialogflow-cx",
            "intents/hello.json",
            '{"name": "hello"}',
            "an agent of Dialogflow ES: accepted is",
        ),
        (
            "rasa",
            "data/rules.yml",
            "rules: [{rule: Say hello}]",
            "stories and rules are not read: accepted are",
        ),
    ],
)
def test_what_the_system_had_before_is_told_by_its_name(
    kind: str, name: str, text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(text)
    (tmp_path / "agent.json").write_text("{}")
    code, out, err = run(kind, tmp_path)
    assert (code, out) == (2, "")
    assert said in err


def test_a_package_of_dialogflow_may_lie_in_a_folder(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "agents" / "practice")
    archive = shutil.make_archive(str(tmp_path / "agent"), "zip", tmp_path / "agents")
    for given in (tmp_path / "agents", archive):
        code, out, _ = run("dialogflow-cx", given)
        assert (code, json.loads(out)) == (0, imported("dialogflow-cx").document)


def test_of_dialogflow_one_package_is_read(tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(PACKAGE, tmp_path / name)
    code, out, err = run("dialogflow-cx", tmp_path / "one", tmp_path / "two")
    assert (code, out) == (2, "")
    assert "accepted is one" in err


def test_an_archive_with_two_files_of_one_name_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as written:
        written.writestr("a.json", "{}")
        with pytest.warns(UserWarning, match="Duplicate name"):
            written.writestr("a.json", "[]")
    code, _, err = run("retell", tmp_path / "a.zip")
    assert (code, "a.zip/a.json: given twice" in err) == (2, True)


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


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_file_longer_than_a_document_of_the_engine_is_read(suffix: str, tmp_path: Path) -> None:
    long = tmp_path / f"flow.{suffix}"
    long.write_text((FOLDER / f"pipecat.{suffix}").read_text("utf-8") + "\n" * 1_100_000)
    code, out, _ = run("pipecat", long)
    name = "pipecat" if suffix == "json" else "pipecat of today"
    assert (code, json.loads(out)) == (0, imported(name).document)


def test_every_mistake_of_every_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("flows: {x: {name: a, name: b, name: c}}\nslots: {}\nslots: {}\n")
    (tmp_path / "b.yml").write_text("flows: [")
    (tmp_path / "c.json").write_text("{")
    code, out, err = run("rasa", tmp_path)
    assert (code, out) == (2, "")
    assert err.count("/flows/x/name: duplicate_key: a.yml, line 1") == 2
    assert "/slots: duplicate_key: a.yml, line 3" in err
    assert "not_yaml: b.yml, line" in err
    assert "json_invalid: c.json: the text is not JSON" in err
    assert "scenarios" not in err


@pytest.mark.parametrize("text", ["", "# flows:\n#   x: {}\n"])
def test_of_several_files_one_without_a_document_is_passed_over(text: str, tmp_path: Path) -> None:
    (tmp_path / "patterns.yml").write_text(text)
    assert "empty: patterns.yml, line 1: the file is empty" in run("rasa", tmp_path)[2]
    (tmp_path / "flows.yml").write_text("flows: {x: {description: X, steps: [{noop: true}]}}")
    code, out, err = run("rasa", tmp_path)
    assert (code, "patterns" in err) == (0, False)
    assert [each["_id"] for each in json.loads(out)["tasks"]] == ["start", "x"]


def test_a_flow_that_stands_in_code_is_told_what_is_accepted(tmp_path: Path) -> None:
    code = tmp_path / "bot.py"
    code.write_text('"""A bot."""\n\nimport os\n\nNODE = {"name": os.name}\n')
    assert run("pipecat", code)[2].splitlines()[0].endswith("; accepted is a file of JSON or YAML")


def test_files_that_are_none_or_too_many_end_with_2(tmp_path: Path) -> None:
    assert run("retell", tmp_path / "none.json")[0] == 2
    code, _, err = run("retell", FOLDER / "retell.json", FOLDER / "pipecat.json")
    assert (code, "accepted is one file" in err) == (2, True)
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK nothing")
    assert run("dialogflow-cx", broken)[0] == 2
    assert run("voiceflow", FOLDER / "retell.json")[0] == 2


@pytest.mark.parametrize(
    ("offset", "in_directory", "byte"),
    [(6, 8, 1), (8, 10, 77), (30 + len("agent.json"), None, 0xFF)],
    ids=["encrypted", "packed in an unknown way", "damaged"],
)
def test_an_archive_that_cannot_be_unpacked_is_named(
    offset: int, in_directory: int | None, byte: int, tmp_path: Path
) -> None:
    archive = tmp_path / "agent.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("agent.json", json.dumps({"flows": ["x" * 1_000]}))
    content = bytearray(archive.read_bytes())
    content[offset] = byte
    if in_directory is not None:
        content[content.index(b"PK\x01\x02") + in_directory] = byte
    archive.write_bytes(content)
    code, out, err = run("dialogflow-cx", archive)
    assert (code, out) == (2, "")
    assert f"unreadable: {archive}: cannot be read\n" in err


def test_every_file_that_cannot_be_read_is_named_beside_what_is_wrong_in_others(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "broken.zip").write_bytes(b"PK nothing")
    code, out, err = run(
        "retell", *(tmp_path / name for name in ("n1.json", "a.json", "broken.zip", "n2.json"))
    )
    assert (code, out) == (2, "")
    for name in ("n1.json", "n2.json"):
        assert f"unreadable: {tmp_path / name}: No such file or directory\n" in err
    assert "json_invalid: a.json: " in err
    assert f"unreadable: {tmp_path / 'broken.zip'}: cannot be read\n" in err


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "bomb.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("agent.json", b" " * (MAX_BYTES + 1))
    code, _, err = run("dialogflow-cx", archive)
    assert (code, "unpacked" in err) == (2, True)


class TestFolders:
    def test_only_json_and_yaml_are_read_wherever_they_lie(self, tmp_path: Path) -> None:
        (tmp_path / "data" / "nlu").mkdir(parents=True)
        shutil.copy(FOLDER / "rasa-flows.yml", tmp_path / "data" / "nlu" / "flows.yaml")
        shutil.copy(FOLDER / "rasa-domain.yml", tmp_path / "domain.yml")
        (tmp_path / "README.md").write_text("# Not a flow: {")
        (tmp_path / "actions.py").write_bytes(b"\xff\xfe")
        (tmp_path / "folder.json").mkdir()
        code, out, _ = run("rasa", tmp_path)
        assert (code, json.loads(out)) == (0, imported("rasa").document)

    def test_what_two_files_say_of_one_key_is_put_together(self, tmp_path: Path) -> None:
        (tmp_path / "a.yml").write_text(
            "flows: {one: {description: One, steps: [{action: utter_one}]}}\n"
            "responses: {utter_one: [{text: First.}]}\n"
        )
        (tmp_path / "b.yml").write_text(
            "flows: {two: {description: Two, steps: [{action: utter_two}]}}\n"
            "responses: {utter_two: [{text: Second.}]}\n"
        )
        code, out, _ = run("rasa", tmp_path)
        tasks = json.loads(out)["tasks"]
        prompts = " ".join(task["prompt"] for task in tasks)
        assert code == 0
        assert ("First." in prompts, "Second." in prompts) == (True, True)
        assert run("rasa", tmp_path / "b.yml", tmp_path / "a.yml")[0] == 0

    def test_one_file_that_cannot_be_read_refuses_them_all_and_is_named(self, tmp_path: Path) -> None:
        shutil.copytree(PACKAGE, tmp_path / "agent")
        broken = next((tmp_path / "agent").rglob("*.json"))
        broken.write_text('{"displayName": ')
        code, out, err = run("dialogflow-cx", tmp_path / "agent")
        assert (code, out) == (2, "")
        assert broken.name in err

    def test_an_empty_folder_is_no_flow(self, tmp_path: Path) -> None:
        for kind in ("retell", "pipecat", "rasa", "dialogflow-cx"):
            code, out, err = run(kind, tmp_path)
            assert (code, out) == (2, ""), kind
            assert "Traceback" not in err


def test_all_files_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.yml", "b.yml"):
        (tmp_path / name).write_bytes(b"responses: {}  # " + b"x" * 600)
    monkeypatch.setattr(importing, "MAX_BYTES", 1_000)
    code, out, err = run("rasa", tmp_path)
    assert (code, out) == (2, "")
    assert "accepted are at most 1000 bytes in all" in err
    assert "1000 bytes" not in run("rasa", tmp_path / "a.yml")[2]


def test_a_draft_can_be_piped_on_while_the_remarks_stay_visible(tmp_path: Path) -> None:
    """The document alone on standard output, each remark a line on standard error that begins with what was
    done."""
    for name, file in (("retell", "retell.json"), ("pipecat", "pipecat.json")):
        code, out, err = run(name, FOLDER / file)
        assert code == 0
        assert json.loads(out)["draft"] is True
        assert err.strip()
        for line in err.splitlines():
            kept, pointer, _ = line.split(" ", 2)
            assert kept in {"changed", "dropped"}
            assert pointer.startswith("/")
            assert pointer.endswith(":")


def test_the_same_original_gives_the_same_draft_byte_by_byte() -> None:
    for arguments in (("retell", FOLDER / "retell.json"), ("dialogflow-cx", PACKAGE)):
        assert run(*arguments) == run(*arguments)
