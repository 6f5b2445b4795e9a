"""What every command of `flow-engine` keeps: help, refused options, and files that are none or of others."""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from pymongo.errors import ConfigurationError
from typer.testing import CliRunner

from flow_engine.errors import CallTheOperator
from flows.mongo_store import mongo_errors_translated
from service.cli import app
from service.settings import refusal_line
from tests.flow_engine.linting.versions import sound_version

UNREADABLE = 2
ODD = "<odd>"
"""Where the file in question stands among the arguments."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    inner: dict[str, Any] | None = getattr(command, "commands", None)
    if inner is None:
        yield path
    else:
        for name, each in inner.items():
            yield from leaves(each, (*path, name))


TREE: Any = typer.main.get_command(app)
COMMANDS = sorted(leaves(TREE))


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code and both streams. Fails for a traceback, which is what nobody should see."""
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_each_of_its_options(path: tuple[str, ...]) -> None:
    code, out, _ = run(*path, "--help")
    assert code == 0
    command = TREE
    for name in path:
        command = command.commands[name]
    assert command.help, "a sentence that says what it does"
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            assert parameter.opts[-1] in out
            assert parameter.help, f"{path}: {parameter.opts}"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_an_option_that_no_command_has_is_refused_with_its_usage(path: tuple[str, ...]) -> None:
    code, out, err = run(*path, "--no-such-option")
    assert (code, out) == (2, "")
    assert "--no-such-option" in err


def test_a_command_that_is_none_is_refused() -> None:
    for words in (("flows",), ("flow", "valdate"), ("gateway", "cache", "cler")):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert words[-1] in err


def test_a_value_that_is_none_of_a_list_is_told_in_words_of_the_command_line() -> None:
    for words in (("flow", "diagram", "-", "--format", "png"), ("flow", "import", "rsa", "-")):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert f"'{words[-1] if words[1] == 'diagram' else words[2]}' is not one of" in err
        assert "Value error" not in err


READERS = [
    ("flow", "validate", ODD),
    ("flow", "diagram", ODD),
    ("flow", "diff", ODD, ODD),
    ("flow", "merge", ODD, ODD, ODD),
    ("flow", "test", ODD),
    ("flow", "replay", ODD, "--conversations", ODD),
    ("flow", "simulate", ODD, "--persona", ODD, "--recorded", ODD),
    ("flow", "import", "retell", ODD),
    ("flow", "import", "pipecat", ODD),
    ("flow", "import", "rasa", ODD),
    ("flow", "import", "dialogflow-cx", ODD),
    ("mail", "check", "--config", ODD),
    ("mail", "explain", "--config", ODD, ODD),
    ("gateway", "serve", "--config", ODD),
    ("voice", "serve", "--config", ODD),
    ("voice", "replay", "--config", ODD, "--events", ODD),
]


@pytest.mark.parametrize("arguments", READERS, ids=lambda words: " ".join(words[:3]))
def test_a_file_that_is_not_there_is_named(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*(word.replace(ODD, "nowhere.json") for word in arguments))
    assert code == UNREADABLE
    assert "nowhere.json" in out + err
    assert list(tmp_path.iterdir()) == [], "nothing was written"


CONTENTS = {
    "empty": b"",
    "half an object": b'{"tasks": [',
    "no text": b"\xff\xfe\x00\x01",
    "deep": b"[" * 2_000,
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("arguments", READERS, ids=lambda words: " ".join(words[:3]))
def test_a_file_of_something_else_is_refused_with_a_reason(
    arguments: tuple[str, ...], content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.json").write_bytes(content)
    code, out, err = run(*(word.replace(ODD, "odd.json") for word in arguments))
    assert code in {1, UNREADABLE}, (out, err)
    assert (out + err).strip()
    assert "Traceback" not in out + err


SAMPLE = "flows/samples/order.en.json"
PERSONA = "flows/samples/personas/order-status.yaml"
RECORDED = "flows/samples/personas/order-status.recorded.yaml"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("settings",),
        ("flow", "validate", "--json", SAMPLE),
        ("flow", "diagram", SAMPLE),
        ("flow", "diff", SAMPLE, "flows/samples/claim.es.json"),
        ("flow", "simulate", SAMPLE, "--persona", PERSONA, "--recorded", RECORDED),
        ("chat", "demo"),
        ("workspace", "demo"),
    ],
    ids=" ".join,
)
def test_output_that_cannot_be_written_is_told_in_one_line(arguments: tuple[str, ...]) -> None:  # F42
    command = [sys.executable, "-m", "service.cli", *arguments]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == UNREADABLE
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("flow-engine: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("flow", "diagram", SAMPLE, "--output"),
        ("flow", "test", "flows/samples/tests/order.yaml", "--junit"),
        ("flow", "simulate", SAMPLE, "--persona", PERSONA, "--recorded", RECORDED, "--junit"),
        ("flow", "simulate", SAMPLE, "--persona", PERSONA, "--recorded", RECORDED, "--record"),
    ],
    ids=lambda words: f"{words[1]} {words[-1]}",
)
def test_a_file_that_takes_no_more_is_named(arguments: tuple[str, ...]) -> None:  # F42
    code, _, err = run(*arguments, "/dev/full")
    assert code == UNREADABLE
    assert "/dev/full: No space left on device" in err


def test_what_the_encoding_of_the_terminal_lacks_is_replaced() -> None:  # F42
    command = [
        sys.executable,
        "-m",
        "service.cli",
        "flow",
        "test",
        "flows/samples/tests/order.yaml",
        "-k",
        "Nobody",
    ]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, check=False, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"? Nobody is free" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("flow", "validate", "--json", ODD),
        ("flow", "test", "--json", ODD),
        ("mail", "explain", "--json", "--config", "examples/mail.yaml", ODD),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_name_that_is_no_text_is_told_in_json(arguments: tuple[str, ...], tmp_path: Path) -> None:  # F42
    file = tmp_path / "od\udcffd.json"
    file.write_text("{}")
    _, out, _ = run(*(word.replace(ODD, str(file)) for word in arguments))
    assert "od\ufffdd.json" in out


def test_a_reader_that_has_seen_enough_ends_a_diagram_without_a_word() -> None:  # F42
    command = [sys.executable, "-m", "service.cli", "flow", "diagram", SAMPLE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as drawing:
        assert drawing.stdout is not None
        assert drawing.stderr is not None
        drawing.stdout.close()
        assert drawing.stderr.read() == ""


@pytest.mark.parametrize(
    "arguments", [("validate", "-", "-"), ("diff", "-", "-"), ("merge", "-", SAMPLE, "-")], ids=" ".join
)
def test_standard_input_stands_for_one_file_only(arguments: tuple[str, ...]) -> None:  # F42
    code, out, err = run("flow", *arguments)
    assert (code, out) == (2, "")
    assert "- can stand for one file only" in err


@pytest.mark.parametrize("command", ["validate", "diagram"])
def test_a_closed_standard_input_is_an_empty_one(command: str) -> None:  # F42
    words = (sys.executable, "-m", "service.cli", "flow", command, "-")
    done = subprocess.run(
        ("sh", "-c", 'exec "$@" <&-', "sh", *words), check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (UNREADABLE, "")
    assert "not JSON: Input is a zero-length, empty document" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_is_no_version(tmp_path: Path) -> None:
    for command in ("validate", "diagram"):
        code, out, err = run("flow", command, str(tmp_path))
        assert code == UNREADABLE
        assert str(tmp_path) in (out + err).replace("\n", "")


def test_a_diagram_is_never_written_over_by_a_refusal(tmp_path: Path) -> None:
    import_me, kept = tmp_path / "version.json", tmp_path / "diagram.dot"
    import_me.write_text("{")
    kept.write_text("as it was")
    code, _, _ = run("flow", "diagram", str(import_me), "--output", str(kept))
    assert code in {1, UNREADABLE}
    assert kept.read_text() == "as it was"


def test_limits_of_numbers_are_told(tmp_path: Path) -> None:
    version = tmp_path / "version.json"
    version.write_text(json.dumps(sound_version()))
    for arguments, said in (
        (("serve", "--port", "65536"), "must be less than or equal to 65535"),
        (("serve", "--port", "many"), "--port"),
        (("jobs", "dead", "--limit", "0"), "--limit"),
        (("worker", "--metrics-port", "0"), "--metrics-port"),
        (("mail", "runs", "--status", "stuck"), "'--status': accepted is one of: queued"),
        (("flow", "simulate", str(version), "--persona", str(version), "--runs", "0"), "--runs"),
        (("flow", "import", "voiceflow", str(version)), "voiceflow"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert said in err, arguments
        assert "Input should" not in err, arguments


def test_the_version_is_that_of_the_installation() -> None:  # F42
    code, out, _ = run("--version")
    assert (code, out) == (0, f"flow-engine {metadata.version('flow-engine')}\n")


def test_a_data_directory_that_cannot_be_made_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # F42
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(file / "data"))
    code, _, err = run("serve", "--port", "1")
    assert code == UNREADABLE
    assert f"FLOW_ENGINE_DATA_DIR: {file / 'data'} cannot be made or used: Not a directory" in err


def test_a_data_directory_of_somebody_else_is_named_with_who_may_not_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # F42
    monkeypatch.setattr("service.stores.access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(tmp_path))
    code, _, err = run("mail", "runs")
    assert code == UNREADABLE
    user = f"the user of this process, {os.geteuid()}, may not write"
    assert err == f"flow-engine: FLOW_ENGINE_DATA_DIR: {user} in {tmp_path}\n"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("collects_forgotten_sockets")
@pytest.mark.parametrize(
    ("variable", "url", "arguments"),
    [
        ("FLOW_ENGINE_REDIS_URL", "redis://me:secret-word@127.0.0.1:1/0", ("jobs", "dead")),
        ("FLOW_ENGINE_MONGO_URL", "mongodb://me:secret-word@127.0.0.1:1/db", ("mail", "runs")),
    ],
)
def test_why_a_store_does_not_answer_is_told_and_of_its_url_nothing_secret(
    variable: str, url: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:  # F42, F44
    monkeypatch.setenv(variable, url)
    code, out, err = run(*arguments)
    assert (code, out) == (UNREADABLE, "")
    first, second = err.splitlines()
    assert f"it is looked for at {variable}" in first
    assert "127.0.0.1:1" in second
    assert "Connect call failed" in second
    assert "secret-word" not in err


@pytest.mark.parametrize("command", [("approve",), ("reject",), ("runs", "show")])
def test_a_run_that_is_not_there_is_looked_for_by_a_command(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # M14
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(tmp_path))
    refused = "flow-engine: there is no run 'none'; flow-engine mail runs lists them\n"
    assert run("mail", *command, "none") == (UNREADABLE, "", refused)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("collects_forgotten_sockets")
@pytest.mark.parametrize(
    ("asked", "answers", "meant"), [("rediss", False, "redis"), ("redis", True, "rediss")]
)
def test_a_redis_asked_with_tls_that_speaks_none_and_the_reverse_is_told_with_the_other_scheme(
    asked: str, answers: bool, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # F42, F44
    """Redis without TLS waits for the end of the line that it takes TLS for; one with it resets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if answers:
            threading.Thread(target=_reset, args=(server,), daemon=True).start()
        monkeypatch.setenv("FLOW_ENGINE_REDIS_URL", f"{asked}://127.0.0.1:{server.getsockname()[1]}/0")
        code, _, err = run("jobs", "dead")
    assert code == UNREADABLE
    assert err.splitlines()[1].endswith(f", its URL begins with {meant}://")


def _reset(server: socket.socket) -> None:
    connection, _ = server.accept()
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_a_name_without_mongodb_servers_is_told_with_the_setting() -> None:  # F42, F44
    unknown = 'The DNS query name does not exist: _mongodb._tcp.db. "mongodb+srv://me:secret-word@db/"'
    with pytest.raises(CallTheOperator) as refused, mongo_errors_translated():
        raise ConfigurationError(unknown)
    assert refusal_line(refused.value).splitlines() == [
        "flow-engine: the MongoDB URL cannot be used; it is FLOW_ENGINE_MONGO_URL",
        "flow-engine: The DNS query name does not exist: _mongodb._tcp.db. ***",
    ]


@pytest.mark.parametrize("text", [None, "no JSON"])
def test_a_file_of_keys_that_cannot_be_used_is_told_with_the_setting(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # F42, F43
    file = tmp_path / "keys.json"
    if text is not None:
        file.write_text(text, "utf-8")
    monkeypatch.setenv("FLOW_ENGINE_API_KEYS_FILE", str(file))
    code, _, err = run("serve")
    (line,) = err.splitlines()
    assert (code, line.endswith("; it is FLOW_ENGINE_API_KEYS_FILE")) == (UNREADABLE, True), err


def test_a_program_may_open_as_many_files_as_the_system_allows() -> None:  # F42
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        CliRunner().invoke(app, ["--version"])
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
