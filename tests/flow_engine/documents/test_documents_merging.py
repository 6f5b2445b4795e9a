"""Two versions of one, merged by ids: what each has changed is there, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from flow_engine.documents import Side, difference, merged, nearest_version
from service.cli import app
from tests.api.harness import clinic, open_scene
from tests.flow_engine.documents.samples import JsonObject, aio_task
from tests.flow_engine.linting.versions import BOOKING, WELCOME, sound_version


def changes(before: Any, after: Any) -> list[Any]:
    return difference(before, after)["changes"]


def same(one: Any, other: Any) -> bool:
    return changes(one, other) == []


class TestByIds:
    def test_what_each_has_changed_is_there(self) -> None:
        base, ours, theirs = (sound_version() for _ in range(3))
        ours["tasks"][WELCOME]["prompt"] = "Ours."
        ours["globalPrompt"] = "Be brief."
        theirs["tasks"][WELCOME]["description"] = "Theirs."
        theirs["tasks"].insert(1, aio_task("extra", prompt="More."))
        theirs["tasks"].reverse()
        found = merged(base, ours, theirs)
        assert found["conflicts"] == []
        both = changes(base, ours) + changes(base, theirs)
        assert sorted(map(str, changes(base, found["document"]))) == sorted(map(str, both))

    def test_what_both_changed_otherwise_is_a_conflict_with_both_sides(self) -> None:
        base, ours, theirs = (sound_version() for _ in range(3))
        ours["tasks"][WELCOME]["prompt"] = "Ours."
        theirs["tasks"][WELCOME]["prompt"] = "Theirs."
        found = merged(base, ours, theirs)
        assert found["conflicts"] == [
            {
                "path": "/tasks/welcome/prompt",
                "base": base["tasks"][WELCOME]["prompt"],
                "ours": "Ours.",
                "theirs": "Theirs.",
            }
        ]
        assert same(found["document"], ours)

    def test_what_one_removed_and_the_other_changed_stays_as_a_conflict(self) -> None:
        base, ours, theirs = (sound_version() for _ in range(3))
        gone = ours["tasks"].pop(BOOKING)
        theirs["tasks"][BOOKING]["prompt"] = "Changed."
        for found in (merged(base, ours, theirs), merged(base, theirs, ours)):
            [conflict] = found["conflicts"]
            assert conflict["path"] == f"/tasks/{gone['_id']}"
            assert None in (conflict["ours"], conflict["theirs"])
            kept: Any = found["document"]["tasks"]
            assert [task["prompt"] for task in kept if task["_id"] == gone["_id"]] == ["Changed."]

    @pytest.mark.parametrize("side", ["base", "ours", "theirs"])
    def test_a_conflict_that_is_decided_has_what_that_side_has(self, side: Side) -> None:
        base, ours, theirs = (sound_version() for _ in range(3))
        base["tasks"][WELCOME].pop("name", None)
        ours["tasks"][WELCOME].update(prompt="Ours.", name="ours")
        theirs["tasks"][WELCOME].update(prompt="Theirs.", name="theirs")
        del theirs["tasks"][BOOKING]
        ours["tasks"][BOOKING]["prompt"] = "Changed."
        chosen = {"base": base, "ours": ours, "theirs": theirs}[side]
        open_ones = merged(base, ours, theirs)["conflicts"]
        found = merged(base, ours, theirs, {each["path"]: side for each in open_ones})
        assert (len(open_ones), found["conflicts"]) == (3, [])
        assert same(found["document"], chosen)
        assert ("name" in _tasks(found)[WELCOME]) is (side != "base")
        some = merged(base, ours, theirs, {"/tasks/welcome/prompt": side})
        assert {each["path"] for each in some["conflicts"]} == {
            "/tasks/welcome/name",
            f"/tasks/{base['tasks'][BOOKING]['_id']}",
        }

    def test_the_nearest_of_several_versions_is_that_which_is_changed_least(self) -> None:
        older, old, work = (sound_version() for _ in range(3))
        for version in (old, work):
            version["globalPrompt"] = "Be brief."
        work["tasks"][WELCOME]["prompt"] = "Work."
        assert nearest_version(work, {"older": older, "old": old}) == "old"
        assert nearest_version(work, {"old": old, "older": older}) == "old"
        assert nearest_version(work, {"old": old, "same": old}) == "same"

    def test_connections_and_conditions_are_sets(self) -> None:
        base, ours, theirs = (sound_version() for _ in range(3))
        for version, task, when in ((ours, "one", "true"), (theirs, "two", "has(vars.x)")):
            version["tasks"][WELCOME]["connectedTasks"] = [task]
            version["tasks"][WELCOME]["connectionConditions"] = {task: {"when": when}}
        found = merged({**base, "tasks": base["tasks"]}, ours, theirs)
        assert found["conflicts"] == []
        welcome: Any = next(t for t in _tasks(found) if t["_id"] == "welcome")
        assert set(welcome["connectedTasks"]) == {"one", "two"}
        assert set(welcome["connectionConditions"]) == {"one", "two"}

    def test_the_same_on_both_sides_is_no_conflict_and_neither_is_the_order(self) -> None:
        base, ours, theirs = (sound_version() for _ in range(3))
        for version in (ours, theirs):
            version["tasks"].append(aio_task("new", prompt="The same."))
        theirs["tasks"].reverse()
        found = merged(base, ours, theirs)
        assert found["conflicts"] == []
        assert found["document"]["tasks"] == ours["tasks"]

    def test_what_only_theirs_has_stands_where_it_stands_there(self) -> None:
        tasks = [{"_id": name} for name in "ac"]
        more = [{"_id": name} for name in "xabyc"]
        found = merged({"tasks": tasks}, {"tasks": [*tasks, {"_id": "o"}]}, {"tasks": more})
        assert "".join(task["_id"] for task in _tasks(found)) == "xabyco"

    def test_what_the_server_sets_is_left_to_it(self) -> None:
        versions = [{"_id": name, "createdBy": name, "draft": True} for name in "abc"]
        assert merged(*versions) == {"document": {"draft": True}, "conflicts": []}


def _tasks(found: Any) -> list[Any]:
    return found["document"]["tasks"]


NAMES = st.sampled_from(["a", "b", "c"])
THINGS = st.dictionaries(
    NAMES,
    st.fixed_dictionaries(
        {}, optional={"prompt": st.integers(0, 2), "connectedTasks": st.lists(NAMES, unique=True)}
    ),
    max_size=3,
)
VERSIONS = st.builds(
    lambda things, prompt: {"tasks": [{"_id": name, **thing} for name, thing in things.items()], **prompt},
    THINGS,
    st.fixed_dictionaries({}, optional={"globalPrompt": st.sampled_from(["x", "y", "z"])}),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(VERSIONS, VERSIONS)
def test_one_side_alone_is_taken_whole(base: JsonObject, other: JsonObject) -> None:
    for found in (merged(base, other, base), merged(base, base, other), merged(base, other, other)):
        assert found["conflicts"] == []
        assert same(found["document"], other)


@settings(max_examples=120, deadline=None)
@given(VERSIONS, VERSIONS, VERSIONS)
def test_every_change_of_both_is_in_the_document_or_in_a_conflict(
    base: JsonObject, ours: JsonObject, theirs: JsonObject
) -> None:
    found = merged(base, ours, theirs)
    conflicts = [each["path"] for each in found["conflicts"]]
    done = changes(base, found["document"])
    for change in changes(base, ours) + changes(base, theirs):
        within = any(f"{change['path']}/".startswith(f"{path}/") for path in conflicts)
        below = any(f"{path}/".startswith(f"{change['path']}/") for path in conflicts)
        partly = any(each["path"] == change["path"] for each in done)
        assert change in done or within or below or partly
    assert {each["path"] for each in merged(base, theirs, ours)["conflicts"]} == set(conflicts)


class TestCommand:
    def _written(self, tmp_path: Path, **versions: JsonObject) -> list[str]:
        for name, version in versions.items():
            (tmp_path / name).write_text(json.dumps(version), encoding="utf-8")
        return [str(tmp_path / name) for name in versions]

    def test_it_prints_the_document_and_ends_by_its_conflicts(self, tmp_path: Path) -> None:
        base, ours, theirs = (sound_version() for _ in range(3))
        ours["globalPrompt"], theirs["draft"] = "Ours.", True
        files = self._written(tmp_path, base=base, ours=ours, theirs=theirs)
        done = CliRunner().invoke(app, ["flow", "merge", *files])
        assert done.exit_code == 0
        document = json.loads(done.stdout)
        assert (document["globalPrompt"], document["draft"]) == ("Ours.", True)
        theirs["globalPrompt"] = "Theirs."
        self._written(tmp_path, theirs=theirs)
        failed = CliRunner().invoke(app, ["flow", "merge", *files, "--json"])
        assert failed.exit_code == 1
        assert [each["path"] for each in json.loads(failed.stdout)["conflicts"]] == ["/globalPrompt"]
        assert "conflict /globalPrompt: " in failed.stderr

    @pytest.mark.parametrize("command", ["merge", "diff"])
    def test_integers_that_would_come_out_changed_end_with_two(
        self, tmp_path: Path, command: str
    ) -> None:  # weakness f
        files = self._written(tmp_path, base=sound_version(), theirs=sound_version(uiMetadata={"n": "PLACE"}))
        theirs = Path(files[1])
        theirs.write_text(theirs.read_text().replace('"PLACE"', "12345678901234567890123"))
        done = CliRunner().invoke(app, ["flow", command, *files[:1] * (command == "merge"), *files])
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"{theirs}:/uiMetadata/n: integer_too_large ")

    def test_what_is_no_version_ends_with_two(self, tmp_path: Path) -> None:
        files = self._written(tmp_path, base=sound_version())
        for wrong in ("missing.json", str(tmp_path)):
            assert CliRunner().invoke(app, ["flow", "merge", files[0], files[0], wrong]).exit_code == 2


@pytest.mark.anyio
async def test_stored_versions_are_merged_over_the_one_that_both_were_made_from() -> None:
    async with open_scene(clinic()) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        for name, changed in (("a", {"globalPrompt": "A."}), ("b", {"defaultLanguage": "en-US"})):
            own = {k: v for k, v in clinic(_id=name, **changed).items() if k != "conversationalFlowId"}
            url = f"/v1/flows/{flow_id}/versions?parentVersionId=version-1&tag={name}"
            assert (await scene.post(url, own)).status_code == 201
        await scene.save(flow_id, clinic(_id="alone"), tag="alone")
        url = f"/v1/flows/{flow_id}/versions/a/merge/b"
        reply = (await scene.http.get(url)).json()
        assert (reply["baseVersionId"], reply["conflicts"]) == ("version-1", [])
        assert (reply["document"]["globalPrompt"], reply["document"]["defaultLanguage"]) == ("A.", "en-US")
        newer = (await scene.http.get(f"/v1/flows/{flow_id}/versions/version-1/merge/a")).json()
        assert (newer["baseVersionId"], newer["document"]["globalPrompt"]) == ("version-1", "A.")
        apart = await scene.http.get(f"/v1/flows/{flow_id}/versions/a/merge/alone")
        assert (apart.status_code, apart.json()["code"]) == (409, "no_common_version")
        named = await scene.http.get(f"/v1/flows/{flow_id}/versions/a/merge/alone?baseVersionId=version-1")
        assert named.status_code == 200
        unknown = await scene.http.get(f"/v1/flows/{flow_id}/versions/a/merge/nobody")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "version_unknown")
        rows = (await scene.http.get(f"/v1/flows/{flow_id}/versions")).json()
        parents = {row["versionId"]: row["parentVersionId"] for row in rows}
        assert parents == {"version-1": None, "a": "version-1", "b": "version-1", "alone": None}


@pytest.mark.anyio
async def test_work_that_is_not_saved_is_merged_over_the_draft_that_both_were_made_from() -> None:
    """A draft is saved over the parent of the draft that it was made from: no list tells it from another."""
    async with open_scene(clinic()) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        sent = {k: v for k, v in clinic().items() if k != "conversationalFlowId"}

        async def drafted(name: str, **changes: Any) -> JsonObject:
            document = {**sent, "_id": name, "draft": True, **changes}
            url = f"/v1/flows/{flow_id}/versions?parentVersionId=version-1"
            assert (await scene.post(url, document)).status_code == 201
            return document

        opened = await drafted("opened", globalPrompt="Drafted.")
        await drafted("theirs", globalPrompt="Drafted.", defaultLanguage="es-ES")
        work = {**opened, "globalPrompt": "Mine."}
        url = f"/v1/flows/{flow_id}/versions/theirs/merge"
        found = (await scene.post(url, {"document": work, "madeFrom": ["opened"]})).json()
        assert (found["baseVersionId"], found["conflicts"]) == ("opened", [])
        assert (found["document"]["globalPrompt"], found["document"]["defaultLanguage"]) == ("Mine.", "es-ES")
        assert [change["path"] for change in found["changes"]] == ["/defaultLanguage"]

        again = {"document": {**work, "defaultLanguage": "it-IT"}, "madeFrom": ["opened"]}
        [conflict] = (await scene.post(url, again)).json()["conflicts"]
        assert (conflict["path"], conflict["ours"], conflict["theirs"]) == (
            "/defaultLanguage",
            "it-IT",
            "es-ES",
        )
        decided = await scene.post(url, {**again, "choices": {"/defaultLanguage": "theirs"}})
        assert decided.json()["conflicts"] == []
        assert decided.json()["document"]["defaultLanguage"] == "es-ES"

        await scene.save(flow_id, clinic(_id="alone", globalPrompt="Theirs."), tag="alone")
        alone = f"/v1/flows/{flow_id}/versions/alone/merge"
        reply = (await scene.post(alone, {"document": opened, "madeFrom": ["opened"]})).json()
        assert (reply["baseVersionId"], reply["document"]["globalPrompt"]) == ("opened", "Theirs.")
        unknown = await scene.post(url, {"document": opened, "madeFrom": ["nobody"]})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "version_unknown")
