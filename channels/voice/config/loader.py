"""From a config file to a config that can be run, or to everything that is wrong with it (V1)."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NoReturn, get_args

from pydantic import ValidationError

from channels.http_tools.documents import base_url_findings, check_builders
from channels.voice.call.ports import AudioFormat
from channels.voice.config.models import OpenAi, VoiceConfig
from channels.voice.config.review import review
from flow_engine.documents.findings import findings_of, listed
from flow_engine.errors import Finding, pointer
from flow_engine.values import JsonValue, ValueRejected, check_json

MOST_PROBLEMS = 200
"""Of one config; what is beyond is not listed."""
MAX_CONFIG_BYTES = 1_000_000
EXAMPLES = Path(__file__).with_name("examples")


class ConfigRefused(Exception):
    """The config cannot be run. `problems` are all there are, each with its JSON pointer."""

    def __init__(self, problems: Iterable[Finding]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "\n".join(f"{problem.pointer or '/'} {problem.message}" for problem in self.problems)
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """`warnings` are what is suspicious in a config that can be run; `digest` is the SHA-256 of the bytes
    that it was read from, in hexadecimal."""

    config: VoiceConfig
    warnings: tuple[Finding, ...]
    digest: str


def load_config(
    source: Path | bytes,
    *,
    builders: Collection[str],
    base_url: str | None = None,
    audio_formats: Collection[str] | None = None,
) -> Loaded:
    """Read, check and review a config, JSON in UTF-8. `builders` are the names of the body builders there
    are; `base_url` stands in for the config's own URL; `audio_formats` are those that the line can carry,
    None where there is no line. Raises ConfigRefused with every error at once, also for a file that cannot be
    read."""
    content = source if isinstance(source, bytes) else _content(source)
    raw, problems = _read(content)
    if base_url is not None:
        raw = {**raw, "base_url": base_url}
    config: VoiceConfig | None = None
    try:
        config = VoiceConfig.model_validate(raw)
    except ValidationError as error:
        problems += findings_of(error, VoiceConfig, raw, most=MOST_PROBLEMS)
    problems += [*check_builders(raw, builders), *base_url_findings(raw)]
    if audio_formats is not None:
        problems += _audio_findings(raw.get("openai", {}), audio_formats)
    if problems or config is None:
        raise ConfigRefused(problems)
    return Loaded(config, tuple(review(config, raw)), sha256(content).hexdigest())


def _audio_findings(openai: JsonValue, carried: Collection[str]) -> Iterator[Finding]:
    """What a line cannot carry is noise on it. What is no format at all is told by its type."""
    if not isinstance(openai, dict):
        return
    for name in ("input_audio_format", "output_audio_format"):
        audio_format = openai.get(name, OpenAi.model_fields[name].default)
        if audio_format in get_args(AudioFormat) and audio_format not in carried:
            message = f"{audio_format!r} cannot be played on the carrier's line; accepted: {listed(carried)}"
            yield Finding(pointer("openai", name), "audio_format_not_carried", message)


def _content(path: Path) -> bytes:
    """The file, read no further than what is needed to see that it is too large."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        message = f"{str(path)!r} cannot be read: {error.strerror or error}"
        raise _unreadable("not_readable", message) from error


# The file as JSON: what is asked of it before its content is looked at ----------------------------------


def read_json(text: bytes) -> dict[str, JsonValue]:
    """The object that a config is. Raises ConfigRefused, also for a property that is given twice."""
    value, twice = _read(text)
    if twice:
        raise ConfigRefused(twice)
    return value


def _read(text: bytes) -> tuple[dict[str, JsonValue], list[Finding]]:
    """The object, and the properties that are given twice. Raises ConfigRefused.

    They are refused: JSON readers keep one of them without a word, and which one differs. A byte order mark
    is skipped, as Windows editors write it.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise _unreadable("too_large", f"has more than {MAX_CONFIG_BYTES} bytes")
    reader = _Reader()
    try:
        value = reader.read(text.decode("utf-8-sig"))
        check_json(value)
    except UnicodeDecodeError as error:
        raise _unreadable("json_invalid", f"is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _unreadable("json_invalid", f"is not JSON at {where}: {error.msg}") from error
    except ValueRejected as rejected:
        raise _unreadable(rejected.code, rejected.message) from rejected
    except RecursionError as error:
        raise _unreadable("too_deep", "is nested too deeply") from error
    except ValueError as error:
        raise _unreadable("json_invalid", f"is not JSON: {error}") from error
    twice = list(reader.repeated(value))
    if not isinstance(value, dict):
        raise ConfigRefused([*twice, Finding("", "wrong_type", "must be a JSON object")])
    return value, twice


class _Reader:
    """The standard reader, which remembers the properties that an object gave more than once."""

    def __init__(self) -> None:
        self._repeated: dict[int, list[str]] = {}

    def read(self, text: str) -> JsonValue:
        return json.loads(text, object_pairs_hook=self._object, parse_constant=_no_json)

    def repeated(self, value: JsonValue, *place: str | int) -> Iterator[Finding]:
        if isinstance(value, dict):
            for name in self._repeated.get(id(value), ()):
                yield Finding(pointer(*place, name), "repeated_property", "is given more than once")
            for name, inner in value.items():
                yield from self.repeated(inner, *place, name)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield from self.repeated(inner, *place, index)

    def _object(self, pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        made = dict(pairs)
        if len(made) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            self._repeated[id(made)] = [name for name, count in counts.items() if count > 1]
        return made


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _unreadable(code: str, message: str) -> ConfigRefused:
    return ConfigRefused([Finding("", code, message)])
