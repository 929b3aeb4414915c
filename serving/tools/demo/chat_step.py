"""Step 1: a question, and its streamed response."""

from contextlib import closing

from loadgen.report import numbers
from serving.client.conversation import ChatConversation, ChatReply
from serving.tools.demo.stage import Stage, Step, StepError, StepReport

QUESTION = "Tell me a story about a little dog and a ball."
_FIELDS = {"max_tokens": 80, "temperature": 0}


def run(stage: Stage) -> StepReport:
    """Send one request. Raises: UnavailableError; StepError if the response is empty."""
    conversation = ChatConversation(stage.system.url, None, stage.system.model, None, _FIELDS)
    stage.narrator.question(QUESTION)
    with closing(conversation.ask(QUESTION)) as pieces:
        for piece in pieces:
            stage.narrator.stream(piece)
    stage.narrator.line()
    stage.narrator.line(conversation.reply.figures())
    return chat_report(conversation.reply, stage.begun_s)


def chat_report(reply: ChatReply, begun_s: float) -> StepReport:
    """The findings. Args: begun_s: start of the demo, on the reply's clock [s].

    Raises: StepError if there is no response.
    """
    if reply.first is None:
        raise StepError("the answer was empty")
    since_start, since_question = numbers.duration(reply.first - begun_s), numbers.duration(reply.first - reply.asked)
    return StepReport(
        f"The first token came {since_start} after the command was given, {since_question} after the question.",
        ("command to first token", since_start),
        (f"question to first token {since_question}", f"{reply.usage.get('completion_tokens', 0)} tokens"),
        quotes=(f"> {QUESTION}", reply.text),
    )


STEP = Step(
    "chat",
    "Chat",
    "The prompt is computed by a prefill instance, which hands its KV blocks over to a decode instance; which "
    "generates the response. The model is a storyteller of 9.6 million parameters, so that nothing has to be fetched. "
    "Steps are held at 12.5 ms here, a large model's pace, so that you can read along.",
    ("cloudmatrix chat",),
    run,
)
