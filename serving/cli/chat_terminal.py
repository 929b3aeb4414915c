"""The terminal of `cloudmatrix chat`: messages, streamed responses, and the cost of each."""

import sys
from contextlib import closing, suppress

from rich.console import Console
from rich.text import Text

from loadgen.terminal import terminal_console
from serving.client.conversation import ChatConversation
from serving.errors import ServingError
from serving.terminal import without_controls

HELP = """\
/clear   forget the conversation so far
/help    this
/exit    leave; so do Ctrl-D, and Ctrl-C when no answer is coming"""
PROMPT = "> "


class ChatTerminal:
    """Standard input, output and error around a conversation."""

    def __init__(self, conversation: ChatConversation) -> None:
        self._conversation = conversation
        self._out = terminal_console(highlight=False)
        self._err = terminal_console(stderr=True, highlight=False)

    def answer_once(self, message: str) -> None:
        """Print one response, and its figures to standard error.

        Raises: UnavailableError, in one line.
        """
        self._print_answer(message)
        self._print_figures(self._err)

    def chat(self) -> None:
        """Chat until the user leaves."""
        with suppress(ImportError):
            import readline  # noqa: F401 - gives `input` a line to edit and a history
        self._print_dim(
            f"{self._conversation.model} at {self._conversation.url}; /help lists the commands, Ctrl-D quits"
        )
        while (line := self._read()) is not None:
            match line:
                case "":
                    pass
                case "/exit" | "/quit":
                    return
                case "/clear":
                    self._conversation.clear()
                    self._print_dim("forgotten")
                case _ if line.startswith("/"):
                    self._print_dim(HELP)
                case _:
                    self._turn(line)

    def _read(self) -> str | None:
        """A line; None at the end of the chat."""
        try:
            return input(PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            self._out.print()
            return None

    def _turn(self, message: str) -> None:
        try:
            self._print_answer(message)
        except KeyboardInterrupt:
            self._out.print()
            self._print_dim("stopped; Ctrl-C again quits")
        except ServingError as error:
            self._err.print(Text(f"cloudmatrix: {error}", style="red"), soft_wrap=True)
        else:
            self._print_figures(self._out)

    def _print_answer(self, message: str) -> None:
        is_terminal = self._out.is_terminal
        with closing(self._conversation.ask(message)) as pieces:
            for piece in pieces:
                sys.stdout.write(without_controls(piece) if is_terminal else piece)
                sys.stdout.flush()
        sys.stdout.write("\n")

    def _print_figures(self, console: Console) -> None:
        if figures := self._conversation.reply.figures():
            console.print(Text(figures, style="dim"), soft_wrap=True)

    def _print_dim(self, text: str) -> None:
        self._out.print(Text(text, style="dim"), soft_wrap=True)
