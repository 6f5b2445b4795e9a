"""`flow-engine flow replay`: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from flows.sqlite_store import SqliteDatabase, SqliteFlowStore, SqliteVersionStore
from memory.connection import connect
from service.cli import app
from service.replaying import MOST_MISTAKES
from service.stores import FlowDatabase
from tests.api.harness import Scene, SettableClock, clinic, entry, needs, open_scene
from tests.redis_fixture import RedisServer

ODD = "talk <b>&amp;"


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["flow", "replay", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


async def talked(scene: Scene, *names: str) -> list[bytes]:
    """Conversations by the tag `latest`, and their recordings: the first goes to the visit."""
    flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
    found: list[bytes] = []
    for name in names:
        ids = {"conversationId": name, "contactId": f"call-{name}"}
        await scene.started(**ids, conversationalFlowVersionId=..., flowId=flow, tag="latest")
        write = entry("var_string", "cardio", contactId=f"call-{name}")
        quoted = name.replace("&", "%26")
        await scene.written(write, {**write, "varId": "var_boolean", "value": True}, conversation=quoted)
        await scene.changed("visit" if name == names[0] else "operator", **ids)
        scene.clock.advance(seconds=1)
        found.append((await scene.http.get(f"/v1/conversations/{quoted}/recording")).content)
    return found


@pytest.fixture(scope="module")
def recordings() -> list[bytes]:
    async def record() -> list[bytes]:
        async with open_scene(clinic()) as scene:
            return await talked(scene, ODD, "conv-2", "conv-3", "conv-4")

    return asyncio.run(record())


@pytest.fixture
def file(tmp_path: Path, recordings: list[bytes]) -> Path:
    path = tmp_path / "recordings.jsonl"
    path.write_bytes(b"\n".join([*recordings[:2], b"", *recordings[2:]]) + b"\n")
    return path


def version(directory: Path, **changes: Any) -> Path:
    document = clinic(_id="draft-1", draft=True, **changes)
    path = directory / "version.json"
    path.write_bytes(orjson.dumps(document))
    return path


def guarded(directory: Path) -> Path:
    tasks = clinic()["tasks"]
    tasks[1] |= {"transitionParameters": needs("var_phone"), "prompt": "<script>alert(1)</script>"}
    return version(directory, tasks=tasks)


def test_what_differs_is_told_line_by_line(tmp_path: Path, file: Path) -> None:  # journal: replay
    code, out, err = run(guarded(tmp_path), "--conversations", file)
    first, share, *rest = out.splitlines()
    assert (code, err) == (0, "")
    assert first.startswith("4 conversations, 3 on the same path, 1 on another path, 1 with new refusals, ")
    assert share == "25 % take another path"
    assert f"  {ODD}: other path at 3: Visita Perché → reception / missing_variables; " in rest[0]
    code, out, _ = run(version(tmp_path), "--conversations", file)
    assert (code, len(out.splitlines())) == (0, 2)


def test_json_is_the_report(tmp_path: Path, file: Path) -> None:
    code, out, _ = run(guarded(tmp_path), "--conversations", file, "--json")
    report = json.loads(out)
    assert (code, report["summary"]["otherPath"], len(report["conversations"])) == (0, 1, 4)
    assert set(report["summary"]) == {
        *("conversations", "samePath", "otherPath", "newRefusals", "variablesGone", "promptsDiffer"),
    }


@pytest.mark.parametrize(("most", "code"), [(0, 1), (24.9, 1), (25, 0), (100, 0)])
def test_more_than_the_accepted_share_on_another_path_is_1(
    tmp_path: Path, file: Path, most: float, code: int
) -> None:
    assert run(guarded(tmp_path), "--conversations", file, "--fail-over", most)[0] == code


class Page(HTMLParser):
    """Its tags, and every attribute that may lead somewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.links, self.text = list[str](), list[str](), ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [name for name, _ in attrs if name in ("src", "href", "srcset", "action", "onclick")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_beside_it_and_escapes_every_text(tmp_path: Path, file: Path) -> None:
    code, out, _ = run(guarded(tmp_path), "--conversations", file, "--html", "--fail-over", 100)
    page = Page(out)
    assert (code, page.links) == (0, [])
    assert not {"script", "link", "img", "iframe", "b1"} & set(page.tags)
    assert ODD in page.text
    assert "+<script>alert(1)</script>" in page.text, "the prompt's difference, as text"
    assert page.tags.count("b") == 6, "the sums"
    assert not re.search(r"url\(|@import|https?:", out)
    assert "prefers-color-scheme: dark" in out
    assert "default-src 'none'" in out
    assert "None: every one takes its path" in run(version(tmp_path), "--conversations", file, "--html")[1]


def test_an_end_of_the_file_that_is_no_recording_is_2(tmp_path: Path, file: Path) -> None:
    with file.open("ab") as lines:
        lines.write(b'{"format": "flow-engine-recording", "formatVersion": 9}\n')
    code, out, err = run(version(tmp_path), "--conversations", file)
    assert (code, out) == (2, "")
    assert f"{file}:6: /formatVersion literal_error: " in err


def test_every_line_that_is_no_recording_is_told_at_once(tmp_path: Path, recordings: list[bytes]) -> None:
    file = tmp_path / "mixed.jsonl"
    file.write_bytes(b"\n".join([recordings[0], b"{", b'{"formatVersion": 9}', recordings[1], b"[]"]))
    code, out, err = run(version(tmp_path), "--conversations", file)
    assert (code, out) == (2, "")
    for place in ("2: / ", "3: /formatVersion literal_error: ", "3: /entries missing: ", "5: / "):
        assert f"{file}:{place}" in err
    assert f"{file}:4: " not in err

    file.write_bytes(b"{}\n" * 1_000)
    code, _, err = run(version(tmp_path), "--conversations", file)
    assert (code, len(err.splitlines())) == (2, MOST_MISTAKES)


def test_a_recording_over_several_lines_is_told_what_is_accepted(
    tmp_path: Path, recordings: list[bytes]
) -> None:  # journal: replay
    file = tmp_path / "pretty.json"
    file.write_text(json.dumps(json.loads(recordings[0]), indent=2))
    code, _, err = run(version(tmp_path), "--conversations", file)
    assert code == 2
    assert err.splitlines()[0].endswith("; accepted is one whole recording on each line")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{", b"[]", b"\xff"])
def test_a_file_without_recordings_is_2(tmp_path: Path, content: bytes) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(content)
    code, _, err = run(version(tmp_path), "--conversations", empty)
    assert code == 2
    assert str(empty) in err


def test_a_recording_whose_requests_do_not_fit_is_2(tmp_path: Path, recordings: list[bytes]) -> None:
    first = json.loads(recordings[0])
    broken = tmp_path / "broken.jsonl"
    for place, value in (("task", 7), ("contactId", None)):
        entries = [each | {"input": {**each["input"]}} for each in first["entries"]]
        entries[2]["input"][place] = value
        broken.write_text(json.dumps({**first, "entries": entries}))
        code, _, err = run(version(tmp_path), "--conversations", broken)
        assert code == 2
        assert f"{broken}:1: /entries/2/input" in err


def test_a_version_that_cannot_run_is_2_with_every_error(tmp_path: Path, file: Path) -> None:
    code, _, err = run(version(tmp_path, firstTask="nowhere", channels=[]), "--conversations", file)
    assert code == 2
    assert "/firstTask: unknown_task" in err
    assert "/mandatoryChannels/0: " in err
    for missing in (tmp_path / "missing.json", file):
        assert run(missing, "--conversations", file)[0] == 2
    assert "No such file" in run(version(tmp_path), "--conversations", tmp_path / "missing")[2]


@pytest.mark.parametrize(
    "arguments",
    [(), ("--conversations", "a", "--from", "b"), ("--from", "b", "--json", "--html"), ("--fail-over", 101)],
)
def test_what_cannot_be_meant_is_2(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    assert run(version(tmp_path), *arguments)[0] == 2


def test_without_redis_nothing_is_stored_that_it_could_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("FLOW_ENGINE_REDIS_URL", raising=False)
    code, _, err = run(version(tmp_path), "--from", "latest")
    assert code == 2
    assert "FLOW_ENGINE_REDIS_URL" in err


def test_stored_conversations_of_a_tag_are_read_where_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_redis: Callable[[], RedisServer]
) -> None:
    server, data = start_redis(), tmp_path / "data"
    url = server.url
    data.mkdir()

    async def record() -> None:
        database = SqliteDatabase(data)
        flows = FlowDatabase(database, SqliteFlowStore(database), SqliteVersionStore(database))
        clock = SettableClock(datetime.now(UTC))  # as the command has it
        async with open_scene(clinic(), memory=connect(url), flows=flows, clock=clock) as scene:
            await talked(scene, "conv-1", "conv-2", "conv-3")
            await scene.end(conversationId="conv-2", contactId="call-conv-2")
            for _ in range(3):
                scene.clock.advance(seconds=2)
                await scene.work()

    asyncio.run(record())
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(data))
    monkeypatch.setenv("FLOW_ENGINE_REDIS_URL", url)
    code, out, _ = run(guarded(tmp_path), "--from", "latest", "--last", 2, "--json")
    assert (code, [row["conversationId"] for row in json.loads(out)["conversations"]]) == (
        0,
        ["conv-3", "conv-2"],
    )
    assert json.loads(run(guarded(tmp_path), "--from", "latest", "--json")[1])["summary"]["otherPath"] == 1
    with server.client() as redis:  # forgets the one that has ended
        redis.delete(*redis.keys("{default:conv-2}*"))
    code, out, _ = run(guarded(tmp_path), "--from", "latest", "--json")
    assert [row["conversationId"] for row in json.loads(out)["conversations"]] == [
        "conv-3",
        "conv-2",
        "conv-1",
    ]
    code, out, _ = run(version(tmp_path), "--from", "latest", "--as-test", "conv-2")
    assert (code, "operator" in out) == (0, True)
    code, _, err = run(version(tmp_path), "--from", "nobodys")
    assert code == 2
    assert "tag 'nobodys': there is no conversation to replay" in err
