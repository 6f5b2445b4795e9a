"""The default route (M2): a mail is classified, then a reply in its language is drafted for review.

Nothing is ever sent from here.
"""

from pydantic import ValidationError

from channels.mail import composing, config, message, ports, preprocessing, routing
from flow_engine.ports.models import LanguageModel, LLMAnswer, LLMRequest, ModelFailed, ask, instruction

CLASSIFYING = """You sort the mails of an office. Say of the mail below which label fits it best,
in which language its author wrote (a BCP 47 tag), how urgent it is, and in one or two sentences of that
language what it is about."""
DRAFTING = """You prepare the answers of an office. Write the text of a reply to the mail below,
without a subject line; a person reads it before it goes out. Promise nothing that you cannot know from the
mail or from these instructions."""

_URGENCIES = ("low", "normal", "high")


async def classify(
    model: LanguageModel, settings: config.Pipeline, model_name: str | None, read: str
) -> tuple[ports.Classification, LLMAnswer]:
    """What the mail is about, and the answer with its tokens. Raises ModelFailed, also for a label that the
    config does not have."""
    lines = [f"- {label.name}: {label.description}" for label in settings.labels]
    labels = "\n".join(("Labels:", *lines)) if lines else "There are no labels: `label` is null."
    system = "\n\n".join((CLASSIFYING, preprocessing.DATA_RULE, labels))
    answer = await ask(
        model,
        LLMRequest(
            instruction(system, read),
            output_schema=_schema(settings),
            model=model_name,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            purpose="classify",
        ),
    )
    names = {label.name.lower(): label.name for label in settings.labels}
    try:
        found = ports.Classification.model_validate(answer.data)
    except ValidationError as error:
        raise ModelFailed("unusable_answer", f"no classification: {error.error_count()} mistakes") from None
    label = names.get((found.label or "").strip().lower())
    if names and label is None:
        raise ModelFailed("unusable_answer", "the classification has a label that there is not")
    return found.model_copy(update={"label": label}), answer


def _schema(settings: config.Pipeline) -> dict[str, object]:
    names = [label.name for label in settings.labels]
    label: dict[str, object] = {"type": "string", "enum": names} if names else {"type": "null"}
    return {
        "type": "object",
        "properties": {
            "label": label,
            "language": {"type": "string"},
            "urgency": {"type": "string", "enum": list(_URGENCIES)},
            "summary": {"type": "string"},
        },
        "required": ["label", "language", "urgency", "summary"],
        "additionalProperties": False,
    }


async def write_draft(
    model: LanguageModel,
    settings: config.Pipeline,
    model_name: str | None,
    classification: ports.Classification,
    read: str,
) -> LLMAnswer:
    """The text of a reply, with its tokens. Raises ModelFailed, also for an empty one."""
    language = f"Write in this language: {classification.language or 'that of the mail'}."
    own = settings.draft and settings.draft.instructions
    system = "\n\n".join(filter(None, (DRAFTING, preprocessing.DATA_RULE, language, own)))
    answer = await ask(
        model,
        LLMRequest(
            instruction(system, read),
            model=model_name,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            purpose="draft",
        ),
    )
    if not answer.text.strip():
        raise ModelFailed("unusable_answer", "the draft has no text")
    return answer


def draft_letter(
    mail: message.ParsedMail, judgement: routing.Judgement, text: str
) -> composing.Letter | None:
    """To whoever wrote, or asks for answers elsewhere and is trusted; None for a mail without an address."""
    wanted = mail.reply_to if judgement.is_trusted and mail.reply_to else mail.senders
    people = tuple(dict.fromkeys(each.email for each in wanted if each.email and each.email.isascii()))
    return composing.Letter(people, composing.reply_subject(mail.subject), text) if people else None
