"""Conversations of the samples as scripts: what agents and tools ask for, at random, with faults.

The same numbers give the same scripts. They follow a document as it stands: its tasks, connections, required
variables and types, so that they go on to be good when a sample changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from flows.samples import SampleFlow, load_samples

Fault = Literal["repeated", "cut_within", "cut_after"]
"""What happens to a request: it is sent twice; its connection is cut in the middle of its body; or when it is
whole, before the reply. A cut one is sent again, under its key."""

STEPS = (6, 13)
SENTENCES = (
    "Buongiorno, vorrei una visita cardiologica il 3 marzo.",
    "Two bags of the Kenyan, 500 grams, please; my number is +44 20 7946 0958.",
    "Se me rompió una tubería ayer, creo que unos 1.200 euros.",
    "Sì.",
    "No, thank you – that's all 🙂",
    "Me llamo Íñigo, mi teléfono es +34 612 345 678.",
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: `op` is its route's name, as in the journal. `after_s` is the time before it, in
    seconds."""

    op: str
    method: str
    path: str
    body: Any
    key: str
    after_s: float
    fault: Fault | None = None

    @property
    def content(self) -> bytes:
        return orjson.dumps(self.body)


@dataclass(frozen=True, slots=True)
class Script:
    """`ends`: the last request ends the contact."""

    conversation_id: str
    flow_id: str
    version_id: str
    asks: tuple[Ask, ...]
    ends: bool


def scripts(number: int, *, seed: int = 1, fault_rate: float = 0.15) -> Iterator[Script]:
    """So many conversations, of each sample in turn."""
    samples = load_samples()
    for index in range(number):
        sample = samples[index % len(samples)]
        yield _Walk(sample, f"talk-{seed}-{index}", random.Random(f"{seed}/{index}"), fault_rate).script()


class _Walk:
    """A way through one document; `task` and `known` are where it should stand, if nothing was refused."""

    def __init__(
        self, sample: SampleFlow, conversation_id: str, chance: random.Random, fault_rate: float
    ) -> None:
        self.sample = sample
        self.document: Mapping[str, Any] = orjson.loads(sample.document)
        self.tasks: Mapping[str, Any] = {task["_id"]: task for task in self.document["tasks"]}
        self.conversation_id = conversation_id
        self.chance = chance
        self.fault_rate = fault_rate
        self.task = str(self.document["firstTask"])
        self.known: set[str] = set()
        self.contact = 0
        self.asks: list[Ask] = []

    def script(self) -> Script:
        self._contact()
        for _ in range(self.chance.randint(*STEPS)):
            self.chance.choices(
                (self._change, self._write, self._say, self._human, self._wrong, self._another_contact),
                (8, 5, 4, 3, 1, 1),
            )[0]()
        ends = self.chance.random() < 0.7
        if ends:
            self._end()
        return Script(
            self.conversation_id, self.sample.flow_id, self.sample.version_id, tuple(self.asks), ends
        )

    def _ask(self, op: str, body: Any, *, fault: bool = True) -> None:
        put = op == "memory"
        named = body if put else {**self._ids(), **body}
        faulty = fault and self.chance.random() < self.fault_rate
        self.asks.append(
            Ask(
                op,
                "PUT" if put else "POST",
                f"/v1/memory/{self.conversation_id}" if put else f"/v1/{op}",
                named,
                key=f"{self.conversation_id}:{len(self.asks)}",
                after_s=self.chance.choice((0.25, 3.0, 20.0, 90.0)),
                fault=self.chance.choice(("repeated", "cut_within", "cut_after")) if faulty else None,
            )
        )

    def _ids(self) -> dict[str, str]:
        return {"conversationId": self.conversation_id, "contactId": self._contact_id}

    @property
    def _contact_id(self) -> str:
        return f"{self.conversation_id}-contact-{self.contact}"

    def _contact(self) -> None:
        facts = {"callerId": f"+39061234{self.chance.randrange(1000):04}", "name": "Ada Ñandú"}
        self._ask(
            "handle-new-contact",
            {
                "conversationalFlowVersionId": self.sample.version_id,
                "channel": self.chance.choice(self.document["channels"]),
                "contact": facts,
                "tenant": {"timezone": "Europe/Rome"},
            },
        )

    def _another_contact(self) -> None:
        if self.document["closureConfig"]["multiContact"]:
            if self.chance.random() < 0.5:
                self._end()
            self.contact += 1
            self._contact()

    def _change(self) -> None:
        known = self.tasks[self.task]["connectedTasks"]
        target = self.chance.choice(known) if known and self.chance.random() < 0.85 else None
        if target is None:
            target = self.chance.choice((*self.tasks, "nowhere"))
            self._ask("change-task", {"task": target, "reason": "perhaps"})
            return
        needed = [p["variableId"] for p in self.tasks[target]["transitionParameters"] if p["required"]]
        missing = [variable for variable in needed if variable not in self.known]
        if missing and self.chance.random() < 0.7:
            self._remember(missing)
            missing = []
        name = self.chance.choice((target, self.tasks[target]["name"]))
        self._ask("change-task", {"task": name, "reason": f"The caller asks for {target}."})
        if not missing:
            self.task = target

    def _write(self) -> None:
        ids = [variable["_id"] for variable in self.document["variables"]]
        self._remember(self.chance.sample(ids, k=self.chance.randint(1, 3)))

    def _remember(self, variables: Sequence[str]) -> None:
        specs = {variable["_id"]: variable for variable in self.document["variables"]}
        self._ask(
            "memory",
            [
                {
                    "varId": variable,
                    "contactId": self._contact_id,
                    "updatedBy": self.chance.choice(("lookup", "form")),
                    **self._value(specs[variable]),
                }
                for variable in variables
            ],
        )
        self.known.update(variables)

    def _value(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        number = self.chance.randrange(1, 900)
        match spec["type"]:
            case "custom":
                described = [{"name": "Id", "value": f"N-{number}"}]
                return {"value": {"id": f"N-{number}", "of": [1.5, None]}, "descriptionForLLM": described}
            case "enum":
                return {"value": self.chance.choice(spec["enumValues"])}
            case "date":
                return {"value": f"2026-03-{1 + number % 28:02}"}
            case "boolean":
                return {"value": number % 2 == 0}
            case "number":
                return {"value": number}
            case "phone":
                return {"value": f"+39 06 1234 {number:04}"}
            case _:
                return {"value": f"valor ñ {number}"}

    def _say(self) -> None:
        self._ask(
            "handle-utterance",
            {
                "messageId": f"m-{len(self.asks)}",
                "ts": "2026-01-15T09:31:00Z",
                "type": "message",
                "src": self.chance.choice(("user", "user", "bot")),
                "body": self.chance.choice(SENTENCES),
            },
        )

    def _human(self) -> None:
        if self.tasks[self.task]["type"] != "AIO" or self.chance.random() < 0.1:
            outcome = self.chance.choice(("connected", "completed", "failed", "taken_over", "released"))
            self._ask("handle-human-task", {"outcome": outcome, "reason": "queue"})

    def _wrong(self) -> None:
        """What no rule takes."""
        if self.chance.random() < 0.5:
            self._ask("change-task", {"task": self.task, "contactId": "somebody-else"}, fault=False)
        else:
            self._ask("memory", [{"varId": "none", "value": 1, "contactId": "x", "updatedBy": "t"}])

    def _end(self) -> None:
        self._ask("handle-end-contact", {"reason": self.chance.choice(("user hung up", "done"))})
