"""The states that every flow has, and those inside its human tasks (F10, F34)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

TaskType = Literal["AIO", "AIS", "HUM"]

Phase = Literal["active", "between_contacts", "closed"]
ACTIVE: Phase = "active"
BETWEEN_CONTACTS: Phase = "between_contacts"
CLOSED: Phase = "closed"

HUMAN_EVENTS: Mapping[TaskType, Mapping[str, tuple[tuple[str, str], ...]]] = {
    # event → (from, to) inside the task; the first sub-state named is where the task is entered
    "AIO": {},
    "HUM": {
        "connected": (("routing", "connected"),),
        "completed": (("connected", "completed"),),
        "failed": (("routing", "failed"), ("connected", "failed")),
    },
    "AIS": {
        "taken_over": (("ai", "human"),),
        "released": (("human", "ai"),),
    },
}
SUB_STATES: Mapping[TaskType, tuple[str, ...]] = {
    "AIO": (),
    "HUM": ("routing", "connected", "completed", "failed"),
    "AIS": ("ai", "human"),
}
