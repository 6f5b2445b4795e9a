"""What a designer's editor offers to choose from (F27). It helps to choose and forbids nothing."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from flow_engine.vocabulary import Channel

_Text = Annotated[str, Field(min_length=1)]
LanguageTag = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Z][a-z]{3})?-([A-Z]{2}|\d{3})$")]

ModelProvider = Literal["openai", "azure", "google", "local", "groq"]
VoiceProvider = Literal["google", "elevenlabs", "openai"]
SttProvider = Literal["google", "deepgram", "openai"]


class Offer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class ModelOffer(Offer):
    """`kind` realtime: speech in and out without separate STT and TTS. `channels`: what it is made for.

    `id` goes into `llm.model`; for azure and local it is the usual name, an installation may use others.
    """

    id: _Text
    provider: ModelProvider
    name: _Text
    kind: Literal["text", "realtime"]
    channels: tuple[Channel, ...]


class VoiceOffer(Offer):
    """`id` goes into `tts.voice`. `languages` of null: it speaks whatever it is given."""

    id: _Text
    provider: VoiceProvider
    name: _Text
    languages: tuple[LanguageTag, ...] | None


class SttEngineOffer(Offer):
    """`provider` goes into `stt.provider`."""

    provider: SttProvider
    name: _Text
    streaming: bool
    languages: tuple[LanguageTag, ...]


class LanguageOffer(Offer):
    """A BCP 47 tag, and the language's name in itself and in English."""

    code: LanguageTag
    name: _Text
    english_name: _Text


class ModelCatalog(Offer):
    models: tuple[ModelOffer, ...]
    voices: tuple[VoiceOffer, ...]
    stt_engines: tuple[SttEngineOffer, ...]
    languages: tuple[LanguageOffer, ...]


def speaks(languages: tuple[str, ...] | None, asked: str) -> bool:
    """`it-IT` asks for that very tag, `it` for any kind of Italian."""
    if languages is None:
        return True
    folded = asked.casefold()
    return any(tag.casefold() == folded or tag.casefold().startswith(f"{folded}-") for tag in languages)
