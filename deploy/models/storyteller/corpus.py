"""Clean text documents for the storyteller: which files, which parts, which are held out.

Only two sources are read, both with a clear licence: TinyStories (CDLA-Sharing-1.0) and public-domain children's
books. Held-out documents are selected by a hash of their text, so the split does not depend on order or on a seed.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_BOOK = "Old-Mother-West-Wind_2557"
HELD_OUT_STORY_PERCENT = 3
# The books in the plainest English (short sentences, common words), selected with `simplicity` below.
BOOKS_KEPT = 40
BOOK_CHUNK_CHARS = 6000

# "â€œ" and similar: UTF-8 quotes that were once decoded as Windows-1252.
MOJIBAKE = {
    "\u00e2\u20ac\u0153": '"',
    "\u00e2\u20ac\u009d": '"',
    "\u00e2\u20ac\u2122": "'",
    "\u00e2\u20ac\u02dc": "'",
    "\u00e2\u20ac\u201d": " - ",
    "\u00e2\u20ac\u201c": " - ",
    "\u00e2\u20ac\u00a6": "...",
    "\u00e2\u20ac": '"',
}
PUNCTUATION = {
    "\u201c": '"',
    "\u201d": '"',
    "\u2018": "'",
    "\u2019": "'",
    "\u2014": " - ",
    "\u2013": " - ",
    "\u2026": "...",
    "\u00a0": " ",
    "\ufeff": "",
    "\u00e9": "e",
    "\u00e8": "e",
    "\u00ea": "e",
    "\u00e6": "ae",
    "\u00eb": "e",
    "\u00e4": "a",
    "\u00f6": "o",
    "\u00fc": "u",
    "\u00e0": "a",
    "\u00e7": "c",
    "\u0153": "oe",
}


@dataclass(frozen=True)
class Corpus:
    """The documents of one training run, cleaned.

    Args:
        stories: TinyStories documents to train on.
        held_out_stories: TinyStories documents excluded from training.
        books: passages of about `BOOK_CHUNK_CHARS` characters, in reading order inside a book.
        held_out_book: passages of the one book excluded from training.
    """

    stories: list[str]
    held_out_stories: list[str]
    books: list[str]
    held_out_book: list[str]


def ascii_text(text: str) -> str:
    """Text with mojibake repaired, quotes straightened and runs of blanks joined; other symbols are unchanged."""
    for wrong, right in MOJIBAKE.items():
        text = text.replace(wrong, right)
    for wrong, right in PUNCTUATION.items():
        text = text.replace(wrong, right)
    text = re.sub(r"[ \t]+", " ", text)
    return re.sub(r" *\n+ *", "\n", text).strip()


def load_stories(path: Path) -> tuple[list[str], list[str]]:
    """TinyStories as (train, held out); near-empty, overlong and non-English entries are dropped."""
    train: list[str] = []
    held: list[str] = []
    for raw in path.read_text(encoding="utf-8").split("<|endoftext|>"):
        story = ascii_text(raw)
        if not 150 <= len(story) <= 5000 or not story.isascii() or story[-1] not in '.!?"':
            continue
        digest = int(hashlib.sha256(story.encode()).hexdigest()[:8], 16)
        (held if digest % 100 < HELD_OUT_STORY_PERCENT else train).append(story)
    return train, held


def book_paragraphs(raw: str) -> list[str]:
    """Running prose of a Gutenberg text: headings, contents, notes, verses and front matter removed, lines joined."""
    paragraphs = []
    for block in re.split(r"\n\s*\n", raw.replace("\r", "")):
        lines = [line.strip() for line in block.strip().split("\n")]
        text = ascii_text(" ".join(lines)).replace("_", "").replace("--", " - ").replace("  ", " ")
        letters = [c for c in text if c.isalpha()]
        upper = sum(c.isupper() for c in letters)
        if len(text) < 2 or not text.isascii() or text[-1] not in ".!?\"',:;" or upper > 0.3 * max(1, len(letters)):
            continue
        if re.search(r"\[|\]|\*|chapter|illustrat|gutenberg|copyright|e-?text|produced by|footnote", text, re.I):
            continue
        if len(lines) > 2 and max(map(len, lines)) < 48:  # short lines only: a verse
            continue
        paragraphs.append(text)
    first = len(paragraphs) // 50  # prefaces and dedications
    return paragraphs[first:]


def passages(paragraphs: list[str], size: int = BOOK_CHUNK_CHARS) -> list[str]:
    """Consecutive paragraphs joined by newlines into passages of about `size` characters."""
    out: list[str] = []
    current: list[str] = []
    length = 0
    for paragraph in paragraphs:
        current.append(paragraph)
        length += len(paragraph) + 1
        if length >= size:
            out.append("\n".join(current))
            current, length = [], 0
    if length > 500:
        out.append("\n".join(current))
    return out


def simplicity(text: str, known: set[str]) -> float:
    """Share of words that TinyStories also uses, less a penalty for long sentences; higher is simpler."""
    words = re.findall(r"[a-z']+", text.lower())
    sentences = max(1, len(re.findall(r"[.!?]", text)))
    return sum(word in known for word in words) / max(1, len(words)) - 0.002 * len(words) / sentences


def load_corpus(data: Path) -> Corpus:
    """Read and clean all files under `data` (the folder with `tinystories/` and `gutenberg_children/`).

    Raises: FileNotFoundError if a source is missing.
    """
    stories, held_stories = load_stories(data / "tinystories" / "tinystories_merged.txt")
    known = {word for story in stories for word in re.findall(r"[a-z']+", story.lower())}
    ranked: list[tuple[float, str, list[str]]] = []
    held_book: list[str] = []
    for path in sorted((data / "gutenberg_children").glob("*_*.txt")):
        paragraphs = book_paragraphs(path.read_text(encoding="utf-8", errors="replace"))
        if path.stem == HELD_OUT_BOOK:
            held_book = passages(paragraphs)
        else:
            ranked.append((simplicity(" ".join(paragraphs), known), path.stem, passages(paragraphs)))
    if not held_book:
        raise FileNotFoundError(f"{HELD_OUT_BOOK}.txt is not in {data / 'gutenberg_children'}")
    ranked.sort(reverse=True)
    books = [passage for _, _, chunk in ranked[:BOOKS_KEPT] for passage in chunk]
    return Corpus(stories, held_stories, books, held_book)
