"""What is refused or said at the service's boundary, before a use case has a part in it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from api.auth import Keyring, authenticator_for
from api.bodies import MOST_FINDINGS
from flow_engine.errors import CallTheOperator
from service.cli import app
from service.settings import Settings
from service.wiring import build_service
from tests.api.harness import CALL, clinic, keyring_of, open_scene

pytestmark = pytest.mark.anyio

ADMIN = {"Authorization": "Bearer admin"}
ONE_KEY = json.dumps({"keys": [{"key": "admin", "tenant": "default", "scopes": ["admin"]}]})


def findings(reply: httpx.Response) -> list[tuple[str, str]]:
    assert reply.status_code == 422, reply.text
    return [(each["pointer"], each["code"]) for each in reply.json()["errors"]]


class TestBodies:
    @pytest.mark.parametrize(
        ("path", "body", "unknown", "meant"),
        [
            ("/v1/handle-new-contact", {**CALL, "channel": "phone", "languge": "it"}, "languge", "language"),
            ("/v1/change-task", {**CALL, "task": "a", "resaon": "x"}, "resaon", "reason"),
            ("/v1/handle-end-contact", {**CALL, "reson": "bye"}, "reson", "reason"),
            ("/v1/handle-human-task", {**CALL, "outcome": "failed", "Reason": "x"}, "Reason", "reason"),
            ("/v1/flows", {"name": "a", "campaignID": "c"}, "campaignID", "campaignId"),
            (
                "/v1/helpers/improve-description",
                {"description": "a", "taskname": "b"},
                "taskname",
                "taskName",
            ),
        ],
    )
    async def test_a_property_that_is_unknown_is_refused_with_the_nearest_name(  # contract 10
        self, path: str, body: Mapping[str, object], unknown: str, meant: str
    ) -> None:  # peers 2
        async with open_scene() as scene:
            reply = await scene.post(path, body)
            assert (f"/{unknown}", "unknown_property") in findings(reply)
            message = next(e["message"] for e in reply.json()["errors"] if e["pointer"] == f"/{unknown}")
            assert f"'{meant}'" in message

    async def test_an_unknown_property_inside_a_list_is_pointed_at(self) -> None:  # contract 10
        async with open_scene() as scene:
            described = [{"name": "Day", "valeu": "Monday"}]
            entry = {
                "updatedBy": "t",
                "contactId": "c",
                "varId": "v",
                "value": 1,
                "descriptionForLLM": described,
            }
            reply = await scene.http.put("/v1/memory/c", json=[{**entry, "updatedat": 1}])
            assert {
                ("/0/updatedat", "unknown_property"),
                ("/0/descriptionForLLM/0/valeu", "unknown_property"),
            } <= set(findings(reply))
            assert "'updatedAt'" in reply.text
            assert "'value'" in reply.text

    async def test_a_misspelled_query_parameter_is_refused(self) -> None:  # contract 10, peers 2
        async with open_scene() as scene:
            reply = await scene.http.get("/v1/flows?campaignid=c")
            assert findings(reply) == [("", "parameter_unknown")]
            assert "'campaignId'" in reply.text
            assert (await scene.http.get("/v1/prompt/c?waitms=1")).status_code == 422
            assert (await scene.http.get("/health/live?probe=1")).status_code == 200

    async def test_a_repeated_query_parameter_is_refused(self) -> None:  # contract 10, F27
        async with open_scene(clinic()) as scene:
            flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
            reply = await scene.post(f"/v1/flows/{flow_id}/versions?tag=prod&tag=beta", clinic())
            assert findings(reply) == [("", "parameter_repeated")]
            assert "'tag' is given 2 times" in reply.text
            assert len((await scene.http.get(f"/v1/flows/{flow_id}/versions")).json()) == 1

    async def test_a_query_of_very_many_names_is_soon_refused(self) -> None:  # contract 10, F36
        async with open_scene() as scene:
            started = time.process_time()
            reply = await scene.http.get("/v1/flows?" + "&".join(f"{n:x}" for n in range(12_000)))
            assert time.process_time() - started < 3
            assert findings(reply) == [("", "parameter_unknown")] * MOST_FINDINGS

    @pytest.mark.parametrize(
        "ts", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9999-12-31T23:00:00Z"]
    )
    async def test_a_time_at_the_ends_of_the_calendar_is_refused(self, ts: str) -> None:  # contract 17, A9
        async with open_scene(clinic()) as scene:
            await scene.started()
            assert findings(await scene.say("m", "hello", ts=ts)) == [("/ts", "value_error")]
            assert (await scene.say("m", "hello", ts="0002-01-02T00:00:01Z")).status_code == 200


class TestETags:
    async def test_any_etag_and_weak_ones_are_understood(self) -> None:  # F31
        async with open_scene(clinic()) as scene:
            await scene.started()
            etag = (await scene.http.get("/v1/prompt/conv-1")).headers["ETag"]
            for header in ("*", etag, f"W/{etag}", f'"other", {etag}', f'"other",W/{etag}'):
                reply = await scene.http.get("/v1/prompt/conv-1", headers={"If-None-Match": header})
                assert reply.status_code == 304, header
            for header in ('"other"', etag[:-2] + '"', f"x{etag}"):
                reply = await scene.http.get("/v1/prompt/conv-1", headers={"If-None-Match": header})
                assert reply.status_code == 200, header


class TestKeys:
    @pytest.mark.parametrize(
        "entry",
        [
            {"key": ""},
            {"key": " " * 20},
            {"key": "fifteen-letters"},
            {"key": " sixteen-letters-and-blanks "},
            {"sha256": ""},
            {"sha256": "abc"},
            {"sha256": "g" * 64},
            {"sha256": sha256(b"").hexdigest()},
            {"key": "0123456789abcdef", "sha256": "a" * 64},
            {"key": "0123456789abcdef", "tenant": ""},
        ],
    )
    def test_a_file_with_a_key_that_protects_nothing_is_refused(
        self, entry: dict[str, str]
    ) -> None:  # contract 12, A12
        file = json.dumps({"keys": [{"tenant": "a", "scopes": ["admin"], **entry}]})
        with pytest.raises(CallTheOperator) as caught:
            Keyring.parse(file.encode())
        assert caught.value.code == "api_keys_unreadable"
        assert "/keys/0" in caught.value.detail
        assert not entry.get("key") or entry["key"] not in caught.value.detail

    def test_the_command_ends_with_2(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # contract 12, A12
        file = tmp_path / "keys.json"
        file.write_text(json.dumps({"keys": [{"key": "", "tenant": "a", "scopes": ["admin"]}]}))
        monkeypatch.setenv("FLOW_ENGINE_API_KEYS_FILE", str(file))
        monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(tmp_path))
        done = CliRunner().invoke(app, ["serve", "--port", "1"])
        assert done.exit_code == 2
        assert "16 characters" in done.stderr

    @pytest.mark.parametrize("header", ["Bearer  ", "Bearer \u00a0", "Bearer \t"])
    async def test_a_blank_key_is_none(self, header: str) -> None:  # A12
        async with open_scene(authenticator=keyring_of(ONE_KEY)) as scene:
            reply = await scene.http.get("/v1/flows", headers={"Authorization": header.encode("latin-1")})  # type: ignore[arg-type]
            assert reply.status_code == 401


class TestProxies:
    HEADERS = ("Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Forwarded-Proto", "x-forwarded-host")

    @pytest.mark.parametrize("header", HEADERS)
    async def test_without_keys_nothing_that_comes_through_one_is_answered(
        self, header: str
    ) -> None:  # contract 13
        async with open_scene() as scene:
            paths = (
                "/v1/flows",
                "/flows",
                "/v1/prompt/c",
                "/metrics",
                "/docs",
                "/openapi.json",
                "/mcp",
                "/nothing",
            )
            for path in paths:
                for host in ("localhost", "127.0.0.1:8080", "engine.example"):
                    reply = await scene.http.get(path, headers={header: "x", "Host": host})
                    assert reply.status_code == 403, (path, host)
            assert (await scene.http.get("/metrics", headers={header: "x"})).json()[
                "code"
            ] == "proxied_without_keys"
            for path in ("/health/live", "/health/ready"):
                assert (await scene.http.get(path, headers={header: "x"})).status_code == 200

    async def test_with_keys_a_proxy_is_nothing_unusual(self) -> None:  # contract 13
        async with open_scene(authenticator=keyring_of(ONE_KEY)) as scene:
            headers = {**ADMIN, "X-Forwarded-For": "203.0.113.9", "Via": "1.1 nginx"}
            assert (await scene.http.get("/v1/flows", headers=headers)).status_code == 200


class TestAddresses:
    async def served(self, tmp_path: Path, listen: str, host: str, **more: Any) -> str:
        """The address of the flow's own tools in the reply to a new contact."""
        file = tmp_path / "keys.json"
        file.write_text(json.dumps({"keys": [{"key": "k" * 20, "tenant": "default", "scopes": ["admin"]}]}))
        settings = Settings(api_keys_file=file, data_dir=tmp_path, **more)
        service = build_service(settings, host=listen, port=8080)
        transport = httpx.ASGITransport(app=service.app)
        headers = {"Host": host, "Authorization": f"Bearer {'k' * 20}"}
        async with service.opened(), httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            body = {**CALL, "conversationalFlowVersionId": "order-v1", "channel": "phone"}
            reply = await http.post("/v1/handle-new-contact", json=body, headers=headers)
            assert reply.status_code == 200, reply.text
            addresses = [url for url in reply.json()["mcpServers"] if url.endswith("/mcp")]
            return next(a for a in addresses if "example.com" not in a).removesuffix("/mcp")

    @pytest.mark.parametrize(
        ("listen", "host", "address"),
        [
            ("0.0.0.0", "engine.internal:8080", "http://engine.internal:8080"),
            ("::", "[2001:db8::1]:8080", "http://[2001:db8::1]:8080"),
            ("0.0.0.0", "evil/path", "http://127.0.0.1"),
            ("::1", "whatever", "http://[::1]:8080"),
            ("127.0.0.1", "whatever", "http://127.0.0.1:8080"),
        ],
    )
    async def test_of_tools_can_be_called(  # contract 9, D9
        self, tmp_path: Path, listen: str, host: str, address: str
    ) -> None:
        assert await self.served(tmp_path, listen, host) == address

    async def test_of_tools_are_the_settings_where_it_says_so(self, tmp_path: Path) -> None:  # contract 9
        public = "https://engine.example/base/"
        assert await self.served(tmp_path, "0.0.0.0", "x", public_url=public) == public.rstrip("/")

    def test_a_public_url_that_is_none_is_refused(self) -> None:  # contract 9
        with pytest.raises(ValueError, match="accepted is http"):
            Settings(public_url="engine.example")


class TestPages:
    ORIGIN = "https://editor.example"

    async def test_of_origins_that_are_set_may_call(self) -> None:  # contract 19, weakness h
        async with open_scene(authenticator=keyring_of(ONE_KEY), cors_origins=self.ORIGIN) as scene:
            asked = {
                "Origin": self.ORIGIN,
                "Access-Control-Request-Method": "PUT",
                "Access-Control-Request-Headers": "authorization, idempotency-key",
            }
            preflight = await scene.http.request("OPTIONS", "/v1/memory/c", headers=asked)
            assert preflight.status_code == 200, preflight.text
            assert preflight.headers["Access-Control-Allow-Origin"] == self.ORIGIN
            for path in ("/v1/flows", "/v1/prompt/c"):
                reply = await scene.http.get(path, headers={**ADMIN, "Origin": self.ORIGIN})
                assert reply.headers["Access-Control-Allow-Origin"] == self.ORIGIN
                assert "ETag" in reply.headers["Access-Control-Expose-Headers"]

    @pytest.mark.parametrize(
        ("method", "path", "header"),
        [
            ("GET", "/v1/conversations/c/stream", "last-event-id"),
            ("POST", "/v1/change-task", "x-conversation-id"),
            ("POST", "/mcp", "mcp-protocol-version"),
        ],
    )
    async def test_may_send_every_header_that_a_call_reads(
        self, method: str, path: str, header: str
    ) -> None:  # contract 19
        async with open_scene(authenticator=keyring_of(ONE_KEY), cors_origins=self.ORIGIN) as scene:
            asked = {
                "Origin": self.ORIGIN,
                "Access-Control-Request-Method": method,
                "Access-Control-Request-Headers": f"authorization,{header}",
            }
            preflight = await scene.http.request("OPTIONS", path, headers=asked)
            assert (preflight.status_code, preflight.text) == (200, "OK")
            assert header in preflight.headers["Access-Control-Allow-Headers"]
            reply = await scene.http.get("/v1/agent-runs", headers={**ADMIN, "Origin": self.ORIGIN})
            assert "Link" in reply.headers["Access-Control-Expose-Headers"]

    @pytest.mark.parametrize(
        ("origin", "status"), [(ORIGIN, 200), ("https://other.example", 403), ("null", 403)]
    )
    async def test_of_origins_that_are_set_may_call_a_service_without_keys(
        self, origin: str, status: int
    ) -> None:  # contract 19
        settings = Settings(cors_origins=self.ORIGIN)
        async with open_scene(
            authenticator=authenticator_for(None, "127.0.0.1", settings.origins), cors_origins=self.ORIGIN
        ) as scene:
            for method, path in (("GET", "/v1/flows"), ("POST", "/v1/flows")):
                reply = await scene.http.request(
                    method,
                    path,
                    json={"name": "f", "campaignId": "c", "updatedBy": "a"},
                    headers={"Origin": origin},
                )
                assert reply.status_code in (status, status + 1), reply.text

    @pytest.mark.parametrize(("origins", "origin"), [("", ORIGIN), (ORIGIN, "https://editor.example.evil")])
    async def test_of_others_may_not(self, origins: str, origin: str) -> None:  # contract 19
        async with open_scene(authenticator=keyring_of(ONE_KEY), cors_origins=origins) as scene:
            reply = await scene.http.get("/v1/flows", headers={**ADMIN, "Origin": origin})
            assert "Access-Control-Allow-Origin" not in reply.headers

    @pytest.mark.parametrize("value", ["*", "editor.example", "https://a.example/path", "null"])
    def test_what_is_no_origin_is_refused_at_the_start(self, value: str) -> None:  # contract 19
        with pytest.raises(ValueError, match="origin"):
            Settings(cors_origins=value)

    async def test_the_reference_loads_nothing_from_elsewhere(
        self,
    ) -> None:  # contract 19, weakness b, peers 4
        async with open_scene() as scene:
            page = await scene.http.get("/docs")
            assert page.headers["content-type"].startswith("text/html")
            assert "http" not in page.text.replace("http-equiv", "")
            assert page.headers["Content-Security-Policy"].startswith("default-src 'self'")
            for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
                assert f'"docs/{name}"' in page.text
                asset = await scene.http.get(f"/docs/{name}")
                assert (asset.status_code, len(asset.content) > 50_000) == (200, True)
            assert (await scene.http.get("/openapi.json")).status_code == 200
