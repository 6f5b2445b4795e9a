"""`voice demo`, and the agent in the test's own process that it is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from channels.voice.config.loader import ConfigRefused, load_config
from channels.voice.testing.fake_business import FakeBusiness
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.script import Say, Script, UseTool
from channels.voice.testing.sockets import eventually
from service.cli import app
from service.voice import trial_agent
from service.voice_demo import SHIPPED_CONFIG

pytestmark = pytest.mark.anyio

END_CALL = {"type": "function", "name": "end_call", "description": "Hang up"}
CONFIG: dict[str, Any] = {
    "version": "2.0",
    "agent": {"id": "a", "name": "Ada", "type": "t", "language": "en"},
    "base_url": "https://shop.example",
    "session": {"mode": "inline", "instructions": "Talk.", "tools": [END_CALL]},
    "greeting": {"unknown_customer": "Greet."},
    "lifecycle": {
        "on_end": {"method": "POST", "url": "{{base_url}}/ends", "body": {"from": "{{caller_phone}}"}}
    },
    "tools": {"end_call": {"type": "builtin", "action": "hangup"}},
}
SCRIPT = {"reactions": [{"steps": [{"text": "Bye", "ms": 300}, {"tool": "end_call"}]}]}


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["voice", "demo", *arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    return tmp_path / "config.json"


class TestTheCommand:
    def test_tells_a_call_of_ones_own_config_in_its_order_and_records_it(self, config: Path) -> None:  # V15
        code, told, _ = run(
            *("--config", str(config), "--script", str(config.with_name("script.json"))),
            *("--record", str(config.with_name("calls"))),
        )
        assert code == 0
        assert "the model plays a script" in told  # it does not pretend
        first, *others = [line.partition(" s  ")[2] for line in told.splitlines() if " s  " in line]
        assert first == "line      a call from +442079460123, answered by 'Ada'"
        assert sorted(others) == [
            "agent     Bye",
            'business  POST /ends {"from":"+442079460123"}',
            "line      closed",
            "model     calls end_call {}",
            'model     is told {"status":"ok"}',
        ]
        assert len(list(config.with_name("calls").glob("MZ*.jsonl"))) == 1

    def test_ends_with_2_for_a_config_with_errors_and_names_each(self, tmp_path: Path) -> None:  # V1
        wrong = tmp_path / "wrong.json"
        wrong.write_text(json.dumps({**CONFIG, "agent": {"id": "a"}, "greting": {}}))
        code, told, errors = run("--config", str(wrong))
        assert (code, told) == (2, "")
        assert all(f"error at {place}" in errors for place in ("/agent/name", "/agent/type", "/greting"))

    @pytest.mark.parametrize("content", [None, "{", '{"reactions": [{"stepz": []}]}'])
    def test_refuses_a_script_that_is_none(self, tmp_path: Path, content: str | None) -> None:
        script = tmp_path / "script.json"
        if content is not None:
            script.write_text(content)
        code, _, errors = run("--script", str(script))
        assert code == 2
        assert "script.json" in errors

    def test_the_shipped_config_loads_without_a_warning(self) -> None:  # V1
        assert load_config(SHIPPED_CONFIG, builders=()).warnings == ()


class TestTheAgentOnTrial:
    async def test_is_whole_and_leaves_nothing_of_the_environment_in(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # V12
        monkeypatch.setenv("OPENAI_API_KEY", "sk-real")
        monkeypatch.setenv("FLOW_ENGINE_TWILIO_AUTH_TOKEN", "a token that the fake line does not know")
        monkeypatch.setenv("FLOW_ENGINE_REALTIME_URL", "wss://elsewhere.example")
        script = Script.of((Say("Bye", 300), UseTool("end_call")))
        async with (
            FakeRealtime(script, api_key="trial") as model,
            FakeBusiness({"POST /ends": {}}) as business,
            trial_agent(json.dumps(CONFIG).encode(), model.url, base_url=business.url) as agent,
            httpx.AsyncClient(base_url=agent.url) as http,
        ):
            async with FakeTwilioCall(agent.line_url, parameters={"callerPhone": "+33612345678"}) as call:
                assert await call.closed() == 1000
            await eventually(lambda: business.calls != [])
            assert business.calls[0].body == {"from": "+33612345678"}
            assert 'calls_total{reason="agent_hung_up"} 1.0' in (await http.get("/metrics")).text

    async def test_ends_a_call_that_is_left_with_its_bookkeeping(self) -> None:  # V5, V12
        async with (
            FakeRealtime(Script.of(Say("Hello", 300))) as model,
            FakeBusiness({"POST /ends": {}}) as business,
        ):
            async with trial_agent(json.dumps(CONFIG).encode(), model.url, base_url=business.url) as agent:
                call = await FakeTwilioCall(agent.line_url).__aenter__()
                await eventually(lambda: call.playout.heard != [])
            assert [each.path for each in business.calls] == ["/ends"]
            await call.__aexit__(None, None, None)

    async def test_does_not_begin_with_a_config_that_is_wrong(self) -> None:  # V1
        with pytest.raises(ConfigRefused):
            async with trial_agent(b"{}", "ws://127.0.0.1:1"):
                raise AssertionError
