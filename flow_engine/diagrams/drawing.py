"""What every notation draws of a version: boxes for its tasks, arrows between them, what is missing.

A box is known by its number everywhere, so that no id or name of a document is ever part of a notation's
syntax. Drafts are drawn as far as they go: a task that is named but not there is a box without a type.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flow_engine.documents import FlowVersion
from flow_engine.errors import ReloadAndDecide
from flow_engine.task_types import TaskKind
from flow_engine.vocabulary import Advance, Channel, TaskType

LONGEST_NAME = 60
LISTED_NAMES = 12
"""Names written out in one label: a version of a megabyte must not become a diagram of hundreds."""

# Joiners that words and emoji are written with, though they have no form of their own.
_JOINERS = "\u200c\u200d"


@dataclass(frozen=True, slots=True)
class Box:
    """`type` and `kind` of None: a task that a draft names and does not have. `channels` of None: all
    channels.

    `required` are variable ids, `required_names` what people call them, both in document order. `pauses`: the
    end of a contact in this task leaves the conversation between contacts. `when` is the condition before it,
    None where there is none. `returns`: a change to `back` leaves it. `name` has at most 60 characters.
    """

    number: int
    task_id: str
    name: str
    type: TaskType | None
    kind: TaskKind | None = None
    channels: tuple[Channel, ...] | None = None
    required: tuple[str, ...] = ()
    required_names: tuple[str, ...] = ()
    pauses: bool = False
    when: str | None = None
    returns: bool = False

    @property
    def heading(self) -> str:
        """What stands beside the name: the type, and whether it is a digression."""
        return f"{self.type or 'missing'}{', returns' if self.returns else ''}"


@dataclass(frozen=True, slots=True)
class Arrow:
    """`when` is the condition of the connection, None where there is none, `advance` what it does by itself
    when it is open."""

    source: Box
    target: Box
    when: str | None = None
    advance: Advance | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """What the connection says of itself; empty where it says nothing."""
        how = () if self.advance is None else ("by itself" if self.advance == "auto" else "suggested",)
        return how if self.when is None else (*how, f"when {plain(self.when)}")


@dataclass(frozen=True, slots=True)
class Drawing:
    """`first` is None in a draft that does not say where to start. `gaps` tell what a draft lacks."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    first: Box | None
    gaps: tuple[str, ...]

    @property
    def pausing(self) -> tuple[Box, ...]:
        return tuple(box for box in self.boxes if box.pauses)

    @property
    def end_of_contact(self) -> str:
        """The label of the way to between contacts, which some of the tasks may not have. One line."""
        others = [box.name for box in self.boxes if box.type is not None and not box.pauses]
        if not others:
            return "contact ended"
        if len(others) < len(self.pausing):
            return f"contact ended, but for {first_names(others)}"
        return f"contact ended in {first_names(box.name for box in self.pausing)}"


def drawing_of(version: FlowVersion) -> Drawing:
    """Raises ReloadAndDecide `nothing_to_draw` for a draft without tasks."""
    if not version.tasks:
        raise ReloadAndDecide(
            "nothing_to_draw", "this draft has no tasks yet", accepted=("a version with at least one task",)
        )
    names = {variable.id: variable.name for variable in version.variables}
    boxes: list[Box] = []
    for number, task in enumerate(version.tasks):
        required = tuple(dict.fromkeys(p.variable_id for p in task.transition_parameters if p.required))
        box = Box(
            number=number,
            task_id=task.id,
            name=plain(task.effective_name),
            type=task.type,
            kind=task.kind,
            channels=task.channels,
            required=required,
            required_names=tuple(plain(names.get(each) or each) for each in required),
            pauses=task.closure_config.multi_contact,
            when=None if task.entry_condition is None else task.entry_condition.when,
            returns=task.returns,
        )
        boxes.append(box)
    by_id: dict[str, Box] = {}
    gaps: list[str] = []
    for box in boxes:
        if by_id.setdefault(box.task_id, box) is not box:
            gaps.append(f"two tasks have the id {plain(box.task_id)!r}")
    named = [task_id for task in version.tasks for task_id in version.ways_from(task)]
    if "first_task" in version.model_fields_set:
        named.append(version.first_task)
    else:
        gaps.append("the first task is not set")
    for task_id in dict.fromkeys(named):
        if task_id not in by_id:
            by_id[task_id] = Box(len(boxes), task_id, plain(task_id), None)
            boxes.append(by_id[task_id])
            gaps.append(f"there is no task {plain(task_id)!r}")
    arrows = (
        Arrow(box, by_id[task_id], way and way.when, way and way.advance)
        for box, task in zip(boxes, version.tasks, strict=False)
        for task_id in version.ways_from(task)
        if by_id[task_id] is not box
        for way in (task.connection_conditions.get(task_id),)
    )
    return Drawing(tuple(boxes), tuple(arrows), by_id.get(version.first_task), tuple(gaps))


def conditions(box: Box) -> tuple[str, ...]:
    """What must hold to enter a task, in words; empty where nothing must."""
    words: list[str] = []
    if box.required_names:
        words.append(f"needs {first_names(box.required_names)}")
    if box.channels is not None:
        words.append(f"only on {first_names(box.channels)}" if box.channels else "on no channel")
    if box.when is not None:
        words.append(f"when {plain(box.when)}")
    return tuple(words)


def first_names(names: Iterable[str]) -> str:
    """Names in their order, after `LISTED_NAMES` of them the count of the rest."""
    every: Sequence[str] = tuple(names)
    shown = ", ".join(every[:LISTED_NAMES])
    return shown if len(every) <= LISTED_NAMES else f"{shown} and {len(every) - LISTED_NAMES} more"


def plain(text: str) -> str:
    """One line of at most `LONGEST_NAME` characters, none a control character, never empty: a label before
    it is quoted."""
    head = text[: LONGEST_NAME * 4]
    visible = "".join(char if char.isprintable() or char in _JOINERS else " " for char in head)
    line = " ".join(visible.split()) or "–"
    return line if len(line) <= LONGEST_NAME else line[: LONGEST_NAME - 1] + "…"
