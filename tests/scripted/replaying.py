"""Three changes planted in a sample, and which of its recorded conversations they concern, read off the
journals: nothing of it asks the replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson

from flow_engine.use_cases.replays import ReplayRow
from flows.samples import load_samples
from memory.connection import RedisMemory
from tests.api.harness import HANDLER, open_scene
from tests.scripted.conversations import Script, scripts
from tests.scripted.playing import VERDICTS

FLOW = "order"
SHUT_FROM, SHUT_TO = "take-order", "goodbye"
REWORDED = "complaint"
REMOVED = "giftWrap"


def unchanged() -> dict[str, Any]:
    [sample] = [each for each in load_samples() if each.flow_id == FLOW]
    return {**orjson.loads(sample.document), "draft": True}


def planted() -> dict[str, Any]:
    """The draft: a connection shut, a task that reads otherwise, a variable removed."""
    draft = deepcopy(unchanged())
    tasks = {task["_id"]: task for task in draft["tasks"]}
    tasks[SHUT_FROM]["connectedTasks"].remove(SHUT_TO)
    tasks[REWORDED]["prompt"] += "\nSay <sorry> first."
    draft["variables"] = [each for each in draft["variables"] if each["_id"] != REMOVED]
    return draft


async def recordings(number: int, memory: RedisMemory | None = None) -> list[bytes]:
    """So many conversations of the sample, played by a service in this process, on a Redis in it unless one
    is given: the recording of each."""
    chosen: list[Script] = []
    for script in scripts(number * len(load_samples()), fault_rate=0):
        if script.flow_id == FLOW:
            chosen.append(script)
    found: list[bytes] = []
    async with open_scene(samples=True, memory=memory, answers={HANDLER: VERDICTS}) as scene:
        for script in chosen:
            for ask in script.asks:
                scene.clock.at += timedelta(seconds=ask.after_s)
                reply = await scene.http.request(ask.method, ask.path, content=ask.content)
                assert reply.status_code < 500, reply.text
                await scene.work()
            path = f"/v1/conversations/{script.conversation_id}/recording"
            found.append((await scene.http.get(path)).content)
    return found


@dataclass
class Concerned:
    """What the planted changes are to a conversation: `shut` where the connection was taken, `gone` whether
    the variable had a value, `reworded` where a prompt is another one."""

    shut: list[int] = field(default_factory=list[int])
    gone: bool = False
    reworded: list[int] = field(default_factory=list[int])

    def differs_from(self, row: ReplayRow) -> list[str]:
        """What the replay's row tells otherwise; one line each."""
        forked = row["firstFork"] and row["firstFork"]["seq"]
        told = {
            "path": (row["path"], "other" if self.shut else "same"),
            "firstFork": (forked, self.shut[0] if self.shut else None),
            "newRefusals": ([each["seq"] for each in row["newRefusals"]], self.shut),
            "codes": (
                {each["code"] for each in row["newRefusals"]},
                {"task_not_connected"} if self.shut else set(),
            ),
            "variablesGone": (row["variablesGone"], [REMOVED] if self.gone else []),
            "promptsDiffer": (row["promptsDiffer"], self.reworded),
            "rest": ([row["notReplayed"], row["notReproduced"], row["checkpointsLost"]], [[], [], []]),
        }
        name = row["conversationId"]
        return [
            f"{name}: {key}: {found}, not {wanted}"
            for key, (found, wanted) in told.items()
            if found != wanted
        ]


def concerned(recording: bytes) -> Concerned:
    """By what the journal tells of requests and outcomes."""
    found, task, known, talking = Concerned(), None, False, False
    whole = json.loads(recording)
    names = {each["name"]: each["_id"] for each in whole["versions"][0]["document"]["tasks"]}
    for entry in whole["entries"]:
        asked, left = entry["input"], task
        task = names[entry["outcome"]["task"]]
        if asked["op"] == "handle-new-contact":
            known, talking = False, True
        if asked["op"] == "handle-end-contact":
            talking = False
        for write in asked.get("writes", ()):
            if write["varId"] == REMOVED:
                known = write["value"] is not None
                found.gone = found.gone or known
        if (
            asked["op"] == "change-task"
            and entry["outcome"]["result"]
            and (left, task) == (SHUT_FROM, SHUT_TO)
        ):
            found.shut.append(entry["seq"])
        if talking and (known or task in (SHUT_FROM, REWORDED)):
            found.reworded.append(entry["seq"])
    return found


def breaches(rows: Sequence[ReplayRow], recorded: Sequence[bytes]) -> list[str]:
    """Whatever of the replay is not exactly what was planted."""
    return [
        line
        for row, recording in zip(rows, recorded, strict=True)
        for line in concerned(recording).differs_from(row)
    ]
