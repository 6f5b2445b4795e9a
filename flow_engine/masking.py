"""The masks of sensitive values: the only place that decides what is shown of one, and where a text has one.

1. A value of a sensitive variable is shown as a mask, which tells its kind and that there is one.
2. A text that quotes such a value shows the mask there: whole words, in any case, digits with any of the
   usual separators. Values of less than `SHORTEST` characters are in many texts by chance, and are left.
3. A card number is a run of 13 to 19 digits with the usual separators whose check digit is right (Luhn, ISO
   7812), whatever it is called.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, TypeAlias, cast

from flow_engine.values import VALUE_KINDS, JsonValue, what_is_told
from flow_engine.variables import VariableSpec
from flow_engine.vocabulary import SensitiveKind

Sensitivity: TypeAlias = "bool | SensitiveKind"

MASKS: Final[Mapping[Sensitivity, str]] = {
    True: "[hidden]",
    "card": "[hidden card]",
    "health": "[hidden health]",
    "identity": "[hidden identity]",
}
"""By what a document says of a variable under `sensitive`."""
SHORTEST: Final = 4
MOST_TEXTS: Final = 200
"""Texts of one value that are looked for, the longest first."""
MOST_AT_ONCE: Final = 64
"""Values that one text is searched for. A text in which more may stand is masked as a whole."""
DEEPEST: Final = 200
"""Levels of JSON that are looked into; what lies deeper is masked as a whole."""
LONGEST_NUMBER: Final = 100
"""Characters of a value that is looked for digit by digit; a longer one is a word like any other. It is also
the longest that gets a pattern: making one takes a thousand times as long as looking for a text."""
PHONE_TAIL: Final = 8
"""Digits by which a phone number is known again, with or without its prefix."""

_SEPARATOR = r"[\s.,/_·\-\u00ad\u200b\u2010-\u2015\u2060]{0,3}"
_BLANKS = r"\s+"
_DIGITS = re.compile(rf"\d(?:{_SEPARATOR}\d)+")
_NUMBER_LIKE = re.compile(rf"\+?\d(?:{_SEPARATOR}\d)*")
_DIGIT_GROUP, _WORD, _SOLID = re.compile(r"\d+"), re.compile(r"\w+"), re.compile(r"\S+")
_SHORTEST_CARD, _LONGEST_CARD = 13, 19


def shown(spec: VariableSpec | None, value: JsonValue) -> JsonValue:
    """A variable's value as everybody may see it: its mask where the variable is sensitive. None stays
    None."""
    return MASKS[spec.sensitive] if spec is not None and spec.sensitive and value is not None else value


class StandIns:
    """What stands in place of sensitive values in one recording, which is stepped again: values that their
    variables take. The same for all values of a variable, unless a user may contradict a tool about it: then
    the same for those that agree, so that it shows which do, and no more."""

    def __init__(self) -> None:
        self._met: dict[str, dict[object, int]] = {}

    def __call__(self, spec: VariableSpec | None, value: JsonValue) -> JsonValue:
        """None stays None. Never raises."""
        masked = shown(spec, value)
        if spec is None or not spec.sensitive or value is None:
            return masked
        number = 0
        if spec.precedence is not None:
            met = self._met.setdefault(spec.id, {})
            number = met.setdefault(what_is_told(value), len(met))
        if spec.type == "enum" and spec.enum_values:
            return [*spec.enum_values][number % len(spec.enum_values)]
        hidden = VALUE_KINDS[spec.type].hidden_as
        if hidden is not None:
            return hidden(number)
        return masked if number == 0 else f"{masked} {number + 1}"


# --- values in texts --------------------------------------------------------------------------


class Secrets:
    """Values that no text may show. `shortest`: characters that one has at least to be looked for.

    However many they are, a text is searched for those alone of which it has the mark: the last digits, or a
    word, the longest, where that is another's mark already the one that marks the fewest.
    """

    def __init__(self, values: Iterable[tuple[VariableSpec, JsonValue]], *, shortest: int = SHORTEST) -> None:
        self._shortest = shortest
        self._masks: dict[str, str] = {}
        self._marked: dict[str, list[str]] = {}
        for spec, value in values:
            self.add(spec, value)

    def add(self, spec: VariableSpec, value: JsonValue) -> None:
        """One more; of a value that is known already the mask stays."""
        number = value.get("number") if spec.type == "phone" and isinstance(value, dict) else value
        texts = sorted(dict.fromkeys(_texts(number)), key=len, reverse=True)
        for text in texts[:MOST_TEXTS]:
            if len(text) >= self._shortest and text not in self._masks:
                self._masks[text] = MASKS[spec.sensitive]
                marks = _marks_of(text)
                mark = max(marks, key=len, default="")
                if mark in self._marked and len(marks) > 1:
                    mark = min(marks, key=lambda each: len(self._marked.get(each, ())))
                self._marked.setdefault(mark, []).append(text)

    def text(self, text: str) -> str:
        """The same with masks in it."""
        if not self._marked:
            return text
        marked = [each for mark in self._marked.keys() & _marks_in(text) for each in self._marked[mark]]
        # A text that is shorter quotes no value but a number, which may be written closer.
        found = [each for each in marked if len(each) <= max(len(text), LONGEST_NUMBER)]
        if not found:
            return text
        if len(found) > MOST_AT_ONCE:
            return MASKS[True]
        plain = " ".join(_folded(text).split())
        found = [each for each in found if _is_number(each) or _folded(each) in plain]
        found.sort(key=lambda each: (-len(each), each))
        long = [each for each in found if len(each) > LONGEST_NUMBER]
        short = tuple(found[len(long) :])
        parts: list[str] = []
        done = 0
        for start, end, value in _quotes_of(long, text) if long else ():
            parts += (self._without(text[done:start], short), self._masks[value])
            done = end
        return "".join((*parts, self._without(text[done:], short)))

    def _without(self, text: str, found: tuple[str, ...]) -> str:
        """The same with masks in place of these values, none of which is long."""
        if not found:
            return text
        return _search(found).sub(lambda hit: self._masks[found[(hit.lastindex or 1) - 1]], text)

    def json(self, value: object) -> object:
        """The same JSON with masks in its texts, and in place of its numbers; names of properties stay."""
        return _masked(value, self.text) if self._marked else value


def _masked(value: object, text: Callable[[str], str], deepest: int = DEEPEST) -> object:
    """The same JSON, with what `text` makes of its texts, and of its numbers as they are written."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        written = repr(value)
        masked = text(written)
        return value if masked == written else masked
    if isinstance(value, Mapping | list | tuple) and not deepest:
        return MASKS[True]
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        return {name: _masked(part, text, deepest - 1) for name, part in members.items()}
    if isinstance(value, list | tuple):
        return [_masked(part, text, deepest - 1) for part in cast("Iterable[object]", value)]
    return value


def _texts(value: JsonValue) -> Iterator[str]:
    """Every text and number in a value, as a text would quote it."""
    waiting: list[JsonValue] = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield " ".join(part.split())
        elif isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
        elif part is not None:
            yield str(part).lower() if isinstance(part, bool) else repr(part)


def _is_number(value: str) -> bool:
    return len(value) <= LONGEST_NUMBER and _NUMBER_LIKE.fullmatch(value) is not None


def _marks_of(value: str) -> list[str]:
    """Of these a text has all that quotes the value; none for a value without letters and digits."""
    if _is_number(value):
        return ["".join(filter(str.isdigit, value))[-PHONE_TAIL:]]
    return _WORD.findall(_folded(value))


def _marks_in(text: str) -> set[str]:
    """All that values have which the text may quote."""
    marks = {"", *_WORD.findall(_folded(text))}
    for run in _NUMBER_LIKE.finditer(text):
        digits = ""
        for group in _DIGIT_GROUP.findall(run.group()):
            digits = (digits + group)[-PHONE_TAIL:]
            marks |= {digits[at:] for at in range(len(digits))}
    return marks


def _folded(text: str) -> str:
    """Alike for all that `re.IGNORECASE` takes for the same, which includes the Turkish letters i."""
    return text.replace("\u0130", "i").replace("\u0131", "i").casefold()


def _quotes_of(values: Iterable[str], text: str) -> Sequence[tuple[int, int, str]]:
    """Where a text quotes which of these values, from left to right; of two that overlap the one that comes
    first in `values`. They have no digits that may be written otherwise."""
    words, places = list[str](), list[int]()
    for word in _SOLID.finditer(text):
        if words:
            places.append(word.start() - 1)
        words.append(_folded(word.group()))
        if len(words[-1]) == len(word.group()):
            places += range(*word.span())
        else:  # some letters are two when they are folded
            for at, letter in enumerate(word.group(), word.start()):
                places += [at] * len(_folded(letter))
    plain = " ".join(words)
    found: list[tuple[int, int, str]] = []
    for value in values:
        wanted, at = _folded(value), -1
        while (at := plain.find(wanted, at + 1)) >= 0:
            start, end = places[at], places[at + len(wanted) - 1] + 1
            within_a_word = _WORD.match(text, end) or (start and _WORD.match(text[start - 1]))
            if not within_a_word and all(end <= other[0] or other[1] <= start for other in found):
                found.append((start, end, value))
                at += len(wanted) - 1
    return sorted(found)


@lru_cache(maxsize=256)
def _search(texts: tuple[str, ...]) -> re.Pattern[str]:
    """A group for each text, in their order."""
    return re.compile("|".join(f"({_quoted(text)})" for text in texts), re.IGNORECASE)


def _quoted(text: str) -> str:
    if _is_number(text):
        digits = [character for character in text if character.isdigit()]
        prefix = ""
        if text.startswith("+") and len(digits) > PHONE_TAIL:
            prefix, digits = rf"\+?(?:\d{_SEPARATOR}){{0,{len(digits)}}}?", digits[-PHONE_TAIL:]
        return rf"(?<!\d){prefix}{_SEPARATOR.join(digits)}(?!\d)"
    words = map(re.escape, text.split(" "))
    return rf"(?<!\w){_BLANKS.join(words)}(?!\w)"


# --- card numbers -----------------------------------------------------------------------------


def without_cards(text: str) -> str:
    """The text with a mask for each card number. Takes linear time, whatever the text."""
    if len(text) < _SHORTEST_CARD:
        return text
    parts: list[str] = []
    done = 0
    for run in _DIGITS.finditer(text):
        for start, end in _cards_in(run.group()):
            parts += (text[done : run.start() + start], MASKS["card"])
            done = run.start() + end
    return "".join((*parts, text[done:])) if parts else text


def cards_masked(value: object) -> object:
    """JSON with a mask for each card number in its texts and in place of its numbers."""
    return _masked(value, without_cards)


def _cards_in(run: str) -> Iterator[tuple[int, int]]:
    """Where card numbers stand in a run of digits and separators, from left to right, the longest at each
    place. One begins and ends where a group of digits does."""
    places = [at for at, character in enumerate(run) if character.isdigit()]
    plain = [int(run[at]) for at in places]
    doubled = [2 * digit - 9 * (digit > 4) for digit in plain]
    # The sum of digits of which every other one counts double, by the place that the first such has.
    sums = [
        [0, *accumulate(plain[at] if at % 2 == parity else doubled[at] for at in range(len(plain)))]
        for parity in (0, 1)
    ]
    begins = [number == 0 or places[number - 1] + 1 < at for number, at in enumerate(places)]
    first = 0
    while first + _SHORTEST_CARD <= len(plain):
        last = _end_of_card(first, begins, sums) if begins[first] else 0
        if last:
            yield places[first], places[last - 1] + 1
        first = last or first + 1


def _end_of_card(first: int, begins: list[bool], sums: list[list[int]]) -> int:
    """The number of the digit behind the longest card number that begins there; 0 for none."""
    count = len(begins)
    for last in range(min(first + _LONGEST_CARD, count), first + _SHORTEST_CARD - 1, -1):
        ends = last == count or begins[last]
        total = sums[(last - 1) % 2]
        if ends and (total[last] - total[first]) % 10 == 0:
            return last
    return 0
