"""`flow-engine settings`: what can be set, for every program."""

from __future__ import annotations

import orjson
import pytest
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from channels.chat.settings import ChatSettings
from channels.gateway.config import GatewaySettings
from channels.voice.server.settings import VoiceSettings, variable_of
from channels.workspace.assistant import WorkspaceSettings
from service.cli import app
from service.settings import Settings
from service.voice_manager import ManagerSettings


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VoiceSettings.model_fields:
        monkeypatch.delenv(variable_of(name), raising=False)
    monkeypatch.setenv("COLUMNS", "250")


def test_every_setting_of_every_program_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:  # F46, V12
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("FLOW_ENGINE_VOICE_MAX_CALLS", "17")
    shown = CliRunner().invoke(app, ["settings"]).stdout
    for name in Settings.model_fields:
        assert f"FLOW_ENGINE_{name.upper()} " in shown
    for name, field in VoiceSettings.model_fields.items():
        assert f" {variable_of(name)} " in shown
        assert field.description in shown
    for name in ManagerSettings.model_fields:
        assert f"FLOW_ENGINE_{name.upper()} " in shown
    assert "17" in shown
    assert "sk-secret" not in shown


def test_every_setting_is_a_json_object_of_its_own_where_a_script_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # F42, F46
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("FLOW_ENGINE_REDIS_URL", "redis://me:sk-secret@cache:6379/0")
    shown = CliRunner().invoke(app, ["settings", "--json"]).stdout
    rows = [orjson.loads(line) for line in shown.splitlines()]
    assert "sk-secret" not in shown
    own = {row["variable"]: row for row in rows if row["program"] == "serve and worker"}
    assert own.keys() == {f"FLOW_ENGINE_{name.upper()}" for name in Settings.model_fields}
    assert own["FLOW_ENGINE_REDIS_URL"]["value"] == "redis://***@cache:6379/0"
    assert own["FLOW_ENGINE_REDIS_URL"]["default"] is None
    assert own["FLOW_ENGINE_SAMPLES"]["value"] is True
    assert own["FLOW_ENGINE_MAX_TASKS"]["default"] == 300
    kinds = Settings, ChatSettings, GatewaySettings, WorkspaceSettings, VoiceSettings, ManagerSettings
    assert len(rows) == sum(len(kind.model_fields) for kind in kinds)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_names_and_values_are_whole_however_narrow_the_screen_is(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # F46
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FLOW_ENGINE_REDIS_URL", "redis://[fd00::1]:6379/0")
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", "[/b]")
    shown = CliRunner().invoke(app, ["settings"]).stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    for name in Settings.model_fields:
        assert f"│ FLOW_ENGINE_{name.upper()} " in shown
    for name in VoiceSettings.model_fields:
        assert f"│ {variable_of(name)} " in shown
    values, variable = dict[str, str](), ""
    for name, value, *_ in rows:
        variable = name or variable
        values[variable] = values.get(variable, "") + value
    assert values["FLOW_ENGINE_REDIS_URL"].startswith("redis://[fd00::1]:6379/0")
    assert values["FLOW_ENGINE_DATA_DIR"].startswith("[/b]")
    assert "…" not in "".join(cell for row in rows for cell in row[:2])


def test_a_wrong_setting_of_the_agent_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12
    monkeypatch.setenv("FLOW_ENGINE_VOICE_MAX_CALLS", "0")
    done = CliRunner().invoke(app, ["settings"])
    assert done.exit_code == 2
    assert "FLOW_ENGINE_VOICE_MAX_CALLS: " in done.stderr


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("FLOW_ENGINE_REDIS_ULR", "FLOW_ENGINE_REDIS_URL"),
        ("FLOW_ENGINE_MONGODB_URL", "FLOW_ENGINE_MONGO_URL"),
        ("FLOW_ENGINE_API_KEY_FILE", "FLOW_ENGINE_API_KEYS_FILE"),
        ("FLOW_ENGINE_VOICE_MAXCALLS", "FLOW_ENGINE_VOICE_MAX_CALLS"),
        ("FLOW_ENGIN_REDIS_URL", "FLOW_ENGINE_REDIS_URL"),
        ("FLOWENGINE_MONGO_URL", "FLOW_ENGINE_MONGO_URL"),
    ],
)
def test_a_misspelt_variable_is_told_with_the_one_that_is_meant(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # F46
    monkeypatch.setenv(variable, "redis://cache:6379")
    done = CliRunner().invoke(app, ["settings"])
    assert done.stderr == f"flow-engine: warning: {variable} is no setting; is {meant} meant?\n"
    assert done.exit_code == 0


def test_variables_of_others_are_no_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that a configuration names, and what Kubernetes tells of a Service."""
    for ending in ("KEY_OF_HOTEL", "SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_8080_TCP_ADDR"):
        for prefix in ("FLOW_ENGINE", "FLOWENGINE", "FLOW_ENGINE2"):
            monkeypatch.setenv(f"{prefix}_{ending}", "10.0.0.1")
    monkeypatch.setenv("flow_engine_redis_url", "redis://cache:6379")
    assert CliRunner().invoke(app, ["settings"]).stderr == ""


@pytest.mark.parametrize("kind", [Settings, ChatSettings, GatewaySettings, WorkspaceSettings])
def test_an_empty_variable_is_as_if_it_were_not_set(
    kind: type[BaseSettings], monkeypatch: pytest.MonkeyPatch
) -> None:  # peers 8
    unset = kind()
    for name in kind.model_fields:
        monkeypatch.setenv(f"FLOW_ENGINE_{name.upper()}", "")
    assert kind() == unset
