"""`flow-engine workspace`: every command, its output and its exit status (W2, W3, W8, W10)."""

import asyncio
import io
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from adapters.models.fake_http import Received
from adapters.models.fake_openai import FakeOpenAI, WireStep
from adapters.models.scripted import CallsTools, DropsStream, Says
from flow_engine.ports.models import ToolCall
from service import workspace_run
from service.cli import app
from service.cli.workspace import SESSION
from service.workspace import Options, open_workspace, sessions, undo_changes
from tests.channels.workspace.repository import model_server


def answering(got: Received) -> WireStep:
    """`name {json}` in a line of the prompt is a call; other lines are answered."""
    messages = got.body["messages"]
    last = max(at for at, message in enumerate(messages) if message["role"] == "user")
    lines = messages[last]["content"].splitlines()
    done = sum(1 for message in messages[last:] if message["role"] == "assistant")
    if lines == ["hide"]:
        return Says("\x1b[8mhidden")
    if lines == ["break off"]:
        return DropsStream("It was ")
    if lines == ["for ever"] or (done < len(lines) and "{" in lines[done]):
        line = 'list_files {"path": "."}' if lines == ["for ever"] else lines[done]
        name, _, arguments = line.partition(" ")
        return CallsTools([ToolCall(f"c{last}_{done}", name, orjson.loads(arguments))], "I call. ")
    return Says(f"{len(messages)} messages")


@pytest.fixture(scope="module")
def model() -> Iterator[FakeOpenAI]:
    with model_server(answering) as server:
        yield server


@dataclass
class Ran:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [orjson.loads(line) for line in self.out.splitlines()]


@dataclass
class Terminal:
    root: Path

    def __call__(self, *arguments: str, status: int = 0, where: bool = True) -> Ran:
        directory = ["--dir", str(self.root)] if where else []
        ended = CliRunner().invoke(app, ["workspace", *arguments, *directory], catch_exceptions=False)
        ran = Ran(ended.exit_code, ended.stdout, ended.stderr)
        assert ran.status == status, ran
        return ran

    def result(self, *arguments: str, status: int = 0) -> Any:
        return self("run", "--json", *arguments, status=status).lines[-1]["result"]


@pytest.fixture
def workspace(model: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for folder in ("project", "home"):
        (tmp_path / folder).mkdir()
    (tmp_path / "project" / ".git").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLOW_ENGINE_GATEWAY_URL", model.base_url)
    monkeypatch.setenv("FLOW_ENGINE_WORKSPACE_MODEL", "m")
    return Terminal(tmp_path / "project")


WRITE = 'write_file {"path": "docs/a.md", "content": "one\\n"}'


def test_a_task_is_answered_on_standard_output(workspace: Terminal) -> None:  # W10
    ran = workspace("run", 'list_files {"path": "."}\nthen')
    assert ran.out == "I call. \n4 messages\n"
    assert "· list_files .: done\n" in ran.err
    assert ran.err.splitlines()[-1].startswith("[completed] session ")


class Seen(io.StringIO):
    """A terminal's output."""

    def isatty(self) -> bool:
        return True


def test_what_models_write_and_files_hold_moves_no_cursor_of_a_terminal(  # W2
    workspace: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace("run", 'write_file {"path": "a\\u001b.txt", "content": "\\u001b[2K\\n"}', "--yes-to", "all")
    (written,) = workspace.root.glob("a*.txt")
    written.write_text("\x1b[1A\n", "utf-8")
    options = Options(workspace.root)
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}", Seen())
    workspace_run.run_task(options, "hide", yes_to=[], as_json=False, resume=None, max_iterations=10)
    with closing(open_workspace(options)) as opened:
        newest, oldest = [each.id for each in opened.store.sessions()]
    sessions(options, newest, None, as_json=False)
    assert [undo_changes(options, oldest, force=force) for force in (False, True)] == [1, 0]
    seen = sys.stdout, sys.stderr
    assert all(isinstance(each, Seen) and each.getvalue().count("\\u001b") > 1 for each in seen)
    assert not any(isinstance(each, Seen) and "\x1b" in each.getvalue() for each in seen)


def test_a_task_as_lines_of_json(workspace: Terminal) -> None:  # W10
    ran = workspace("run", "--json", WRITE)
    kinds = [next(iter(line)) for line in ran.lines]
    assert kinds[-1] == "result"
    assert set(kinds) == {"content", "tool", "result"}
    result = ran.lines[-1]["result"]
    assert set(result) == {"status", "content", "session", "turn", "iterations"}
    assert (result["status"], result["iterations"], result["content"]) == ("completed", 2, "4 messages")
    assert [line["tool"]["status"] for line in ran.lines if "tool" in line] == ["rejected"], "nobody is there"


def test_how_a_task_may_end(workspace: Terminal) -> None:  # W8
    used_up = workspace("run", "--json", "for ever", "--max-iterations", "2", status=1)
    assert used_up.lines[-1]["result"]["status"] == "max_iterations"
    assert used_up.lines[-1]["result"]["iterations"] == 2
    assert used_up.lines[-2]["error"]["code"] == "max_iterations_exceeded"
    broken = workspace("run", "--json", "break off", status=1)
    assert broken.lines[-1]["result"]["status"] == "error"
    assert "the model failed" in workspace("run", "break off", status=1).err
    assert "2 iterations" in workspace("run", "for ever", "--max-iterations", "2", status=1).err


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ([], False),
        (["--yes-to", "all"], True),
        (["--yes-to", "write_file"], True),
        (["--yes-to", "delete_file,write_file:docs/**"], True),
        (["--yes-to", "shell_exec", "--yes-to", "write_file:docs/*"], True),
        (["--yes-to", "write_file:src/**"], False),
        (["--yes-to", "shell_exec"], False),
    ],
)
def test_what_is_answered_with_yes(options: Sequence[str], written: bool, workspace: Terminal) -> None:  # W2
    workspace.result(WRITE, *options)
    assert (workspace.root / "docs" / "a.md").exists() == written


def test_a_rule_that_forbids_stands_above_yes(workspace: Terminal) -> None:  # W2
    rules = workspace.root.parent / "home" / ".agentichat" / "rules.toml"
    rules.parent.mkdir()
    rules.write_text('[[rules]]\ndecision = "forbid"\ntool = "write_file"\npath = "docs/**"\n', "utf-8")
    workspace.result(WRITE, "--yes-to", "all")
    assert not (workspace.root / "docs").exists()
    rules.write_text('[[rules]]\ndecision = "perhaps"\n', "utf-8")
    for command in (("run", "x"), ("sessions",), ("undo",), ("index",)):
        refused = workspace(*command, status=2)
        assert "rules.toml" in refused.err
        assert "/rules/0/decision" in refused.err


def test_a_session_is_gone_on_with(workspace: Terminal) -> None:  # W10
    first = workspace.result("one")
    second = workspace.result("two", "--resume")
    assert (second["session"], second["content"]) == (first["session"], "4 messages")
    other = workspace.result("three")
    assert other["session"] != first["session"]
    for arguments, messages in (
        (["--resume", first["session"], "four"], 6),
        ([f"--resume={first['session']}", "five"], 8),
        (["--resume", "--max-iterations", "3", "six"], 10),
        (["--resume", "seven"], 12),
        (["eight", "--resume"], 14),
    ):
        went_on = workspace.result(*arguments)
        assert (went_on["session"], went_on["content"]) == (first["session"], f"{messages} messages"), (
            arguments
        )
    assert "there is no session" in workspace("run", "x", "--resume", "0" * 12, status=2).err
    assert workspace("run", "--resume", first["session"], status=2).out == ""
    assert SESSION.fullmatch(first["session"])


def test_a_home_that_cannot_be_written_costs_nobody_his_work(workspace: Terminal) -> None:  # W3
    (workspace.root.parent / "home" / ".agentichat" / "proxy.db").mkdir(parents=True)
    assert workspace.result("Hello")["status"] == "completed"


def test_sessions_are_listed_and_written_out(workspace: Terminal) -> None:  # W10
    assert workspace("sessions").out == ""
    first = workspace.result("Mend the *test*.\nplease")
    second = workspace.result(WRITE, "--yes-to", "all")
    listed = workspace("sessions").out.splitlines()
    assert listed[0].startswith(f"{second['session']}  m  write_file")
    assert listed[1] == f"{first['session']}  m  Mend the *test*."
    as_json = workspace("sessions", "--json").lines
    assert [each["id"] for each in as_json] == [second["session"], first["session"]]
    assert as_json[1]["metadata"]["title"] == "Mend the *test*."
    markdown = workspace("sessions", first["session"]).out
    assert markdown == (
        "# Mend the *test*.\n\n## user\n\nMend the *test*.\nplease\n\n## assistant\n\n2 messages\n"
    )
    newest = workspace("sessions", "--export", "markdown").out
    assert '## assistant\n\nI call.\n\n`write_file` {"path":"docs/a.md"' in newest
    assert '## tool (write_file)\n\n```json\n{"success":true' in newest
    exported = orjson.loads(workspace("sessions", second["session"], "--export", "json").out)
    assert exported["session"]["id"] == second["session"]
    assert [each["role"] for each in exported["messages"]] == ["user", "assistant", "tool", "assistant"]
    call = exported["messages"][1]["tool_calls"][0]
    assert exported["messages"][2]["tool_call_id"] == call["id"]
    assert all(each["created_at"] and each["turn"] for each in exported["messages"])
    assert "markdown" in workspace("sessions", "--export", "pdf", status=2).err
    assert "there is no session" in workspace("sessions", "none", status=2).err


def test_writes_are_undone(workspace: Terminal) -> None:  # W10
    assert "there is no session in this workspace" in workspace("undo", status=2).err
    result = workspace.result(WRITE, "--yes-to", "all")
    note = workspace.root / "docs" / "a.md"
    undone = workspace("undo")
    assert undone.out == "--- a/docs/a.md\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"
    assert not note.parent.exists()
    assert "nothing to undo in the last turn" in workspace("undo", status=2).err
    for name in ("session", "turn"):
        result = workspace.result(WRITE, "--yes-to", "all")
        workspace("undo", result[name])
        assert not note.exists()
    frames = workspace("run", "--json", WRITE, "--yes-to", "all").lines
    [step] = {line["tool"]["call"] for line in frames if "tool" in line}
    note.write_text("somebody's\n", "utf-8")
    refused = workspace("undo", step, status=1)
    assert (refused.out, "+somebody's" in refused.err) == ("", True)
    assert note.read_text("utf-8") == "somebody's\n"
    workspace("undo", step, "--force")
    assert not note.exists()
    assert "nothing to undo in 'none'" in workspace("undo", "none", status=2).err


def test_the_index_says_what_it_did(workspace: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:  # W10
    (workspace.root / "a.py").write_text("def total(): ...\n", "utf-8")
    assert workspace("index").lines == [{"files": 1, "changed": 1, "removed": 0, "embedded": 0}]
    monkeypatch.setenv("FLOW_ENGINE_WORKSPACE_EMBEDDING_MODEL", "e")
    assert workspace("index").lines == [{"files": 1, "changed": 0, "removed": 0, "embedded": 1}]
    found = workspace("run", "--json", 'search_semantic {"query": "total"}').lines
    results = [line["tool"]["result"] for line in found if "result" in line.get("tool", {})]
    assert [each["ranking"] for each in results] == ["embeddings"]
    monkeypatch.setenv("FLOW_ENGINE_GATEWAY_URL", "http://127.0.0.1:9")
    (workspace.root / "a.py").write_text("def other(): ...\n", "utf-8")
    assert "embedding model" in workspace("index", status=2).err


@pytest.mark.anyio
async def test_the_index_is_kept(workspace: Terminal, capsys: pytest.CaptureFixture[str]) -> None:  # W10
    def printed() -> list[Any]:
        lines.extend(orjson.loads(line) for line in capsys.readouterr().out.splitlines())
        return lines

    lines: list[Any] = []
    opened = open_workspace(Options(workspace.root))
    watching = asyncio.create_task(workspace_run.indexed(opened, watch=True))
    for path, text in (("a.txt", "one"), ("b.txt", "two"), ("a.txt", None)):
        known = len(printed())
        for number in range(400):
            if number % 40 == 0:  # the watch may not have begun yet
                place = workspace.root / path
                if text is None:
                    place.unlink(missing_ok=True)
                else:
                    place.write_text(f"{text} {number}", "utf-8")
            if len(printed()) > known:
                break
            await asyncio.sleep(0.02)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert lines[0] == {"files": 0, "changed": 0, "removed": 0, "embedded": 0} or lines[0]["files"] == 1
    assert lines[-1]["removed"] == 1


def test_rules_are_explained(workspace: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:  # W2
    monkeypatch.chdir(workspace.root)
    assert workspace("rules", "explain", "git push", where=False).out == "prompt\n  by the default table\n"
    rules = workspace.root.parent / "home" / ".agentichat" / "rules.toml"
    rules.parent.mkdir(exist_ok=True)
    rules.write_text(
        '[[rules]]\ndecision = "forbid"\ntool = "shell_exec"\ncommand = "git push"\n'
        '[[rules]]\ndecision = "allow"\ntool = "shell_exec"\ncommand = "git"\n'
        '[[rules]]\ndecision = "allow"\ntool = "write_file"\npath = "docs/**"\n',
        "utf-8",
    )

    def explained(*arguments: str) -> Any:
        return workspace("rules", "explain", "--json", *arguments, where=False).lines[0]

    forbidden = explained("git -C . push --force")
    assert forbidden["decision"] == "forbid"
    assert forbidden["rules"] == [{"decision": "forbid", "tool": "shell_exec", "command": "git push"}]
    assert explained("git status")["decision"] == "allow"
    assert explained("git status; rm x") == {"decision": "prompt", "rules": []}
    assert explained("--tool", "write_file", "docs/a/b.md")["decision"] == "allow"
    assert explained("--tool", "write_file", "src/a.py")["decision"] == "prompt"
    assert explained("--tool", "read_file", "src/a.py")["decision"] == "allow"
    (workspace.root / "docs").mkdir()
    (workspace.root / "link").symlink_to("docs")
    assert explained("--tool", "write_file", "docs/../a.md")["decision"] == "prompt"
    assert explained("--tool", "write_file", "link/a.md")["decision"] == "allow"
    outside = workspace("rules", "explain", "--tool", "write_file", "../a.md", where=False, status=2).err
    assert "leads out of the workspace" in outside
    text = workspace("rules", "explain", "git push", where=False).out
    assert text == "forbid\n  decision = 'forbid', tool = 'shell_exec', command = 'git push'\n"
    assert "shell_exec" in workspace("rules", "explain", "--tool", "none", "x", where=False, status=2).err


def test_the_demonstration_plays_offline(workspace: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:  # W10
    monkeypatch.setenv("FLOW_ENGINE_GATEWAY_URL", "http://127.0.0.1:9")
    lines = workspace("demo", "--json", where=False).lines
    tools = [line["tool"] for line in lines if "result" in line.get("tool", {})]
    assert [(each["name"], each["status"]) for each in tools] == [
        ("list_files", "done"),
        ("shell_exec", "failed"),
        ("read_file", "done"),
        ("write_file", "done"),
        ("shell_exec", "done"),
    ]
    assert [line["result"]["status"] for line in lines if "result" in line] == ["completed"]
    assert lines[-1]["undone"]["path"] == "prices.py"
    assert list(workspace.root.iterdir()) == [workspace.root / ".git"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "x", "--dir", "/none"], "no directory"),
        (["run", "x", "--max-iterations", "0"], "max-iterations"),
        (["run", "x", "--yes-to", "everything"], "everything"),
        (["run", "x", "--config", "/none/gateway.toml", "--gateway", ""], ""),
        (["run"], "task"),
        (["paint"], "paint"),
        (["run", "t\udce9"], "the task is no UTF-8"),
        (["sessions", "--dir", "d\udce9r"], "is no UTF-8"),
        (["run", "x", "--gateway", "http://127.0.0.1:99999"], "accepted is http:// or https://"),
        (["run", "x", "--gateway", "127.0.0.1"], "accepted is http:// or https://"),
    ],
)
def test_what_cannot_be_done_ends_with_two(
    arguments: Sequence[str], says: str, workspace: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:  # W10
    monkeypatch.chdir(workspace.root)
    if "--config" in arguments:
        monkeypatch.delenv("FLOW_ENGINE_GATEWAY_URL")
    assert says in workspace(*arguments, where=False, status=2).err


def test_a_gateway_and_a_model_are_named(workspace: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:  # W10
    monkeypatch.delenv("FLOW_ENGINE_WORKSPACE_MODEL")
    assert "FLOW_ENGINE_WORKSPACE_MODEL" in workspace("run", "x", status=2).err
    assert workspace.result("x", "--model", "n")["status"] == "completed"
    monkeypatch.delenv("FLOW_ENGINE_GATEWAY_URL")
    told = workspace("run", "x", "--model", "m", status=2).err
    for way in ("--gateway", "FLOW_ENGINE_GATEWAY_URL", "--config", "FLOW_ENGINE_GATEWAY_CONFIG"):
        assert way in told


def test_a_base_with_and_without_v1_and_its_key(
    workspace: Terminal, model: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:  # W9
    monkeypatch.setenv("FLOW_ENGINE_GATEWAY_KEY", "sk-gateway")
    for url in (model.origin, f"{model.origin}/", model.base_url, f"{model.base_url}/"):
        assert workspace.result("x", "--gateway", url)["status"] == "completed"
        assert model.requests[-1].path == "/v1/chat/completions"
        assert model.requests[-1].headers["authorization"] == "Bearer sk-gateway"


def test_a_key_that_no_header_can_hold_is_told(workspace: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_ENGINE_GATEWAY_KEY", "sk-é")  # W10
    assert "FLOW_ENGINE_GATEWAY_KEY cannot be sent" in workspace("run", "x", status=2).err


def test_without_a_gateway_one_is_started_on_the_file(
    workspace: Terminal, model: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:  # W10
    monkeypatch.delenv("FLOW_ENGINE_GATEWAY_URL")
    monkeypatch.delenv("FLOW_ENGINE_WORKSPACE_MODEL")
    config = workspace.root.parent / "gateway.toml"
    config.write_text(
        f'[[backends]]\nname = "b"\nkind = "openai"\nurl = "{model.base_url}"\nmodels = ["real"]\n'
        'aliases = {public = "real"}\n[assistant]\nmodel = "public"\n',
        "utf-8",
    )
    monkeypatch.chdir(workspace.root)
    assert workspace.result("x", "--config", str(config))["status"] == "completed"
    assert model.requests[-1].body["model"] == "real"
    assert sorted(each.name for each in workspace.root.iterdir()) == [".agentichat", ".git"]
    assert (workspace.root.parent / "home" / ".agentichat" / "gateway.db").exists()


def test_the_workspace_is_found_upwards_and_remembered(workspace: Terminal) -> None:  # W3
    (workspace.root / "src" / "deep").mkdir(parents=True)
    Terminal(workspace.root / "src" / "deep").result("x")
    assert (workspace.root / ".agentichat" / "workspace.db").exists()
    database = sqlite3.connect(workspace.root.parent / "home" / ".agentichat" / "proxy.db")
    rows = database.execute("SELECT root_path, detected_by FROM workspaces").fetchall()
    database.close()
    assert rows == [(str(workspace.root), "git")]
