"""What the model has to go by in one task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from channels.engine_client.replies import AgentData, ReachableTask
from channels.engine_client.toolbox import TaskTools
from channels.engine_client.tools import END_CALL, Declaration, change_task_declaration, function
from channels.voice.flow.wording import WHEN_TO_END

_END_CALL: Final = function(END_CALL, WHEN_TO_END, {"type": "object", "properties": {}})


@dataclass(frozen=True, slots=True)
class TaskContext:
    """`reachable` are the tasks of `data`, with what is missing as it was last known."""

    data: AgentData
    tools: TaskTools
    reachable: tuple[ReachableTask, ...]

    def declarations(self) -> tuple[Declaration, ...]:
        change = change_task_declaration(self.reachable)
        every = (change, *(tool.declaration() for tool in self.tools.tools), _END_CALL)
        return tuple(tool for tool in every if tool is not None)
