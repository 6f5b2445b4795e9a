"""Config files: filled from the template of an agent's type, checked, and written.

Templates are JSON files with `${NAME}` in their strings. They are filled after they have been parsed, so that
a name with quotes in it stays a value, and each string once, so that a value which looks like a placeholder
stays what it is. What is secret of an agent is no placeholder: it has no business in a file. `${env:NAME}`
is left as it is, for the agent.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import orjson
import structlog

from channels.voice.config.loader import EXAMPLES, MAX_CONFIG_BYTES, ConfigRefused, load_config, read_json
from channels.voice.manager.agents_list import Listed
from channels.voice.manager.directory import write_private
from flow_engine.documents.findings import listed
from flow_engine.errors import Finding, pointer
from flow_engine.values import JsonValue

log: Any = structlog.get_logger("flow_engine.voice.manager")

SHIPPED: Final[Mapping[str, str]] = {
    "restaurant": "restaurant.json", "medical": "medical.json", "standard": "switchboard.json",
}  # fmt: skip
"""The types whose template comes along: the example that is one, for whoever is listed."""

# A reference to the environment, `${env:NAME}`, is the agent's to read.
_PLACEHOLDER = re.compile(r"\$\{(?!env:)([^{}]*)\}")


def shipped_template(kind: str) -> dict[str, JsonValue]:
    """That of a type in `SHIPPED`, JSON."""
    example = read_json((EXAMPLES / SHIPPED[kind]).read_bytes())
    agent = cast("dict[str, JsonValue]", example["agent"])
    listed_one: dict[str, JsonValue] = {"id": "${AGENT_ID}", "name": "${AGENT_NAME}", "type": "${AGENT_TYPE}"}
    return {**example, "agent": {**agent, **listed_one}, "base_url": "${API_URL}"}


def placeholders(agent: Listed, api_url: str) -> dict[str, str]:
    """What a template can ask for. The names of the first line are those of templates for restaurants."""
    return {
        **{"RESTAURANT_ID": agent.id, "RESTAURANT_NAME": agent.name, "NEXT_API_URL": api_url},
        **{"AGENT_ID": agent.id, "AGENT_NAME": agent.name, "AGENT_TYPE": agent.type, "API_URL": api_url},
    }


def fill(template: JsonValue, values: Mapping[str, str]) -> JsonValue:
    """The template with every placeholder replaced. Raises ConfigRefused for those that are not known, and
    for any in the name of a property."""
    problems = list(_problems(template, values))
    if problems:
        raise ConfigRefused(problems)
    return _filled(template, values)


def _problems(value: JsonValue, values: Mapping[str, str], *place: str | int) -> Iterator[Finding]:
    if isinstance(value, str):
        unknown = [name for name in _PLACEHOLDER.findall(value) if name not in values]
        if unknown:
            message = f"has unknown placeholders {listed(unknown)}; there are {listed(values)}"
            yield Finding(pointer(*place), "unknown_placeholder", message)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _problems(inner, values, *place, index)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if _PLACEHOLDER.search(name):
                yield Finding(
                    pointer(*place, name), "placeholder_in_name", "is a name; placeholders stand in values"
                )
            yield from _problems(inner, values, *place, name)


def _filled(value: JsonValue, values: Mapping[str, str]) -> JsonValue:
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: values[found[1]], value)
    if isinstance(value, list):
        return [_filled(inner, values) for inner in value]
    if isinstance(value, dict):
        return {name: _filled(inner, values) for name, inner in value.items()}
    return value


class ConfigFiles:
    """`<templates>/<type>.json` → `<configs>/<id>.json`; without a directory of templates, those of
    `SHIPPED`. Ids and types are safe as names of files. A config, JSON in UTF-8, is read as an agent reads
    it, with the names of the body builders that there are and the audio formats of the carrier. Texts that
    were accepted are remembered for the run of the program, since a refresh rarely changes one."""

    def __init__(
        self,
        templates: Path | None,
        configs: Path,
        api_url: str,
        builders: Collection[str],
        audio_formats: Collection[str] | None = None,
    ) -> None:
        self._templates = templates
        self._configs = configs
        self._api_url = api_url
        self._builders = builders
        self._audio_formats = audio_formats
        self._accepted: dict[str, bytes] = {}

    def path(self, agent_id: str) -> Path:
        return self._configs / f"{agent_id}.json"

    def make(self, agent: Listed) -> bytes:
        """The text of the agent's config, JSON in UTF-8. Raises ConfigRefused."""
        filled = fill(self._template(agent.type), placeholders(agent, self._api_url))
        content = orjson.dumps(filled, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        if self._accepted.get(agent.id) == content:
            return content
        loaded = load_config(content, builders=self._builders, audio_formats=self._audio_formats)
        if loaded.config.agent.id != agent.id:
            # A template that names one agent would have all of its type pass for it.
            raise _refused("other_agent", f"must be {agent.id!r}, by ${{AGENT_ID}}", "/agent/id")
        for warning in loaded.warnings:
            log.warning("config_warning", agent_id=agent.id, pointer=warning.pointer, message=warning.message)
        self._accepted[agent.id] = content
        return content

    def write(self, agent_id: str, content: bytes) -> str:
        """Writes the file unless it holds the same bytes, and returns its fingerprint. Raises OSError."""
        path = self.path(agent_id)
        if not path.exists() or path.read_bytes() != content:
            write_private(path, content)
        return sha256(content).hexdigest()

    def remove(self, agent_id: str) -> None:
        """Raises OSError; a file that is not there is no error."""
        self._accepted.pop(agent_id, None)
        self.path(agent_id).unlink(missing_ok=True)

    def _template(self, kind: str) -> JsonValue:
        if self._templates is None:
            if kind in SHIPPED:
                return shipped_template(kind)
            raise _no_template(kind, SHIPPED)
        path = self._templates / f"{kind}.json"
        try:
            with path.open("rb") as file:
                return read_json(file.read(MAX_CONFIG_BYTES + 1))
        except FileNotFoundError:
            raise _no_template(kind, [each.stem for each in self._templates.glob("*.json")]) from None
        except OSError as error:
            raise _refused("template_unreadable", f"{path.name} cannot be read: {error.strerror}") from error


def _no_template(kind: str, there: Collection[str]) -> ConfigRefused:
    return _refused("no_template", f"has no template for type {kind!r}; there are {listed(there)}")


def _refused(code: str, message: str, where: str = "") -> ConfigRefused:
    return ConfigRefused([Finding(where, code, message)])
