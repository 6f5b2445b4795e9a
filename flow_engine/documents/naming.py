"""How names given by people are compared (F4)."""

from __future__ import annotations

import unicodedata

# Canonical combining classes from here on are the accents written above, below or through a letter.
# Lower classes (virama, nukta, the Japanese voicing marks) make another letter, not an accented one.
_FIRST_ACCENT_CLASS = 200


def normalise_name(name: str) -> str:
    """Case folded, accents removed, every run of white space one `_`, none at the ends.

    Idempotent: a normalised name normalises to itself.
    """
    folded = _without_accents(_without_accents(name).casefold())
    return unicodedata.normalize("NFC", "_".join(folded.split()))


def _without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if unicodedata.combining(char) < _FIRST_ACCENT_CLASS)
