"""The voices of the model, and the few words that the agent brings along itself, by language."""

from dataclasses import dataclass

from channels.voice.call.ports import CustomVoice
from flow_engine.values import JsonValue

DEFAULT_VOICE = "sage"
# Configs outlive voices: an unknown one is replaced, not refused.
VOICES = ("alloy", "ash", "ballad", "cedar", "coral", "echo", "marin", "sage", "shimmer", "verse")


def read_voice(value: JsonValue) -> str | CustomVoice | None:
    """A voice as configs and sessions write it: its name, or an object with its `id`; None for anything
    else."""
    if isinstance(value, dict):
        voice_id = value.get("id")
        return CustomVoice(voice_id) if isinstance(voice_id, str) and voice_id and len(value) == 1 else None
    return value if isinstance(value, str) and value else None


def is_known(voice: str | CustomVoice) -> bool:
    """A custom voice is known to the vendor, or its session is refused."""
    return isinstance(voice, CustomVoice) or voice in VOICES


@dataclass(frozen=True, slots=True)
class Wording:
    """`apology` is for a call that cannot be taken; `caller` and `agent` name the speakers of a summary."""

    apology: str
    caller: str
    agent: str


_WORDINGS = {
    "en": Wording(
        apology="We are sorry, we cannot take your call right now. Please try again in a few minutes.",
        caller="Caller",
        agent="Agent",
    ),
    "es": Wording(
        apology="Lo sentimos, ahora mismo no podemos atenderle. Vuelva a llamar dentro de unos minutos.",
        caller="Cliente",
        agent="Agente",
    ),
    "fr": Wording(
        apology="Nous sommes désolés, nous ne pouvons pas vous répondre pour le moment. "
        "Merci de rappeler dans quelques minutes.",
        caller="Client",
        agent="Agent",
    ),
    "it": Wording(
        apology="Ci dispiace, in questo momento non possiamo rispondere. "
        "La preghiamo di richiamare tra qualche minuto.",
        caller="Cliente",
        agent="Agente",
    ),
}


def wording(language: str) -> Wording:
    """The words of a BCP 47 language; English where there are none of its own."""
    return _WORDINGS.get(language.partition("-")[0].lower(), _WORDINGS["en"])
