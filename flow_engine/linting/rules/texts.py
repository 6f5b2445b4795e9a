"""Rules about names and texts: templates, the languages of texts and settings (F28), the names and
descriptions of tasks, by which a model chooses, and the names of properties.

Errors here refuse a save: such a template could never be rendered.
"""

import re
from collections.abc import Iterable, Sequence

from flow_engine.conditions.language import operand_text
from flow_engine.documents import CourtesyMessageRandomParams, LocalizedText, Task, normalise_name
from flow_engine.documents.base import property_name
from flow_engine.documents.checks import prompt_language
from flow_engine.documents.findings import listed, nearest, quoted
from flow_engine.errors import pointer
from flow_engine.linting.codes import CODES, Findings, LintFinding
from flow_engine.linting.inspection import Inspection, Rule
from flow_engine.templates import is_template, lint_template
from flow_engine.vocabulary import BACK

# --- templates ----------------------------------------------------------------------------------


_VALUES = "$values"


def problems(inspection: Inspection) -> Findings:
    """Errors of all templates first, so that no number of warnings can crowd them out."""
    known = frozenset(name for v in inspection.version.variables for name in (v.id, v.name))
    found = [
        LintFinding(finding.pointer, finding.code, finding.message)
        for placed in inspection.templates
        for findings in lint_template(placed.source, known, placed.pointer)
        for finding in findings
    ]
    return sorted(found, key=lambda finding: CODES[finding.code].severity != "error")


_BRACED = re.compile(r"(?<!\{)\{(\w{1,100})\}(?!\})")


def placeholders(inspection: Inspection) -> Findings:
    """Variables written as other systems write them. Nothing of the kind can stand in a tag."""
    known = {name for v in inspection.version.variables for name in (v.id, v.name)}
    for placed in inspection.templates:
        found = next((each for each in _BRACED.finditer(placed.source) if each[1] in known), None)
        if found is not None:
            line = placed.source.count("\n", 0, found.start()) + 1
            yield LintFinding(
                placed.pointer,
                "template_placeholder",
                f"line {line}: {found[0]!r} is in no tag and stays as it is; "
                f"write {{{{ $vars.{found[1]} }}}}",
            )


_NO_TEMPLATES = ("reason", "prompt", "text", "assignment_value")
"""Attributes of texts for people and models; which of them are rendered, the inspection tells."""


def templates_out_of_place(inspection: Inspection) -> Findings:
    """What stands in a tag where nothing is rendered: reasons, what finds a variable or is judged, what a
    tool is given, messages."""
    rendered = {placed.pointer for placed in inspection.templates}
    for part in inspection.objects:
        for field in part.attributes_with(str):
            text = getattr(part, field)
            if field not in _NO_TEMPLATES or not isinstance(text, str) or not is_template(text):
                continue
            place = inspection.place_of(part, property_name(field))
            if place not in rendered:
                yield LintFinding(
                    place,
                    "template_placeholder",
                    "this is no template and stays as it is, tags and all; write it without them: templates "
                    "are prompts and descriptions of tasks, the global prompt, voices and models",
                )


def values_at_entry(inspection: Inspection) -> Findings:
    """`$values` is what was known when the task was entered. Descriptions are left out: they are rendered
    in the task before."""
    with_tools = {task_id for task_id, written in inspection.exploration.arrivals if written}
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


def comparisons(inspection: Inspection) -> Findings:
    for placed in inspection.templates:
        for each in placed.template.compared:
            part = inspection.comparison_of(each)
            if part is not None and not inspection.part_can_hold(part):
                written = f"{each.label} {each.sign} {operand_text(part.right)}"
                yield LintFinding(
                    placed.pointer,
                    "comparison_never_true",
                    f"line {each.line}: no values make {quoted(written)} true"
                    f"{inspection.members_told(part.left)}",
                )


def sensitive_values(inspection: Inspection) -> Findings:
    """A template that reads such a value gets its mask."""
    by_key = {name: v for v in inspection.version.variables if v.sensitive for name in (v.name, v.id)}
    for placed in inspection.templates if by_key else ():
        for use in placed.template.uses:
            variable = by_key.get(use.key)
            if variable is not None and use.label.startswith(_VALUES):
                yield LintFinding(
                    placed.pointer,
                    "sensitive_value_in_text",
                    f"line {use.line}: {use.label} shows a mask: {quoted(variable.name)} is sensitive",
                )


# --- languages: texts and settings are found by their two letters (F28) -------------------------


_BCP_47 = re.compile("[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*")


def main_languages(inspection: Inspection) -> Findings:
    version, environment = inspection.version, inspection.environment
    written = [(pointer("supportedLanguages", n), each) for n, each in enumerate(version.supported_languages)]
    if version.default_language not in version.supported_languages:
        written.append(("/defaultLanguage", version.default_language))
    for place, language in written:
        if not _BCP_47.fullmatch(language):
            told = f"{quoted(language)} is no language of BCP 47, such as 'en-US'"
            yield LintFinding(place, "language_not_a_tag", told)
        elif place == "/defaultLanguage":
            # It can run: it is used, only no caller can ever be found to speak it. No tag is no way out.
            told = f"is not among 'supportedLanguages': {listed(version.supported_languages)}"
            yield LintFinding(place, "default_language_not_supported", f"{quoted(language)} {told}")
    if version.system_prompts_language not in environment.system_prompt_languages:
        yield LintFinding(
            "/systemPromptsLanguage",
            "system_prompts_language_unavailable",
            f"there are no system prompts in {quoted(version.system_prompts_language)}, those in "
            f"{quoted(prompt_language(version, environment.system_prompt_languages))} are used; "
            f"available: {listed(environment.system_prompt_languages)}",
        )


def localized_texts(inspection: Inspection) -> Findings:
    """Courtesy messages of the version, and fixed waiting messages of its tasks."""
    supported, media = _supported(inspection), inspection.version.media_config
    placed: list[tuple[str, str, Sequence[LocalizedText]]] = []
    for kind, config in (
        ("audio", media.audio.courtesy_message_config),
        ("text", media.text.courtesy_message_config),
    ):
        if config is not None and isinstance(config.provider_params, CourtesyMessageRandomParams):
            place = pointer("mediaConfig", kind, "courtesyMessageConfig", "providerParams", "messages")
            placed.append((place, "courtesy messages", config.provider_params.messages))
    for number, task in enumerate(inspection.version.tasks):
        routing = task.routing_parameters
        waiting = routing.waiting_messages_configuration if routing else None
        if waiting is not None and waiting.generation_strategy == "fixed":
            place = pointer("tasks", number, "routingParameters", "waitingMessagesConfiguration")
            what = f"waiting messages of {inspection.name(task.id)}"
            placed.append((f"{place}/messagesList", what, waiting.messages_list))
    for place, what, texts in placed:
        missing = supported - {_letters(text.language) for text in texts}
        if missing:
            yield LintFinding(
                place, "missing_translation", f"{what} are missing in {listed(missing)}, which is supported"
            )
        written = ((f"{place}/{index}/language", text.language) for index, text in enumerate(texts))
        yield from _unsupported(written, supported)


def speech_settings(inspection: Inspection) -> Findings:
    supported = _supported(inspection)
    audio = inspection.version.media_config.audio
    written = (
        (pointer("mediaConfig", "audio", kind, "languageCustomConfig", index, "language"), entry.language)
        for kind, config in (("stt", audio.stt), ("tts", audio.tts))
        for index, entry in enumerate((config.language_custom_config if config else None) or ())
        if entry.language is not None
    )
    yield from _unsupported(written, supported)


def _unsupported(written: Iterable[tuple[str, str]], supported: set[str]) -> Findings:
    told = listed(supported)
    for place, language in written:
        if _letters(language) not in supported:
            reason = f"{quoted(language)} is never spoken: 'supportedLanguages' has {told}"
            yield LintFinding(place, "unsupported_language", reason)


def _supported(inspection: Inspection) -> set[str]:
    version = inspection.version
    languages = (*version.supported_languages, version.default_language)
    return {_letters(language) for language in languages if _BCP_47.fullmatch(language)}


def _letters(language: str) -> str:
    return language.partition("-")[0].lower()


ERROR_RULES: tuple[Rule, ...] = (problems,)
TEXT_RULES: tuple[Rule, ...] = (
    placeholders,
    templates_out_of_place,
    values_at_entry,
    sensitive_values,
    comparisons,
    main_languages,
    localized_texts,
    speech_settings,
)


# --- names --------------------------------------------------------------------------------------


_WORDS_COMPARED = 8


def ambiguous_names(inspection: Inspection) -> Findings:
    """A task asked for by another one's id is that other one, whatever is called so (F4)."""
    for number, task in enumerate(inspection.version.tasks):
        name = task.effective_name
        meant = next((key for key in (name, normalise_name(name)) if key in inspection.tasks), task.id)
        if meant != task.id:
            yield LintFinding(
                pointer("tasks", number, "name"),
                "ambiguous_name",
                f"{quoted(name)} is the '_id' of another task too, and ids are looked at first",
            )


def names_that_end_digressions(inspection: Inspection) -> Findings:
    """A change to `back` leaves a digression only where no task is called so."""
    digression = next((task for task in inspection.version.tasks if task.returns), None)
    if digression is not None and (taken := inspection.named_back) is not None:
        number = inspection.numbers[taken.id]
        yield LintFinding(
            pointer("tasks", number, "_id" if taken.id == BACK else "name"),
            "back_is_a_task",
            f"a change to {BACK!r} enters this task, and does not leave {inspection.name(digression.id)} for "
            "the task that it was entered from",
        )


def similar_names(inspection: Inspection) -> Findings:
    """Names that differ in nothing but marks are mixed up by people as well, so everywhere."""
    first: dict[str, Task] = {}
    for task in inspection.version.tasks:
        letters = "".join(_words(task))
        if letters and (other := first.setdefault(letters, task)) is not task:
            yield LintFinding(
                _name_pointer(inspection, task),
                "similar_task_names",
                f"{inspection.name(task.id)} differs from {inspection.name(other.id)} in marks only",
            )


def name_prefixes(inspection: Inspection) -> Findings:
    words = {task.id: tuple(_words(task)) for task in inspection.version.tasks}
    by_words: dict[tuple[str, ...], str] = {}
    for task_id, named in words.items():
        by_words.setdefault(named, task_id)
    for task in inspection.version.tasks:
        named = words[task.id]
        for length in range(1, min(len(named), _WORDS_COMPARED + 1)):
            other = by_words.get(named[:length])
            if other is not None and _offered_together(inspection, task.id, other):
                yield LintFinding(
                    _name_pointer(inspection, task),
                    "task_name_prefix",
                    f"{inspection.name(task.id)} begins with the whole name of {inspection.name(other)}, and "
                    "both can be chosen at the same moment",
                )
                break


def equal_descriptions(inspection: Inspection) -> Findings:
    alike: dict[str, list[str]] = {}
    for number, task in enumerate(inspection.version.tasks):
        earlier = alike.setdefault(" ".join(task.description.casefold().split()), [])
        other = next((known for known in earlier if _offered_together(inspection, task.id, known)), None)
        earlier.append(task.id)
        if other is not None:
            yield LintFinding(
                pointer("tasks", number, "description"),
                "equal_descriptions",
                f"{inspection.name(task.id)} is described as {inspection.name(other)} is, and both can be "
                "chosen at the same moment",
            )


def _offered_together(inspection: Inspection, one: str, other: str) -> bool:
    channels, others = inspection.tasks[one].channels, inspection.tasks[other].channels
    if channels is not None and others is not None and not set(channels) & set(others):
        return False
    return not inspection.offered_by[one].isdisjoint(inspection.offered_by[other])


def _words(task: Task) -> list[str]:
    name = normalise_name(task.effective_name)
    return "".join(character if character.isalnum() else " " for character in name).split()


def _name_pointer(inspection: Inspection, task: Task) -> str:
    number = inspection.numbers[task.id]
    return pointer("tasks", number, "name") if task.name and task.name.strip() else pointer("tasks", number)


def unknown_properties(inspection: Inspection) -> Findings:
    """Properties that nothing reads, anywhere below the version, whose own are closed by the schema."""
    for part in inspection.objects:
        for name in part.model_extra or ():
            accepted = part.accepted_properties()
            if accepted and name not in accepted:
                yield LintFinding(
                    inspection.place_of(part, name),
                    "unknown_property",
                    f"nothing reads {quoted(name)} here; {nearest(name, accepted)}",
                )


NAME_RULES: tuple[Rule, ...] = (
    ambiguous_names,
    names_that_end_digressions,
    similar_names,
    name_prefixes,
    equal_descriptions,
    unknown_properties,
)
