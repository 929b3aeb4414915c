"""What a scripted model says to each agent: calls of every kind of tool, in at least twelve turns.

A script is a list of outputs for the main agent, and one for its subagents. An output is a text, or a function of the
request that makes one.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SUBTASK = "Count the files."
SUMMARY = "The files were listed and notes.txt was written. What is left: look at its last line."
DONE = "Done: notes.txt was written and changed."
PATCH = "*** Begin Patch\n*** Add File: notes.txt\n+first line\n+second 'line' \"quoted\"\n*** End Patch\n"
EDIT = (
    "*** Begin Patch\n*** Update File: notes.txt\n@@\n first line\n-second 'line' \"quoted\"\n+second line, changed\n"
    "*** End Patch\n"
)
BAD_PATCH = "*** Begin Patch\n*** Update File: missing.txt\n@@\n-nothing\n+something\n*** End Patch\n"


@dataclass(frozen=True)
class Asked:
    """One request, as a script sees it.

    Args:
        agent: name of the subagent that sends it; empty for the main agent.
        prompt: text of the whole prompt.
    """

    agent: str
    prompt: str
    body: Mapping[str, Any]

    @property
    def last(self) -> str:
        """The newest item or message as JSON."""
        return json.dumps([*(self.body.get("input") or self.body.get("messages") or [""])][-1])

    def found(self, pattern: str, otherwise: str) -> str:
        """Newest occurrence of a pattern's group in the prompt."""
        return (re.findall(pattern, self.prompt) or [otherwise])[-1]


Output = str | Callable[[Asked], str]


@dataclass
class Script:
    """Outputs of one session.

    Args:
        aside: whether a request is no turn of the session, e.g. for a title or a summary, and the output for it.
    """

    turns: Sequence[Output]
    subturns: Sequence[Output]
    aside: Callable[[Asked], str | None] = lambda _: None
    _said: dict[str, int] = field(default_factory=dict)

    def reply(self, asked: Asked) -> str:
        """The output for a request; after the script's end, its last one."""
        if not asked.agent and (said := self.aside(asked)) is not None:
            return said
        turns, turn = self.subturns if asked.agent else self.turns, self._said.get(asked.agent, 0)
        self._said[asked.agent] = turn + 1
        output = turns[min(turn, len(turns) - 1)]
        return output if isinstance(output, str) else output(asked)


def call(name: str, **arguments: Any) -> str:
    """A call as the bundled model's family writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


def thought(text: str) -> str:
    """Reasoning."""
    return f"<think>\n{text}\n</think>\n"


def codex(_folder: str) -> Script:
    """Codex with one tool of each type: function, custom, namespace, search."""

    def write(asked: Asked) -> str:
        return call("write_stdin", session_id=int(asked.found(r"session ID (\d+)", "1")), chars="hi\n")

    def wait(asked: Asked) -> str:
        return call("multi_agent_v1__wait_agent", targets=[asked.found(r'agent_id\\*":\s*\\*"([0-9a-f-]{36})', "none")])

    return Script(
        [
            thought("First the files.") + call("exec_command", cmd="ls -1"),
            f"Both now.\n{call('exec_command', cmd='wc -c README')}\n{call('exec_command', cmd='cat README')}",
            call("exec_command", cmd="cat nowhere; exit 3"),
            call("apply_patch", input=PATCH),
            call("apply_patch", input=EDIT),
            call("apply_patch", input=BAD_PATCH),
            call("view_image", path="dot.png"),
            call("exec_command", cmd="read line; echo got $line", tty=True, yield_time_ms=300),
            write,
            call("request_user_input", questions=[]),
            call("tool_search", query="spawn agent"),
            call("multi_agent_v1__spawn_agent", message=SUBTASK),
            wait,
            call("exec_command", cmd="seq 1 2500", max_output_tokens=9000),
            thought("The log is long.") + call("exec_command", cmd="tail -1 notes.txt"),
            DONE,
        ],
        [call("exec_command", cmd="ls | wc -l"), "Three files."],
        lambda asked: SUMMARY if _compacts(asked) else None,
    )


def codex_code_mode(folder: str) -> Script:
    """Codex when it runs tools from scripts."""

    def execute(script: str) -> str:
        return call("functions__exec", input=script)

    def wait(asked: Asked) -> str:
        return call("functions__wait", cell_id=asked.found(r"cell ID (\w+)", "1"))

    def patch(patch: str) -> str:
        return execute(f"text(await tools.apply_patch({json.dumps(patch)}));\n")

    return Script(
        [
            thought("First the files.")
            + execute('const found = await tools.exec_command({cmd: "ls -1"});\ntext(found.output);\n'),
            execute(
                'const [a, b] = await Promise.all([tools.exec_command({cmd: "wc -c README"}), '
                'tools.exec_command({cmd: "cat README"})]);\ntext(a.output + `\\n${b.output}`);\n'
            ),
            patch(PATCH),
            patch(EDIT),
            patch(BAD_PATCH),
            execute('throw new Error("é 🙂 <|end|>");\n'),
            execute(f'image((await tools.view_image({{path: "{folder}/dot.png"}})).image_url);\n'),
            execute(
                '// @exec: {"yield_time_ms": 300}\ntext("begun");\n'
                'await tools.exec_command({cmd: "sleep 1", yield_time_ms: 3000});\ntext("over");\n'
            ),
            wait,
            call("collaboration__spawn_agent", task_name="count", message=SUBTASK, fork_turns="none"),
            call("collaboration__wait_agent", timeout_ms=10000),
            call("collaboration__list_agents"),
            call("clock__sleep", duration_ms=5),
            execute('text((await tools.exec_command({cmd: "seq 1 2500", max_output_tokens: 9000})).output);\n'),
            thought("The log is long.")
            + execute('text((await tools.exec_command({cmd: "tail -1 notes.txt"})).output);\n'),
            DONE,
        ],
        [execute('text((await tools.exec_command({cmd: "ls | wc -l"})).output);\n'), "Three files."],
        lambda asked: SUMMARY if _compacts(asked) else None,
    )


def _compacts(asked: Asked) -> bool:
    """Whether Codex asks for a summary: by our item, or in words of its own, without tools."""
    items = asked.body.get("input") or [{}]
    return asked.body.get("tools") == [] or "compaction_trigger" in asked.last or "CHECKPOINT COMPACT" in str(items[-1])


def claude(folder: str) -> Script:
    """Claude Code."""

    def use_found(asked: Asked) -> str:
        named = {tool["name"] for tool in asked.body["tools"]}
        if "TaskCreate" in named:
            return call("TaskCreate", subject="Count", description=SUBTASK, activeForm="Counting")
        return call("WebFetch", url="http://127.0.0.1:1/", prompt="What is it?")

    def aside(asked: Asked) -> str | None:
        if not asked.body.get("tools"):
            return "Files"
        return f"<analysis>All there.</analysis>\n<summary>{SUMMARY}</summary>" if "<analysis>" in asked.last else None

    def bash(command: str) -> str:
        return call("Bash", command=command, description="Run it")

    return Script(
        [
            thought("First the files.") + f"I list them.\n{bash('ls -1')}",
            f"{call('Read', file_path=f'{folder}/README')}\n{bash('wc -c README')}",
            bash("cat nowhere; exit 3"),
            call("Write", file_path=f"{folder}/notes.txt", content="first line\nsecond 'line' \"quoted\"\n"),
            call("Edit", file_path=f"{folder}/notes.txt", old_string="second 'line'", new_string="second line,"),
            call("Edit", file_path=f"{folder}/notes.txt", old_string="not there", new_string="x"),
            call("Read", file_path=f"{folder}/dot.png"),
            call("ToolSearch", query="select:TaskCreate,WebFetch", max_results=3),
            use_found,
            call("Agent", description="Count files", prompt=SUBTASK, subagent_type="general-purpose"),
            call("ListAgents"),
            call("NoSuchTool", a=1),
            bash("seq 1 300"),
            thought("The log is long.") + bash("tail -1 notes.txt"),
            DONE,
            bash("git status --short"),
            "Nothing else.",
        ],
        [bash("ls | wc -l"), "Three files."],
        aside,
    )


def opencode(folder: str) -> Script:
    """OpenCode."""

    def bash(command: str) -> str:
        return call("bash", command=command, description="Run it")

    return Script(
        [
            f"I list them.\n{bash('ls -1')}",
            f"{call('read', filePath=f'{folder}/README')}\n{bash('wc -c README')}",
            bash("cat nowhere; exit 3"),
            call("write", filePath=f"{folder}/notes.txt", content="first line\nsecond 'line' \"quoted\"\n"),
            call("edit", filePath=f"{folder}/notes.txt", oldString="second 'line'", newString="second line,"),
            call("edit", filePath=f"{folder}/notes.txt", oldString="not there", newString="x"),
            call("read", filePath=f"{folder}/dot.png"),
            call("todowrite", todos=[{"content": "Count", "status": "pending", "priority": "low", "id": "1"}]),
            call("task", description="Count files", prompt=SUBTASK, subagent_type="general"),
            call("grep", pattern="line"),
            call("no_such_tool", a=1),
            thought("Last.") + bash("tail -1 notes.txt"),
            DONE,
        ],
        [bash("ls | wc -l"), "Three files."],
        lambda asked: None if asked.body.get("tools") else "Files",
    )


def qwen(folder: str) -> Script:
    """Qwen Code."""

    def bash(command: str) -> str:
        return call("run_shell_command", command=command, description="Run it", is_background=False)

    return Script(
        [
            f"I list them.\n{call('list_directory', path=folder)}",
            f"{call('read_file', file_path=f'{folder}/README')}\n{call('glob', pattern='*')}",
            bash("cat nowhere; exit 3"),
            call("write_file", file_path=f"{folder}/notes.txt", content="first line\nsecond 'line' \"quoted\"\n"),
            call("edit", file_path=f"{folder}/notes.txt", old_string="second 'line'", new_string="second line,"),
            call("edit", file_path=f"{folder}/notes.txt", old_string="not there", new_string="x"),
            call("read_file", file_path=f"{folder}/dot.png"),
            call("todo_write", todos=[{"content": "Count", "status": "pending", "id": "1"}]),
            call("tool_search", query="select:save_memory"),
            call("agent", description="Count files", prompt=SUBTASK, subagent_type="general-purpose"),
            call("no_such_tool", a=1),
            thought("Last.") + bash("tail -1 notes.txt"),
            DONE,
        ],
        [bash("ls | wc -l"), "Three files."],
        lambda asked: None if asked.body.get("tools") else "Files",
    )
