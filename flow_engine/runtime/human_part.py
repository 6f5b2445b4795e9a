"""The human part of a task (F34): transfers, supervisions, and texts that wait for a person's decision.

1. An outcome that the chart has a way for moves it. One that has come true already is no error: its sender
   repeats it.
2. In a task with approval a text of the AI waits until a person approves, edits or rejects it, or its time
   is over. One waits at a time, and each gets one decision.
3. A decision may name its text, by its id, or by its words where it does not change them. One that names
   another text is refused.
4. While a text waits its task is not left (`rules.py`). Whoever takes over, the end of the contact and a
   contact that comes instead withdraw it: there is nobody left to send it to.
5. What comes too late or out of turn is refused as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from msgspec import structs
from pydantic.alias_generators import to_camel

from flow_engine.errors import ReloadAndDecide
from flow_engine.masking import without_cards
from flow_engine.runtime import commands, events
from flow_engine.runtime.compiled import LONGEST_S
from flow_engine.runtime.conversation_state import ConversationState
from flow_engine.runtime.session import Approval
from flow_engine.runtime.statechart import StateConfiguration
from flow_engine.values import utc_text
from flow_engine.vocabulary import DECISIONS, Decision, HumanOutcome, TextRefusalCode

LONGEST_TEXT = 16_000
"""Characters of a text that waits for a person."""
_CHANGED_BY: tuple[HumanOutcome, ...] = ("waiting", "edited")
_OF_TEXTS: tuple[HumanOutcome, ...] = ("waiting", *DECISIONS)


@dataclass(frozen=True, slots=True)
class TextRefusal:
    """Why a text, or a decision on one, was not taken."""

    code: TextRefusalCode
    reason: str


@dataclass(frozen=True, slots=True)
class HumanReport:
    """What became of the human part. `text` is the AI's, or what a person made of it; a decision may name
    the text that it is on by `approval_id`."""

    outcome: HumanOutcome
    reason: str | None = None
    text: str | None = None
    approval_id: int | None = None

    def without_cards(self) -> HumanReport:
        """With a mask in place of each card number."""
        return replace(
            self,
            reason=None if self.reason is None else without_cards(self.reason),
            text=None if self.text is None else without_cards(self.text),
        )

    @property
    def fields(self) -> Mapping[str, object]:
        """As the journal tells it. JSON values."""
        told: dict[str, object] = {"outcome": self.outcome, "reason": self.reason}
        told |= {} if self.text is None else {"text": self.text}
        return told | ({} if self.approval_id is None else {"approvalId": self.approval_id})


def text_fault(outcome: HumanOutcome | None, text: str | None) -> str | None:
    """What is wrong with the text beside an outcome, None where it may stand there."""
    if outcome in _CHANGED_BY and (text is None or not text.strip()):
        return f"outcome {outcome!r} needs the text, of 1 to {LONGEST_TEXT} characters"
    if text is not None and outcome is not None and outcome not in _OF_TEXTS:
        return f"outcome {outcome!r} has no text; accepted with: {', '.join(_OF_TEXTS)}"
    return None


class HumanPart(ConversationState):
    """A conversation as its human part moves it. `text_refusal` is set where a report about a text was not
    taken."""

    text_refusal: TextRefusal | None = None

    def apply_human_outcome(self, report: HumanReport) -> str | None:
        """Drive a HUM or AIS task and return the model's command, None where there is none. A text that is
        not taken, or a decision, is in `text_refusal`.

        Raises ReloadAndDecide `outcome_not_possible`, with the outcomes that are.
        """
        outcome, approval = report.outcome, self.session.approval
        accepted = self.flow.chart.accepted_outcomes(self.session.states)
        if approval is not None and (outcome in DECISIONS or (outcome == "waiting" and self.held)):
            self.text_refusal = _refusal(report, approval)
            if self.text_refusal is not None:
                return None
            if outcome == "waiting" or approval.status != "waiting":
                return _command(outcome, approval.reason)
        elif outcome not in accepted:
            ways = self.task.kind.events.get(outcome, ())
            if outcome in _OF_TEXTS or all(target != self.status for _, target in ways):
                kind = self.task.type if self.status is None else f"{self.task.type}, {self.status}"
                where = f"task {self.task.name!r} ({kind})"
                raise ReloadAndDecide(
                    "outcome_not_possible",
                    f"{outcome!r} does not follow in {where}",
                    state=self.facts(),
                    accepted=accepted,
                )
            return _command(outcome, self.session.task.human_reason)
        if outcome == "waiting":
            self._submit(report.text or "")
        elif outcome in DECISIONS:
            self._decide(outcome, report.reason, report.text)
        else:
            self._apply_outcome(outcome, report.reason)
        return _command(outcome, report.reason)

    def run_out(self) -> None:
        """What the clock has brought about: a search that found nobody, a text that nobody has decided."""
        deadline = self.session.task.routing_deadline
        if deadline is None or deadline > self.now:
            return
        outcome = self.task.kind.at_deadline.get(self.status or "")
        if outcome == "timeout":
            self._decide(outcome, None, None)
        elif outcome is not None:
            self._apply_outcome(outcome, "timeout")
            self._update(pending_command=_command(outcome, "timeout"))
        elif self.looks_for_somebody:
            self._update(task=self.session.task.model_copy(update={"routing_deadline": None}))
            self._note("human_task", outcome="failed", reason="timeout")

    # --- the parts of a step ------------------------------------------------------------------

    def _apply_outcome(self, outcome: HumanOutcome, reason: str | None) -> None:
        if outcome == "taken_over":
            self._withdraw(outcome)
        self._move_human_part(outcome, reason)
        self._note("human_task", outcome=outcome, reason=reason)

    def _move_human_part(self, outcome: HumanOutcome, reason: str | None) -> None:
        self._set_states(self.flow.chart.human(self.session.states, outcome))
        entry = self.session.task.model_copy(update={"human_reason": reason, "routing_deadline": None})
        self._update(task=entry)

    def _submit(self, text: str) -> None:
        """The AI's text waits from now on; what was decided on the one before has been told by that."""
        timeout = min(max(self.task.document.approval_timeout, 0.0), LONGEST_S)
        until, number = self.now + timedelta(seconds=timeout), self.loaded.revision + 1
        self._move_human_part("waiting", None)
        self._note("human_task", outcome="waiting", approvalId=number, text=text, timeout=timeout)
        told = (self.session.pending_command or "").startswith(_DECIDED)
        self._update(
            approval=Approval(
                id=number,
                task_id=self.task.id,
                status="waiting",
                text=text,
                draft=text,
                asked_at=self.now,
                until=until,
            ),
            task=self.session.task.model_copy(update={"routing_deadline": until}),
            pending_command=None if told else self.session.pending_command,
        )
        self.jobs.append(self.due_at("routing", until))

    def _decide(self, decision: Decision, reason: str | None, text: str | None) -> None:
        """On the text that waits. Raises LookupError where there is none."""
        approval = self.session.approval
        if approval is None:
            raise LookupError("no text waits")
        edited = text if decision == "edited" and text is not None else approval.draft
        self._move_human_part(decision, reason)
        self._note(
            "human_task",
            outcome=decision,
            reason=reason,
            approvalId=approval.id,
            text=edited,
            draft=approval.draft if decision == "edited" else None,
        )
        decided = {"status": decision, "text": edited, "reason": reason, "decided_at": self.now}
        self._update(approval=approval.model_copy(update=decided), pending_command=_command(decision, reason))

    def _withdraw(self, reason: str, contact_id: str | None = None) -> None:
        """The text that waits, if one does: it is not sent, and nobody has to decide on it any more."""
        approval = self.session.approval
        if approval is None or approval.status != "waiting":
            return
        withdrawn = {"status": "withdrawn", "reason": reason, "decided_at": self.now}
        entry = self.session.task.model_copy(update={"routing_deadline": None})
        self._update(approval=approval.model_copy(update=withdrawn), task=entry)
        self._note(
            "human_task",
            contact_id,
            outcome="withdrawn",
            reason=reason,
            approvalId=approval.id,
            text=approval.draft,
        )

    def _start_routing(self) -> None:
        if not self.looks_for_somebody:
            return
        routing = self.task.document.routing_parameters
        timeout = 0.0 if routing is None else routing.timeout
        deadline = self.now + timedelta(seconds=min(max(timeout, 0.0), LONGEST_S))
        entry = self.session.task.model_copy(update={"routing_deadline": deadline, "human_reason": None})
        self._update(task=entry)
        skills = {to_camel(kind): values for kind, values in self.task.transfer_tags}
        self._note("routing_requested", None, timeout=timeout, **skills)
        self.jobs.append(self.due_at("routing", deadline))

    def _set_states(self, states: StateConfiguration) -> None:
        self._update(configuration=states.configuration, history=states.history)

    def _update(self, **changes: object) -> None:
        """Every step makes one revision, however many parts it has."""
        self.session = structs.replace(self.session, revision=self.revision_before + 1, **changes)

    def _note(self, subtype: str, contact_id: str | None = None, **details: object) -> None:
        about = contact_id or self.session.active_contact_id or ""
        self.outbox.append(
            events.system_event(
                self.flow, self.session, len(self.outbox), about, self.now, subtype, **details
            )
        )


_DECIDED = tuple(commands.decided(decision, None) for decision in DECISIONS)


def _refusal(report: HumanReport, approval: Approval) -> TextRefusal | None:
    """By rules 2, 3 and 5, of the text that was the last to wait. None for what can be taken, and for what
    has come true already."""
    outcome, text = report.outcome, report.text
    if outcome == "waiting":
        if text == approval.draft:
            return None
        until = utc_text(approval.until)
        return TextRefusal("already_waiting", f"another text waits for a person's decision until {until}")
    named = None if outcome == "edited" else text
    if report.approval_id not in (None, approval.id) or named not in (None, approval.draft):
        return TextRefusal(
            "another_text", f"the decision is on another text than {approval.id}, which is {approval.status}"
        )
    if approval.status == "waiting" or (
        approval.status == outcome and (outcome != "edited" or text == approval.text)
    ):
        return None
    at = utc_text(approval.decided_at or approval.until)
    return TextRefusal(
        "already_decided", f"text {approval.id} does not wait any more: {approval.status} at {at}"
    )


def _command(outcome: HumanOutcome, reason: str | None) -> str | None:
    match outcome:
        case "completed":
            return commands.HUMAN_COMPLETED
        case "failed":
            return commands.human_failed(reason or "unknown")
        case "approved" | "edited" | "rejected" | "timeout":
            return commands.decided(outcome, reason)
        case _:
            return None
