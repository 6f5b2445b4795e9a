"""The processes that a manager runs, each behind a launcher that leaves nothing of it behind.

What a process may know is chosen here. A bridge is a program of the operator's: it gets the environment
without this product's own variables and the model's key, and its account by environment alone, which only
the same user can read. An agent that is asked to end waits for its calls no more than some seconds: the
manager has waited for them before.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from channels.voice.manager.fleet import AgentSpec, BridgeSpec

OWN_VARIABLE = "FLOW_ENGINE_MANAGER_API_TOKEN"
"""What the manager shows to the business API, and nobody else needs."""

LAUNCHER = Path(__file__).with_name("launch.py")
LAUNCHER_ENDS_WITHIN_S = 5.0
"""How long a launcher may take once everything that it ran has been killed."""

AGENT_DRAINS_S = 15
"""For a call that was let in just before an agent took no more of them."""

SPOOL = "FLOW_ENGINE_VOICE_SPOOL"

_SECRET_PREFIXES = ("FLOW_ENGINE_", "OPENAI_")
_NOT_FOR_AGENTS = frozenset(("SIP_DOMAIN", "SIP_USERNAME", "SIP_PASSWORD", "AGENT_PORT", OWN_VARIABLE))


@dataclass(frozen=True, slots=True)
class CommandLines:
    """`agent` gets `--config FILE --port N` appended; `bridge` is run as it is, empty for no bridges."""

    agent: tuple[str, ...]
    bridge: tuple[str, ...] = ()


class Programs:
    """What is run for an agent. `held` is kept open by every process until nothing is left of it."""

    def __init__(
        self,
        commands: CommandLines,
        environment: Mapping[str, str],
        config_path: Callable[[str], Path],
        held: int,
    ) -> None:
        self._commands = commands
        self._environment = environment
        self._config_path = config_path
        self._held = held

    async def start(
        self, agent_id: str, spec: AgentSpec | BridgeSpec, *, stop_s: float, on_end: Callable[[], None]
    ) -> Child:
        """Raises OSError."""
        match spec:
            case AgentSpec(port=port):
                config = str(self._config_path(agent_id))
                command = (*self._commands.agent, "--config", config, "--port", str(port))
                environment = agent_environment(self._environment, agent_id, spec)
            case BridgeSpec():
                command, environment = self._commands.bridge, bridge_environment(self._environment, spec)
        return await start(command, environment, held=self._held, stop_s=stop_s, on_end=on_end)


def agent_environment(inherited: Mapping[str, str], agent_id: str, spec: AgentSpec) -> dict[str, str]:
    """The manager's own, but for its token, with the agent's address, webhook secret and spool directory."""
    own = {name: value for name, value in inherited.items() if name not in _NOT_FOR_AGENTS}
    if spec.public_url is not None:
        own["FLOW_ENGINE_PUBLIC_URL"] = spec.public_url
    if spec.webhook_secret is not None:
        own["OPENAI_WEBHOOK_SECRET"] = spec.webhook_secret.get_secret_value()
    if spool := own.get(SPOOL):
        own[SPOOL] = f"{spool}/{agent_id}"
    return {**own, "FLOW_ENGINE_VOICE_DRAIN_S": str(AGENT_DRAINS_S)}


def bridge_environment(inherited: Mapping[str, str], spec: BridgeSpec) -> dict[str, str]:
    own = {name: value for name, value in inherited.items() if not name.startswith(_SECRET_PREFIXES)}
    return {
        **own,
        "SIP_DOMAIN": spec.sip.domain,
        "SIP_USERNAME": spec.sip.username,
        "SIP_PASSWORD": spec.sip.password.get_secret_value(),
        "AGENT_PORT": str(spec.port),
    }


class Child(asyncio.Protocol):
    """One command that was started. `pid` is the command's own, None where it is not known yet."""

    def __init__(self, launcher: subprocess.Popen[bytes], on_end: Callable[[], None]) -> None:
        self._launcher = launcher
        self._on_end = on_end
        self._received = bytearray()
        self._control: asyncio.WriteTransport | None = None
        self.exit_code: int | None = None
        self.ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        line, _, _ = bytes(self._received).partition(b"\n")
        return int(line.removeprefix(b"pid ")) if b"\n" in self._received else None

    @property
    def alive(self) -> bool:
        return not self.ended.is_set()

    def terminate(self) -> None:
        self._say(b"t")

    def kill(self) -> None:
        self._say(b"k")

    def abandon(self) -> None:
        """End the launcher itself: the command ends with it, on Linux, and its descendants may not."""
        self._launcher.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._control = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data

    def connection_lost(self, exc: Exception | None) -> None:
        # The launcher's end of the socket is nobody else's: it is exiting, and waiting for it takes no time.
        self.exit_code = self._launcher.wait()
        self.ended.set()
        self._on_end()

    def _say(self, word: bytes) -> None:
        if self._control is not None and self.alive:
            self._control.write(word)


async def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    held: int,
    stop_s: float,
    on_end: Callable[[], None],
) -> Child:
    """The command, started in a session of its own; `stop_s` seconds after the manager is gone it is ended.
    Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        launcher = _launch(command, environment, theirs, held, stop_s)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    _, child = await asyncio.get_running_loop().create_connection(lambda: Child(launcher, on_end), sock=ours)
    return child


def _launch(
    command: Sequence[str], environment: Mapping[str, str], control: socket.socket, held: int, stop_s: float
) -> subprocess.Popen[bytes]:
    arguments = (str(control.fileno()), str(held), str(stop_s), *command)
    return subprocess.Popen(  # noqa: S603 - the command is the operator's
        (sys.executable, "-I", "-S", str(LAUNCHER), *arguments),
        stdin=subprocess.DEVNULL,
        pass_fds=(control.fileno(), held),
        # A Ctrl-C in the terminal is for the manager, which ends its processes in order.
        start_new_session=True,
        env=dict(environment),
    )


async def end_all(children: Sequence[Child], stop_s: float) -> None:
    """Returns when none of them is left, at most some seconds after `stop_s`. Never raises for one that is
    gone."""
    for act, patience in (
        (Child.terminate, stop_s),
        (Child.kill, LAUNCHER_ENDS_WITHIN_S),
        (Child.abandon, LAUNCHER_ENDS_WITHIN_S),
    ):
        living = [child for child in children if child.alive]
        if not living:
            return
        for child in living:
            act(child)
        waiting = [asyncio.ensure_future(child.ended.wait()) for child in living]
        _, late = await asyncio.wait(waiting, timeout=patience)
        for each in late:
            each.cancel()
