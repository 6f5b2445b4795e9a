"""From a config file to a config that can be run, or to everything that is wrong with it (V1)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from channels.http_tools.documents import check_builders
from channels.voice.config.models import VoiceConfig
from channels.voice.config.reading import MAX_CONFIG_BYTES, Unreadable, read_json
from channels.voice.config.review import review
from flow_engine.documents.findings import findings_of, listed
from flow_engine.errors import Finding, pointer
from flow_engine.values import JsonValue

MOST_PROBLEMS = 200
"""Of one config; what is beyond is not listed."""
_BASE_URL_USED = re.compile(r"\{\{\s*base_url\b")


class ConfigRefused(Exception):
    """The config cannot be run. `problems` are all there are, each with its JSON pointer."""

    def __init__(self, problems: Iterable[Finding]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "\n".join(f"{problem.pointer or '/'} {problem.message}" for problem in self.problems)
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """`warnings` are what is suspicious in a config that can be run."""

    config: VoiceConfig
    warnings: tuple[Finding, ...]


def load_config(
    source: Path | bytes,
    *,
    builders: Collection[str],
    base_url: str | None = None,
    audio_formats: Collection[str] | None = None,
) -> Loaded:
    """Read, check and review a config. `builders` are the names of the body builders there are; `base_url`
    stands in for the config's own; `audio_formats` are those that the line can carry, None where there is
    no line.

    Raises ConfigRefused, also for a file that cannot be read.
    """
    try:
        raw = read_json(source if isinstance(source, bytes) else _content(source))
    except Unreadable as unreadable:
        raise ConfigRefused(unreadable.problems) from unreadable
    if base_url is not None:
        raw = {**raw, "base_url": base_url}
    try:
        config = VoiceConfig.model_validate(raw)
    except ValidationError as error:
        found = findings_of(error, VoiceConfig, raw, most=MOST_PROBLEMS)
        raise ConfigRefused([*found, *_base_url(raw)]) from error
    problems = [*check_builders(config.tools, builders), *_base_url(raw)]
    if audio_formats is not None:
        problems += _formats(config, audio_formats)
    if problems:
        raise ConfigRefused(problems)
    return Loaded(config, tuple(review(config, raw)))


def _content(path: Path) -> bytes:
    """The file, read no further than what is needed to see that it is too large."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        message = f"{str(path)!r} cannot be read: {error.strerror or error}"
        raise ConfigRefused([Finding("", "not_readable", message)]) from error


def _base_url(raw: JsonValue) -> list[Finding]:
    if isinstance(raw, dict) and raw.get("base_url") is None and _uses_base_url(raw):
        return [Finding("/base_url", "missing_property", "is required, as templates use {{base_url}}")]
    return []


def _formats(config: VoiceConfig, carried: Collection[str]) -> Iterator[Finding]:
    """What a line cannot carry is noise on it."""
    for name in ("input_audio_format", "output_audio_format"):
        audio_format: str = getattr(config.openai, name)
        if audio_format not in carried:
            message = f"{audio_format!r} cannot be played on the carrier's line; accepted: {listed(carried)}"
            yield Finding(pointer("openai", name), "audio_format_not_carried", message)


def _uses_base_url(value: JsonValue) -> bool:
    if isinstance(value, str):
        return _BASE_URL_USED.search(value) is not None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_uses_base_url, inner))
