"""The summary of an ended contact by rules: what can be said at once, and without a model (F30)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flow_engine.ports.dialogue import SummaryRequest
from flow_engine.ports.system_prompts import SystemPrompts

LAST_WORDS = 3
LONGEST_WORDS = 200
LONGEST_SUMMARY = 1_500


class RuleSummariser:
    """Implements `Summariser` from the tasks passed, the variables known and the user's last words."""

    def __init__(self, prompts: SystemPrompts) -> None:
        self._prompts = prompts

    async def summarise(self, request: SummaryRequest) -> str:
        sections = self._prompts.prompt_sections(request.api_version, None, request.language)
        sentences = list(_sentences(request, sections.__getitem__))
        return _cut(" ".join(sentences) or sections["summary_nothing"], LONGEST_SUMMARY)


def _sentences(request: SummaryRequest, piece: Callable[[str], str]) -> Iterator[str]:
    if request.tasks_passed:
        yield piece("summary_tasks").format(tasks=" → ".join(request.tasks_passed))
    said = [turn.body for turn in request.turns if turn.src == "user" and turn.type == "message"]
    if said:
        quoted = " / ".join(_cut(" ".join(body.split()), LONGEST_WORDS) for body in said[-LAST_WORDS:])
        yield piece("summary_said").format(text=quoted)
    if request.variables:
        known = ", ".join(f"{name} = {_cut(value, LONGEST_WORDS)}" for name, value in request.variables)
        yield piece("summary_known").format(variables=known)
    if request.end_reason:
        yield piece("summary_end").format(reason=_cut(request.end_reason, LONGEST_WORDS))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
