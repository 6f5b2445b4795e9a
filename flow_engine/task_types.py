"""What a task type means, in one table: everything that the engine does differently by type reads it.

`AIO` is led by the AI alone, `AIS` by the AI under a human's supervision, `HUM` by a human (F10, F34). An
`AIS` task with `approval: true` has a row of its own: there a person approves what the AI writes before it
is sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flow_engine.vocabulary import DECISIONS, TASK_TYPES, HumanOutcome, Phase, TaskType

ACTIVE: Phase = "active"
BETWEEN_CONTACTS: Phase = "between_contacts"
CLOSED: Phase = "closed"


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of a task in a diagram, as `#rrggbb`."""

    fill: str
    line: str
    text: str


@dataclass(frozen=True, slots=True)
class TaskKind:
    """`sub_states` begins with the one that the task is entered in; `events` gives by outcome the arcs
    (from, to) between them.

    `routed`: a human may take part, so the task has `routingParameters`; in its first sub-state somebody is
    looked for. `at_deadline` gives by sub-state the outcome that comes when its time has run out.
    `transfers`: the contact is handed over to the human. `hands_over` are the sub-states in which somebody of
    another type leads, `holds` those in which the task is not left. `prompt_section` tells the model what the
    type asks of it; `status_sections` what a sub-state does.
    """

    graphviz: Palette
    mermaid: Palette
    sub_states: tuple[str, ...] = ()
    events: Mapping[HumanOutcome, tuple[tuple[str, str], ...]] = field(
        default_factory=dict[HumanOutcome, tuple[tuple[str, str], ...]]
    )
    routed: bool = False
    at_deadline: Mapping[str, HumanOutcome] = field(default_factory=dict[str, HumanOutcome])
    holds: frozenset[str] = frozenset()
    transfers: bool = False
    hands_over: Mapping[str, TaskType] = field(default_factory=dict[str, TaskType])
    prompt_section: str | None = None
    status_sections: Mapping[str, str] = field(default_factory=dict[str, str])
    diagram_path: str | None = None


TASK_KINDS: Mapping[TaskType, TaskKind] = {
    "AIO": TaskKind(
        graphviz=Palette("#eaf2fe", "#2f6fd0", "#12305e"),
        mermaid=Palette("#e8f1fd", "#2f6fd0", "#12305e"),
    ),
    "AIS": TaskKind(
        graphviz=Palette("#f3edfe", "#7a4fd0", "#38206b"),
        mermaid=Palette("#f1eafd", "#7a4fd0", "#38206b"),
        sub_states=("ai", "human"),
        events={"taken_over": (("ai", "human"),), "released": (("human", "ai"),)},
        routed=True,
        hands_over={"human": "HUM"},
        prompt_section="transfer_ais",
        status_sections={"ai": "human_supervising", "human": "human_in_control"},
        diagram_path="ai ⇄ human",
    ),
    "HUM": TaskKind(
        graphviz=Palette("#fef2e3", "#cf7f1c", "#5f3806"),
        mermaid=Palette("#fdf0e0", "#cf7f1c", "#5f3806"),
        sub_states=("routing", "connected", "completed", "failed"),
        events={
            "connected": (("routing", "connected"),),
            "completed": (("connected", "completed"),),
            "failed": (("routing", "failed"), ("connected", "failed")),
        },
        routed=True,
        at_deadline={"routing": "failed"},
        transfers=True,
        prompt_section="transfer_hum",
        status_sections={
            "routing": "human_routing",
            "connected": "human_connected",
            "completed": "human_completed",
            "failed": "human_failed",
        },
        diagram_path="routing → connected → completed | failed",
    ),
}

_WRITING = ("ai", *DECISIONS)
APPROVAL = replace(
    TASK_KINDS["AIS"],
    sub_states=("ai", "waiting", *DECISIONS, "human"),
    events={
        "waiting": tuple((source, "waiting") for source in _WRITING),
        **{decision: (("waiting", decision),) for decision in DECISIONS},
        "taken_over": tuple((source, "human") for source in (*_WRITING, "waiting")),
        "released": (("human", "ai"),),
    },
    at_deadline={"waiting": "timeout"},
    holds=frozenset({"waiting"}),
    prompt_section="transfer_approval",
    status_sections={
        "ai": "approval_needed",
        "waiting": "approval_waiting",
        "approved": "approval_approved",
        "edited": "approval_edited",
        "rejected": "approval_rejected",
        "timeout": "approval_timeout",
        "human": "human_in_control",
    },
    diagram_path="ai → waiting → approved | edited | rejected | timeout; ⇄ human",
)
"""The row of `AIS` tasks with `approval: true`."""

ROUTED_TYPES: tuple[TaskType, ...] = tuple(name for name in TASK_TYPES if TASK_KINDS[name].routed)


def kind_of(task_type: TaskType, *, approval: bool) -> TaskKind:
    """The row of a task; `approval` means nothing outside of `AIS` tasks."""
    return APPROVAL if approval and task_type == "AIS" else TASK_KINDS[task_type]


def _check(kinds: Mapping[str, TaskKind]) -> None:
    """At the import: every type has its row, and every row tells the model of each of its sub-states."""
    for name, kind in kinds.items():
        if kind.sub_states != tuple(kind.status_sections):
            raise LookupError(f"task type {name!r} needs a status section for each of {kind.sub_states}")
        arcs = [state for pairs in kind.events.values() for pair in pairs for state in pair]
        if unknown := set(arcs) - set(kind.sub_states):
            raise LookupError(f"the events of task type {name!r} name the unknown states {sorted(unknown)}")


_check({name: TASK_KINDS[name] for name in TASK_TYPES} | {"AIS with approval": APPROVAL})
