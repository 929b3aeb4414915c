"""llguidance behind one small interface, so that masks may be made by its Python classes or by its C functions."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

from llguidance import LLMatcher

from serving.grammar.text import LIMITS
from serving.grammar.vocabulary import Vocabulary, guidance_tokenizer


class RawMatcher(Protocol):
    """A grammar and an output so far, as llguidance has it; its own classes fit. Errors are for good."""

    def deep_copy(self) -> Self:
        """Another one for the same output."""
        ...

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> object:
        """Write the tokens that may come next, a bit for each and one for the end."""
        ...

    def consume_token(self, sampled_token: int) -> bool:
        """Append a token to the output. Returns: False if the token is not allowed."""
        ...

    def compute_ff_tokens(self) -> Sequence[int]:
        """Tokens that must come next, as far as there is only one way on."""
        ...

    def is_error(self) -> bool:
        """Whether it has failed."""
        ...

    def get_error(self) -> str:
        """Why."""
        ...


Compile = Callable[[str], RawMatcher]
"""Makes a matcher of a grammar, as `guidance_text` writes it; one that `is_error` if it is none."""


class GuidanceRoute(Protocol):
    """A way to call llguidance.

    Attributes:
        step_functions: addresses of its C functions for `GrammarFunctions` of the native step, if its matchers have an
            `address` for them; else empty.
    """

    @property
    def step_functions(self) -> Sequence[int]: ...

    def __call__(self, vocabulary: Vocabulary) -> Compile:
        """Prepare a vocabulary; may take a second for a large one."""
        ...


class PythonRoute:
    """Through llguidance's Python classes."""

    step_functions: Sequence[int] = ()

    def __call__(self, vocabulary: Vocabulary) -> Compile:
        """Implements `GuidanceRoute`."""
        tokenizer = guidance_tokenizer(vocabulary)
        return lambda text: LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)
