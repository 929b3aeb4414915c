"""Grammars of a text, rewritten for that text inside a JSON string with its escapes.

A model writes the input of a custom tool as a string in JSON arguments, while a client constrains the text itself by a
Lark grammar. Quotes, backslashes, line breaks and tabs get their usual escapes; other control characters are allowed
only where the grammar has them explicitly. The result never matches more than the client's grammar.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from serving.errors import GrammarError
from serving.grammar.text import MOST_TEXT, check_size

_ESCAPED = '"\\\n\r\t'
_PLAIN = r'[^"\\\x00-\x1f]'
_ANY = rf'(?:{_PLAIN}|\\["\\nrt])'
_LARK = re.compile(
    r"""
    (?P<comment>//[^\n]*|\#[^\n]*)
    |(?P<range>"(?:[^"\\\n]|\\.)+"\s*\.\.\s*"(?:[^"\\\n]|\\.)+")
    |(?P<string>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<regex>/(?:[^/\\\n]|\\.)+/[imslux]*)
    |(?P<import>%import[^\n]*)
    |(?P<ignore>%ignore\b)
    |(?P<foreign>[%<@][^\n]{0,20})
    |(?P<times>~\s*[0-9])
    |(?P<but>~)
    |(?P<rest>[^"/\#%<@~]+)
    """,
    re.VERBOSE,
)
_LITERALS = ("string", "regex", "range", "but", "import")
_HOLE = "\0"
_HOLES = re.compile(_HOLE)
_HEAD = re.compile(r"^[ \t]*[?!]*(\w+)[ \t]*:", re.MULTILINE)
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_PREFIX = re.compile(r"^([ \t]*)[?!]+(?=\w)", re.MULTILINE)
_ALIAS = re.compile(r"->[ \t]*\w+")
_ATTRIBUTES = re.compile(r"^[ \t]*[?!]*\w+[ \t]*[\[{]", re.MULTILINE)
_TERMINAL = "RULE_"
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_STRING_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))")
_IMPORT = re.compile(r"%import\s+common(?:\.(\w+)(?:\s*->\s*(\w+))?|\s*\(([\w\s,]+)\))\s*(?://.*)?$")
_COMMON = {
    "LF": r"\n", "CR": r"\r", "NEWLINE": r"(\r?\n)+", "WS": r"[ \t\f\r\n]+", "WS_INLINE": r"[ \t]+", "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]", "INT": "[0-9]+", "SIGNED_INT": "[+-]?[0-9]+", "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]", "LETTER": "[a-zA-Z]", "WORD": "[a-zA-Z]+", "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "NUMBER": r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
}  # fmt: skip
"""Terminals of Lark's own library."""
_ATOM = re.compile(
    r"""
    (?P<escape>\\(?:x\{[0-9a-fA-F]{1,6}\}|x[0-9a-fA-F]{2}|u\{[0-9a-fA-F]{1,6}\}|u[0-9a-fA-F]{4}|[pP](?:\{[^}]*\}|\w)|.))
    |(?P<group>\((?:\?(?P<flags>[imsUux-]+)[:)]|\?:|\?P?<\w+>)?)
    |(?P<times>\{[0-9]+(?:,[0-9]*)?\})
    |(?P<sign>[)|*+?^$])
    |(?P<dot>\.)
    |(?P<literal>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_SETS = "dDwWsS"
_SPECIAL_CLASS = re.compile(r"\[|&&|--|~~|\|\||\\[pP]|\\[xu]\{")
"""Syntax of character classes that Python lacks or interprets differently."""
_BARE_SLASH = re.compile(r"(?<!\\)/")


def quoted_lark(text: str) -> str:
    """Rewrite a grammar in llguidance's dialect of Lark for text inside a JSON string.

    Raises: GrammarError for text that cannot be in a string, or an invalid grammar.
    """
    check_size(text)
    if _HOLE in text:
        raise GrammarError("it is no Lark: it holds a null character")
    pieces, at = [], 0
    while at < len(text):
        found = _LARK.match(text, at)
        if found is None:
            raise GrammarError(f"it is no Lark at {text[at : at + 20]!r}")
        pieces.append((found.lastgroup in _LITERALS, _piece(found)))
        at = found.end()
    return _in_terminals(pieces)


def _in_terminals(pieces: Sequence[tuple[bool, str]]) -> str:
    """The grammar with its non-recursive rules turned into terminals.

    A backslash may continue one terminal or start the next (an escaped quote, or a line break). llguidance's lexer does
    not backtrack, so such a choice must fall within one terminal.

    Args:
        pieces: of the grammar, each with whether it is a literal.
    """
    literals = [text for literal, text in pieces if literal]
    plain = "".join(_HOLE if literal else text for literal, text in pieces)
    if "%ignore" not in plain and not _ATTRIBUTES.search(plain):
        heads = list(_HEAD.finditer(plain))
        ends = [*(head.start() for head in heads[1:]), len(plain)][: len(heads)]
        uses: dict[str, set[str]] = {}
        for head, end in zip(heads, ends, strict=True):
            uses.setdefault(head[1], set()).update(_NAME.findall(plain[head.end() : end]))
        flat = {name for name in _not_recursive(uses) if name.islower()}
        plain = _NAME.sub(lambda found: _TERMINAL + found[0].upper() if found[0] in flat else found[0], plain)
        plain = _ALIAS.sub("", _PREFIX.sub(r"\1", plain))
        if "start" in flat:
            plain = f"start: {_TERMINAL}START\n{plain}"
    filled = iter(literals)
    return _HOLES.sub(lambda _: next(filled), plain)


def _not_recursive(uses: Mapping[str, set[str]]) -> set[str]:
    """Names of rules that use neither themselves nor a recursive rule."""
    waits = {name: {other for other in others if other in uses} for name, others in uses.items()}
    users: dict[str, list[str]] = {name: [] for name in uses}
    for name, others in waits.items():
        for other in others:
            users[other].append(name)
    ready = [name for name, others in waits.items() if not others]
    for name in ready:  # which grows
        for user in users[name]:
            waits[user].discard(name)
            if not waits[user]:
                ready.append(user)
    return set(ready)


def quoted_regex(pattern: str, flags: str = "") -> str:
    """Rewrite a regular expression as a Lark terminal for text inside a JSON string.

    Raises: GrammarError.
    """
    if len(pattern) > MOST_TEXT:
        raise GrammarError(f"it has {len(pattern)} characters; at most {MOST_TEXT} are allowed")
    if "x" in flags:
        raise GrammarError("regular expressions with blanks between their parts are not supported in it")
    return f"/{_regex(pattern, flags)}/{'i' if 'i' in flags else ''}"


def _piece(found: re.Match[str]) -> str:
    """A token of Lark's within a JSON string."""
    kind, token = found.lastgroup, found[0]
    if kind == "string":
        text = _decoded(token.rstrip("i")[1:-1])
        if token.endswith("i"):
            return quoted_regex(re.escape(text), "i") if text else '""'
        return json.dumps(_in_string(text), ensure_ascii=False)
    if kind == "range":
        first, last = (_decoded(one) for one in _STRING.findall(token))
        return quoted_regex(f"[{re.escape(first)}-{re.escape(last)}]")
    if kind == "regex":
        body, _, flags = token[1:].rpartition("/")
        return quoted_regex(body, flags)
    if kind == "import":
        return _imported(token)
    if kind == "but":
        return f"/{_ANY}*/ & ~"
    if kind == "foreign":
        raise GrammarError(f"{token!r} cannot be in the grammar of a text")
    return "" if kind == "comment" else token


def _imported(line: str) -> str:
    found = _IMPORT.match(line.strip())
    if found is None:
        raise GrammarError(f"{line[:60]!r} is not supported: only terminals of 'common' can be imported")
    one, alias, several = found.groups()
    names = {alias or one: one} if one else {name.strip(): name.strip() for name in several.split(",")}
    for name in names.values():
        if name not in _COMMON:
            raise GrammarError(f"'common.{name[:40]}' is not known; there are {', '.join(_COMMON)}")
    return "\n".join(f"{name}: {quoted_regex(_COMMON[source])}" for name, source in names.items())


def _decoded(text: str) -> str:
    """Text of a Lark literal with its escapes resolved."""

    def one(found: re.Match[str]) -> str:
        code = found[1] or found[2]
        return chr(int(code, 16)) if code else _LETTERS.get(found[3], found[3])

    return _STRING_ESCAPE.sub(one, text)


def _in_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _regex(pattern: str, flags: str) -> str:
    """The regular expression. Whether `.` takes line breaks depends on the group that it is in."""
    pieces, at = [], 0
    dots = ["s" in flags]
    while at < len(pattern):
        if pattern[at] == "[":
            end = _class_end(pattern, at)
            pieces.append(_set(pattern[at:end]))
            at = end
            continue
        found = _ATOM.match(pattern, at)
        assert found is not None, "every character is an atom"
        at = found.end()
        kind = found.lastgroup if found["group"] is None else "group"
        if kind == "group":
            wide = _wide(found["flags"] or "", dots[-1])
            if found[0].endswith(")"):  # flags for the rest of the group
                dots[-1] = wide
            else:
                dots.append(wide)
            pieces.append(found[0])
        elif kind == "dot":
            pieces.append(_ANY if dots[-1] else rf'(?:{_PLAIN}|\\["\\rt])')
        elif kind == "escape":
            pieces.append(_escape(found[0]))
        elif kind == "literal":
            pieces.append(_literal(found[0]))
        else:
            if found[0] == ")" and len(dots) > 1:
                dots.pop()
            pieces.append(found[0])
    return "".join(pieces)


def _wide(flags: str, before: bool) -> bool:
    on, _, off = flags.partition("-")
    if "x" in on:
        raise GrammarError("regular expressions with blanks between their parts are not supported in it")
    return (before or "s" in on) and "s" not in off


def _class_end(pattern: str, at: int) -> int:
    """End of a character class, which may contain others."""
    depth, here = 0, at
    while here < len(pattern):
        char = pattern[here]
        if char == "\\":
            here += 1
        elif char == "[":
            depth += 1
            here += pattern.startswith("^", here + 1)
            here += pattern.startswith("]", here + 1)  # a leading "]" is a literal
        elif char == "]":
            depth -= 1
            if not depth:
                return here + 1
        here += 1
    raise GrammarError(f"a class of characters has no end: {pattern[at : at + 20]!r}")


@lru_cache(maxsize=4096)
def _set(text: str) -> str:
    """A class of characters."""
    text = _BARE_SLASH.sub(r"\/", text.replace("\\\n", "\n").replace("\n", r"\n"))
    plain = f"[{text}&&{_PLAIN}]"
    if _SPECIAL_CLASS.search(text[1:-1]):
        return plain
    try:
        own = re.compile(text, re.ASCII)
    except re.error as error:
        raise GrammarError(f"a class of characters cannot be read: {text[:40]!r}") from error
    escapes = [re.escape(_in_string(char)) for char in _ESCAPED if own.fullmatch(char)]
    return f"(?:{'|'.join([plain, *escapes])})" if escapes else plain


def _escape(text: str) -> str:
    letter = text[1]
    if letter in _SETS:
        return _set(f"[{text}]")
    if letter in "pP":
        return f"[{text}&&{_PLAIN}]"
    if letter in "xu":
        if len(text) == 2:
            raise GrammarError(f"'\\{letter}' must be followed by the code of a character")
        return _literal(chr(min(int(text[2:].strip("{}"), 16), 0x10FFFF)))
    if letter in _LETTERS:
        return _literal(_LETTERS[letter])
    return text if letter.isalnum() else _literal(letter)


def _literal(char: str) -> str:
    escaped = _in_string(char)
    if len(escaped) == 1:
        return "\\/" if char == "/" else re.escape(char)
    return f"(?-i:{re.escape(escaped)})"
