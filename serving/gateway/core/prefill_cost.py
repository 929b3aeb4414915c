"""Cost of a prompt to the instance that computes it, in tokens of a short prompt.

Projections and experts cost the same for every token; attention costs a token in proportion to what it looks back at.
So `u` uncached tokens behind `h` cached ones cost, in units of one token that looks back at nothing,

    u + u * (h + u / 2) / attention_tokens

Source: xDeepServe (arXiv 2508.02520) section 4.3 gives the form, the model's shape the scale.
"""

from msgspec import Struct


class PrefillCost(Struct, frozen=True, gc=False):
    """One model's prices.

    Args:
        attention_tokens: how many tokens one must look back at for attention to cost as much as everything else;
            0 = attention counts nothing. 14,800 for DeepSeek-R1.
    """

    attention_tokens: float = 0.0

    def tokens(self, uncached: int, cached: int = 0) -> int:
        """The price of a prompt.

        Args:
            uncached: tokens to be computed; cached: tokens before them whose KV is there.
        Returns: short-prompt tokens of the same cost.
        """
        if self.attention_tokens <= 0:
            return uncached
        return uncached + round(uncached * (cached + uncached / 2) / self.attention_tokens)
