"""DeepSeek V3.2 and later: tags that hold a token of their own; strings are raw text, other values JSON.

<｜DSML｜function_calls>
<｜DSML｜invoke name="weather">
<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

import re

from serving.gateway.api.tools.arguments import Arguments
from serving.gateway.api.tools.closing import Closing
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.reader import Reader, Steps

_TOKEN = "｜DSML｜"
_ATTRIBUTE = re.compile(r'(\w+)\s*=\s*"([^"]*)"')
_ALL = ("function_calls", "tool_calls", "calls")
"""Words for the section, of V3.2 and its successors; some put a blank before each word."""


def _read(reader: Reader) -> Steps[None]:
    """One section. Its `<` is held back by the text before it."""
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
    """The next tag: whether it closes, its word, and the rest; None at the end."""
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


DSML = Family(
    name="deepseek-v3.2",
    marks=(_TOKEN, "<think>", "</think>"),
    triggers=(_TOKEN,),
    read_calls=_read,
    holds="<",
)
