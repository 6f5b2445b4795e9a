"""The tasks of a version and the ways between them, as far as they follow from the document alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from flow_engine import documents
from flow_engine.documents.findings import quoted
from flow_engine.errors import pointer
from flow_engine.linting.graph import explore, reversed_edges
from flow_engine.task_types import TASK_KINDS
from flow_engine.vocabulary import BACK


def usable_values(variable: documents.Variable) -> list[str | int | float]:
    """The members of an enum that can be stored: a blank text is no value (F5)."""
    return [value for value in variable.enum_values if not (isinstance(value, str) and not value.strip())]


@dataclass(frozen=True)
class VersionGraph:
    """Of a version that passed the checks; what names something unknown all the same is passed over."""

    version: documents.FlowVersion

    @cached_property
    def tasks(self) -> Mapping[str, documents.Task]:
        return {task.id: task for task in self.version.tasks}

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The place of each task in the document, by id."""
        return {task.id: number for number, task in enumerate(self.version.tasks)}

    @cached_property
    def variables(self) -> Mapping[str, documents.Variable]:
        return {variable.id: variable for variable in self.version.variables}

    @cached_property
    def connections(self) -> Mapping[str, tuple[str, ...]]:
        """The other tasks that each task names, every one once: a task does not follow itself (F12)."""
        return {
            task.id: tuple(
                target
                for target in self.version.ways_from(task)
                if target != task.id and target in self.tasks
            )
            for task in self.version.tasks
        }

    @cached_property
    def offered_by(self) -> Mapping[str, frozenset[str]]:
        """The tasks from which each task can be asked for."""
        return {task_id: frozenset(s) for task_id, s in reversed_edges(self.connections).items()}

    @cached_property
    def reachable(self) -> frozenset[str]:
        """Tasks to which a chain of connections leads from the first one, whatever it requires."""
        return frozenset(explore(self.version.first_task, self.connections)) & self.tasks.keys()

    @cached_property
    def ends(self) -> frozenset[str]:
        """Tasks in which a conversation is meant to be over or in a person's hands: those that lead
        nowhere, those with a human, and those that close a conversation which others leave open."""
        return frozenset(
            task.id
            for task in self.version.tasks
            if TASK_KINDS[task.type].routed
            or (not self.connections[task.id] and not self.returns(task))
            or self.closes(task)
        )

    @cached_property
    def named_back(self) -> documents.Task | None:
        """The task that a change to `back` enters, so that no digression is left by it."""
        tasks = self.version.tasks
        return self.tasks.get(BACK) or next(
            (task for task in tasks if documents.normalise_name(task.effective_name) == BACK), None
        )

    def returns(self, task: documents.Task) -> bool:
        """Whether a change to `back` leaves the task for the one that it was entered from."""
        return task.returns and self.named_back is None

    def closes(self, task: documents.Task) -> bool:
        """Whether the task ends a conversation that otherwise outlives its contacts: a deliberate end."""
        return self.keeps_conversations and not task.closure_config.multi_contact

    @cached_property
    def keeps_conversations(self) -> bool:
        """Whether a conversation may go on with another contact."""
        return self.version.closure_config.multi_contact and any(
            task.closure_config.multi_contact for task in self.version.tasks
        )

    def requirements(self, task: documents.Task) -> list[tuple[int, documents.Variable]]:
        """What must have a value when the task is entered, with the number of the parameter. Parameters of
        unknown variables are left out."""
        return [
            (index, variable)
            for index, parameter in enumerate(task.transition_parameters)
            if parameter.required and (variable := self.variables.get(parameter.variable_id)) is not None
        ]

    def never_stored(self, variable: documents.Variable) -> bool:
        return variable.type == "enum" and not usable_values(variable)

    def name(self, task_id: str) -> str:
        """The task's name as messages write it. At most 60 characters, quoted. Raises KeyError for an unknown
        task."""
        return quoted(self.tasks[task_id].effective_name)

    def connection_pointer(self, source: str, target: str) -> str:
        if target not in self.tasks[source].connected_tasks:
            return pointer("globalTasks", self.version.global_tasks.index(target))
        position = self.tasks[source].connected_tasks.index(target)
        return pointer("tasks", self.numbers[source], "connectedTasks", position)
