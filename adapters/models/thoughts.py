"""What a reasoning model thinks never leaves the server (C3): `<think>…</think>` is taken out of a text that
comes in pieces, wherever the pieces are cut.

Where the opening tag stands in a model's prompt, its text begins in a thought and has the closing tag alone.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from flow_engine.ports.models import LanguageModel, LLMAnswer, LLMRequest, ModelEvent, TextDelta

OPEN = "<think>"
CLOSE = "</think>"
_TAGS = re.compile(f"({OPEN}|{CLOSE})")


class ThoughtFilter:
    """For one answer. Characters outside of thoughts come out as soon as they cannot be a part of a tag;
    where it `holds`, not before the first tag, since a closing one makes a thought of all before it."""

    def __init__(self, *, holds: bool = False) -> None:
        self._holds = holds
        self._held: list[str] = []
        self._kept = ""
        self._thinks = False
        self._begun = False
        self.is_unopened = False

    def feed(self, piece: str) -> str:
        """What may be shown of everything so far and was not shown before."""
        *whole, rest = _TAGS.split(self._kept + piece)
        shown: list[str] = []
        for text, tag in zip(whole[::2], whole[1::2], strict=True):
            shown.append(self._let_out(text))
            if tag == OPEN:
                shown += self._held
            elif not self._thinks:
                self.is_unopened = True
            self._holds, self._held, self._thinks = False, [], tag == OPEN
        # The end is held back where it may be the beginning of a tag.
        start = rest.rfind("<")
        is_begun = start >= 0 and (OPEN.startswith(rest[start:]) or CLOSE.startswith(rest[start:]))
        end = start if is_begun else len(rest)
        self._kept = rest[end:]
        return self._without_lead("".join((*shown, self._let_out(rest[:end]))))

    def finish(self) -> str:
        """The rest: an unfinished tag is text, an unfinished thought is not."""
        return self._without_lead("" if self._thinks else "".join((*self._held, self._kept)))

    def _let_out(self, text: str) -> str:
        if self._holds:
            self._held.append(text)
        return "" if self._holds or self._thinks else text

    def _without_lead(self, text: str) -> str:
        """Blank lines between a thought and the answer belong to neither."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text


def without_thoughts(text: str) -> str:
    thoughts = ThoughtFilter(holds=True)
    return thoughts.feed(text) + thoughts.finish()


class WithoutThoughts:
    """Implements `LanguageModel`. The text of a model whose last answer closed a thought that it had not
    opened is held until it has closed this one's."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._begin_in_thought: set[str | None] = set()

    async def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
        holds = request.model in self._begin_in_thought
        shown, whole = ThoughtFilter(holds=holds), ThoughtFilter(holds=True)
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    if text := shown.feed(event.text):
                        yield TextDelta(text)
                elif isinstance(event, LLMAnswer):
                    text, rest = whole.feed(event.text) + whole.finish(), shown.finish()
                    if holds and event.finish_reason == "length" and CLOSE not in event.text:
                        text = rest = ""
                    if rest:
                        yield TextDelta(rest)
                    learn = (
                        self._begin_in_thought.add if whole.is_unopened else self._begin_in_thought.discard
                    )
                    learn(request.model)
                    yield replace(event, message=replace(event.message, content=text))
                else:
                    yield event
