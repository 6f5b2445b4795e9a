"""What a mail agent counts. Labels are mailboxes, statuses, jobs and codes: few, and never parts of mails."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

UNDER_WAY = ("queued", "running", "waiting")


class MailMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.taken_in = Counter(
            "flow_engine_mails_taken_in", "Mails that got their run.", ("mailbox",), registry=registry
        )
        self.runs_ended = Counter(
            "flow_engine_mail_runs_ended",
            "Runs of mails that ended, or wait for a person.",
            ("status", "job"),
            registry=registry,
        )
        self.outgoing = Counter(
            "flow_engine_mails_outgoing",
            "Replies sent, and mails left as drafts.",
            ("mailbox", "outcome"),
            registry=registry,
        )
        self.trouble = Counter(
            "flow_engine_mailbox_failures",
            "Failures of the servers of a mailbox, by code.",
            ("mailbox", "code"),
            registry=registry,
        )
        self._under_way = Gauge(
            "flow_engine_mail_runs_under_way",
            "Runs of mails that have not ended.",
            ("status",),
            registry=registry,
        )

    def under_way(self, runs: Mapping[str, int]) -> None:
        """How many runs there are, by status; a status that is left out has none."""
        for status in UNDER_WAY:
            self._under_way.labels(status).set(runs.get(status, 0))
