"""The voices that the model can speak with. Configs outlive them: an unknown one is replaced, not refused."""

from __future__ import annotations

from typing import Final

DEFAULT_VOICE: Final = "sage"
VOICES: Final = (
    "alloy",
    "ash",
    "ballad",
    "cedar",
    "coral",
    "echo",
    "marin",
    "sage",
    "shimmer",
    "verse",
)


def unknown_voice(voice: str, used: str) -> str:
    """Says what became of a voice that there is not."""
    return f"there is no voice {voice!r}: {used!r} is used; the model has {', '.join(map(repr, VOICES))}"
