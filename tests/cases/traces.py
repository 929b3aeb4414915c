"""A small trace of every format, and invalid files with the expected error messages."""

import json
from pathlib import Path
from typing import Any

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURSTGPT_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def mooncake(*lines: dict[str, Any]) -> str:
    """Lines of a Mooncake trace."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def line(
    timestamp: float | str, prompt: int, output: int = 10, ids: tuple[int, ...] = (), **more: Any
) -> dict[str, Any]:
    """Line of one request."""
    fields = {"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": list(ids)}
    return fields | more


def recorded(*lines: dict[str, Any], **header: Any) -> str:
    """A load generator's trace."""
    fields = {"schema": "loadgen-trace/1", "block_tokens": 16, "hash_ids": "given", "requests": len(lines)} | header
    return json.dumps(fields) + "\n" + mooncake(*lines)


def chat(
    chat_id: int, parent: int, timestamp: float, prompt: int, ids: tuple[int, ...], turn: int = 1
) -> dict[str, Any]:
    """A request of Qwen-Bailian."""
    return {
        "chat_id": chat_id,
        "parent_chat_id": parent,
        "timestamp": timestamp,
        "input_length": prompt,
        "output_length": 132,
        "type": "text",
        "turn": turn,
        "hash_ids": list(ids),
    }


def asks(t: float, prompt: int, output: int = 5, api: float | None = 2.0, **more: Any) -> dict[str, Any]:
    """A request of an agent's conversation. Its ids: `runs` in `more`, else those of one that only grows."""
    fields: dict[str, Any] = {"t": t, "type": "n", "in": prompt, "out": output, "stop": "tool_use"}
    fields |= {} if api is None else {"api_time": api}
    runs = more.pop("runs", [[1, prompt // 64]] if prompt >= 64 else [])
    return fields | {"hash_runs": runs} | more


def subagent(t: float, *requests: dict[str, Any]) -> dict[str, Any]:
    """A subagent whose last response ended at `t`."""
    return {"t": t, "type": "subagent", "agent_id": "agent_001", "requests": list(requests)}


def conversation(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A line of kv-cache-tester's traces."""
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(requests)} | more


def call(
    session: str, place: int, cached: int, new: int, at: str = "05:00:00 05:00:02", year: int = 2026
) -> dict[str, Any]:
    """A line of TraceLab's, with 5 tokens of output. `at`: its start and end."""
    start, end = (f"{year}-06-01T{time}.000Z" for time in at.split())
    events = [{"event_type": "tool_result", "timestamp": start}, {"event_type": "text", "timestamp": end}]
    lengths = {"prefix_tokens": cached, "newly_append_tokens": new, "output_tokens": 5}
    return {"session_id": session, "project": "p", "round_index": place, "timing_events": events, "tools": []} | lengths


TRACELAB = "".join(
    mooncake(one)
    for one in (
        call("b", 0, 50, 78, "05:01:00 05:01:01"),  # starts a minute after the other
        call("a", 0, 100, 92),
        call("a", 2, 0, 256, "05:00:35 05:00:40") | {"tools": [{"tool_wall_latency_ms": None}]},  # 20 s after
        call("a", 1, 64, 192, "05:00:12 05:00:15") | {"tools": [{"tool_wall_latency_ms": 9000.0}]},  # 10 s after
        call("a", 3, 130, 62, "05:00:39 05:00:41"),  # a compacted history; before the one in front of it has ended
        call("a", 3, 0, 640) | {"timing_events": []},  # the same place again, without times
    )
)
"""Two sessions of TraceLab."""
TRACELAB_CSV = (
    "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
    "7,1500,0,0,200,30,300\n7,1500,1,230,70,20,0\n3,1000,0,0,64,10,0\n"
)
"""The replay's form, in which a prefix has the response, too."""

AGENTS = mooncake(
    conversation(
        "a",
        asks(0, 640, 20),  # ends at 2
        asks(5, 700, 30),  # pause 3, ends at 7
        subagent(19, asks(0, 130, runs=[[90, 91]]), asks(8, 256, runs=[[90, 93]])),  # 9 to 19: pauses 2 and 6
        subagent(18, asks(0, 128, runs=[[90, 91]], api=1.0)),  # 17 to 18: pause 10
        asks(20, 960, 40),  # pause 1 after both
    ),
    conversation("b", asks(0, 64, runs=[[1, 1]]), asks(100, 128, runs=[[1, 2]], api=None, stop="end_turn")),
)
"""Two conversations of agents, the first with two branches that join."""

CHAT = mooncake(
    line(0, 1300, 5, (0, 1, 2)),
    line(1000, 1024, 6, (0, 3)),
    line(1000, 100, 7),
    line(2500, 2000, 8, (0, 1, 4, 5)),
)
"""Four requests: two share a block with the first, the last of them two."""

Request = tuple[float, int, int]
"""arrival [s], prompt, answer [tokens]."""

GOOD: dict[str, tuple[str, list[Request]]] = {
    "mooncake": (CHAT, [(0, 1300, 5), (1, 1024, 6), (1, 100, 7), (2.5, 2000, 8)]),
    "mooncake, sessions": (
        mooncake(
            line(0, 600, 20, (1, 2), session_id="a"),
            {"input_length": 1024, "output_length": 30, "session_id": "a", "delay": 2000, "hash_ids": [1, 3]},
            line(1000, 200, 5, session_id=7),
            {"input_length": 1536, "output_length": 5, "session_id": "a", "delay": 500, "hash_ids": [1, 3, 4]},
            line(4000, 300, 5),
        ),
        [(0, 600, 20), (1, 200, 5), (2, 1024, 30), (2.5, 1536, 5), (4, 300, 5)],
    ),
    "mooncake, 64-bit hashes": (
        mooncake(line(0, 512, 5, (2**64 - 1,)), line(10, 1024, 5, (2**64 - 1, 2**63 + 12345))),
        [(0, 512, 5), (0.01, 1024, 5)],
    ),
    "mooncake, milliseconds since 1970": (
        mooncake(line(1_700_000_000_000, 9), line(1_700_000_001_500, 9)),
        [(0, 9, 10), (1.5, 9, 10)],
    ),
    "mooncake, dates": (
        mooncake(line("2024-05-10T18:15:46.5Z", 9), line("2024-05-10T18:15:47.75Z", 9)),
        [(0, 9, 10), (1.25, 9, 10)],
    ),
    "ours": (
        recorded(
            line(0.5, 33, 5, (1, 2, 3), session=0),
            line(2000.5, 60, 0, (1, 2, 4, 5), session=0, turn=1, think_ms=2000),
            line(1000, 20, 5, (1, 2, 3, 4, 5), session=1),  # ids were planned for a longer prompt
        ),
        [(0.0005, 33, 5), (1, 20, 5), (2.0005, 60, 1)],
    ),
    "bailian": (
        mooncake(
            chat(0, -1, 0.25, 40, (7, 7, 9)),
            chat(1, -1, 0.5, 32, (5, 7)),  # the second block differs from the others', since another one precedes it
            chat(2, 0, 61.114, 60, (7, 7, 9, 4), turn=2),
        ),
        [(0.25, 40, 132), (0.5, 32, 132), (61.114, 60, 132)],
    ),
    "names of vLLM's benchmarks": ("output_len,model,prompt_len,start_time\n5,m,300,0.25\n", [(0.25, 300, 5)]),
    "names of usage, quoted": ('"time","prompt_tokens","completion_tokens"\n1.5,300,5\n', [(1.5, 300, 5)]),
    "mooncake's names as CSV": ("timestamp,input_length,output_length\n0,9,4\n1500,9,4\n", [(0, 9, 4), (1.5, 9, 4)]),
    "azure 2023": (
        AZURE.replace("\n", "\r\n") + "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n",
        [(0, 374, 44), (4.314579, 396, 109)],
    ),
    "azure 2024": (
        AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,0\n",
        [(0, 2162, 5), (0.99007, 2399, 1)],
    ),
    "azure 2025": (
        "\ufeffTIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:00.5+00:00,1,30,4\n\n"
        "2024-10-15 01:00:01+01:00,0,20,8\n",
        [(0, 30, 4), (0.5, 20, 8)],
    ),
    "burstgpt": (
        BURSTGPT + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,300,0,300,API log\n118,GPT-4,417,276,693,API log\n",
        [(5, 472, 18), (118, 417, 276)],
    ),
    "burstgpt, later days": (
        BURSTGPT_3 + "19440110.0,1722,43,GPT-4,906,446,1352,Conversation log\n"
        "19440161.0,d598,2,ChatGPT,36,29,65,Conversation log\n",
        [(0, 906, 446), (51, 36, 29)],
    ),
    "plain": (
        "user,output_tokens, arrival_s,prompt_tokens\na,3,0.5,10\n\nb,4,0.75,20\n",
        [(0.5, 10, 3), (0.75, 20, 4)],
    ),
    "plain, seconds since 1970": (PLAIN + "1700000000.5,10,3\n1700000001,20,4\n", [(0, 10, 3), (0.5, 20, 4)]),
    "plain, milliseconds since 1970": (PLAIN + "1700000000500,10,3\n1700000001000,20,4\n", [(0, 10, 3), (0.5, 20, 4)]),
    "plain, dates": (PLAIN + "2024-05-10,10,3\n2024-05-10 00:01:00,20,4\n", [(0, 10, 3), (60, 20, 4)]),
}
"""Format -> file, and its requests in order of arrival if answers take no time."""

NOTES = {
    "mooncake's names as CSV": "timestamp counts milliseconds",
    "mooncake, milliseconds since 1970": "milliseconds since 1970; they count from the first, 2023-11-14 22:13:20 UTC",
    "mooncake, dates": "times are dates; they count from the first, 2024-05-10T18:15:46.5Z",
    "burstgpt": "requests left out, since they failed when they were recorded (no tokens): 1",
    "burstgpt, later days": "comes 225.0 days after the start; times count from it instead",
    "plain, seconds since 1970": "times are seconds since 1970; they count from the first, 2023-11-14",
    "plain, milliseconds since 1970": "times are milliseconds since 1970; they count from the first, 2023-11-14",
    "plain, dates": "times are dates; they count from the first, 2024-05-10",
}
"""Notes about corrected times or requests."""

BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "no request in it"),
    "blank": ("\n \n", "no request in it"),
    "text": ("hello\n", ":1: the first line is of no known trace format; known are Mooncake"),
    "binary": (b"\xff\xfe\x00\x01\n", ":1: the first line is of no known trace"),
    "lengths alone": ("num_prefill_tokens,num_decode_tokens\n1,2\n", ":1: the first line is of no known trace"),
    "JSON array": ("[1, 2]\n", ":1: the first line is of no known trace"),
    "another JSON": ('{"a": 1}\n', ":1: JSON without input_length"),
    "broken JSON": ('{"timestamp": 0, "input\n', ":1: not JSON"),
    "broken later": (CHAT + '{"timestamp": 0,\n', ":5: not JSON"),
    "not UTF-8": (CHAT.encode() + b'{"timestamp": 3000, "\xff": 0}\n', ":5: not"),
    "no output_length": (CHAT + '{"timestamp": 3000, "input_length": 1}\n', ":5: not a request .*output_length"),
    "text for a number": (CHAT + '{"timestamp": 3000, "input_length": "1", "output_length": 1}\n', ":5: not a request"),
    "unsorted": (CHAT + mooncake(line(2000, 9)), r":5: arrives at 2 s, after a line that arrives at 2\.5 s; sort"),
    "negative time": (mooncake(line(-1, 9)), r":1: an arrival at -0\.001 s"),
    "no number": ('{"timestamp": NaN, "input_length": 1, "output_length": 1}\n', ":1: not JSON"),
    "seconds since 1970 for milliseconds": (
        mooncake(line(1_700_000_000, 9)),
        ":1: a first time of 1700000000: seconds since 1970, where milliseconds are asked.* Multiply by 1000",
    ),
    "a time of another day": (mooncake(line(0, 9), line(1e14, 9)), ":2: an arrival .* days after the start; times are"),
    "a date later": (mooncake(line(0, 9), line("2024-05-10", 9)), ":2: a date '2024-05-10' among numbers"),
    "a number later": (mooncake(line("2024-05-10", 9), line(5, 9)), ":2: a number 5 among dates"),
    "zero prompt": (mooncake(line(0, 0)), ":1: a prompt of 0 tokens; prompts have at least 1"),
    "negative prompt": (mooncake(line(0, -5)), ":1: a prompt of -5 tokens"),
    "endless prompt": (mooncake(line(0, 1 << 50)), ":1: a prompt of"),
    "negative answer": (mooncake(line(0, 9, -1)), ":1: an answer of -1 tokens"),
    "too few ids": (mooncake(line(0, 1600, ids=(1, 2))), ":1: 2 hash_ids for 1600 tokens; .* make it 4"),
    "blocks of 16 tokens": (
        mooncake(line(0, 1600, ids=tuple(range(100)))),
        ":1: 100 hash_ids for 1600 tokens; .* blocks of 16 tokens, say --block-tokens 16",
    ),
    "too many ids": (mooncake(line(0, 1024, ids=(1, 2, 3))), ":1: 3 hash_ids for 1024 tokens; .* make it 2"),
    "negative id": (mooncake(line(0, 9, ids=(-1,))), ":1: hash_ids must be between"),
    "huge id": (mooncake(line(0, 9, ids=(2**64,))), ":1: (hash_ids must be between|not a request)"),
    "turn of nothing": (CHAT + '{"input_length": 1, "output_length": 1, "session_id": "x"}\n', ":5: no timestamp, and"),
    "turn of nobody": (CHAT + '{"input_length": 1, "output_length": 1}\n', ":5: no timestamp, and no turn"),
    "negative pause": (
        mooncake(line(0, 9, session_id=1), {"input_length": 1, "output_length": 1, "session_id": 1, "delay": -1}),
        ":2: a delay of -1 ms",
    ),
    "bailian with blocks of 512": (mooncake(chat(0, -1, 0, 1024, (1, 2))), ":1: 2 hash_ids for 1024 tokens"),
    "bailian unsorted": (mooncake(chat(0, -1, 1, 9, ()), chat(1, -1, 0.5, 9, ())), r":2: arrives at 0\.5 s"),
    "bailian without time": (
        '{"chat_id": 1, "input_length": 1, "output_length": 1}\n',
        ":1: not a request .*timestamp",
    ),
    "missing column": (
        "TIMESTAMP,ContextTokens\n",
        ":1: no column GeneratedTokens; there are TIMESTAMP, ContextTokens",
    ),
    "two columns missing": ("output_tokens\n1\n", ":1: no column arrival_s, prompt_tokens;"),
    "header alone": (AZURE, "no request in it"),
    "short row": (PLAIN + "0,1\n", ":2: not a line of arrival_s,prompt_tokens,output_tokens"),
    "no time": (AZURE + "yesterday,1,2\n", ":2: 'yesterday' is no time; write"),
    "a number for a date": (AZURE + "2023-11-16 18:15:46,1,2\n17,1,2\n", ":3: '17' is no time; write"),
    "no length": (PLAIN + "0,1,2\n1,x,2\n", ":3: not a line of"),
    "not a time": (PLAIN + "nan,1,2\n", ":2: an arrival at nan s"),
    "endless time": (PLAIN + "inf,1,2\n", ":2: an arrival at inf s"),
    "unsorted table": (PLAIN + "1,1,2\n0.5,1,2\n", r":3: arrives at 0\.5 s"),
    "unsorted Azure": (
        AZURE + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:45,1,2\n",
        ":3: arrives at -1 s, after a line that arrives at 0 s; sort",
    ),
    "milliseconds for seconds": (
        PLAIN + "".join(f"{27_482 * n},9,9\n" for n in range(100)),
        r"100 requests in 31\.5 days, all at whole seconds: are these milliseconds\? Give --columns",
    ),
    "zero in a table": (PLAIN + "0,0,2\n", ":2: a prompt of 0 tokens"),
    "nothing but failures": (BURSTGPT + "5,ChatGPT,472,0,472,API log\n", "no request in it"),
    "table not UTF-8": (PLAIN.encode() + b"0,1,\xff\n", ": not text in UTF-8"),
    "no CSV": (PLAIN + "0,1,2\n" + "x" * 200_000 + "\n", ":3: not CSV"),
    "other schema": (
        '{"schema": "loadgen-trace/9", "block_tokens": 1, "requests": 0}\n',
        ":1: schema 'loadgen-trace/9'",
    ),
    "no header": ('{"schema": "loadgen-trace/1"}\n', ":1: not the header .*block_tokens"),
    "no block": (recorded(block_tokens=0), ":1: block_tokens must be above 0"),
    "nothing recorded": (recorded(), "no request in it"),
    "cut off": (recorded(line(0, 9, session=0, turn=0), requests=2), "the header says 2 requests, there are 1"),
    "turn too late": (recorded(line(0, 9, session=0, turn=1)), ":2: turn 1 of session 0 where turn 0 belongs"),
    "turn missing": (
        recorded(line(0, 9, session=0, turn=0), line(0, 9, session=0, turn=2)),
        ":3: turn 2 of session 0 where turn 1 belongs",
    ),
    "turn before its session": (
        recorded(line(5000, 9, session=0, turn=0), line(4000, 9, session=0, turn=1)),
        ":3: arrives at 4 s",
    ),
    "sessions unsorted": (
        recorded(line(5000, 9, session=0, turn=0), line(4000, 9, session=1, turn=0)),
        ":3: arrives at 4 s",
    ),
    "sessions numbered down": (recorded(line(0, 9, session=1), line(0, 9, session=0)), ":3: session 0 after 1"),
    "recorded at no time": (recorded(line(1.7e12, 9, session=0)), ":2: an arrival at 1.7e\\+09 s"),
    "recorded without prompt": (recorded(line(0, 0, session=0, turn=0)), ":2: a prompt of 0 tokens"),
    "recorded without session": (recorded(line(0, 9)), ":2: not a request .*session"),
    "recorded to wait for a later turn": (
        recorded(line(0, 9, session=0), line(0, 9, session=0, turn=1, waits_for=[1])),
        r":3: waits_for \[1\]: only earlier turns",
    ),
    "agents, broken line": (AGENTS + '{"id": "c", "block', ":3: not JSON"),
    "agents, no t": (AGENTS + mooncake(conversation("c", {"in": 5})), ":3: not a conversation like .*`t`"),
    "agents, no blocks": ('{"id": "a", "block_size": 0, "requests": []}\n', ":1: not a conversation .*block_size"),
    "agents, other blocks": (AGENTS + mooncake(conversation("c", block_size=32)), ":3: blocks of 32 tokens, after 64"),
    "agents, other scope": (
        AGENTS + mooncake(conversation("c", asks(0, 9), hash_id_scope="global")),
        ":3: hash_id_scope 'global'; every line has 'local'",
    ),
    "agents, a name twice": (AGENTS + mooncake(conversation("a", asks(0, 9))), ":3: conversation 'a' for the second"),
    "agents, nothing": (AGENTS + mooncake(conversation("c")), ":3: conversation 'c' has no requests"),
    "agents, negative time": (mooncake(conversation("c", asks(-1, 9))), ":1: entry 0 of c: t of -1 s; times are not"),
    "agents, negative api_time": (
        mooncake(conversation("c", asks(0, 9), asks(1, 9, api=-3.0))),
        ":1: entry 1 of c: api_time of -3 s",
    ),
    "agents, negative pause": (
        mooncake(conversation("c", asks(0, 9), asks(1, 9, think_time=-0.5))),
        ":1: entry 1 of c: think_time of -0.5 s",
    ),
    "agents, unsorted": (
        mooncake(conversation("c", asks(5, 9), asks(1, 9))),
        ":1: entry 1 of c: starts at 1 s, before the one in front of it at 5 s",
    ),
    "agents, a branch of nobody": (
        AGENTS + mooncake(conversation("c", subagent(3, asks(0, 9)), asks(5, 9))),
        ":3: entry 0 of c: a subagent without a request in front of it that called it",
    ),
    "agents, too few ids": (
        mooncake(conversation("c", asks(0, 640, runs=[[1, 9]]))),
        ":1: 9 hash_ids for 640 tokens; .* make it 10",
    ),
    "agents, too many ids": (
        mooncake(conversation("c", asks(0, 640, runs=[[1, 10**15]]))),
        ":1: entry 0 of c: hash_runs of more than the 10 blocks",
    ),
    "agents, a run backwards": (
        mooncake(conversation("c", asks(0, 640, runs=[[9, 1]]))),
        ":1: entry 0 of c: a run of hash_runs ends before",
    ),
    "agents, zero prompt": (mooncake(conversation("c", asks(0, 0))), ":1: a prompt of 0 tokens"),
    "tracelab, broken line": (TRACELAB + '{"session_id": "c", "newly', ":7: not JSON"),
    "tracelab, no output": (
        TRACELAB + mooncake({"session_id": "c", "round_index": 0}),
        ":7: not a call like .*prefix_tokens",
    ),
    "tracelab, negative": (mooncake(call("c", 0, 9, -1)), ":1: not a call .*newly_append_tokens"),
    "tracelab, no prompt": (mooncake(call("c", 0, 0, 0)), ":1: a prompt of 0 tokens"),
    "tracelab, no date": (
        mooncake(call("c", 0, 0, 9) | {"timing_events": [{"event_type": "text", "timestamp": "5"}]}),
        ":1: not",
    ),
    "tracelab, no events": (
        TRACELAB + mooncake(call("c", 0, 0, 9) | {"timing_events": []}),
        ":7: no timing_events in a",
    ),
    "tracelab, long apart": (
        TRACELAB + mooncake(call("c", 0, 0, 9, year=2029)),
        ":7: starts 1096 days after the first",
    ),
    "tracelab, a tool's time": (
        mooncake(call("c", 0, 0, 9) | {"tools": [{"tool_wall_latency_ms": -5.0}]}),
        ":1: tool_wall_latency_ms of -5",
    ),
    "tracelab CSV, no number": (TRACELAB_CSV + "2,0,0,x,9,1,0\n", ":5: not a line of round_idx,.* 'x'"),
    "tracelab CSV, short": (TRACELAB_CSV + "2,0,0\n", ":5: not a line of round_idx"),
    "tracelab CSV, negative": (TRACELAB_CSV + "2,0,0,0,9,1,-4\n", ":5: a length, place or time that is negative"),
    "tracelab CSV, NaN": (TRACELAB_CSV + "2,nan,0,0,9,1,4\n", ":5: a length, place or time that is negative"),
    "tracelab CSV, no session": (TRACELAB_CSV + ",0,0,0,9,1,4\n", ":5: no session_id"),
    "recorded with bad ids": (recorded(line(0, 9, ids=(-4,), session=0, turn=0)), ":2: hash_ids must"),
}
"""What is wrong -> file, and how it is refused."""


def servegen(folder: Path) -> Path:
    """A ServeGen folder of two clients."""
    folder.mkdir()
    lengths = {"0": {"input_tokens": "{64: 0.5, 128: 0.5}", "output_tokens": "{32: 1.0}"}}
    for number, rows in ((0, "0,0.05,1.0,Gamma,1.0,0.5\n600,0,0,,0,0\n"), (7, "0,0,0,,0,0\n600,0.03,1,Gamma,0.5,9\n")):
        (folder / f"chunk-{number}-trace.csv").write_text(rows)
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(lengths))
    return folder


def written(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    """A file with this text."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path
