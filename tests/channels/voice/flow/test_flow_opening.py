"""A call by a config of mode flow, on a service of its own that reads along by rules (V2, F31, F35, F38)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from adapters.outbound.fake import ScriptedOutbound
from adapters.outbound.policy import AllowList
from channels.voice.call.ports import Ending, Refused, SessionSettings, Turn
from channels.voice.config.models import FlowSession, VoiceConfig
from channels.voice.flow.opening import FlowCalls, flow_start
from tests.channels.voice.flow.flow_call import OPERATOR, caller, eventually
from tests.channels.voice.recording_doubles import RecordingControls
from tests.service_process import running_service

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_service(tmp_path_factory.mktemp("engine")) as url:
        yield url


def config(engine_url: str) -> tuple[VoiceConfig, FlowSession]:
    session = {
        **{"mode": "flow", "engine_url": engine_url, "flow_id": "health-booking", "tag": "prod"},
        **{"transfers": {"segreteria": OPERATOR}, "tenant": {"nome": "Studio Verdi"}},
    }
    agent = {"id": "verdi", "name": "Verdi", "type": "clinic", "language": "it-IT"}
    read = VoiceConfig.model_validate({"version": "2.0", "agent": agent, "session": session})
    assert isinstance(read.session, FlowSession)
    return read, read.session


def calls_of(engine_url: str, api_key: str | None = None) -> FlowCalls:
    return FlowCalls(*config(engine_url), api_key=api_key, allow=AllowList(), now=lambda: NOW)


def test_a_config_says_how_its_flow_is_started() -> None:
    begun = flow_start(*config("http://127.0.0.1:8080"))
    assert (begun.choice.flow_id, begun.choice.tag, begun.choice.version_id) == (
        "health-booking",
        "prod",
        None,
    )
    assert (begun.agent_id, begun.agent_name) == ("verdi", "Verdi")
    assert begun.transfers == {"segreteria": OPERATOR}
    assert begun.apology.startswith("Ci dispiace")


async def test_what_the_caller_says_and_the_model_stores_is_in_the_next_prompt(engine_url: str) -> None:
    calls, controls = calls_of(engine_url), RecordingControls()
    await calls.prepare()
    handler = calls.handler(caller(), controls)
    settings = await handler.open()
    assert isinstance(settings, SessionSettings)
    assert "Studio Verdi" in settings.instructions
    names = [str(tool["name"]) for tool in settings.tools]
    assert names == ["change_task", "set_memory", "end_call"]  # the sample's servers are away
    set_memory: Any = settings.tools[1]
    assert list(set_memory["parameters"]["properties"]) == ["entries"]
    assert await handler.started() == "/start"

    await handler.notice(Turn("user", "Il mio numero è 347 123 4567", NOW))
    await eventually(lambda: "+393471234567" in memory_of(controls), within_s=20)  # F38
    stored = {"entries": [{"varId": "sede", "value": "Lido"}]}
    await handler.run_tool("set_memory", json.dumps(stored))
    assert "Lido" in memory_of(controls)  # F35
    wrong = {"entries": [{"varId": "sede", "value": "Roma"}]}
    refused: Any = await handler.run_tool("set_memory", json.dumps(wrong))
    assert "Lido" in refused["error"]  # the members that there are

    await handler.run_tool("change_task", '{"task": "operatore"}')
    assert controls.told[-1] == ("transfer", OPERATOR)
    await handler.ended(Ending(True, "transferred", 30.0, ()))
    await calls.aclose()


async def test_the_engine_lists_its_tools_before_the_first_call(engine_url: str) -> None:  # V2
    async def asked() -> str:
        async with httpx2.AsyncClient() as http:
            lines = (await http.get(f"{engine_url}/metrics")).text.splitlines()
        return next((line for line in lines if 'requests_total{method="POST",route="/mcp"' in line), "")

    calls = calls_of(engine_url)
    await calls.prepare()
    before = await asked()
    assert before
    handler = calls.handler(replace(caller(), call_id="call-2"), RecordingControls())
    settings = await handler.open()
    await handler.ended(Ending(True, "caller_hung_up", 1.0, ()))
    await calls.aclose()
    assert isinstance(settings, SessionSettings)
    assert "set_memory" in [tool["name"] for tool in settings.tools]
    assert await asked() == before


async def test_a_recorded_call_shows_the_engine_its_key() -> None:  # V15
    shown: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        shown.append(request.headers.get("Authorization"))
        return httpx2.Response(500)

    transport = httpx2.MockTransport(answer)
    read, session = config("http://127.0.0.1:8080")
    calls = FlowCalls(
        read, session, api_key="fe-key", allow=AllowList(), now=lambda: NOW, transport=transport
    )
    opened = calls.open_call(ScriptedOutbound({}), record=lambda side, sent, message: None)
    await opened(caller(), RecordingControls()).handler.open()
    assert shown[0] == "Bearer fe-key"
    await calls.aclose()


async def test_an_engine_that_is_not_there_is_an_apology_in_the_agent_s_language() -> None:
    calls = calls_of("http://127.0.0.1:1")
    opened = await calls.handler(caller(), RecordingControls()).open()
    assert isinstance(opened, Refused)
    assert opened.say is not None
    assert opened.say.startswith("Ci dispiace")
    await calls.aclose()


def memory_of(controls: RecordingControls) -> str:
    """The memory in the prompt that the model was given last."""
    settings = controls.settings
    return "" if settings is None else settings.instructions.rpartition("\n\n")[2]
