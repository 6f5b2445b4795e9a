"""Tools that the tests' agents list."""

from __future__ import annotations

import asyncio
from typing import Literal

from channels.chat import tool

CALLS: list[tuple[str, object]] = []


@tool
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    CALLS.append(("add", (a, b)))
    return a + b


@tool(name="pay", description="Pays an amount.", approval="prompt", timeout_s=5)
async def pay_now(amount: float, currency: Literal["EUR", "USD"] = "EUR") -> dict[str, object]:
    CALLS.append(("pay", (amount, currency)))
    return {"paid": amount, "currency": currency}


@tool(approval="forbid")
def wipe() -> None:
    """Deletes everything."""
    CALLS.append(("wipe", None))


@tool
def breaks() -> None:
    """Fails."""
    raise ValueError("out of paper")


@tool(timeout_s=0.05)
async def sleeps() -> str:
    """Takes too long."""
    await asyncio.sleep(60)
    return "awake"


@tool
def reads(length: int = 20_000) -> str:
    """Reads a long page."""
    return "x" * length


@tool
def rejects(length: int) -> None:
    """Says at length why it does not."""
    raise ValueError("x" * length)
