"""`cloudmatrix chat`: chat with a running system in the terminal."""

import argparse
import sys

from serving.cli.system_options import add_gateway_address, choose_gateway

DESCRIPTION = """\
Chat with a running system: the response is streamed, and a line below it shows its tokens, its speed,
the cached part of the prompt, and the replicas that computed it.
"""
EPILOG = """\
Examples:
  cloudmatrix chat
  cloudmatrix chat "Tell me a story about a little dog." --seed 7
  echo "Tell me a story." | cloudmatrix chat --max-tokens 80 > story.txt
With a message, or if standard input is not a terminal, it prints one response, and its figures to standard error.
In a chat, Ctrl-C stops the response, and again the chat; /help lists the commands.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("message", nargs="?", metavar="MESSAGE", help="send this, print the response, exit")
    add_gateway_address(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest response in tokens (default: what fits)")
    parser.add_argument(
        "--temperature", type=float, metavar="X", help="0 = always the most likely token (default: the model's)"
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
    model, _ = served_model(url, key)
    fields = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature, "seed": arguments.seed}
    conversation = ChatConversation(url, key, model, arguments.system, fields)
    terminal = ChatTerminal(conversation)
    if message is None:
        terminal.chat()
    else:
        terminal.answer_once(message)
    return 0
