"""A mail is answered once: the proof of `once_only.py` in small, and that it can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.channels.mail.once_only import Plan, prove

pytestmark = [pytest.mark.long, pytest.mark.anyio]


async def test_kills_cuts_and_a_new_uidvalidity_double_and_lose_nothing(tmp_path: Path) -> None:  # M1
    plan = Plan(mails=8, kills=2, kills_after_smtp=1, cuts=1, within_s=120)
    found = await prove(plan, tmp_path)
    assert found.broken(plan) == []


async def test_the_proof_catches_an_agent_that_forgets_what_it_was_about_to_send(  # M1
    tmp_path: Path,
) -> None:
    plan = Plan(mails=2, kills=2, kills_after_smtp=1, cuts=0, naive=True, within_s=120)
    found = await prove(plan, tmp_path)
    assert [each for each in found.broken(plan) if each.startswith("a mail was answered twice")]
