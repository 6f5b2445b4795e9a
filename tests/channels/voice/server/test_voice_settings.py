"""Settings of the voice agent, and starting it by the command."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from channels.voice.server.settings import VoiceSettings, variable_of
from flow_engine.errors import CallTheOperator
from service.cli import app
from service.settings import read_settings

EXAMPLES = Path(__file__).parents[4] / "channels" / "voice" / "config" / "examples"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VoiceSettings.model_fields:
        monkeypatch.delenv(variable_of(name), raising=False)


class TestSettings:
    def test_are_read_from_their_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V12
        for name, value in {
            "OPENAI_API_KEY": "sk-1",
            "OPENAI_WEBHOOK_SECRET": "whsec_eA==",
            "FLOW_ENGINE_TWILIO_AUTH_TOKEN": "12345",
            "FLOW_ENGINE_REALTIME_URL": "ws://127.0.0.1:9000/v1/realtime/",
            "FLOW_ENGINE_TWILIO_API_URL": "https://api.ie1.twilio.com",
            "FLOW_ENGINE_VOICE_MAX_CALLS": "7",
        }.items():
            monkeypatch.setenv(name, value)
        settings = VoiceSettings()
        assert settings.openai_api_key is not None
        assert settings.openai_api_key.get_secret_value() == "sk-1"
        assert settings.realtime_url == "ws://127.0.0.1:9000/v1/realtime"
        assert (settings.twilio_api_url, settings.voice_max_calls) == ("https://api.ie1.twilio.com", 7)
        shown = f"{settings!r}"
        assert not any(secret in shown for secret in ("sk-1", "12345", "whsec_eA=="))

    def test_an_empty_secret_is_no_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V12
        for name in ("FLOW_ENGINE_TWILIO_AUTH_TOKEN", "OPENAI_WEBHOOK_SECRET", "FLOW_ENGINE_PUBLIC_URL"):
            monkeypatch.setenv(name, "")
        settings = VoiceSettings()
        assert settings.twilio_auth_token is None
        assert settings.openai_webhook_secret is None
        assert settings.public_url is None

    def test_all_say_what_they_are_for(self) -> None:  # V12
        assert all(field.description for field in VoiceSettings.model_fields.values())

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("realtime_url", "https://api.openai.com/v1/realtime"),
            ("public_url", "voice.example"),
            ("public_url", "https://"),
            ("public_url", "https://user:pass@voice.example"),
            ("public_url", "https://voice.example#x"),
            ("public_url", "https://voice.example?x=1"),
            ("public_url", "https://[::1"),
            ("twilio_api_url", "ftp://api.twilio.com"),
            ("voice_max_calls", 0),
            ("voice_tool_rules", "ask:look_up"),
            ("voice_tool_rules", "forbid"),
            ("voice_tenant", ""),
            ("outbound_allow", "10.0.0.1/8"),
            ("trusted_proxies", "10.0.0.1/8"),
            ("OPENAI_WEBHOOK_SECRET", "whsec_"),
        ],
    )
    def test_that_cannot_be_right_are_refused(self, name: str, value: object) -> None:  # V12
        with pytest.raises(ValidationError):
            VoiceSettings.model_validate({name: value})

    def test_that_are_wrong_are_all_named_by_their_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # V12
        monkeypatch.setenv("FLOW_ENGINE_PUBLIC_URL", "voice.example")
        monkeypatch.setenv("FLOW_ENGINE_TWILIO_API_URL", "twilio")
        monkeypatch.setenv("FLOW_ENGINE_OUTBOUND_ALLOW", "10.0.0.1/8")
        monkeypatch.setenv("FLOW_ENGINE_TRUSTED_PROXIES", "proxy")
        monkeypatch.setenv("OPENAI_WEBHOOK_SECRET", "whsec_S3cr\u00e9t")
        with pytest.raises(CallTheOperator) as caught:
            read_settings(VoiceSettings, variable_of)
        assert "FLOW_ENGINE_PUBLIC_URL: " in caught.value.detail
        assert "FLOW_ENGINE_TWILIO_API_URL: " in caught.value.detail
        assert "FLOW_ENGINE_OUTBOUND_ALLOW: '10.0.0.1/8'" in caught.value.detail
        assert "FLOW_ENGINE_TRUSTED_PROXIES: 'proxy'" in caught.value.detail
        assert "OPENAI_WEBHOOK_SECRET: " in caught.value.detail
        assert "S3cr" not in caught.value.detail

    @pytest.mark.parametrize(
        ("address", "why"),
        [
            ("a..b", "one reading"),
            ("127.1", "one reading"),
            ("h:99999", "port 99999"),
            ("10.0.0.300", "cannot be read"),
            ("h/\x07S3cr", "cannot be read"),
        ],
    )
    def test_an_address_that_cannot_be_called_is_told_of_its_own_variable(  # V12
        self, monkeypatch: pytest.MonkeyPatch, address: str, why: str
    ) -> None:
        variables = {"FLOW_ENGINE_REALTIME_URL": "wss", "FLOW_ENGINE_TWILIO_API_URL": "https"}
        for variable, scheme in variables.items():
            with monkeypatch.context() as environment:
                environment.setenv(variable, f"{scheme}://{address}")
                with pytest.raises(CallTheOperator) as caught:
                    read_settings(VoiceSettings, variable_of)
            assert f"{variable}: " in caught.value.detail
            assert why in caught.value.detail
            assert "FLOW_ENGINE_OUTBOUND_ALLOW" not in caught.value.detail
            assert "S3cr" not in caught.value.detail

    @pytest.mark.parametrize("key", ["S3cr\u00e9t", "S3cr\net", "S3cr\x00et"])
    def test_a_key_that_no_header_can_hold_is_told_of_its_variable(  # V12
        self, key: str
    ) -> None:
        with pytest.raises(ValidationError) as caught:
            VoiceSettings.model_validate({"OPENAI_API_KEY": key})
        [told] = caught.value.errors(include_input=False)
        assert told["loc"] == ("OPENAI_API_KEY",)
        assert "a key of one line of ASCII characters" in told["msg"]

    def test_the_line_end_of_a_keys_file_is_no_part_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # V12
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1\n")
        key = VoiceSettings().openai_api_key
        assert key is not None
        assert key.get_secret_value() == "sk-1"
        monkeypatch.setenv("OPENAI_API_KEY", " \n")
        assert VoiceSettings().openai_api_key is None

    @pytest.mark.parametrize(
        "url", ["redis://:S3cr#et@127.0.0.1:6379/0", "nix", "redis://h:0", "redis://:S3cr@h/S3cr/0"]
    )
    def test_a_redis_that_is_none_is_told_without_its_password(  # V12
        self, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        monkeypatch.setenv("FLOW_ENGINE_VOICE_REDIS_URL", url)
        with pytest.raises(CallTheOperator) as caught:
            read_settings(VoiceSettings, variable_of)
        assert "FLOW_ENGINE_VOICE_REDIS_URL: " in caught.value.detail
        assert "S3cr" not in caught.value.detail

    def test_servers_that_are_named_may_be_called(self) -> None:  # F45
        settings = VoiceSettings.model_validate(
            {"realtime_url": "ws://127.0.0.1:9000/v1", "outbound_allow": "10.0.0.0/8"}
        )
        named = ("http://[::1]:3000/api", "https://crm.example", None, "http://x:99999", "no url")
        assert settings.outbound_allowed(*named).split(",") == [
            "10.0.0.0/8",
            "127.0.0.1:9000",
            "api.twilio.com:443",
            "[::1]:3000",
            "crm.example:443",
        ]


class TestTheCommand:
    def test_prints_every_error_of_a_config_with_its_pointer(self, tmp_path: Path) -> None:  # V1
        config = orjson.loads((EXAMPLES / "restaurant.json").read_bytes())
        config["agent"].pop("id")
        config["openai"] = {"voice": 7, "temprature": 1}
        file = tmp_path / "agent.json"
        file.write_bytes(orjson.dumps(config))
        result = CliRunner().invoke(app, ["voice", "serve", "--config", str(file), "--port", "0"])
        assert result.exit_code == 2
        for pointer in ("/agent/id", "/openai/voice", "/openai/temprature"):
            assert f"error at {pointer}: " in result.stderr

    def test_tells_that_there_is_no_config(self, tmp_path: Path) -> None:  # V1
        result = CliRunner().invoke(app, ["voice", "serve", "--config", str(tmp_path / "none.json")])
        assert result.exit_code == 2
        assert "none.json" in result.stderr

    def test_refuses_settings_that_are_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V12
        monkeypatch.setenv("FLOW_ENGINE_REALTIME_URL", "http://x")
        result = CliRunner().invoke(app, ["voice", "serve", "--config", str(EXAMPLES / "medical.json")])
        assert result.exit_code == 2
        assert "FLOW_ENGINE_REALTIME_URL" in result.stderr

    def test_prints_errors_of_the_settings_beside_those_of_a_config(  # V1, V12
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FLOW_ENGINE_REALTIME_URL", "http://x")
        result = CliRunner().invoke(app, ["voice", "serve", "--config", str(tmp_path / "none.json")])
        assert result.exit_code == 2
        assert "FLOW_ENGINE_REALTIME_URL" in result.stderr
        assert "none.json" in result.stderr
