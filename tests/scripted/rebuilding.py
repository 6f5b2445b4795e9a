"""What is rebuilt from journals, held against what was sent when it happened."""

from __future__ import annotations

import random
from hashlib import sha256
from typing import Any

import orjson

from tests.api.harness import Scene
from tests.scripted.playing import Played, Wire


async def differences(wire: Wire, played: Played) -> list[str]:
    """Every revision of a played conversation that is rebuilt otherwise than it was sent. Empty where all are
    the same."""
    path = f"/v1/conversations/{played.script.conversation_id}"
    found: list[str] = []
    numbers = [each["seq"] for each in (await _read(wire, f"{path}/journal?limit=999"))["entries"]]
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) < max(played.sent):
        found.append(f"{path}: its entries are {numbers}, of which {max(played.sent)} got replies")
    for seq in numbers:
        moment = await _read(wire, f"{path}/at/{seq}")
        sent = played.sent.get(seq)
        if moment["replySha256"] != (None if sent is None else _digest(sent)):
            found.append(f"{path}/at/{seq}: another reply than was sent: {moment['reply']}")
        elif sent is not None and moment["reply"].encode() != sent:
            found.append(f"{path}/at/{seq}: the reply is not what its hash says")
        prompt = played.prompts.get(seq)
        if prompt is not None and moment["promptSha256"] != _digest(prompt.encode()):
            found.append(f"{path}/at/{seq}: another prompt than was read")
    return found


async def outside(scene: Scene) -> tuple[int, int, int]:
    """What has gone out so far: calls, jobs that wait, events that were published or wait for it."""
    client: Any = scene.memory.driver.client  # type: ignore[attr-defined]
    streams = [key async for key in client.scan_iter(match="*outbox*", count=1_000)]
    events = [await client.xlen(key) for key in (*streams, "{flow-engine}:events")]
    return len(scene.outbound.calls), await client.zcard("{flow-engine}:jobs"), sum(events)


async def _read(wire: Wire, path: str) -> Any:
    answer = await wire.send("GET", path)
    assert answer.status == 200, answer.body
    return answer.json


def _digest(text: bytes) -> str:
    return sha256(text).hexdigest()


async def forked(wire: Wire, played: Played, chance: random.Random) -> str:
    """A fork of one of its moments, which has the prompt of then; its id."""
    original = f"/v1/conversations/{played.script.conversation_id}"
    seq, fork = chance.choice(sorted(played.sent)), f"{played.script.conversation_id}-fork"
    body = orjson.dumps({"atRevision": seq, "conversationId": fork})
    made = await wire.send("POST", f"{original}/fork", body)
    assert made.status == 201, made.body
    assert made.json["forkedFrom"] == {"conversationId": played.script.conversation_id, "seq": seq}
    state = (await _read(wire, f"{original}/at/{seq}"))["state"]
    assert (await _read(wire, f"/v1/conversations/{fork}/at/1"))["state"] == state
    return fork


async def gone_on(wire: Wire, played: Played, fork: str) -> list[str]:
    """What is wrong with a fork that goes on: its contact, or a new one, is taken, and its original stays as
    it is."""
    original = f"/v1/conversations/{played.script.conversation_id}"
    before = await _read(wire, original)
    state = await _read(wire, f"/v1/conversations/{fork}")
    ids = {"conversationId": fork, "contactId": state["contactId"]}
    ask = {**ids, "task": "nowhere"}
    if state["status"] != "active":
        ask = {**ids, "contactId": f"{fork}-next", "channel": state["channel"]}
        ask["conversationalFlowVersionId"] = state["versionId"]
    route = "change-task" if state["status"] == "active" else "handle-new-contact"
    answer = await wire.send("POST", f"/v1/{route}", orjson.dumps(ask))
    found = [] if answer.status == 200 else [f"{fork} does not go on: {answer.body!r}"]
    if await _read(wire, original) != before:
        found.append(f"{original} was changed by its fork")
    last = (await _read(wire, f"/v1/conversations/{fork}"))["seq"]
    moment = await _read(wire, f"/v1/conversations/{fork}/at/{last}")
    if answer.status == 200 and moment["reply"].encode() != answer.body:
        found.append(f"{fork}/at/{last}: another reply than was sent")
    return found
