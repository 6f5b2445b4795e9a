"""What a reasoning model thinks never leaves the server (C3): `<think>…</think>` is taken out of a text that
comes in pieces, wherever the pieces are cut."""

OPEN = "<think>"
CLOSE = "</think>"


class ThoughtFilter:
    """For one answer. Characters outside of thoughts come out as soon as they cannot be a part of a tag."""

    def __init__(self) -> None:
        self._kept = ""
        self._thinks = False
        self._begun = False

    def feed(self, piece: str) -> str:
        """What may be shown of everything so far and was not shown before."""
        if not self._kept and not self._thinks and "<" not in piece:
            return self._without_lead(piece)
        self._kept += piece
        shown: list[str] = []
        while True:
            tag = CLOSE if self._thinks else OPEN
            before, found, after = self._kept.partition(tag)
            if found:
                shown.append("" if self._thinks else before)
                self._kept, self._thinks = after, not self._thinks
                continue
            # As much of the end is held back as may be the beginning of the tag.
            lengths = range(min(len(tag) - 1, len(self._kept)), 0, -1)
            held = next((length for length in lengths if tag.startswith(self._kept[-length:])), 0)
            out, self._kept = self._kept[: len(self._kept) - held], self._kept[len(self._kept) - held :]
            shown.append("" if self._thinks else out)
            return self._without_lead("".join(shown))

    def finish(self) -> str:
        """The rest: an unfinished tag is text, an unfinished thought is not."""
        rest, self._kept = "" if self._thinks else self._kept, ""
        return self._without_lead(rest)

    def _without_lead(self, text: str) -> str:
        """Blank lines between a thought and the answer belong to neither."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text


def without_thoughts(text: str) -> str:
    thoughts = ThoughtFilter()
    return thoughts.feed(text) + thoughts.finish()
