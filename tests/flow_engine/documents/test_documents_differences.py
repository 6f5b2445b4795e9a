"""What differs between two versions: by ids, whatever the order; of files and of stored versions."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from flow_engine.documents import difference
from service.cli import app
from tests.api.harness import Scene, clinic, open_scene
from tests.flow_engine.documents.samples import JsonObject, aio_task
from tests.flow_engine.linting.versions import BOOKING, WELCOME, sound_version


def found(after: JsonObject, before: JsonObject | None = None) -> list[tuple[str, str, str, str]]:
    changes = difference(sound_version() if before is None else before, after)["changes"]
    return [(each["what"], each["id"], each["change"], each["path"]) for each in changes]


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same with properties, and lists of things with ids, in another order."""
    if isinstance(value, dict):
        items = [(key, shuffled(each, chance)) for key, each in cast("JsonObject", value).items()]
        chance.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        every = [shuffled(each, chance) for each in cast("list[Any]", value)]
        if all(isinstance(each, dict) and "_id" in each for each in every):
            chance.shuffle(every)
        return every
    return value


def test_order_and_what_the_server_sets_are_no_difference() -> None:  # journal: diff
    version = sound_version(
        uiMetadata={"notes": [{"_id": "a", "x": 1}, {"_id": "b", "x": 2}]},
        aiHelpers=[{"_id": "one"}, {"_id": "two"}],
    )
    for seed in range(10):
        other = shuffled(version, random.Random(seed))
        other |= {"_id": "later", "createdBy": "eve", "createdAt": "2027-01-01T00:00:00Z"}
        assert found(other, version) == []


def test_a_property_that_is_null_is_one_that_is_not_there() -> None:
    plain, null = sound_version(), sound_version()
    plain["tasks"][WELCOME].pop("channels", None)
    null["tasks"][WELCOME]["channels"] = None
    assert found(null, plain) == []
    null["tasks"][WELCOME]["channels"] = []  # no channel at all is another thing
    assert found(null, plain) == [("task", "welcome", "changed", "/tasks/welcome/channels")]


def test_tasks_variables_and_connections_are_told_by_their_ids() -> None:  # journal: diff
    after = sound_version()
    after["tasks"][WELCOME]["connectedTasks"] = ["operator", "survey"]
    after["tasks"][WELCOME]["prompt"] = "Be brief."
    after["tasks"][BOOKING]["transitionParameters"] = [{"variableId": "service", "required": False}]
    after["tasks"].append(aio_task("survey"))
    after["variables"] = [*after["variables"][1:], {"_id": "a/b", "name": "n", "type": "custom"}]
    after["globalPrompt"] = "Another."
    assert found(after) == [
        ("version", "globalPrompt", "changed", "/globalPrompt"),
        ("variable", "service", "removed", "/variables/service"),
        ("variable", "a/b", "added", "/variables/a~1b"),
        ("task", "welcome", "changed", "/tasks/welcome/prompt"),
        ("connection", "welcome->booking", "removed", "/tasks/welcome/connectedTasks/booking"),
        ("connection", "welcome->survey", "added", "/tasks/welcome/connectedTasks/survey"),
        ("transitionParameter", "service", "changed", "/tasks/booking/transitionParameters/service/required"),
        ("task", "survey", "added", "/tasks/survey"),
    ]


def test_both_sides_of_a_change_are_told() -> None:  # journal: diff
    before, after = sound_version(), sound_version()
    after["tasks"][BOOKING]["connectedTasks"] = ["welcome"]
    after["defaultLanguage"] = "it-IT"
    language, connection = difference(before, after)["changes"]
    assert (language["before"], language["after"]) == ("en-US", "it-IT")
    assert (connection["before"], connection["after"]) == ("operator", None)


def test_conditions_of_a_connection_are_the_connections_own() -> None:  # journal: diff
    before, after = sound_version(), sound_version()
    before["tasks"][WELCOME]["connectionConditions"] = {"booking": {"when": "has(vars.day)"}}
    after["tasks"][WELCOME]["connectionConditions"] = {"booking": {"when": "vars.size == 'S'"}}
    place = "/tasks/welcome/connectionConditions/booking"
    assert found(after, before) == [("connection", "welcome->booking", "changed", f"{place}/when")]
    assert found(after)[0] == ("connection", "welcome->booking", "added", place)
    after["tasks"][WELCOME]["connectionConditions"]["booking"] = {"when": "has(vars.day)", "advance": "auto"}
    assert found(after, before) == [("connection", "welcome->booking", "changed", f"{place}/advance")]


def test_what_is_within_tools_and_helpers_has_its_place() -> None:
    after = sound_version(aiHelpers=[{"_id": "h"}], mcpServers=[])
    tools = after["tasks"][BOOKING]["mcpToolSelection"][0]["selectedTools"]
    tools[0]["toolParameters"][0]["assignmentValue"] = "day"
    inside = (
        "/tasks/booking/mcpToolSelection/agenda/selectedTools/book/toolParameters/service/assignmentValue"
    )
    assert found(after) == [
        ("mcpServer", "agenda", "removed", "/mcpServers/agenda"),
        ("aiHelper", "h", "added", "/aiHelpers/h"),
        ("toolParameter", "service", "changed", inside),
    ]


def test_true_is_not_one_and_an_id_given_twice_is_compared_as_it_stands() -> None:
    twice = [{"_id": "a", "n": 1}, {"_id": "a", "n": 2}]
    assert found({"uiMetadata": {"x": True}}, {"uiMetadata": {"x": 1}}) != []
    assert found({"tasks": twice}, {"tasks": twice[::-1]}) == [("version", "tasks", "changed", "/tasks")]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["_id", "name", "tasks", "connectedTasks", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_JSON, _JSON)
def test_whatever_is_compared_both_ways_tell_of_the_same_places(one: object, other: object) -> None:
    before, after = {"tasks": one}, {"tasks": other}
    there, back = found(after, before), found(before, after)
    assert sorted(path for *_, path in there) == sorted(path for *_, path in back)
    assert found(before, before) == []


# --- on the command line ----------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["flow", "diff", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_exit_code_tells_equal_from_different_from_unreadable(tmp_path: Path) -> None:  # journal: diff
    one, other, broken = (tmp_path / name for name in ("one.json", "other.json", "broken.json"))
    one.write_text(json.dumps({"flow": {"_id": "f"}, "version": sound_version()}))
    other.write_text(json.dumps(sound_version(_id="v2")))
    assert run(str(one), str(other), "--json")[:2] == (0, '{\n  "changes": []\n}\n')
    other.write_text(json.dumps(sound_version(globalPrompt="Another.")))
    code, out, _ = run(str(one), str(other), "--json")
    assert (code, [change["path"] for change in json.loads(out)["changes"]]) == (1, ["/globalPrompt"])
    code, out, _ = run(str(one), str(other))
    assert (code, out.startswith("changed version globalPrompt /globalPrompt: ")) == (1, True)
    for text in ("{", "[]", "null"):
        broken.write_text(text)
        assert run(str(one), str(broken), "--json")[0] == 2
    code, out, err = run(str(tmp_path / "nowhere.json"), str(one))
    assert (code, out, "No such file" in err) == (2, "", True)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("Be brief.", "Be kind.", '"Be brief." → "Be kind."'),
        ("Be brief. " * 9 + "No jokes.", "Be brief. " * 9 + "No riddles.", 'No jokes." → …'),
        ("Be brief. " * 9, "Be brief. " * 9 + "x" * 99, " → …"),
    ],
)
def test_a_line_shows_where_both_sides_part(  # journal: diff
    tmp_path: Path, before: str, after: str, shown: str
) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(json.dumps(sound_version(globalPrompt=before)))
    other.write_text(json.dumps(sound_version(globalPrompt=after)))
    code, out, _ = run(str(one), str(other))
    values = out.removeprefix("changed version globalPrompt /globalPrompt: ").strip()
    assert (code, shown in values) == (1, True)
    first, second = values.split(" → ")
    assert first != second
    assert max(len(first), len(second)) <= 62


# --- over HTTP --------------------------------------------------------------------------------


async def _two_versions(scene: Scene) -> tuple[str, str, str]:
    flow = {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}
    versions = f"/v1/flows/{(await scene.post('/v1/flows', flow)).json()['id']}/versions"
    first = {k: v for k, v in clinic().items() if k != "conversationalFlowId"}
    second = {**first, "_id": "version-2", "globalPrompt": "Another."}
    await scene.post(versions, first)
    saved = await scene.post(f"{versions}?parentVersionId=version-1", second)
    assert saved.status_code == 201, saved.text
    return versions, "version-1", "version-2"


@pytest.mark.anyio
async def test_stored_versions_are_compared_and_the_listing_names_their_parents() -> None:  # journal: diff
    async with open_scene() as scene:
        versions, first, second = await _two_versions(scene)
        reply = await scene.http.get(f"{versions}/{first}/diff/{second}")
        assert reply.status_code == 200, reply.text
        assert reply.json() == difference(
            {"globalPrompt": clinic()["globalPrompt"]}, {"globalPrompt": "Another."}
        )
        assert (await scene.http.get(f"{versions}/{first}/diff/{first}")).json() == {"changes": []}
        rows = (await scene.http.get(versions)).json()
        assert {row["versionId"]: row["parentVersionId"] for row in rows} == {first: None, second: first}


@pytest.mark.anyio
async def test_an_unknown_version_on_either_side_is_not_found() -> None:
    async with open_scene() as scene:
        versions, first, _ = await _two_versions(scene)
        for pair in (f"{first}/diff/none", f"none/diff/{first}"):
            refused = await scene.http.get(f"{versions}/{pair}")
            assert (refused.status_code, refused.json()["code"]) == (404, "version_unknown")


def test_approval_is_a_change_of_its_task() -> None:  # journal: diff
    before, after = sound_version(), sound_version()
    after["tasks"][WELCOME].update(approval=True, approvalTimeout=60)
    assert found(before, after) == [
        ("task", "welcome", "changed", "/tasks/welcome/approval"),
        ("task", "welcome", "changed", "/tasks/welcome/approvalTimeout"),
    ]
