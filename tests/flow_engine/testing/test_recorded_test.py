"""A recorded conversation as a flow test: it passes on the version that it ran on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from typer.testing import CliRunner

from flow_engine.ports.outbound import OutboundFailed, OutboundReply
from service.cli import app
from service.scenarios import RunOptions, run_files
from tests.api.harness import HANDLER, Scene, clinic, entry, open_scene, over_many_contacts
from tests.api.test_history_at import step
from tests.flow_engine.documents.samples import JsonObject
from tests.flow_engine.listening.test_mining import MINE, Model, says, working_on

pytestmark = pytest.mark.anyio


def as_test(directory: Path, recording: bytes, document: JsonObject) -> Any:
    """What `--as-test` prints, played on the document: the scenario, and what failed."""
    version, file = directory / "version.json", directory / "recordings.jsonl"
    version.write_bytes(orjson.dumps(document))
    file.write_bytes(recording + b"\n")
    arguments = ["flow", "replay", str(version), "--conversations", str(file), "--as-test", "conv-1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def played(directory: Path, text: str) -> Any:
    story = directory / "story.yaml"
    story.write_text(text, encoding="utf-8")
    [file] = run_files([story], RunOptions(flow=directory / "version.json")).files
    assert not file.mistakes, file.mistakes
    return file.scenarios[0].played.failure


async def recorded(scene: Scene) -> bytes:
    return (await scene.http.get("/v1/conversations/conv-1/recording")).content


@pytest.mark.parametrize("seed", range(4))
async def test_it_passes_on_its_own_version(tmp_path: Path, seed: int) -> None:  # journal: as-test
    chance = random.Random(seed)
    answers = (OutboundReply(200, b"true"), OutboundReply(200, b"false"), OutboundFailed("away"))
    verdicts = [chance.choice(answers) for _ in range(60)]
    document = over_many_contacts() if seed % 2 else clinic()
    async with open_scene(document, answers={HANDLER: verdicts}) as scene:
        for number in range(30):
            scene.clock.advance(seconds=chance.choice([0.25, 40, 300]))
            await step(scene, chance, number)
            if chance.random() < 0.3:
                await working_on(scene, says({"var_string": f"s{number}", "var_number": number})).mine(MINE)
        recording = await recorded(scene)
    text = await in_a_thread(as_test, tmp_path, recording, document)
    failure = await in_a_thread(played, tmp_path, text)
    assert failure is None, (failure, text)


async def in_a_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """The commands run a loop of their own."""
    import anyio.to_thread  # noqa: PLC0415

    return await anyio.to_thread.run_sync(function, *arguments)


@pytest.fixture
async def visit() -> bytes:
    async with open_scene(clinic()) as scene:
        await scene.started(contact={"callerId": "+390612345678"}, tenant={"timezone": "Europe/Rome"})
        await scene.change("visit")
        scene.clock.advance(minutes=2)
        await scene.say("m-1", "It is the second: no", language="it-IT")
        await working_on(scene, says({"var_string": "no"}, "greeted")).mine(MINE)
        await scene.written(entry("var_boolean", True))
        await scene.changed("visit")
        await scene.end(reason="hangup")
        return await recorded(scene)


async def test_it_reads_like_one_that_was_written(tmp_path: Path, visit: bytes) -> None:
    text = await in_a_thread(as_test, tmp_path, visit, clinic())
    [scenario] = yaml.safe_load(text)["scenarios"]
    assert (scenario["start"], scenario["tenant"]) == ("2026-01-15T09:30:00Z", {"timezone": "Europe/Rome"})
    kinds = [next(iter(each)) for each in scenario["steps"] if "expect" not in each]
    assert kinds == ["contact", "change_task", "wait", "say", "memory", "change_task", "end_contact"]
    said = next(each["say"] for each in scenario["steps"] if "say" in each)
    assert said["model"] == {"values": {"a string": "no"}}
    assert {"expect": {"refused": "missing_variables", "task": "reception"}} in scenario["steps"]
    assert scenario["steps"][-1] == {"expect": {"memory": {"a string": "no", "a boolean": True}}}
    assert await in_a_thread(played, tmp_path, text) is None


async def test_it_fails_where_another_version_takes_another_path(tmp_path: Path, visit: bytes) -> None:
    draft = clinic()
    draft["tasks"][1] |= {"name": "examination", "transitionParameters": [], "connectedTasks": []}
    text = await in_a_thread(as_test, tmp_path, visit, draft)
    assert "change_task: examination" in text, "in the names of the version that it is for"
    failure = await in_a_thread(played, tmp_path, text)
    assert failure.kind == "expect"
    assert failure.messages[0].startswith("refused: expected missing_variables, but change_task went through")


async def test_an_end_after_the_time_limit_asked_no_handler(tmp_path: Path) -> None:  # journal: as-test
    document = over_many_contacts()
    async with open_scene(document, answers={HANDLER: [OutboundReply(200, b"false")]}) as scene:
        await scene.started()
        scene.clock.advance(hours=3)
        assert (await scene.end()).json()["status"] == "closed"
        recording = await recorded(scene)
    text = await in_a_thread(as_test, tmp_path, recording, document)
    assert "closes" not in text
    assert await in_a_thread(played, tmp_path, text) is None


async def test_a_sensitive_value_is_replaced(tmp_path: Path) -> None:
    document = clinic()
    document["variables"][0]["sensitive"] = True
    async with open_scene(document) as scene:
        await scene.started()
        await scene.say("m-1", "My name is Needle")
        await working_on(scene, says({"var_string": "Needle"})).mine(MINE)
        await scene.written(entry("var_boolean", True))
        await scene.changed("visit")
        recording = await recorded(scene)
    text = await in_a_thread(as_test, tmp_path, recording, document)
    assert "Needle" not in text
    assert await in_a_thread(played, tmp_path, text) is None


async def test_it_tells_how_sure_a_model_was(tmp_path: Path) -> None:
    answer = {"values": {"var_string": "Ada", "var_number": 3}, "confidence": {"var_string": 0.85}}
    async with open_scene(clinic()) as scene:
        await scene.started()
        await scene.say("m-1", "I am Ada")
        await working_on(scene, Model(lambda call: {**answer, "checkpoints": []})).mine(MINE)
        await scene.written(entry("var_boolean", True))
        await scene.changed("visit")
        recording = await recorded(scene)
    text = await in_a_thread(as_test, tmp_path, recording, clinic())
    [scenario] = yaml.safe_load(text)["scenarios"]
    [said] = [each["say"] for each in scenario["steps"] if "say" in each]
    by_name = {"values": {"a string": "Ada", "a number": 3}, "confidence": {"a string": 0.85}}
    assert said["model"] == by_name
    assert await in_a_thread(played, tmp_path, text) is None


@pytest.mark.parametrize(
    ("change", "told"), [({"conversationId": "other"}, "conv-1"), ({"start": {}}, "kept")]
)
async def test_what_is_not_there_or_not_whole_is_2(
    tmp_path: Path, visit: bytes, change: JsonObject, told: str
) -> None:
    version, file = tmp_path / "version.json", tmp_path / "recordings.jsonl"
    version.write_bytes(orjson.dumps(clinic()))
    file.write_text(json.dumps({**json.loads(visit), **change}))
    arguments = ["flow", "replay", str(version), "--conversations", str(file), "--as-test", "conv-1"]
    result = await in_a_thread(CliRunner().invoke, app, arguments)
    assert result.exit_code == 2
    assert told in result.stderr
