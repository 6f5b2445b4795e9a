"""How often the chat's router finds the agent that is meant: `python -m benchmarks.chat_router`.

The table (`chat_router.json`) has agents with their examples, and utterances by language that are none of
these examples, some of them for nobody. No model is asked. Utterances that nothing was tuned on
(`chat_router_apart.json`) are printed apart and have no goal.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from channels.chat.decisions import Decision, Orchestrator
from channels.chat.inheritance import effective
from channels.chat.router import IntentRouter
from channels.chat.rows import SMALLTALK, StoredRow, whole
from channels.chat.settings import ChatSettings
from channels.chat.table import BOOTSTRAP

TABLE = Path(__file__).parent / "chat_router.json"
APART = Path(__file__).parent / "chat_router_apart.json"
TOP_1_GOAL = 0.85
TOP_3_GOAL = 0.97


class Case(BaseModel):
    """`agent` is None for an utterance that no agent is for."""

    model_config = ConfigDict(frozen=True)

    language: str
    agent: str | None
    text: str


class RouterTable(BaseModel):
    model_config = ConfigDict(frozen=True)

    agents: tuple[dict[str, Any], ...]
    utterances: tuple[Case, ...]

    def router(self) -> IntentRouter:
        rows = [*self.agents, *(row for row in BOOTSTRAP if row["name"] == SMALLTALK)]
        table = {str(row["name"]): StoredRow(1, whole(row)) for row in rows}
        return IntentRouter(effective(name, table) for name in table)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one language. Shares of the utterances that are for an agent; `refused` of those for nobody."""

    language: str
    utterances: int
    top_1: float
    top_3: float
    accepted_wrongly: float
    refused: float


def read_table(path: Path = TABLE) -> RouterTable:
    return RouterTable.model_validate(orjson.loads(path.read_bytes()))


def measured(table: RouterTable, router: IntentRouter) -> list[Figures]:
    languages = sorted({case.language for case in table.utterances})
    return [_figures(language, table, router) for language in languages]


def decisions(table: RouterTable, router: IntentRouter) -> list[Decision]:
    """What the scores alone decide, with the default thresholds."""
    orchestrator = Orchestrator(ChatSettings(), None)
    return [orchestrator.by_scores(router.candidates(case.text, 5)) for case in table.utterances]


def _figures(language: str, table: RouterTable, router: IntentRouter) -> Figures:
    cases = [case for case in table.utterances if case.language == language]
    meant = [case for case in cases if case.agent is not None]
    best = [[each.agent for each in router.candidates(case.text, 3) if each.score > 0] for case in meant]
    decided = dict(zip(table.utterances, decisions(table, router), strict=True))
    wrong = [case for case in meant if decided[case].action == "accept" and decided[case].agent != case.agent]
    nobodys = [case for case in cases if case.agent is None]
    return Figures(
        language,
        len(cases),
        sum(case.agent in names[:1] for case, names in zip(meant, best, strict=True)) / len(meant),
        sum(case.agent in names for case, names in zip(meant, best, strict=True)) / len(meant),
        len(wrong) / len(meant),
        sum(decided[case].action == "refuse" for case in nobodys) / len(nobodys),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat_router", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    table = read_table()
    router = table.router()
    figures = measured(table, router)
    began = time.perf_counter()
    first = [decision.reply() for decision in decisions(table, router)]
    ms = (time.perf_counter() - began) * 1000 / len(first)
    differing = sum(
        one != other.reply() for one, other in zip(first, decisions(table, table.router()), strict=True)
    )
    held_out = table.model_copy(
        update={"utterances": tuple(Case(**case) for case in orjson.loads(APART.read_bytes()))}
    )
    apart = measured(held_out, router)
    if options.json:
        rows, others = (
            [{name: getattr(each, name) for name in Figures.__slots__} for each in some]
            for some in (figures, apart)
        )
        found = {"languages": rows, "apart": others, "ms": ms, "differing": differing}
        print(orjson.dumps(found).decode())
    else:
        print(f"{'language':<10}{'cases':>6}{'top-1':>8}{'top-3':>8}{'accepted wrongly':>18}{'refused':>9}")
        for each in (*figures, *apart):
            label = each.language if each in figures else f"{each.language} apart"
            print(
                f"{label:<10}{each.utterances:>6}{each.top_1:>8.3f}{each.top_3:>8.3f}"
                f"{each.accepted_wrongly:>18.3f}{each.refused:>9.3f}"
            )
        print(
            f"goals: top-1 {TOP_1_GOAL}, top-3 {TOP_3_GOAL}; {ms:.2f} ms a decision; "
            f"decisions that differ between two runs: {differing}"
        )
    good = all(each.top_1 >= TOP_1_GOAL and each.top_3 >= TOP_3_GOAL for each in figures) and not differing
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
