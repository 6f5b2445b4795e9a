"""The carriers there are. Another one is entered here: its settings as a base class, and its row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator

from channels.voice.carriers.carrier import CallDocuments, Carrier, StreamCodec
from channels.voice.carriers.twilio import carrier, media_streams, twiml
from channels.voice.server.public_address import PublicAddress
from flow_engine.ports.outbound import OutboundSender


class CarrierSettings(carrier.TwilioSettings):
    """The settings of every carrier. The names of each begin with its own."""


@dataclass(frozen=True, slots=True)
class CarrierRow:
    """`codec` and `documents` need no credentials; `urls` are those of the servers that `open` may call.
    `lacks_for_transfers` says which settings would have its calls transferred; None where they are."""

    codec: StreamCodec
    documents: CallDocuments
    open: Callable[[CarrierSettings, PublicAddress, OutboundSender], Carrier]
    urls: Callable[[CarrierSettings], tuple[str, ...]]
    lacks_for_transfers: Callable[[CarrierSettings], str | None] = lambda settings: None


CARRIERS: Final[Mapping[str, CarrierRow]] = {
    "twilio": CarrierRow(
        media_streams.TwilioStreams(),
        twiml.TwiMl(),
        carrier.TwilioCarrier,
        lambda settings: (settings.twilio_api_url,),
        carrier.lacks_for_transfers,
    ),
}
"""By the value of `FLOW_ENGINE_VOICE_CARRIER`."""


def _known(name: str) -> str:
    if name not in CARRIERS:
        raise ValueError(f"no carrier {name!r}; there are: {', '.join(CARRIERS)}")
    return name


CarrierName: TypeAlias = Annotated[str, AfterValidator(_known)]
