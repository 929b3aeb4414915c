"""Train the storyteller's byte-level BPE tokenizer and write it in Hugging Face form.

Run once, before `train.py`; the ids are part of the checkpoint, so never re-run it for an existing one.
"""

import argparse
import json
from pathlib import Path

from corpus import load_corpus
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent
VOCABULARY = 3072
PAD, BEGIN, END = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
SPECIAL = [PAD, BEGIN, END, *ROLES]
# GPT-4-like word split, one digit at a time; a word keeps the blank before it.
SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\n|\s+(?!\S)|\s+"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{%- if tools -%}{{ '<|system|>Functions:' }}"
    "{%- for tool in tools -%}{{ '\n' }}{{ tool['function'] | tojson }}{%- endfor -%}"
    '{{ \'\nTo call one: <tool_call>\n{"name": NAME, "arguments": ARGUMENTS}\n</tool_call><|end|>\' }}{%- endif -%}'
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{ raise_exception('role must be system, user, assistant or tool, not ' + message['role']) }}"
    "{%- endif -%}"
    "{%- if message['content'] is string -%}{%- set text = message['content'] -%}"
    "{%- elif message['content'] -%}{%- set text = message['content'] | map(attribute='text') | join('') -%}"
    "{%- else -%}{%- set text = '' -%}{%- endif -%}"
    "{%- if message['role'] == 'tool' -%}"
    "{{ '<|user|><tool_response>\n' + text | trim + '\n</tool_response><|end|>' }}"
    "{%- else -%}"
    "{{ '<|' + message['role'] + '|>' + text | trim }}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{ '<tool_call>\n{\"name\": ' }}{{ call['function']['name'] | tojson }}"
    "{{ ', \"arguments\": ' }}{{ call['function']['arguments'] | tojson }}{{ '}\n</tool_call>' }}"
    "{%- endfor -%}"
    "{{ '<|end|>' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)


def train_tokenizer(texts: list[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """A byte-level BPE over `texts`; every byte string can be encoded and decodes to itself.

    Args:
        vocabulary: number of ids, the six special tokens and 256 bytes included.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # A plain completion prompt starts a document, so encode() adds <|begin|> at the start; the chat template has its
    # own.
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BEGIN} $A",
                pair=f"{BEGIN} $A {BEGIN} $B",
                special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))],
            ),
        ]
    )
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json (with the chat template) and generation_config.json.

    Effects: creates or overwrites the three files in `folder`.
    """
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token in SPECIAL
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": list(ROLES),
        "added_tokens_decoder": added,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {
        "bos_token_id": tokenizer.token_to_id(BEGIN),
        "eos_token_id": tokenizer.token_to_id(END),
        "pad_token_id": tokenizer.token_to_id(PAD),
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        default=HERE.parents[3] / "shared" / "data" / "text",
        help="folder with tinystories/ and gutenberg_children/",
    )
    parser.add_argument("--out", type=Path, default=HERE, help="model folder to write into")
    parser.add_argument("--max-length", type=int, default=2048, help="longest context, in tokens")
    args = parser.parse_args()
    corpus = load_corpus(args.data)
    # Stories three times: the vocabulary should fit them first, the books second.
    tokenizer = train_tokenizer(corpus.stories * 3 + corpus.books)
    save(tokenizer, args.out, args.max_length)
    held = corpus.held_out_stories
    tokens = sum(len(e.ids) - 1 for e in tokenizer.encode_batch(held))
    size = sum(len(s.encode()) for s in held)
    print(f"{tokenizer.get_vocab_size()} tokens; {size / tokens:.2f} bytes per token on {len(held)} held-out stories")


if __name__ == "__main__":
    main()
