"""For every warning a version that has it, and one that is close to it and sound.

A case changes a fresh sound version. `bad` gives the places of the finding under test; other findings that
come with it are named in `also`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.flow_engine.documents.samples import stt
from tests.flow_engine.linting.versions import (
    BOOKING,
    OPERATOR,
    WELCOME,
    JsonObject,
    human,
    multi,
    required,
    task,
    tool,
)

Change = Callable[[JsonObject], object]


@dataclass(frozen=True)
class Case:
    code: str
    places: tuple[str, ...]
    bad: Change
    good: Change
    also: frozenset[str] = frozenset()


CASES: list[Case] = []


def case(code: str, *places: str, good: Change, also: tuple[str, ...] = ()) -> Callable[[Change], Change]:
    def register(bad: Change) -> Change:
        CASES.append(Case(code, places, bad, good, frozenset(also)))
        return bad

    return register


def nothing(raw: JsonObject) -> None:
    """The sound version itself is the closest."""


def add(raw: JsonObject, *tasks: JsonObject) -> None:
    """New tasks, each entered from `welcome`."""
    raw["tasks"] += tasks
    raw["tasks"][WELCOME]["connectedTasks"] += [each["_id"] for each in tasks]


# --- connections --------------------------------------------------------------------------------


@case("unreachable_task", "/tasks/3", good=lambda raw: add(raw, task("survey", ["welcome"])))
def _(raw: JsonObject) -> None:
    raw["tasks"].append(task("survey", ["welcome"]))


def _closing_task(raw: JsonObject) -> None:
    raw["closureConfig"] = multi()
    for each in raw["tasks"]:
        each["closureConfig"] = multi()
    add(raw, task("goodbye", []))


@case("dead_end", "/tasks/3/connectedTasks", good=_closing_task)
def _(raw: JsonObject) -> None:
    add(raw, task("goodbye", ["goodbye"]))


def _one_big_loop(raw: JsonObject) -> None:
    raw["tasks"][OPERATOR] = task("operator", ["booking"])


@case("loop_without_exit", "/tasks/3/connectedTasks", good=_one_big_loop)
def _(raw: JsonObject) -> None:
    add(raw, task("questions", ["hours"]))
    raw["tasks"].append(task("hours", ["questions"]))


def _many(raw: JsonObject, count: int) -> None:
    add(raw, *(task(f"t{number}", ["welcome"]) for number in range(count - 2)))


@case("too_many_connections", "/tasks/0/connectedTasks", good=lambda raw: _many(raw, 20))
def _(raw: JsonObject) -> None:
    _many(raw, 21)


# --- required variables -------------------------------------------------------------------------


@case(
    "first_task_requires_parameter",
    "/tasks/0/transitionParameters/0",
    good=lambda raw: raw["tasks"][WELCOME].update(
        transitionParameters=[{"variableId": "day", "required": False}]
    ),
)
def _(raw: JsonObject) -> None:
    raw["tasks"][WELCOME]["transitionParameters"] = [required("day")]


def _without_tools(raw: JsonObject, number: int = WELCOME) -> None:
    raw["tasks"][number]["mcpToolSelection"] = []
    raw["mcpServers"][0]["includedTools"] = [{"toolName": "book"}]


def _dialogue_fills_it(raw: JsonObject) -> None:
    _without_tools(raw)
    raw["variables"][0] |= {"type": "string", "prompt": "Which service"}


@case("required_variable_never_filled", "/tasks/1/transitionParameters/0", good=_dialogue_fills_it)
def _(raw: JsonObject) -> None:
    _without_tools(raw)


@case("required_variable_never_filled", "/tasks/1/transitionParameters/0", good=_dialogue_fills_it)
def _(raw: JsonObject) -> None:
    _dialogue_fills_it(raw)
    raw["variables"][0]["sensitive"] = "card"


def _hub(raw: JsonObject) -> None:
    """The welcome has no tool, but comes again after the task that has one: closed only for the moment."""
    _without_tools(raw)
    add(raw, task("identify", ["welcome"], tools=[tool("book")]))


@case(
    "connection_never_open",
    "/tasks/0/connectedTasks/0",
    also=("required_variable_unfilled_on_path",),
    good=_hub,
)
def _(raw: JsonObject) -> None:
    _hub(raw)
    raw["tasks"][3]["connectedTasks"] = ["booking"]
    raw["tasks"][BOOKING]["connectedTasks"] = ["operator"]
    raw["tasks"][OPERATOR]["connectedTasks"] = ["booking"]


def _fork(raw: JsonObject, chat: list[str]) -> None:
    """From `welcome` with a tool by `identify`, without one by `chat`, to the same `choice`."""
    _without_tools(raw)
    raw["tasks"][WELCOME]["connectedTasks"] = ["identify", "chat"]
    raw["tasks"] += [
        task("identify", ["choice"], tools=[tool("book")]),
        task("chat", ["choice"]),
        task("choice", ["booking", *chat]),
    ]
    raw["tasks"][BOOKING]["connectedTasks"] = ["operator"]
    raw["tasks"][OPERATOR]["connectedTasks"] = ["booking"]


@case(
    "required_variable_unfilled_on_path",
    "/tasks/5/connectedTasks/0",
    good=lambda raw: _fork(raw, ["welcome"]),
)
def _(raw: JsonObject) -> None:
    _fork(raw, [])


@case(
    "task_behind_closed_task",
    "/tasks/3",
    also=("required_variable_never_filled",),
    good=lambda raw: (
        raw["tasks"].append(task("confirm", ["welcome"]))
        or raw["tasks"][BOOKING]["connectedTasks"].append("confirm")
    ),
)
def _(raw: JsonObject) -> None:
    _without_tools(raw)
    raw["tasks"].append(task("confirm", ["welcome"]))
    raw["tasks"][BOOKING]["connectedTasks"].append("confirm")


# --- channels -----------------------------------------------------------------------------------


@case("no_channels", "/channels", good=lambda raw: raw.update(channels=["phone"]))
def _(raw: JsonObject) -> None:
    raw.update(channels=[], mandatoryChannels=[])


@case(
    "task_without_channel",
    "/tasks/3/channels",
    good=lambda raw: add(raw, task("link", ["welcome"], channels=["sms", "chat"])),
)
def _(raw: JsonObject) -> None:
    add(raw, task("link", ["welcome"], channels=["sms", "mail"]))


@case(
    "channel_without_first_task",
    "/channels/1",
    good=lambda raw: raw["tasks"][WELCOME].update(channels=["chat", "phone", "sms"]),
)
def _(raw: JsonObject) -> None:
    raw["tasks"][WELCOME]["channels"] = ["phone"]
    for each in raw["tasks"][1:]:
        each["channels"] = ["phone", "chat"]
    raw["tasks"][BOOKING]["connectedTasks"] = raw["tasks"][OPERATOR]["connectedTasks"] = [
        "booking",
        "operator",
    ]


@case(
    "mandatory_channel_not_covered",
    "/mandatoryChannels/0",
    also=("channel_without_first_task",),
    good=lambda raw: raw["tasks"][WELCOME].update(channels=["phone", "chat"]),
)
def _(raw: JsonObject) -> None:
    raw["tasks"][WELCOME]["channels"] = ["chat"]
    raw["tasks"][BOOKING]["connectedTasks"] = raw["tasks"][OPERATOR]["connectedTasks"] = [
        "booking",
        "operator",
    ]


def _card(raw: JsonObject, receipt: list[str] | None) -> None:
    add(raw, task("card", ["receipt", "operator"], channels=["phone"]))
    raw["tasks"].append(task("receipt", ["welcome"], channels=receipt))


@case("task_unreachable_on_channel", "/tasks/4", good=lambda raw: _card(raw, ["phone"]))
def _(raw: JsonObject) -> None:
    _card(raw, None)


@case(
    "dead_end_on_channel",
    "/tasks/3/connectedTasks",
    good=lambda raw: add(
        raw, task("pay", ["card", "welcome"]), task("card", ["welcome"], channels=["phone"])
    ),
)
def _(raw: JsonObject) -> None:
    add(raw, task("pay", ["card"]), task("card", ["welcome"], channels=["phone"]))


def _supervised(raw: JsonObject) -> None:
    raw["tasks"][OPERATOR]["channels"] = ["phone"]
    add(raw, task("complaint", ["welcome"], **human("AIS")))


@case("channel_without_end", "/channels/1", good=_supervised)
def _(raw: JsonObject) -> None:
    raw["tasks"][OPERATOR]["channels"] = ["phone"]


def _waits_on_the_phone(*leading_to: str) -> Change:
    def change(raw: JsonObject) -> None:
        raw["closureConfig"] = multi()
        waiting = task("pay", list(leading_to), channels=["phone"], closureConfig=multi())
        add(raw, waiting, task("card", ["welcome"], channels=["phone"]))

    return change


@case(
    "resumed_elsewhere",
    "/tasks/3/closureConfig/multiContact",
    good=_waits_on_the_phone("card", "welcome"),
)
def _(raw: JsonObject) -> None:  # D6
    _waits_on_the_phone("card")(raw)


# --- templates ----------------------------------------------------------------------------------


def _prompt(text: str, number: int = BOOKING) -> Change:
    def change(raw: JsonObject) -> None:
        raw["tasks"][number]["prompt"] += text

    return change


@case("template_syntax", "/tasks/1/prompt", good=_prompt("{{ $vars.day }} }}"))
def _(raw: JsonObject) -> None:
    _prompt("{{ $vars.day + }}")(raw)
    raw["globalPrompt"] += " Ask for the day."


@case(
    "template_placeholder",
    "/globalPrompt",
    "/tasks/1/prompt",
    good=_prompt("{{ $vars.day }} {date} {'day': 1}"),
)
def _(raw: JsonObject) -> None:
    _prompt("On {day}")(raw)
    raw["globalPrompt"] += " Ask for $vars.day."


def _beside_templates(text: str) -> Change:
    """Texts that nobody renders: a reason, what finds a variable, what a tool is given, a message."""

    def change(raw: JsonObject) -> None:
        raw["variables"][2]["prompt"] = text
        raw["tasks"][BOOKING]["entryCondition"] = {"when": "has(vars.day)", "reason": text}
        note = {"parameterName": "note", "assignmentStrategy": "fixed", "assignmentValue": text}
        raw["tasks"][BOOKING]["mcpToolSelection"][0]["selectedTools"][0]["toolParameters"].append(note)
        raw["tasks"][OPERATOR]["routingParameters"]["waitingMessagesConfiguration"] = {
            "generationStrategy": "fixed",
            "messagesList": [{"language": "en", "text": text}, {"language": "it", "text": "Attenda"}],
        }

    return change


@case(
    "template_placeholder",
    "/variables/2/prompt",
    "/tasks/1/mcpToolSelection/0/selectedTools/0/toolParameters/2/assignmentValue",
    "/tasks/1/entryCondition/reason",
    "/tasks/2/routingParameters/waitingMessagesConfiguration/messagesList/0/text",
    good=_beside_templates("the size {size}, please"),
)
def _(raw: JsonObject) -> None:
    _beside_templates("for {{ $values.size }}, please")(raw)


@case("template_javascript", "/tasks/1/prompt", good=_prompt("{{ 'a === b' }}"))
def _(raw: JsonObject) -> None:
    _prompt("{% if $channel === 'phone' %}Call.{% endif %}")(raw)
    raw["globalPrompt"] += " Ask for the day."


@case(
    "template_unknown_name",
    "/mediaConfig/audio/tts/default/voice",
    good=lambda raw: raw["mediaConfig"]["audio"].update(tts=_tts("{{ $tenant.voice }}")),
)
def _(raw: JsonObject) -> None:
    raw["mediaConfig"]["audio"]["tts"] = _tts("{{ voice }}")


def _tts(voice: str) -> JsonObject:
    other = {"provider": "google", "voice": "it-IT-A"}
    return {"default": {**other, "voice": voice}, "fallback": other}


@case(
    "template_reference_as_value",
    "/tasks/1/prompt",
    good=_prompt("{% if $values.size == 'S' %}Small.{% endif %}"),
)
def _(raw: JsonObject) -> None:
    _prompt("{% if $vars.size == 'S' %}Small.{% endif %}")(raw)


@case("value_never_known_at_entry", "/tasks/3/prompt", good=_prompt("{{ $values.service }}"))
def _(raw: JsonObject) -> None:
    _hub(raw)
    raw["tasks"][WELCOME]["connectedTasks"] = ["identify"]
    raw["tasks"][3]["connectedTasks"] = ["booking"]
    raw["tasks"][BOOKING]["connectedTasks"] = ["operator"]
    raw["tasks"][OPERATOR]["connectedTasks"] = ["booking"]
    _prompt("{{ $values.service }}", 3)(raw)


def _sensitive_day(source: str) -> Change:
    def change(raw: JsonObject) -> None:
        raw["variables"][2]["sensitive"] = "health"
        _prompt(source)(raw)

    return change


case(
    "sensitive_value_in_text",
    "/tasks/1/prompt",
    good=_sensitive_day("{{ $vars.day }}"),
)(_sensitive_day("{{ $values.day }}"))


# --- languages ----------------------------------------------------------------------------------


@case(
    "default_language_not_supported", "/defaultLanguage", good=lambda raw: raw.update(defaultLanguage="it-IT")
)
def _(raw: JsonObject) -> None:
    raw["defaultLanguage"] = "fr-FR"


@case(
    "language_not_a_tag",
    "/supportedLanguages/2",
    good=lambda raw: raw["supportedLanguages"].append("zh-Hant-TW"),
)
def _(raw: JsonObject) -> None:
    raw["supportedLanguages"].append("fr_FR")


def _waiting_in_both(raw: JsonObject) -> None:
    texts = [{"language": code, "text": "…"} for code in ("en", "it")]
    messages = {"generationStrategy": "fixed", "messagesList": texts}
    raw["tasks"][OPERATOR]["routingParameters"]["waitingMessagesConfiguration"] = messages


@case("language_not_a_tag", "/defaultLanguage", good=_waiting_in_both)
def _(raw: JsonObject) -> None:
    _waiting_in_both(raw)
    raw["defaultLanguage"] = "en_US"


@case(
    "system_prompts_language_unavailable",
    "/systemPromptsLanguage",
    good=lambda raw: raw.update(systemPromptsLanguage="es-ES"),
)
def _(raw: JsonObject) -> None:
    raw["systemPromptsLanguage"] = "fr-FR"


def _waiting(raw: JsonObject, *languages: str) -> None:
    texts = [{"language": language, "text": "…"} for language in languages]
    raw["tasks"][OPERATOR]["routingParameters"]["waitingMessagesConfiguration"] = {
        "generationStrategy": "fixed",
        "messagesList": texts,
    }


@case(
    "missing_translation",
    "/tasks/2/routingParameters/waitingMessagesConfiguration/messagesList",
    good=lambda raw: _waiting(raw, "it", "EN"),
)
def _(raw: JsonObject) -> None:
    _waiting(raw, "en")


def _speech(raw: JsonObject, language: str) -> None:
    entry = {"language": language, "config": stt()}
    raw["mediaConfig"]["audio"]["stt"] = {
        "default": stt(),
        "fallback": stt(),
        "languageCustomConfig": [entry],
    }


@case(
    "unsupported_language",
    "/mediaConfig/audio/stt/languageCustomConfig/0/language",
    good=lambda raw: _speech(raw, "it"),
)
def _(raw: JsonObject) -> None:
    _speech(raw, "fr")


# --- variables and tools ------------------------------------------------------------------------


def _enum(*values: object) -> Change:
    return lambda raw: raw["variables"][1].update(enumValues=list(values))


@case("enum_cannot_match", "/variables/1/enumValues", good=_enum("S", 0))
def _(raw: JsonObject) -> None:
    _enum()(raw)


@case("enum_value_repeated", "/variables/1/enumValues/2", good=_enum("1", 1, "s", "S"))
def _(raw: JsonObject) -> None:
    _enum("M", 1, 1.0)(raw)


def _floor(raw: JsonObject) -> None:
    raw["variables"].append(
        {"_id": "floor", "name": "floor number", "type": "number", "prompt": "Which floor"}
    )


@case(
    "unused_variable",
    "/variables/3",
    good=lambda raw: _floor(raw) or raw.update(globalPrompt="Ask for the floor number."),
)
def _(raw: JsonObject) -> None:
    _floor(raw)


def _only_a_condition_reads_it(when: str) -> Change:
    def change(raw: JsonObject) -> None:
        _floor(raw)
        raw["tasks"][WELCOME]["connectionConditions"] = {"booking": {"when": when}}

    return change


CASES += [
    Case("unused_variable", ("/variables/3",), _only_a_condition_reads_it("entries('welcome') > 1"), good)
    for good in (
        _only_a_condition_reads_it("vars.floor > 1"),
        _only_a_condition_reads_it("has(vars['floor number']) or entries('welcome') > 1"),
    )
]


def _fixed_size(value: str) -> Change:
    return lambda raw: add(raw, task("again", ["welcome"], tools=[tool("book", size=("fixed", value))]))


_SECOND_TOOL = "/tasks/3/mcpToolSelection/0/selectedTools/0/toolParameters/0/assignmentValue"


@case("fixed_value_not_in_enum", _SECOND_TOOL, good=_fixed_size("M"))
def _(raw: JsonObject) -> None:
    _fixed_size("XL")(raw)


def _book_again(strategy: str, value: str) -> Change:
    return lambda raw: add(raw, task("again", ["welcome"], tools=[tool("book", service=(strategy, value))]))


@case("parameter_type_mismatch", _SECOND_TOOL, good=_book_again("prompt", "the day"))
def _(raw: JsonObject) -> None:
    _book_again("variable", "day")(raw)


@case("unused_mcp_server", "/mcpServers/1", good=nothing)
def _(raw: JsonObject) -> None:
    raw["mcpServers"].append({"name": "crm", "url": "https://mcp.example.com/crm", "includedTools": []})


@case("unused_mcp_tool", "/mcpServers/0/includedTools/2", good=nothing)
def _(raw: JsonObject) -> None:
    raw["mcpServers"][0]["includedTools"].append({"toolName": "cancel"})


# --- the rest -----------------------------------------------------------------------------------


@case("checkpoint_never_enabled", "/checkpoints/0", good=nothing)
def _(raw: JsonObject) -> None:
    raw["tasks"][BOOKING]["enabledCheckpoints"] = []


@case("required_checkpoint_unreachable", "/checkpoints/0", also=("unreachable_task",), good=nothing)
def _(raw: JsonObject) -> None:
    raw["tasks"][WELCOME]["connectedTasks"] = ["operator"]


@case("routing_timeout_not_positive", "/tasks/2/routingParameters/timeout", good=nothing)
def _(raw: JsonObject) -> None:
    raw["tasks"][OPERATOR]["routingParameters"]["timeout"] = 0


def approving(**changes: object) -> Change:
    def change(raw: JsonObject) -> None:
        raw["tasks"][OPERATOR].update(type="AIS", approval=True, **changes)

    return change


def written(**changes: object) -> Change:
    def change(raw: JsonObject) -> None:
        raw.update(channels=["chat"], mandatoryChannels=[])
        approving(**changes)(raw)

    return change


case("approval_timeout_not_positive", "/tasks/2/approvalTimeout", good=written())(written(approvalTimeout=0))
case("approval_on_phone", "/tasks/2/approval", good=written())(approving())


@case("approval_never_decided", "/tasks/2/approval", good=written())
def _(raw: JsonObject) -> None:
    written()(raw)
    raw["channels"] = ["phone"]


@case(
    "routing_without_target",
    "/tasks/2/routingParameters",
    good=lambda raw: raw["tasks"][OPERATOR]["routingParameters"].update(agentSkills=[], agentIds=["a-1"]),
)
def _(raw: JsonObject) -> None:
    raw["tasks"][OPERATOR]["routingParameters"] = {"timeout": 60}


@case(
    "negative_number",
    "/mediaConfig/audio/userInteractionTimeout",
    "/tasks/2/routingParameters/waitingMusicDuration",
    good=lambda raw: raw["mediaConfig"]["audio"].update(userInteractionTimeout=0),
)
def _(raw: JsonObject) -> None:  # D10, A10
    raw["mediaConfig"]["audio"]["userInteractionTimeout"] = -0.5
    raw["tasks"][OPERATOR]["routingParameters"]["waitingMusicDuration"] = -5


@case(
    "value_ignored",
    "/tasks/0/hideTranscriptionToHuman",
    "/tasks/2/suspendTranscription",
    good=lambda raw: raw["tasks"][WELCOME].update(hideTranscriptionToHuman=True),
)
def _(raw: JsonObject) -> None:
    raw["tasks"][WELCOME]["hideTranscriptionToHuman"] = "yes"
    raw["tasks"][OPERATOR]["suspendTranscription"] = None


def _enabled(**required: bool) -> Change:
    def change(raw: JsonObject) -> None:
        named = {key: value for key, value in raw["checkpoints"][0].items() if key != "required"}
        raw["tasks"][BOOKING]["enabledCheckpoints"] = [{**named, **required}]

    return change


@case("value_ignored", "/tasks/1/enabledCheckpoints/0/required", good=_enabled())
def _(raw: JsonObject) -> None:
    _enabled(required=False)(raw)  # that of the version is


def _reading_along(**settings: object) -> Change:
    def change(raw: JsonObject) -> None:
        raw["aiHelpers"] = [{"name": "convMiner", **settings}, {"name": "other", "turns": "many"}]
        raw["tasks"][BOOKING]["aiHelpers"] = [{"name": "convMiner", **settings}]

    return change


@case(
    "value_ignored",
    "/aiHelpers/0/enabled",
    "/aiHelpers/0/turns",
    "/aiHelpers/0/stalledAfter",
    "/tasks/1/aiHelpers/0/enabled",
    "/tasks/1/aiHelpers/0/turns",
    "/tasks/1/aiHelpers/0/stalledAfter",
    good=_reading_along(enabled=False, turns=50, stalledAfter=0, model="m", prompt="p", more=1),
)
def _(raw: JsonObject) -> None:
    _reading_along(enabled="no", turns=0, stalledAfter="2")(raw)


@case(
    "multi_contact_never_applies",
    "/closureConfig/multiContact",
    good=lambda raw: raw.update(closureConfig=multi()) or raw["tasks"][WELCOME].update(closureConfig=multi()),
)
def _(raw: JsonObject) -> None:
    raw["closureConfig"] = multi()


@case("multi_contact_unexpected", "/closureConfig/multiContact", good=_closing_task)
def _(raw: JsonObject) -> None:
    raw["tasks"][BOOKING]["closureConfig"] = multi()


def _limit(seconds: int) -> Change:
    def change(raw: JsonObject) -> None:
        raw["closureConfig"] = multi()
        raw["tasks"][WELCOME]["closureConfig"] = multi(seconds)

    return change


@case("short_time_limit", "/tasks/0/closureConfig/conversationTimeLimit", good=_limit(600))
def _(raw: JsonObject) -> None:
    _limit(24)(raw)


def _fresh_for(seconds: int) -> Change:
    def change(raw: JsonObject) -> None:
        raw["closureConfig"] = multi()
        for each in raw["tasks"]:
            each["closureConfig"] = multi()
        raw["variables"][2]["freshFor"] = seconds

    return change


case("value_never_old", "/variables/2/freshFor", good=_fresh_for(86_399))(_fresh_for(86_400))


def _kept(days: float) -> Change:
    def change(raw: JsonObject) -> None:
        raw["retention"] = {"days": days}
        _limit(2 * 86_400)(raw)

    return change


case(
    "retention_before_time_limit",
    "/tasks/0/closureConfig/conversationTimeLimit",
    good=_kept(2),
)(_kept(1.5))


def _handler(url: str) -> Change:
    def change(raw: JsonObject) -> None:
        raw["tasks"][WELCOME]["closureConfig"]["customHandler"] = url

    return change


@case(
    "custom_handler_forbidden",
    "/tasks/0/closureConfig/customHandler",
    good=_handler("https://hooks.example.com/close"),
)
def _(raw: JsonObject) -> None:
    _handler("http://10.0.0.5/close")(raw)


@case(
    "unknown_property",
    "/tasks/1/transitionParameters/0/requierd",
    good=lambda raw: raw["uiMetadata"].update(colour="red"),
)
def _(raw: JsonObject) -> None:
    raw["tasks"][BOOKING]["transitionParameters"][0]["requierd"] = True


@case(
    "ambiguous_name",
    "/tasks/0/name",
    good=lambda raw: raw["tasks"][OPERATOR].update(name="Operator"),
)
def _(raw: JsonObject) -> None:
    raw["tasks"][WELCOME]["name"] = "Opérator"
    raw["tasks"][OPERATOR]["name"] = "Human"


def _a_digression(raw: JsonObject) -> None:
    add(raw, task("faq", ["welcome"], returns=True), task("backwards", ["welcome"]))


@case("back_is_a_task", "/tasks/4/name", good=_a_digression, also=("dead_end",))
def _(raw: JsonObject) -> None:
    add(raw, task("faq", [], returns=True), task("b", ["welcome"], name="Bäck"))


@case("back_is_a_task", "/tasks/3/_id", good=lambda raw: add(raw, task("back", ["welcome"])))
def _(raw: JsonObject) -> None:
    add(raw, task("back", ["welcome"], name="last page"), task("faq", ["welcome"], returns=True))


@case(
    "similar_task_names",
    "/tasks/4",
    good=lambda raw: add(raw, task("pay-1", ["welcome"]), task("pay-2", ["welcome"])),
)
def _(raw: JsonObject) -> None:
    add(raw, task("card-payment", ["welcome"]), task("cardPayment", ["welcome"], name=""))


@case(
    "task_name_prefix",
    "/tasks/3/name",
    good=lambda raw: add(raw, task("t", ["welcome"], name="bookings, old ones")),
)
def _(raw: JsonObject) -> None:
    add(raw, task("t", ["welcome"], name="Booking (change)"))


def _described(channels: list[str]) -> Change:
    return lambda raw: add(
        raw,
        task("card", ["welcome"], "Enter to pay.", channels=["phone"]),
        task("link", ["welcome"], "enter  to PAY.", channels=channels),
    )


@case("equal_descriptions", "/tasks/4/description", good=_described(["chat"]))
def _(raw: JsonObject) -> None:
    _described(["phone", "chat"])(raw)


# --- conditions ---------------------------------------------------------------------------------


def _guarded(raw: JsonObject, own: str, on_the_way: str | None = None) -> None:
    """`booking` under a condition, and the way to it from `welcome`."""
    raw["tasks"][BOOKING]["entryCondition"] = {"when": own}
    if on_the_way is not None:
        raw["tasks"][WELCOME]["connectionConditions"] = {"booking": {"when": on_the_way}}


@case(
    "condition_never_true",
    "/tasks/1/entryCondition/when",
    good=lambda raw: _guarded(raw, "vars.size == 'S' or vars.day > '2026-01-01'"),
)
def _(raw: JsonObject) -> None:
    _guarded(raw, "vars.size == 'XL' or vars.day > '2026-02-01' and vars.day < '2026-01-01'")


@case(
    "condition_never_true",
    "/tasks/1/entryCondition/when",
    "/tasks/2/connectionConditions/survey/when",
    also=("task_behind_closed_task",),
    good=lambda raw: _guarded(raw, "entries('operator') > 0 or entries('booking') < 2"),
)
def _(raw: JsonObject) -> None:
    """What is entered only once it has been, and what leads to a task that only follows it."""
    _guarded(raw, "entries('booking') > 0")
    raw["tasks"][OPERATOR]["connectedTasks"] += ["survey"]
    raw["tasks"][OPERATOR]["connectionConditions"] = {"survey": {"when": "entries('receipt') >= 1"}}
    raw["tasks"] += [task("survey", ["receipt"]), task("receipt", ["welcome"])]


@case(
    "comparison_never_true",
    "/tasks/0/connectionConditions/booking/when",
    "/tasks/1/entryCondition/when",
    good=lambda raw: _guarded(raw, "vars.size in ['S', 'M'] and channel != 'chat'", "vars.size != 'M'"),
)
def _(raw: JsonObject) -> None:
    raw["tasks"][BOOKING]["channels"] = ["phone"]
    _guarded(raw, "vars.size in ['S', 'XL']", "vars.day > '2026-01-01' or channel == 'chat'")


def _written(prompt: str) -> Change:
    def change(raw: JsonObject) -> None:
        raw["variables"] += [
            {"_id": "vip", "name": "vip", "type": "boolean", "prompt": "A regular"},
            {"_id": "name", "name": "their name", "type": "string", "prompt": "The name"},
            {"_id": "floor", "name": "floor", "type": "number", "prompt": "The floor"},
        ]
        raw["tasks"][BOOKING]["prompt"] += prompt + "{{ $vars.vip }}{{ $vars.name }}{{ $vars.floor }}"

    return change


CASES.extend(
    Case("comparison_never_true", ("/tasks/1/prompt",), _written("{% if " + bad + " %}x{% endif %}"), good)
    for bad in (
        "$values.size == 'XL'",
        "'XL' != $values.size",
        "$values.size not in ['S', 'XL']",
        "$values.vip == 'true'",
        "$values['their name'] == ''",
        "$values.floor > '3'",
        "$channel == 'fax'",
        "$language == 'fr'",
    )
    for good in (
        _written(
            "{% if $values.size in ['S', 'M'] and $values.vip == true and 2 < $values.floor %}"
            "{% if $values.day > '2026-01-01' or $values.service == 7 or $values.name != 'Eva' %}"
            "{% if $channel == 'phone' and $values.name == none and $values.vip != 'x' | upper %}"
            "{% endif %}{% endif %}{% endif %}"
        ),
    )
)


@case(
    "parameter_repeated",
    "/tasks/1/transitionParameters/1",
    "/tasks/1/mcpToolSelection/0/selectedTools/1",
    "/tasks/1/mcpToolSelection/0/selectedTools/0/toolParameters/2",
    good=lambda raw: raw["tasks"][BOOKING]["mcpToolSelection"][0]["selectedTools"].append(
        tool("book", size=("fixed", "M")) | {"when": "vars.size == 'M'"}
    ),
)
def _(raw: JsonObject) -> None:
    booking = raw["tasks"][BOOKING]
    booking["transitionParameters"].append({"variableId": "service", "required": False})
    tools = booking["mcpToolSelection"][0]["selectedTools"]
    tools[0]["toolParameters"] += tool("book", size=("fixed", "M"))["toolParameters"]
    tools.append(tool("book"))


@case(
    "condition_always_true",
    "/tasks/1/entryCondition/when",
    good=lambda raw: _guarded(raw, "has(vars.day)"),
)
def _(raw: JsonObject) -> None:
    _guarded(raw, "has(vars.service)")  # which the task requires


@case(
    "connection_never_open",
    "/tasks/0/connectionConditions/booking/when",
    good=lambda raw: _guarded(raw, "vars.size == 'S'", "has(vars.size)"),
)
def _(raw: JsonObject) -> None:
    _guarded(raw, "vars.size == 'S'", "vars.size == 'M'")


@case(
    "value_ignored",
    "/variables/2/precedence",
    good=lambda raw: raw["variables"][2].update(sensitive="identity", precedence="user"),
)
def _(raw: JsonObject) -> None:
    raw["variables"][2] |= {"type": "string", "sensitive": "card", "precedence": "user"}


@case(
    "value_ignored",
    "/variables/2/enumValues",
    good=lambda raw: raw["variables"][2].update(enumValues=[]),
)
def _(raw: JsonObject) -> None:
    raw["variables"][2]["enumValues"] = ["2026-01-01"]


@case(
    "comparison_never_true",
    "/tasks/1/entryCondition/when",
    good=lambda raw: _called_back(raw, "+393471234567"),
)
def _(raw: JsonObject) -> None:
    _called_back(raw, "347 123 4567")


def _called_back(raw: JsonObject, number: str) -> None:
    raw["variables"].append({"_id": "phone", "name": "phone", "type": "phone", "prompt": "The phone"})
    _guarded(raw, f"vars.phone == '{number}' or has(vars.day)")


@case(
    "value_ignored",
    "/tasks/0/excludedGlobalTasks/0",
    "/tasks/1/excludedGlobalTasks/0",
    good=lambda raw: (
        raw.update(globalTasks=["operator"])
        or raw["tasks"][BOOKING].update(excludedGlobalTasks=["operator"], connectedTasks=["welcome"])
    ),
)
def _(raw: JsonObject) -> None:
    raw["tasks"][WELCOME]["excludedGlobalTasks"] = ["booking"]  # which is not global
    raw["globalTasks"] = ["operator"]
    raw["tasks"][BOOKING]["excludedGlobalTasks"] = ["operator"]  # to which it leads


@case(
    "value_ignored",
    "/tasks/2/connectionConditions/booking",
    good=lambda raw: _guarded(raw, "has(vars.day)", "has(vars.size)"),
)
def _(raw: JsonObject) -> None:
    raw["tasks"][OPERATOR]["connectionConditions"] = {"booking": {"when": "has(vars.day)"}}


@case(
    "task_behind_closed_task",
    "/tasks/3",
    also=("condition_never_true",),
    good=lambda raw: raw["tasks"][OPERATOR].update(entryCondition={"when": "channel == 'phone'"}),
)
def _(raw: JsonObject) -> None:
    raw["tasks"].append(task("survey", ["welcome"]))
    raw["tasks"][OPERATOR]["connectedTasks"].append("survey")
    raw["tasks"][OPERATOR]["entryCondition"] = {"when": "channel == 'fax'"}


def _by_themselves(raw: JsonObject, *ways: tuple[int, str, str | None]) -> None:
    """Connections that nobody has to ask for: from a task to another one, with a condition."""
    for source, target, when in ways:
        way = {"advance": "auto"} if when is None else {"advance": "auto", "when": when}
        raw["tasks"][source]["connectionConditions"] = {target: way}


@case(
    "advance_at_once",
    "/tasks/1/connectionConditions/operator/advance",
    good=lambda raw: _by_themselves(raw, (BOOKING, "operator", "refusals('booking') > 2")),
)
def _(raw: JsonObject) -> None:
    _by_themselves(raw, (BOOKING, "operator", None))


@case(
    "advance_circle",
    "/tasks/0/connectionConditions/booking/advance",
    good=lambda raw: _by_themselves(
        raw, (WELCOME, "booking", "vars.size == 'S'"), (BOOKING, "welcome", "vars.size == 'M'")
    ),
)
def _(raw: JsonObject) -> None:
    _by_themselves(raw, (WELCOME, "booking", "has(vars.size)"), (BOOKING, "welcome", "has(vars.size)"))


@case(
    "value_ignored",
    "/tasks/1/mcpToolSelection/0/selectedTools/0/toolParameters/2/assignmentValue",
    good=lambda raw: _given(raw, "crmContactId"),
)
def _(raw: JsonObject) -> None:
    _given(raw, "contactId")


def _given(raw: JsonObject, name: str) -> None:
    chosen = raw["tasks"][BOOKING]["mcpToolSelection"][0]["selectedTools"][0]
    chosen["toolParameters"] += tool("book", **{name: ("fixed", "7")})["toolParameters"]


@case(
    "condition_never_true",
    "/tasks/1/entryCondition/when",
    good=lambda raw: _voucher_of(raw, "vars.voucher.sum > 5", writes=["voucher"]),
)
def _(raw: JsonObject) -> None:
    """What only tools write, and none of those that can be reached."""
    _voucher_of(raw, "vars.voucher.sum > 5", writes=[])


@case(
    "comparison_never_true",
    "/tasks/1/entryCondition/when",
    good=lambda raw: _voucher_of(raw, "has(vars.voucher) or vars.size == 'S'", writes=["voucher"]),
)
def _(raw: JsonObject) -> None:
    _voucher_of(raw, "has(vars.voucher) or vars.size == 'S'", writes=[])


def _voucher_of(raw: JsonObject, when: str, *, writes: list[str]) -> None:
    raw["variables"].append({"_id": "voucher", "name": "voucher", "type": "custom"})
    raw["tasks"][BOOKING]["entryCondition"] = {"when": when}
    for task_number, written in ((WELCOME, ["service"]), (BOOKING, writes)):
        chosen = raw["tasks"][task_number]["mcpToolSelection"][0]["selectedTools"][0]
        chosen["writes"] = written


@case(
    "parameter_never_written",
    "/tasks/1/mcpToolSelection/0/selectedTools/0/toolParameters/0/assignmentValue",
    good=lambda raw: _voucher_passed(raw, writes=["voucher"]),
)
def _(raw: JsonObject) -> None:
    _voucher_passed(raw, writes=[])


def _voucher_passed(raw: JsonObject, *, writes: list[str]) -> None:
    _voucher_of(raw, "vars.size == 'S'", writes=writes)
    chosen = raw["tasks"][BOOKING]["mcpToolSelection"][0]["selectedTools"][0]
    chosen["toolParameters"] = tool("book", voucher=("variable", "voucher"))["toolParameters"]


@case(
    "condition_never_true",
    "/tasks/1/connectionConditions/operator/when",
    good=lambda raw: _left_when(raw, "entries('booking') < 2 and entries('operator') < 1"),
)
def _(raw: JsonObject) -> None:
    """Who leaves a task has entered it."""
    _left_when(raw, "entries('booking') < 1")


@case(
    "condition_always_true",
    "/tasks/1/connectionConditions/operator/when",
    good=lambda raw: _left_when(raw, "entries('booking') > 1"),
)
def _(raw: JsonObject) -> None:
    _left_when(raw, "entries('booking') >= 1")


def _left_when(raw: JsonObject, when: str) -> None:
    raw["tasks"][BOOKING]["connectionConditions"] = {"operator": {"when": when}}
