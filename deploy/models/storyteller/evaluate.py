"""Measure the exported storyteller on unseen text, and write the figures and samples into the model card.

All inputs are read from this folder like a user would: weights and tokenizer through transformers for generation, the
training model (proved equal by export.py) for perplexity and for the MTP layer, which transformers lacks.
"""

import argparse
import json
import math
import re
import time
from pathlib import Path
from typing import Any

import torch
from corpus import Corpus, load_corpus
from export import load_exported
from model import Storyteller
from torch import Tensor

HERE = Path(__file__).resolve().parent
GREEDY_PROMPTS, GREEDY_PROMPT_TOKENS, GREEDY_NEW_TOKENS = 48, 32, 160
SAMPLING = {"do_sample": True, "temperature": 0.7, "top_p": 0.95, "top_k": 0, "max_new_tokens": 400}
OPENINGS = [
    "Once upon a time",
    "Once upon a time, there was a little frog",
    "One day, a girl named Mia",
    "The old bear was",
]
REQUESTS = [
    "Tell me a story about a little dog and a ball.",
    "Tell me a story about a cat who finds a hat.",
    "Write a short story about a bird and a tree.",
    "Can you tell me a story about a boy named Sam and a boat?",
    "Tell me a bedtime story about the moon.",
    "Please tell me a story about a cake and a birthday.",
]
CHATS = ["Hello!", "Who are you?", "Continue this story: Tom had a red kite. He ran up the hill with it."]
FOLLOW_UP = "What is the story about?"


def batches(model: Any, tokenizer: Any, texts: list[str]) -> list[Tensor]:  # noqa: ANN401
    """One [1, n] tensor per document: <|begin|> text <|end|>, cut to the longest context."""
    limit = model.shape.max_position_embeddings
    ids = (tokenizer(f"{text}<|end|>").input_ids[:limit] for text in texts)
    return [torch.tensor([row]) for row in ids]


@torch.no_grad()
def perplexity(model: Storyteller, tokenizer: Any, texts: list[str]) -> dict[str, float]:  # noqa: ANN401
    """Per-token and per-word perplexity and bits per byte over whole documents, the end token included."""
    nats = tokens = words = size = 0.0
    for ids in batches(model, tokenizer, texts):
        logits = model.logits(model.hidden(ids[:, :-1]))[0]
        nats += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        read = tokenizer.decode(ids[0], skip_special_tokens=True)
        tokens, words, size = tokens + ids.shape[1] - 1, words + len(read.split()), size + len(read.encode())
    return {
        "documents": len(texts),
        "tokens": int(tokens),
        "nats_per_token": nats / tokens,
        "perplexity_per_token": math.exp(nats / tokens),
        "perplexity_per_word": math.exp(nats / words),
        "bits_per_byte": nats / math.log(2) / size,
    }


@torch.no_grad()
def loss_by_position(model: Storyteller, tokenizer: Any, texts: list[str]) -> list[float]:  # noqa: ANN401
    """Mean nats per token in each quarter of a full-length window of running text, as a check of long context."""
    limit = model.shape.max_position_embeddings
    ids = torch.tensor(tokenizer("\n".join(texts)).input_ids)
    windows = ids[: len(ids) // (limit + 1) * (limit + 1)].view(-1, limit + 1)
    logits = model.logits(model.hidden(windows[:, :-1]))
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none")
    return [float(part.mean()) for part in losses.chunk(4, 1)]


@torch.no_grad()
def acceptance(model: Storyteller, ids: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
    """Measure how well the MTP layer drafts for the main model along `ids` [batch, length].

    At position t the draft for token t + 2 is made from the hidden state at t and token t + 1; the main model's own
    choice for t + 2 is made in its step at t + 1.

    Args:
        start: first position t that counts.
    Returns: greedy agreement (bool) and, for sampling at temperature 1, the acceptance probability
        sum(min(p, q)) (float32), both [batch, length - 1 - start].
    """
    hidden = model.hidden(ids)
    main = model.logits(hidden[:, 1:])[:, start:]
    draft = model.logits(model.mtp_hidden(ids[:, 1:], hidden[:, :-1]))[:, start:]
    return main.argmax(-1) == draft.argmax(-1), torch.minimum(main.softmax(-1), draft.softmax(-1)).sum(-1)


def acceptance_figures(model: Storyteller, reader: Any, tokenizer: Any, corpus: Corpus) -> dict[str, float]:  # noqa: ANN401
    """Acceptance of the second token on held-out text and along greedy generations that continue held-out stories."""
    read = [acceptance(model, ids) for ids in batches(model, tokenizer, corpus.held_out_stories)]
    prompts = [tokenizer(s).input_ids for s in corpus.held_out_stories]
    opened = torch.tensor([p[:GREEDY_PROMPT_TOKENS] for p in prompts if len(p) > GREEDY_PROMPT_TOKENS][:GREEDY_PROMPTS])
    out = reader.generate(
        opened,
        attention_mask=torch.ones_like(opened),
        do_sample=False,
        num_beams=1,
        max_new_tokens=GREEDY_NEW_TOKENS,
        temperature=None,
        top_p=None,
    )
    said = []
    for row in out:
        ends = (row[GREEDY_PROMPT_TOKENS:] == tokenizer.eos_token_id).nonzero()
        length = GREEDY_PROMPT_TOKENS + int(ends[0]) + 1 if len(ends) else len(row)
        said.append(acceptance(model, row[None, :length], start=GREEDY_PROMPT_TOKENS - 1)[0][0, :-1])
    return {
        "held_out_greedy": float(torch.cat([a[0] for a, _ in read]).float().mean()),
        "held_out_sampled": float(torch.cat([p[0] for _, p in read]).mean()),
        "generated_greedy": float(torch.cat(said).float().mean()),
        "generated_tokens": sum(map(len, said)),
    }


def copied_share(samples: list[str], corpus: Corpus, n: int = 8) -> float:
    """Share of the samples' runs of `n` words that also occur in a training story, as a measure of memorization."""

    def runs(text: str) -> list[tuple[str, ...]]:
        words = re.findall(r"[a-z']+", text.lower())
        return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]

    seen = {hash(run) for story in corpus.stories for run in runs(story)}
    made = [run for sample in samples for run in runs(sample)]
    return sum(hash(run) in seen for run in made) / max(1, len(made))


def say(reader: Any, tokenizer: Any, ids: list[int], seed: int) -> str:  # noqa: ANN401
    """Sampled continuation of a prompt, up to its end token."""
    torch.manual_seed(seed)
    prompt = torch.tensor([ids])
    out = reader.generate(prompt, attention_mask=torch.ones_like(prompt), **SAMPLING)
    return tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True).strip("\n")


def samples(reader: Any, tokenizer: Any, seed: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:  # noqa: ANN401
    """Ten stories and a few chat responses, as (prompt, text). Seeds are consecutive, without manual selection."""

    def answer(messages: list[dict[str, str]], number: int) -> str:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return say(reader, tokenizer, list(ids["input_ids"]), number).strip()

    stories = [(p, p + say(reader, tokenizer, tokenizer(p).input_ids, seed + i)) for i, p in enumerate(OPENINGS)]
    stories += [(r, answer([{"role": "user", "content": r}], seed + 10 + i)) for i, r in enumerate(REQUESTS)]
    chats = [(c, answer([{"role": "user", "content": c}], seed + 20 + i)) for i, c in enumerate(CHATS)]
    asked, told = stories[len(OPENINGS)]
    history = [("user", asked), ("assistant", told), ("user", FOLLOW_UP)]
    chats.append(
        (
            f"{FOLLOW_UP} (after the story of the dog and the ball)",
            answer([{"role": r, "content": c} for r, c in history], seed + 30),
        )
    )
    return stories, chats


def figures_table(figures: dict[str, Any]) -> str:
    """The measured figures as a Markdown table."""
    rows = ["| on text never trained on | stories | the held-out book |", "| --- | --- | --- |"]
    for key in ("documents", "tokens", "perplexity_per_token", "perplexity_per_word", "bits_per_byte"):
        values = [figures[part][key] for part in ("stories", "book")]
        shown = [f"{v:,}" if isinstance(v, int) else f"{v:.3f}" if v < 3 else f"{v:.2f}" for v in values]
        rows.append(f"| {key.replace('_', ' ')} | {shown[0]} | {shown[1]} |")
    mtp = figures["mtp"]
    rows += [
        "",
        "| MTP: second token accepted | share |",
        "| --- | --- |",
        f"| greedy, continuing held-out stories ({mtp['generated_tokens']:,} generated tokens) "
        f"| {mtp['generated_greedy']:.1%} |",
        f"| greedy, along the held-out stories' own text | {mtp['held_out_greedy']:.1%} |",
        f"| sampling at temperature 1, along the same text | {mtp['held_out_sampled']:.1%} |",
        "",
        "Loss on the held-out book by quarter of a 2,048-token context [nat per token]: "
        + ", ".join(f"{x:.3f}" for x in figures["book_loss_by_quarter"])
        + ".",
        "Runs of eight words in the ten stories below that stand word for word in a training story: "
        f"{figures['copied_share']:.1%} (in held-out stories: {figures['copied_share_of_people']:.1%}).",
    ]
    return "\n".join(rows)


def write_card(card: Path, parts: dict[str, str]) -> None:
    """Replace the marked parts of the model card. Raises: ValueError if a marker is missing. Effects: writes `card`."""
    text = card.read_text()
    for name, body in parts.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"{card} has no part between '{begin}' and '{end}'")
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{body}\n{end}{rest.split(end)[1]}"
    card.write_text(text)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        default=HERE.parents[3] / "shared" / "data" / "text",
        help="folder with tinystories/ and gutenberg_children/ (default: %(default)s)",
    )
    parser.add_argument("--model", type=Path, default=HERE, help="folder to measure (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the samples (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default: %(default)s)")
    parser.add_argument("--card", type=Path, default=None, help="model card to fill in; none: only print")
    args = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    began = time.time()
    corpus = load_corpus(args.data)
    model = load_exported(args.model)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    reader = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    figures: dict[str, Any] = {
        "stories": perplexity(model, tokenizer, corpus.held_out_stories),
        "book": perplexity(model, tokenizer, corpus.held_out_book),
        "book_loss_by_quarter": loss_by_position(model, tokenizer, corpus.held_out_book),
        "mtp": acceptance_figures(model, reader, tokenizer, corpus),
    }
    told, chats = samples(reader, tokenizer, args.seed)
    figures["copied_share"] = copied_share([text for _, text in told], corpus)
    figures["copied_share_of_people"] = copied_share(corpus.held_out_stories, corpus)
    print(json.dumps(figures, indent=1))
    listing = "\n\n".join(f"**{i}. {p}**\n\n{quote(t)}" for i, (p, t) in enumerate(told, 1))
    talk = "\n\n".join(f"**{p}**\n\n{quote(t)}" for p, t in chats)
    print(listing, talk, f"{time.time() - began:.0f} s", sep="\n\n")
    if args.card is not None:
        (args.model / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
        write_card(args.card, {"figures": figures_table(figures), "stories": listing, "chats": talk})


def quote(text: str) -> str:
    """Text as a Markdown block quote, line breaks kept."""
    return "\n>\n".join(f"> {line}" for line in text.split("\n"))


if __name__ == "__main__":
    main()
