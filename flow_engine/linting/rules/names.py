"""Rules about names: of tasks and their descriptions, by which a model chooses, and of properties."""

from __future__ import annotations

from typing import cast

from flow_engine.documents import Document, Task, normalise_name
from flow_engine.documents.findings import nearest, quoted
from flow_engine.documents.values import property_name
from flow_engine.errors import pointer
from flow_engine.linting.codes import Findings, LintFinding
from flow_engine.linting.inspection import Inspection, Rule

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
    waiting: list[tuple[object, str]] = [(inspection.version, "")]
    while waiting:
        value, place = waiting.pop()
        if isinstance(value, Document):
            accepted = type(value).accepted_properties()
            for name in value.model_extra or () if accepted else ():
                if name not in accepted:
                    yield LintFinding(
                        place + pointer(name),
                        "unknown_property",
                        f"nothing reads {quoted(name)} here; {nearest(name, accepted)}",
                    )
            inner = [(getattr(value, field), property_name(field)) for field in value.model_fields_set]
            waiting += [
                (part, place + pointer(name)) for part, name in inner if isinstance(part, (Document, tuple))
            ]
        elif isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            waiting += [
                (part, f"{place}/{number}") for number, part in enumerate(items) if isinstance(part, Document)
            ]


RULES: tuple[Rule, ...] = (
    ambiguous_names,
    similar_names,
    name_prefixes,
    equal_descriptions,
    unknown_properties,
)
