"""What is suspicious in a config that can be run: each warning says what will happen instead."""

from collections.abc import Iterator, Mapping
from datetime import date
from difflib import get_close_matches

from channels.http_tools import documents, placeholders, scope
from channels.voice.config.models import FlowSession, InlineSession, VoiceConfig
from channels.voice.config.vocabulary import VOICES, is_known
from flow_engine.conditions.lexing import Mistake, Path
from flow_engine.documents.findings import listed
from flow_engine.errors import Finding, pointer
from flow_engine.values import JsonValue

ROOT_NAMES = frozenset({"base_url"})
AGENT_NAMES = frozenset({"id", "name", "type", "language"})

_REALTIME_ENDS = date(2027, 1, 20)
_TRANSCRIPTION_ENDS = date(2027, 2, 26)
_ENDINGS: Mapping[str, tuple[date, str]] = {
    "gpt-realtime": (_REALTIME_ENDS, "'gpt-realtime-2.1'"),
    "gpt-realtime-2025-08-28": (_REALTIME_ENDS, "'gpt-realtime-2.1'"),
    "gpt-realtime-mini": (_REALTIME_ENDS, "'gpt-realtime-2.1-mini'"),
    "whisper-1": (_TRANSCRIPTION_ENDS, "a transcription model of OpenAI's list, or null"),
    "gpt-4o-transcribe": (_TRANSCRIPTION_ENDS, "a transcription model of OpenAI's list, or null"),
    "gpt-4o-mini-transcribe": (_TRANSCRIPTION_ENDS, "a transcription model of OpenAI's list, or null"),
}
"""By OpenAI's page of deprecations, as it was in autumn 2026."""

_UNUSED_IN_FLOWS = ("greeting", "tools")


def review(config: VoiceConfig, raw: JsonValue) -> Iterator[Finding]:
    """Every warning about a sound config, at JSON Pointers; `raw` is the same config as it was written.
    Nothing is refused by them."""
    if config.openai.temperature is not None:
        message = "is dropped: the model's protocol has no temperature"
        yield Finding("/openai/temperature", "temperature_dropped", message)
    if not is_known(config.openai.voice):
        used = f"{config.openai.spoken_voice!r} is used; the model has {', '.join(map(repr, VOICES))}"
        message = f"there is no voice {config.openai.voice!r}: {used}"
        yield Finding("/openai/voice", "voice_unknown", message)
    if isinstance(config.session, InlineSession):
        yield from _declared_tools(config, config.session)
    if isinstance(config.session, FlowSession):
        for section in _UNUSED_IN_FLOWS:
            if section in config.model_fields_set:
                yield Finding(pointer(section), "unused_in_flow", "is not used: a flow leads the call")
    rules = config.lifecycle.outcome_rules
    if rules and all(rule.flag is not None for rule in rules):
        message = "no rule has a null `flag`: a call that no rule applies to has no outcome"
        yield Finding("/lifecycle/outcome_rules", "no_fallback_rule", message)
    fallback = min((rule.priority for rule in rules if rule.flag is None), default=None)
    seen: dict[int, int] = {}
    for index, rule in enumerate(rules):
        at = pointer("lifecycle", "outcome_rules", index)
        if rule.priority in seen:
            message = f"has the priority of rule {seen[rule.priority]}, which is asked first"
            yield Finding(at, "same_priority", message)
        elif fallback is not None and rule.priority > fallback:
            yield Finding(at, "rule_unreachable", "never applies: the rule with a null `flag` is asked first")
        seen.setdefault(rule.priority, index)
    yield from _unknown_variables(raw)


def retiring_models(config: VoiceConfig, today: date) -> Iterator[Finding]:
    """Warnings about models of the config that OpenAI has announced the end of, said at the start of an
    agent: a config that names none has the defaults."""
    transcription = config.openai.input_audio_transcription
    named = [("/openai/model", config.openai.model)]
    if transcription is not None:
        named.append(("/openai/input_audio_transcription/model", transcription.model))
    for place, model in named:
        if (ending := _ENDINGS.get(model)) is not None:
            day, instead = ending
            verb = "has ended" if today >= day else "ends"
            yield Finding(place, "model_retiring", f"{model!r} {verb} on {day.isoformat()}; use {instead}")


def untransferred(config: VoiceConfig, lacking: str) -> Iterator[Finding]:
    """Warnings about whatever would transfer a call, where the carrier lacks these settings for that."""
    places = [
        pointer("tools", name)
        for name, tool in config.tools.items()
        if isinstance(tool, documents.BuiltinTool) and tool.action == "transfer"
    ]
    if isinstance(config.session, FlowSession):
        session = config.session
        places += [
            pointer("session", name) for name in ("transfers", "transfer_to") if getattr(session, name)
        ]
    for place in places:
        yield Finding(place, "transfer_not_set_up", f"transfers no call without {lacking}")


def _declared_tools(config: VoiceConfig, session: InlineSession) -> Iterator[Finding]:
    """Declared are the tools that the model knows, configured are those that something happens for."""
    for index, name in enumerate(session.tools.names):
        if name not in config.tools:
            message = f"{name!r} has nothing in `tools` that runs it: its calls are answered with an error"
            yield Finding(pointer("session", "tools", index), "tool_without_handler", message)
    for name, tool in config.tools.items():
        if name in session.tools.names:
            continue
        if isinstance(tool, documents.BuiltinTool) and tool.action == "hangup":
            message = "is not among the tools of the session: the agent cannot hang up"
            yield Finding(pointer("tools", name), "end_call_unreachable", message)
        else:
            message = "is not among the tools of the session: the model never calls it"
            yield Finding(pointer("tools", name), "handler_not_declared", message)


# --- variables that there are not ---------------------------------------------------------------


def _unknown_variables(value: JsonValue, *place: str | int) -> Iterator[Finding]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _unknown_variables(inner, *place, name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unknown_variables(inner, *place, index)
    elif isinstance(value, str):
        for placeholder in _placeholders(value):
            filters = (each for each in placeholder.filters if isinstance(each, placeholders.Default))
            others = (
                each.fallback for each in filters if not isinstance(each.fallback, placeholders.Constant)
            )
            for path in (placeholder.path, *others):
                if message := _problem(path):
                    yield Finding(pointer(*place), "unknown_variable", message)


def _placeholders(text: str) -> Iterator[placeholders.Placeholder]:
    """Those of a text, be it a template, a condition or a JSONPath. Where a text is none of these, as in a
    tenant's facts, braces mean nothing."""
    at = text.find(placeholders.OPEN)
    while at >= 0:
        try:
            placeholder, at = placeholders.placeholder_at(text, at)
        except Mistake:
            return
        yield placeholder
        at = text.find(placeholders.OPEN, at)


def _problem(path: Path) -> str | None:
    known = scope.NAMESPACES | scope.SPECIALS | ROOT_NAMES
    if path[0] not in known:
        near = get_close_matches(path[0], sorted(known), n=1)
        others = f"nearest is {near[0]!r}" if near else f"there are {listed(known)}"
        return f"{path[0]!r} is always null; {others}"
    if path[0] == "agent" and len(path) > 1 and path[1] not in AGENT_NAMES:
        return f"'agent.{path[1]}' is always null; of the agent there are {listed(AGENT_NAMES)}"
    return None
