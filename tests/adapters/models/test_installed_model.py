"""The installation's model: from the settings to answers, and what it costs while there is none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from adapters.models.factory import NamedModels, build_model
from adapters.models.fake_openai import FakeOpenAI, Received, Status
from adapters.models.scripted import Answers, Fails, Says, ScriptedModel
from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.ports.models import LLMRequest, ModelFailed, NoModel, ask
from flow_engine.use_cases.model_catalog import DescriptionDraft, ModelRewriter
from service.settings import Settings as ServiceSettings
from service.wiring import build_service
from tests.adapters.models.model_worlds import SCHEMA, FixedClock, RecentCalls, call, environment

BASE_URL = "http://127.0.0.1:8080"

pytestmark = pytest.mark.anyio


@dataclass
class Settings:
    llm_model: str | None = None
    llm_timeout_s: float = 10.0
    llm_at_once: int = 16
    llm_calls_per_minute: int = 600


async def test_without_a_setting_there_is_no_model() -> None:
    model = build_model(Settings(), FixedClock())
    assert isinstance(model, NoModel)
    with pytest.raises(ModelFailed) as failed:
        await ask(model, call())
    assert failed.value.reason == "not_configured"  # F38
    with pytest.raises(ModelFailed):
        await ask(model, LLMRequest([]))


@pytest.mark.parametrize("named", ["gpt-4.1", "openai:gpt-4.1", "gemini/gemini-2.5-pro", "openai:a,"])
async def test_a_model_that_cannot_be_asked_keeps_the_service_from_starting(named: str) -> None:
    with pytest.raises(CallTheOperator, match="FLOW_ENGINE_LLM_MODEL"):
        build_model(Settings(named), FixedClock(), environ={})


async def test_a_model_that_a_request_names_fails_with_its_own_cause() -> None:  # F38
    model = NamedModels(lambda name: build_model(Settings(), FixedClock(), named=name, environ={}))
    for named, told in (
        ("gemini/gemini-2.5-pro", "not_configured: set GOOGLE_API_KEY or GEMINI_API_KEY"),
        ("openai:a", "not_configured: set OPENAI_API_KEY"),
        ("gpt-4.1", "not_configured: 'gpt-4.1'"),
    ):
        with pytest.raises(ModelFailed) as failed:
            await ask(model, LLMRequest([], model=named))
        assert str(failed.value).startswith(told)
        assert "FLOW_ENGINE_LLM_MODEL" not in str(failed.value)


async def test_every_attempt_is_audited_and_the_fallback_answers() -> None:
    def by_model(received: Received) -> Status | Answers:
        return Status(503) if received.body["model"] == "gpt-4.1" else Answers({"values": {}})

    log = RecentCalls()
    async with FakeOpenAI(by_model).running() as server:
        model = build_model(
            Settings("openai:gpt-4.1, ollama:llama3.1"),
            FixedClock(),
            log=log,
            environ=environment(server.base_url),
        )
        answer = await ask(model, call(SCHEMA))
        await model.aclose()
    assert answer.model == "ollama:llama3.1"
    attempts = [(record.model, record.status, record.reason) for record in log.records]
    assert attempts == [
        *[("openai:gpt-4.1", "failed", "unreachable")] * 3,
        ("ollama:llama3.1", "ok", None),
    ]


async def test_calls_a_minute_are_limited_by_the_setting() -> None:
    async with FakeOpenAI([Says("yes")]).running() as server:
        model = build_model(
            Settings("openai:gpt-4.1", llm_calls_per_minute=1),
            FixedClock(),
            log=RecentCalls(),
            environ=environment(server.base_url),
        )
        outcomes = [await _outcome(ask(model, call())) for _ in range(3)]
        await model.aclose()
    assert outcomes.count("too_many_calls") >= 1
    assert len(server.requests) < 3


async def _outcome(asking: object) -> str:
    try:
        await asking  # pyright: ignore[reportGeneralTypeIssues]
    except ModelFailed as failure:
        return failure.reason
    return "ok"


SLOW = "{'pydantic_ai', 'openai', 'tiktoken', 'google'}"


@pytest.mark.parametrize(
    "module",
    ["adapters.models.factory", "adapters.models.loop", "adapters.models.scripted", "service.wiring"],
)
def test_nothing_slow_is_imported_while_no_model_is_asked(module: str) -> None:
    program = f"import sys, {module}; print({SLOW} & {{m for m in sys.modules if m != 'google'}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


DRAFT = DescriptionDraft("books visits", None, None)


class TestRewriter:
    async def test_the_rule_is_the_models_answer_on_one_line(self) -> None:
        model = ScriptedModel([Says("Enter when the user\nwants a visit.")])
        draft = DescriptionDraft("books visits", "booking", "it-IT")
        assert await ModelRewriter(model).entry_rule(draft) == "Enter when the user wants a visit."  # F27
        [asked] = model.requests
        assert asked.purpose == "rewriting"
        assert "it-IT" in asked.messages[0].content
        assert asked.messages[1].content == "Task: booking\nDescription: books visits"

    async def test_braces_in_a_description_are_only_text(self) -> None:
        model = ScriptedModel([Says("Enter.")])
        await ModelRewriter(model).entry_rule(DescriptionDraft("{0} {name}", None, None))
        [asked] = model.requests
        assert asked.messages[1].content == "Description: {0} {name}"

    async def test_a_model_that_is_away_is_to_be_asked_later(self) -> None:
        with pytest.raises(RetryLater):
            await ModelRewriter(ScriptedModel([Fails("timeout")])).entry_rule(
                DescriptionDraft("x", None, None)
            )

    async def test_no_model_is_for_the_operator(self) -> None:
        with pytest.raises(CallTheOperator):
            await ModelRewriter(NoModel()).entry_rule(DRAFT)

    async def test_a_designer_gets_the_rule_from_the_service(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        async with FakeOpenAI([Says("Enter when a visit is wanted.")]).running() as server:
            for variable, value in environment(server.base_url).items():
                monkeypatch.setenv(variable, value)
            settings = ServiceSettings(data_dir=tmp_path, llm_model="openai:gpt-4.1-mini", samples=False)
            service = build_service(settings, host="127.0.0.1", port=8080)
            transport = httpx.ASGITransport(app=service.app)
            async with service.opened(), httpx.AsyncClient(transport=transport, base_url=BASE_URL) as http:
                reply = await http.post(
                    "/v1/helpers/improve-description", json={"description": "books visits"}
                )
        assert reply.status_code == 200
        assert reply.json() == {"description": "Enter when a visit is wanted."}  # F27
