"""A few recorded conversations of a sample on a draft with three planted changes: exactly these are found.

`make proof-replay` holds 500 to the same.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from service.replaying import Candidate, Source, candidate, replay_on
from service.settings import Settings
from tests.scripted.replaying import breaches, planted, recordings, unchanged

NUMBER = 15


@pytest.fixture(scope="module")
def recorded() -> list[bytes]:
    return asyncio.run(recordings(NUMBER))


def target(directory: Path, document: object) -> tuple[Candidate, Source]:
    (directory / "version.json").write_bytes(orjson.dumps(document))
    return candidate(directory / "version.json", Settings()), Source(Settings(), directory / "r.jsonl")


def test_three_planted_changes_are_found_and_nothing_else(  # journal: must be shown 3
    tmp_path: Path, recorded: list[bytes]
) -> None:
    (tmp_path / "r.jsonl").write_bytes(b"\n".join(recorded))
    replay = replay_on(*target(tmp_path, planted()))
    assert breaches(replay.rows, recorded) == []
    summary = replay.report()["summary"]
    assert summary["conversations"] == NUMBER
    assert min(summary["otherPath"], summary["variablesGone"], summary["samePath"]) > 0, summary


def test_a_draft_without_a_change_finds_nothing(tmp_path: Path, recorded: list[bytes]) -> None:
    """The control."""
    (tmp_path / "r.jsonl").write_bytes(b"\n".join(recorded))
    replay = replay_on(*target(tmp_path, unchanged()))
    summary = replay.report()["summary"]
    assert summary["samePath"] == summary["conversations"] == NUMBER
    assert not any(summary[key] for key in ("otherPath", "newRefusals", "variablesGone", "promptsDiffer"))
    assert breaches(replay.rows, recorded) != [], "what is compared can be different"
