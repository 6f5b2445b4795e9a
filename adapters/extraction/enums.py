"""Which members of an enum that were named are meant as a value.

1. How members are found is in `members`.
2. A member is a value when its variable was asked for, when words of the variable stand beside it, when it is
   all that its clause says, or in a turn to which nothing in particular was asked, as something wished for.
3. It is none when it is negated, asked about ("do you take cards?"), or part of another thing.
4. What two variables could take is the asked one's, else no one's.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from adapters.extraction.context import MOST_WEIGHED, Found, Mention, Turn
from adapters.extraction.members import is_brief, members
from adapters.extraction.questions import Profile, is_content, shares, stems
from adapters.extraction.vocabulary import Vocabulary, alternation, anywhere, few, right_after, right_before
from flow_engine.values import JsonValue


@cache
def _denial(vocabulary: Vocabulary) -> re.Pattern[str]:
    """ "The suite no 12" is a number's."""
    return re.compile(rf" (?:\w+ )?{alternation(vocabulary.turns.denials_behind)}(?! [0-9])")


@cache
def _known(vocabulary: Vocabulary) -> re.Pattern[str]:
    """What makes the next word, or the one behind it, a thing that is known."""
    return re.compile(rf"{alternation(vocabulary.words.definite)} ?(?:\w+ )?$")


_REACH = 40
_NEGATION_REACH = 4
"""Words between a negation and what it denies, none of which says anything: "I don't want the …"."""

_WORD = re.compile(r"[^\W\d_]+(?:'t(?!\w))?")
_CLAUSE_SIGNS = ",.;:?!"
_CLAUSE = re.compile(f"[{_CLAUSE_SIGNS}]")


def enums(turn: Turn, found_numbers: Found) -> Mapping[str, JsonValue]:
    """Values by variable id. None for members that are negated, asked about or claimed by two variables."""
    named = {each: members(turn.text, each.spec.enum_values, turn.tables) for each in turn.of_type("enum")}
    numbers: Sequence[Mention] = found_numbers() if any(each.numbers for each in named) else ()
    if not numbers and not any(named.values()):
        return {}
    if sum(map(len, named.values())) > MOST_WEIGHED:
        named = {each: mentions for each, mentions in named.items() if turn.is_asked(each)}
    answers = turn.tables.answers
    idioms = [m.span() for m in few(anywhere((*answers.greetings, *answers.unsure)).finditer(turn.text))]
    begins = {mention.start for mentions in named.values() for mention in mentions}
    fitting = {
        each: _meant_for(turn, each, numbers, _outside(idioms, mentions), begins)
        for each, mentions in named.items()
    }
    spots = {each: {(m.start, m.end) for m in mentions} for each, mentions in fitting.items()}
    takers = Counter(spot for own in spots.values() for spot in own)
    values: dict[str, JsonValue] = {}
    for each, mentions in fitting.items():
        own = spots[each]
        others = [spot for spot, number in takers.items() if number > (spot in own)]
        if turn.is_asked(each) or not any(_meet(mine, other) for mine in own for other in others):
            values |= turn.one_value(each, mentions)
    return values


def _meet(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] < second[1] and second[0] < first[1]


def is_rather_anothers(turn: Turn, profile: Profile, number: Mention) -> bool:
    """ "The 500 gram bags": a number that is a member of an enum belongs to the enum or to the variable that
    counts, whichever has more of the words behind it, then to the one that was asked for, else to neither."""
    rivals = "enum" if profile.spec.type == "number" else "number"
    return any(
        turn.takes(each, number) and turn.nearness(each, number) >= turn.nearness(profile, number)
        for each in turn.of_type(rivals)
        if rivals == "number" or number.value in each.spec.enum_values
    )


def _outside(idioms: Sequence[tuple[int, int]], named: Sequence[Mention]) -> Sequence[Mention]:
    """A member within an idiom is a word of that: "let me check", "good evening"."""
    return [
        m
        for m in named
        if not any(
            start <= m.start and m.end <= end and m.end - m.start < end - start for start, end in idioms
        )
    ]


def _meant_for(
    turn: Turn,
    profile: Profile,
    numbers: Sequence[Mention],
    named: Sequence[Mention],
    begins: Collection[int],
) -> Sequence[Mention]:
    """Of the members that are `named`. `begins`: where a member of any enum begins."""
    counted = [
        m
        for m in numbers
        if m.value in profile.numbers and turn.takes(profile, m) and not is_rather_anothers(turn, profile, m)
    ]
    if turn.names_two(sorted((*named, *counted), key=lambda mention: mention.start)):
        return []
    named = [m for m in named if not (m.vague and _is_a_word_of_the_name(turn, profile, m))]
    kept = [
        m for m in named if _is_meant(turn, profile, m, begins) and not _is_denied(turn, profile, m, named)
    ]
    # "Una visita di controllo" is a "controllo", though "visita" is a word of "prima visita".
    kept = [m for m in kept if not m.vague] or kept
    mentions = sorted((*kept, *counted), key=lambda mention: mention.start)
    return turn.own(profile, [m for m in mentions if not turn.declines(m)], strict=False)


def _is_a_word_of_the_name(turn: Turn, profile: Profile, mention: Mention) -> bool:
    """ "A visit" says of no kind of visit which it is, though only the "first visit" has the word."""
    words = stems(turn.text[mention.start : mention.end])
    return bool(words) and words <= profile.name


def _is_meant(turn: Turn, profile: Profile, mention: Mention, begins: Collection[int]) -> bool:
    """Rule 2, and of rule 3 that it is no part of another thing."""
    asked = turn.is_asked(profile)
    if _is_past(turn, mention):
        return False
    if _is_all_that_is_said(turn, profile, mention):
        # A part of a member answers a question that by its words is for no variable.
        asked_apart = turn.asked is not None and not turn.asked_ids
        return asked or not mention.vague or (asked_apart and not is_brief(mention.value))
    if _is_told_of(turn, profile, mention):
        return False
    behind = turn.words_behind(mention)
    if asked:
        heads = not mention.vague or not any(map(is_content, behind[:1]))
        return heads and not _is_of_a_story(turn, mention)
    if mention.vague:
        return False
    if shares((*behind, *turn.words_ahead(mention)), profile):
        return True
    if _heads_a_short_answer(turn, mention, behind, begins):
        return not _is_of_a_story(turn, mention)
    return turn.is_open and not _is_part_of_another(turn, mention, behind, begins) and _is_new(turn, mention)


def _is_past(turn: Turn, mention: Mention) -> bool:
    """ "Last time by card", "it was declined yesterday"."""
    past = tuple(name for name, count in turn.tables.dates.days.items() if count < 0)
    return turn.is_former(mention) or anywhere(past).search(turn.text, *turn.clause(mention)) is not None


def _is_told_of(turn: Turn, profile: Profile, mention: Mention) -> bool:
    """ "The suite is too expensive", "if it were cheaper, the suite"."""
    if right_after(turn.tables.turns.tells).match(turn.text, mention.end):
        return True
    start, _ = turn.clause(mention)
    condition = anywhere(turn.tables.answers.objections).search(turn.text, start, mention.start)
    return condition is not None and _says_more(turn, profile, turn.text[condition.end() : mention.start])


def _is_of_a_story(turn: Turn, mention: Mention) -> bool:
    """ "I lost my card", "the card has expired", of a mention whose clause says more than that it is chosen:
    what is known already is no choice, unless it is by or after a word of choosing: "with my card", "I'd use
    the card that …"."""
    start, _ = turn.clause(mention)
    lead = turn.text[max(start, mention.start - _REACH) : mention.start]
    known = _known(turn.tables).search(lead)
    return known is not None and not right_before(
        (*turn.tables.words.by, *turn.tables.turns.choosing)
    ).search(lead[: known.start()])


def _is_new(turn: Turn, mention: Mention) -> bool:
    """Wished for in its clause, what the clause is about, or brought up as something new ("I
    have a …"): no thing of the user's to which something was done ("they stole my …")."""
    tables, lead = turn.tables, turn.text[turn.clause(mention)[0] : mention.start]
    if right_before(tables.words.indefinite).search(lead) or anywhere(tables.turns.wishes).search(lead):
        return True
    return not any(map(is_content, _WORD.findall(anywhere(tables.answers.leading).sub("", lead))))


def _is_all_that_is_said(turn: Turn, profile: Profile, mention: Mention) -> bool:
    """Whether the rest of its clause only leads up to it ("I'd take the …") or speaks of the variable."""
    start, end = turn.clause(mention)
    rest = f"{turn.text[start : mention.start]} . {turn.text[mention.end : end]}"
    return not _says_more(turn, profile, rest)


def _says_more(turn: Turn, profile: Profile, text: str) -> bool:
    turns = turn.tables.turns
    words = _WORD.findall(anywhere((*turns.choosing, *turns.corrections, *turns.own)).sub(" ", text))
    return any(is_content(word) and not shares([word], profile) for word in words)


def _heads_a_short_answer(
    turn: Turn, mention: Mention, behind: Sequence[str], begins: Collection[int]
) -> bool:
    """ "Cash on delivery", to a question that by its words is for no variable: the rest tells more of it."""
    return (
        turn.asked is not None
        and turn.asked.is_open_form
        and not turn.asked_ids
        and turn.is_short
        and not any(map(is_content, (*turn.words_ahead(mention), *behind[:1])))
        and not _is_part_of_another(turn, mention, behind, begins)
    )


def _is_part_of_another(turn: Turn, mention: Mention, behind: Sequence[str], begins: Collection[int]) -> bool:
    """ "A small problem", "the card of …": in front of a noun it is said of that."""
    if not behind:
        return False
    text = turn.text
    lead = text[max(0, mention.start - _REACH) : mention.start]
    if anywhere(turn.tables.turns.parts).match(text[mention.end :].lstrip(" ")):
        return True
    indefinite = right_before(turn.tables.words.articles).search(lead) is not None
    if not is_content(behind[0]) or not (turn.tables.code == "en" or indefinite):
        return False
    # "A saloon, electric": what stands behind may be the member of another enum.
    return text.find(behind[0], mention.end) not in begins


def _is_denied(turn: Turn, profile: Profile, mention: Mention, named: Sequence[Mention]) -> bool:
    """Asked about, or negated: by a word in front with nothing between that says anything, or by one behind
    that is not about the next member."""
    start, end = _clause_around(turn, mention)
    ahead, behind = turn.text[start : mention.start].strip(), turn.text[mention.end : end]
    turns = turn.tables.turns
    is_question = turn.text[end : end + 1] == "?"
    if anywhere(turns.inquiries).match(ahead) or (
        is_question and anywhere(turn.tables.answers.asking).match(ahead)
    ):
        return True
    if is_question:
        # A wish is nothing but the member ("by card, then?"), or where nothing in particular was asked,
        # "could I have the …?".
        is_request = anywhere(turns.requests).match(ahead) is not None
        if not (turn.is_open and anywhere(turns.wishes).search(ahead)) and (
            is_request or not _is_all_that_is_said(turn, profile, mention)
        ):
            return True
    corrects = anywhere(turns.corrections).search(ahead) or any(
        start <= m.start < mention.start for m in named
    )
    if _negation_ahead(ahead, turn.tables, corrects=bool(corrects)):
        return True
    others = any(mention.end <= other.start < end for other in named)
    return not others and _negation_behind(turn, behind, is_question=is_question)


def _negation_behind(turn: Turn, behind: str, *, is_question: bool) -> bool:
    """In a turn of its own, only one that ends what is said: "a double non-smoking" denies what follows, and
    "cash, no?" asks for a yes."""
    denial = _denial(turn.tables).match(behind)
    tables = turn.tables.turns
    if denial is None or anywhere((*turn.tables.answers.yes, *tables.conditionals)).fullmatch(
        denial.group().strip()
    ):
        return False  # "cash, why not", "in contanti se non le dispiace"
    if not turn.is_open:
        return True
    closing = anywhere((*tables.choosing, *tables.denied_verbs))
    follows = _WORD.findall(closing.sub(" ", behind[denial.end() :]))
    return not (is_question or any(map(is_content, follows)))


def _clause_around(turn: Turn, mention: Mention) -> tuple[int, int]:
    """Up to the next comma or word of contrast; what stands before one of those may still deny it."""
    text = turn.text
    start = 1 + max(text.rfind(sign, 0, mention.start) for sign in _CLAUSE_SIGNS)
    after = _CLAUSE.search(text, mention.end)
    end = after.start() if after else len(text)
    contrast = anywhere(turn.tables.turns.contrasts).search(text, mention.end, end)
    return start, contrast.start() if contrast else end


def _negation_ahead(ahead: str, vocabulary: Vocabulary, *, corrects: bool) -> bool:
    """With `corrects`, a plain "no" right in front takes back what was said before ("card, no, cash")."""
    turns = vocabulary.turns
    for place, word in enumerate(reversed(_WORD.findall(ahead)[-_NEGATION_REACH:])):
        if place == 0 and anywhere(turns.denials_beside).fullmatch(word):
            return not corrects
        if anywhere(turns.denials).fullmatch(word):
            return True
        if is_content(word) and not anywhere(turns.denied_verbs).fullmatch(word):
            return False
    return False
