"""Commands: their group, their bounds, what they may see, and the sandbox (W2, W10)."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from channels.workspace.confinement import Refused, Root
from channels.workspace.shell import MOST_OUTPUT, Sandbox, Shell, without_secrets
from tests.channels.workspace.workspace_world import World, opened
from tests.timing import in_the_best_round

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with opened(tmp_path) as made:
        yield made


async def test_a_command_tells_its_end_its_output_and_its_time(world: World) -> None:  # W1
    done = await world.call("shell_exec", command="echo out; echo err >&2")
    assert (done["success"], done["exit_code"], done["timed_out"]) == (True, 0, False)
    assert (done["stdout"], done["stderr"]) == ("out\n", "err\n")
    assert 0 <= done["duration_ms"] < 10_000
    failed = await world.call("shell_exec", command="echo why; exit 3")
    assert (failed["exit_code"], failed["error"], failed["stdout"]) == (3, "COMMAND_FAILED", "why\n")
    killed = await world.call("shell_exec", command="kill -9 $$")
    assert killed["exit_code"] == -signal.SIGKILL


async def test_a_command_runs_where_it_is_told_and_nowhere_else(world: World) -> None:  # W10
    (world.root / "sub" / "deep").mkdir(parents=True)
    (world.root / "file").write_text("", "utf-8")
    for cwd in ("sub/deep", str(world.root / "sub" / "deep"), "sub/../sub/deep"):
        done = await world.call("shell_exec", command="pwd -P; echo $PWD", cwd=cwd)
        assert done["stdout"].split() == [str(world.root / "sub" / "deep")] * 2, cwd
    assert (await world.call("shell_exec", command="pwd"))["stdout"].strip() == str(world.root)
    assert (await world.call("shell_exec", command="pwd", cwd="file"))["error"] == "NOT_A_DIRECTORY"
    assert (await world.call("shell_exec", command="pwd", cwd="none"))["error"] == "NOT_FOUND"
    assert (await world.call("shell_exec", command="pwd", cwd=".."))["error"] == "OUTSIDE_WORKSPACE"


async def test_a_command_has_no_input_and_no_terminal(world: World) -> None:  # W1
    done = await world.call("shell_exec", command="cat; tty; test -t 0 || echo none", timeout=5)
    assert done["stdout"].endswith("none\n")
    assert not done["timed_out"]
    assert not (await world.call("shell_exec", command="echo x > /dev/tty"))["success"]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def _ended(pids: list[int]) -> bool:
    for _ in range(3_000):
        if not any(map(_is_alive, pids)):
            return True
        await asyncio.sleep(0.01)
    return False


@in_the_best_round  # all three have to begin before the timeout
async def test_at_the_timeout_the_whole_group_is_killed(world: World) -> None:  # W1
    shell = Shell(world.workspace.root)
    command = "trap '' TERM; sleep 60 & echo $!; (sleep 60 & echo $!; wait) & echo $$; wait"
    done = await shell.run(command, timeout_s=0.4)
    assert (done["timed_out"], done["success"], done["error"]) == (True, False, "TIMED_OUT")
    assert 400 <= done["duration_ms"] < 30_000
    pids = [int(line) for line in done["stdout"].split()]
    assert len(pids) == 3
    assert await _ended(pids)


async def test_what_is_left_in_the_background_ends_with_the_command(world: World) -> None:  # W1
    done = await world.call("shell_exec", command="sleep 60 > /dev/null 2>&1 & echo $!")
    assert done["success"]
    assert await _ended([int(done["stdout"])])
    # One that holds the pipe keeps nobody waiting either.
    holding = await world.call("shell_exec", command="sleep 60 & echo $!")
    assert holding["duration_ms"] < 30_000
    assert await _ended([int(holding["stdout"])])


async def test_whoever_leaves_the_group_keeps_nobody_waiting(world: World) -> None:  # W1
    done = await world.call("shell_exec", command="setsid sleep 60 & echo $!")
    assert done["success"]
    assert done["duration_ms"] < 30_000
    os.kill(int(done["stdout"]), signal.SIGKILL)


async def test_a_turn_that_is_cancelled_leaves_no_process(world: World) -> None:  # W8
    shell = Shell(world.workspace.root)
    running = asyncio.create_task(shell.run("echo $$ > pid; sleep 60"))
    pid = world.root / "pid"
    while not pid.exists() or not pid.read_text("utf-8").strip():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await _ended([int(pid.read_text("utf-8"))])


async def test_of_long_output_the_head_and_the_tail_are_kept(world: World) -> None:  # W1
    program = f"{sys.executable} -c \"print('first'); print('x' * 3_000_000); print('last')\""
    done = await world.call("shell_exec", command=f"{program}; echo small >&2")
    assert len(done["stdout"]) < MOST_OUTPUT + 100
    assert done["stdout"].startswith("first\nxxx")
    assert done["stdout"].endswith("xxx\nlast\n")
    assert f"[{3_000_012 - MOST_OUTPUT} bytes left out]" in done["stdout"]
    assert done["stderr"] == "small\n"
    exact = await world.call("shell_exec", command=f"head -c {MOST_OUTPUT} /dev/zero | tr '\\0' y")
    assert exact["stdout"] == "y" * MOST_OUTPUT


async def test_output_that_is_no_text_is_shown_as_far_as_it_is(world: World) -> None:  # W1
    done = await world.call("shell_exec", command=r"printf 'a\377b\303\251'")
    assert done["stdout"] == "a\ufffdbé"


async def test_an_endless_output_is_bounded_while_it_runs(world: World) -> None:  # W1
    done = await Shell(world.workspace.root).run("yes", timeout_s=0.3)
    assert done["timed_out"]
    assert len(done["stdout"]) < MOST_OUTPUT + 100


SECRETS: Mapping[str, str] = {
    **dict.fromkeys(("OPENAI_API_KEY", "GITHUB_TOKEN", "MY_SECRET_THING", "DB_PASSWORD"), "hidden"),
    **dict.fromkeys(("aws_credentials", "api_key", "FLOW_ENGINE_DATA_DIR", "flow_engine_x"), "hidden"),
}


async def test_secrets_of_the_environment_are_withheld(world: World) -> None:  # W10
    kept = {"PATH": os.environ["PATH"], "HOME": "/somewhere", "LANG": "C.UTF-8"}
    assert without_secrets({**SECRETS, **kept}) == kept
    done = await Shell(world.workspace.root, environ={**SECRETS, **kept}).run("env")
    assert "hidden" not in done["stdout"]
    assert "HOME=/somewhere\n" in done["stdout"]


async def test_the_timeout_of_a_call_is_its_own(world: World) -> None:  # W1
    done = await world.call("shell_exec", command="sleep 20", timeout=1)
    assert (done["error"], done["message"]) == ("TIMED_OUT", "killed after 1 s")
    assert (await world.call("shell_exec", command="true", timeout="soon"))["error"] == "INVALID_ARGUMENTS"


# The sandbox --------------------------------------------------------------------------------------------

Sandboxed = Callable[[Sandbox], Shell]
BARE = ("bwrap", "--unshare-net", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc")


@pytest.fixture
def sandboxed(world: World) -> Sandboxed:
    return lambda kind: Shell(world.workspace.root, kind)


async def _usable(shell: Shell) -> bool:
    """Where bubblewrap is missing or cannot start, it is shown that nothing is run instead."""
    if shutil.which("bwrap") and subprocess.run([*BARE, "true"], check=False).returncode == 0:
        return True
    with pytest.raises(Refused, match="nothing was run"):
        await shell.run("true")
    return False


@pytest.mark.parametrize("kind", ["no-network", "strict"])
async def test_without_bubblewrap_nothing_is_run(kind: Sandbox, tmp_path: Path) -> None:  # W10
    (tmp_path / "bin").mkdir()
    shell = Shell(Root(tmp_path), kind, {"PATH": str(tmp_path / "bin")})
    here = os.environ["PATH"]
    os.environ["PATH"] = str(tmp_path / "bin")
    try:
        with pytest.raises(Refused, match="nothing was run") as refused:
            await shell.run("touch ran")
    finally:
        os.environ["PATH"] = here
    assert refused.value.code == "SANDBOX_UNAVAILABLE"
    assert not (tmp_path / "ran").exists()


async def test_a_bubblewrap_that_cannot_start_is_none(tmp_path: Path) -> None:  # W10
    fake = tmp_path / "bin" / "bwrap"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexit 1\n", "utf-8")
    fake.chmod(0o755)
    here = os.environ["PATH"]
    os.environ["PATH"] = f"{fake.parent}:{here}"
    try:
        with opened(tmp_path, workspace_sandbox="strict") as world:
            refused = await world.call("shell_exec", command="touch ran")
    finally:
        os.environ["PATH"] = here
    assert refused["error"] == "SANDBOX_UNAVAILABLE"
    assert not (tmp_path / "ws" / "ran").exists()


@pytest.mark.parametrize("kind", ["no-network", "strict"])
async def test_a_sandbox_has_no_network(kind: Sandbox, sandboxed: Sandboxed) -> None:  # W10
    shell = sandboxed(kind)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reach = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached || echo alone"
        if await _usable(shell):
            assert (await shell.run(reach))["stdout"] == "alone\n"
        assert (await sandboxed("off").run(reach))["stdout"] == "reached\n"


async def test_no_network_leaves_the_files_as_they_are(world: World, sandboxed: Sandboxed) -> None:  # W10
    if await _usable(sandboxed("no-network")):
        command = f"cat {world.outside}/secret.txt && echo y > {world.outside}/new"
        assert (await sandboxed("no-network").run(command))["success"]
        assert (world.outside / "new").read_text("utf-8") == "y\n"


async def test_strict_leaves_the_workspace_and_the_system(world: World, sandboxed: Sandboxed) -> None:  # W10
    shell = sandboxed("strict")
    if not await _usable(shell):
        return
    (world.root / "sub").mkdir()
    done = await shell.run("echo x > made && cat made; ls -A /tmp ~; pwd", "sub")
    assert done["success"]
    assert (world.root / "sub" / "made").read_text("utf-8") == "x\n"
    assert done["stdout"].splitlines()[-1] == str(world.root / "sub")
    for path in (str(world.outside), "/var", "/srv", "/sys/kernel"):
        assert not (await shell.run(f"ls {path}"))["success"], path
    for path in ("/usr/made", "/etc/made", f"{sys.prefix}/made", "/made"):
        await shell.run(f"touch {path}")
        assert not Path(path).exists()
    python = await shell.run(f"{sys.executable} -c 'print(6 * 7)'")
    assert python["stdout"] == "42\n"
    if shutil.which("git"):
        assert (await shell.run("git init -q . && git status --short"))["success"]


@pytest.mark.parametrize("kind", ["no-network", "strict"])
async def test_a_sandbox_takes_all_its_processes_along(
    kind: Sandbox, world: World, sandboxed: Sandboxed
) -> None:  # W10
    shell = sandboxed(kind)
    if not await _usable(shell):
        return
    mark = f"{world.root}/mark"
    command = f"setsid sh -c 'while :; do date +%N > {mark}; sleep 0.02; done' & sleep 30"
    for timeout_s in (0.5, 2, 10):
        done = await shell.run(command, timeout_s=timeout_s)
        assert done["timed_out"]
        if Path(mark).exists():  # it had begun by then
            break
    await asyncio.sleep(0.1)
    before = Path(mark).read_text("utf-8")
    await asyncio.sleep(0.1)
    assert Path(mark).read_text("utf-8") == before
