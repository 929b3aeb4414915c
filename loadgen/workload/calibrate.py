"""Find words that are one token each for a given tokenizer, and verify them on samples.

Done once a run: two to ten calls of the tokenizer if it can show its tokens, one call a word if it only counts.

    common English words, each behind a space
        -> those that are one token so        -> strings of them counted: as many tokens as words?
    if they are too few (byte tokenizers): the same with single letters and digits without spaces
    if neither is proven: words at the measured rate of tokens a word, and lengths are called estimates
"""

import random
import string
from collections.abc import Iterable, Sequence

from loadgen.workload.ports import TokenCounter
from loadgen.workload.words import TOKENS_PER_WORD, PromptKind, Words, ordinary_ids

# Common English words, from which prompts are made.
#
# Most tokenizers have most of them as one token after a space; `calibrate` finds out which. Short, common, lower case,
# and without parts that a tokenizer may split or a content filter may reject.

ENGLISH_WORDS: tuple[str, ...] = tuple(
    """
a able about above across act add after again against age ago air all almost alone along already also always am
among an and animal another answer any anything apple are area arm around art as ask at away baby back bad bag ball
bank bar base basket be beach bear beautiful became because become bed been before began begin behind being believe
bell below beside best better between big bird birthday bit black blue board boat body book both bottom bowl box boy
branch brave bread break bridge bright bring broken brother brought brown build building built bus busy but
butterfly button buy by cake call came can candle cannot car card care careful carry case castle cat catch caught
cause center chair chance change check chicken child children choose circle city class clean clear climb close
clothes cloud coat cold color come common complete cook cookie cool corner could count country course cover cow
create cried cross cry cup cut dad dance dark daughter day dear decide deep deer did different dinner dirty do
doctor does dog doll done door down draw dream dress drink drive drop dry duck during each ear early earth easy eat
edge egg eight either else empty end energy enjoy enough even evening ever every everyone everything example excited
explain eye face fact fair fall family far farm farmer fast fat father feed feel feet fell felt few field fight fill
final find fine finger fire first fish five fix flag flat flew floor flower fly follow food foot for forest forget
form forward found four fox free fresh friend friendly frog from front fruit full fun funny game garden gave general
gentle get giant gift girl give glad glass go goal goat gold gone good got grandma grandpa grass gray great green
grew ground group grow had hair half hand happen happy hard has hat have he head hear heard heart heavy held hello
help hen her here hid hide high hill him himself his hit hold hole home hope horse hot hour house how hug huge human
hundred hungry hurry hurt ice idea if important in inside into is island it its job join joy juice jump just keep
key kick kind king kiss kitchen kite kitten knew know land large last late later laugh lazy lead leaf learn least
leave leaves left leg less let letter level life lift light like line lion list listen little live lock log long
look lost lot loud love low luck lucky lunch machine mad made magic main make man many map mark market matter may
maybe me mean meat meet men mess met middle might milk mind mine minute mirror miss mix moment money monkey moon
more morning most mother mountain mouse mouth move much mud music must my name near neck need nest never new next
nice night nine no noise none nose not note nothing notice now number of off offer often oh oil okay old on once one
only open or orange order other our out outside over own page paint pair paper parent park part party pass past path
pay people perfect person pet phone picture piece pig pink place plan plant plate play please point police pond poor
pot power present press pretty problem proud pull push put queen question quick quickly quiet rabbit race rain
rainbow ran reach read ready real really reason red remember rest result rich ride right ring river road robot rock
roll roof room rope round row run sad safe said same sand sat save saw say scared school sea season seat second
secret see seed seem seen sell send set seven shadow shape share sharp she sheep shell shelf shine shiny ship shirt
shoe shop short should shout show shut sick side sign silly silver simple since sing sister sit six size skin sky
sleep slide slow slowly small smart smell smile snake snow so soft soil some someone something sometimes son song
soon sorry sound soup space speak special spell spider splash spoon spot spring square squirrel stand star start
state station stay step stick still stone stood stop store storm story strange street string strong such sudden
suddenly sugar summer sun sunny sure surprise sweet swim swing table tail take talk tall taste teach teacher team
tell ten than thank that the their them then there these they thick thin thing think third this those though thought
three threw through throw tie time tiny tired to today together told tomorrow too took tooth top touch toward tower
town toy train travel tree tried trip truck true trust try turn turtle two under until up upon us use useful van
very view village visit voice wait wake walk wall want warm was wash watch water wave way we wear weather week well
went were wet what wheel when where which while white who whole why wide wild will win wind window wing winter wise
wish with without wolf woman wonder wonderful wood word work world worm worry would write wrong yard year yellow yes
yet you young your
""".split()
)


# Find words that are one token each for a given tokenizer, and verify them on samples.

FEWEST_WORDS = 32
"""With fewer words prompts would repeat themselves so much that they resemble a shared prefix."""
ENOUGH_WORDS = 256
"""Where each word costs a call, so many are enough."""
_SAMPLES = 3
_SPACED = tuple(f" {word}" for word in ENGLISH_WORDS)
_CHARACTERS = tuple(string.ascii_lowercase + string.ascii_uppercase + string.digits)
_SPACE_MARKS = {"Ġ": " ", "▁": " "}
"""How byte-level (GPT-2) and SentencePiece vocabularies write a space."""


def calibrate(
    counter: TokenCounter | None,
    *,
    kind: PromptKind = PromptKind.TEXT,
    chat: bool = False,
    vocabulary_size: int | None = None,
    salt: str = "",
) -> Words:
    """The words for a run.

    Args:
        counter: the model's tokenizer; None = no tokenizer is available, and lengths are estimates.
        kind: what prompts are made of. chat: prompts pass through a chat template, so the begin-of-text token belongs
        to the template and is not counted. vocabulary_size: for token ids; None = the numbers of the words themselves.
        salt: see `Words.salt`.
    Raises: ServerError if a request to the server's tokenizer fails; UsageError for a vocabulary that is too small.
    """
    token_ids = None if vocabulary_size is None else ordinary_ids(vocabulary_size)
    if counter is None:
        return Words(_SPACED, token_ids, kind, tokens_per_word=TOKENS_PER_WORD, salt=salt)
    for candidates in (_SPACED, _CHARACTERS):
        kept = _single_tokens(counter, candidates)
        overhead = _proven_overhead(counter, kept) if len(kept) >= FEWEST_WORDS else None
        if overhead is not None:
            known = token_ids if token_ids is not None else _ids_of(counter, kept, overhead)
            counted = 0 if chat or kind is PromptKind.IDS else overhead
            return Words(kept, known, kind, overhead_tokens=counted, salt=salt)
    rate = counter.count("".join(_SPACED)) / len(_SPACED)
    # Never 1 exactly: that would claim the proof that failed.
    return Words(_SPACED, token_ids, kind, tokens_per_word=rate if rate != 1 else 1 + 1e-9, salt=salt)


def with_plain_spaces(pieces: Iterable[str]) -> list[str]:
    """Token texts with the vocabulary's mark of a space written as a space."""
    return [_SPACE_MARKS.get(piece[:1], piece[:1]) + piece[1:] for piece in pieces]


def _single_tokens(counter: TokenCounter, candidates: tuple[str, ...]) -> tuple[str, ...]:
    """Candidates that are one token, as far as one call can show."""
    pieces = counter.pieces("".join(candidates)) if candidates is _SPACED else _pieces_of_each(counter, candidates)
    if pieces is not None:
        shown = frozenset(with_plain_spaces(pieces))
        return tuple(word for word in candidates if word in shown)
    # One word shows how many tokens are added to any text, if it is one token itself; `_proven_overhead` finds out.
    least = min(counter.count(word) for word in candidates[:8])
    kept = []
    for word in candidates:
        if counter.count(word) == least:
            kept.append(word)
        if len(kept) == ENOUGH_WORDS:
            break
    return tuple(kept)


def _pieces_of_each(counter: TokenCounter, characters: Sequence[str]) -> list[str] | None:
    """Tokens of the characters, parted by spaces so that they do not join."""
    return counter.pieces(" ".join(characters))


def _proven_overhead(counter: TokenCounter, words: tuple[str, ...]) -> int | None:
    """Tokens that are added to any text, if every sample of words has that many more tokens than words; else None."""
    shuffled = random.Random(0)
    overheads = {counter.count(words[0]) - 1, counter.count(words[0] + words[1]) - 2}
    for _ in range(_SAMPLES):
        sample = [*shuffled.sample(words, len(words)), *shuffled.choices(words, k=len(words))]
        overheads.add(counter.count("".join(sample)) - len(sample))
    overhead = min(overheads)
    return overhead if len(overheads) == 1 and overhead >= 0 else None


def _ids_of(counter: TokenCounter, words: tuple[str, ...], overhead: int) -> tuple[int, ...] | None:
    """The words' token numbers; None if the counter does not report them.

    The tokenizer may add tokens in front of or behind the text; the two orders of the words have it in common.
    """
    forward, backward = counter.ids("".join(words)), counter.ids("".join(reversed(words)))
    if forward is None or backward is None or len(forward) != len(words) + overhead:
        return None
    before = 0
    while before < overhead and forward[before] == backward[before]:
        before += 1
    return tuple(forward[before : before + len(words)])
