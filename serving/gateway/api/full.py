"""The one JSON object that answers a request without `stream`."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.gateway.api.choice import ChoiceOutput, LogprobEntry, Visible
from serving.gateway.api.logprob_wire import chat_logprobs, completion_logprobs, prompt_logprobs
from serving.gateway.api.timing import Timing
from serving.gateway.api.tokenizer import Tokenizer
from serving.gateway.api.translate import GenerationOrder, OutputForm
from serving.gateway.api.usage import times, usage

_MANY = 1000
"""Log-probabilities; about 10 ms."""


class FullResponse:
    """Collects all that became visible and encodes it once."""

    def __init__(
        self,
        order: GenerationOrder,
        choices: Sequence[ChoiceOutput],
        tokenizer: Tokenizer,
        timing: Timing | None = None,
    ) -> None:
        self._timing = timing
        self._order = order
        self._choices = choices
        self._tokenizer = tokenizer
        self._texts: list[list[str]] = [[] for _ in choices]
        self._tokens: list[list[int]] = [[] for _ in choices]
        self._logprobs: list[list[LogprobEntry]] = [[] for _ in choices]
        self._ends: list[Visible] = [Visible() for _ in choices]

    def add(self, index: int, out: Visible) -> None:
        """Take what one update made visible."""
        self._texts[index].append(out.text)
        self._tokens[index].extend(out.tokens)
        self._logprobs[index].extend(out.logprobs)
        if out.finish is not None:
            self._ends[index] = out

    @property
    def short(self) -> bool:
        """Whether the body is made in no time."""
        return self._order.options.prompt_logprobs is None and sum(map(len, self._logprobs)) < _MANY

    def body(self, told: Mapping[str, Any]) -> bytes:
        """The response body.

        Args:
            told: further keys.
        """
        order = self._order
        chat = order.kind is OutputForm.CHAT
        answer = {
            **order.head("chat.completion" if chat else "text_completion"),
            "choices": [self._choice(choice, chat=chat) for choice in self._choices],
            "usage": usage(order, self._choices),
            **times(self._timing, self._choices),
            **told,
        }
        if chat:  # one prompt, so what is known about it belongs to the response
            answer |= self._prompt_facts(self._choices[0])
        return msgspec.json.encode(answer)

    def _choice(self, choice: ChoiceOutput, *, chat: bool) -> dict[str, Any]:
        index, options = choice.index, self._order.options
        text = "".join(self._texts[index])
        shown: dict[str, Any] = {"index": index}
        if chat:
            shown["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            shown["text"] = text
        shown["logprobs"] = None
        if options.logprobs is not None:
            encode = chat_logprobs if chat else completion_logprobs
            entries = self._logprobs[index]
            shown["logprobs"] = encode(entries, options.logprobs, self._tokenizer, as_ids=options.tokens_as_ids)
        shown["finish_reason"] = self._ends[index].finish
        shown["stop_reason"] = self._ends[index].stop_reason
        if options.token_ids:
            shown["token_ids"] = self._tokens[index]
        if not chat:
            shown |= self._prompt_facts(choice)
        return shown

    def _prompt_facts(self, choice: ChoiceOutput) -> dict[str, Any]:
        """The prompt's ids and log-probabilities, as far as they were asked for."""
        options = self._order.options
        prompt = self._order.prompts[choice.index // self._order.n]
        facts: dict[str, Any] = {}
        if options.token_ids:
            facts["prompt_token_ids"] = prompt
        if options.prompt_logprobs is not None:
            values = choice.prompt_logprobs
            facts["prompt_logprobs"] = prompt_logprobs(prompt, values, options.prompt_logprobs, self._tokenizer)
        return facts
