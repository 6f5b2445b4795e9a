"""Codes that refuse a save."""

from __future__ import annotations

from flow_engine.linting.codes.code import Code


def _error(code: str, title: str, why: str, advice: str, example: str) -> Code:
    return Code(code, "error", title, why, advice, example)


ERRORS: tuple[Code, ...] = (
    # --- the text ---
    _error(
        "json_invalid",
        "The text is not JSON",
        "Nothing can be read from it.",
        "Send one JSON object in UTF-8; the message tells where the text stops being JSON.",
        '`{"draft": true,}`',
    ),
    _error(
        "too_large",
        "The document is too large",
        "Every conversation of the version loads it.",
        "Shorten prompts or split the flow; the operator may raise the limit.",
        "A version of more than 1,000,000 bytes.",
    ),
    _error(
        "too_deep",
        "Objects and arrays are nested too deeply",
        "No flow needs it, and readers break on it.",
        "Flatten what is nested, often something under `uiMetadata`.",
        "101 arrays inside one another.",
    ),
    # --- the schema ---
    _error(
        "missing_property",
        "A required property is missing",
        "The version cannot run without it. Some properties are required only beside others: the message "
        "says when.",
        "Add the property, or save the document as a draft.",
        '`{"draft": false}` without `"tasks"`.',
    ),
    _error(
        "unknown_property",
        "A property does not exist here",
        "Flows and versions are closed, so that a misspelled property is not silently without effect.",
        "Correct the spelling or remove it; the message lists the properties.",
        '`"firsttask": "welcome"`',
    ),
    _error(
        "wrong_type",
        "A value has the wrong JSON type",
        "Values are not converted: `null`, numbers and texts mean different things.",
        "Write the value as the type that the message names.",
        '`"tasks": null`',
    ),
    _error(
        "not_allowed",
        "A value is not among the allowed ones",
        "The engine would not know what to do with it.",
        "Choose one of the values that the message lists.",
        '`"type": "BOT"` in a task.',
    ),
    _error(
        "invalid_schema_version",
        "A schema version is malformed",
        "Readers tell by it how to read the document.",
        "Write three numbers joined by dots.",
        '`"schemaVersion": "1.0"`',
    ),
    _error(
        "invalid_api_version",
        "An API version is malformed",
        "It chooses the system prompts and default tools.",
        "Write `v` and a number.",
        '`"apiVersion": "1"`',
    ),
    _error(
        "invalid_provider",
        "A speech provider is unknown",
        "The voice agent could not connect to it.",
        "Name one of the listed providers, or write a whole template `{{ … }}`.",
        '`"provider": "deepgram2"`',
    ),
    _error(
        "invalid_url",
        "A URL is malformed",
        "It could never be called.",
        "Write an `http://` or `https://` URL with a host.",
        '`"url": "agenda.example.com"`',
    ),
    _error(
        "invalid_date_time",
        "A moment is malformed",
        "It could not be compared with others.",
        "Write an RFC 3339 date and time with an offset.",
        '`"createdAt": "2026-01-31"`',
    ),
    # --- identity and references ---
    _error(
        "too_many_tasks",
        "There are too many tasks",
        "Charts of this size are slow to compile, and nobody can oversee them.",
        "Split the flow; the operator may raise the limit.",
        "A version of 301 tasks.",
    ),
    _error(
        "duplicate_id",
        "Two things of one kind have the same `_id`",
        "References to it would be ambiguous.",
        "Give one of them another `_id` and correct the references that meant it.",
        'Two tasks with `"_id": "welcome"`.',
    ),
    _error(
        "duplicate_name",
        "Two things of one kind have the same name",
        "Models and callers use names. Names of tasks are compared without case, accents and kinds of space.",
        "Rename one of them.",
        "Tasks `Reception` and `réception`.",
    ),
    _error(
        "name_is_other_id",
        "A variable's name is another variable's `_id`",
        "Whoever writes a variable may use either, and would write the wrong one.",
        "Rename the variable, or change the other one's `_id`.",
        '`{"_id": "a", "name": "b"}` beside `{"_id": "b", …}`.',
    ),
    _error(
        "mandatory_channel_not_in_channels",
        "A mandatory channel is not among the channels",
        "No contact on it would be accepted.",
        "Add it to `channels`, or take it out of `mandatoryChannels`.",
        '`"channels": ["chat"], "mandatoryChannels": ["phone"]`',
    ),
    _error(
        "unknown_task",
        "A task is named that does not exist",
        "The chart cannot be built.",
        "Use the `_id` of a task of this version; names do not count here.",
        '`"connectedTasks": ["Welcome"]` where the `_id` is `welcome`.',
    ),
    _error(
        "unknown_variable",
        "A variable is named that does not exist",
        "The requirement could never be met, the parameter never be filled.",
        "Declare the variable, or use the `_id` of one that is declared.",
        '`{"variableId": "phone number", "required": true}`',
    ),
    _error(
        "unknown_checkpoint",
        "A checkpoint is named that does not exist",
        "It could not be reported.",
        "Declare it under `checkpoints`, or use the `_id` of one that is declared.",
        '`"enabledCheckpoints": [{"_id": "identfied", …}]`',
    ),
    _error(
        "unknown_mcp_server",
        "An MCP server is named that does not exist",
        "The agent would not know where its tools are.",
        "Declare it under `mcpServers`, or use the name of one that is declared.",
        '`"mcpServerName": "calender"`',
    ),
    _error(
        "unknown_mcp_tool",
        "A tool is selected that its server does not include",
        "The agent could not call it.",
        "Add it to the server's `includedTools`, or select one that is included.",
        '`"toolName": "bok"`',
    ),
    _error(
        "unknown_api_version",
        "This installation lacks the API version",
        "There are no system prompts for it.",
        "Use one of the listed versions.",
        '`"apiVersion": "v9"`',
    ),
    _error(
        "unknown_audio_preset",
        "This installation lacks the audio preset",
        "There are no settings to fall back on.",
        "Use one of the listed presets.",
        '`"presetId": "studio"`',
    ),
    _error(
        "flow_mismatch",
        "The document names another flow than it is saved under",
        "It would be listed under one flow and claim another.",
        "Leave `conversationalFlowId` out, or name the flow of the request.",
        '`"conversationalFlowId": "orders"` posted to `/flows/claims/versions`.',
    ),
    # --- templates ---
    _error(
        "template_forbidden",
        "A template uses what templates may not do",
        "It would not be rendered: there are no calls, assignments, macros or private names.",
        "Write it with names, filters, `if` and `for`.",
        "`{% set total = 1 %}`",
    ),
    _error(
        "template_too_large",
        "A template is too large",
        "It is rendered whenever its task is entered.",
        "Shorten it, or move parts into other tasks.",
        "A prompt of more than 200 KB.",
    ),
    _error(
        "template_too_deep",
        "A template nests too deeply",
        "Rendering it would not be bounded.",
        "Simplify its expressions and blocks.",
        "17 brackets inside one another.",
    ),
)
