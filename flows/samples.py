"""The sample flows that the embedded default starts with (F42): three documents, each a whole product.

samples/health-booking.it.json    appointments at a clinic; phone, chat and WhatsApp, one contact
samples/order.en.json             a shop's orders; phone and chat, payment supervised by staff
samples/claim.es.json             an insurance claim over several contacts, channels and weeks

A sample's file holds `{"flow": …, "version": …}`; commands that take version documents take such files too.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flow_engine import errors, idempotency, json_values
from flow_engine.documents import changed_by_reading
from flow_engine.ports.clock import Clock
from flow_engine.ports.flow_store import FlowRecord, FlowStore, VersionStore
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.submissions import Submissions

TENANT = "default"
AUTHOR = "samples"

_DIRECTORY = Path(__file__).parent / "samples"


@dataclass(frozen=True, slots=True)
class SampleFlow:
    """A flow with its only version. `document` is the version's JSON text, as it is stored.

    `tags` are the version's beyond `latest`. All ids are fixed, so that a second start finds what the
    first one stored.
    """

    flow_id: str
    name: str
    campaign_id: str
    version_id: str
    document: bytes
    tags: tuple[str, ...]


class _Flow(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(alias="_id", min_length=1)
    name: str
    campaign_id: str = Field(alias="campaignId")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    flow: _Flow
    tag: str | None = None
    version: dict[str, object]


def load_samples(directory: Path = _DIRECTORY) -> tuple[SampleFlow, ...]:
    """The samples, by file name. Raises CallTheOperator `sample_invalid` naming a file that is broken.

    Only the wrapping is checked here; the version's own rules are checked where versions are saved.
    """
    samples: list[SampleFlow] = []
    for path in sorted(directory.glob("*.json")):
        try:
            file = _File.model_validate(orjson.loads(path.read_bytes()))
        except (OSError, orjson.JSONDecodeError, ValidationError) as error:
            raise errors.CallTheOperator(
                "sample_invalid",
                f"{path.name} must be {{flow: {{_id, name, campaignId}}, tag?, version}}: {error}",
            ) from error
        sample = SampleFlow(
            flow_id=file.flow.id,
            name=file.flow.name,
            campaign_id=file.flow.campaign_id,
            version_id=str(file.version.get("_id", "")),
            document=orjson.dumps(file.version),
            tags=() if file.tag is None else (file.tag,),
        )
        samples.append(sample)
    return tuple(samples)


UNNAMED_FLOW = "flow"
"""The flow of a version whose file names none."""


@dataclass(frozen=True, slots=True)
class VersionFile:
    """What a file of a version document holds: the version, whatever it is, its flow's id (`UNNAMED_FLOW`
    where the file names none) and the JSON pointer of the version within the file. `changed` are the errors
    of what decoding has changed, with pointers into the version."""

    version: object
    flow_id: str
    place: str
    changed: tuple[errors.Finding, ...]


def unwrapped(raw: object, text: bytes) -> VersionFile:
    """Of a file's parsed JSON and its text: a version by itself, or wrapped as the samples are.

    A version is closed and has no property `version`: it cannot be mistaken for the wrapping.
    """
    outer = json_values.as_object(raw)
    wrapped = isinstance(outer.get("version"), dict)
    version = json_values.as_object(outer["version"]) if wrapped else outer
    flow_id = json_values.as_object(outer.get("flow")).get("_id", version.get("conversationalFlowId"))
    place = "/version" if wrapped else ""
    changed = (each for each in changed_by_reading(text) if f"{each.pointer}/".startswith(f"{place}/"))
    return VersionFile(
        version=version if isinstance(raw, dict) else raw,
        flow_id=flow_id if isinstance(flow_id, str) else UNNAMED_FLOW,
        place=place,
        changed=tuple(replace(each, pointer=each.pointer.removeprefix(place)) for each in changed),
    )


async def install_samples(
    flows: FlowStore, versions: VersionStore, submissions: Submissions, clock: Clock
) -> None:
    """Put the samples into a store by the designers' own use cases; one that is there is left as it is.

    Raises what they raise, and CallTheOperator `sample_invalid`.
    """
    for sample in load_samples():
        if await flows.get(TENANT, sample.flow_id) is not None:
            continue
        new_id = partial(str, sample.flow_id)
        flow_service = FlowService(flows=flows, versions=versions, clock=clock, new_id=new_id)
        try:
            await flow_service.create_flow(
                TENANT,
                name=sample.name,
                campaign_id=sample.campaign_id,
                schema_version="1.0.0",
                updated_by=AUTHOR,
                respond=_no_reply,
            )
        except errors.ReloadAndDecide as taken:
            if taken.code != "flow_id_taken":
                raise
            continue  # a process that starts at the same moment on the same store is installing it
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


def _no_reply(flow: FlowRecord) -> idempotency.FinalReply:
    return idempotency.FinalReply(200, b"")
