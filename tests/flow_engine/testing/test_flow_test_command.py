"""`flow-engine flow test`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as Xml

import orjson
import pytest
from typer.testing import CliRunner

from flow_engine.documents import DocumentLimits
from flow_engine.errors import CorrectTheInput
from flow_engine.testing.bench import START
from flow_engine.testing.format import ExpectBody, Scenario, ScenarioFile
from flow_engine.use_cases.submissions import Submissions
from service.cli import app
from service.scenarios import run_tests
from system_prompts.loader import load_system_prompts
from tests.api.harness import clinic
from tests.flow_engine.testing.scene import ORDER, ROOT, SAMPLES

PASSING = "- {name: goodbye, steps: [{change_task: goodbye}]}\n"
FAILING = "- name: to the <moon>\n  steps:\n    - change_task: moon\n"
PAGE = (ROOT / "docs" / "flow-tests.md").read_text(encoding="utf-8")


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["flow", "test", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def story(directory: Path, *scenarios: str, name: str = "story.yaml", flow: object = ORDER) -> Path:
    file = directory / name
    file.write_text(f"flow: {flow}\nscenarios:\n" + "".join(scenarios), encoding="utf-8")
    return file


def test_all_passed_is_0(tmp_path: Path) -> None:
    code, out, err = run(story(tmp_path, PASSING))
    assert (code, err) == (0, "")
    assert re.search(r"^  ✓ goodbye \(\d+ ms\)$", out, re.MULTILINE)
    assert re.search(r"^1 passed, 0 failed, \d+ ms$", out, re.MULTILINE)


def test_a_failure_is_1_and_told_with_file_and_line(tmp_path: Path) -> None:
    file = story(tmp_path, PASSING, FAILING)
    code, out, _ = run(file)
    assert code == 1
    assert re.search(r"^  ✗ to the <moon> \(\d+ ms\)$", out, re.MULTILINE)
    assert f"      {file}:6: change_task\n        refused with task_unknown: " in out
    assert "1 passed, 1 failed" in out


def test_too_little_coverage_is_1(tmp_path: Path) -> None:
    file = story(tmp_path, PASSING)
    assert run(file, "--min-task-coverage", 22, "--min-transition-coverage", 3)[0] == 0
    code, out, _ = run(file, "--min-task-coverage", 23)
    assert code == 1
    assert "task coverage is 22.2 %, the minimum is 23 %" in out
    code, out, _ = run(file, "--min-transition-coverage", 3.2)
    assert code == 1
    assert "transition coverage is 3.1 %, the minimum is 3.2 %" in out


def test_an_unreadable_file_is_2_and_the_others_are_played(tmp_path: Path) -> None:
    broken = story(tmp_path, "- {name: a, steps: [{jump: 1}]}\n", name="broken.yaml")
    code, out, err = run(broken, tmp_path / "missing.yaml", story(tmp_path, FAILING))
    assert code == 2
    assert "0 passed, 1 failed" in out
    first, second = err.splitlines()
    assert first.startswith(f"{broken}:3: /scenarios/0/steps/0 union_tag_not_found: a step is a mapping")
    assert second == f"{tmp_path / 'missing.yaml'}:1: / unreadable: No such file or directory"


def test_a_flow_that_cannot_be_used_is_2_with_every_error(tmp_path: Path) -> None:
    sample = json.loads(ORDER.read_text())
    sample["version"]["firstTask"] = "nowhere"
    sample["version"]["channels"].append("fax")
    (tmp_path / "flow.json").write_text(json.dumps(sample))
    code, _, err = run(story(tmp_path, PASSING, flow="flow.json"))
    assert code == 2
    assert "story.yaml:1: /flow flow_unusable: " in err
    assert "/version/firstTask: unknown_task" in err
    assert "/version/channels/2: not_allowed" in err


def test_a_flow_that_cannot_be_used_or_is_missing_hides_no_mistake_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "flow.json").write_text(json.dumps(clinic(firstTask="nowhere")))
    twice = PASSING + PASSING + "- {name: a, steps: [{jump: 1}]}\n"
    _, _, err = run(story(tmp_path, twice, flow="flow.json"))
    for part in ("/firstTask: unknown_task", "duplicate_name", "union_tag_not_found"):
        assert part in err
    (tmp_path / "story.yaml").write_text("scenarios:\n" + twice)
    _, _, err = run(tmp_path / "story.yaml")
    for part in ("'flow' is missing", "duplicate_name", "union_tag_not_found"):
        assert part in err


def test_an_integer_of_the_flow_that_would_be_another_is_2(tmp_path: Path) -> None:  # weakness f
    sample = json.loads(ORDER.read_text())
    sample["version"]["uiMetadata"] = {"n": "PLACE"}
    (tmp_path / "flow.json").write_text(json.dumps(sample).replace('"PLACE"', "9" * 30))
    code, _, err = run(story(tmp_path, PASSING, flow="flow.json"))
    assert code == 2
    assert "/version/uiMetadata/n: integer_too_large" in err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        ("{", "json_invalid"),
        ("[]", "a version is a JSON object"),
        (json.dumps(clinic(draft=True)), "is a draft: drafts are kept and listed, only saved versions run; "),
        (json.dumps(clinic(draft=True)), "accepted: a version saved with draft: false"),
        ("draft: false\ntasks: []\n", "flow.json:/: json_invalid the text is not JSON: "),
        ("[]", "flow.json:/: wrong_type a version is a JSON object"),
    ],
)
def test_no_flow_that_runs_is_2(tmp_path: Path, content: str | None, told: str) -> None:
    if content is not None:
        (tmp_path / "flow.json").write_text(content)
    code, out, err = run(story(tmp_path, PASSING, flow="flow.json"))
    assert code == 2
    assert "0 passed, 0 failed" in out
    assert told in err


def test_a_flow_must_be_named(tmp_path: Path) -> None:
    file = tmp_path / "story.yaml"
    file.write_text("scenarios:\n" + PASSING)
    code, _, err = run(file)
    assert code == 2
    assert "/flow missing: 'flow' is missing" in err
    assert run(file, "--flow", ORDER)[0] == 0


def test_a_version_document_serves_as_well_as_a_sample_file(tmp_path: Path) -> None:
    (tmp_path / "version.json").write_text(json.dumps(clinic()))
    visit = "- {name: a, steps: [{change_task: operator}, {expect: {status: routing}}]}\n"
    assert run(story(tmp_path, visit, flow="version.json"))[0] == 0
    assert run(story(tmp_path, visit), "--flow", tmp_path / "version.json")[0] == 0


def test_names_choose_scenarios(tmp_path: Path) -> None:
    file = story(tmp_path, PASSING, FAILING)
    assert run(file, "-k", "GOOD")[0] == 0
    assert run(file, "-k", "moon")[0] == 1
    code, _, err = run(file, "-k", "sun")
    assert code == 2
    assert "no scenario has 'sun' in its name" in err


def test_json_tells_everything(tmp_path: Path) -> None:
    broken = story(tmp_path, "- {name: a}\n", name="broken.yaml")
    code, out, err = run(story(tmp_path, PASSING, FAILING), broken, "--json", "--min-task-coverage", 50)
    told = json.loads(out)
    assert (code, err) == (2, "")
    assert (told["passed"], told["failed"], len(told["shortfalls"])) == (1, 1, 1)
    passed, failed = told["files"][0]["scenarios"]
    assert (passed["name"], passed["line"], passed["passed"], passed["failure"]) == ("goodbye", 3, True, None)
    assert (failed["line"], failed["failure"]["line"], failed["failure"]["step"]) == (4, 6, "change_task")
    assert failed["failure"]["messages"][0].startswith("refused with task_unknown")
    assert told["files"][1]["mistakes"][0]["pointer"] == "/scenarios/0/steps"
    [flow] = told["flows"]
    assert flow["versionId"] == "order-v1"
    assert flow["tasks"]["reached"] == 2
    assert "welcome → take order" in flow["transitions"]["leftOut"]


def test_junit_has_a_suite_a_file_and_no_character_that_xml_lacks(tmp_path: Path) -> None:
    odd = '- {name: "a\\u0001b", steps: [{expect: {task: goodbye}}]}\n'
    broken = story(tmp_path, "- {name: a}\n", name="broken.yaml")
    target = tmp_path / "junit.xml"
    assert run(story(tmp_path, PASSING, FAILING, odd), broken, "--junit", target)[0] == 2
    root = Xml.parse(target).getroot()
    assert {key: root.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "4",
        "failures": "2",
        "errors": "1",
    }
    first, second = root
    assert [case.get("name") for case in first] == ["goodbye", "to the <moon>", "a\ufffdb"]
    failure = first[1].find("failure")
    assert failure is not None
    assert (failure.get("message") or "").endswith("story.yaml:6: change_task")
    assert (failure.text or "").startswith("refused with task_unknown")
    assert second[0].find("error") is not None


def test_a_junit_file_that_cannot_be_written_is_2(tmp_path: Path) -> None:
    code, _, err = run(story(tmp_path, PASSING), "--junit", tmp_path / "no" / "junit.xml")
    assert code == 2
    assert "No such file or directory" in err


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the stores of a service nor its Redis are touched, whatever is set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOW_ENGINE_REDIS_URL", "redis://127.0.0.1:1")
    file = story(tmp_path, PASSING)
    assert run(file)[0] == 0
    assert list(tmp_path.iterdir()) == [file]


# --- the page -------------------------------------------------------------------------------------


def example() -> str:
    return PAGE.partition("```yaml\n")[2].partition("```")[0]


@pytest.fixture
def beside_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(SAMPLES / "order.en.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_of_the_page_passes(beside_the_sample: Path) -> None:
    Path("buying.yaml").write_text(example(), encoding="utf-8")
    code, out, err = run("buying.yaml")
    assert (code, err) == (0, ""), out


def test_what_the_page_shows_is_what_is_told(beside_the_sample: Path) -> None:
    shown = PAGE.partition("```\nbuying.yaml")[2].partition("```")[0]
    Path("buying.yaml").write_text(
        "flow: order.en.json\nscenarios:\n  - name: A caller buys tea\n    steps:\n"
        "      - change_task: take order\n      - change_task: delivery\n"
    )
    _, out, _ = run("buying.yaml")
    told = re.sub(r"\(\d+ ms\)", "(7 ms)", out)
    assert told.startswith("buying.yaml" + shown)


def test_the_page_has_every_key_and_option() -> None:
    keys = {*ScenarioFile.model_fields, *Scenario.model_fields, *ExpectBody.model_fields}
    steps = {"contact", "utterance", "memory", "change_task", "human_task", "end_contact", "wait", "expect"}
    options = {"--flow", "-k", "--min-task-coverage", "--min-transition-coverage", "--json", "--junit"}
    first_cells = " ".join(re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE))
    for key in keys | steps | options:
        assert re.search(rf"`{key}\b", first_cells), key


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (
            {"resultMapping": {"var_custom": "$.appointment"}},
            "result_not_mapped: the tool's resultMapping finds nothing in this result: var_custom: "
            "$.appointment",
        ),
        ({}, "result_not_mapped: the tool's resultMapping is empty: a step `memory` writes"),
        ({"when": "false"}, "tool_unknown: the task offers no tool; 'find' is offered when false"),
    ],
)
def test_a_tool_that_writes_nothing_is_told_with_what_it_lacks(
    tmp_path: Path, parts: dict[str, object], told: str
) -> None:  # resultMapping
    document = clinic()
    tool = {"toolName": "find", "toolParameters": [], **parts}
    document["mcpServers"].append(
        {"name": "agenda", "url": "https://x.example.com", "includedTools": [{"toolName": "find"}]}
    )
    first = next(task for task in document["tasks"] if task["_id"] == document["firstTask"])
    first["mcpToolSelection"] = [{"mcpServerName": "agenda", "selectedTools": [tool]}]
    (tmp_path / "flow.json").write_text(json.dumps(document))
    step = "- {name: a, steps: [{tool: {name: find, result: {id: 7}}}]}\n"
    _, out, _ = run(story(tmp_path, step, flow="flow.json"))
    assert told in out


def test_scenarios_that_come_with_a_request_are_played_for_so_long() -> None:
    checks = Submissions(load_system_prompts(), DocumentLimits(), lambda: "version")
    version = orjson.dumps(orjson.loads(ORDER.read_bytes())["version"])
    checked = checks.check(version, flow_id="order", created_by="test", now=START)
    tests = b"scenarios: [{name: a, steps: [expect: {task: welcome}]}]"
    assert run_tests(checked, "order", tests)["passed"] == 1
    with pytest.raises(CorrectTheInput) as refused:
        run_tests(checked, "order", tests, most_s=0)
    assert refused.value.code == "tests_too_long"


def test_scenarios_that_nobody_waits_for_any_more_end() -> None:  # F42
    """A process that was to stop went on for as long as they took, a minute at most."""
    version = orjson.loads(ORDER.read_bytes())["version"]
    checks = Submissions(load_system_prompts(), DocumentLimits(), lambda: "version")
    checked = checks.check(orjson.dumps(version), flow_id="order", created_by="test", now=START)
    steps = "  - expect: {task: welcome}\n" * 2_000
    tests = "".join(f"- name: s{number}\n  steps:\n{steps}" for number in range(20))
    ends: list[Callable[[], object]] = []
    with ThreadPoolExecutor(1) as thread:
        played = thread.submit(run_tests, checked, "order", f"scenarios:\n{tests}".encode(), ends=ends)
        while not ends:
            time.sleep(0.001)
        ends[0]()
        with pytest.raises(asyncio.CancelledError):
            played.result()
