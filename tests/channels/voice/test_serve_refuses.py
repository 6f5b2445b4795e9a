"""V1: a config with errors ends `voice serve` with everything that is wrong, and no port was bound."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli import app
from tests.channels.voice.config.original_configs import example
from tests.channels.voice.served_configs import agent_environment, serve_command
from tests.service_process import ROOT


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Whoever tries to listen on it says so."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


def refused(config: Path, port: int) -> list[str]:
    """The lines that say why, of a command that ends before it opens anything: it needs no process."""
    done = CliRunner().invoke(app, serve_command(config, port)[3:], env=agent_environment())
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    return done.stderr.splitlines()


def serve(config: Path, port: int, **variables: str) -> tuple[int, list[str]]:
    """The exit code of a process, and the lines that say why."""
    done = subprocess.run(
        serve_command(config, port),
        cwd=ROOT,
        env=agent_environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


def written(tmp_path: Path, config: dict[str, Any]) -> Path:
    file = tmp_path / "agent.json"
    file.write_text(json.dumps(config), "utf-8")
    return file


def test_every_error_is_told_with_its_pointer_and_no_port_is_bound(tmp_path: Path, taken_port: int) -> None:
    config = example("restaurant")
    config["version"] = "1.0"
    config["openai"]["vad"]["threshold"] = "loud"
    config["pre_call_checks"][0]["block_if"] = "__import__('os')"
    config["lifecycle"]["outcome_rules"][1]["priority"] = None
    config["tools"]["cancel_order"]["pre_steps"][0]["extract"]["target_order"] = "$.orders[?("
    del config["tools"]["leave_message"]["url"]
    code, lines = serve(written(tmp_path, config), taken_port)
    pointers = [line.split(" error at ", 1)[1].split(":", 1)[0] for line in lines if " error at " in line]
    assert code == 2
    assert sorted(pointers) == [
        "/lifecycle/outcome_rules/1/priority",
        "/openai/vad/threshold",
        "/pre_call_checks/0/block_if",
        "/tools/cancel_order/pre_steps/0/extract/target_order",
        "/tools/leave_message/url",
        "/version",
    ]
    assert len(lines) == len(pointers)


@pytest.mark.parametrize("field", ["input_audio_format", "output_audio_format"])
@pytest.mark.parametrize("audio_format", ["pcm16", "g711_alaw"])
def test_a_format_that_twilio_cannot_play_ends_with_2_and_its_pointer(  # 24, voice-10
    tmp_path: Path, taken_port: int, field: str, audio_format: str
) -> None:
    config = example("switchboard")
    config["openai"][field] = audio_format
    [line] = refused(written(tmp_path, config), taken_port)
    assert f"error at /openai/{field}: " in line
    assert "g711_ulaw" in line


def test_a_config_without_errors_gets_as_far_as_the_port(tmp_path: Path, taken_port: int) -> None:
    code, lines = serve(written(tmp_path, example("switchboard")), taken_port)
    assert code != 0
    assert " error at " not in "\n".join(lines)
    assert str(taken_port) in "\n".join(lines)


def test_a_missing_key_is_told_at_the_start_and_not_by_the_first_call(
    tmp_path: Path, taken_port: int
) -> None:  # V12
    _, lines = serve(written(tmp_path, example("switchboard")), taken_port, OPENAI_API_KEY="")
    assert any("OPENAI_API_KEY is not set" in line for line in lines)


@pytest.mark.parametrize("account", [{}, {"FLOW_ENGINE_TWILIO_ACCOUNT_SID": "AC1"}])
@pytest.mark.parametrize("token", [{}, {"FLOW_ENGINE_TWILIO_AUTH_TOKEN": "t"}])
def test_a_transfer_that_the_carrier_is_not_set_up_for_is_told_at_the_start(
    tmp_path: Path, taken_port: int, account: dict[str, str], token: dict[str, str]
) -> None:  # V12
    config = example("switchboard")
    config["tools"]["to_a_person"] = {"type": "builtin", "action": "transfer", "target": "+33123456789"}
    command = serve_command(written(tmp_path, config), taken_port)[3:]
    done = CliRunner().invoke(app, command, env=agent_environment(**account, **token))
    warned = "warning at /tools/to_a_person: transfers no call without FLOW_ENGINE_TWILIO_ACCOUNT_SID"
    assert (warned in done.stderr) is not bool(account and token)


def test_a_builder_that_is_not_installed_is_an_error_like_any_other(tmp_path: Path, taken_port: int) -> None:
    config = example("restaurant")
    config["tools"]["confirm_order"]["body_builder"] = "nobody_wrote_this"
    [line] = refused(written(tmp_path, config), taken_port)
    assert "error at /tools/confirm_order/body_builder: " in line


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[]"], ids=["no file", "empty", "not JSON", "no object"]
)
def test_a_file_that_is_no_config_is_an_error_at_the_root(
    tmp_path: Path, taken_port: int, content: bytes | None
) -> None:
    file = tmp_path / "agent.json"
    if content is not None:
        file.write_bytes(content)
    [line] = refused(file, taken_port)
    assert f"{file}: error at /: " in line


def test_a_directory_that_takes_no_undelivered_requests_is_told_before_any_call(
    tmp_path: Path, taken_port: int
) -> None:  # V5
    config = written(tmp_path, example("switchboard"))
    code, lines = serve(config, taken_port, FLOW_ENGINE_VOICE_SPOOL="/dev/null/spool")
    assert code == 2
    assert lines[-1] == "flow-engine: requests cannot be kept in /dev/null/spool: Not a directory"


@pytest.mark.parametrize(
    ("place", "reason"), [("/dev/null", "it is no directory"), ("/dev/null/calls", "Not a directory")]
)
@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_directory_that_takes_no_recordings_is_told_before_any_call(
    tmp_path: Path, taken_port: int, command: str, place: str, reason: str
) -> None:  # V15
    config = written(tmp_path, example("restaurant"))
    words = serve_command(config, taken_port)[3:] if command == "serve" else ["voice", "demo"]
    done = CliRunner().invoke(app, [*words, "--record", place], env=agent_environment())
    assert done.exit_code == 2, done.output
    assert f"flow-engine: recordings cannot be kept in {place}: {reason}\n" in done.stderr
