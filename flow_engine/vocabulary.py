"""The closed sets of words that documents, requests and stored data share: each is written down here only.

A type and the tuple of its members, in the order in which schemas list them. What a task type means stands
in `task_types.TASK_KINDS`, what values a variable type takes in `values.canonical`: both fail at the import
or in the type checker when a member is added here and not there.
"""

from typing import Literal, get_args

Channel = Literal["phone", "whatsapp", "sms", "mail", "chat"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)

TaskType = Literal["AIO", "AIS", "HUM"]
TASK_TYPES: tuple[TaskType, ...] = get_args(TaskType)

BACK = "back"
"""What a change of task asks for to leave a digression, unless a task has that name."""

VariableType = Literal["string", "number", "boolean", "enum", "date", "phone", "email", "custom"]
VARIABLE_TYPES: tuple[VariableType, ...] = get_args(VariableType)

SensitiveKind = Literal["card", "health", "identity"]
"""Of a sensitive variable, where its document says more than that it is one."""

Decision = Literal["approved", "edited", "rejected", "timeout"]
DECISIONS: tuple[Decision, ...] = get_args(Decision)
"""What becomes of a text that waits for a person; `timeout`: nobody has decided."""

HumanOutcome = Literal["connected", "completed", "failed", "taken_over", "released", "waiting", Decision]
HUMAN_OUTCOMES: tuple[HumanOutcome, ...] = get_args(HumanOutcome)

TextRefusalCode = Literal["already_waiting", "already_decided", "another_text"]
TEXT_REFUSALS: tuple[TextRefusalCode, ...] = get_args(TextRefusalCode)
"""Why a text is not put before a person, or a decision on one is not taken."""

ApprovalStatus = Literal["waiting", Decision, "withdrawn"]
"""Of a text that was put before a person; `withdrawn`: there is nobody to send it to any more."""

Source = Literal["user", "bot", "agent"]
"""Who speaks in a dialogue: the person who called, the model, the human agent."""

UtteranceType = Literal["tool", "system", "message"]

Phase = Literal["active", "between_contacts", "closed"]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""Where a conversation stands: `closed` is final."""

ContactStatus = Literal["active", "ended", "superseded"]

Advance = Literal["suggest", "auto"]
"""What an open connection does by itself: it is suggested to the model, or the conversation takes it."""

Precedence = Literal["tool", "user", "latest"]
"""Whose value counts where a tool and the user contradict each other."""

FILLED_BY_AGENTS = ("tenantId", "conversationId", "contactId", "campaignId", "memory", "idempotencyKey")
"""Parameters of tools that the agent fills by itself, whatever a flow assigns to them."""

MemoryFormat = Literal["markdown", "toon"]
"""How the memory is written into a prompt (F21)."""
