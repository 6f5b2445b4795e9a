"""Models of the media settings: speech, models, courtesy messages, language detection (F2, F3)."""

from typing import Annotated, Literal

from pydantic import ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator

from flow_engine.documents.base import Document, Items, Maybe, ShapedBy, When
from flow_engine.documents.scalars import Flag, Number, SttProvider, Text, Texts, TtsProvider, wrong_type

GroqModel = Literal["meta-llama/llama-4-scout-17b-16e-instruct"]


class LocalizedText(Document):
    """`language` is ISO 639-1, two letters."""

    language: Text
    text: Text


class LlmConfig(Document):
    provider: Maybe[Literal["openai", "azure", "google", "local", "groq"]] = None
    model: Maybe[Text] = None
    temperature: Maybe[Number] = None


class BaseSttConfig(Document):
    """Times in seconds. `provider` may be a template, rendered before it is returned."""

    provider: SttProvider
    recognition_timeout: Number = 2.5
    streaming: Flag = False
    interim_results: Flag = False
    hints: Texts = ()
    hints_boost: Number = 1
    min_endpointing_delay: Number = 1.5
    max_endpointing_delay: Number = 3
    min_interruption_duration: Number = 0.7


class LanguageSttConfig(Document):
    """Settings of one language, ISO 639-1."""

    language: Maybe[Text] = None
    config: Maybe[BaseSttConfig] = None


class SttConfig(Document):
    default: BaseSttConfig
    fallback: BaseSttConfig
    language_custom_config: Items[LanguageSttConfig] | None = None


class BaseTtsConfig(Document):
    """`provider` and `voice` may be templates, rendered before they are returned."""

    provider: TtsProvider
    voice: Text
    speed: Number = 1


class LanguageTtsConfig(Document):
    """Settings of one language, ISO 639-1."""

    language: Maybe[Text] = None
    config: Maybe[BaseTtsConfig] = None


class TtsConfig(Document):
    default: BaseTtsConfig
    fallback: BaseTtsConfig
    language_custom_config: Items[LanguageTtsConfig] | None = None


class VadConfig(Document):
    """Durations in seconds, the threshold between 0 and 1."""

    activation_threshold: Number = 0.5
    max_buffered_speech: Number = 60
    min_silence_duration: Number = 0.8
    min_speech_duration: Number = 0.08
    prefix_padding_duration: Number = 0.5


class CourtesyMessageGroqParams(Document):
    """Without `prompt` the platform's own prompt is used."""

    history_messages: Number = 5
    prompt: Maybe[Text] = None
    temperature: Number = 0.2
    max_completion_tokens: Number = 30
    top_p: Number = 0.8
    model: GroqModel = "meta-llama/llama-4-scout-17b-16e-instruct"


class CourtesyMessageRandomParams(Document):
    messages: Items[LocalizedText] = ()


CourtesyMessageParams = CourtesyMessageGroqParams | CourtesyMessageRandomParams


def _params_of_provider(
    value: object, _: ValidatorFunctionWrapHandler, info: ValidationInfo
) -> CourtesyMessageParams:
    if not isinstance(value, dict):
        raise wrong_type("an object", value)
    if info.data.get("provider") == "groq":
        return CourtesyMessageGroqParams.model_validate(value, context=info.context)
    if info.data.get("provider") == "random":
        return CourtesyMessageRandomParams.model_validate(value, context=info.context)
    # The provider is missing or unknown, which is reported there: nothing says what these should be.
    return CourtesyMessageRandomParams()


class CourtesyMessageConfig(Document):
    """Times in seconds.

    The original schema wants `providerParams` to fit exactly one of two shapes without a required
    property, which every sensible value fits both of. Here `provider` chooses the shape (F3).
    """

    provider: Literal["groq", "random"]
    timeout: Number
    silence_after_message: Number = 1
    provider_params: Annotated[
        CourtesyMessageParams,
        WrapValidator(_params_of_provider),
        ShapedBy((When("provider", "groq"), When("provider", "random")), always="object"),
    ]


class BaseAudioMediaConfig(Document):
    """Every setting may be missing: the preset's stands then. Times in seconds."""

    llm: Maybe[LlmConfig] = None
    stt: Maybe[SttConfig] = None
    tts: Maybe[TtsConfig] = None
    vad: Maybe[VadConfig] = None
    allow_interruptions_on_start: Maybe[Flag] = None
    allow_interruptions: Maybe[Flag] = None
    courtesy_message_config: CourtesyMessageConfig | None = None
    enable_recording: Flag = False
    user_interaction_timeout: Number = 20
    preemptive_generation: Flag = False


class AudioMediaConfig(BaseAudioMediaConfig):
    """What a version says over the preset that it names: only `model_fields_set` overrides it (F3)."""

    preset_id: Text


class AudioMediaConfigPreset(Document):
    """A preset of the platform. It is complete: `null` for no courtesy messages may be left out. Times in
    seconds."""

    llm: LlmConfig
    stt: SttConfig
    tts: TtsConfig
    vad: VadConfig
    allow_interruptions_on_start: Flag
    allow_interruptions: Flag
    courtesy_message_config: CourtesyMessageConfig | None = None
    enable_recording: Flag
    user_interaction_timeout: Number
    preemptive_generation: Flag


class TextMediaConfig(Document):
    """Settings of the written channels. A timeout of None (seconds): never."""

    llm: Maybe[LlmConfig] = None
    courtesy_message_config: CourtesyMessageConfig | None = None
    user_interaction_timeout: Number | None = None


class MediaConfig(Document):
    audio: AudioMediaConfig
    text: TextMediaConfig


class LanguageDetectionConfig(Document):
    enable_language_detection: Flag = False
    min_words_for_language_detection: Number = 2
    language_detector: Literal["fasttext", "lingua"] = "fasttext"
