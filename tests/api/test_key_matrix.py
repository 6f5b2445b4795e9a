"""Role × route and tenant × resource, over every route of the OpenAPI document (F43)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api.auth import ALL_SCOPES
from flow_engine.ports.records import Record
from flow_engine.use_cases.agent_runs import ENDED
from service.stores import records_of
from tests.api.harness import Scene, clinic, keyring_of, open_scene

pytestmark = pytest.mark.anyio

KEYS = [
    {"key": f"{t}-{s}", "tenant": t, "scopes": [s]} for t in ("acme", "other") for s in sorted(ALL_SCOPES)
]
AGENT, TOOLS, DESIGNER = "agent", "tools", "designer"

# What each route is for, written down a second time: widening one takes two edits.
EXPECTED: dict[str, set[str]] = {
    "POST /v1/handle-new-contact": {AGENT},
    "POST /v1/change-task": {AGENT},
    "POST /v1/handle-end-contact": {AGENT},
    "POST /v1/handle-human-task": {AGENT},
    "POST /v1/handle-utterance": {AGENT},
    "GET /v1/prompt/{conversation_id}": {AGENT},
    "POST /v1/prompt/{conversation_id}": {AGENT},
    "GET /v1/memory/{conversation_id}": {AGENT, TOOLS},
    "PUT /v1/memory/{conversation_id}": {AGENT, TOOLS},
    "GET /v1/flows": {DESIGNER, AGENT},
    "POST /v1/flows": {DESIGNER},
    "PATCH /v1/flows/{flow_id}": {DESIGNER},
    "GET /v1/flows/{flow_id}/versions": {DESIGNER, AGENT},
    "POST /v1/flows/{flow_id}/versions": {DESIGNER},
    "GET /v1/flows/{flow_id}/versions/{version_id}": {DESIGNER},
    "GET /v1/flows/{flow_id}/versions/{version_id}/diagram": {DESIGNER},
    "GET /v1/flows/{flow_id}/versions/{version_id}/diff/{other_version_id}": {DESIGNER},
    "POST /v1/flows/{flow_id}/versions/validate": {DESIGNER},
    "PUT /v1/flows/{flow_id}/tags/{tag}": {DESIGNER},
    "GET /v1/flows/{flow_id}/versions/{version_id}/merge/{other_version_id}": {DESIGNER},
    "POST /v1/flows/{flow_id}/versions/{version_id}/merge": {DESIGNER},
    "POST /v1/flows/{flow_id}/versions/{version_id}/scores": {DESIGNER, "operator"},
    "GET /v1/flows/{flow_id}/tags/{tag}/outcomes": {DESIGNER},
    "POST /v1/flows/{flow_id}/migrations": {DESIGNER},
    "POST /v1/flows/{flow_id}/versions/{version_id}/replays": {DESIGNER, "operator"},
    "POST /v1/flows/{flow_id}/versions/{version_id}/tests": {DESIGNER},
    "GET /v1/operations/voice": {"operator"},
    "GET /v1/operations/chat": {"operator"},
    "GET /v1/operations/chat/{session}": {"operator"},
    "POST /v1/flows/{flow_id}/render": {"operator"},
    "POST /v1/flows/{flow_id}/simulations": {DESIGNER},
    "POST /v1/flows/{flow_id}/try": {DESIGNER},
    "GET /v1/flows/{flow_id}/try/{try_id}": {DESIGNER},
    "POST /v1/flows/{flow_id}/try/{try_id}": {DESIGNER},
    "DELETE /v1/flows/{flow_id}/try/{try_id}": {DESIGNER},
    "GET /v1/flows/{flow_id}/try/{try_id}/test": {DESIGNER},
    "GET /v1/helpers/models": {DESIGNER},
    "GET /v1/helpers/voices": {DESIGNER},
    "GET /v1/helpers/stt-engines": {DESIGNER},
    "GET /v1/helpers/languages": {DESIGNER},
    "GET /v1/helpers/audio-presets": {DESIGNER},
    "POST /v1/helpers/improve-description": {DESIGNER},
    "DELETE /v1/conversations/{conversation_id}": {"privacy"},
    "GET /v1/conversations": {"operator"},
    "GET /v1/conversations/{conversation_id}": {"operator"},
    "GET /v1/conversations/{conversation_id}/at/{seq}": {"operator"},
    "GET /v1/conversations/{conversation_id}/journal": {"operator"},
    "GET /v1/conversations/{conversation_id}/stream": {"operator"},
    "GET /v1/conversations/{conversation_id}/recording": {"operator"},
    "POST /v1/conversations/{conversation_id}/fork": {"operator"},
    "GET /v1/flows/{flow_id}/history": {DESIGNER, "operator"},
    "GET /v1/operations": {"operator"},
    "GET /v1/operations/latency": {"operator"},
    "GET /v1/jobs": {"operator"},
    "GET /v1/dead-letters": {"operator"},
    "POST /v1/dead-letters/{letter_id}/replay": {"operator"},
    "GET /v1/events": {"operator"},
    "GET /v1/model-calls": {"operator"},
    "GET /v1/live-conversations": {DESIGNER, "operator"},
    "GET /v1/agent-runs": {AGENT},
    "GET /v1/agent-runs/{run_id}": {AGENT},
    "POST /v1/agent-runs/{run_id}/approve": {AGENT},
    "POST /v1/agent-runs/{run_id}/reject": {AGENT},
    "GET /v1/key": set(ALL_SCOPES),
}
OPEN = re.compile(r"^GET /(llms.txt$|README.md$|docs/|health/|metrics$|schemas/)")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    keyring = keyring_of(json.dumps({"keys": KEYS}).encode())
    async with open_scene(authenticator=keyring) as opened:
        yield opened


def operations(scene: Scene) -> dict[str, dict[str, Any]]:
    document: dict[str, Any] = scene.app.openapi()
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


async def send(scene: Scene, route: str, key: str | None, ids: dict[str, str]) -> httpx.Response:
    method, path = route.split(" ")
    body = operations(scene)[route].get("requestBody")
    content = None
    if body is not None:
        example = json.dumps(body["content"]["application/json"].get("example"))
        for placeholder, value in (("conv-1", ids["conversation_id"]), ("claim-v1", ids["version_id"])):
            example = example.replace(placeholder, value)
        content = example.replace("health-booking-v1", ids["version_id"]).encode()
    for name, value in ids.items():
        path = path.replace(f"{{{name}}}", value)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return await scene.http.request(method, path, content=content, headers=headers)


UNKNOWN = {
    "conversation_id": "nobody",
    "flow_id": "nowhere",
    "version_id": "nothing",
    "other_version_id": "neither",
    "tag": "never",
    "run_id": "none",
    "letter_id": "lost",
    "seq": "1",
    "try_id": "attempt",
    "page": "simulated-users",  # the same for everybody
    "decision": "README",
}


async def test_every_route_is_open_or_has_the_scopes_written_down_here(scene: Scene) -> None:
    for route, operation in operations(scene).items():
        if OPEN.match(route):
            assert operation["x-scopes"] == [], route
        else:
            assert set(operation["x-scopes"]) == EXPECTED.get(route), route


async def test_each_role_gets_through_to_its_own_routes_and_to_no_other(scene: Scene) -> None:
    for route, operation in operations(scene).items():
        for scope in sorted(ALL_SCOPES):
            reply = await send(scene, route, f"acme-{scope}", UNKNOWN)
            allowed = OPEN.match(route) or scope == "admin" or scope in operation["x-scopes"]
            if allowed:
                assert reply.status_code not in (401, 403), (route, scope, reply.text)
            else:
                assert (reply.status_code, reply.json()["code"]) == (403, "scope_missing"), (route, scope)


@pytest.mark.parametrize("key", [None, "nobody-knows-this", "", "acme-agent extra"])
async def test_without_a_known_key_only_the_open_routes_answer(scene: Scene, key: str | None) -> None:
    for route in operations(scene):
        reply = await send(scene, route, key, UNKNOWN)
        if OPEN.match(route):
            assert reply.status_code == 200, route
        else:
            assert reply.status_code == 401, route
            assert reply.headers["WWW-Authenticate"] == "Bearer"


async def _acmes_own(scene: Scene) -> dict[str, str]:
    headers = {"Authorization": "Bearer acme-admin"}
    flow = {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}
    flow_id = (await scene.http.post("/v1/flows", json=flow, headers=headers)).json()["id"]
    document = {k: v for k, v in clinic().items() if k != "conversationalFlowId"}
    saved = await scene.http.post(f"/v1/flows/{flow_id}/versions", json=document, headers=headers)
    assert saved.status_code == 201, saved.text
    version_id = saved.json()["versionId"]
    contact = {"contactId": "call-1", "conversationId": "acmes", "channel": "phone"}
    contact["conversationalFlowVersionId"] = version_id
    started = await scene.http.post("/v1/handle-new-contact", json=contact, headers=headers)
    assert started.status_code == 200, started.text
    tried = await scene.http.post(f"/v1/flows/{flow_id}/try", json={}, headers=headers)
    assert tried.status_code == 201, tried.text
    runs = records_of(scene.flows, "agent_runs")
    await runs.insert("acme", Record("acmes-run", {"status": "completed"}, ENDED))
    return {
        "conversation_id": "acmes",
        "flow_id": flow_id,
        "version_id": version_id,
        "other_version_id": version_id,
        "tag": "latest",
        "run_id": "acmes-run",
        "letter_id": "acmes-letter",
        "seq": "1",
        "try_id": tried.json()["tryId"],
    }


async def test_what_belongs_to_another_tenant_looks_exactly_like_what_does_not_exist(scene: Scene) -> None:
    own = await _acmes_own(scene)

    def anonymous(text: str, ids: dict[str, str]) -> str:
        for name, value in sorted(ids.items(), key=lambda item: -len(item[1])):
            text = text.replace(value, f"<{name}>")
        return re.sub(r"call-1|[0-9a-f]{32}|\d{4}-\d\d-\d\dT[\d:.]+Z", "<any>", text)

    for route in operations(scene):
        if OPEN.match(route) or ("{" not in route and "handle" not in route and "change" not in route):
            continue
        theirs = await send(scene, route, "other-admin", own)
        nobodys = await send(scene, route, "other-admin", UNKNOWN)
        assert theirs.status_code == nobodys.status_code, (route, theirs.text, nobodys.text)
        assert anonymous(theirs.text, own) == anonymous(nobodys.text, UNKNOWN), route


async def test_a_list_of_flows_holds_only_the_tenants_own(scene: Scene) -> None:
    await _acmes_own(scene)
    theirs = await scene.http.get("/v1/flows", headers={"Authorization": "Bearer other-designer"})
    own = await scene.http.get("/v1/flows", headers={"Authorization": "Bearer acme-designer"})
    assert (theirs.json(), len(own.json())) == ([], 1)
