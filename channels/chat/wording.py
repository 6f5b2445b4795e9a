"""What the orchestrator itself says to users, by language; English for every other one."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

Phrase = Literal[
    "which_one",
    "is_it",
    "nobody_fits",
    "can_do",
    "failed",
    "interrupted",
    "too_long",
    "no_flow",
    "or",
    "checked",
    "not_checked",
]

_PHRASES: Final[Mapping[str, Mapping[Phrase, str]]] = {
    "en": {
        "which_one": "I am not sure which of these you need:",
        "is_it": "Is this what you need?",
        "nobody_fits": "I have nobody here who can help with that.",
        "can_do": "What can be done here:",
        "failed": "I could not finish my answer because of a technical problem. Please try again.",
        "interrupted": "My answer was interrupted. Please send your message again.",
        "too_long": "I could not come to an end with this. Please put it another way.",
        "no_flow": "This service cannot be reached at the moment. Please try again later.",
        "or": "Tell me in a few more words what you need.",
        "checked": "One moment, please: a colleague is checking my answer.",
        "not_checked": "Nobody could check my answer in time. Please try again later.",
    },
    "it": {
        "which_one": "Non sono sicuro di quale di questi ti serva:",
        "is_it": "È questo che ti serve?",
        "nobody_fits": "Qui non c'è nessuno che possa aiutarti con questo.",
        "can_do": "Ecco che cosa si può fare qui:",
        "failed": "Per un problema tecnico non ho potuto finire la risposta. Riprova, per favore.",
        "interrupted": "La mia risposta è stata interrotta. Manda di nuovo il messaggio, per favore.",
        "too_long": "Non riesco ad arrivare a una conclusione. Prova a dirlo in un altro modo.",
        "no_flow": "Il servizio non è raggiungibile in questo momento. Riprova più tardi.",
        "or": "Dimmi in qualche parola in più di che cosa hai bisogno.",
        "checked": "Un momento, per favore: un collega sta controllando la mia risposta.",
        "not_checked": "Nessuno ha potuto controllare la mia risposta in tempo. Riprova più tardi.",
    },
    "es": {
        "which_one": "No sé con seguridad cuál de estas cosas necesitas:",
        "is_it": "¿Es esto lo que necesitas?",
        "nobody_fits": "Aquí no hay nadie que pueda ayudarte con eso.",
        "can_do": "Esto es lo que se puede hacer aquí:",
        "failed": "Por un problema técnico no pude terminar la respuesta. Inténtalo de nuevo, por favor.",
        "interrupted": "Mi respuesta se interrumpió. Envía el mensaje otra vez, por favor.",
        "too_long": "No consigo llegar a una conclusión. Intenta decirlo de otra manera.",
        "no_flow": "El servicio no está disponible en este momento. Inténtalo más tarde.",
        "or": "Dime con algunas palabras más lo que necesitas.",
        "checked": "Un momento, por favor: un compañero está revisando mi respuesta.",
        "not_checked": "Nadie ha podido revisar mi respuesta a tiempo. Inténtalo más tarde, por favor.",
    },
}

BREAK_OUTS: Final = (
    *("something else", "never mind", "nevermind", "forget it", "another topic", "start over"),
    *("qualcos'altro", "qualcosa d'altro", "un'altra cosa", "altro argomento"),
    *("lascia perdere", "lascia stare"),
    *("otra cosa", "algo distinto", "déjalo", "dejalo", "olvídalo", "olvidalo", "cambiemos de tema"),
)
"""By which a user leaves an agent that has asked something."""

AFFIRMATIVE: Final = frozenset(
    (
        *("yes", "yes please", "yeah", "yep", "ok", "okay", "sure"),
        *("sì", "certo", "esatto", "si", "sí", "claro", "vale"),
    )
)


def phrase(key: Phrase, language: str | None) -> str:
    return _PHRASES.get((language or "en").partition("-")[0].lower(), _PHRASES["en"])[key]


def question(offered: Sequence[str], language: str | None) -> str:
    """What `offered`, descriptions of agents, are asked about in; without any, for more words."""
    if not offered:
        return phrase("or", language)
    head = phrase("is_it" if len(offered) == 1 else "which_one", language)
    lines = "\n".join(f"{number}. {text}" for number, text in enumerate(offered, start=1))
    return f"{head}\n{lines}"


def refusal(offered: Sequence[str], language: str | None) -> str:
    """Explains, and names what can be done here."""
    head = phrase("nobody_fits", language)
    if not offered:
        return f"{head} {phrase('or', language)}"
    lines = "\n".join(f"- {text}" for text in offered)
    return f"{head} {phrase('can_do', language)}\n{lines}"


def breaks_out(text: str) -> bool:
    folded = text.casefold().replace("’", "'")
    return any(words in folded for words in BREAK_OUTS)
