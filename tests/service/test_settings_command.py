"""`flow-engine settings`: what can be set, for every program."""

from __future__ import annotations

import pytest
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from channels.chat.settings import ChatSettings
from channels.gateway.config import GatewaySettings
from channels.voice.server.settings import VoiceSettings, variable_of
from channels.workspace.assistant import WorkspaceSettings
from service.cli import app
from service.settings import Settings


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
    assert "17" in shown
    assert "sk-secret" not in shown


def test_a_wrong_setting_of_the_agent_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12
    monkeypatch.setenv("FLOW_ENGINE_VOICE_MAX_CALLS", "0")
    done = CliRunner().invoke(app, ["settings"])
    assert done.exit_code == 2
    assert "FLOW_ENGINE_VOICE_MAX_CALLS: " in done.stderr


@pytest.mark.parametrize("kind", [Settings, ChatSettings, GatewaySettings, WorkspaceSettings])
def test_an_empty_variable_is_as_if_it_were_not_set(
    kind: type[BaseSettings], monkeypatch: pytest.MonkeyPatch
) -> None:  # peers 8
    unset = kind()
    for name in kind.model_fields:
        monkeypatch.setenv(f"FLOW_ENGINE_{name.upper()}", "")
    assert kind() == unset
