"""`examples/chat.html` in a real Chromium: `make browser`. Skipped where there is none, but for CI."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Dialog, Page, async_playwright

from adapters.models.fake_openai import FakeOpenAI
from adapters.models.scripted import Says
from tests.browser.console import CHROMIUM, FLAGS, WITHIN_MS
from tests.channels.chat.desk import ACCIDENT, BELT, PERSON, SUNNY, desk_model, rows
from tests.channels.chat.harness import running_chat
from tests.channels.chat.test_held_texts import CHECKED, DRAFT, QUESTION, agent_of
from tests.service_process import running_service

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[2] / "examples" / "chat.html"


@asynccontextmanager
async def served() -> AsyncGenerator[str]:
    """The origin of the page, on loopback: the chat takes no calls from pages of other places."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = head.startswith(b"GET /?")
        body = PAGE.read_bytes() if found else b""
        status = b"200 OK" if found else b"204 No Content"
        kind = b"Content-Type: text/html\r\nConnection: close\r\n"
        writer.write(b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n" % (status, kind, len(body)) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def opened(address: str, decisions: list[bool]) -> AsyncGenerator[tuple[Page, list[str], list[str]]]:
    """The page, its console's errors, and the addresses that it asked; `decisions` answer what it has
    confirmed, in order."""
    errors: list[str] = []
    asked: list[str] = []

    async def decide(dialog: Dialog) -> None:
        await (dialog.accept() if decisions.pop(0) else dialog.dismiss())

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = await browser.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", decide)
        page.set_default_timeout(WITHIN_MS)
        try:
            async with served() as origin:
                page.on("request", lambda request: asked.append(request.url.removeprefix(origin)))
                await page.goto(f"{origin}/?url={address}")
                yield page, errors, asked
        finally:
            await browser.close()


async def say(page: Page, text: str, ends: str, answer: str) -> None:
    """Send a message, and wait for the note that ends its answer."""
    ended = page.locator("p.note", has_text=ends)
    before = await ended.count()
    await page.fill("#text", text)
    await page.click("button")
    await ended.nth(before).wait_for()
    assert answer in await page.inner_text("#log")


@pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed")
async def test_the_page_plays_the_whole_desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C12, C13, C15
    with running_service(tmp_path / "engine") as engine_url:
        async with FakeOpenAI(desk_model()).running() as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            settings = {"outbound_allow": "127.0.0.1"}
            async with running_chat(
                tmp_path,
                routing=True,
                on_wire=True,
                settings=settings,
                engine_url=engine_url,
                tool_modules=BELT,
            ) as chat:
                await chat.add(*rows(engine_url))
                async with opened(f"ws://127.0.0.1:{chat.port}", [True, False]) as (page, errors, asked):
                    await say(page, "What is the weather in Rome?", "weather_agent: done", SUNNY)
                    await say(page, "I would like to order a pizza", "order_agent: clarifying", "Which size?")
                    await say(page, "a large one", "order_agent: done", "on its way")
                    await say(page, "the same pizza again", "order_agent: done", "stays unpaid")
                    pizza = "I would like to order a pizza"
                    await say(page, pizza, "order_agent: clarifying", "Which size?")
                    leaves = "never mind, what is the weather in Milan?"
                    await say(page, leaves, "weather_agent: done", SUNNY)
                    await say(page, "Explain quantum chromodynamics", "orchestrator: refused", "can be done")
                    await say(page, "hello there", "smalltalk_agent: done", "Hello!")
                    await say(page, ACCIDENT, "claims_agent: done", "¿Cuál es su póliza?")
                    await say(page, PERSON, "claims_agent: done", "Le paso con un perito.")
                    session = await page.evaluate("session")
                    path = f"/v1/chat/sessions/{session}/human"
                    body = {"outcome": "connected", "text": "Hola.", "name": "Pilar"}
                    assert (await chat.http.post(path, json=body)).status_code == 200
                    await page.locator("p.note", has_text="Pilar: done").wait_for()
                    asked_before = len(server.requests)
                    await say(page, "Gracias, Pilar", "claims_agent: done", "Hola.")
                    assert len(server.requests) == asked_before  # it went to her, not to a model
                    actions = [each["action"] for each in await chat.decisions(session)]
                    assert actions == [
                        *("accept", "accept", "continue", "accept", "accept", "accept", "refuse"),
                        *("accept", "accept", "continue", "continue"),
                    ]
                    assert errors == []
                    assert asked
                    assert all(path.startswith("/") for path in asked)


@pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed")
async def test_the_page_begins_anew_where_its_session_is_gone(tmp_path: Path) -> None:  # C12
    async with (
        running_chat(tmp_path) as chat,
        opened(f"ws://127.0.0.1:{chat.port}", []) as (page, _, _),
    ):
        await page.wait_for_function("session !== null")
        await page.evaluate("session = 's-gone'; socket.close()")
        await page.locator("p.note", has_text="no such session").wait_for()
        await page.wait_for_function("session !== null && session !== 's-gone'")
        await say(page, "hello there", "smalltalk_agent: done", "")


@pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed")
async def test_what_is_said_without_a_connection_is_said_once_there_is_one(tmp_path: Path) -> None:  # C12
    async with (
        running_chat(tmp_path) as chat,
        opened(f"ws://127.0.0.1:{chat.port}", []) as (page, errors, _),
    ):
        await page.wait_for_function("welcome")
        await page.evaluate("socket.close()")
        await page.wait_for_function("!welcome")
        await say(page, "hello there", "smalltalk_agent: done", "hello there")
        assert await page.locator("p.note").count() == 1
        assert errors == []


@pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed")
async def test_the_page_says_that_a_person_reads_the_answer(tmp_path: Path) -> None:  # C12, C15
    with running_service(tmp_path / "engine") as engine_url:
        async with httpx.AsyncClient(base_url=engine_url) as engine:
            row = await agent_of(engine)
        async with running_chat(tmp_path, [Says(DRAFT)], engine_url=engine_url) as chat:
            await chat.add(row)
            async with opened(f"ws://127.0.0.1:{chat.port}", []) as (page, errors, _):
                await page.locator("#text").fill(QUESTION)
                await page.keyboard.press("Enter")
                waiting = page.locator("p.waiting", has_text=CHECKED)
                await waiting.wait_for()
                assert DRAFT not in await page.locator("#log").inner_text()
                path = f"/v1/chat/sessions/{await page.evaluate('session')}/human"
                assert (await chat.http.post(path, json={"outcome": "approved"})).status_code == 200
                await page.locator("p.agent", has_text=DRAFT).wait_for()
                await page.locator("p.note", has_text="desk_agent: done").wait_for()
                assert await waiting.count() == 0
                assert errors == []
