"""A chat template rendered in this process: for tests that render very many of our own templates."""

import marshal
from collections.abc import Mapping, Sequence
from typing import Any

from serving.gateway.api.templates.chat_template import ChatTemplate
from serving.gateway.api.templates.control_tokens import unmarked
from serving.gateway.api.templates.template_pool import refusal
from serving.gateway.api.templates.template_process import TextTemplate


def render(template: ChatTemplate, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Render a conversation by `ChatTemplate.prepare` and `render`. Raises: InvalidRequestError."""
    job = template.prepare(messages, **options)
    try:
        text = TextTemplate(template.source).render(marshal.loads(job.frame), 1 << 30)
    except Exception as error:
        raise refusal(unmarked(str(error))) from error
    return job.finish(text)
