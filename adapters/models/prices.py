"""What model calls cost, by the public prices of their vendors."""

from functools import lru_cache
from typing import Final

from genai_prices import Usage, calc_price

_PROVIDERS: Final = frozenset(("openai", "azure", "google", "groq"))


def price(model: str, input_tokens: int, output_tokens: int) -> float | None:
    """In US dollars, of a model named `provider:model`; None where its price is not public."""
    provider, _, name = model.partition(":")
    return price_at(provider, name, input_tokens, output_tokens) if provider in _PROVIDERS else None


def price_at(
    provider: str, model: str, input_tokens: int, output_tokens: int, cached_tokens: int = 0
) -> float | None:
    """As `price`; `cached_tokens` of those that were read came from the provider's own cache."""
    if not _is_listed(provider, model):
        return None
    spent = Usage(input_tokens=input_tokens, cache_read_tokens=cached_tokens, output_tokens=output_tokens)
    return float(calc_price(spent, model, provider_id=provider).total_price)


@lru_cache(maxsize=1_000)
def _is_listed(provider: str, model: str) -> bool:
    """Kept, since to find out that a model is not there takes long."""
    try:
        calc_price(Usage(), model, provider_id=provider)
    except (LookupError, ValueError):
        return False
    return True
