"""Context range of core attention: at all of a context, at a window of it, or at tokens that an indexer chose."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContextReach:
    """Tokens that core attention of a layer reads, mean over a model's layers.

    Attributes:
        limit: most tokens that a limited layer reads for one token; None = no layer is limited.
        share: limited layers among all.
    """

    limit: int | None = None
    share: float = 1.0

    def tokens(self, context: float) -> float:
        """Tokens read for one token that has a context.

        Args:
            context: tokens; of several sequences their mean, which reads at least as many as they do.
        """
        if self.limit is None or context <= self.limit:
            return context
        return self.share * self.limit + (1 - self.share) * context

    def prompt_tokens(self, attended: float, first: float = 0.0) -> float:
        """Tokens read for each token of a prompt, mean over them.

        Args:
            attended: mean context of the computed tokens, distributed evenly around it.
            first: context of the first one; 0 = no cached prefix.
        """
        if self.limit is None:
            return attended
        low = min(first, attended)
        high = 2 * attended - low
        if high <= self.limit:
            return attended
        if low >= self.limit:
            return self.tokens(attended)
        read = ((self.limit**2 - low**2) / 2 + self.limit * (high - self.limit)) / (high - low)
        return self.share * read + (1 - self.share) * attended


EVERYTHING = ContextReach()
