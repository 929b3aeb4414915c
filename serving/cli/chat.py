"""`cloudmatrix chat`: chat with a running system in the terminal."""

import argparse
import sys

from serving.cli.system_options import add_gateway_address, choose_gateway

DESCRIPTION = """\
Talk with a running system: the answer comes as it is computed, and a line below it says what it took: tokens, speed,
what of the prompt was cached, and which replicas worked on it.
"""
EPILOG = """\
Examples:
  cloudmatrix chat
  cloudmatrix chat "Tell me a story about a little dog." --seed 7
  echo "Tell me a story." | cloudmatrix chat --max-tokens 80 > story.txt
With a message, or standard input that is no terminal, one answer is printed, its figures on standard error.
In a chat Ctrl-C stops the answer, a second one the chat; /help shows the rest.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("message", nargs="?", metavar="MESSAGE", help="ask this, print the answer, end")
    add_gateway_address(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: all that fits)")
    parser.add_argument(
        "--temperature", type=float, metavar="X", help="0 = always the likeliest word (default: the model's)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answers")


def run(arguments: argparse.Namespace) -> int:
    """Chat until the user leaves, or print a single response.

    Raises: UnavailableError, ConfigError, in one line.
    """
    from serving.cli.chat_terminal import ChatTerminal
    from serving.client.conversation import ChatConversation, served_model
    from serving.errors import ConfigError

    choose_gateway(arguments)
    url, key = arguments.url, arguments.api_key
    message = arguments.message
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read()
    if message is not None and not message.strip():
        raise ConfigError("the message is empty: give one as an argument or on standard input")
    model = served_model(url, key)
    wishes = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature, "seed": arguments.seed}
    conversation = ChatConversation(url, key, model, arguments.system, wishes)
    terminal = ChatTerminal(conversation)
    if message is None:
        terminal.chat()
    else:
        terminal.answer_once(message)
    return 0
