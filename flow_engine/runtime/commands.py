"""What agents send and get at the edges of a contact: its announcement (F28), and the commands that they put
into the model's history (F25).
"""

from collections.abc import Mapping

import msgspec

from flow_engine.errors import CorrectTheInput
from flow_engine.runtime.compiled import CompiledFlow, TaskPlan
from flow_engine.vocabulary import Channel, Decision

START = "/start"
RESUME = "/resume"
HUMAN_COMPLETED = "/human_task_completed"
START_TASK = "/start_task "


def start_task(task: TaskPlan) -> str:
    """`/start_task <name> <type>`; HUM and AIS add whom the routing asks for. One line."""
    command = f"{START_TASK}{task.name} {task.type}"
    for kind, values in task.transfer_tags:
        command += f" {kind}={','.join(values)}"
    return one_line(command)


def error(reason: str) -> str:
    return f"/error {one_line(reason)}"


def human_failed(reason: str) -> str:
    return f"/human_task_failed {one_line(reason)}"


def decided(decision: Decision, reason: str | None) -> str:
    """`/human_task_<decision>`, of a text that waited, with a person's reason. One line."""
    return " ".join([f"/human_task_{decision}", *(reason or "").split()])


def one_line(text: str) -> str:
    """What others have said or named, as a part of one line: it must not look like a second message."""
    return " ".join(text.split())


class NewContact(msgspec.Struct, frozen=True):
    """A contact as its agent announces it. `language` None: the version's default. `language` is a BCP 47
    tag; `tenant` and `data` are JSON values."""

    contact_id: str
    channel: Channel
    tenant: Mapping[str, object]
    data: Mapping[str, object]
    language: str | None


def check_channel(flow: CompiledFlow, channel: str) -> None:
    accepted = flow.document.channels
    if channel not in accepted:
        message = f"version {flow.version_id!r} is not for {channel!r}; it is for: {', '.join(accepted)}"
        raise CorrectTheInput.breach("channel_not_supported", message, at="/channel")
