"""Codes about what is said, known and used in a conversation."""

from __future__ import annotations

from flow_engine.linting.codes.code import Code


def _warning(code: str, title: str, why: str, advice: str, example: str) -> Code:
    return Code(code, "warning", title, why, advice, example)


CONVERSATION_WARNINGS: tuple[Code, ...] = (
    _warning(
        "more_findings",
        "There are more findings than are listed",
        "The list is cut so that a broken document cannot produce a reply of any size.",
        "Correct what is listed and validate again.",
        "A document with 2,000 mistakes.",
    ),
    # --- templates ---
    _warning(
        "template_syntax",
        "A template is not well formed",
        "It is shown to the model as it is, with a visible marker.",
        "Correct the template at the line that the message names.",
        "`{{ $vars.date`",
    ),
    _warning(
        "template_javascript",
        "A template uses JavaScript",
        "Templates are Jinja: the operator means nothing there, and the text is not rendered as meant.",
        "Write what the message proposes.",
        "`{{ $tenant?.name === 'A' }}`",
    ),
    _warning(
        "template_unknown_name",
        "A template uses a name that does not exist",
        "A visible marker stands in its place.",
        "Declare the variable, or correct the name.",
        "`{{ $vars.dateOfVist }}`",
    ),
    _warning(
        "template_reference_as_value",
        "A template treats a reference as a value",
        "`$vars.x` renders where the model finds the value, not the value, so that comparing it is in vain.",
        "Write `$values` for the value at the entry of the task.",
        "`{% if $vars.size == 'L' %}`",
    ),
    _warning(
        "value_never_known_at_entry",
        "A template shows a value that is never there",
        "`$values` is what was known when the task was entered, and nothing can have written it by then.",
        "Write `$vars` to point the model to the memory, or select a tool that writes it before.",
        "`{{ $values.serviceId }}` in the first task.",
    ),
    # --- languages ---
    _warning(
        "default_language_not_supported",
        "The default language is not a supported one",
        "It is used, but nobody can be found to speak it.",
        "Add it to `supportedLanguages`.",
        '`"defaultLanguage": "fr-FR", "supportedLanguages": ["en-US"]`',
    ),
    _warning(
        "system_prompts_language_unavailable",
        "There are no system prompts in the language",
        "Another language's are used, which may make the model answer in it.",
        "Choose one of the listed languages.",
        '`"systemPromptsLanguage": "fr-FR"`',
    ),
    _warning(
        "missing_translation",
        "A text lacks a supported language",
        "Who speaks it hears nothing, or another language.",
        "Add a text in each language that is missing.",
        'Waiting messages in `en` only, with `"supportedLanguages": ["en-US", "it-IT"]`.',
    ),
    _warning(
        "unsupported_language",
        "A text or a setting is for a language that is not supported",
        "It is never used.",
        "Add the language to `supportedLanguages`, or remove the entry.",
        '`{"language": "fr", "text": "Un instant."}` in a version for `en-US`.',
    ),
    # --- variables ---
    _warning(
        "enum_cannot_match",
        "An enum, or a value of it, can never be stored",
        "Only the listed values can be stored, and a blank one is no value.",
        "List the values that the variable may have.",
        '`"type": "enum", "enumValues": []`',
    ),
    _warning(
        "enum_value_repeated",
        "An enum lists a value twice",
        "The first one is always found; 1 and 1.0 are the same number.",
        "Remove the repetition, or correct what was meant.",
        '`"enumValues": ["S", "M", "S"]`',
    ),
    _warning(
        "unused_variable",
        "Nothing uses a variable",
        "It is asked of the dialogue at every turn all the same.",
        "Name it where it matters, or remove it.",
        "`floor` is declared, and no task, tool or prompt names it.",
    ),
    # --- tools ---
    _warning(
        "fixed_value_not_in_enum",
        "A fixed parameter is none of the values that the parameter has elsewhere",
        "Elsewhere the same parameter is filled from an enum without this value: one of them is wrong.",
        "Use one of the enum's values, or add this one to it.",
        "`size` is fixed to `XL`, in another task it comes from an enum of `S`, `M`, `L`.",
    ),
    _warning(
        "parameter_type_mismatch",
        "A parameter gets values of different kinds in different places",
        "The tool accepts one kind and will refuse the other. A custom variable hands over whatever a tool "
        "has stored, often an object.",
        "Use variables of the same type in both places, or `prompt` where the model must adapt the value.",
        "`count` comes from a number variable in one task and is fixed to `many` in another.",
    ),
    _warning(
        "unused_mcp_server",
        "No task selects a tool of an MCP server",
        "The server is declared in vain.",
        "Select its tools in the tasks that need them, or remove it.",
        "`mcpServers` has `crm`, and no `mcpToolSelection` names it.",
    ),
    _warning(
        "unused_mcp_tool",
        "No task selects an included tool",
        "The agent is never given it.",
        "Select it in the tasks that need it, or do not include it.",
        "`includedTools` has `cancel`, and no task selects it.",
    ),
    # --- checkpoints ---
    _warning(
        "checkpoint_never_enabled",
        "No task enables a checkpoint",
        "It is never judged, and reported as missed when it is required.",
        "Enable it in the tasks where it can be reached, or remove it.",
        "`checkpoints` has `identified`, no `enabledCheckpoints` does.",
    ),
    _warning(
        "required_checkpoint_unreachable",
        "A required checkpoint is enabled only where nobody gets",
        "Every contact is reported to have missed it.",
        "Connect one of these tasks, or enable the checkpoint in one that can be reached.",
        "`paid` is enabled only in `invoice`, which is unreachable.",
    ),
    # --- humans ---
    _warning(
        "routing_timeout_not_positive",
        "Routing to a human has no time",
        "It fails in the moment it begins.",
        "Give the seconds that a person may wait.",
        '`"timeout": 0`',
    ),
    _warning(
        "routing_without_target",
        "A HUM task says nothing about whom to look for",
        "The routing gets neither skills nor agents.",
        "Name `agentSkills`, `agentOptionalSkills` or `agentIds`.",
        '`"routingParameters": {"timeout": 60}`',
    ),
    _warning(
        "value_ignored",
        "A flag is neither true nor false",
        "It counts as false.",
        "Write `true` or `false`.",
        '`"hideTranscriptionToHuman": "yes"`',
    ),
    # --- contacts ---
    _warning(
        "multi_contact_never_applies",
        "The version spans several contacts, but no task does",
        "The task in which a contact ends decides, so that every conversation closes with its first contact.",
        "Set `multiContact` in the tasks that a conversation may wait in, or unset it in the version.",
        "The version has `multiContact: true`, all tasks `false`.",
    ),
    _warning(
        "multi_contact_unexpected",
        "The version closes with its contact, but some tasks do not",
        "A contact that ends in one of them leaves the conversation open, one that ends elsewhere does not.",
        "Set `multiContact` in the version too, or unset it in these tasks.",
        "The version has `multiContact: false`, one task `true`.",
    ),
    _warning(
        "short_time_limit",
        "A conversation over several contacts ends within minutes",
        "The limit is in seconds; it was perhaps meant in hours or days.",
        "Write the limit in seconds, 86400 for a day.",
        '`"multiContact": true, "conversationTimeLimit": 30`',
    ),
    # --- names ---
    _warning(
        "ambiguous_name",
        "A task's name is another task's `_id`",
        "Whoever asks for it gets the other one.",
        "Rename the task.",
        '`{"_id": "a", "name": "b"}` beside `{"_id": "b"}`.',
    ),
    _warning(
        "similar_task_names",
        "Names of two tasks differ in marks only",
        "Models and people mix them up.",
        "Give them names that say how they differ.",
        "`card-payment` and `Card Payment`.",
    ),
    _warning(
        "task_name_prefix",
        "A task's name begins with another one's, and both are offered together",
        "A model that means the longer one may write the shorter one.",
        "Give them names that say how they differ.",
        "`booking` and `booking change`, both connected from `welcome`.",
    ),
    _warning(
        "equal_descriptions",
        "Two tasks that are offered together have the same description",
        "The description says when to enter a task: a model cannot choose between them.",
        "Describe when each of them is the right one.",
        'Two tasks with `"description": "The caller needs help"`.',
    ),
)
