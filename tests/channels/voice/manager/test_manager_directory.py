"""The manager's directory, and the ports that it remembers."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from channels.voice.manager.directory import locked_directory
from channels.voice.manager.fleet import AgentSpec, BridgeSpec
from channels.voice.manager.processes import agent_environment, bridge_environment
from channels.voice.manager.roster import LAST_PORT, given_port, is_free
from channels.voice.sip_bridge.account import Account
from flow_engine.errors import CallTheOperator


def test_what_is_written_is_for_its_owner_only(tmp_path: Path) -> None:  # V13
    umask = os.umask(0)
    try:
        with locked_directory(tmp_path / "deep" / "state", 0) as directory:
            directory.write_ports({"a": 5050})
            directory.write_status({"agents": []})
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.path.iterdir()}
            modes["."] = stat.S_IMODE(directory.path.stat().st_mode)
    finally:
        os.umask(umask)
    assert modes == {
        ".": 0o700,
        "configs": 0o700,
        "manager.lock": 0o600,
        "state.json": 0o600,
        "status.json": 0o600,
    }


def test_two_managers_never_share_a_directory(tmp_path: Path) -> None:  # V13
    with (
        locked_directory(tmp_path, 0),
        pytest.raises(CallTheOperator, match=str(os.getpid())),
        locked_directory(tmp_path, 0.3),
    ):
        pytest.fail("a second manager was let in")
    with locked_directory(tmp_path, 0):
        pass


def test_the_lock_is_held_until_its_last_copy_is_closed(tmp_path: Path) -> None:  # V13
    with locked_directory(tmp_path, 0) as directory:
        copy = os.dup(directory.lock)
    with pytest.raises(CallTheOperator), locked_directory(tmp_path, 0):
        pytest.fail("a second manager was let in")
    os.close(copy)
    with locked_directory(tmp_path, 0):
        pass


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:  # V13
    (tmp_path / "file").write_text("")
    with pytest.raises(CallTheOperator, match="cannot be used"), locked_directory(tmp_path / "file", 0):
        pytest.fail("there is no such directory")


def test_ports_are_remembered(tmp_path: Path) -> None:  # V13
    with locked_directory(tmp_path, 0) as directory:
        assert directory.read_ports() == {}
        directory.write_ports({"b": 5051, "a": 5050})
        assert directory.read_ports() == {"a": 5050, "b": 5051}
    assert orjson.loads((tmp_path / "state.json").read_bytes()) == {
        "version": 1,
        "ports": {"a": 5050, "b": 5051},
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"ports": []}',
        b'{"version": 2, "ports": {}}',
        b'{"version": 1, "ports": {"a": "x"}}',
        b'{"version": 1, "ports": {"a": 0}}',
        b'{"version": 1, "ports": {"a": 65536}}',
        b'{"version": 1, "ports": {"a": 5050, "b": 5050}}',
        b'{"version": 1, "ports": {}, "more": 1}',
    ],
)
def test_a_damaged_state_is_no_empty_one(tmp_path: Path, content: bytes) -> None:  # V13
    with locked_directory(tmp_path, 0) as directory:
        (tmp_path / "state.json").write_bytes(content)
        with pytest.raises(CallTheOperator, match="damaged"):
            directory.read_ports()


PORTS = st.integers(6000, 6020)


@given(
    st.dictionaries(st.sampled_from("abcde"), PORTS, max_size=5).filter(
        lambda ports: len(set(ports.values())) == len(ports)
    ),
    st.sets(PORTS, max_size=15),
    st.sampled_from("abcdef"),
)
def test_a_given_port_is_free_and_nobody_else_s(
    ports: dict[str, int], taken: set[int], agent_id: str
) -> None:  # V13
    port = given_port(agent_id, ports, 6000, lambda each: each not in taken)
    assert port not in taken
    assert all(port != other for owner, other in ports.items() if owner != agent_id)
    if agent_id in ports and ports[agent_id] not in taken:
        assert port == ports[agent_id]


def test_it_says_when_no_port_is_left() -> None:  # V13
    with pytest.raises(CallTheOperator, match=f"from 65534 to {LAST_PORT}"):
        given_port("a", {"b": 65_534}, 65_534, lambda port: port != 65_535)


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_on_which_somebody_listens_is_not_free(host: str) -> None:  # V13
    with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_a_port_with_old_connections_only_is_free() -> None:  # V13
    """An agent's port is that of its successor at once."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps the port for a while
        assert client.recv(1) == b""
    server.close()
    assert is_free(port)


def test_nobody_gets_secrets_that_are_not_for_them() -> None:  # V13
    inherited = {
        "PATH": "/bin",
        "OPENAI_API_KEY": "k",
        "FLOW_ENGINE_TWILIO_AUTH_TOKEN": "t",
        "FLOW_ENGINE_MANAGER_API_TOKEN": "m",
        "SIP_PASSWORD": "of another",
        "SIP_TRACE": "1",
    }
    assert agent_environment(inherited, "a", AgentSpec(5050, "0")) == {
        "PATH": "/bin",
        "OPENAI_API_KEY": "k",
        "FLOW_ENGINE_TWILIO_AUTH_TOKEN": "t",
        "SIP_TRACE": "1",
        "FLOW_ENGINE_VOICE_DRAIN_S": "15",
    }
    assert bridge_environment(inherited, BridgeSpec(5050, Account("d", "u", SecretStr("p")))) == {
        "PATH": "/bin",
        "SIP_TRACE": "1",
        "SIP_DOMAIN": "d",
        "SIP_USERNAME": "u",
        "SIP_PASSWORD": "p",
        "AGENT_PORT": "5050",
    }
