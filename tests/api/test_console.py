"""The console's files under `/console`: what is answered, with which headers, before and after a build."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from starlette.applications import Starlette

from api.auth import ALL_SCOPES
from api.console import console_routes
from tests.api.harness import keyring_of, open_scene

pytestmark = pytest.mark.anyio

PAGE = b'<!doctype html><script type="module" src="./assets/index-1.js"></script>'
SCRIPT = b"export const drawn = true;"


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = Starlette(routes=console_routes(tmp_path / "built", tmp_path / "building"))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """What `console/build.py` leaves."""
    folder = tmp_path / "built"
    (folder / "assets").mkdir(parents=True)
    for name, content in (("index.html", PAGE), ("assets/index-1.js", SCRIPT)):
        (folder / name).write_bytes(content)
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    (folder / "sources.sha256").write_text("0" * 64)
    return folder


@pytest.mark.parametrize(
    "path",
    ["", "/", "/flows", "/flows/f1/versions/v1", "/conversations/a%2Fb", "/conversations/a/b", "/nowhere"],
)
async def test_every_address_of_the_console_is_answered_with_its_page(
    http: httpx.AsyncClient, built: Path, path: str
) -> None:
    """It names its files from there, so that they are found below the path of a proxy too."""
    reply = await http.get(f"/console{path}")
    named = reply.content.split(b'"')[3].decode()
    assert (reply.status_code, reply.content) == (200, PAGE.replace(b"./assets/index-1.js", named.encode()))
    seen_by_a_browser = f"http://127.0.0.1/engine/console{path}"
    assert urljoin(seen_by_a_browser, named) == "http://127.0.0.1/engine/console/assets/index-1.js"
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    assert reply.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br, zstd", "br"),
        ("br;q=1.0", "br"),
        ("gzip, deflate", "gzip"),
        ("deflate, brick", None),
        ("br;q=0, gzip;q=0.5", "gzip"),
        ("", None),
    ],
)
async def test_a_file_comes_in_the_smallest_form_that_the_browser_takes(
    http: httpx.AsyncClient, built: Path, accepted: str, encoding: str | None
) -> None:
    (built / "assets" / "index-1.js.br").write_bytes(b"as Brotli")
    (built / "assets" / "index-1.js.gz").write_bytes(gzip.compress(SCRIPT))
    path = "/console/assets/index-1.js"
    async with http.stream("GET", path, headers={"Accept-Encoding": accepted}) as reply:
        content = b"".join([part async for part in reply.aiter_raw()])
    assert reply.headers.get("Content-Encoding") == encoding
    assert reply.headers["Vary"] == "Accept-Encoding"
    assert content.startswith({"br": b"as Brotli", "gzip": b"\x1f\x8b", None: SCRIPT}[encoding])


async def test_a_file_named_by_its_content_is_kept_for_ever(http: httpx.AsyncClient, built: Path) -> None:
    reply = await http.get("/console/assets/index-1.js")
    assert (reply.status_code, reply.content) == (200, SCRIPT)
    assert reply.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert reply.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert reply.headers["Content-Encoding"] == "gzip"
    plain = await http.get("/console/assets/index-1.js", headers={"Accept-Encoding": "identity"})
    assert plain.content == SCRIPT
    assert "Content-Encoding" not in plain.headers
    assert plain.headers["Vary"] == "Accept-Encoding"


@pytest.mark.parametrize("path", ["/console", "/console/assets/index-1.js", "/console/assets/nothing.js"])
@pytest.mark.usefixtures("built")
async def test_nothing_inline_nothing_foreign_and_no_frame(http: httpx.AsyncClient, path: str) -> None:
    headers = (await http.get(path)).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["worker-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name",
    ["nothing.js", "..%2Findex.html", "..%2Fsources.sha256", "..%2F..%2Fbuilding", "%2Fetc%2Fpasswd", ""],
)
@pytest.mark.usefixtures("built")
async def test_only_files_of_the_build_are_served(http: httpx.AsyncClient, name: str) -> None:
    reply = await http.get(f"/console/assets/{name}")
    assert reply.status_code == 404 or reply.content.startswith(b"<!doctype html>")


async def test_the_root_leads_to_the_console(http: httpx.AsyncClient) -> None:
    reply = await http.get("/")
    assert (reply.status_code, reply.headers["Location"]) == (307, "console")


async def test_before_a_build_the_page_waits_and_says_how_it_is_made(http: httpx.AsyncClient) -> None:
    reply = await http.get("/console/flows")
    assert reply.status_code == 200
    assert "make console" in reply.text
    assert "<script" not in reply.text
    assert reply.headers["Refresh"] == "2"
    assert reply.headers["Cache-Control"] == "no-store"
    assert "script-src 'self'" in reply.headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["", "/", "/flows", "/flows/f1/versions/v1", "/conversations/a%2Fb"])
async def test_the_waiting_page_leads_to_the_reference(http: httpx.AsyncClient, path: str) -> None:
    """Below the path of a proxy too."""
    link = (await http.get(f"/console{path}")).text.partition('<a href="')[2].partition('"')[0]
    assert urljoin(f"http://127.0.0.1/engine/console{path}", link) == "http://127.0.0.1/engine/docs"


async def test_the_waiting_page_tells_how_far_the_build_is(http: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "building").write_text("installing <packages> …\n", "utf-8")
    assert "Console: installing &lt;packages&gt; …" in (await http.get("/console")).text


async def test_the_service_has_the_console(tmp_path: Path) -> None:
    async with open_scene() as scene:
        reply = await scene.http.get("/console/flows/x/versions/y")
        assert (reply.status_code, reply.headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert not [path for path in scene.app.openapi()["paths"] if "console" in path]


async def test_a_key_tells_whose_it_is_and_what_it_may() -> None:
    keys = [
        {"key": "a-designer's-own-key", "tenant": "acme", "scopes": ["designer", "operator"], "name": "ada"},
        {"key": "an-administrator's", "tenant": "acme", "scopes": ["admin"], "name": "root"},
    ]
    async with open_scene(authenticator=keyring_of(json.dumps({"keys": keys}).encode())) as scene:

        async def asked(key: str) -> httpx.Response:
            return await scene.http.get("/v1/key", headers={"Authorization": f"Bearer {key}"})

        known = (await asked("a-designer's-own-key")).json()
        assert known == {"name": "ada", "tenantId": "acme", "scopes": ["designer", "operator"]}
        assert set((await asked("an-administrator's")).json()["scopes"]) == ALL_SCOPES
        assert (await asked("nobody-knows-this-one")).status_code == 401


async def test_without_keys_this_machine_may_do_everything() -> None:
    async with open_scene() as scene:
        reply = (await scene.http.get("/v1/key")).json()
    assert (reply["name"], set(reply["scopes"])) == ("local", ALL_SCOPES)
