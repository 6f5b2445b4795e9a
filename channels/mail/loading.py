"""From a config file to a config that can be run, or to everything that is wrong with it (M3-M5)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from channels.http_tools.documents import base_url_findings
from channels.mail.config import MAIL_TOOLS, MailConfig
from channels.mail.preprocessing import Preprocess, installed_preprocessors
from flow_engine.documents.findings import findings_of, listed, nearest
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.testing.yaml_text import FileRejected, read_yaml
from flow_engine.values import JsonValue

MOST_FINDINGS = 200
MOST_PROMPT_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A config that can be run. `prompts` are the texts of the system prompts by profile, each of
    `MOST_PROMPT_BYTES` bytes at most."""

    config: MailConfig
    prompts: Mapping[str, str]
    preprocessors: Mapping[str, Preprocess]


def load_config(path: Path) -> LoadedConfig:
    """Read and check a file. Paths in it are relative to it.

    Raises CorrectTheInput `mail_config_refused` with a finding for everything that is wrong, a file that
    cannot be read too; CallTheOperator `preprocessor_not_loaded`.
    """
    preprocessors = installed_preprocessors()
    try:
        text = path.read_bytes()
    except OSError as error:
        message = f"{str(path)!r} cannot be read: {error.strerror or error}"
        raise _refused(path, Finding("", "not_readable", message)) from error
    try:
        root, mistakes = read_yaml(text)
    except FileRejected as rejected:
        mistakes = rejected.mistakes
        raise _refused(
            path,
            *(Finding(each.pointer, each.code, f"line {each.line}: {each.message}") for each in mistakes),
        ) from rejected
    if mistakes:
        raise _refused(path, *(Finding(each.pointer, each.code, each.message) for each in mistakes))
    raw = root.value
    found: list[Finding] = []
    config: MailConfig | None = None
    try:
        config = MailConfig.model_validate(raw)
    except ValidationError as error:
        found += findings_of(error, MailConfig, raw, most=MOST_FINDINGS)
    prompts: dict[str, str] = {}
    found += _cross_findings(raw, path.parent, preprocessors, prompts)
    if found or config is None:
        raise _refused(path, *found)
    return LoadedConfig(config, prompts, preprocessors)


def _refused(path: Path, *findings: Finding) -> CorrectTheInput:
    lines = [f"{path}: {finding.pointer or '/'}: {finding.message}" for finding in findings]
    return CorrectTheInput("mail_config_refused", "\n".join(lines), findings)


# What one part asks of another: read from the file itself, so that it is found beside errors of shape ------


def _cross_findings(
    raw: JsonValue, directory: Path, preprocessors: Mapping[str, Preprocess], prompts: dict[str, str]
) -> Iterator[Finding]:
    """Fills `prompts` by the way."""
    if not isinstance(raw, dict):
        return
    profiles, tools = _object(_object(raw.get("agent")).get("profiles")), _object(raw.get("tools"))
    one, several = raw.get("mailbox"), _list(raw.get("mailboxes"))
    if (one is None) == (not several):
        yield Finding("/mailbox", "missing_property", "accepted is either `mailbox` or `mailboxes`")
    names = [_object(box).get("name") for box in several]
    for number, name in enumerate(names):
        if name is not None and name in names[:number]:
            yield Finding(pointer("mailboxes", number, "name"), "name_taken", f"{name!r} is there before")
    yield from _rule_findings(_list(_object(raw.get("routing")).get("rules")), profiles)
    for name in sorted(MAIL_TOOLS & tools.keys()):
        message = f"{name!r} is a tool of every mail agent; accepted is another name"
        yield Finding(pointer("tools", name), "tool_name_reserved", message)
    for name, profile in profiles.items():
        yield from _profile_findings(name, _object(profile), MAIL_TOOLS | tools.keys(), preprocessors)
        file = _object(profile).get("system_prompt_file")
        if isinstance(file, str) and file:
            try:
                with (directory / file).open("rb") as opened:
                    data = opened.read(MOST_PROMPT_BYTES + 1)
                if len(data) > MOST_PROMPT_BYTES:
                    raise ValueError(f"it has more than {MOST_PROMPT_BYTES} bytes")
                prompts[name] = data.decode("utf-8-sig")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                message = f"{file!r} cannot be read: {reason}; accepted is a text file"
                yield Finding(_at(name, "system_prompt_file"), "file_absent", message)
    yield from base_url_findings(raw)


def _rule_findings(rules: list[JsonValue], profiles: Mapping[str, JsonValue]) -> Iterator[Finding]:
    seen: set[str] = set()
    for number, rule in enumerate(map(_object, rules)):
        name, profile, route = rule.get("name"), rule.get("profile"), rule.get("route")
        if isinstance(name, str) and name in seen:
            message = f"{name!r} is the name of an earlier rule; accepted is another one"
            yield Finding(pointer("routing", "rules", number, "name"), "name_taken", message)
        seen.add(str(name))
        at = pointer("routing", "rules", number, "profile")
        if route == "agent" and profile is None:
            message = f"is required with the route 'agent'; accepted are {listed(profiles)}"
            yield Finding(at, "missing_property", message)
        elif isinstance(profile, str) and route == "pipeline":
            yield Finding(at, "not_allowed", "goes with the route 'agent' only")
        elif isinstance(profile, str) and profile not in profiles:
            yield Finding(
                at, "profile_unknown", f"no profile {profile!r}; {nearest(profile, list(profiles))}"
            )


def _profile_findings(
    name: str,
    profile: Mapping[str, JsonValue],
    tools: frozenset[str],
    preprocessors: Mapping[str, Preprocess],
) -> Iterator[Finding]:
    if profile.get("name") not in (None, name):
        yield Finding(
            _at(name, "name"), "not_allowed", f"must be {name!r}, as the profile is called, or left out"
        )
    names = _list(profile.get("tools"))
    for number, tool in enumerate(names):
        if isinstance(tool, str) and tool not in tools:
            message = f"no tool {tool!r}; {nearest(tool, sorted(tools))}"
            yield Finding(_at(name, "tools", number), "tool_unknown", message)
        elif isinstance(tool, str) and tool in names[:number]:
            yield Finding(_at(name, "tools", number), "name_taken", f"{tool!r} is listed before")
    for tool in _object(profile.get("approval")):
        if tool not in names:
            message = f"{tool!r} is no tool of the profile; accepted are {listed(map(str, names))}"
            yield Finding(_at(name, "approval", tool), "tool_unknown", message)
    chosen = profile.get("preprocessor")
    if isinstance(chosen, str) and chosen not in preprocessors:
        message = f"no preprocessor {chosen!r}; accepted are {listed(preprocessors)}"
        yield Finding(_at(name, "preprocessor"), "preprocessor_unknown", message)


def _at(profile: str, *parts: str | int) -> str:
    return pointer("agent", "profiles", profile, *parts)


def _object(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
