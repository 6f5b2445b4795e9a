"""Playbooks of Dialogflow CX, agents of instructions in words: a playbook is a task, a playbook or flow that
its instructions name is a connection, a tool that they name one of the task's.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from flow_engine.importing.dialogflow_package import (
    Package,
    Playbook,
    PlaybookStep,
    PlaybookTool,
    by_name,
    last_part,
)
from flow_engine.importing.drafts import Draft
from flow_engine.importing.foreign import Place

_REFERENCE: Final = re.compile(r"\$\{(PLAYBOOK|FLOW|TOOL):\s*([^{}]+?)\s*\}")


def task_of_playbook(playbook: Playbook) -> str:
    """What its task is called among the tasks of flows and pages."""
    return f"playbook {playbook.display_name}"


def add_playbooks(draft: Draft, package: Package, flows: Mapping[str, str]) -> None:
    """`flows`: the tasks that flows start with, by names and ids of the flows."""
    tasks = {("FLOW", key): each for key, each in flows.items()}
    for key, each in by_name(package.playbooks).items():
        tasks["PLAYBOOK", key] = task_of_playbook(each)
    for each in package.playbooks:
        draft.task(task_of_playbook(each), each.display_name).description = each.goal
    tools = by_name(package.tools)
    for number, each in enumerate(package.playbooks):
        _fill(draft, each, tasks, tools, ("playbooks", number))


def _fill(
    draft: Draft,
    playbook: Playbook,
    tasks: Mapping[tuple[str, str], str],
    tools: Mapping[str, PlaybookTool],
    place: Place,
) -> None:
    source = task_of_playbook(playbook)
    task = draft.tasks[source]
    text = "\n".join([*_lines(playbook.instruction.steps), playbook.instruction.guidelines]).strip()
    names = {key: draft.tasks[each].name for key, each in tasks.items()}
    for kind, name in dict.fromkeys(_named(playbook, text)):
        if kind == "TOOL":
            tool = tools.get(name)
            called = re.sub(r"\W+", "_", tool.display_name if tool else name)
            names[kind, name] = called
            draft.tool(task, called, tool.description if tool else f"What the tool {name} does.")
        elif target := tasks.get((kind, name)):
            draft.way(source, target, place=place)
        else:
            draft.dropped(place, f"there is no {kind.lower()} {name!r}")

    def written(match: re.Match[str]) -> str:
        name = names.get((match[1], last_part(match[2])), match[2])
        return name if match[1] == "TOOL" else repr(name)

    task.prompts += [playbook.goal, _REFERENCE.sub(written, text)]


def _named(playbook: Playbook, text: str) -> Iterator[tuple[str, str]]:
    """What the instructions name, and what is listed beside them: its kind, and its name or id."""
    for match in _REFERENCE.finditer(text):
        yield match[1], last_part(match[2])
    yield from (("TOOL", last_part(name)) for name in playbook.referenced_tools)
    yield from (("PLAYBOOK", last_part(name)) for name in playbook.referenced_playbooks)
    yield from (("FLOW", last_part(name)) for name in playbook.referenced_flows)


def _lines(steps: Sequence[PlaybookStep], indent: str = "") -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        yield f"{indent}{number}. {step.text}"
        yield from _lines(step.steps, indent + "   ")
