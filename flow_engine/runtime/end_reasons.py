"""Who ended a contact, as far as the reason that its agent gave says so (F40).

The reason is free text. Words are read without case, `_`, `-` and other signs part them, and so does a
capital inside a word: `user_hangup`, `hangup:user` and `userHangup` are the same. It names a party if all
its words that name one name the same, and every other word is about ending or carries nothing:

    user    user, caller, customer, client, patient, guest, visitor
    bot     bot, assistant, ai
    agent   agent, operator, human

`user_timeout` names nobody: that the user was silent does not say who ended it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

Party = Literal["user", "bot", "agent"]

_WORDS: tuple[tuple[Party, tuple[str, ...]], ...] = (
    ("user", ("user", "caller", "customer", "client", "patient", "guest", "visitor")),
    ("bot", ("bot", "assistant", "ai")),
    ("agent", ("agent", "operator", "human")),
)
_PARTIES: Mapping[str, Party] = {word: party for party, words in _WORDS for word in words}
_ENDING = frozenset(
    {"hangup", "hang", "hung", "up", "off", "end", "ends", "ended", "close", "closes", "closed", "finished"}
    | {
        "leave",
        "leaves",
        "left",
        "gone",
        "disconnect",
        "disconnects",
        "disconnected",
        "quit",
        "bye",
        "goodbye",
    }
)
_EMPTY = frozenset(("by", "the", "has", "have", "was", "call", "contact", "chat", "conversation"))
_WORD = re.compile(r"[^\W\d_]+")
_INNER_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def ended_by(reason: str | None) -> Party | None:
    words = [word.lower() for word in _WORD.findall(_INNER_CAPITAL.sub(" ", reason or ""))]
    parties: set[Party] = {_PARTIES[word] for word in words if word in _PARTIES}
    others = (word for word in words if word not in _PARTIES)
    if len(parties) == 1 and all(word in _ENDING or word in _EMPTY for word in others):
        return parties.pop()
    return None
