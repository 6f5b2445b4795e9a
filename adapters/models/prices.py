"""What model calls cost, by the public prices of their vendors."""

from collections.abc import Mapping
from typing import Final

from genai_prices import Usage, calc_price

_PROVIDERS: Final[Mapping[str, str]] = {
    "openai": "openai",
    "azure": "azure",
    "google": "google",
    "groq": "groq",
}


def price(model: str, input_tokens: int, output_tokens: int) -> float | None:
    """In US dollars, of a model named `provider:model`; None where its price is not public."""
    provider, _, name = model.partition(":")
    spent = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    try:
        return float(calc_price(spent, name, provider_id=_PROVIDERS[provider]).total_price)
    except (LookupError, ValueError):
        return None
