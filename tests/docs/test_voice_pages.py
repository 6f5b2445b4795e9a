"""The pages of the voice agent: what can be run is run, what can be checked is checked (V1-V15)."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from openai.types.realtime import audio_transcription
from openai.types.realtime import realtime_session_create_request as realtime_session
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from adapters.http_door import DoorLimits
from channels.http_tools import documents
from channels.http_tools.expressions import Condition
from channels.http_tools.json_paths import JsonPath
from channels.http_tools.scope import NAMESPACES, SPECIALS, Scope
from channels.http_tools.templates import JsonTemplate, UrlTemplate
from channels.voice import bridge, model_connection, runner
from channels.voice.call import audio_output, dialogue, state
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.config import call_handler, lifecycle, models
from channels.voice.config.loader import load_config
from channels.voice.config.review import AGENT_NAMES, ROOT_NAMES
from channels.voice.config.vocabulary import VOICES
from channels.voice.metrics import Counting
from channels.voice.recording import read_recording
from channels.voice.server import http, line_sockets
from channels.voice.server.settings import VoiceSettings, variable_of
from tests.docs.walkthrough import BLOCK, assert_shows, looks_like
from tests.ports import free_port
from tests.service_process import ROOT

GUIDE, REFERENCE, REPLAY, OPERATIONS = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("voice", "voice-config", "voice-replay", "operations")
)
PORTS = ("5050", "8765")
STAYS = ("flow-engine voice serve --config desk.json", "python -m channels.voice.testing.fake_realtime")
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("FLOW_ENGINE_", "OPENAI_"))},
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
}


class Reader:
    """Somebody who follows a page in a directory of their own. Servers run until the page ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = {port: str(free_port()) for port in PORTS}
        self._servers: list[subprocess.Popen[bytes]] = []
        self.ran = self.compared = 0

    def follow(self, page: str) -> None:
        output = ""
        try:
            for file, kind, text in BLOCK.findall(page):
                if file:
                    (self._directory / file).write_text(text, encoding="utf-8")
                elif kind == "sh":
                    output = self._run(self._own(text))
                    self.ran += 1
                elif kind == "text" and not text.lstrip().startswith("export "):
                    looks_like(self._own(text), output)
                    self.compared += 1
                elif kind == "json" and output.startswith("{"):
                    assert_shows(json.loads(text), json.loads(output), "")
                    self.compared += 1
        finally:
            self._stop()

    def _own(self, text: str) -> str:
        """With ports that are free here."""
        for port, free in self._ports.items():
            text = re.sub(rf"(127\.0\.0\.1:|--port ){port}\b", rf"\g<1>{free}", text)
        return text

    def _run(self, command: str) -> str:
        if any(server in command for server in STAYS):
            self._start(command)
            return ""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._directory,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout + done.stderr

    def _start(self, command: str) -> None:
        *settings, server = command.strip().splitlines()
        [port] = re.findall(r"--port (\d+)", server)
        process = subprocess.Popen(
            ["bash", "-c", "\n".join([*settings, f"exec {server}"])],
            cwd=self._directory,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._servers.append(process)
        for _ in range(300):
            assert process.poll() is None, f"{server} has ended"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"{server} does not listen")

    def _stop(self) -> None:
        for server in self._servers:
            for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):  # the second one waits for no call
                server.send_signal(number)
                try:
                    server.wait(5)
                    break
                except subprocess.TimeoutExpired:
                    pass


def files(page: str, directory: Path) -> None:
    for file, _, text in BLOCK.findall(page):
        if file:
            (directory / file).write_text(text, encoding="utf-8")


@pytest.mark.long
def test_the_guide_goes_as_it_says(tmp_path: Path) -> None:  # V1-V14
    reader = Reader(tmp_path)
    reader.follow(GUIDE)
    assert (reader.ran, reader.compared) >= (7, 6)


@pytest.mark.long
def test_recordings_and_the_shipped_doubles_work_as_their_page_says(tmp_path: Path) -> None:  # V12, V15
    files(GUIDE, tmp_path)
    reader = Reader(tmp_path)
    reader.follow(REPLAY)
    assert (reader.ran, reader.compared) >= (6, 4)


def test_the_schema_of_configs_is_printed_as_the_reference_says(tmp_path: Path) -> None:  # V1
    Reader(tmp_path).follow(REFERENCE)
    schema = json.loads((tmp_path / "voice-config.schema.json").read_text())
    assert schema["title"] == "Voice agent config"


def test_every_part_of_a_config_in_the_guide_can_be_run(tmp_path: Path) -> None:  # V1-V7
    files(GUIDE, tmp_path)
    desk = json.loads((tmp_path / "desk.json").read_text())
    parts = [json.loads(text) for _, kind, text in BLOCK.findall(GUIDE) if kind == "jsonc"]
    assert len(parts) >= 7
    for part in ({}, *parts):
        config = {**desk, **part}
        if isinstance(part.get("tools"), dict) and part["tools"]:
            config["tools"] = {**desk["tools"], **part["tools"]}
        loaded = load_config(json.dumps(config).encode(), builders=())
        told = [
            w.message for w in loaded.warnings if w.code not in ("handler_not_declared", "unused_in_flow")
        ]
        assert told == [], part


def test_the_lines_of_a_recording_are_some() -> None:  # V15
    [lines] = [text for _, kind, text in BLOCK.findall(REPLAY) if kind == "jsonl"]
    entries = read_recording(lines.encode(), TwilioStreams())
    assert [entry.side for entry in entries] == [
        "line",
        "http",
        "model",
    ]


def rows(page: str, heading: str) -> list[tuple[str, ...]]:
    """The cells of the table under a heading."""
    section = page.split(f"\n### {heading}\n")[1].split("\n#", maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]) for line in lines]


REQUEST = set(documents.HttpRequest.model_fields)
PLAIN = set(documents.RequestFields.model_fields)
SECTIONS: list[tuple[str, type[BaseModel], set[str]]] = [
    ("The config", models.VoiceConfig, set()),
    ("`agent`", models.Agent, set()),
    ("`openai`", models.OpenAi, set()),
    ("`openai.vad`", models.Vad, set()),
    ("`openai.input_audio_transcription`", models.Transcription, set()),
    ("`session`, mode `inline`", models.InlineSession, set()),
    ("`session`, mode `config_url`", models.ConfigUrlSession, REQUEST),
    ("`session.response_mapping`", models.ResponseMapping, set()),
    ("`session`, mode `flow`", models.FlowSession, set()),
    ("`pre_call_checks`", models.PreCallCheck, REQUEST),
    ("`greeting`", models.Greeting, set()),
    ("`lifecycle`", models.Lifecycle, set()),
    ("A call of `lifecycle`", documents.LifecycleCall, REQUEST),
    ("`lifecycle.outcome_rules`", models.OutcomeRule, set()),
    ("`fallback`", models.Fallback, set()),
    ("Requests", documents.HttpRequest, set()),
    ("Tools of type `http`", documents.HttpTool, REQUEST),
    ("`on_success` and `on_error`", documents.ToolReturn, set()),
    ("`pre_steps`", documents.PreStep, PLAIN),
    ("Tools of type `builtin`", documents.BuiltinTool, set()),
]


@pytest.mark.parametrize(("heading", "model", "elsewhere"), SECTIONS, ids=[name for name, _, _ in SECTIONS])
def test_the_reference_has_every_field_with_its_default(
    heading: str, model: type[BaseModel], elsewhere: set[str]
) -> None:  # V1-V7
    shown = {row[0].strip("`"): row[1] for row in rows(REFERENCE, heading)}
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    assert shown.keys() == fields.keys() - elsewhere
    for name, cell in shown.items():
        assert cell == _default(fields[name]), name


def test_every_kind_of_document_is_in_the_reference() -> None:  # V1-V7
    described = {model for _, model, _ in SECTIONS}
    abstract = {documents.Document, documents.RequestFields}
    known = {
        kind
        for module in (models, documents)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, documents.Document)
    }
    assert known - abstract == described


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "as below"
    return f"`{json.dumps(default)}`" if isinstance(default, str | int | float) else "–"


def test_every_variable_filter_and_voice_is_in_the_reference() -> None:  # V8
    named = set(re.findall(r"^\| `(\w+)(?:\(X\))?` \|", REFERENCE.split("## Templates")[1], re.MULTILINE))
    assert named == SPECIALS | NAMESPACES | ROOT_NAMES | {"default", "json", "int", "float"}
    [agent] = re.findall(r"^\| `agent` \| (`id`.+) \|$", REFERENCE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", agent)) == AGENT_NAMES
    [voices] = re.findall(r"^\| `voice` \| `\"sage\"` \| (.+?);", REFERENCE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", voices)) == set(VOICES)


def examples(first: str) -> list[tuple[str, Any]]:
    """The rows of the table of examples that begins so."""
    table = REFERENCE.split(f"| {first} |")[1].split("\n\n")[0]
    found = re.findall(r"^\| `(.+)` \| `(.+)` \|$", table, re.MULTILINE)
    return [(text.replace("\\|", "|"), json.loads(result)) for text, result in found]


@pytest.fixture
def seen() -> tuple[Scope, Any]:
    [values] = [json.loads(text) for _, kind, text in BLOCK.findall(REFERENCE) if kind == "json"]
    reply = values.pop("reply")
    root, specials = {"base_url": values.pop("base_url")}, {"caller_phone": values.pop("caller_phone")}
    return Scope(specials=specials, root=root, **values), reply


def test_templates_give_what_the_reference_says(seen: tuple[Scope, Any]) -> None:  # V8
    shown = examples("template | gives")
    assert len(shown) >= 12
    for text, result in shown:
        kind = UrlTemplate if text.startswith("{{base_url}}/") else JsonTemplate
        assert kind.parse(text).render(seen[0]) == result, text


def test_conditions_hold_as_the_reference_says(seen: tuple[Scope, Any]) -> None:  # V9
    shown = examples("condition | holds")
    assert len(shown) >= 7
    for text, result in shown:
        assert Condition.parse(text).holds(*seen) == result, text


def test_paths_find_what_the_reference_says(seen: tuple[Scope, Any]) -> None:  # V8, V9
    shown = examples("path | gives")
    assert len(shown) >= 4
    for text, result in shown:
        assert JsonPath.parse(text).first(seen[1], seen[0]) == result, text


def test_the_operators_page_has_every_setting_of_the_agent() -> None:  # V12
    table = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", OPERATIONS, re.MULTILINE)
    shown = {name: (default, told) for name, default, told in table}
    for name, field in VoiceSettings.model_fields.items():
        default = f"`{field.default}`" if field.default not in (None, "") else "–"
        assert shown.get(variable_of(name)) == (default, field.description), name


def test_the_limits_of_the_guide_are_those_of_the_code() -> None:  # voice-smaller, V6
    table = re.findall(
        r"^\| (.+) \| (.+) \|$", GUIDE.split("| what | at most |")[1].split("\n\n")[0], re.MULTILINE
    )
    numbers = [
        [float(number) for number in re.findall(r"[\d.]+(?= (?:s|KiB|MiB)\b)", most)] for _, most in table
    ]
    kib = 1024
    assert numbers == [
        [lifecycle.CHECKED_WITHIN_S],
        [call_handler.SESSION_WITHIN_S, runner.OPEN_WITHIN_S],
        [math.ceil(model_connection.OPENING.of_all), model_connection.LONGER.of_all],
        [lifecycle.WITHIN_S],
        [runner.TOOL_WITHIN_S],
        [runner.TRANSFER_WITHIN_S],
        [
            *(state.LEAVE_WITHIN_S, 2 * state.LEAVE_WITHIN_S),
            *(state.MARK_WITHIN_S, audio_output.MOST_WAITING_MS / 1000),
        ],
        [runner.GREETING_WAITS_S],
        [runner.LAST_TOOLS_WITHIN_S, runner.LAST_WORDS_WITHIN_S],
        [runner.START_WITHIN_S, runner.ENDED_WITHIN_S],
        [audio_output.TEXT_WITHIN_S],
        [bridge.BEGIN_WITHIN_S],
        [state.LINE_SILENT_S],
        [dialogue.ANSWERED_WITHIN_S, state.MODEL_SILENT_S],
        [DoorLimits().head_bytes / kib, DoorLimits().head_s, line_sockets.MAX_HEAD_BYTES / kib],
        [http.MAX_BODY_BYTES / kib, http.BODY_WITHIN_S, line_sockets.MAX_FRAME_BYTES / kib / kib],
    ]


def test_the_operators_page_has_every_metric_of_the_agent() -> None:  # V12, V14
    table = re.findall(r"^\| `(flow_engine_voice_\w+)` \| (.+?) \| (.+) \|$", OPERATIONS, re.MULTILINE)
    registry = CollectorRegistry()
    Counting(registry)
    families = {f"{m.name}{'_total' if m.type == 'counter' else ''}": m for m in registry.collect()}
    assert {name: told for name, _, told in table} == {n: m.documentation for n, m in families.items()}


def test_settings_and_options_that_the_pages_name_exist() -> None:  # V12
    known = {variable_of(name) for name in VoiceSettings.model_fields} | {"FLOW_ENGINE_API_KEY"}
    for page in (GUIDE, REFERENCE, REPLAY):
        named = set(re.findall(r"\b(?:FLOW_ENGINE|OPENAI)_[A-Z_]+\b", page))
        assert named <= known, named - known


def test_the_announced_ends_of_models_are_those_of_the_vendors_types() -> None:  # V1
    session, transcription = inspect.getsource(realtime_session), inspect.getsource(audio_transcription)
    for source, ending, until in (
        (session, "gpt-realtime", "2027-01-20"),
        (transcription, "whisper-1", "2027-02-26"),
    ):
        _, _, deprecated = source.partition("Deprecated values:")
        assert f'"{ending}"' in deprecated
        assert until in deprecated
        assert until in GUIDE
        assert until in REFERENCE
    [named] = re.findall(r'"openai": (\{.*\})', GUIDE)
    openai = json.loads(named)
    successors = ((session, openai["model"]), (transcription, openai["input_audio_transcription"]["model"]))
    for source, successor in successors:
        known, _, deprecated = source.partition("Deprecated values:")
        assert f'"{successor}"' in known
        assert f'"{successor}"' not in deprecated.partition('"""')[0]
