"""Sequences for models of several families: chunks, a small batch, common prefixes."""

from serving.ids import SequenceId
from serving.instance.core.settings import EngineSettings
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.instance.torch_pair import prompt

SETTINGS = EngineSettings(
    block_tokens=4, max_step_tokens=24, max_sequences=4, max_model_len=160, watermark_blocks=0, prefix_reuse=True
)
MANY = 400


def specs(count: int = 6, stem: int = 50) -> list[SequenceSpec]:
    """Sequences of which every second one shares the prefix of the first."""
    beginning, greedy = prompt(stem, 99), SamplingParams(temperature=0, max_tokens=40)
    return [
        SequenceSpec(SequenceId(f"s{i}"), (*(beginning if i % 2 == 0 else ()), *prompt(9 + 14 * i, i)), greedy)
        for i in range(count)
    ]
