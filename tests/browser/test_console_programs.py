"""Operators see voice agents and the chat in the console, and what is missing where neither is there."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import expect
from prometheus_client import CollectorRegistry

from channels.chat.accounts import AgentRun
from channels.chat.decisions import Decision
from channels.chat.router import Candidate
from flow_engine.ports.chat import SessionRef
from flows.sqlite_store import SqliteDatabase, SqliteFlowStore, SqliteVersionStore
from service.chat import accounts_of
from service.observing import CHAT_COUNTED, CountingObserver
from service.stores import FlowDatabase
from tests.api.harness import SettableClock
from tests.api.test_programs import an_agent, counted, managed, status
from tests.browser.console import IN_A_BROWSER, opened_console
from tests.browser.test_console_operators import within_its_width

pytestmark = IN_A_BROWSER


async def chatted(data: Path) -> None:
    """What a chat on the same data directory leaves behind."""
    connection = SqliteDatabase(data)
    await connection.open()
    database = FlowDatabase(connection, SqliteFlowStore(connection), SqliteVersionStore(connection))
    clock = SettableClock(datetime(2026, 1, 15, 9, 31, tzinfo=UTC))
    accounts = accounts_of(database, clock, CountingObserver(CollectorRegistry(), CHAT_COUNTED))
    ref = SessionRef("default", "s-1")
    refused = Decision([Candidate("hours_agent", 0.1)], None, 0.2, "refuse", "nobody fits", "model")
    chosen = Decision([Candidate("hours_agent", 0.8)], "hours_agent", None, "accept", "best score", "scores")
    for number, decision in enumerate((refused, chosen)):
        clock.advance(seconds=1)
        await accounts.decided(ref, f"m-{number}", decision, 1)
    await accounts.ran(ref, AgentRun("hours_agent", "m-1", final_message="From nine to seven."))
    await accounts.aclose()
    await connection.close()


@pytest.mark.parametrize(("width", "scheme"), [("wide", "light"), ("narrow", "dark")])
def test_voice_agents_and_the_chat_are_watched(tmp_path: Path, width: str, scheme: str) -> None:
    with (
        an_agent(counted()) as port,
        opened_console(
            tmp_path / "data", width=width, FLOW_ENGINE_VOICE_DIRECTORY=f"{tmp_path}/voice"
        ) as console,
    ):
        page = console.page
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        console.open("/operations?show=voice")
        expect(page.get_by_role("heading", name="No voice manager runs here")).to_be_visible()
        expect(page.get_by_text("FLOW_ENGINE_VOICE_DIRECTORY")).to_be_visible()
        console.is_accessible()
        managed(tmp_path / "voice", status(port))
        page.reload()
        row = page.get_by_role("table").first.get_by_role("row").filter(has_text="Da Gino")
        expect(row).to_contain_text("running")
        expect(row.get_by_role("cell").nth(6)).to_have_text("2")  # barge-ins
        expect(row.get_by_role("cell").nth(7)).to_have_text("600 ms")  # the mean answer
        calls = page.get_by_role("table").nth(1).get_by_role("row")  # console: operations
        expect(calls).to_have_count(3)
        expect(calls.filter(has_text="goes on").get_by_role("cell").nth(5)).to_have_text("1.3 s")
        ended = calls.filter(has_text="caller_hung_up").get_by_role("cell")
        expect(ended.nth(4)).to_have_text("2")
        expect(ended.nth(5)).to_have_text("500 ms · 700 ms")
        expect(page.get_by_role("region", name="Not accepted")).to_contain_text("r-9")
        console.is_accessible()
        within_its_width(page)
        console.picture("operations-voice-wide")

        page.get_by_role("tab", name="Chat").click()
        expect(page.get_by_role("heading", name="The chat has decided nothing yet")).to_be_visible()
        console.is_accessible()
        with ThreadPoolExecutor(1) as thread:  # this one has the browser's loop
            thread.submit(lambda: asyncio.run(chatted(tmp_path / "data"))).result()
        page.reload()
        expect(page.get_by_role("row").filter(has_text="nobody fits")).to_contain_text("refuse")
        console.is_accessible()
        within_its_width(page)
        page.get_by_role("button", name="s-1").first.click()
        dialog = page.get_by_role("dialog", name="Session s-1")
        expect(dialog.get_by_role("region", name="Answers of agents")).to_contain_text("From nine to seven.")
        console.is_accessible()
        console.was_clean()
