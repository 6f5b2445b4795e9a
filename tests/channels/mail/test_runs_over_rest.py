"""The runs over REST, on a service in process: pages, details, decisions, and the OpenAPI document (M14)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urljoin

import pytest
from jsonschema import Draft202012Validator

from channels.mail.ports import MailEvent, RunOutcome, RunProgress, StoredCall, ToolLine
from channels.mail.runs import Place, RunRow, RunStore, RunTables, RunWork
from service.stores import records_of
from tests.api.harness import Scene, open_scene

pytestmark = pytest.mark.anyio

CALL = StoredCall(id="c1", tool="send_reply", arguments={"to": "jana@example.com"})
ROW_KEYS = {
    *("id", "mailbox", "message_id", "rule", "route", "profile", "job", "status", "final_message"),
    *("iterations", "tool_calls_log", "error", "conversation_id"),
}
"""Of the contract, letter by letter."""


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene() as opened:
        yield opened


async def stored(scene: Scene, number: int, *, waits: Sequence[int] = ()) -> RunStore:
    """Runs `r0`, `r1` and so on; those of `waits` wait for a person, the others have ended."""
    tables = RunTables(
        *(records_of(scene.flows, name) for name in ("agent_runs", "llm_calls", "email_events"))
    )
    store = RunStore(tables, scene.clock, tenant_id="default", holder="here")
    for each in range(number):
        scene.clock.advance(seconds=1)
        work = RunWork(place=Place(folder="INBOX", uid_validity=1, uid=each + 1), digest="d")
        named = {"rule": "r", "route": "agent", "profile": "p", "job": "agent_process"}
        await store.add(f"r{each}", RunRow(mailbox="box", message_id=f"<{each}@x>", work=work, **named))  # type: ignore[arg-type]
        held = await store.claim((await store.under_way())[-1], 15.0)
        assert held is not None
        await held.event(MailEvent("received"))
        line = ToolLine(tool="search_thread", arguments={"query": "é"}, result={"mails": []}, iteration=1)
        progress = RunProgress(iterations=1, tool_calls=(line,))
        if each in waits:
            waiting = {"waiting": (CALL,), "waiting_at": 1}
            await held.finish(RunOutcome("waiting", progress.model_copy(update=waiting)))
        else:
            await held.finish(RunOutcome("completed", progress, final_message="Done."))
    return store


async def pages(scene: Scene, **query: Any) -> list[list[str]]:
    """The ids of each page, as the header Link leads from one to the next, below the path of a proxy too."""
    found: list[list[str]] = []
    url: str | None = "/v1/agent-runs"
    while url is not None:
        reply = await scene.http.get(url, params=query if not found else None)
        assert reply.status_code == 200, reply.text
        found.append([row["id"] for row in reply.json()])
        named = reply.links.get("next", {}).get("url")
        url = None if named is None else urljoin(f"/engine{url}", named).removeprefix("/engine")
    return found


async def test_runs_are_listed_oldest_first_in_pages(scene: Scene) -> None:  # M14
    await stored(scene, 5, waits=[1, 2])
    assert await pages(scene) == [["r0", "r1", "r2", "r3", "r4"]]
    assert await pages(scene, limit=2) == [["r0", "r1"], ["r2", "r3"], ["r4"]]
    assert await pages(scene, limit=5) == [["r0", "r1", "r2", "r3", "r4"]]
    assert await pages(scene, limit=1, status="waiting") == [["r1"], ["r2"]]
    assert await pages(scene, after="r2", limit=0) == [["r3", "r4"]]
    assert await pages(scene, after="r4") == [[]]


@pytest.mark.parametrize(
    "query", ["limit=-1", "limit=1001", "limit=many", "after=nothing", "status=stuck", "page=2"]
)
async def test_what_is_no_page_is_refused(scene: Scene, query: str) -> None:  # M14
    reply = await scene.http.get(f"/v1/agent-runs?{query}")
    assert reply.status_code == 422, reply.text
    assert reply.json()["code"] in ("limit_invalid", "after_invalid", "status_invalid", "parameter_unknown")
    assert [each["code"] for each in reply.json()["errors"]] == [reply.json()["code"]]  # F36


async def test_a_run_that_is_not_there_is_told_beside_other_parameters(scene: Scene) -> None:  # M14, F36
    await stored(scene, 1)
    reply = await scene.http.get("/v1/agent-runs?after=nothing&limit=-1&page=2")
    codes = [each["code"] for each in reply.json()["errors"]]
    assert sorted(codes) == ["after_invalid", "limit_invalid", "parameter_unknown"]
    reply = await scene.http.get("/v1/agent-runs?after=r0&limit=-1")
    assert [each["code"] for each in reply.json()["errors"]] == ["limit_invalid"]


async def test_rows_and_details_are_what_the_openapi_document_says(scene: Scene) -> None:  # M14
    await stored(scene, 2, waits=[1])
    document: dict[str, Any] = scene.app.openapi()
    paths = {path for path in document["paths"] if "agent-runs" in path}
    one = "/v1/agent-runs/{run_id}"
    assert paths == {"/v1/agent-runs", one, f"{one}/approve", f"{one}/reject"}

    def fits(body: object, path: str, method: str = "get") -> None:
        schema = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": document["components"]}).validate(body)

    rows = (await scene.http.get("/v1/agent-runs")).json()
    assert isinstance(rows, list)
    fits(rows, "/v1/agent-runs")
    assert all(row.keys() >= ROW_KEYS for row in rows)
    assert all("work" not in row for row in rows)
    assert rows[0]["tool_calls_log"] == [
        {"tool": "search_thread", "arguments": {"query": "é"}, "result": {"mails": []}, "iteration": 1}
    ]
    ended, waits = [(await scene.http.get(f"/v1/agent-runs/r{number}")).json() for number in (0, 1)]
    for shown in (ended, waits):
        fits(shown, one)
        assert shown["llm_calls"] == []
        assert [event["event"] for event in shown["email_events"]] == ["received"]
    assert "waiting" not in ended
    assert waits["waiting"] == [{"tool": "send_reply", "arguments": {"to": "jana@example.com"}}]
    decided = (await scene.http.post("/v1/agent-runs/r1/approve")).json()
    fits(decided, f"{one}/approve", "post")
    assert decided["status"] == "queued"


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_decision_is_taken_once(scene: Scene, decision: str) -> None:  # M11
    store = await stored(scene, 2, waits=[0])
    assert (await scene.http.post(f"/v1/agent-runs/r0/{decision}")).status_code == 200
    (run,) = await store.under_way()
    assert run.work.decision == {"approve": "approved", "reject": "rejected"}[decision]
    for run_id in ("r0", "r1"):
        again = await scene.http.post(f"/v1/agent-runs/{run_id}/{decision}")
        assert (again.status_code, again.json()["code"]) == (409, "run_not_waiting")
    missing = await scene.http.post(f"/v1/agent-runs/nothing/{decision}")
    assert (missing.status_code, missing.json()["code"]) == (404, "run_unknown")
