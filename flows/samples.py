"""The sample flows that the embedded default starts with (F42): three documents, each a whole product.

samples/health-booking.it.json    appointments at a clinic; phone, chat and WhatsApp, one contact
samples/order.en.json             a shop's orders; phone and chat, payment supervised by staff
samples/claim.es.json             an insurance claim over several contacts, channels and weeks
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flow_engine.errors import CallTheOperator

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
    return tuple(_load(path) for path in sorted(directory.glob("*.json")))


def _load(path: Path) -> SampleFlow:
    try:
        file = _File.model_validate(orjson.loads(path.read_bytes()))
    except (OSError, orjson.JSONDecodeError, ValidationError) as error:
        raise CallTheOperator(
            "sample_invalid",
            f"{path.name} must be {{flow: {{_id, name, campaignId}}, tag?, version}}: {error}",
        ) from error
    return SampleFlow(
        flow_id=file.flow.id,
        name=file.flow.name,
        campaign_id=file.flow.campaign_id,
        version_id=str(file.version.get("_id", "")),
        document=orjson.dumps(file.version),
        tags=() if file.tag is None else (file.tag,),
    )
