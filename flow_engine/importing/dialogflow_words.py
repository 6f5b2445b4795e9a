"""What a Dialogflow CX agent writes: texts with parameters, conditions and events, in the engine's words."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from flow_engine.importing import drafts, elements
from flow_engine.importing.dialogflow_package import Parameter

_EVENTS: Final[Mapping[str, str]] = {
    "sys.no-match": "what the user says fits nothing here",
    "sys.no-input": "the user says nothing",
    "sys.invalid-parameter": "what the user gives is not valid",
    "webhook.error": "a tool fails",
    "flow.failed.human-escalation": "a person is needed",
    "flow.failed": "what was to be done has failed",
    "flow.cancelled": "what was to be done is cancelled",
}
"""Events in words, by what their names begin with."""
_COMPLETE: Final = re.compile(r"""\$page\.params\.status\s*=\s*(["']?)FINAL\1""")
_FORM_IS_COMPLETE: Final = ("$page.params", "status", "=", "FINAL")
ENDINGS: Final[Mapping[str, str]] = {
    "END_FLOW_WITH_FAILURE": "flow.failed",
    "END_FLOW_WITH_CANCELLATION": "flow.cancelled",
    "END_FLOW_WITH_HUMAN_ESCALATION": "flow.failed.human-escalation",
}
"""The event that an end of a flow is, by its symbol."""
_PARAMETER: Final = re.compile(
    r"\$(\{)?(?:(?:session|page|intent)\.params|flow)\.([\w-]+)(?:\.(?:original|resolved)\b)?(?(1)\})"
)
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<scope>\$(?:(?:session|page|intent)\.params|flow))\.(?P<name>[\w-]+)(?:\.(?:original|resolved)\b)?\s*
        (?P<sign>!=|<=|>=|=|<|>)\s*
        (?P<value>"[^"]*"|'[^']*'|[\w.+-]+)
    |(?P<word>(?:AND|OR|NOT)\b|[()]))""",
    re.VERBOSE,
)


def parameters_in(text: str) -> frozenset[str]:
    """The names of all parameters that a text or a condition reads; a form's own status is none."""
    return frozenset(match[2] for match in _PARAMETER.finditer(text) if match[0] != "$page.params.status")


def plain(original: str) -> str:
    """With parameters by their names alone: what finds a variable, or says when, is no template."""
    return _PARAMETER.sub(r"\2", _COMPLETE.sub("all that is asked for is known", original))


def event_in_words(event: str) -> str:
    for beginning, words in _EVENTS.items():
        if event.startswith(beginning):
            times = event.rpartition("-")[2]
            return f"{words} ({times} times)" if times.isdigit() else words
    return f"the event {event!r} happens" if event else ""


def text_of(draft: drafts.Draft, original: str) -> str:
    """With placeholders as the draft knows them; what is settled stands there by its name."""

    def written(match: re.Match[str]) -> str:
        return f"[{match[2]}]" if match[2] in draft.settled else f"{{{{{match[2]}}}}}"

    return _PARAMETER.sub(written, original)


def condition_of(draft: drafts.Draft, text: str, form: Iterable[Parameter]) -> str:
    """A CX condition in the engine's language; `""` where it says what that language has not, or compares
    what has another type."""
    at, written = 0, list[str]()
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            return ""
        at = match.end()
        written.append(match["word"].lower() if match["word"] else _comparison(draft, match, form))
    condition = " ".join(written).replace("( ", "(").replace(" )", ")")
    return "" if draft.fault_in(condition) else condition


def _comparison(draft: drafts.Draft, match: re.Match[str], form: Iterable[Parameter]) -> str:
    name, sign, value = match["name"], match["sign"], match["value"]
    if (match["scope"], name, sign, value.strip("\"'")) == _FORM_IS_COMPLETE:
        required = [f"has({draft.value(each.display_name)})" for each in form if each.required]
        return f"({elements.joined(required, 'and')})" if required else "(true == true)"
    path = draft.value(name)
    if value.casefold() == "null":
        return f"not has({path})" if sign == "=" else f"has({path})"
    literal = elements.condition_literal(value, draft.kind_of(name))
    return f"{path} {'==' if sign == '=' else sign} {literal}"
