"""One turn is one trace, from the request over the job to the model; and nothing of it when off (F46)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from adapters.models.scripted import Answers, Fails
from adapters.telemetry.otel import OpenTelemetryTracing
from tests.adapters.telemetry.watched import watched
from tests.api.harness import clinic, entry

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE}-{SPAN}-01"
SECRETS = ("Lovelace", "347123", "illness", "Secret prompt", "hung up", "You are", "ECG")
FINDS_AN_ECG = Answers({"values": {"var_string": "ECG"}, "checkpoints": []})


def told(spans: Any) -> str:
    """Everything that the spans tell, as one text."""
    return "\n".join(span.to_json(indent=None) for span in spans)


class TestOneTurn:
    async def test_a_turn_is_one_trace_over_request_job_and_model(self) -> None:  # F46
        async with watched(clinic(), FINDS_AN_ECG) as w:
            await w.scene.started()
            w.exporter.clear()
            reply = await w.scene.say("m-1", "An ECG please")
            assert reply.status_code == 200
            assert "mine" in await w.work()
            (request,) = w.spans("POST /handle-utterance")
            (job,) = w.spans("job mine")
            (model,) = w.spans("model mining")
            assert {span.context.trace_id for span in w.finished} == {request.context.trace_id}
        assert request.parent is None
        assert job.parent is not None
        assert job.parent.span_id == request.context.span_id
        assert model.parent is not None
        assert model.parent.span_id == job.context.span_id
        assert dict(request.attributes or {}) == {
            "http.request.method": "POST",
            "http.route": "/handle-utterance",
            "http.response.status_code": 200,
            "flow_engine.conversation.id": "conv-1",
        }
        assert dict(job.attributes or {}) == {
            "flow_engine.job.kind": "mine",
            "flow_engine.job.attempt": 1,
            "flow_engine.job.outcome": "done",
            "flow_engine.conversation.id": "conv-1",
        }
        facts = dict(model.attributes or {})
        assert facts.pop("gen_ai.usage.input_tokens") > 0  # type: ignore[operator]
        assert facts.pop("gen_ai.usage.output_tokens") > 0  # type: ignore[operator]
        assert facts == {
            "gen_ai.request.model": "scripted:model",
            "flow_engine.model.purpose": "mining",
        }

    async def test_the_callers_trace_is_continued_in_request_and_job(self) -> None:  # F46
        async with watched(clinic(), FINDS_AN_ECG) as w:
            await w.scene.started()
            w.exporter.clear()
            w.scene.http.headers["traceparent"] = CALLER
            await w.scene.say("m-1", "An ECG please")
            await w.work()
            (request,) = w.spans("POST /handle-utterance")
            assert request.parent is not None
            assert f"{request.parent.span_id:016x}" == SPAN
            assert {f"{span.context.trace_id:032x}" for span in w.finished} == {TRACE}
            assert w.spans("model mining")

    @pytest.mark.parametrize(
        "header", ["", "nonsense", "00-0-0-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"]
    )
    async def test_a_traceparent_of_another_form_is_as_none(self, header: str) -> None:
        async with watched(clinic()) as w:
            w.scene.http.headers["traceparent"] = header
            assert (await w.scene.contact()).status_code == 200
            (request,) = w.spans("POST /handle-new-contact")
            assert request.parent is None

    async def test_a_caller_that_does_not_sample_gets_no_spans(self) -> None:
        async with watched(clinic()) as w:
            w.scene.http.headers["traceparent"] = CALLER[:-2] + "00"
            assert (await w.scene.contact()).status_code == 200
            assert w.finished == ()

    async def test_load_and_commit_are_spans_within_the_request(self) -> None:
        async with watched(clinic()) as w:
            await w.scene.started()
            await w.scene.started()  # the first contact of a conversation is committed without a read
            _, request = w.spans("POST /handle-new-contact")
            (load,), (_, commit) = w.spans("memory load"), w.spans("memory commit")
            assert load.parent is not None
            assert commit.parent is not None
            assert load.parent.span_id == commit.parent.span_id == request.context.span_id
            assert dict(commit.attributes or {}) == {"flow_engine.commit.outcome": "Committed"}

    async def test_probes_and_scrapes_are_no_traces(self) -> None:
        async with watched(clinic()) as w:
            for path in ("/health/live", "/health/ready", "/metrics"):
                assert (await w.scene.http.get(path)).status_code == 200
            assert w.finished == ()


class TestFailures:
    async def test_a_refusal_tells_its_code_and_is_no_error(self) -> None:
        async with watched(clinic()) as w:
            await w.scene.http.get("/v1/prompt/nobody")
            (request,) = w.spans("GET /prompt/{conversation_id}")
            assert (request.attributes or {})["flow_engine.problem.code"] == "conversation_unknown"
            assert request.status.status_code is StatusCode.UNSET

    async def test_a_store_that_is_away_fails_its_span_and_the_requests(self) -> None:
        async with watched(clinic()) as w:
            await w.scene.started()
            w.exporter.clear()
            w.server.connected = False
            assert (await w.scene.change("operator")).status_code == 503
            w.server.connected = True
            (commit,), (request,) = w.spans("memory commit"), w.spans("POST /change-task")
            assert (commit.attributes or {})["error.type"] == "memory_unavailable"
            assert commit.status.status_code is request.status.status_code is StatusCode.ERROR

    async def test_a_job_that_fails_tells_why_and_which_attempt(self) -> None:
        async with watched(clinic(), Fails("timeout"), FINDS_AN_ECG) as w:
            await w.scene.started()
            await w.scene.say("m-1", "An ECG please")
            await w.work()
            await w.work(after_s=10)
            first, second = w.spans("job mine")
            failed, answered = w.spans("model mining")
            assert (first.attributes or {})["flow_engine.job.outcome"] == "failed"
            assert first.status.status_code is failed.status.status_code is StatusCode.ERROR
            assert (failed.attributes or {})["error.type"] == "timeout"
            assert (second.attributes or {})["flow_engine.job.attempt"] == 2
            assert (second.attributes or {})["flow_engine.job.outcome"] == "done"
            assert answered.status.status_code is StatusCode.UNSET
            assert first.context.trace_id == second.context.trace_id

    async def test_an_exception_is_told_by_its_type_alone(self) -> None:
        exporter = InMemorySpanExporter()
        tracing = OpenTelemetryTracing(SimpleSpanProcessor(exporter))
        with pytest.raises(ZeroDivisionError), tracing.span("division"):
            raise ZeroDivisionError("Ada Lovelace")
        (span,) = exporter.get_finished_spans()
        assert dict(span.attributes or {}) == {"error.type": "ZeroDivisionError"}
        assert "Lovelace" not in told([span])


async def test_spans_hold_nothing_about_a_person() -> None:  # F46
    async with watched(clinic(globalPrompt="Secret prompt text."), FINDS_AN_ECG) as w:
        w.scene.http.headers["Idempotency-Key"] = "idem-secret"
        caller = {"callerId": "+393471234567", "name": "Ada Lovelace"}
        await w.scene.started(contact=caller, tenant={"owner": "Grace Hopper"})
        del w.scene.http.headers["Idempotency-Key"]
        await w.scene.say("m-1", "my illness is confidential")
        await w.scene.write(entry("var_phone", "not Ada Lovelace"))
        await w.scene.change("Ada Lovelace")
        key = {"Authorization": "Bearer sk-very-secret"}
        await w.scene.http.get("/v1/prompt/conv-1?format=Lovelace", headers=key)
        await w.scene.end(reason="Ada Lovelace hung up")
        await w.work()
        text = told(w.finished)
    assert len(text) > 1000
    for secret in (*SECRETS, "Hopper", "sk-very", "idem-secret"):
        assert secret not in text, secret


class TestOff:
    def test_a_service_without_traces_imports_no_sdk(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-c", _SERVES],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "FLOW_ENGINE_DATA_DIR": str(tmp_path)},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.decode().splitlines()[-1] == "status 200, modules of the SDK: []"

    async def test_nothing_of_traces_is_stored(self) -> None:
        async with watched(clinic(), FINDS_AN_ECG, traced=False) as w:
            await w.scene.started()
            w.scene.http.headers["traceparent"] = CALLER
            await w.scene.say("m-1", "An ECG please")
            await w.work()
            fields = await w.scene.memory.driver.client.hkeys("{default:conv-1}::snapshot")
            assert not [name for name in fields if name.startswith(b"trace:")]


_SERVES = """
import asyncio, sys
import httpx
from adapters.telemetry import tracing_to
from service.settings import Settings
from service.wiring import build_service

async def main():
    with tracing_to(Settings().traces) as tracing:
        service = build_service(Settings(), host="127.0.0.1", port=8080, tracing=tracing)
        transport = httpx.ASGITransport(app=service.app)
        base = "http://127.0.0.1"
        async with service.opened(), httpx.AsyncClient(transport=transport, base_url=base) as http:
            status = (await http.get("/v1/flows")).status_code
    # The driver of Redis imports the SDK's part for metrics by itself, where it finds it.
    sdk = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "adapters.telemetry.otel")
    print(f"status {status}, modules of the SDK: {[name for name in sys.modules if name.startswith(sdk)]}")

asyncio.run(main())
"""


class TestLogLines:
    def test_lines_of_requests_and_jobs_carry_the_trace_and_nothing_personal(self) -> None:  # F46
        done = subprocess.run(
            [sys.executable, "-c", _LOGGED],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        events = [orjson.loads(line) for line in done.stdout.splitlines()]
        for event in events:
            assert {"event", "level", "timestamp"} <= event.keys()
        in_trace = {event["event"] for event in events if event.get("trace_id") == TRACE}
        assert {"request", "model_call", "job_failed"} <= in_trace
        failed = next(event for event in events if event["event"] == "job_failed")
        assert (failed["job"], failed["conversation_id"]) == ("mine", "conv-1")
        for secret in SECRETS:
            assert secret not in done.stdout.decode() + done.stderr.decode(), secret


_LOGGED = f"""
import asyncio
from adapters.models.scripted import Answers, Fails
from tests.api.harness import clinic
from tests.adapters.telemetry import watched as module

FOUND = {{"var_string": "ECG", "var_phone": "Lovelace"}}
STEPS = (Fails("timeout"), Answers({{"values": FOUND, "checkpoints": []}}))


async def main():
    document = clinic(globalPrompt="Secret prompt text.")
    async with module.watched(document, *STEPS, log_level="info") as w:
        await w.scene.started(contact={{"callerId": "+393471234567", "name": "Ada Lovelace"}})
        w.scene.http.headers["traceparent"] = "{CALLER}"
        await w.scene.say("m-1", "my illness is confidential, +393471234567")
        await w.work()
        await w.work(after_s=10)
        await w.scene.end(reason="Ada Lovelace hung up")
        await w.work()


asyncio.run(main())
"""
