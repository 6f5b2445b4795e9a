"""System prompts that show which of their pieces stand where."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import system_prompts
from system_prompts.loader import SECTIONS, FileSystemPrompts, load_system_prompts

WEEKDAYS = "Mon, Tue, Wed, Thu, Fri, Sat, Sun"
LANGUAGES = ("en-US", "es-ES", "it-IT")


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> FileSystemPrompts:
    """Pieces that tell their name and language: `<now en-US> {weekday} …`; group `gemini` has its role."""
    root = tmp_path_factory.mktemp("prompts")
    presets = root / "audio_presets"
    presets.mkdir()
    real = Path(system_prompts.__file__).parent / "audio_presets" / "default.json"
    (presets / "default.json").write_bytes(real.read_bytes())
    for folder in ("default", "gemini"):
        (root / "v1" / folder).mkdir(parents=True)
    (root / "v1" / "mcp_servers.json").write_text("[]")
    for language in LANGUAGES:
        sections = {
            name: " ".join([f"<{name} {language}>", *(f"{{{p}}}" for p in sorted(placeholders))])
            for name, placeholders in SECTIONS.items()
        }
        sections["weekdays"] = WEEKDAYS
        (root / "v1" / "default" / f"{language}.json").write_bytes(orjson.dumps(sections))
    (root / "v1" / "gemini" / "en-US.json").write_bytes(orjson.dumps({"role": "<role of gemini>"}))
    return load_system_prompts(root)
