"""Cost of a prompt to the instance that computes it, in tokens of a short prompt.

Projections and experts cost the same for every token; a token's attention cost is proportional to its context.
So `u` uncached tokens after `h` cached tokens cost, in units of one token without context,

    u + u * (h + u / 2) / attention_tokens

Source: xDeepServe (arXiv 2508.02520) section 4.3 for the form; the scale follows from the model's shape.
"""

from msgspec import Struct


class PrefillCost(Struct, frozen=True, gc=False):
    """Costs of one model.

    Args:
        attention_tokens: context length at which a token's attention costs as much as the rest of its computation;
            0 = attention is free. 14,800 for DeepSeek-R1.
    """

    attention_tokens: float = 0.0

    def tokens(self, uncached: int, cached: int = 0) -> int:
        """The cost of a prompt.

        Args:
            uncached: tokens to be computed; cached: tokens before them whose KV exists.
        Returns: short-prompt tokens of the same cost.
        """
        if self.attention_tokens <= 0:
            return uncached
        return uncached + round(uncached * (cached + uncached / 2) / self.attention_tokens)
