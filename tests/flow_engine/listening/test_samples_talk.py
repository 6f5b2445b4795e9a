"""The sample flows in use: people talk, and what they say arrives, without a model and with one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from adapters.models.fake_openai import Received, WireStep
from adapters.models.scripted import Answers, Says
from tests.flow_engine.listening.talking import (
    EventReceiver,
    Talk,
    answer_properties,
    dialogue_of,
    event_receiver,
    model_settings,
    scripted_openai,
)
from tests.service_process import running_service

ITALIAN = (
    (
        "Poliambulatorio Aurora, buongiorno. Come posso aiutarla?",
        "Buongiorno, vorrei una visita per mia madre.",
    ),
    ("Certo. È la prima volta che fa questa visita da noi?", "Sì, è la prima volta."),
    ("In quale sede preferisce venire?", "Alla sede Centro, se possibile."),
    ("Quando vorrebbe l'appuntamento?", "Giovedì 12 marzo alle 10 e mezza andrebbe benissimo."),
    ("Come si chiama la paziente?", "Si chiama Maria Teresa Greco."),
    ("A quale numero possiamo mandarle il promemoria?", "Può usare il 347 123 4567."),
)
ITALIAN_VALUES = {
    "primaVisita": True,
    "sede": "Centro",
    "dataAppuntamento": "2026-03-12T09:30:00Z",
    "telefono": {"country": "IT", "type": "mobile", "number": "+393471234567"},
}
ENGLISH = (
    ("Hello, this is Brightleaf. What can I do for you?", "Hi, I'd like some of your Ethiopian coffee."),
    ("Lovely choice. How many bags would you like?", "Two bags, please."),
    ("Which bag size would you like: 250, 500 or 1000 grams?", "The 500 gram bags."),
    ("How would you like to receive the order: standard, express or pickup?", "Express delivery, please."),
    ("On which day would you like it delivered?", "Friday the 13th of March would be perfect."),
    ("Shall I have the order wrapped as a gift?", "No, thanks, that's not necessary."),
    ("Which address shall we deliver to?", "12 Elm Street, Springfield, 62704."),
    ("And a phone number for the courier?", "Sure, it's 212 736 5000."),
)
ENGLISH_VALUES = {
    "quantity": 2,
    "bagGrams": 500,
    "deliveryMethod": "express",
    "deliveryDate": "2026-03-13",
    "giftWrap": False,
    "customerPhone": {"country": "US", "type": "mobile", "number": "+12127365000"},
}
SPANISH = (
    ("Lo siento mucho. ¿Hay alguna persona herida?", "No, por suerte no hay heridos."),
    ("¿Qué tipo de siniestro es?", "Son daños por agua."),
    ("¿Cuándo ocurrió?", "Fue ayer por la noche, sobre las once."),
    ("¿Qué pasó exactamente?", "Reventó una tubería de la cocina y se inundó el salón."),
    ("¿Cuánto calcula que costarán los daños?", "Unos 1.500 euros."),
    ("¿Qué día le viene bien la visita del perito?", "El martes 10 de marzo por la mañana."),
    ("¿A qué número puede llamarle el perito?", "Al 612 345 678."),
)
SPANISH_VALUES = {
    "hayHeridos": False,
    "tipoSiniestro": "agua",
    "fechaSiniestro": "2026-03-03T22:00:00Z",
    "importeEstimado": 1500,
    "fechaVisita": "2026-03-10",
    "telefono": {"country": "ES", "type": "mobile", "number": "+34612345678"},
}
ROME, MADRID = {"timezone": "Europe/Rome"}, {"timezone": "Europe/Madrid"}


def books_a_visit(talk: Talk) -> None:
    talk.started(tenant=ROME)
    for question, reply in ITALIAN[:3]:
        talk.exchanged(question, reply)
    talk.tool_writes("cerca_prestazione", "idPrestazione", "DERM-1", nome="Visita dermatologica")
    talk.moved("disponibilità")
    for question, reply in ITALIAN[3:]:
        talk.exchanged(question, reply)
    talk.moved("prenotazione")  # which needs the day that was only said, never written by a tool


def orders_coffee(talk: Talk) -> None:
    talk.started(channel="chat")
    talk.exchanged(*ENGLISH[0])
    talk.moved("take order")
    for question, reply in ENGLISH[1:3]:
        talk.exchanged(question, reply)
    talk.tool_writes("update_cart", "cart", {"items": 1}, items="Ethiopian coffee")
    talk.moved("delivery")
    for question, reply in ENGLISH[3:]:
        talk.exchanged(question, reply)
    talk.moved("payment")  # which needs the delivery method


def reports_a_claim(talk: Talk) -> None:
    talk.started(tenant=MADRID)
    talk.tool_writes("buscar_poliza", "poliza", {"numero": "H-20118"}, titular="Marta Soler")
    talk.moved("apertura")
    for question, reply in SPANISH:
        talk.exchanged(question, reply)
    talk.moved("registro")  # which needs the kind of damage and its day


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        running_service(tmp_path_factory.mktemp("offline")) as base,
        httpx.Client(base_url=base, timeout=30) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def webhook() -> Iterator[EventReceiver]:
    with event_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory, webhook: EventReceiver) -> Iterator[httpx.Client]:
    environment = {
        "FLOW_ENGINE_WEBHOOK_URL": webhook.url,
        "FLOW_ENGINE_WEBHOOK_SECRET": "a secret of the tests",
        "FLOW_ENGINE_OUTBOUND_ALLOW": webhook.url.split("/")[2],
    }
    with (
        scripted_openai(whoever_is_asked) as fake,
        running_service(tmp_path_factory.mktemp("model"), **model_settings(fake, **environment)) as base,
        httpx.Client(base_url=base, timeout=30) as client,
    ):
        yield client


class TestByRulesAlone:
    """The embedded default, offline: no model, no Redis, no MongoDB (F38)."""

    def test_an_italian_books_a_visit(self, offline: httpx.Client) -> None:  # F37, F38
        talk = Talk(offline, "health-booking-v1", "rules-it")
        books_a_visit(talk)
        assert talk.mined() == ITALIAN_VALUES

    def test_an_american_orders_coffee(self, offline: httpx.Client) -> None:  # F37, F38
        talk = Talk(offline, "order-v1", "rules-en")
        orders_coffee(talk)
        assert talk.mined() == ENGLISH_VALUES

    def test_a_spaniard_reports_a_claim_and_calls_again(self, offline: httpx.Client) -> None:  # F30, F38
        talk = Talk(offline, "claim-v1", "rules-es")
        reports_a_claim(talk)
        assert talk.mined() == SPANISH_VALUES
        assert talk.ended()["status"] == "between_contacts"
        talk.contact = "contact-2"
        talk.started(channel="mail")
        assert talk.mined() == SPANISH_VALUES
        # Without a model the summary is made of what the user said.
        assert SPANISH[-1][1] in talk.prompt()["prompt"]

    def test_a_value_that_was_said_is_in_the_next_prompt(self, offline: httpx.Client) -> None:  # F31, F37
        talk = Talk(offline, "health-booking-v1", "rules-prompt")
        talk.started(tenant=ROME)
        talk.bot(ITALIAN[2][0])
        talk.user(ITALIAN[2][1])
        prompt = talk.read()
        assert "Centro" in prompt["parts"]["volatile"]

    def test_a_correction_replaces_what_was_said_before(self, offline: httpx.Client) -> None:  # F18
        talk = Talk(offline, "health-booking-v1", "rules-correction")
        talk.started(tenant=ROME)
        talk.exchanged("In quale sede preferisce venire?", "Alla sede Centro.")
        talk.exchanged("Va bene la sede Centro?", "No, anzi, meglio il Lido.")
        assert talk.mined()["sede"] == "Lido"


@dataclass(frozen=True)
class Reader:
    """A model that knows some sentences: `clues` and `points` are by a part of one."""

    clues: Mapping[str, tuple[str, str]]
    points: Mapping[str, str]
    reason: str
    result: str
    summary: str

    def __call__(self, received: Received) -> WireStep:
        asked, said = answer_properties(received), dialogue_of(received)
        if "values" in asked:
            values = {
                name: value
                for clue, (name, value) in self.clues.items()
                if clue in said and name in asked["values"]["properties"]
            }
            reached = [
                {"id": point, "reason": "scripted"} for clue, point in self.points.items() if clue in said
            ]
            return Answers({"values": values, "checkpoints": reached})
        if "why" in asked:
            return Answers({"reasonOfContact": self.reason, "result": self.result, "why": "scripted"})
        return Says(self.summary)


@dataclass(frozen=True)
class Story:
    version: str
    reader: Reader
    values: Mapping[str, Any]


ITALIAN_STORY = Story(
    "health-booking-v1",
    Reader(
        clues={"Maria Teresa Greco": ("nomePaziente", "Maria Teresa Greco")},
        points={"Sede Centro": "prestazione-individuata", "visita per mia madre": "prestazione-individuata"},
        reason="Prenotazione",
        result="Appuntamento fissato",
        summary="Ha prenotato una visita per la madre.",
    ),
    {**ITALIAN_VALUES, "nomePaziente": "Maria Teresa Greco"},
)
ENGLISH_STORY = Story(
    "order-v1",
    Reader(
        clues={"12 Elm Street": ("deliveryAddress", "12 Elm Street, Springfield, 62704")},
        points={"500 gram bags": "order-read-back"},
        reason="New order",
        result="Order paid",
        summary="Ordered two bags of coffee.",
    ),
    {**ENGLISH_VALUES, "deliveryAddress": "12 Elm Street, Springfield, 62704"},
)
SPANISH_STORY = Story(
    "claim-v1",
    Reader(
        clues={"Reventó una tubería": ("relato", "Reventó una tubería de la cocina.")},
        points={"no hay heridos": "heridos-preguntado"},
        reason="Siniestro nuevo",
        result="Sin resolver",
        summary="Declaró daños por agua y propuso el martes para la visita del perito.",
    ),
    {**SPANISH_VALUES, "relato": "Reventó una tubería de la cocina."},
)
STORIES = (ITALIAN_STORY, ENGLISH_STORY, SPANISH_STORY)


def whoever_is_asked(received: Received) -> WireStep:
    """The reader of the sample whose sentences the dialogue holds."""
    said = dialogue_of(received)
    dialogues = (ITALIAN, ENGLISH, SPANISH)
    told = next(i for i, lines in enumerate(dialogues) if any(reply in said for _, reply in lines))
    return STORIES[told].reader(received)


def told_of(events: Any, conversation: str) -> dict[str, Any]:
    """Checkpoints and conclusions of one conversation, by kind: names in the order of their events."""
    told: dict[str, Any] = {"checkpoint": [], "reason_of_contact": [], "result": []}
    for event in events:
        if event["type"] == "checkpoint" and event["data"]["conversationId"] == conversation:
            told["checkpoint"].append(event["data"]["checkpointId"])
        elif event.get("conversationId") == conversation and isinstance(event["body"], dict):
            told.get(event["body"]["subtype"], []).append(event["body"].get("name"))
    return told


class TestWithAModel:
    """The same service with a model: rules still go first, the model reads the rest (F37, F39)."""

    def test_a_booking_is_read_and_classified(self, modelled: httpx.Client, webhook: EventReceiver) -> None:
        talk = Talk(modelled, ITALIAN_STORY.version, "model-it")  # F37, F39
        books_a_visit(talk)
        assert talk.mined() == ITALIAN_STORY.values
        self._concluded(talk, webhook, ITALIAN_STORY, ["prestazione-individuata"])

    def test_an_order_is_read_and_classified(self, modelled: httpx.Client, webhook: EventReceiver) -> None:
        talk = Talk(modelled, ENGLISH_STORY.version, "model-en")  # F37, F39
        orders_coffee(talk)
        assert talk.mined() == ENGLISH_STORY.values
        self._concluded(talk, webhook, ENGLISH_STORY, ["order-read-back"])

    def test_a_claims_next_contact_starts_with_the_models_summary(
        self, modelled: httpx.Client, webhook: EventReceiver
    ) -> None:
        talk = Talk(modelled, SPANISH_STORY.version, "model-es")  # F30, F37, F39
        reports_a_claim(talk)
        assert talk.mined() == SPANISH_STORY.values
        self._concluded(talk, webhook, SPANISH_STORY, ["heridos-preguntado"])
        talk.contact = "contact-2"
        prompt = talk.started(channel="mail")["prompt"]
        assert SPANISH_STORY.reader.summary in prompt
        assert SPANISH[-1][1] not in prompt  # the summary by rules has made room for the model's

    def _concluded(self, talk: Talk, webhook: EventReceiver, story: Story, points: list[str]) -> None:
        talk.ended()
        wanted = {
            "checkpoint": points,
            "reason_of_contact": [story.reader.reason],
            "result": [story.reader.result],
        }
        webhook.until(lambda events: told_of(events, talk.conversation) == wanted)
