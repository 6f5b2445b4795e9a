"""Rules about what is rendered and spoken: templates, and the languages of texts and settings (F28).

Errors here refuse a save: such a template could never be rendered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flow_engine.documents import CourtesyMessageRandomParams, LocalizedText
from flow_engine.documents.findings import listed, quoted
from flow_engine.errors import pointer
from flow_engine.linting.codes import CODES, Findings, LintFinding
from flow_engine.linting.inspection import Inspection, Rule
from flow_engine.templates import lint_template

# --- templates ----------------------------------------------------------------------------------


_VALUES = "$values"


def problems(inspection: Inspection) -> Findings:
    """Errors of all templates first, so that no number of warnings can crowd them out."""
    known = {name for v in inspection.version.variables for name in (v.id, v.name)}
    found = [
        LintFinding(finding.pointer, finding.code, finding.message)
        for placed in inspection.templates
        for findings in lint_template(placed.source, known, placed.pointer)
        for finding in findings
    ]
    return sorted(found, key=lambda finding: CODES[finding.code].severity != "error")


def values_at_entry(inspection: Inspection) -> Findings:
    """`$values` is what was known when the task was entered. Descriptions are left out: they are rendered
    in the task before."""
    with_tools = {task_id for task_id, tools in inspection.exploration.arrivals if tools}
    first = inspection.version.first_task
    by_key = {name: v for v in inspection.version.variables for name in (v.name, v.id)}
    tasks_by_place = {pointer("tasks", n, "prompt"): task for n, task in enumerate(inspection.version.tasks)}
    for placed in inspection.templates:
        task = tasks_by_place.get(placed.pointer)
        if task is None or task.id not in inspection.reachable or task.id in with_tools:
            continue
        never_again = task.id == first and not inspection.offered_by.get(first)
        for use in placed.template.uses:
            variable = by_key.get(use.key)
            if variable is None or not use.label.startswith(_VALUES):
                continue
            if never_again or variable.type == "custom":
                yield LintFinding(
                    placed.pointer,
                    "value_never_known_at_entry",
                    f"line {use.line}: {use.label} is always empty: nothing can have written "
                    f"{quoted(variable.name)} when {inspection.name(task.id)} is entered",
                )


# --- languages: texts and settings are found by their two letters (F28) -------------------------


def main_languages(inspection: Inspection) -> Findings:
    version, environment = inspection.version, inspection.environment
    # It can run: the default language is used, only no caller can ever be found to speak it.
    if version.default_language not in version.supported_languages:
        yield LintFinding(
            "/defaultLanguage",
            "default_language_not_supported",
            f"{quoted(version.default_language)} is not among 'supportedLanguages': "
            f"{listed(version.supported_languages)}",
        )
    if version.system_prompts_language not in environment.system_prompt_languages:
        yield LintFinding(
            "/systemPromptsLanguage",
            "system_prompts_language_unavailable",
            f"there are no system prompts in {quoted(version.system_prompts_language)}, another language's "
            f"are used; available: {listed(environment.system_prompt_languages)}",
        )


def localized_texts(inspection: Inspection) -> Findings:
    supported = _supported(inspection)
    for place, what, texts in _texts(inspection):
        given = {_letters(text.language) for text in texts}
        missing = supported - given
        if missing:
            yield LintFinding(
                place, "missing_translation", f"{what} are missing in {listed(missing)}, which is supported"
            )
        for index, text in enumerate(texts):
            yield from _unsupported(f"{place}/{index}/language", text.language, supported)


def speech_settings(inspection: Inspection) -> Findings:
    supported = _supported(inspection)
    audio = inspection.version.media_config.audio
    for kind, config in (("stt", audio.stt), ("tts", audio.tts)):
        for index, entry in enumerate((config.language_custom_config if config else None) or ()):
            if entry.language is not None:
                place = pointer("mediaConfig", "audio", kind, "languageCustomConfig", index, "language")
                yield from _unsupported(place, entry.language, supported)


def _unsupported(place: str, language: str, supported: set[str]) -> Findings:
    if _letters(language) not in supported:
        yield LintFinding(
            place,
            "unsupported_language",
            f"{quoted(language)} is never spoken: 'supportedLanguages' has {listed(supported)}",
        )


def _texts(inspection: Inspection) -> Iterator[tuple[str, str, Sequence[LocalizedText]]]:
    version = inspection.version
    media = version.media_config
    for kind, config in (
        ("audio", media.audio.courtesy_message_config),
        ("text", media.text.courtesy_message_config),
    ):
        if config is not None and isinstance(config.provider_params, CourtesyMessageRandomParams):
            place = pointer("mediaConfig", kind, "courtesyMessageConfig", "providerParams", "messages")
            yield place, "courtesy messages", config.provider_params.messages
    for number, task in enumerate(version.tasks):
        routing = task.routing_parameters
        waiting = routing.waiting_messages_configuration if routing else None
        if waiting is not None and waiting.generation_strategy == "fixed":
            place = pointer("tasks", number, "routingParameters", "waitingMessagesConfiguration")
            yield (
                f"{place}/messagesList",
                f"waiting messages of {inspection.name(task.id)}",
                waiting.messages_list,
            )


def _supported(inspection: Inspection) -> set[str]:
    version = inspection.version
    return {_letters(language) for language in (*version.supported_languages, version.default_language)}


def _letters(language: str) -> str:
    return language.partition("-")[0].lower()


RULES: tuple[Rule, ...] = (
    problems,
    values_at_entry,
    main_languages,
    localized_texts,
    speech_settings,
)
