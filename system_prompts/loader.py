"""Reads the platform's prompt sections, default MCP servers and audio presets, once, at the start.

    <root>/<apiVersion>/<group>/<language>.json    sections; the group `default` is complete in every language
    <root>/<apiVersion>/mcp_servers.json           [{name, url, tools}]
    <root>/audio_presets/<presetId>.json           `default` is always there
    <root>/model_catalog.json                      models, voices, recognisers and languages for editors (F27)

All fallbacks of F26 are resolved while loading, so that asking is a look-up and every mistake in a file
shows before the first conversation does.

A placeholder in a section is `{name}`, in lower case. The default group holds every section in every
language, a model group only those that it says differently. Headings and items bring their own markup, which
suits some models and not others; the composer only puts lines together. Adding a section is backward
compatible, taking one away needs a new API version (F26).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from flow_engine.documents import AudioMediaConfigPreset, parse_document
from flow_engine.errors import CallTheOperator, CorrectTheInput, pointer
from flow_engine.ports.system_prompts import SystemMcpServer
from flow_engine.use_cases.model_catalog import ModelCatalog

DEFAULT_GROUP = "default"
FALLBACK_LANGUAGE = "en-US"
DEFAULT_PRESET = "default"

_API_VERSION = re.compile(r"v[0-9]+")

PromptSections = Mapping[str, str]
_Name = Annotated[str, Field(min_length=1)]


_WITHOUT_PLACEHOLDERS = (
    *("role", "commands", "task_change", "memory_reference", "style"),
    *("heading_global", "heading_task", "heading_reachable", "heading_checkpoints", "heading_channel"),
    *("heading_transfer", "heading_previous_contacts", "heading_contact", "heading_now", "heading_memory"),
    *("attempts_heading", "conditions_heading", "suggested_heading"),
    *("reachable_none", "channel_phone", "channel_whatsapp", "channel_sms", "channel_mail", "channel_chat"),
    *("transfer_hum", "transfer_ais", "transfer_approval", "human_routing", "human_connected"),
    *("human_completed", "human_failed", "human_supervising", "human_in_control", "approval_needed"),
    *("weekdays", "memory_never", "memory_empty", "stale_property", "conflict_property"),
    *("summary_nothing", "mining_instructions", "mining_checkpoints", "mining_confidence"),
    *("conclusion_instructions", "conclusion_reasons", "conclusion_results", "conclusion_scores"),
    *("speaker_user", "speaker_bot", "speaker_agent", "courtesy_instructions"),
)

SECTIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {name: frozenset[str]() for name in _WITHOUT_PLACEHOLDERS}
    | {
        "reachable_task": frozenset({"name", "type", "description"}),
        "reachable_requires": frozenset({"variables"}),
        "reachable_back": frozenset({"name"}),
        "checkpoint": frozenset({"name", "prompt"}),
        "transfer_skills": frozenset({"skills"}),
        "transfer_optional_skills": frozenset({"skills"}),
        "transfer_agents": frozenset({"agents"}),
        "approval_waiting": frozenset({"text", "until"}),
        "approval_approved": frozenset({"text"}),
        "approval_edited": frozenset({"text"}),
        "approval_rejected": frozenset({"text", "reason"}),
        "approval_timeout": frozenset({"text"}),
        "previous_contact": frozenset({"date", "channel", "resume"}),
        "previous_contacts_earlier": frozenset({"n", "first", "last", "channels"}),
        "contact_field": frozenset({"name", "value"}),
        "now": frozenset({"weekday", "date", "time", "timezone"}),
        "memory_updated": frozenset({"when", "ago"}),
        "ago_seconds": frozenset({"n"}),
        "ago_minutes": frozenset({"n"}),
        "ago_hours": frozenset({"n"}),
        "ago_days": frozenset({"n"}),
        "language": frozenset({"language"}),
        "summary_tasks": frozenset({"tasks"}),
        "summary_said": frozenset({"text"}),
        "summary_known": frozenset({"variables"}),
        "summary_end": frozenset({"reason"}),
        "mining_variable": frozenset({"name", "type", "prompt"}),
        "mining_confirm": frozenset({"name", "value"}),
        "mining_now": frozenset({"now"}),
        "stale_value": frozenset({"ago"}),
        "conflict_user": frozenset({"value"}),
        "conflict_tool": frozenset({"tool", "value"}),
        "summary_instructions": frozenset({"tasks"}),
        "condition_unmet": frozenset({"name", "reason"}),
        "suggested_task": frozenset({"name"}),
        "attempt": frozenset({"name", "n"}),
        "attempt_task": frozenset({"name", "n"}),
    }
)
"""Piece name → the placeholders that its text holds, all of them and no others."""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def placeholders(text: str) -> frozenset[str]:
    return frozenset(_PLACEHOLDER.findall(text))


def problems_of_section(name: str, text: object) -> Sequence[str]:
    """What is wrong with one section, each with what is expected instead.

    Braces stand for placeholders only: there is no escape for them, so that a text reads the same to a
    composer that substitutes in it and to one that does not. Lines of text; empty where all is well.
    """
    expected = SECTIONS.get(name)
    if expected is None:
        return [f"section {name!r} is unknown; the sections are {', '.join(sorted(SECTIONS))}"]
    if not isinstance(text, str) or not text.strip():
        return [f"section {name!r} must be a text that is not empty"]
    found: list[str] = []
    if placeholders(text) != expected:
        wanted = ", ".join(f"{{{each}}}" for each in sorted(expected)) or "no placeholder"
        got = ", ".join(f"{{{each}}}" for each in sorted(placeholders(text))) or "none"
        found.append(f"section {name!r} must hold {wanted}, and holds {got}")
    if re.search(r"[{}]", _PLACEHOLDER.sub("", text)):
        found.append(f"section {name!r} has a brace that belongs to no placeholder such as {{name}}")
    if name == "weekdays" and len([day for day in text.split(",") if day.strip()]) != 7:
        found.append("section 'weekdays' must name seven days, Monday first, separated by commas")
    return found


class _McpServerEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _Name
    url: Annotated[str, Field(pattern=r"^(https?://|\{baseUrl\})[^{}\s]*$")]
    tools: tuple[_Name, ...]


_MCP_SERVERS = TypeAdapter(tuple[_McpServerEntry, ...])


@dataclass(frozen=True, slots=True)
class ApiVersionFiles:
    """What one API version declares. `sections` has every (group, language) with its fallbacks applied.
    Languages are BCP 47 tags."""

    languages: tuple[str, ...]
    groups_longest_first: tuple[str, ...]
    sections: Mapping[tuple[str, str], PromptSections]
    mcp_servers: tuple[SystemMcpServer, ...]

    def group_of(self, model: str | None) -> str:
        """The group whose name is the model's, else the longest that begins it, else the default one.

        Case does not matter. A maker's prefix is passed over, so that `meta-llama/llama-4-scout` finds
        the group `llama`.
        """
        if model is None:
            return DEFAULT_GROUP
        folded = model.casefold()
        for candidate in (folded, folded.rpartition("/")[2]):
            for group in self.groups_longest_first:
                if candidate.startswith(group):
                    return group
        return DEFAULT_GROUP


@dataclass(frozen=True, slots=True)
class FileSystemPrompts:
    """The port `SystemPrompts` over files that were read by `load_system_prompts`."""

    versions: Mapping[str, ApiVersionFiles]
    presets: Mapping[str, Mapping[str, object]]

    def prompt_sections(self, api_version: str, model: str | None, language: str) -> PromptSections:
        """Every section, read-only; equal requests get the same object. Raises CallTheOperator
        `api_version_unknown`. A BCP 47 tag that no file has means en-US."""
        files = self._files(api_version)
        known = language if language in files.languages else FALLBACK_LANGUAGE
        return files.sections[files.group_of(model), known]

    def available_languages(self, api_version: str) -> tuple[str, ...]:
        return self._files(api_version).languages

    def api_versions(self) -> tuple[str, ...]:
        return tuple(self.versions)

    def audio_presets(self) -> Mapping[str, Mapping[str, object]]:
        """Presets by id. Their nested values are plain JSON, shared by all callers: copy to change."""
        return self.presets

    def mcp_servers(self, api_version: str) -> tuple[SystemMcpServer, ...]:
        return self._files(api_version).mcp_servers

    def _files(self, api_version: str) -> ApiVersionFiles:
        files = self.versions.get(api_version)
        if files is None:
            raise CallTheOperator(
                "api_version_unknown",
                f"there are no system prompts for API version {api_version!r}; "
                f"there are for {', '.join(self.versions)}",
            )
        return files


def load_system_prompts(root: Path | None = None) -> FileSystemPrompts:
    """Read everything under `root` (by default the files of this package).

    Raises CallTheOperator with code `system_prompts_invalid`, whose detail has one line for each problem,
    naming the file and what is expected of it. Files are JSON in UTF-8.
    """
    base = Path(__file__).parent if root is None else root
    reading = _Reading(base)
    versions = {
        directory.name: reading.api_version(directory)
        for directory in sorted(
            (each for each in reading.directories(base) if _API_VERSION.fullmatch(each.name)),
            key=lambda each: int(each.name[1:]),
        )
    }
    if not versions:
        reading.problem(base, "holds no API version; expected a directory such as v1")
    presets = reading.audio_presets(base / "audio_presets")
    if reading.problems:
        raise CallTheOperator("system_prompts_invalid", "\n".join(reading.problems))
    return FileSystemPrompts(versions=MappingProxyType(versions), presets=MappingProxyType(presets))


class _Reading:
    """One pass over the files. Goes on after a mistake, to report all of them together."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.problems: list[str] = []
        self._unreadable: set[Path] = set()

    def problem(self, path: Path, message: str) -> None:
        place = path.relative_to(self._root).as_posix()
        self.problems.append(f"{path if place == '.' else place}: {message}")

    def directories(self, path: Path) -> list[Path]:
        return sorted(each for each in path.iterdir() if each.is_dir()) if path.is_dir() else []

    def json(self, path: Path) -> object:
        """The file's value; None for a file that has none, which is noted once and looked into no more."""
        try:
            return cast(object, orjson.loads(path.read_bytes()))
        except OSError as error:
            self.problem(path, f"cannot be read ({error.strerror}); expected a JSON file")
        except orjson.JSONDecodeError as error:
            self.problem(path, f"is not JSON: {error}")
        self._unreadable.add(path)
        return None

    def json_object(self, path: Path) -> Mapping[str, object] | None:
        value = self.json(path)
        if isinstance(value, dict):
            return cast(Mapping[str, object], value)
        if path not in self._unreadable:
            self.problem(path, f"must hold a JSON object, not {type(value).__name__}")
            self._unreadable.add(path)
        return None

    def api_version(self, directory: Path) -> ApiVersionFiles:
        groups: dict[str, Mapping[str, PromptSections]] = {}
        for group in self.directories(directory):
            name = group.name.casefold()
            if name in groups:
                self.problem(group, "names the same group as another directory; case does not matter")
            groups[name] = self.sections_of(group)
        default = groups.pop(DEFAULT_GROUP, {})
        if FALLBACK_LANGUAGE not in default:
            self.problem(
                directory / DEFAULT_GROUP / f"{FALLBACK_LANGUAGE}.json", "is missing: it is the last fallback"
            )
        for language, sections in default.items():
            path = directory / DEFAULT_GROUP / f"{language}.json"
            missing = sorted(SECTIONS.keys() - sections.keys())
            if missing and path not in self._unreadable:
                self.problem(path, f"must hold every section, and lacks {', '.join(missing)}")
        for group, languages in groups.items():
            for language in sorted(languages.keys() - default.keys()):
                self.problem(
                    directory / group / f"{language}.json",
                    f"has a language that the default group lacks; its languages are {', '.join(default)}",
                )
        resolved: dict[tuple[str, str], PromptSections] = {}
        for language, sections in default.items():
            resolved[DEFAULT_GROUP, language] = MappingProxyType(dict(sections))
            for group, languages in groups.items():
                resolved[group, language] = MappingProxyType({**sections, **languages.get(language, {})})
        return ApiVersionFiles(
            languages=tuple(default),
            groups_longest_first=tuple(sorted(groups, key=len, reverse=True)),
            sections=MappingProxyType(resolved),
            mcp_servers=self.mcp_servers(directory / "mcp_servers.json"),
        )

    def sections_of(self, directory: Path) -> Mapping[str, PromptSections]:
        """The sections of a group by language; every one that is wrong is noted."""
        languages: dict[str, PromptSections] = {}
        for path in sorted(directory.glob("*.json")):
            sections: dict[str, str] = {}
            languages[path.stem] = sections
            for name, text in (self.json_object(path) or {}).items():
                for message in problems_of_section(name, text):
                    self.problem(path, message)
                sections[name] = str(text)
        return languages

    def mcp_servers(self, path: Path) -> tuple[SystemMcpServer, ...]:
        value = self.json(path)
        if path in self._unreadable:
            return ()
        try:
            servers = _MCP_SERVERS.validate_python(value)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                self._breach(path, "must be a list of {name, url, tools}", pointer(*each["loc"]), each["msg"])
            return ()
        if len({server.name for server in servers}) != len(servers):
            self.problem(path, "names a server twice; names must differ")
        return tuple(SystemMcpServer(server.name, server.url, server.tools) for server in servers)

    def _breach(self, path: Path, expected: str, place: str, message: str) -> None:
        self.problem(path, f"{expected}; at {place!r}: {message}")

    def audio_presets(self, directory: Path) -> dict[str, Mapping[str, object]]:
        presets: dict[str, Mapping[str, object]] = {}
        for path in sorted(directory.glob("*.json")):
            preset = self.json_object(path)
            if preset is None:
                continue
            try:
                parse_document(AudioMediaConfigPreset, preset, "the audio preset")
            except CorrectTheInput as refusal:
                for finding in refusal.findings:
                    self._breach(path, "must be a whole audio preset", finding.pointer, finding.message)
            presets[path.stem] = MappingProxyType(dict(preset))
        if DEFAULT_PRESET not in presets and not (directory / f"{DEFAULT_PRESET}.json").exists():
            self.problem(directory / f"{DEFAULT_PRESET}.json", "is missing: this preset is always there")
        return presets


_MODEL_CATALOG = Path(__file__).parent / "model_catalog.json"


def load_model_catalog(path: Path = _MODEL_CATALOG) -> ModelCatalog:
    """Raises CallTheOperator `catalogue_invalid`, whose detail has one line for each problem. Read once, as
    JSON."""
    try:
        model_catalog = ModelCatalog.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _invalid(path, [f"cannot be read ({error.strerror})"]) from None
    except ValidationError as error:
        problems = [
            f"at {pointer(*each['loc'])!r}: {each['msg']}" for each in error.errors(include_url=False)
        ]
        raise _invalid(path, problems) from None
    problems = list(_problems(model_catalog))
    if problems:
        raise _invalid(path, problems)
    return model_catalog


def _problems(model_catalog: ModelCatalog) -> Iterator[str]:
    listed = {
        "models": [(offer.provider, offer.id) for offer in model_catalog.models],
        "voices": [(offer.provider, offer.id) for offer in model_catalog.voices],
        "sttEngines": [(offer.provider, offer.name) for offer in model_catalog.stt_engines],
        "languages": [(offer.code,) for offer in model_catalog.languages],
    }
    for what, keys in listed.items():
        yield from (f"{what}: {' '.join(key)!r} stands twice" for key, n in Counter(keys).items() if n > 1)
    known = {language.code for language in model_catalog.languages}
    for offer in (*model_catalog.voices, *model_catalog.stt_engines):
        unknown = sorted(set(offer.languages or ()) - known)
        if unknown:
            yield f"{offer.provider} {offer.name!r} names languages that are not listed: {', '.join(unknown)}"


def _invalid(path: Path, problems: list[str]) -> CallTheOperator:
    return CallTheOperator("catalogue_invalid", "\n".join(f"{path.name}: {each}" for each in problems))
