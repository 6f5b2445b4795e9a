"""Codes about ways through the flow: connections, channels, what is required on the way."""

from __future__ import annotations

from flow_engine.linting.codes.code import Code


def _warning(code: str, title: str, why: str, advice: str, example: str) -> Code:
    return Code(code, "warning", title, why, advice, example)


PATH_WARNINGS: tuple[Code, ...] = (
    # --- connections ---
    _warning(
        "unreachable_task",
        "No chain of connections leads to a task",
        "It is never entered.",
        "Connect it from a task that can be reached, or remove it.",
        "`survey` is in nobody's `connectedTasks`.",
    ),
    _warning(
        "dead_end",
        "No other task can be entered from a task",
        "Whatever the person wants next, the agent can only end the contact. A task that closes a "
        "conversation over several contacts (`multiContact: false` where the version has `true`) is meant "
        "to be an end and is not reported.",
        "Connect it to the tasks that may follow, at least to one that says goodbye.",
        '`"connectedTasks": []`',
    ),
    _warning(
        "loop_without_exit",
        "Tasks lead only to one another, away from the ends of the flow",
        "Once inside, neither a human nor a task in which the flow ends can be reached. A flow that as a "
        "whole is one loop, without any such task, is not reported: a contact can always hang up.",
        "Connect one of them to a task that leads out.",
        "`faq` ↔ `opening-hours`, while `operator` is connected from `welcome` only.",
    ),
    _warning(
        "too_many_connections",
        "A task leads to more than 20 others",
        "Every one is described in the prompt, and a model chooses badly between so many.",
        "Group them behind tasks that narrow the choice.",
        "A `welcome` that connects all 30 tasks.",
    ),
    # --- required variables ---
    _warning(
        "first_task_requires_parameter",
        "The first task requires a variable",
        "Requirements are asked when a task is entered from another, not when a conversation starts.",
        "Do not require it here: let the task ask for it, and require it of the tasks that follow.",
        '`firstTask` with `{"variableId": "policy", "required": true}`.',
    ),
    _warning(
        "required_variable_never_filled",
        "A task requires what nothing can have written on any path",
        "The task is never entered. Only tools write custom variables, and none is selected before.",
        "Select a tool that writes it in a task on the way, or do not require it.",
        "`booking` requires custom `serviceId`, and no task before it selects a tool.",
    ),
    _warning(
        "connection_never_open",
        "A connection can never be used because of what its target requires",
        "The agent is told of a task that it is always refused there.",
        "Select a tool that writes the variable before or in this task, or remove the connection.",
        "`welcome`, without tools, leads to `booking`, which requires custom `serviceId`, and `welcome` is "
        "never entered again.",
    ),
    _warning(
        "required_variable_unfilled_on_path",
        "On one path a required variable stays without a value for good",
        "Whoever takes this path meets a refusal that no later step can lift. A connection that is closed "
        "for the moment only, which is what requirements are for, is not reported.",
        "Let the path pass a task with the tool, or connect its tasks back to one.",
        "`welcome → chat → booking`, where only `welcome → search → booking` passes a tool.",
    ),
    _warning(
        "task_behind_closed_task",
        "Every path to a task leads through one that is never entered",
        "It is never entered either.",
        "Correct what closes the task before it.",
        "`confirm` follows only `booking`, which is never entered.",
    ),
    # --- channels ---
    _warning(
        "no_channels",
        "The version has no channel",
        "No contact is ever accepted.",
        "Add the channels that the flow is made for.",
        '`"channels": []`',
    ),
    _warning(
        "task_without_channel",
        "A task is on none of the version's channels",
        "It is never entered.",
        "Add a channel of the version to the task, or `null` for all of them.",
        '`"channels": ["sms"]` in a task of a version for `phone`.',
    ),
    _warning(
        "channel_without_first_task",
        "Contacts on a channel start in a task that is not meant for it",
        "The first task is not asked for its channels when a conversation starts.",
        "Add the channel to the first task, or take it out of the version.",
        'A version for `phone` and `chat` whose first task has `"channels": ["phone"]`.',
    ),
    _warning(
        "mandatory_channel_not_covered",
        "A mandatory channel is not one of the first task's",
        "The flow promises this channel, and its beginning is not made for it.",
        "Add the channel to the first task.",
        '`"mandatoryChannels": ["chat"]`, first task with `"channels": ["phone"]`.',
    ),
    _warning(
        "task_unreachable_on_channel",
        "A task is offered on a channel on which no path leads to it",
        "It is never entered there. A task without `channels` is reported only where it directly follows one "
        "that has them.",
        "Connect it from a task that is available on that channel, or list the channels it is meant for.",
        "`receipt` on all channels follows only `card-by-phone`, which is on `phone`.",
    ),
    _warning(
        "dead_end_on_channel",
        "On one channel a task leads nowhere",
        "It has connections, but none of their targets is available there.",
        "Connect it to a task that is available on that channel too.",
        "`payment` leads only to `card-by-phone`, which is on `phone`, in a version for `chat` too.",
    ),
    _warning(
        "channel_without_end",
        "On one channel none of the flow's ends can be reached",
        "On other channels the flow leads to a human or to a task that ends it, here it does not.",
        "Make one of these tasks available on the channel, or add one that is.",
        "The only HUM task is on `phone`, in a version for `phone` and `chat`.",
    ),
)
