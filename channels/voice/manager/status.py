"""What a manager tells of itself in `status.json`: ids, ports, process ids and states, nothing secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from channels.voice.manager.agents_list import Listed
from channels.voice.manager.fleet import AgentState, Phase, ProcessState, Role
from flow_engine.errors import Finding
from flow_engine.values import utc_text

CRASH_LOOP = 3
"""Crashes in a row from which on a process is said to be in a crash loop."""

_STATES = {
    Phase.IDLE: "waiting",
    Phase.STARTING: "starting",
    Phase.RUNNING: "running",
    Phase.DRAINING: "draining",
    Phase.ENDING: "stopping",
}


def agents_status(
    states: Mapping[str, AgentState],
    known: Mapping[str, Listed],
    ports: Mapping[str, int],
    pid: Callable[[str, Role], int | None],
) -> list[dict[str, object]]:
    """One object for each agent that is wanted or still runs, by id."""
    told: list[dict[str, object]] = []
    for agent_id in sorted(states):
        state, listed = states[agent_id], known.get(agent_id)
        bridge = _process(state.bridge, pid(agent_id, "bridge")) if state.bridge.spec is not None else None
        told.append(
            {
                "id": agent_id,
                "name": listed.name if listed else None,
                "type": listed.type if listed else None,
                "port": state.agent.spec.port if state.agent.spec else ports.get(agent_id),
                **_process(state.agent, pid(agent_id, "agent")),
                "liveCalls": state.agent.live_calls,
                "bridge": bridge,
            }
        )
    return told


def problems_status(problems: Mapping[str, tuple[Finding, ...]]) -> list[dict[str, object]]:
    return [
        {"id": agent_id, "problems": [_finding(each) for each in found]}
        for agent_id, found in sorted(problems.items())
    ]


def refresh_status(at: datetime | None, error: str | None) -> dict[str, object]:
    return {"at": None if at is None else utc_text(at), "error": error}


def _process(process: ProcessState[Any], pid: int | None) -> dict[str, object]:
    return {
        "state": _STATES[process.phase],
        "pid": pid,
        "restarts": max(0, process.starts - 1),
        "crashesInARow": process.crashes,
        "crashLoop": process.crashes >= CRASH_LOOP,
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {"pointer": finding.pointer, "code": finding.code, "message": finding.message}
