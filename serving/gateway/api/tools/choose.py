"""All families, and which of them a model belongs to: told by the configuration, else by its template and tokens."""

from collections.abc import Mapping

from serving.gateway.api.tools.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from serving.gateway.api.tools.dsml import DSML
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.glm import GLM
from serving.gateway.api.tools.harmony import HARMONY
from serving.gateway.api.tools.hermes import HERMES
from serving.gateway.api.tools.kimi import KIMI_K2
from serving.gateway.api.tools.llama import LLAMA
from serving.gateway.api.tools.mistral import MISTRAL, MISTRAL_TEXT
from serving.gateway.api.tools.qwen_coder import QWEN_CODER

_ALL = (
    HARMONY,
    KIMI_K2,
    DSML,
    DEEPSEEK_V31,
    DEEPSEEK_V3,
    MISTRAL,
    MISTRAL_TEXT,
    GLM,
    QWEN_CODER,
    HERMES,
    LLAMA,
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}
"""By name, the most particular first."""
