"""The page of the chat agrees with what it describes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import orjson
import pytest

from channels.chat.app import BAD_HELLO, BINARY, NOT_ALLOWED, SESSION_UNKNOWN, TAKEN_OVER, TRY_LATER
from channels.chat.frames import read_frame
from channels.chat.rows import FIELDS, row_findings
from channels.chat.settings import ChatSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")
SOURCES = "\n".join(path.read_text("utf-8") for path in (ROOT / "channels" / "chat").glob("*.py"))
FRAMES = [
    orjson.loads(line)
    for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


def test_every_frame_of_the_page_is_one_of_the_protocol() -> None:  # C13
    sent = [frame for frame in FRAMES if "seq" not in frame]
    assert {read_frame(orjson.dumps(frame).decode()).type for frame in sent} == {
        "hello",
        "message",
        "cancel",
        "confirm",
    }
    received = [frame for frame in FRAMES if "seq" in frame]
    assert {frame["type"] for frame in received} == {"state", "dialogue", "action", "error"}
    for frame in received:
        assert {"seq", "type", "content", "session", "id", "final"} <= frame.keys()


def test_every_error_and_close_code_is_on_the_page() -> None:  # C13
    raised = set(re.findall(r'(?:_error|frames\.error)\(\s*"([a-z_]+)"', SOURCES))
    assert raised
    assert not [code for code in raised if f"`{code}`" not in PAGE]
    for code in (TAKEN_OVER, SESSION_UNKNOWN, BAD_HELLO, NOT_ALLOWED, BINARY, TRY_LATER):
        assert str(code) in PAGE


def test_every_event_of_a_state_frame_is_on_the_page() -> None:  # C13
    events = set(re.findall(r'"event": "([a-z_]+)"', SOURCES))
    assert events
    assert not [event for event in events if f"`{event}`" not in PAGE]


def test_every_field_and_setting_is_on_the_page() -> None:  # C1
    assert not [name for name in FIELDS if f"`{name}`" not in PAGE]
    explained = {f"FLOW_ENGINE_{name.upper()}" for name in ChatSettings.model_fields}
    assert not [
        name for name in explained if name not in PAGE and name.removeprefix("FLOW_ENGINE_") not in PAGE
    ]


def test_the_rows_of_the_page_are_sound() -> None:  # C1
    rows = [orjson.loads(text) for text in re.findall(r"-d '(\{\s*\"name\".*?\n    \})'", PAGE, re.DOTALL)]
    rows += [orjson.loads(text) for text in re.findall(r"^    (\{\"name\".*\})$", PAGE, re.MULTILINE)]
    assert len(rows) == 2
    for row in rows:
        assert list(row_findings(row)) == []


def test_the_tool_of_the_page_is_one() -> None:  # C11
    (source,) = re.findall(r"^    (from channels\.chat import tool.*?)\n\n`", PAGE, re.DOTALL | re.MULTILINE)
    code = "\n".join(line[4:] if line.startswith("    ") else line for line in f"    {source}".splitlines())
    assert [type(node).__name__ for node in ast.parse(code).body] == ["ImportFrom", "FunctionDef"]


@pytest.mark.parametrize("word", ["hello", "message", "confirm", "4001", "approval"])
def test_the_browser_client_speaks_the_protocol(word: str) -> None:  # C12
    page = (ROOT / "examples" / "chat.html").read_text("utf-8")
    assert word in page
