"""Chat-style samples made from the stories, and name swaps that vary each reading of a story.

No other model generates anything: the assistant's text is a story of the corpus or one of a few fixed sentences, and
the user's text names things in the story.
"""

import re
from collections import Counter
from dataclasses import dataclass
from random import Random

BOYS = (
    "Tim Tom Ben Max Sam Jack Bob Billy Timmy Tommy Andy Joe John Fred Peter Leo Jake Bobby Jerry Bill "
    "Henry George Oliver Thomas James"
).split()
GIRLS = (
    "Lily Lucy Mia Sue Amy Sally Jane Sarah Emma Anna Ella Bella Mary Molly Kate Jenny Sara Lola Emily Alice "
    "Lisa Annie Clara Nora Ruby"
).split()
STOPWORDS = set(
    "day time end way one man boy girl first next same other thing things lot morning night big little fun it he she "
    "they name world middle back top side front bit while rest best people others idea moral person place home "
    "something everyone good new day, days kind".split()
)
SYSTEM = [
    "You are a storyteller for children.",
    "You are a kind storyteller. You tell short stories in simple words.",
    "You are a helpful assistant.",
    "You tell short stories to little children.",
]
ASK = [
    "Tell me a story about {}.",
    "Tell me a story about {}.",
    "Tell me a short story about {}.",
    "Please tell me a story about {}.",
    "Can you tell me a story about {}?",
    "Write a story about {}.",
    "Write a short story about {}.",
    "I want to hear a story about {}.",
    "Tell me a bedtime story about {}.",
    "Could you tell me a story about {}, please?",
    "Make up a story about {}.",
    "A story about {}, please!",
    "tell me a story about {}",
    "Do you know a story about {}?",
    "Tell a story with {} in it.",
]
ASK_ANY = [
    "Tell me a story.",
    "Tell me a story!",
    "Please tell me a story.",
    "Can you tell me a story?",
    "I want to hear a story.",
    "Tell me a bedtime story.",
    "Write a short story.",
    "Another story, please.",
]
ANOTHER = [
    "Thank you! Now tell me a story about {}.",
    "Tell me another story about {}.",
    "That was nice. Tell me one about {}.",
    "Can you tell me another one, about {}?",
]
CONTINUE = ["Continue this story: {}", "Continue this story:\n{}", "Finish this story: {}", "What happens next? {}"]
ABOUT = ["What is the story about?", "What was the story about?", "What is this story about?"]
WHO = ["Who is in the story?", "Who is the story about?", "What is the name of the hero?"]
SMALL_TALK = [
    (
        ["Hello!", "Hello", "Hi!", "Hi", "Hi there!", "Good morning!", "Hey"],
        "Hello! I am a storyteller. Would you like to hear a story?",
    ),
    (
        ["Who are you?", "What are you?", "What is your name?", "Tell me about yourself."],
        "I am a storyteller, a very small model that tells short stories in simple words.",
    ),
    (
        ["What can you do?", "How can you help me?", "Help", "What do you do?"],
        "I can tell you a short story. Tell me what it should be about, like a dog and a ball.",
    ),
    (
        ["Thank you!", "Thanks!", "Thank you, that was a nice story.", "Thank you very much."],
        "You are welcome! Would you like to hear another story?",
    ),
    (["How are you?", "How are you today?"], "I am very well, thank you! Would you like to hear a story?"),
    (["Goodbye!", "Bye!", "Good night!"], "Goodbye! Come back soon for another story."),
]


@dataclass(frozen=True)
class Story:
    """A story and the data for a request that asks for it.

    Args:
        nouns: up to five things in it, the most specific first.
        hero: "a boy named Tim", or None.
        name: the hero's name, or None.
    """

    text: str
    nouns: tuple[str, ...]
    hero: str | None
    name: str | None


def index_stories(texts: list[str]) -> list[Story]:
    """Find each story's specific nouns by a heuristic: words that often follow an article and end a phrase."""
    bare: Counter[str] = Counter()
    every: Counter[str] = Counter()
    ends = r"(?:[.,!?]|(?: (?:was|is|and|in|on|to|with|that|had|said|who|for|from|at)\b))"
    for text in texts:
        every.update(re.findall(r"[a-z]+", text))
        bare.update(re.findall(rf"\b(?:the|a|an|his|her) ([a-z]{{3,}}){ends}", text))
    nouns = {w for w, n in bare.items() if n >= 4 and n > 0.25 * every[w] and w not in STOPWORDS}
    documents = Counter(w for text in texts for w in set(re.findall(r"[a-z]+", text)) & nouns)
    return [describe(text, nouns, documents, len(texts)) for text in texts]


def describe(text: str, nouns: set[str], documents: Counter[str], total: int) -> Story:
    """One story's `Story` record; nouns are ranked by their frequency relative to how common they are."""
    counts = Counter(w for w in re.findall(r"[a-z]+", text) if w in nouns)
    ranked = sorted(counts, key=lambda w: -(counts[w]) * (total / documents[w]) ** 0.35)
    kind = (
        r"(?:little |young |small |big |brave |happy )?(?:boy|girl|dog|cat|bird|bear|rabbit|bunny|fish|mouse|frog|duck)"
    )
    hero = re.search(rf"\b(an? {kind}) (?:named|called) ([A-Z][a-z]+)", text)
    if hero:
        return Story(text, tuple(ranked[:5]), f"{hero[1]} named {hero[2]}", hero[2])
    return Story(text, tuple(ranked[:5]), None, None)


def with_article(noun: str) -> str:
    """'dog' -> 'a dog', 'owl' -> 'an owl', 'toys' -> 'toys'."""
    if noun.endswith("s") and not noun.endswith(("ss", "us")):
        return noun
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def topic(story: Story, rng: Random) -> str | None:
    """The story's topic in a user's wording; None if no specific noun was found."""
    parts = [
        with_article(n) for n in rng.sample(story.nouns[:4], k=min(len(story.nouns[:4]), rng.choice((1, 1, 2, 2, 3))))
    ]
    if story.hero and rng.random() < 0.4:
        parts = [story.hero, *parts[:1]] if rng.random() < 0.5 else [story.hero]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def swap_names(story: Story, rng: Random) -> Story:
    """The same story with common first names exchanged for others from the same list, one to one."""
    mapping: dict[str, str] = {}
    for names in (BOYS, GIRLS):
        present = [n for n in names if re.search(rf"\b{n}\b", story.text)]
        free = [n for n in names if n not in present]
        mapping.update(zip(present, rng.sample(free, k=len(present)), strict=True) if len(free) >= len(present) else ())
    if not mapping:
        return story
    pattern = re.compile(r"\b(" + "|".join(mapping) + r")\b")

    def swapped(text: str | None) -> str | None:
        return None if text is None else pattern.sub(lambda m: mapping[m[1]], text)

    return Story(swapped(story.text) or "", story.nouns, swapped(story.hero), swapped(story.name))


def chat(story: Story, other: Story, rng: Random) -> list[tuple[str, str]]:
    """A conversation as (role, text) pairs that ends with the assistant.

    Args:
        story: the response to the first request.
        other: the second story of a longer conversation.
    """
    turns: list[tuple[str, str]] = []
    if rng.random() < 0.35:
        turns.append(("system", rng.choice(SYSTEM)))
    if rng.random() < 0.06:
        questions, answer = rng.choice(SMALL_TALK)
        turns += [("user", rng.choice(questions)), ("assistant", answer)]
        if rng.random() < 0.3:
            return turns
    about = topic(story, rng)
    sentences = re.split(r"(?<=[.!?\"]) ", story.text)
    draw = rng.random()
    if draw < 0.15 and len(sentences) > 4:
        cut = rng.randint(1, 3)
        turns.append(("user", rng.choice(CONTINUE).format(" ".join(sentences[:cut]).strip())))
        turns.append(("assistant", " ".join(sentences[cut:]).strip()))
    else:
        request = rng.choice(ASK_ANY) if about is None or draw > 0.95 else rng.choice(ASK).format(about)
        turns += [("user", request), ("assistant", story.text)]
    turns += follow_up(story, other, rng)
    return turns


def follow_up(story: Story, other: Story, rng: Random) -> list[tuple[str, str]]:
    """Usually empty; otherwise a question about the story, thanks, or a second story."""
    draw = rng.random()
    if draw < 0.10 and len(story.nouns) > 1:
        things = " and ".join(with_article(n) for n in story.nouns[:2])
        hero = f"{story.hero}, " if story.hero else ""
        return [("user", rng.choice(ABOUT)), ("assistant", f"It is about {hero}{things}.")]
    if draw < 0.16 and story.hero:
        return [("user", rng.choice(WHO)), ("assistant", f"The story is about {story.hero}.")]
    if draw < 0.20:
        questions, answer = SMALL_TALK[3]
        return [("user", rng.choice(questions)), ("assistant", answer)]
    about = topic(other, rng)
    if draw < 0.26 and about:
        return [("user", rng.choice(ANOTHER).format(about)), ("assistant", other.text)]
    return []


def render(turns: list[tuple[str, str]]) -> str:
    """Text of the chat template, without the leading <|begin|>."""
    return "".join(f"<|{role}|>{text.strip()}<|end|>" for role, text in turns)
