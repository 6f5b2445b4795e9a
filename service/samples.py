"""Put the sample flows into an empty store, once."""

from __future__ import annotations

from flow_engine.errors import ReloadAndDecide
from flow_engine.idempotency import FinalReply
from flow_engine.ports.clock import Clock
from flow_engine.ports.flow_store import FlowRecord, FlowStore, VersionStore
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.submissions import Submissions
from flows.samples import SampleFlow, load_samples

TENANT = "default"
AUTHOR = "samples"


async def install_samples(
    flows: FlowStore, versions: VersionStore, submissions: Submissions, clock: Clock
) -> None:
    """Samples go through the designers' own use cases; one that is there already is left as it is."""
    for sample in load_samples():
        if await flows.get(TENANT, sample.flow_id) is None:
            await _install(sample, flows, versions, submissions, clock)


async def _install(
    sample: SampleFlow, flows: FlowStore, versions: VersionStore, submissions: Submissions, clock: Clock
) -> None:
    flow_service = FlowService(flows=flows, versions=versions, clock=clock, new_id=lambda: sample.flow_id)
    try:
        await flow_service.create_flow(
            TENANT,
            name=sample.name,
            campaign_id=sample.campaign_id,
            schema_version="1.0.0",
            updated_by=AUTHOR,
            respond=_no_reply,
        )
    except ReloadAndDecide as taken:
        if taken.code != "flow_id_taken":
            raise
        return  # a process that starts at the same moment on the same store is installing it
    submission = submissions.check(
        sample.document, flow_id=sample.flow_id, created_by=AUTHOR, now=clock.now()
    )
    await flow_service.save_version(
        TENANT,
        sample.flow_id,
        document=submission.document,
        entry=submission.entry,
        parent_version_id=None,
        tag=next(iter(sample.tags), None),
        respond=_no_reply,
    )


def _no_reply(flow: FlowRecord) -> FinalReply:
    return FinalReply(200, b"")
