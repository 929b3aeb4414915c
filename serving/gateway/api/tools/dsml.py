"""DeepSeek V3.2 and later: tags that contain a token of their own; strings are raw text, other values JSON.

<｜DSML｜function_calls>
<｜DSML｜invoke name="weather">
<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

import re
from collections.abc import Sequence

from serving.gateway.api.tools.arguments import Arguments
from serving.gateway.api.tools.closing import Closing
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import ArgumentForm, CallRule, Spelling, call_heads, either, further, quoted
from serving.gateway.api.tools.reader import Reader, Steps

_TOKEN = "｜DSML｜"
_ATTRIBUTE = re.compile(r'(\w+)\s*=\s*"([^"]*)"')
_ALL = ("function_calls", "tool_calls", "calls")
"""Names of the section, in V3.2 and its successors; some put a space before each word."""


def _read(reader: Reader) -> Steps[None]:
    """One section. The text before it withholds its `<`."""
    reader.take(1)
    word, stop = yield from reader.collect(">")
    if not stop:
        return
    reader.take(1)
    if word.strip() not in _ALL:
        reader.prose.write(f"<{reader.marks[_TOKEN]}{word}>")
        return
    while (tag := (yield from _tag(reader))) is not None:
        closing, word, attributes = tag
        if closing:
            return
        if word == "invoke":
            yield from _invoke(reader, attributes)


def _invoke(reader: Reader, attributes: str) -> Steps[None]:
    call = Arguments(reader, _attributes(attributes).get("name", ""))
    if attributes.endswith("/"):
        call.end()
        return
    token = reader.marks[_TOKEN]
    behind = tuple(
        f"{begin}{token}{space}{word}" for begin, word in (("<", "parameter"), ("</", "invoke")) for space in ("", " ")
    )
    closings = tuple(Closing(f"</{token}{space}parameter>", behind) for space in ("", " "))
    while (tag := (yield from _tag(reader))) is not None:
        closing, word, attributes = tag
        if closing:
            call.end()
            return
        if word == "parameter":
            own = _attributes(attributes)
            is_string = own.get("string") != "false"
            if not (yield from call.argument(own.get("name", ""), closings, is_string=is_string)):
                return


def _tag(reader: Reader) -> Steps[tuple[bool, str, str] | None]:
    """The next tag: whether it closes, its word, and the rest; None at the end of the output."""
    token = reader.marks[_TOKEN]
    before, stop = yield from reader.collect(token)
    if not stop:
        return None
    reader.take(1)
    text, stop = yield from reader.collect(">")
    if not stop:
        return None
    reader.take(1)
    word, _, rest = text.strip().partition(" ")
    return before.endswith("/"), word.rstrip("/"), rest if not word.endswith("/") else "/"


def _attributes(text: str) -> dict[str, str]:
    return dict(_ATTRIBUTE.findall(text))


def _rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    token = spelling.mark(_TOKEN)

    def before(name: str, is_string: str) -> str:
        return f'"<" {token} " "? {quoted(f"""parameter name="{name}" string="{is_string}">""")}'

    form = ArgumentForm(
        lambda name: before(name, "true"),
        lambda name: before(name, "false"),
        f'TEXT {token} " "? "parameter>\\n"',
        f'"</" {token} " "? "parameter>\\n"',
    )
    heads, rules = call_heads(tools, form, lambda tool: quoted(f'invoke name="{tool.name}">\n'))
    section = f'{token} " "? ({either([quoted(word) for word in _ALL])})'
    return [
        'calls: "<" calls_behind',
        f'calls_behind: {section} ">\\n" call{further("call", most)} "</" {section} ">"',
        f'call: "<" {token} " "? ({either(heads)}) NL "</" {token} " "? "invoke>\\n"',
        *rules,
        r"TEXT: /(?s:.*)<\//",
        r"NL: /\n?/",
    ]


DSML = Family(
    name="deepseek-v3.2",
    marks=(_TOKEN, "<think>", "</think>"),
    triggers=(_TOKEN,),
    rules=_rules,
    read_calls=_read,
    holds="<",
)
