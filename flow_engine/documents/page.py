"""The page about flow documents, from the schema: `python -m flow_engine.documents.page`."""

from collections.abc import Iterator
from typing import Any

from flow_engine.documents.json_schema import version_schema
from flow_engine.values import VALUE_KINDS

_INTRODUCTION = """# The flow document

A version of a flow is one JSON document: what the engine compiles into a statechart, and what a conversation
runs by from its start to its end. Written from the published schema by
`python -m flow_engine.documents.page`; a test keeps it complete. The schema itself is served at
`GET /schemas/flow-version.json`.

What a save refuses and warns of stands in [lint.md](lint.md). Everything that is wrong is told at once, each
with a JSON pointer. `GET` a version, edit it and `POST` it back: the server writes author and date anew, and
gives a new `_id` where the old one is taken.

## Types of variables

| type | canonical form | a tool gets |
|---|---|---|
"""

_FORMS = {
    "string": "text as it was given, at most 64 KiB",
    "number": "a JSON number of at most 64 bits; a decimal that no float equals is refused",
    "boolean": "`true` or `false`",
    "enum": "the member of `enumValues` that was meant",
    "date": "`YYYY-MM-DD`, or `YYYY-MM-DDTHH:MM:SS[.ffffff]Z` in UTC when a time was given",
    "phone": '`{"country": "IT", "type": "mobile", "number": "+39…"}`, E.164',
    "email": "`local@domain`, the domain in lower case and ASCII",
    "custom": "any JSON, at most 64 levels deep; written by tools only",
}

_READ_BACK = """\
An address that was spelled aloud is read back before it is used. A task that does so has a prompt such as:

```text
Read the e-mail address in {{ $vars.email }} back to the caller: the name before the @ letter by letter,
"at", then the domain in whole words. Ask whether it is right. If it is not, ask for the part that is wrong;
what the caller says then replaces the old address. Go on only after a clear yes.
```

## Conditions

A `when` is a text in a small language over the values of the conversation:

```text
vars.age >= 18 and (vars.plan in ['gold', 'silver'] or has(vars.voucher))
channel == 'phone' and entries('identify') < 3
today - vars.birth >= days(6574) and not (vars["loan id"].state == 'closed')
```

| written | is |
|---|---|
| `vars.<_id>`, `vars["any id"]` | the value of a variable; `.key` and `[n]` look into a custom one |
| `tenant.x`, `contact.x` | what came with the contact |
| `channel`, `language` | of the contact, of the conversation |
| `now`, `today` | the moment; the date in the tenant's time zone, UTC without one |
| `entries('<task _id>')` | how often the task was entered, in a version before a migration too |
| `refusals('<task _id>')` | how often a change to it was refused |
| `days(n)`, `hours(n)`, `minutes(n)` | durations, to be added to dates and moments or taken from them |
| `date + days(1)`, `date - date` | a date; a duration. A minus has a space before it |
| `== != < <= > >=` | a comparison |
| `in [a, b]`, `not in [a, b]` | whether a value is one of a list; a custom value may be the list |
| `has(vars.x)` | whether there is a value; `false`, `0` and `[]` are values |
| `and`, `or`, `not`, `( )` | `not` binds closest, then `and` |

A condition is true, false or unknown, and only true lets anything pass. A comparison with a missing value is
unknown, and so is one of values that cannot be compared, such as a text with a number. `not unknown` is
unknown, `true or unknown` true, `false and unknown` false. Texts compare with their case, a phone by its
number in E.164. A text beside a date or moment is read as ISO 8601; beside a date, a moment counts as its day
in the tenant's time zone. Numbers are written as in JSON and have at most 64 bits, with
20 digits behind the point. A condition has at most 2,000 characters and 40 levels of parentheses.

A change of task is judged in this order: the channel, the required variables, the condition of the
connection, the condition of the task. A conversation starts in the first task, and a contact resumes where it
was, whatever conditions say.

A connection with `advance: "suggest"` is named in the prompt, and in its reply's `suggestedTasks`, while
its task can be entered. With `advance: "auto"` nobody has to ask for it: the step in which the channel, the
required variables and both conditions come to hold, and did not hold before, moves the conversation in the
same commit. From a task that was reached like that, returned to, resumed in or started in, what holds
already leads on too, so that such connections make chains; no task is entered twice in one step. A task
that was asked for by name is not left for what held before: what is open from there is suggested. Without
`advance` a task is suggested as well when it requires something, could have been entered for `stalledAfter`
turns of the user, and was not.

A task with `returns: true` is a digression: a change to the task `back` leaves it for the task that it was
entered from, whatever conditions that has, unless a task of the version is called `back`: then no task
returns. Digressions nest 8 deep; a task that does not return ends them.

## Approval

In an `AIS` task with `approval: true` a person reads what the AI writes before the user gets it:

```text
ai → waiting → approved | edited | rejected | timeout → waiting → …        and from each of them ⇄ human
```

The agent puts its text before a person with `POST /v1/handle-human-task {outcome: "waiting", text}`,
and sends nothing. The person's desk reads the text in the event `human_task` and answers by the same
route: `approved`, `edited` with the `text` to be sent instead, or `rejected` with a `reason`.
`approvalTimeout` seconds (300) after the text came it is `timeout`, without any request; then it is not
sent.

- The agent learns of a decision by the `command` of its next reply, once (`/human_task_approved`,
  `/human_task_edited`, `/human_task_rejected <reason>`, `/human_task_timeout`), and by `approval` in
  the replies of prompts, contacts, tasks and human tasks: `{approvalId, taskId, status, text, draft,
  reason, askedAt, until, decidedAt}`. Only a `text` that is `approved` or `edited` may be sent.
  `approvalRequired: true` says beforehand that the task is of this kind, and the prompt's volatile part
  tells the model what waits or was decided.
- One text waits at a time and each gets one decision. A decision may name its text by `approvalId`, or
  by the unchanged `text`. Another text meanwhile, a decision that comes too late or on another text are
  refused with 200 `{result: false, code: "already_waiting" | "already_decided" | "another_text",
  reason, accepted, approval, …}`; a repetition of what has come true is no error.
- While a text waits the task is not left: `change-task` is refused with `waiting_for_approval`, and a
  connection with `advance: "auto"` is taken with the decision. Messages and memory are taken as ever.
- A person who takes over (`taken_over`), the end of the contact and a contact that comes instead
  withdraw the text; the event says `withdrawn`.
- `approval` in a task of another type is refused at the save (`approval_not_supervised`).
- Holding a text back is the agent's part. The agents for [chat](chat.md#answers-that-a-person-reads-first)
  and [mail](mail.md#replies-that-a-person-reads-first) do it by themselves. What a model speaks is heard
  while it is made: the [voice agent](voice.md#a-call-led-by-a-flow) gives its model neither prompt nor tools
  of such a task, and has it say that this is not settled on the phone; no text waits there. The linter
  warns of such a task on the phone (`approval_on_phone`, `approval_never_decided`).
- `examples/refunds` is a flow with such a task, and its flow tests.

## Sensitive values

The values of a variable with `sensitive` are for tools: `GET /v1/memory/{id}`, and `mcpTools` parameters
that name the variable, show them. Prompts, templates, events, the webhook, summaries, refusals, the
journal, logs and traces show a mask instead, `[hidden]` or `[hidden card]`, `[hidden health]`, `[hidden
identity]`, so that a model knows that there is a value. Conditions are judged on the value itself.

A text that quotes a value which is known by then shows the mask there, from four characters on: in an
utterance's event, a reason, the summary of a contact. What a user says in a task where values of such
variables are read along is shown once it was read: its event, and those after it, wait for that, at most 15
seconds, then a mask takes the place of its words. A message that gives a value without quoting it, a date in
words or a mere "yes", is a mask as a whole. What no reader takes for a value is shown as it was said. Where
a version has a variable with `sensitive: "card"`, card numbers (13 to 19 digits with the usual separators
and a right check digit) are masked in every utterance before anything is kept of it, so that only a tool
can write such a variable.

## Old and contradicted values

A value of a variable with `freshFor` is old so many seconds after it was last written. It counts all the
same: it opens what requires it, conditions and templates read it, tools get it. The prompt's memory table
has a row behind it that tells its age and asks to confirm it, and `GET /v1/memory/{id}` shows `stale` and
`ageS`, its age in seconds. The same value written again, by a tool or heard from the user, confirms it: its
age begins anew. A model that reads along is told the old value, unless it is sensitive, and gives it again
where the user's last words confirm it. What a tool has written is confirmed by tools alone, unless the
variable has `precedence`.

Once a tool has written a variable, nobody listens to what the user says of it. With `precedence` the user is
heard there too, and where he contradicts the tool, one of the two values counts: the tool's (`tool`), the
user's (`user`), or the one that was written last (`latest`). The other is kept and shown: in a row of the
prompt's memory table, in the `provenance` of the value (`superseded`, and `conflict` with who, when and
where), and by an event `value_conflict`, whichever of the two came later. They agree as texts by their
words, whatever the capitals, and in every other type by the canonical form; the tool's value then counts as
written at the later of the two moments. A tool that takes its value back, or a user who says the tool's,
ends the conflict. Custom variables are written by tools alone, so that `precedence` means nothing there.

## Objects
"""


def flow_document_page() -> str:
    """The page as Markdown. Raises KeyError for a type of variable whose form is not described here."""
    schema = version_schema()
    types = [f"| `{name}` | {_FORMS[name]} | {kind.handed_over} |" for name, kind in VALUE_KINDS.items()]
    objects = {"Flow version": schema, **schema["$defs"]}
    parts = [_INTRODUCTION + "\n".join(types), _READ_BACK.rstrip("\n")]
    parts += ["\n".join(_section(name, described)) for name, described in objects.items()]
    return "\n\n".join(parts) + "\n"


def _section(name: str, described: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    if name != "Flow version" and "description" in described:
        yield f"{described['description']}\n"
    properties: dict[str, Any] = described.get("properties", {})
    if not properties:
        yield "Any property may stand here."
        return
    required = described.get("required", ())
    yield "| property | type | required | meaning |"
    yield "|---|---|---|---|"
    for key, value in properties.items():
        kind = _type(value).replace("|", "\\|")
        given = value.get("default")
        shown = "{…}" if isinstance(given, dict) else str(given)
        shown = shown.lower() if isinstance(given, bool) else shown
        default = "" if given in (None, {}) else f" Default: `{shown}`."
        needed = "yes" if key in required else ""
        yield f"| `{key}` | {kind} | {needed} | {value['description']}{default} |"


def _type(value: dict[str, Any]) -> str:
    """A property's type as people read it: `text`, `list of [Task](#task)`, `text | number`."""
    if "$ref" in value:
        name = str(value["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in value:
        return " | ".join(f"`{member}`" for member in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "anyOf" in value:
        return " | ".join(_type(option) for option in value["anyOf"])
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    if isinstance(value.get("additionalProperties"), dict):
        return f"object of {_type(value['additionalProperties'])} by key"
    names = {
        "string": "text",
        "object": "object",
        "number": "number",
        "boolean": "true or false",
        "null": "`null`",
    }
    return names.get(str(value.get("type")), "any")


if __name__ == "__main__":
    print(flow_document_page(), end="")
