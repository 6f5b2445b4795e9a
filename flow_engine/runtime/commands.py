"""The commands that agents put into the model's history (F25)."""

from __future__ import annotations

from flow_engine.runtime.compiled import TaskPlan

START = "/start"
RESUME = "/resume"
HUMAN_COMPLETED = "/human_task_completed"


def start_task(task: TaskPlan) -> str:
    """`/start_task <name> <type>`; HUM and AIS add whom the routing asks for."""
    tags = [f"{kind}={','.join(values)}" for kind, values in task.transfer_tags]
    return " ".join(["/start_task", task.name, task.type, *tags])


def error(reason: str) -> str:
    return f"/error {_one_line(reason)}"


def human_failed(reason: str) -> str:
    return f"/human_task_failed {_one_line(reason)}"


def _one_line(reason: str) -> str:
    """A line break in a reason must not look like a second message."""
    return " ".join(reason.split())
