"""What holds for every request: problems, hostile input, tenants, schemas, metrics, logs (F36, F43, F46)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema
import orjson
import pytest
from fakeredis import FakeServer
from structlog.testing import capture_logs

from flow_engine.ports.outbound import OutboundReply
from tests.api.harness import CALL, HANDLER, Scene, clinic, entry, keyring_of, open_scene, over_many_contacts
from tests.flow_engine.documents.samples import JsonObject

pytestmark = pytest.mark.anyio
START: JsonObject = {**CALL, "conversationalFlowVersionId": "version-1", "channel": "phone"}
AGENT_POSTS = (
    "/v1/handle-new-contact",
    "/v1/change-task",
    "/v1/handle-end-contact",
    "/v1/handle-human-task",
    "/v1/handle-utterance",
)
HOSTILE_IDS = (
    *("{}", "{x}", ":", "a:b", " ", "a b", "a+b", "a%20b", "a/b", "a%2Fb", "/", "a//b", "line\nbreak"),
    *("\r\n", "\t", "è 日本 🏥", "\x00", "\x7f", "'\"\\", "$.x", "*", "?", "#", "%", "%zz", "-", "\u202e"),
    *("conv::snapshot", "{{ 7*7 }}", "validate", "null", "__proto__", "-1", "a" * 512, "日" * 512),
)


def check_problem(reply: httpx.Response, status: int, code: str) -> Any:
    """A problem document as RFC 9457 and the API promise it."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["type"] == f"urn:flow-engine:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    for error in problem["errors"]:
        assert error.keys() == {"pointer", "code", "message"}
        assert error["pointer"] == "" or error["pointer"].startswith("/")
    return problem


class TestProblems:
    @pytest.mark.parametrize("path", AGENT_POSTS)
    @pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"nonsense", b"[" * 100_000, b'{"a":' * 100_000])
    async def test_what_is_no_json_is_400(self, path: str, body: bytes) -> None:
        async with open_scene() as scene:
            check_problem(await scene.http.post(path, content=body), 400, "json_invalid")  # F36

    @pytest.mark.parametrize("path", AGENT_POSTS)
    @pytest.mark.parametrize("body", [b"null", b"[]", b"7", b'""', b"{}"])
    async def test_json_of_another_shape_is_422_with_every_error(self, path: str, body: bytes) -> None:
        async with open_scene() as scene:
            problem = check_problem(await scene.http.post(path, content=body), 422, "body_invalid")
            if body == b"{}":
                missing = {error["pointer"] for error in problem["errors"]}
                assert {"/contactId", "/conversationId"} <= missing  # F36
            else:
                assert [error["pointer"] for error in problem["errors"]] == [""]

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("contactId", ""),
            ("contactId", 7),
            ("contactId", None),
            ("contactId", "a" * 513),
            ("conversationId", ["conv-1"]),
            ("tenant", "Alfa"),
            ("tenant", []),
            ("contact", {"deep": 1e300}),
            ("language", 5),
            ("channel", "PHONE"),
        ],
    )
    async def test_a_field_that_cannot_be_taken_is_pointed_at(self, field: str, value: Any) -> None:
        async with open_scene(clinic()) as scene:
            reply = await scene.post("/v1/handle-new-contact", {**START, field: value})
            problem = check_problem(reply, 422, "body_invalid")
            assert [error["pointer"] for error in problem["errors"]] == [f"/{field}"]  # F36

    @pytest.mark.parametrize("moment", ["yesterday", "15/01/2026", None])
    async def test_a_moment_that_cannot_be_read_is_told_with_one_that_is(self, moment: object) -> None:  # F33
        async with open_scene(clinic()) as scene:
            await scene.started()
            said = {**CALL, "messageId": "m1", "type": "message", "src": "user", "body": "hello"}
            reply = await scene.post("/v1/handle-utterance", {**said, "ts": moment})
            (error,) = check_problem(reply, 422, "body_invalid")["errors"]
            assert error["pointer"] == "/ts"
            assert "2026-01-15T09:31:00Z" in error["message"]

    @pytest.mark.parametrize("raw", [b"1e400", b"NaN", b'"\\ud800"', b"1" * 400, b"[" * 300 + b"]" * 300])
    @pytest.mark.parametrize("field", [b"tenant", b"contact"])
    async def test_facts_that_json_cannot_keep_are_refused(self, field: bytes, raw: bytes) -> None:
        async with open_scene(clinic()) as scene:
            body = orjson.dumps(START)[:-1] + b',"' + field + b'":{"x":' + raw + b"}}"
            reply = await scene.http.post("/v1/handle-new-contact", content=body)
            assert reply.status_code in (400, 422), reply.text  # F36
            assert (await scene.http.get("/v1/memory/conv-1")).status_code == 404

    @pytest.mark.parametrize(
        "raw",
        [
            *(b"18446744073709551615", b"-9223372036854775808", b"-1e18", b"-0.0", b"5e-324"),
            b'"\\ud83d\\ude00 \\u0000\\u2028"',
            b"[" * 62 + b"]" * 62,
            b'{"":{"a":[null,true,{}]}}',
        ],
    )
    async def test_facts_and_values_at_the_edge_of_what_is_taken_are_kept(self, raw: bytes) -> None:
        async with open_scene(clinic()) as scene:
            facts = b',"tenant":{"x":%b},"contact":{"x":%b}}' % (raw, raw)
            reply = await scene.http.post("/v1/handle-new-contact", content=orjson.dumps(START)[:-1] + facts)
            assert reply.status_code == 200, reply.text
            value = {"varId": "var_custom", "updatedBy": "t", "contactId": START["contactId"]}
            described = {**value, "descriptionForLLM": [{"name": "n", "value": "v"}]}
            batch = b"[" + orjson.dumps(described)[:-1] + b',"value":[' + raw + b"]}]"
            reply = await scene.http.put("/v1/memory/conv-1", content=batch)
            assert reply.status_code == 200, reply.text  # F21
            kept = (await scene.http.get("/v1/memory/conv-1")).json()["vars"]
            assert [each["value"] for each in kept if each["value"] is not None] == [[orjson.loads(raw)]]
            assert (await scene.end()).status_code == 200

    @pytest.mark.parametrize(
        ("path", "field"),
        [
            ("change-task", "reason"),
            ("change-task", "task"),
            ("handle-end-contact", "reason"),
            ("handle-human-task", "reason"),
            ("handle-new-contact", "language"),
        ],
    )
    async def test_half_a_character_is_refused_wherever_a_text_is_taken(self, path: str, field: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            body = orjson.dumps({"contactId": "c", "conversationId": "conv-1", "task": "x"})[:-1]
            reply = await scene.http.post(
                f"/v1/{path}", content=body + b',"' + field.encode() + b'":"\\ud800"}'
            )
            assert reply.status_code in (400, 422), reply.text  # F36
            assert (await scene.prompt())["revision"] == 1

    @pytest.mark.parametrize(
        "path", ["/v1", "/v1/", "/v2/flows", "/v1/nothing", "/v1/prompt", "/favicon.ico"]
    )
    async def test_an_unknown_path_is_404(self, path: str) -> None:
        async with open_scene() as scene:
            check_problem(await scene.http.get(path), 404, "path_unknown")  # F36

    async def test_a_path_with_a_slash_too_much_is_told_so(self) -> None:
        async with open_scene() as scene:
            problem = check_problem(await scene.http.get("/v1/flows/"), 404, "path_unknown")  # F36
            assert problem["detail"] == "no route ends with '/'; see /openapi.json for what there is"

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/v1/change-task"),
            ("DELETE", "/v1/flows"),
            ("PATCH", "/v1/memory/conv-1"),
            ("PUT", "/v1/prompt/conv-1"),
            ("POST", "/health/live"),
        ],
    )
    async def test_a_method_that_a_path_lacks_is_405(self, method: str, path: str) -> None:
        async with open_scene() as scene:
            reply = await scene.http.request(method, path)
            check_problem(reply, 405, "method_not_allowed")  # F36
            assert reply.headers["Allow"]

    async def test_a_405_names_all_methods_of_the_path(self) -> None:
        async with open_scene() as scene:
            reply = await scene.http.request("DELETE", "/v1/flows")
            assert {"GET", "POST"} <= set(reply.headers["Allow"].split(", "))  # F36
            assert reply.json()["detail"] == f"accepted here: {reply.headers['Allow']}"

    @pytest.mark.parametrize("path", AGENT_POSTS)
    async def test_a_body_without_end_is_413(self, path: str) -> None:
        async with open_scene() as scene:
            reply = await scene.http.post(path, content=b'{"x":"' + b"a" * 1_300_000 + b'"}')
            check_problem(reply, 413, "too_large")  # F36

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            *(
                ("POST", "/v1/prompt/conv-1"),
                ("POST", "/prompt/conv-1"),
                ("DELETE", "/v1/conversations/conv-1"),
            ),
            *(("POST", f"/v1/agent-runs/1/{verdict}") for verdict in ("approve", "reject")),
            ("POST", "/v1/dead-letters/1/replay"),
            ("DELETE", "/v1/flows/flow-1/try/1"),
        ],
    )
    async def test_a_body_is_refused_where_none_belongs(self, method: str, path: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            wrong = {"format": "toon", "reveal": 1}
            problem = check_problem(await scene.http.request(method, path, json=wrong), 422, "body_invalid")
            assert [error["pointer"] for error in problem["errors"]] == ["/format", "/reveal"]  # F36
            if "prompt" in path:
                assert "?wait_ms=, ?format=" in problem["detail"]
            for body in (b"[1]", b"null", b'"text"'):
                reply = await scene.http.request(method, path, content=body)
                check_problem(reply, 422, "body_invalid")
            for body in (b"not json", b"[1"):
                check_problem(await scene.http.request(method, path, content=body), 400, "json_invalid")
            large = await scene.http.request(method, path, content=b" " * 1_300_000)
            check_problem(large, 413, "too_large")
            for body in (b"{}", b" {} ", b"\n"):
                assert (await scene.http.request(method, path, content=body)).status_code in (200, 404)

    async def test_the_body_of_a_get_is_read_by_nobody(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            reply = await scene.http.request("GET", "/v1/prompt/conv-1", content=b"not json")
            assert reply.status_code == 200  # F36

    async def test_while_the_memory_is_away_it_is_503_and_afterwards_as_before(self) -> None:
        server = FakeServer()
        async with open_scene(clinic(), server=server) as scene:
            await scene.started()
            server.connected = False
            replies = [
                await scene.contact(conversationId="conv-2"),
                await scene.change("operator"),
                await scene.end(),
                await scene.human("connected"),
                await scene.say("m-1", "hello"),
                await scene.write(entry("size", "S")),
                await scene.http.get("/v1/prompt/conv-1"),
                await scene.http.get("/v1/memory/conv-1"),
            ]
            for reply in replies:
                check_problem(reply, 503, "memory_unavailable")  # F44
                assert int(reply.headers["Retry-After"]) >= 1
            assert (await scene.http.get("/v1/flows")).status_code == 200
            server.connected = True
            assert (await scene.changed("operator"))["revision"] == 2

    async def test_conflicts_carry_the_state_and_what_would_go(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.end()
            problem = check_problem(await scene.change("operator"), 409, "conversation_closed")
            assert problem["state"] == {  # F15, F36
                "revision": 2,
                "phase": "closed",
                "activeContactId": None,
                "taskName": "reception",
                "taskStatus": None,
            }
            assert problem["accepted"]


class TestHostileIds:
    @pytest.mark.parametrize("hostile", HOSTILE_IDS, ids=lambda text: repr(text[:20]))
    async def test_any_text_may_be_a_conversations_id(self, hostile: str) -> None:
        async with open_scene(clinic()) as scene:
            path = quote(hostile, safe="")
            assert (await scene.started(conversationId=hostile))["conversationId"] == hostile  # F16
            await scene.written(entry("size", "S"), conversation=path)
            assert (await scene.prompt(path))["memoryRevision"] == 1
            assert (await scene.http.get(f"/memory/{path}")).json()["memoryRevision"] == 1
            assert (await scene.change("operator", conversationId=hostile)).json()["result"] is True
            neighbours = await scene.http.get(f"/v1/memory/{path}x")
            assert neighbours.status_code == 404

    async def test_no_two_of_them_are_the_same_conversation(self) -> None:
        async with open_scene(clinic()) as scene:
            for hostile in HOSTILE_IDS:
                reply = await scene.started(conversationId=hostile, tenant={"id": hostile})
                assert (reply["command"], reply["revision"]) == ("/start", 1)  # F16
            for hostile in HOSTILE_IDS:
                read = (await scene.http.get(f"/v1/memory/{quote(hostile, safe='')}")).json()
                assert read["tenant"] == {"campaignId": "campaign-1", "id": hostile}

    @pytest.mark.parametrize("hostile", HOSTILE_IDS, ids=lambda text: repr(text[:20]))
    async def test_any_text_may_be_a_contacts_id_a_task_or_a_message(self, hostile: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started(contactId=hostile)
            assert (await scene.change(hostile, contactId=hostile)).json()["code"] == "task_unknown"
            said = await scene.say(hostile, hostile, contactId=hostile)
            assert said.json()["messageId"] == hostile
            assert (await scene.say(hostile, "again", contactId=hostile)).json()["duplicate"] is True  # F33
            assert (await scene.end(contactId=hostile, reason=hostile)).json()["contactId"] == hostile

    @pytest.mark.parametrize("hostile", HOSTILE_IDS, ids=lambda text: repr(text[:20]))
    async def test_in_a_path_what_is_unknown_is_404(self, hostile: str) -> None:
        async with open_scene() as scene:
            for start in ("/v1/memory/", "/v1/prompt/", "/memory/", "/prompt/"):
                reply = await scene.http.get(start + quote(hostile, safe=""))
                assert reply.status_code == 404  # F36
                assert reply.headers["content-type"] == "application/problem+json"

    async def test_an_endless_id_in_a_path_is_404(self) -> None:
        async with open_scene() as scene:
            assert (await scene.http.get("/v1/prompt/" + "a" * 60_000)).status_code == 404  # F36


class TestTenants:
    KEYS = b"""{"keys": [{"key": "a", "tenant": "alfa", "scopes": ["admin"]},
                         {"key": "b", "tenant": "beta", "scopes": ["admin"]}]}"""

    async def asked_by_beta(self, *, alfa_has_it: bool) -> list[tuple[int, bytes]]:
        """What beta is told about alfa's conversation, flow and version, by their very ids."""
        async with open_scene(authenticator=keyring_of(self.KEYS)) as scene:
            http = scene.http
            if alfa_has_it:
                http.headers["Authorization"] = "Bearer a"
                reply = await http.post(
                    "/v1/flows",
                    json={"name": "Clinic", "campaignId": "c", "updatedBy": "ada"},
                    headers={"Idempotency-Key": "same"},
                )
                await scene.save(reply.json()["id"], clinic(), tag="prod")
                await scene.started()
            http.headers["Authorization"] = "Bearer b"
            replies = [
                await scene.change("operator"),
                await scene.end(),
                await scene.human("connected"),
                await scene.say("m-1", "hello"),
                await scene.write(entry("size", "S")),
                await http.get("/v1/prompt/conv-1"),
                await http.get("/v1/memory/conv-1"),
                await scene.contact(),
                await http.get("/v1/flows"),
            ]
            return [(reply.status_code, reply.content) for reply in replies]

    async def test_anothers_conversation_is_byte_for_byte_an_unknown_one(self) -> None:
        assert await self.asked_by_beta(alfa_has_it=True) == await self.asked_by_beta(
            alfa_has_it=False
        )  # F43

    async def test_two_tenants_use_the_same_ids_without_meeting(self) -> None:
        async with open_scene(authenticator=keyring_of(self.KEYS)) as scene:
            for key in ("a", "b"):
                scene.http.headers["Authorization"] = f"Bearer {key}"
                await scene.publish(clinic(globalPrompt=f"Of {key}."))
                assert f"Of {key}." in (await scene.started())["prompt"]  # F43
            await scene.written(entry("size", "S"))
            scene.http.headers["Authorization"] = "Bearer a"
            assert (await scene.prompt())["memoryRevision"] == 0


class TestHost:
    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            "[::2]",
        ],
    )
    async def test_without_keys_a_foreign_host_is_refused(self, host: str) -> None:
        async with open_scene(clinic()) as scene:
            reply = await scene.http.get("/v1/flows", headers={"Host": host})
            check_problem(reply, 403, "host_not_local")  # F43
            assert (await scene.http.get("/health/live", headers={"Host": host})).status_code == 200

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "LOCALHOST", "[::1]", "[::1]:8080"])
    async def test_local_names_are_served(self, host: str) -> None:
        async with open_scene() as scene:
            assert (await scene.http.get("/v1/flows", headers={"Host": host})).status_code == 200  # F43

    async def test_with_keys_any_host_is_served(self) -> None:
        async with open_scene(authenticator=keyring_of(TestTenants.KEYS)) as scene:
            headers = {"Host": "engine.example", "Authorization": "Bearer a"}
            assert (await scene.http.get("/v1/flows", headers=headers)).status_code == 200  # F43

    @pytest.mark.parametrize(
        "header",
        ["a", "Basic a", "Bearer", "Bearer  ", "Bearer x", "bearer\ta", "Bearer è", "Bearer " + "x" * 5000],
    )
    async def test_what_is_no_known_key_is_401(self, header: str) -> None:
        async with open_scene(authenticator=keyring_of(TestTenants.KEYS)) as scene:
            headers = {"Authorization": header.encode()}
            reply = await scene.http.get("/v1/flows", headers=headers)  # type: ignore[arg-type]
            assert reply.status_code == 401, reply.text  # F43
            assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert header.removeprefix("Bearer ")[:200] not in reply.text or len(header) < 9


class Walkthrough:
    """Sends requests and checks every reply against the OpenAPI document."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.document: Any = scene.app.openapi()
        self.checked = 0

    async def send(
        self, method: str, route: str, body: Any = None, query: str = "", **ids: str
    ) -> httpx.Response:
        path = route
        for name, value in ids.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        reply = await self.scene.http.request(method, path + query, json=body)
        self.check(method, route, reply)
        return reply

    def check(self, method: str, route: str, reply: httpx.Response) -> None:
        responses = self.document["paths"][route][method.lower()]["responses"]
        assert str(reply.status_code) in responses, (method, route, reply.status_code, reply.text)
        content = responses[str(reply.status_code)].get("content")
        if content is None:
            assert reply.content == b""
            return
        (media_type, shape), *_ = content.items()
        assert reply.headers["content-type"].partition(";")[0] == media_type, route
        if media_type != "text/plain":
            schema = {**shape["schema"], "components": self.document["components"]}
            jsonschema.validate(reply.json(), schema, jsonschema.Draft202012Validator)
        self.checked += 1


class TestOpenApi:
    async def test_every_reply_of_a_walkthrough_fits_its_schema(self) -> None:
        answers = {HANDLER: [OutboundReply(200, b"false")]}
        async with open_scene(answers=answers) as scene:
            walk = Walkthrough(scene)
            send, call = walk.send, CALL
            named = {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}
            flow = (await send("POST", "/v1/flows", named)).json()["id"]
            versions = "/v1/flows/{flow_id}/versions"
            own = {k: v for k, v in over_many_contacts().items() if k != "conversationalFlowId"}
            await send("POST", versions + "/validate", own, flow_id=flow)
            await send("POST", versions + "/validate", {"draft": False}, flow_id=flow)
            await send("POST", versions, own, "?tag=prod", flow_id=flow)
            await send("POST", versions, {**own, "firstTask": "nowhere"}, flow_id=flow)
            await send("POST", versions, own, flow_id=flow)
            await send("GET", versions, flow_id=flow)
            await send("GET", versions + "/{version_id}", flow_id=flow, version_id="version-1")
            await send("GET", versions + "/{version_id}", flow_id=flow, version_id="nothing")
            moved = {"versionId": "version-1", "updatedBy": "ada"}
            await send("PUT", "/v1/flows/{flow_id}/tags/{tag}", moved, flow_id=flow, tag="beta")
            await send("PATCH", "/v1/flows/{flow_id}", {"name": "C", "updatedBy": "ada"}, flow_id=flow)
            await send("GET", "/v1/flows", query="?channel=phone")
            await send("POST", "/v1/handle-new-contact", {**START, "contact": {"callerId": "+39"}})
            await send("POST", "/v1/handle-new-contact", {**START, "channel": "sms"})
            for task in ("nowhere", "visit", "operator"):
                await send("POST", "/v1/change-task", {**call, "task": task})
            for outcome in ("connected", "taken_over", "completed"):
                await send("POST", "/v1/handle-human-task", {**call, "outcome": outcome})
            said = {"messageId": "m", "ts": "2026-01-15T09:30:00Z", "type": "message", "src": "user"}
            for _ in range(2):
                await send("POST", "/v1/handle-utterance", {**call, **said, "body": "hello"})
            one, memory = {"conversation_id": "conv-1"}, "/v1/memory/{conversation_id}"
            await send("PUT", memory, [entry("appointment", [1], descriptionForLLM=[])], **one)
            described = [{"name": "Day", "value": "Monday"}]
            await send("PUT", memory, [entry("appointment", [1], descriptionForLLM=described)], **one)
            await send("GET", memory, **one)
            for method in ("GET", "POST"):
                await send(method, "/v1/prompt/{conversation_id}", **one)
            await send("POST", "/v1/handle-end-contact", {**call, "reason": "hangup"})
            await send("POST", "/v1/change-task", {**call, "task": "operator"})
            chat = {**START, "contactId": "chat-1", "channel": "chat"}
            await send("POST", "/v1/handle-new-contact", chat)
            await send("GET", "/v1/prompt/{conversation_id}", conversation_id="conv-9")
            for path in ("/health/live", "/health/ready", "/metrics"):
                await send("GET", path)
            assert walk.checked > 30  # F36

    async def test_the_document_is_valid_openapi_and_leaves_the_bare_paths_out(self) -> None:
        async with open_scene() as scene:
            document = (await scene.http.get("/openapi.json")).json()
            assert document["openapi"].startswith("3.1")  # F36
            assert "/v1/change-task" in document["paths"]
            assert "/change-task" not in document["paths"]  # F27
            for schema in document["components"]["schemas"].values():
                jsonschema.Draft202012Validator.check_schema(schema)

    async def test_a_number_in_a_path_is_told_as_one(self) -> None:  # F36
        async with open_scene() as scene:
            paths = (await scene.http.get("/openapi.json")).json()["paths"]
            told = paths["/v1/conversations/{conversation_id}/at/{seq}"]["get"]["parameters"]
            in_path = {each["name"]: each["schema"]["type"] for each in told if each["in"] == "path"}
            assert in_path == {"conversation_id": "string", "seq": "integer"}

    async def test_metrics_of_workers_may_be_unavailable(self) -> None:  # F36
        async with open_scene() as scene:
            scrape = (await scene.http.get("/openapi.json")).json()["paths"]["/metrics"]["get"]
            assert "503" in scrape["responses"]

    async def test_generators_of_clients_can_read_the_document(self) -> None:  # F36
        async with open_scene() as scene:
            schemas = (await scene.http.get("/openapi.json")).json()["components"]["schemas"]
            # They name a class by its title, without what no name may have.
            names = [re.sub(r"\W", "", each.get("title", name)) for name, each in schemas.items()]
            assert [name for name in names if names.count(name) > 1] == []
            no_value = [
                f"{name}.{key}"
                for name, each in schemas.items()
                for key, described in each.get("properties", {}).items()
                if described.get("default", "") is None
                and not any(option.get("type") == "null" for option in described.get("anyOf", ()))
            ]
            assert no_value == []

    async def test_what_a_body_may_leave_out_a_generated_client_may_too(self) -> None:  # F36
        """A default is taken for a promise that a property is there."""
        async with open_scene() as scene:
            schemas = (await scene.http.get("/openapi.json")).json()["components"]["schemas"]
            for name in ("HandleNewContact", "ChangeTask", "HandleUtterance", "HandleEndContact", "Turn"):
                optional = schemas[name]["properties"].keys() - set(schemas[name].get("required", ()))
                assert optional, name
                assert [each for each in optional if "default" in schemas[name]["properties"][each]] == []

    async def test_every_body_has_an_example_that_its_own_schema_takes(self) -> None:
        async with open_scene() as scene:
            document = (await scene.http.get("/openapi.json")).json()
            bodies = [
                operation["requestBody"]["content"]["application/json"]
                for methods in document["paths"].values()
                for operation in methods.values()
                if "requestBody" in operation
            ]
            assert len(bodies) >= 10  # F36
            for body in bodies:
                schema = {**body["schema"], "components": document["components"]}
                jsonschema.validate(body["example"], schema, jsonschema.Draft202012Validator)

    async def test_every_json_reply_has_an_example_that_its_schema_takes(self) -> None:  # contract 19
        async with open_scene() as scene:
            document = (await scene.http.get("/openapi.json")).json()
            without: list[str] = []
            for path, methods in document["paths"].items():
                for method, operation in methods.items():
                    for status, response in operation["responses"].items():
                        for media_type, content in response.get("content", {}).items():
                            if media_type not in ("application/json", "application/problem+json"):
                                continue
                            schema = {**content["schema"], "components": document["components"]}
                            if "example" in content:
                                jsonschema.validate(
                                    content["example"], schema, jsonschema.Draft202012Validator
                                )
                            else:
                                without.append(f"{method} {path} {status}")
            assert without == []

    async def test_statuses_that_any_call_may_get_are_described(self) -> None:  # contract 19
        async with open_scene() as scene:
            document = (await scene.http.get("/openapi.json")).json()
            for path, methods in document["paths"].items():
                for operation in methods.values() if path.startswith("/v1/") else ():
                    assert {"401", "403", "422", "500", "503"} <= operation["responses"].keys(), path

    async def test_flow_versions_have_their_whole_schema(self) -> None:  # contract 19
        async with open_scene() as scene:
            document = (await scene.http.get("/openapi.json")).json()
            saving = document["paths"]["/v1/flows/{flow_id}/versions"]["post"]
            body = saving["requestBody"]["content"]["application/json"]["schema"]
            validator = jsonschema.Draft202012Validator({**body, "components": document["components"]})
            own = {k: v for k, v in clinic().items() if k not in ("createdAt", "createdBy", "_id")}
            assert list(validator.iter_errors(own)) == []
            wrong = {**own, "tasks": [{**own["tasks"][0], "type": "BOT"}]}
            assert [list(e.absolute_path)[:2] for e in validator.iter_errors(wrong)] == [["tasks", 0]]


class TestOperation:
    async def test_health_tells_which_store_is_away(self) -> None:
        server = FakeServer()
        async with open_scene(server=server) as scene:
            ready = await scene.http.get("/health/ready")
            assert (ready.status_code, ready.json()["status"]) == (200, "ok")  # F36
            assert {"memory", "flows"} <= ready.json()["checks"].keys()
            server.connected = False
            with capture_logs() as logs:
                away = await scene.http.get("/health/ready")
            assert (away.status_code, away.headers["Retry-After"]) == (503, "1")
            assert away.json()["checks"]["memory"] != "ok"
            told = next(line for line in logs if line["event"] == "not_ready")
            assert told["memory"] == away.json()["checks"]["memory"]  # F46
            assert told["reasons"] == {"memory": "FakeRedis is emulating a connection error."}
            assert "flows" not in told
            assert away.json()["checks"]["flows"] == "ok"
            assert (await scene.http.get("/health/live")).json() == {"status": "ok"}

    async def test_metrics_count_by_route_and_code_and_name_no_id(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started(conversationId="secret-conversation")
            await scene.http.get("/v1/prompt/secret-conversation")
            await scene.http.get("/prompt/nobody")
            await scene.change("operator", conversationId="secret-conversation")
            text = (await scene.http.get("/metrics")).text
            route = 'method="GET",route="/prompt/{conversation_id}"'
            assert f'flow_engine_http_requests_total{{{route},status="200"}} 1.0' in text  # F36
            assert f'flow_engine_http_requests_total{{{route},status="404"}} 1.0' in text
            assert 'flow_engine_problems_total{code="conversation_unknown"} 1.0' in text
            assert "secret-conversation" not in text
            assert "nobody" not in text


LOGGED_WALK = """
import asyncio
from api.auth import Keyring
from service.logs import configure_logging
from tests.api.harness import clinic, entry, open_scene, keyring_of

configure_logging("info")
KEYS = b'{"keys": [{"key": "sk-very-secret", "tenant": "alfa", "scopes": ["admin"], "name": "ops"}]}'


async def main():
    async with open_scene(authenticator=keyring_of(KEYS)) as scene:
        scene.http.headers["Authorization"] = "Bearer sk-very-secret"
        scene.http.headers["Idempotency-Key"] = "idem-secret"
        flow = {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}
        flow_id = (await scene.post("/v1/flows", flow)).json()["id"]
        del scene.http.headers["Idempotency-Key"]
        await scene.save(flow_id, clinic(globalPrompt="Secret prompt text."))
        scene.http.headers["Idempotency-Key"] = "idem-secret-2"
        contact = {"callerId": "+393471234567", "name": "Ada Lovelace"}
        await scene.started(contact=contact, tenant={"owner": "Grace Hopper"})
        del scene.http.headers["Idempotency-Key"]
        await scene.say("m-1", "my illness is confidential")
        await scene.write(entry("var_string", "Ada Lovelace"), entry("var_phone", "+393471234567"))
        await scene.write(entry("var_phone", "not Ada Lovelace"))
        await scene.change("Ada Lovelace")
        await scene.changed("operator")
        await scene.human("failed", reason="Ada Lovelace hung up")
        await scene.prompt()
        await scene.http.get("/v1/prompt/conv-1", headers={"Authorization": "Bearer sk-another-secret"})
        await scene.http.post("/v1/change-task", content=b'{"task": "Ada Lovelace')
        for path in ("/health/live", "/health/ready", "/metrics"):
            assert (await scene.http.get(path)).status_code == 200
        client = scene.memory.driver.client
        await client.hset("{alfa:conv-1}::snapshot", "session", b'{"contacts": "Ada Lovelace"}')
        assert (await scene.change("operator")).status_code == 500
        assert (await scene.http.get("/v1/prompt/conv-1")).status_code == 500
        await scene.end(reason="Ada Lovelace hung up")


asyncio.run(main())
"""


class TestLogs:
    async def test_each_line_is_one_event_with_ids_and_without_personal_data(self) -> None:
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "-c", LOGGED_WALK],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        lines = done.stdout.splitlines()
        events = [orjson.loads(line) for line in lines]  # F46
        assert len(events) >= 12
        for event in events:
            assert {"event", "level", "timestamp"} <= event.keys()
        changes = [event for event in events if event.get("route") == "/change-task"]
        assert {event.get("conversation_id") for event in changes} >= {"conv-1"}
        assert {event.get("contact_id") for event in changes} >= {"call-1"}
        assert not {event.get("route") for event in events} & {"/health/live", "/health/ready", "/metrics"}
        needed = [event for event in events if event["event"] == "operator_needed"]
        assert {event["code"] for event in needed} == {"snapshot_unreadable"}
        asked = {event["route"] for event in events if event["event"] == "request" and event["status"] == 500}
        assert {event["route"] for event in needed} == asked > {"/prompt/{conversation_id}"}
        text = done.stdout.decode() + done.stderr.decode()
        for secret in (
            *("Lovelace", "Hopper", "347123", "illness", "Secret prompt", "You are the assistant"),
            *("sk-very", "sk-another", "idem-secret", "hung up"),
        ):
            assert secret not in text, secret  # F46
