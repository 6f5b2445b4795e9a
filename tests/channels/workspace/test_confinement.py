"""Nothing outside of the workspace is read, written or deleted, whatever path, link or race (W10)."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from channels.workspace.confinement import Outside, Refused, Root
from tests.channels.workspace.workspace_world import SECRET, World, opened

pytestmark = pytest.mark.anyio


def linked(name: str, target: Callable[[World], Path | str]) -> Callable[[World], str]:
    def make(world: World) -> str:
        (world.root / name).symlink_to(target(world))
        return name

    return make


def chained(world: World) -> str:
    (world.root / "one").symlink_to("two")
    (world.root / "two").symlink_to(world.outside)
    return "one/secret.txt"


def below(name: str, rest: str) -> Callable[[World], str]:
    def make(world: World) -> str:
        (world.root / name).symlink_to(world.outside, target_is_directory=True)
        return rest

    return make


def hard(world: World) -> str:
    os.link(world.outside / "secret.txt", world.root / "hard.txt")
    return "hard.txt"


def looped(world: World) -> str:
    (world.root / "loop").symlink_to("loop")
    return "loop/secret.txt"


def in_a_folder(world: World) -> str:
    (world.root / "sub").mkdir()
    (world.root / "sub" / "up").symlink_to("../../outside")
    return "sub/up/secret.txt"


def dangling(world: World) -> str:
    (world.root / "dangling").symlink_to(world.outside / "new.txt")
    return "dangling"


def opened_handle(world: World) -> str:
    return f"/proc/self/fd/{os.open(world.outside / 'secret.txt', os.O_RDONLY)}"


def said(path: str) -> Callable[[World], str]:
    return lambda world: path.replace("OUT", str(world.outside)).replace("ROOT", str(world.root))


ATTEMPTS: dict[str, Callable[[World], str]] = {
    **{
        path: said(path)
        for path in (
            "../outside/secret.txt",
            "./../outside/secret.txt",
            "x/../../outside/secret.txt",
            "../ws/../outside/secret.txt",
            "..//outside//secret.txt",
            "ROOT/../outside/secret.txt",
            "ROOT/./../outside/secret.txt",
            "ROOTX/../outside/secret.txt",
            "OUT/secret.txt",
            "/OUT/secret.txt",
            "//OUT/secret.txt",
            "/..OUT/secret.txt",
            "/etc/passwd",
            "/proc/self/environ",
            "/proc/self/root/etc/passwd",
            "/proc/self/cwd/../outside/secret.txt",
            "/dev/stdin",
            "/dev/zero",
            "~/.ssh/id_rsa",
            "$HOME/.profile",
            "file:///etc/passwd",
            "..\\outside\\secret.txt",
            "..%2foutside%2fsecret.txt",
            "%2e%2e/outside/secret.txt",
            "\u2024\u2024/outside/secret.txt",
            "\uff0e\uff0e/outside/secret.txt",
            "..\u200b/outside/secret.txt",
            "..\u2215outside\u2215secret.txt",
            "../OUTSIDE/SECRET.TXT",
            "secret.txt\u0000",
            "..\u0000/outside/secret.txt",
            "../outside/secret.txt\n",
            " ../outside/secret.txt",
            "",
            "..",
            "../",
            "../../../../../../../../../../etc/passwd",
            "a" * 5_000,
            "x/" * 2_000 + "y",
        )
    },
    "a link to the file": linked("l.txt", lambda w: w.outside / "secret.txt"),
    "a relative link to the file": linked("l.txt", lambda w: "../outside/secret.txt"),
    "a link to a directory": below("d", "d/secret.txt"),
    "a link to a directory and back": below("d", "d/../outside/secret.txt"),
    "a link through another": chained,
    "a link in a folder": in_a_folder,
    "a link to the root": linked("r", lambda w: "/"),
    "a link to proc": linked("p", lambda w: "/proc/self/environ"),
    "a link to a handle": linked("h", lambda w: "/proc/self/root"),
    "a loop": looped,
    "a dangling link": dangling,
    "a hard link": hard,
    "a handle": opened_handle,
}


def test_there_are_enough_attempts() -> None:
    assert len(ATTEMPTS) * 2 + 9 >= 80


@pytest.fixture(params=[True, False], ids=["openat2", "step-by-step"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    with opened(tmp_path) as made:
        made.workspace.root._openat2 = request.param  # pyright: ignore[reportPrivateUsage]
        yield made


async def test_no_tool_reaches_what_is_outside(world: World) -> None:  # W10
    outside = {each: each.stat().st_mtime_ns for each in world.outside.iterdir()}
    for attempt, make in ATTEMPTS.items():
        path = make(world)
        for name, more in (
            ("read_file", {}),
            ("list_files", {"recursive": True}),
            ("search_text", {"query": "secret"}),
            ("delete_file", {}),
            ("write_file", {"content": "x", "mode": "overwrite"}),
            ("write_file", {"content": "x", "mode": "append"}),
            ("write_file", {"content": "x"}),
        ):
            result = await world.call(name, path=path, **more)
            assert SECRET not in str(result), (attempt, name)
            assert "root:" not in str(result), (attempt, name)
        gone = await world.call("shell_exec", command="cat secret.txt", cwd=path)
        assert SECRET not in str(gone), attempt
        assert {each: each.stat().st_mtime_ns for each in world.outside.iterdir()} == outside, attempt
        for entry in world.root.iterdir():
            if entry.is_symlink() or not entry.is_dir():
                entry.unlink()
            elif entry.name != ".agentichat":
                shutil.rmtree(entry)


async def test_links_are_named_and_never_walked(world: World) -> None:  # W10
    (world.root / "out").symlink_to(world.outside)
    (world.root / "file").symlink_to(world.outside / "secret.txt")
    listed = await world.call("list_files", path=".", recursive=True)
    assert {each["path"]: each["type"] for each in listed["files"]} == {"file": "link", "out": "link"}
    assert (await world.call("search_text", query="secret"))["matches"] == []


async def test_what_is_no_file_is_not_read_nor_waited_for(world: World) -> None:  # W10
    os.mkfifo(world.root / "fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(world.root / "socket"))
    for name in ("fifo", "socket"):
        assert (await world.call("read_file", path=name))["error"] in ("NOT_A_FILE", "IO_ERROR")
        assert not (await world.call("write_file", path=name, content="x", mode="append"))["success"]
    assert (await world.call("search_text", query="x"))["success"]


@pytest.mark.parametrize(
    "path", [".git/config", ".GIT/hooks/pre-commit", ".agentichat/workspace.db", "a/.git/x"]
)
async def test_what_runs_code_or_remembers_is_not_written(path: str, world: World) -> None:  # W10
    (world.root / ".git").mkdir()
    for name, more in (("write_file", {"content": "x", "mode": "overwrite"}), ("delete_file", {})):
        assert (await world.call(name, path=path, **more))["error"] in ("PROTECTED", "NOT_FOUND")


async def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:  # W10
    with opened(tmp_path) as world:
        (world.root / "real").mkdir()
        (world.root / "real" / "a.txt").write_text("inside", "utf-8")
        (world.root / "link").symlink_to("real")
        assert (await world.call("read_file", path="link/a.txt"))["content"] == "inside"
        written = await world.call("write_file", path="link/b.txt", content="b")
        assert written["path"] == "real/b.txt"
        assert (await world.call("read_file", path=f"{world.root}/real/b.txt"))["content"] == "b"


@pytest.mark.parametrize("openat2", [True, False])
def test_a_thread_that_swaps_links_wins_nothing(openat2: bool, tmp_path: Path) -> None:  # W10
    with opened(tmp_path) as world:
        real, link = world.root / "real", world.root / "spare"
        real.mkdir()
        (real / "secret.txt").write_text("inside", "utf-8")
        link.symlink_to(world.outside)
        stop = threading.Event()
        box = Root(world.root, openat2=openat2)

        def swap() -> None:
            names = [world.root / "current", real, link]
            while not stop.is_set():
                for source in names[1:]:
                    try:
                        os.rename(source, names[0])
                    except OSError:  # a write has made the folder anew meanwhile
                        shutil.rmtree(names[0], ignore_errors=True)
                        continue
                    os.rename(names[0], source)

        thread = threading.Thread(target=swap)
        thread.start()
        seen: set[bytes] = set()
        try:
            for number in range(1_500):
                try:
                    seen.add(box.read("current/secret.txt", 1_000).data)
                    if number % 5 == 0:
                        box.write("current/new.txt", b"x")
                        box.delete("current/new.txt")
                except (Outside, Refused, OSError):
                    continue
        finally:
            stop.set()
            thread.join()
            box.close()
        assert seen <= {b"inside"}
        assert sorted(each.name for each in world.outside.iterdir()) == ["secret.txt"]
