"""Writes and deletes are kept, and taken back by step, turn or session (W10)."""

import os
from pathlib import Path
from typing import Any

import pytest

from channels.workspace import undo as undoing
from channels.workspace.undo import Restored, diff, keep_blob, undo
from flow_engine.errors import CallTheOperator, LookElsewhere, ReloadAndDecide
from flow_engine.ports.models import ToolCall
from tests.channels.workspace.workspace_world import World, git, opened
from tests.timing import takes_less_than

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with opened(tmp_path) as made:
        yield made


def back(world: World, name: str | None = None, *, force: bool = False) -> list[Restored]:
    return undo(world.workspace.root, world.workspace.store, name, force=force)


def text(world: World, path: str) -> str | None:
    place = world.root / path
    return place.read_text("utf-8") if place.exists() else None


async def write(world: World, path: str, content: str, mode: str = "overwrite") -> None:
    assert (await world.call("write_file", path=path, content=content, mode=mode))["success"]


async def test_the_last_turn_is_taken_back_and_only_it(world: World) -> None:  # W10
    await write(world, "a.txt", "one\n", "create")
    world.turn("t2")
    await write(world, "a.txt", "two\n")
    await write(world, "b.txt", "new\n", "create")
    restored = back(world)
    assert {each.path for each in restored} == {"a.txt", "b.txt"}
    assert (text(world, "a.txt"), text(world, "b.txt")) == ("one\n", None)
    assert "-two\n+one\n" in restored[0].diff
    assert restored[1].diff.startswith("--- a/b.txt\n+++ /dev/null\n")
    back(world)  # the turn before it is the last one now
    assert text(world, "a.txt") is None
    with pytest.raises(LookElsewhere, match="nothing_to_undo"):
        back(world)


async def test_a_step_is_taken_back_by_its_call(world: World) -> None:  # W10
    await write(world, "a.txt", "a\n", "create")
    await write(world, "b.txt", "b\n", "create")
    await world.call("delete_file", path="a.txt")
    assert [each.path for each in back(world, "t1-3")] == ["a.txt"]
    assert (text(world, "a.txt"), text(world, "b.txt")) == ("a\n", "b\n")
    assert [each.path for each in back(world, "t1-2")] == ["b.txt"]
    assert text(world, "b.txt") is None


async def test_a_session_is_taken_back_whole(world: World) -> None:  # W10
    (world.root / "old.txt").write_text("old\n", "utf-8")
    await write(world, "old.txt", "x\n")
    world.turn("t2")
    await write(world, "old.txt", "y\n", "append")
    await write(world, "new/deep/file.txt", "n\n", "create")
    world.turn("t3")
    await world.call("delete_file", path="old.txt")
    assert len(back(world, world.session)) == 2
    assert text(world, "old.txt") == "old\n"
    assert not (world.root / "new").exists()


async def test_folders_that_hold_something_else_stay(world: World) -> None:  # W10
    await write(world, "new/deep/file.txt", "n\n", "create")
    (world.root / "new" / "mine.txt").write_text("mine", "utf-8")
    back(world)
    assert sorted(each.name for each in (world.root / "new").iterdir()) == ["mine.txt"]


async def test_a_file_that_has_changed_since_stops_everything(world: World) -> None:  # W10
    await write(world, "a.txt", "one\n", "create")
    await write(world, "b.txt", "two\n", "create")
    (world.root / "b.txt").write_text("somebody's\n", "utf-8")
    with pytest.raises(ReloadAndDecide, match="nothing was restored") as refused:
        back(world)
    assert "-two\n+somebody's\n" in refused.value.detail
    assert (text(world, "a.txt"), text(world, "b.txt")) == ("one\n", "somebody's\n")
    back(world, force=True)
    assert (text(world, "a.txt"), text(world, "b.txt")) == (None, None)


@pytest.mark.parametrize("whose", ["a person's", "another session's"])
async def test_what_others_wrote_between_two_steps_stops_everything(whose: str, world: World) -> None:  # W10
    await write(world, "a.txt", "one\n", "create")
    await write(world, "b.txt", "b\n", "create")
    if whose == "a person's":
        (world.root / "a.txt").write_text(f"{whose}\n", "utf-8")
    else:
        other = world.workspace.toolbox(world.workspace.store.begin("test", "scripted"))
        arguments = {"path": "a.txt", "content": f"{whose}\n", "mode": "overwrite"}
        written = await other.begin("o1", world.person).execute(ToolCall("c", "write_file", arguments))
        assert isinstance(written, dict)
        assert written["success"]
    world.turn("t2")
    await world.call("read_file", path="a.txt")
    await write(world, "a.txt", f"{whose}\ntwo\n")
    with pytest.raises(ReloadAndDecide, match="nothing was restored") as refused:
        back(world, world.session)
    assert f"-one\n+{whose}\n" in refused.value.detail
    assert (text(world, "a.txt"), text(world, "b.txt")) == (f"{whose}\ntwo\n", "b\n")
    back(world, "t2")
    assert text(world, "a.txt") == f"{whose}\n"


@pytest.mark.parametrize("change", ["deleted", "made again", "a directory", "a link"])
async def test_whatever_became_of_a_file_is_a_change(change: str, world: World) -> None:  # W10
    await write(world, "a.txt", "one\n", "create")
    if change == "made again":
        await world.call("delete_file", path="a.txt")
    else:
        (world.root / "a.txt").unlink()
    if change == "a directory":
        (world.root / "a.txt").mkdir()
    elif change == "a link":
        (world.root / "a.txt").symlink_to(world.outside / "secret.txt")
    elif change == "made again":
        (world.root / "a.txt").write_text("again\n", "utf-8")
    with pytest.raises(ReloadAndDecide, match="changed_since"):
        back(world)
    assert (world.outside / "secret.txt").exists()


async def test_of_several_writes_the_first_state_comes_back(world: World) -> None:  # W10
    (world.root / "a.txt").write_text("zero\n", "utf-8")
    for content in ("one\n", "two\n", "three\n"):
        await write(world, "a.txt", content)
    assert [each.path for each in back(world, "t1")] == ["a.txt"]
    assert text(world, "a.txt") == "zero\n"


async def test_a_step_in_the_middle_waits_for_those_after_it(world: World) -> None:  # W10
    await write(world, "a.txt", "one\n", "create")
    await write(world, "a.txt", "two\n")
    with pytest.raises(ReloadAndDecide):
        back(world, "t1-1")
    back(world, "t1-2")
    back(world, "t1-1")
    assert text(world, "a.txt") is None


async def test_mode_and_bytes_come_back(world: World) -> None:  # W10
    script, data = world.root / "run.sh", world.root / "data.bin"
    script.write_text("#!/bin/sh\n", "utf-8")
    script.chmod(0o750)
    data.write_bytes(bytes(range(256)))
    await world.call("write_file", path="run.sh", content="#!/bin/bash\n", mode="overwrite")
    assert script.stat().st_mode & 0o777 == 0o750
    await world.call("delete_file", path="run.sh")
    await world.call("write_file", path="data.bin", content="text", mode="overwrite")
    restored = back(world)
    assert script.stat().st_mode & 0o777 == 0o750
    assert data.read_bytes() == bytes(range(256))
    assert "binary data.bin: 4 bytes become 256" in "".join(each.diff for each in restored)


async def test_what_commands_did_is_not_taken_back(world: World) -> None:  # W10
    await world.call("shell_exec", command="echo x > made")
    with pytest.raises(LookElsewhere, match="nothing_to_undo"):
        back(world)


async def test_a_refused_write_leaves_nothing_to_undo(world: World) -> None:  # W10
    world.person.answer = lambda _: "no"
    await world.call("write_file", path="a.txt", content="x")
    world.person.answer = lambda _: "once"
    (world.root / "b.txt").write_text("b", "utf-8")
    assert (await world.call("write_file", path="b.txt", content="x"))["error"] == "ALREADY_EXISTS"
    assert (await world.call("write_file", path="b.txt/c", content="x"))["error"] == "NOT_A_DIRECTORY"
    with pytest.raises(LookElsewhere, match="nothing_to_undo"):
        back(world)


async def test_what_is_kept_lies_out_of_the_way_of_git(world: World) -> None:  # W10
    git(world.root, "init", "-q")
    await write(world, "a.txt", "one\n", "create")
    await write(world, "a.txt", "two\n")
    await write(world, "b.txt", "two\n", "create")
    kept = [each.name for each in world.workspace.store.blobs.iterdir()]
    assert len(kept) == 2, "a content is kept once, by its hash"
    assert git(world.root, "status", "--short").splitlines() == ["?? a.txt", "?? b.txt"]


async def test_the_oldest_contents_are_forgotten_beyond_the_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # W10
    monkeypatch.setattr(undoing, "MOST_BYTES", 3_000)
    blobs = world.workspace.store.blobs
    digests = [keep_blob(blobs, bytes([number]) * 1_000) for number in range(6)]
    for age, digest in enumerate(digests):
        if (blobs / digest).exists():
            os.utime(blobs / digest, (age, age))
    newest = keep_blob(blobs, b"z" * 1_000)
    assert sum(each.stat().st_size for each in blobs.iterdir()) <= 3_000
    assert (blobs / newest).exists()
    assert not (blobs / digests[0]).exists()


async def test_a_content_that_is_kept_no_longer_is_told(world: World) -> None:  # W10
    (world.root / "a.txt").write_text("zero\n", "utf-8")
    await write(world, "a.txt", "one\n")
    for blob in world.workspace.store.blobs.iterdir():
        blob.unlink()
    with pytest.raises(CallTheOperator, match="undo_lost"):
        back(world)
    assert text(world, "a.txt") == "one\n"


async def test_undoing_goes_through_no_link(world: World) -> None:  # W10
    (world.root / "folder").mkdir()
    await write(world, "folder/secret.txt", "mine\n", "create")
    await write(world, "folder/secret.txt", "other\n")
    (world.root / "folder" / "secret.txt").unlink()
    (world.root / "folder").rmdir()
    (world.root / "folder").symlink_to(world.outside)
    before = (world.outside / "secret.txt").read_text("utf-8")
    with pytest.raises(ReloadAndDecide):
        back(world)
    back(world, force=True)
    assert (world.outside / "secret.txt").read_text("utf-8") == before


def test_differences_are_named_by_what_was_there() -> None:  # W10
    assert diff("a", None, b"x\n") == "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n"
    assert diff("a", b"x", b"y").endswith("-x\n+y\n")
    assert diff("a", b"\xff", b"y") == "binary a: 1 bytes become 1\n"
    assert diff("a", b"same", b"same") == ""
    long = diff("a", b"", b"\n".join(b"%d" % number for number in range(2_000)))
    assert len(long.splitlines()) == undoing.MOST_DIFF_LINES + 1
    assert long.endswith("lines left out]\n")


def test_differences_of_long_files_are_soon_told() -> None:  # W10
    """Of lines that repeat, as those of logs and tables do."""
    rows = [f"row {number % 110}\n" for number in range(30_000)]
    before = "".join(rows).encode()
    rows[15_000] = "mine\n"

    def told() -> None:
        changed = diff("a", before, "".join(rows).encode())
        assert changed.splitlines()[2:] == [
            "@@ -14998,7 +14998,7 @@",
            *(f" row {number % 110}" for number in range(14_997, 15_000)),
            f"-row {15_000 % 110}",
            "+mine",
            *(f" row {number % 110}" for number in range(15_001, 15_004)),
        ]
        assert diff("a", before, before + b"mine\n").endswith("+mine\n")
        assert diff("a", before, b"mine\n" * 1_000) == "a: 30000 lines become 1000 others\n"

    assert takes_less_than(2, told)


async def test_what_stands_in_the_way_is_told_also_to_who_forces(world: World) -> None:  # W10
    for path in ("a.txt", "b.txt"):
        await write(world, path, "mine\n", "create")
    (world.root / "a.txt").unlink()
    (world.root / "a.txt").mkdir()
    first, second = back(world, force=True)
    assert (first.path, first.diff) == ("a.txt", "not restored: a.txt: 'a.txt' is a directory\n")
    assert (second.path, text(world, "b.txt")) == ("b.txt", None)
    (world.root / "a.txt").rmdir()
    assert [each.path for each in back(world, force=True)] == ["a.txt"]


def test_differences_in_many_stretches_are_soon_told() -> None:  # W10
    def every_other(count: int, own: str) -> bytes:
        return "".join("same\n" if number % 2 else f"{own} {number}\n" for number in range(count)).encode()

    def told() -> None:
        assert diff("a", every_other(20_000, "old"), every_other(190, "new")) == (
            "a: 20000 lines become 190 others\n"
        )
        assert diff("a", every_other(40, "old"), every_other(40, "new")).count("\n-old") == 20

    assert takes_less_than(2, told)
