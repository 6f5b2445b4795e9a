"""Settings of the service: their defaults, their bounds, and every wrong one at once (F42–F46)."""

from __future__ import annotations

import errno
import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest
import structlog
from pydantic import SecretStr
from structlog.testing import capture_logs
from typer.testing import CliRunner

from channels.chat.settings import ChatSettings
from flow_engine.documents import DocumentLimits
from flow_engine.errors import CallTheOperator
from service.cli import app
from service.logs import StandardError, StandardOutput, configure_logging
from service.settings import Settings, read_settings, variable_of
from service.stores import open_flow_database

PREFIX = "FLOW_ENGINE_"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nothing of it is set but what the test sets."""
    for name in Settings.model_fields:
        monkeypatch.delenv(variable_of(name), raising=False)

    def set_to(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(variable_of(name), value)

    return set_to


DEFAULTS: Mapping[str, object] = {
    "redis_url": None,
    "redis_cluster": False,
    "redis_durability": "aof",
    "redis_unsafe": False,
    "redis_wait_replicas": 0,
    "mongo_url": None,
    "data_dir": Path(".data"),
    "samples": True,
    "api_keys_file": None,
    "public_url": None,
    "cors_origins": "",
    "held_bytes": 64 * 1024 * 1024,
    "memory_format": "markdown",
    "outbound_allow": "",
    "llm_model": None,
    "llm_timeout_s": 10.0,
    "llm_at_once": 16,
    "llm_calls_per_minute": 600,
    "max_document_bytes": 1_000_000,
    "max_document_depth": 100,
    "max_tasks": 300,
    "rules_extraction": True,
    "worker_in_serve": None,
    "jobs_at_once": 16,
    "job_lease_s": 15.0,
    "job_timeout_s": 60.0,
    "job_attempts": 10,
    "events_kept": 100_000,
    "cti_stream": None,
    "webhook_url": None,
    "webhook_secret": None,
    "traces": None,
    "voice_directory": None,
    "worker_metrics_host": "127.0.0.1",
    "worker_metrics_port": None,
    "log_level": "info",
}
ESCAPED = "Hint: username and password must be escaped according to RFC 3986, use urllib.parse.quote_plus"


class TestDefaults:
    def test_without_an_environment_everything_is_inside_this_process(self, environment: Any) -> None:
        settings = read_settings(Settings)
        assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS  # F42
        assert settings.works_in_serve
        assert settings.origins == ()
        assert settings.document_limits == DocumentLimits(
            max_bytes=1_000_000, max_depth=100, max_tasks=300
        )  # F9

    def test_every_setting_says_what_it_is(self) -> None:
        for name, field in Settings.model_fields.items():
            assert field.description, name

    @pytest.mark.parametrize(
        ("redis", "set_to", "works"),
        [
            (None, None, True),
            ("redis://127.0.0.1:6379", None, False),
            ("redis://127.0.0.1:6379", "true", True),
            (None, "false", False),
        ],
    )
    def test_serve_works_in_the_background_only_without_workers_beside_it(
        self, environment: Any, redis: str | None, set_to: str | None, works: bool
    ) -> None:
        environment(**({"redis_url": redis} if redis else {}))
        environment(**({"worker_in_serve": set_to} if set_to else {}))
        assert read_settings(Settings).works_in_serve is works  # F41, F42

    def test_settings_are_not_changed_once_they_are_read(self, environment: Any) -> None:
        with pytest.raises(ValueError, match="frozen"):
            read_settings(Settings).max_tasks = 3  # type: ignore[misc]


class TestReading:
    @pytest.mark.parametrize(
        ("name", "text", "value"),
        [
            ("samples", "false", False),
            ("samples", "0", False),
            ("redis_cluster", "TRUE", True),
            ("data_dir", "/srv/data", Path("/srv/data")),
            ("held_bytes", "0", 0),
            ("llm_timeout_s", "600", 600.0),
            ("job_lease_s", "0.3", 0.3),
            ("redis_wait_replicas", "10", 10),
            *(
                ("redis_url", url, url)
                for url in (
                    "redis://cache",
                    "redis://cache:6379/",
                    "rediss://cache:6379/15",
                    "unix:///run/redis",
                )
            ),
            ("worker_metrics_port", "65535", 65_535),
            ("max_document_depth", "10", 10),
            ("events_kept", "1000", 1_000),
            ("log_level", "debug", "debug"),
            ("traces", "console", "console"),
            ("memory_format", "toon", "toon"),
            ("public_url", "https://flows.example.com/engine", "https://flows.example.com/engine"),
            ("webhook_secret", "sixteen-letters!", SecretStr("sixteen-letters!")),
        ],
    )
    def test_a_variable_is_read_in_its_type(
        self, environment: Any, name: str, text: str, value: object
    ) -> None:
        environment(**{name: text})
        assert getattr(read_settings(Settings), name) == value  # F42

    @pytest.mark.parametrize(
        ("name", "text", "told"),
        [
            ("samples", "maybe", "must be a valid boolean"),
            ("redis_durability", "some", "must be 'none', 'aof' or 'always'"),
            ("memory_format", "xml", "must be 'markdown' or 'toon'"),
            ("traces", "yes", "must be 'otlp' or 'console'"),
            ("log_level", "INFO", "must be 'debug', 'info', 'warning' or 'error'"),
            ("held_bytes", "-1", "must be greater than or equal to 0"),
            ("redis_wait_replicas", "11", "must be less than or equal to 10"),
            ("llm_timeout_s", "0", "must be greater than 0"),
            ("llm_timeout_s", "nan", "must be less than or equal to 600"),
            ("llm_timeout_s", "601", "must be less than or equal to 600"),
            ("llm_at_once", "0", "must be greater than or equal to 1"),
            ("max_document_bytes", "999", "must be greater than or equal to 1000"),
            ("max_document_depth", "9", "must be greater than or equal to 10"),
            ("max_tasks", "0", "must be greater than or equal to 1"),
            ("jobs_at_once", "1001", "must be less than or equal to 1000"),
            ("job_lease_s", "0.2", "must be greater than or equal to 0.3"),
            ("job_timeout_s", "0", "must be greater than 0"),
            ("events_kept", "999", "must be greater than or equal to 1000"),
            ("worker_metrics_port", "65536", "must be less than or equal to 65535"),
            *(
                (
                    "redis_url",
                    url,
                    "accepted is redis:// or rediss:// with host:port, or unix:// with a path",
                )
                for url in (
                    "hush",
                    "redis://[::1",
                    "redis://:hush@cache:port",
                    "redis:///0",
                    "http://cache",
                    "unix:",
                )
            ),
            *(
                ("redis_url", url, "accepted after the host is nothing, or / and the number of a database")
                for url in ("redis://cache:6379/abc", "redis://cache:6379/0/", "rediss://cache:6379/0/1")
            ),
            *(
                ("mongo_url", url, "accepted is mongodb:// or mongodb+srv:// with a host")
                for url in ("hush", "mongodb://", "https://mongo.example")
            ),
            *(
                ("webhook_url", url, "accepted is http:// or https:// with a host")
                for url in ("hooks.example.com", "https://", "ftp://hooks.example.com")
            ),
            *(
                ("webhook_url", url, f"it could never be called: {told}")
                for url, told in (
                    (
                        "https://ada:hush@hooks.example",
                        "the URL holds a user or password, which is never sent",
                    ),
                    ("https://hooks.example.com:99999", "port 99999 does not exist"),
                    ("https://a..b", "'a..b' is not a host name or address with one reading"),
                    (
                        "http://127.0.0.1/hooks",
                        "'127.0.0.1' port 80 leads to a loopback address; public addresses and the entries "
                        "of FLOW_ENGINE_OUTBOUND_ALLOW are accepted",
                    ),
                )
            ),
            *(
                ("redis_url", f"redis://:hush@cache{rest}", told)
                for rest, told in (
                    ("/0?nosuch=1", "there is no option 'nosuch'"),
                    ("/0?socket_timeout=abc", "Invalid value for 'socket_timeout' in connection URL."),
                    ("?db=x", "Invalid value for 'db' in connection URL."),
                    ("/0?protocol=hush", "Invalid value for 'protocol' in connection URL."),
                    ("/0?protocol=9", "an option has a value that redis-py does not take"),
                )
            ),
            *(
                ("mongo_url", f"mongodb://{rest}", told)
                for rest, told in (
                    ("127.0.0.1:99999/x", "Port must be an integer between 0 and 65535"),
                    ("u:hu/sh@127.0.0.1/x", f"Port contains non-digit characters. {ESCAPED}"),
                    ("u:1/hu sh@db", "Bad database name ***"),
                    (
                        "u:p@w@db/x",
                        "Username and password must be escaped according to RFC 3986, use "
                        "urllib.parse.quote_plus",
                    ),
                    (
                        "db/x?tls=true&tlsCAFile=/nope",
                        "a file that it names cannot be read: No such file or directory",
                    ),
                )
            ),
            (
                "llm_model",
                "openai:gpt-5,foo",
                "'foo' names no model; accepted: '<provider>:<model>', '<provider>/<model>' or "
                '{"provider": ..., "model": ...}, the provider one of openai, azure, google, gemini, groq, '
                "vllm, ollama, local",
            ),
            (
                "outbound_allow",
                "crm.example, 10.0.0.1/8",
                "'10.0.0.1/8': 10.0.0.1/8 has host bits set. Accepted: a host name, host:port, an address, "
                "[IPv6]:port or a CIDR range without host bits, such as 10.0.0.0/8",
            ),
            (
                "public_url",
                "flows.example.com",
                "accepted is http:// or https://, a host, and a path or none",
            ),
            *(
                ("public_url", url, "accepted is http:// or https://, a host, and a path or none")
                for url in (
                    "https://flows.example.com?x=1",
                    "https://flows.example.com/engine#x",
                    "https://flows.example .com",
                    "https://:8080",
                )
            ),
            ("webhook_secret", "short", "must have at least 16 characters"),
            (
                "cors_origins",
                "https://a.example, b.example",
                "'b.example' is no origin; accepted are such as https://editor.example:8443",
            ),
            (
                "cors_origins",
                "https://a.example/path",
                "'https://a.example/path' is no origin; accepted are such as https://editor.example:8443",
            ),
        ],
    )
    def test_a_wrong_one_is_told_by_its_variable_with_what_would_do(
        self, environment: Any, name: str, text: str, told: str
    ) -> None:
        environment(**{name: text})
        with pytest.raises(CallTheOperator) as raised:
            read_settings(Settings)
        assert raised.value.code == "settings_invalid"
        assert raised.value.detail == f"{PREFIX}{name.upper()}: {told}"

    @pytest.mark.parametrize("key", ["cl\u00e9", "k-1\nk-2"])
    def test_a_key_for_the_engine_that_no_header_can_hold_is_wrong(self, environment: Any, key: str) -> None:
        environment(api_key=key)
        with pytest.raises(CallTheOperator, match=r"FLOW_ENGINE_API_KEY: .*accepted is a key of one line"):
            read_settings(ChatSettings)
        environment(api_key="k-1\n")  # as a file has it
        read = read_settings(ChatSettings).api_key
        assert read is not None
        assert read.get_secret_value() == "k-1"

    def test_all_that_are_wrong_are_told_at_once(self, environment: Any) -> None:
        environment(
            redis_durability="some", mongo_url="mongo", max_tasks="0", samples="maybe", llm_model="gpt"
        )
        with pytest.raises(CallTheOperator) as raised:
            read_settings(Settings)
        named = re.findall(rf"{PREFIX}\w+", raised.value.detail)
        wrong = ("REDIS_DURABILITY", "MONGO_URL", "SAMPLES", "LLM_MODEL", "MAX_TASKS")
        assert named == [f"{PREFIX}{name}" for name in wrong]  # F42, F45

    @pytest.mark.parametrize(
        ("text", "origins"),
        [
            ("", ()),
            (" , ,", ()),
            ("https://a.example", ("https://a.example",)),
            (" https://a.example ,http://localhost:3000,", ("https://a.example", "http://localhost:3000")),
            ("http://[::1]:3000", ("http://[::1]:3000",)),
        ],
    )
    def test_origins_are_read_between_commas(
        self, environment: Any, text: str, origins: tuple[str, ...]
    ) -> None:
        environment(cors_origins=text)
        assert read_settings(Settings).origins == origins  # F43

    @pytest.mark.parametrize("name", ["cti_stream", "webhook_secret", "redis_url", "worker_metrics_port"])
    def test_an_empty_variable_is_as_if_it_were_not_set(self, environment: Any, name: str) -> None:
        environment(**{name: ""})
        assert getattr(read_settings(Settings), name) is None  # peers 8

    @pytest.mark.parametrize("secret", ["", "short", "fifteen-letters"])
    def test_a_short_secret_is_none_and_never_shown(self, environment: Any, secret: str) -> None:
        environment(webhook_secret=secret)
        if not secret:
            assert read_settings(Settings).webhook_secret is None
            return
        with pytest.raises(CallTheOperator) as raised:
            read_settings(Settings)
        assert secret not in raised.value.detail  # F46


class TestShowing:
    """`flow-engine settings` shows values, and of those that may carry a password all but it (F46)."""

    def shown(self, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("COLUMNS", "300")
        done = CliRunner().invoke(app, ["settings"])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    @pytest.mark.parametrize(
        ("name", "url", "line"),
        [
            ("redis_url", "redis://:hush@cache:6379/0", "redis://***@cache:6379/0"),
            ("redis_url", "rediss://ada:hush@cache", "rediss://***@cache"),
            ("mongo_url", "mongodb://ada:hu%40sh@a,b/flows?w=1", "mongodb://***@a,b/flows?w=***"),
            ("redis_url", "redis://cache:6379/0", "redis://cache:6379/0"),
            ("redis_url", "rediss://hush@cache", "rediss://***@cache"),
            (
                "redis_url",
                "redis://cache/0?password=hush&db=1#hush",
                "redis://cache/0?password=***&db=***#***",
            ),
            ("redis_url", "unix:///run/redis?password=hush", "unix:///run/redis?password=***"),
            ("webhook_url", "https://hooks.example.com/in?hush", "https://hooks.example.com/in?***"),
            ("gateway_url", "https://[::1?hush", "*** (no URL)"),
            ("gateway_url", "https://ada:hush@gateway.example/v1", "https://***@gateway.example/v1"),
            ("gateway_url", "ada:hush@gateway.example", "*** (no URL)"),
            ("engine_url", "http://:hush@engine:8080?key=hush", "http://***@engine:8080?key=***"),
            ("realtime_url", "wss://voice.example/v1?key=hush", "wss://voice.example/v1?key=***"),
            (
                "chat_mcp_servers",
                "crm=https://ada:hush@crm.example/mcp,pay=https://pay.example/mcp?token=hush",
                "crm=https://***@crm.example/mcp,pay=https://pay.example/mcp?token=***",
            ),
        ],
    )
    def test_a_url_is_shown_without_its_password(
        self, environment: Any, monkeypatch: pytest.MonkeyPatch, name: str, url: str, line: str
    ) -> None:
        environment(**{name: url})
        shown = self.shown(monkeypatch)
        assert line in shown
        assert "hush" not in shown
        assert "hu%40sh" not in shown

    def test_a_secret_is_stars(self, environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        environment(webhook_secret="sixteen-letters!", gateway_key="sk-of-the-gateway")
        shown = self.shown(monkeypatch)
        assert shown.count("**********") == 2
        assert "sixteen-letters!" not in shown
        assert "sk-of-the-gateway" not in shown


class TestLogs:
    """One JSON object a line, of the level that is asked for and above it (F46)."""

    def lines(self, written: str) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in written.splitlines()]

    @pytest.mark.parametrize(
        ("level", "told"),
        [
            ("debug", ["debug", "info", "warning", "error"]),
            ("info", ["info", "warning", "error"]),
            ("warning", ["warning", "error"]),
            ("error", ["error"]),
        ],
    )
    @pytest.mark.parametrize("to", [StandardOutput, StandardError])
    def test_lines_below_the_level_are_left_out(
        self, capfdbinary: pytest.CaptureFixture[bytes], level: str, told: list[str], to: Any
    ) -> None:
        configure_logging(level, to=to)
        log = structlog.get_logger("flow_engine.test")
        for name in ("debug", "info", "warning", "error"):
            getattr(log, name)("a_message", conversation_id="c-1")
        written = capfdbinary.readouterr()
        mine, other = (written.out, written.err) if to is StandardOutput else (written.err, written.out)
        found = self.lines(mine.decode())
        assert [line["level"] for line in found] == told
        assert all(line["event"] == "a_message" for line in found)
        assert all(line["conversation_id"] == "c-1" for line in found)
        assert all(line["timestamp"].endswith("Z") for line in found)
        assert other == b""

    @pytest.mark.parametrize("to", [StandardOutput, StandardError])
    @pytest.mark.parametrize(
        "error", [OSError(errno.ENOSPC, "full"), BrokenPipeError(), ValueError("closed")], ids=type
    )
    def test_a_line_that_cannot_be_written_fails_nothing(
        self, monkeypatch: pytest.MonkeyPatch, to: Any, error: Exception
    ) -> None:  # F44, F46
        unwritable = mock.Mock(**{"buffer.write.side_effect": error})
        monkeypatch.setattr(sys, "stdout", unwritable)
        monkeypatch.setattr(sys, "stderr", unwritable)
        configure_logging("info", to=to)
        structlog.get_logger("flow_engine.test").info("a_message")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        assert unwritable.buffer.write.call_count == 2

    def test_an_error_has_its_frames_without_what_callers_sent(
        self, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        configure_logging("info")
        secret = "+39 347 1234567"
        try:
            {}["absent" if secret else ""]
        except KeyError:
            structlog.get_logger("flow_engine.test").exception("a_bug")
        (line,) = self.lines(capfdbinary.readouterr().out.decode())
        assert (line["event"], line["level"]) == ("a_bug", "error")
        assert line["exception"][0]["exc_type"] == "KeyError"
        assert all("locals" not in frame for frame in line["exception"][0]["frames"])
        assert secret not in str([frame.get("name") for frame in line["exception"][0]["frames"]])

    @pytest.mark.parametrize(("level", "quotes"), [("info", False), ("DEBUG", True)])
    def test_what_an_exception_says_is_told_at_debug_alone(
        self, capfdbinary: pytest.CaptureFixture[bytes], level: str, quotes: bool
    ) -> None:  # F46, V14
        configure_logging(level)
        try:
            try:
                int("Mario")
            except ValueError as error:
                error.add_note("of Mario")
                raise ExceptionGroup("Mario", [KeyError("Mario")]) from error
        except ExceptionGroup:
            structlog.get_logger("flow_engine.test").exception("a_bug")
        written = capfdbinary.readouterr().out
        (line,) = self.lines(written.decode())
        assert [each["exc_type"] for each in line["exception"]] == ["ExceptionGroup", "ValueError"]
        assert line["exception"][0]["exceptions"][0][0]["exc_type"] == "KeyError"
        assert (b"Mario" in written) is quotes

    @pytest.mark.parametrize(("level", "told"), [("info", ["warning", "error"]), ("error", ["error"])])
    def test_what_libraries_log_is_a_line_too_once_and_without_values(
        self, capfdbinary: pytest.CaptureFixture[bytes], level: str, told: list[str]
    ) -> None:  # F46
        configure_logging(level)
        configure_logging(level)
        library = logging.getLogger("uvicorn.error")
        library.info("Waiting for %s", "requests")
        library.warning("Invalid HTTP request received.")
        try:
            {}["absent"]
        except KeyError:
            logging.getLogger("asyncio").exception("Task exception was never retrieved\nfuture: %r", "Mario")
        written = capfdbinary.readouterr()
        found = self.lines(written.out.decode())
        assert [line["level"] for line in found] == told
        assert found[-1]["exception"][0]["exc_type"] == "KeyError"
        assert (found[-1]["event"], found[-1]["logger"]) == ("Task exception was never retrieved", "asyncio")
        assert all(line["timestamp"].endswith("Z") for line in found)
        assert b"Mario" not in written.out
        assert written.err == b""

    def test_an_unknown_level_is_an_error(self) -> None:
        with pytest.raises(KeyError):
            configure_logging("loud")

    def test_what_a_program_configured_ends_with_its_test(self) -> None:
        with capture_logs() as captured:
            structlog.get_logger("flow_engine.test").info("seen")
        assert [line["event"] for line in captured] == ["seen"]


def test_the_data_directory_is_made_for_its_user_alone_and_one_that_is_there_stays(
    tmp_path: Path,
) -> None:  # F42
    for mode in (0o700, 0o750):
        open_flow_database(Settings(data_dir=tmp_path / "data", mongo_url=None))
        assert (tmp_path / "data").stat().st_mode & 0o777 == mode
        (tmp_path / "data").chmod(0o750)
