"""Nothing outside of the workspace is read, written or deleted, whatever path, link or race (W10)."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
            "/proc/self/fd/../cwd/../outside/secret.txt",
            "/proc/thread-self/root/etc/passwd",
            "/proc/1/root/etc/passwd",
            "/sys/kernel/hostname",
            "/ETC/PASSWD",
            "..\u0338/outside/secret.txt",
            "\u002e\u002e/outside/secret.txt",
            "\u202e../outside/secret.txt",
            "\ud800/../../outside/secret.txt",
            ".../outside/secret.txt",
            ". ./outside/secret.txt",
            "../outside/secret.txt/",
            "../outside/secret.txt/.",
            "..;/outside/secret.txt",
            "C:\\outside\\secret.txt",
            "CON",
            "-rf",
            "a" * 300,
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


@pytest.fixture(params=[True, False], ids=["openat2", "step-by-step"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        made.workspace.root._openat2 = request.param  # pyright: ignore[reportPrivateUsage]
        yield made


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {each.name: (each.stat().st_mtime_ns, each.read_bytes()) for each in folder.iterdir()}


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=[ascii(attempt[:40]) for attempt in ATTEMPTS])
async def test_no_tool_reaches_what_is_outside(attempt: str, tmp_path: Path) -> None:  # W10
    with opened(tmp_path) as world:
        outside = state_of(world.outside)
        path = ATTEMPTS[attempt](world)
        for openat2 in (True, False):
            world.workspace.root._openat2 = openat2  # pyright: ignore[reportPrivateUsage]
            for name, more in (
                ("read_file", {}),
                ("list_files", {"recursive": True}),
                ("search_text", {"query": "secret"}),
                ("write_file", {"content": "x", "mode": "overwrite"}),
                ("write_file", {"content": "x", "mode": "append"}),
                ("write_file", {"content": "x"}),
                *([] if openat2 else [("delete_file", {})]),
            ):
                result = await world.call(name, path=path, **more)
                assert SECRET not in str(result), name
                assert "root:" not in str(result), name
            gone = await world.call("shell_exec", command="cat secret.txt", cwd=path)
            assert SECRET not in str(gone)
            assert state_of(world.outside) == outside


# The control: what a resolver reads that looks at names ------------------------------------------------


def joined(root: Path, path: str) -> Path:
    return root / path


def begins_with_the_root(root: Path, path: str) -> Path:
    return Path(f"{root}/{path.lstrip('/')}")


def normalised(root: Path, path: str) -> Path:
    whole = os.path.normpath(root / path)
    if os.path.commonpath([whole, root]) != str(root):
        raise ValueError(path)
    return Path(whole)


@dataclass(frozen=True)
class Bare:
    root: Path
    outside: Path


@pytest.mark.parametrize(("naive", "least"), [(joined, 14), (begins_with_the_root, 9), (normalised, 6)])
def test_a_naive_resolver_gives_the_secret_away(
    naive: Callable[[Path, str], Path], least: int, tmp_path: Path
) -> None:  # W10
    """Were the attempts harmless, they would show nothing."""
    leaks = 0
    for number, make in enumerate(ATTEMPTS.values()):
        world: Any = Bare(tmp_path / str(number) / "ws", tmp_path / str(number) / "outside")
        world.root.mkdir(parents=True)
        world.outside.mkdir()
        (world.outside / "secret.txt").write_text(SECRET, "utf-8")
        path = make(world)
        if not path.startswith("/dev/"):
            with suppress(OSError, ValueError):
                leaks += SECRET.encode() in naive(world.root, path).read_bytes()
    assert leaks >= least


@pytest.mark.parametrize("openat2", [True, False])
def test_a_link_put_there_between_look_and_use_wins_nothing(openat2: bool, tmp_path: Path) -> None:  # W10
    """The same swap at the same moment gives the secret to whoever looks first and opens then."""
    with opened(tmp_path) as world:
        folder, spare = world.root / "folder", world.root / "spare"

        def prepare() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "secret.txt").write_text("inside", "utf-8")
            spare.unlink(missing_ok=True)
            spare.symlink_to(world.outside)

        def swap() -> None:
            shutil.rmtree(folder)
            spare.rename(folder)

        prepare()
        real = (world.root / "folder/secret.txt").resolve()
        assert real.is_relative_to(world.root)
        swap()
        assert (world.root / "folder/secret.txt").read_text("utf-8") == SECRET
        folder.unlink()

        prepare()
        box = Root(world.root, openat2=openat2)
        target = box.writable("folder/secret.txt")
        swap()
        for use in (
            lambda: box.read(target, 1_000),
            lambda: box.write(target, b"x"),
            lambda: box.delete(target),
        ):
            with pytest.raises((Outside, NotADirectoryError)):
                use()
        box.close()
        assert (world.outside / "secret.txt").read_text("utf-8") == SECRET


def test_a_folder_that_is_moved_out_is_not_written(tmp_path: Path) -> None:  # W10
    with opened(tmp_path) as world:
        (world.root / "folder").mkdir()
        box = world.workspace.root
        with box.folder("folder") as (handle, _):
            (world.root / "folder").rename(world.outside / "folder")
            with pytest.raises(Outside):
                box.name_of(handle)


# Mounts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("openat2", [True, False])
@pytest.mark.parametrize(
    "path",
    [
        *("proc/self/environ", "proc/self/root/etc/passwd", "proc/self/cwd/x", "proc/1/status"),
        *("sys/kernel/ostype", "dev/null", "/proc/self/maps", "proc/self/fd/0", "tmp/../proc/version"),
    ],
)
def test_another_mount_is_outside(path: str, openat2: bool) -> None:  # W10
    """Even where the workspace is the whole machine."""
    box = Root(Path("/"), openat2=openat2)
    try:
        with pytest.raises((Outside, Refused, FileNotFoundError)):
            box.read(path, 100_000)
        with pytest.raises((Outside, Refused, OSError)):
            os.close(box.open(path, os.O_RDONLY))
    finally:
        box.close()


CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18


@pytest.mark.parametrize("openat2", [True, False])
@pytest.mark.parametrize("what", ["a directory", "a file"])
def test_what_is_mounted_into_the_workspace_is_outside(
    what: str, openat2: bool, tmp_path: Path
) -> None:  # W10
    """In a mount namespace of one thread, which goes with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: list[object] = []
    with opened(tmp_path) as world:
        place, source = world.root / "mounted", world.outside
        if what == "a file":
            place.write_text("", "utf-8")
            source /= "secret.txt"
        else:
            place.mkdir()
        path = "mounted" if what == "a file" else "mounted/secret.txt"

        def attempt() -> None:
            if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
                found.append("may not mount")
                return
            assert libc.mount(bytes(source), bytes(place), None, MS_BIND, None) == 0
            found.append((world.root / path).read_text("utf-8"))
            box = Root(world.root, openat2=openat2)
            for use in (
                lambda: box.read(path, 1_000),
                lambda: box.write(path, b"x"),
                lambda: box.delete(path),
            ):
                try:
                    found.append(use())
                except (Outside, Refused, OSError) as refused:
                    found.append(type(refused))
            box.close()

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        assert (world.outside / "secret.txt").read_text("utf-8") == SECRET
    if found == ["may not mount"]:
        pytest.skip("mounting needs a privilege")
    assert found[0] == SECRET, "the mount is there"
    assert not [each for each in found[1:] if not isinstance(each, type)]


# Commands under the sandbox -----------------------------------------------------------------------------

REDIRECTED = (
    "cat OUT/secret.txt",
    "cat < OUT/secret.txt",
    "cat ../outside/secret.txt",
    "cd .. && cat outside/secret.txt",
    "cat /proc/1/root/OUT/secret.txt",
    "cat /proc/self/root/OUT/secret.txt",
    "cat $(echo OUT)/secret.txt",
    "cat <<< $(cat OUT/secret.txt)",
    "exec 3< OUT/secret.txt; cat <&3",
    "dd if=OUT/secret.txt",
    "ln -s OUT out; cat out/secret.txt",
    "ln OUT/secret.txt hard; cat hard",
    "cp -r OUT copy; cat copy/secret.txt",
    "find OUT/.. -name secret.txt -exec cat {} +",
    "PYTHON -c 'print(open(\"OUT/secret.txt\").read())'",
    "mkdir m; mount --bind OUT m && cat m/secret.txt",
    "nsenter -t 1 -m cat OUT/secret.txt",
    "chroot /proc/1/root cat OUT/secret.txt",
    "echo x > OUT/secret.txt",
    "echo x >> OUT/secret.txt",
    "echo x >| OUT/secret.txt",
    "echo x &> OUT/new",
    "echo x 2> OUT/new; ls none 2> OUT/new",
    "echo x | tee OUT/new",
    ": > ../outside/secret.txt",
    "rm -rf OUT",
    "mv OUT gone",
    "touch OUT/secret.txt; chmod 777 OUT/secret.txt",
    "truncate -s 0 OUT/secret.txt",
    "ln -s OUT out; echo x > out/new; echo x > out/secret.txt",
    "exec 3<> OUT/secret.txt; echo x >&3",
    "mkdir -p OUT/folder",
    'PYTHON -c \'open("OUT/secret.txt", "w")\'',
    "setsid sh -c 'echo x > OUT/new' & wait",
)


@pytest.mark.parametrize("command", REDIRECTED)
async def test_no_command_reaches_what_is_outside_under_the_sandbox(
    command: str, tmp_path: Path
) -> None:  # W10
    """Where bubblewrap cannot be started the command is not run at all."""
    with opened(tmp_path, workspace_sandbox="strict") as world:
        outside = state_of(world.outside)
        line = command.replace("OUT", str(world.outside)).replace("PYTHON", sys.executable)
        done = await world.call("shell_exec", command=line, timeout=10)
        assert SECRET not in str(done)
        assert state_of(world.outside) == outside
        if done.get("error") != "SANDBOX_UNAVAILABLE":
            assert (await world.call("shell_exec", command="echo here > here; cat here"))[
                "stdout"
            ] == "here\n"


def test_without_the_sandbox_these_commands_do_reach_it(tmp_path: Path) -> None:  # W10
    """The control: it is the sandbox that keeps them."""
    reached = 0
    for number, command in enumerate(REDIRECTED):
        if any(word in command for word in ("mount", "nsenter", "chroot", "setsid")):
            continue
        root, outside = tmp_path / str(number) / "ws", tmp_path / str(number) / "outside"
        for folder in (root, outside):
            folder.mkdir(parents=True)
        (outside / "secret.txt").write_text(SECRET, "utf-8")
        line = command.replace("OUT", str(outside)).replace("PYTHON", sys.executable)
        done = subprocess.run(["bash", "-c", line], cwd=root, capture_output=True, check=False)
        changed = not outside.exists() or sorted(os.listdir(outside)) != ["secret.txt"]
        changed = changed or (outside / "secret.txt").read_text("utf-8") != SECRET
        touched = "touch" in command and (outside / "secret.txt").stat().st_mode & 0o777 == 0o777
        reached += changed or touched or SECRET.encode() in done.stdout
    assert reached >= 26


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

        def move(source: Path, target: Path) -> None:
            """A write that was overtaken may have made a folder of any of the names anew: it gives way."""
            while True:
                try:
                    return os.rename(source, target)
                except OSError:
                    shutil.rmtree(target, ignore_errors=True)

        def swap() -> None:
            current = world.root / "current"
            while not stop.is_set():
                for place in (real, link):
                    move(place, current)
                    move(current, place)

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
        assert link.is_symlink()
        assert (real / "secret.txt").read_text("utf-8") == "inside"
        assert seen <= {b"inside"}
        assert sorted(each.name for each in world.outside.iterdir()) == ["secret.txt"]
