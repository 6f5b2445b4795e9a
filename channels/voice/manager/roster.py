"""Which agents are wanted: kept up with the list, the templates and the ports.

What cannot be had of an agent, its entry, its config or its port, is no reason to stop one that runs: it goes
on with what it has, and the problem is told. An empty list is believed when it comes a second time. A port
belongs to its agent for good, also while the agent is not listed: carriers and proxies know agents by them.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from pydantic import SecretStr

from channels.voice.config.loader import ConfigRefused
from channels.voice.manager import configs, fleet, front
from channels.voice.manager.agents_list import Listed, ListUnavailable, fetch_agents
from channels.voice.manager.directory import Directory
from flow_engine.errors import CallTheOperator, Finding
from flow_engine.ports.outbound import OutboundSender

LAST_PORT = 65_535

log: Any = structlog.get_logger("flow_engine.voice.manager")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the list comes from. `api_url` is a URL without a slash at its end."""

    caller: OutboundSender
    api_url: str
    token: SecretStr | None = None


def is_free(port: int) -> bool:
    """Whether a program could listen on the port, on all addresses. False where it fails."""
    with socket.socket() as probe:
        # Connections of an earlier program that are still being closed do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


class Roster:
    """`bridges` says whether SIP bridges can be run. Ports are given out from `first_port` on. `public_url`
    is the setting, whose `${id}` and `${port}` are each agent's; `prefixed` says that a plain one gets the id
    even for a single agent."""

    def __init__(
        self,
        source: Source,
        files: configs.ConfigFiles,
        directory: Directory,
        *,
        first_port: int,
        bridges: bool,
        public_url: str | None = None,
        prefixed: bool = False,
        port_is_free: Callable[[int], bool] = is_free,
    ) -> None:
        self._source = source
        self._files = files
        self._directory = directory
        self._first_port = first_port
        self._bridges = bridges
        self._public_url = public_url
        self._prefixed = prefixed
        self._port_is_free = port_is_free
        self._ports = directory.read_ports()
        self._was_empty = False
        self._several = prefixed
        self._without_bridge: set[str] = set()
        self.unread: str | None = "the list of agents has not been read yet"
        """Why nobody is known to be an agent; None once a list has been read."""
        self.wanted: dict[str, fleet.AgentSpec] = {}
        self.known: dict[str, Listed] = {}
        self.problems: dict[str, tuple[Finding, ...]] = {}

    async def refresh(self) -> None:
        """Raises ListUnavailable; what was wanted is wanted still."""
        try:
            fetched = await fetch_agents(self._source.caller, self._source.api_url, self._source.token)
        except ListUnavailable as error:
            self.unread = self.unread and f"the list of agents cannot be read: {error}"
            raise
        self.unread = None
        if fetched.empty and self.wanted and not self._was_empty:
            self._was_empty = True
            raise ListUnavailable("the list is empty; it is believed if it is so the next time")
        self._was_empty = fetched.empty
        # Reading and checking many configs takes a while, in which the agents are to be looked after.
        made = await asyncio.to_thread(self._make_all, fetched.agents)
        problems = {
            refused.id or refused.problems[0].pointer: refused.problems for refused in fetched.refused
        }
        accepted: dict[str, fleet.AgentSpec] = {}
        self._several = self._prefixed or len(fetched.agents) + len(fetched.refused) > 1
        for agent in fetched.agents:
            spec = self._accept(agent, made[agent.id])
            if isinstance(spec, fleet.AgentSpec):
                accepted[agent.id] = spec
                self.known[agent.id] = agent
            else:
                problems[agent.id] = spec
        for agent_id, found in problems.items():
            log.warning(
                "agent_not_accepted",
                agent_id=agent_id,
                runs_on=agent_id in self.wanted,
                problems=[{"pointer": each.pointer, "message": each.message} for each in found],
            )
        self.problems = problems
        self.wanted = fleet.next_wanted(self.wanted, accepted, frozenset(problems), complete=fetched.complete)
        log.info("agents_refreshed", wanted=len(self.wanted), not_accepted=len(problems))

    def free_port(self, agent_id: str) -> None:
        """See to it that an agent which is about to start has a port that is free."""
        spec = self.wanted[agent_id]
        if self._port_is_free(spec.port):
            return
        try:
            port = self._assign(agent_id)
        except (CallTheOperator, OSError) as error:
            log.error("port_not_found", agent_id=agent_id, reason=str(error))
            return
        log.warning("port_moved", agent_id=agent_id, taken=spec.port, port=port)
        public_url = self._public_url_of(self.known[agent_id], port)
        self.wanted[agent_id] = replace(spec, port=port, public_url=public_url)

    def forget(self, agent_id: str) -> None:
        """The agent is gone. Its port stays its own."""
        self.known.pop(agent_id, None)
        self._without_bridge.discard(agent_id)
        try:
            self._files.remove(agent_id)
        except OSError as error:
            log.warning("config_not_removed", agent_id=agent_id, reason=str(error))

    def by_id(self, agent_id: str) -> front.Route | None:
        """Where the agent is; None for an unknown one."""
        spec = self.wanted.get(agent_id)
        return None if spec is None else front.Route(spec.port, spec.public_url)

    def by_number(self, number: str) -> front.Route | None:
        """The same by the phone number that was called; None for an unknown one."""
        found = (agent.id for agent in self.known.values() if agent.phone_number == number)
        return next((route for agent_id in found if (route := self.by_id(agent_id)) is not None), None)

    @property
    def ports(self) -> Mapping[str, int]:
        return self._ports

    def _make_all(self, agents: Sequence[Listed]) -> dict[str, bytes | ConfigRefused]:
        made: dict[str, bytes | ConfigRefused] = {}
        for agent in agents:
            try:
                made[agent.id] = self._files.make(agent)
            except ConfigRefused as refused:
                made[agent.id] = refused
        return made

    def _accept(self, agent: Listed, content: bytes | ConfigRefused) -> fleet.AgentSpec | tuple[Finding, ...]:
        if isinstance(content, ConfigRefused):
            return content.problems
        try:
            port = self._ports.get(agent.id) or self._assign(agent.id)
            config = self._files.write(agent.id, content)
        except CallTheOperator as error:
            return (Finding("", error.code, error.detail),)
        except OSError as error:
            return (Finding("", "not_written", f"cannot be written: {error.strerror}"),)
        if agent.sip is not None and not self._bridges and agent.id not in self._without_bridge:
            self._without_bridge.add(agent.id)
            log.warning("sip_bridge_missing", agent_id=agent.id, served_without=True)
        return fleet.AgentSpec(
            port,
            config,
            agent.sip if self._bridges else None,
            self._public_url_of(agent, port),
            agent.webhook_secret,
        )

    def _public_url_of(self, agent: Listed, port: int) -> str | None:
        return agent.public_url or public_url_of(self._public_url, agent.id, port, several=self._several)

    def _assign(self, agent_id: str) -> int:
        """Raises CallTheOperator `no_port_left`, OSError. A port is remembered before it is used."""
        port = given_port(agent_id, self._ports, self._first_port, self._port_is_free)
        ports = {**self._ports, agent_id: port}
        self._directory.write_ports(ports)
        self._ports = ports
        return port


def public_url_of(setting: str | None, agent_id: str, port: int, *, several: bool) -> str | None:
    """Where a carrier reaches an agent: the setting with `${id}` and `${port}` filled, else, where one plain
    address stands for several agents, with the id as the last segment of its path. None without a setting."""
    if setting is None:
        return None
    filled = setting.replace("${id}", agent_id).replace("${port}", str(port)).rstrip("/")
    return f"{filled}/{agent_id}" if several and filled == setting.rstrip("/") else filled


def given_port(agent_id: str, ports: Mapping[str, int], first: int, is_free: Callable[[int], bool]) -> int:
    """The agent's own port if it is free, else the lowest from `first` on that is free and nobody's.

    Raises CallTheOperator `no_port_left`.
    """
    own = ports.get(agent_id)
    if own is not None and is_free(own):
        return own
    taken = set(ports.values())
    for port in range(first, LAST_PORT + 1):
        if port not in taken and is_free(port):
            return port
    raise CallTheOperator("no_port_left", f"there is no free port from {first} to {LAST_PORT}")
