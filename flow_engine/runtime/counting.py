"""What a committed step counts for, read off the state before and after it.

Counted after the commit: a step that lost its commit is done again, and would count twice.
"""

from __future__ import annotations

from flow_engine.ports.observing import Observer
from flow_engine.runtime.runner import ConversationalFlowRunner


def count_moves(runner: ConversationalFlowRunner, observer: Observer) -> None:
    """Changes of task by their outcome, contacts by their channel and how they ended."""
    if not runner.changed:
        return
    before, after = runner.loaded.session, runner.session
    if runner.has_task_validation_error():
        observer.count("task_changes", outcome=runner.get_task_validation_error().code)
    elif before is not None and runner.new_memory is None and before.entered != after.entered:
        observer.count("task_changes", outcome="accepted")
    active_before = None if before is None else before.active_contact_id
    if active_before is not None and active_before != after.active_contact_id:
        ended = after.contacts[active_before]
        observer.count("contacts_ended", channel=ended.channel, how=ended.status)
    started = after.active_contact
    if started is not None and (active_before != after.active_contact_id or runner.new_memory is not None):
        observer.count("contacts_started", channel=started.channel)
