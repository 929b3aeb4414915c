"""Published figures of other models and engines: one step each, as its source describes it.

Most are predictions: nothing was fitted to them. Their sources say nothing of dispersion; concurrency, lengths and
accepted drafts are taken from them, and what they leave open is named in the row.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from hardware.cost.attention import GroupedAttentionSizes, IndexerSizes, LatentAttentionSizes
from hardware.cost.cost_model import CostModel
from hardware.cost.device_file import load_device
from hardware.cost.device_model import DeviceModel
from hardware.cost.engine_profile import EngineProfile, load_engine
from hardware.cost.loads import PrefillLoad
from hardware.cost.model_shape import DEEPSEEK_R1, ModelShape
from hardware.cost.parallelism import WHOLE, Parallelism
from hardware.cost.published import Group, PublishedRow, RowKind
from hardware.cost.weight_format import BF16, FP8, W4A8, W8A8, ModelFormats

_R1_INDEXER = IndexerSizes(heads=64, dim=128, top_k=2048, layers=61)
DEEPSEEK_V32 = replace(
    DEEPSEEK_R1,
    name="deepseek-v3.2",
    attention=replace(DEEPSEEK_R1.attention, indexer=_R1_INDEXER),  # type: ignore[arg-type]
)
GLM_5 = ModelShape(
    "glm-5", 6144, 78, LatentAttentionSizes(64, 2048, 512, 64, 192, 256, IndexerSizes(32, 128, 2048, 78)),
    3, 12_288, 2048, 256, 8, 1, 154_880, 1,
)  # fmt: skip
KIMI_K2 = ModelShape(
    "kimi-k2", 7168, 61, LatentAttentionSizes(64, 1536, 512, 64, 128, 128), 1, 18_432, 2048, 384, 8, 1, 163_840, 0
)
QWEN3_30B = ModelShape("qwen3-30b-a3b", 2048, 48, GroupedAttentionSizes(32, 4, 128), 0, 0, 768, 128, 8, 0, 151_936, 0)
QWEN3_8B = ModelShape("qwen3-8b", 4096, 36, GroupedAttentionSizes(32, 8, 128), 36, 12_288, 0, 0, 0, 0, 151_936, 0)
"""Source of all: the checkpoints' `config.json`."""

_C8 = ModelFormats(W8A8, W8A8, "int8")
_W4C8 = ModelFormats(W8A8, W4A8, "int8")
_W8, _W4 = ModelFormats(), ModelFormats(W8A8, W4A8)
_FP8, _FP8_KV = ModelFormats(FP8, FP8), ModelFormats(FP8, FP8, "fp8")
_BF16 = ModelFormats(BF16, BF16)
_THREE = 2.44
"""Tokens a step with three drafts, of which 1.44 hold: the CANN recipes' own figure."""
_MTP = 1.85
"""The same with one draft on the H20: accepted lengths of 1.8 to 1.9."""
CANN, GLM, H20 = "cann-recipes-infer, DeepSeek-V3.2", "cann-recipes-infer, GLM-5", "LMSYS blog 2025-09-26, R1 on H20"
R1_DECODE, R1_PREFILL = "cann-recipes-infer, R1 decode", "cann-recipes-infer, R1 prefill"
KIMI, SIM = "LMSYS blog 2025-07-20, Kimi-K2 on H200", "InferSim, measured with SGLang"
SGLANG, VLLM, AFD = "SGLang's best practices on Ascend", "vllm-ascend, DeepSeek-V3.2", "vllm blog, afd-plugin"


@lru_cache(maxsize=8)
def _device(name: str) -> DeviceModel:
    return load_device(name)


@lru_cache(maxsize=8)
def _engine(name: str) -> EngineProfile | None:
    return load_engine(name) if name else None


@dataclass(frozen=True, slots=True)
class SystemDecode:
    """A decode step of some system.

    Attributes:
        batch: sequences per NPU.
        tokens: that each sequence gains in a step.
        engine: a shipped profile; empty = the device file alone.
        balanced: experts were forced to be equally busy.
    """

    device: str
    shape: ModelShape
    dies: int
    batch: float
    context: float
    drafts: int = 0
    tokens: float = 1.0
    engine: str = ""
    balanced: bool = False
    division: Parallelism = WHOLE

    def __call__(self, model: CostModel) -> float:
        """TPOT [ms]."""
        device = model.device if model.device.name == self.device else _device(self.device)
        cost = CostModel(device, self.shape, _engine(self.engine), decode=self.division)
        load = cost.even_load(self.batch, self.context, dies=self.dies, drafts=self.drafts)
        return cost.decode_step_s(replace(load, imbalance=1.0) if self.balanced else load) / self.tokens * 1e3


@dataclass(frozen=True, slots=True)
class SystemPrefill:
    """A prefill step of some system, of equal prompts.

    Attributes:
        tokens: of each die in a step.
    """

    device: str
    shape: ModelShape
    dies: int
    tokens: float
    prompt: float
    microbatch: bool
    balanced: bool = False
    division: Parallelism = WHOLE

    def __call__(self, model: CostModel) -> float:
        """Tokens/s of an NPU."""
        device = model.device if model.device.name == self.device else _device(self.device)
        cost = CostModel(device, self.shape, prefill=self.division)
        tokens, imbalance = self.tokens * self.dies, 1.0 if self.balanced else None
        load = PrefillLoad(tokens, tokens * self.prompt / 2, self.dies, imbalance, self.microbatch, largest=self.prompt)
        return tokens / self.dies * device.die.per_npu / cost.prefill_step_s(load)


def _row(
    name: str,
    published: float,
    source: str,
    case: SystemDecode | SystemPrefill,
    kind: RowKind = RowKind.PREDICTED,
    note: str = "",
) -> PublishedRow:
    group: Group = "other systems"
    unit = "ms" if isinstance(case, SystemDecode) else "tok/s"
    return PublishedRow(group, name, published, unit, source, case, 0.1, kind, note)


def _cann(shape: ModelShape, formats: ModelFormats, dies: int, batch: float, context: float) -> SystemDecode:
    return SystemDecode(
        "ascend-910c", replace(shape, formats=formats), dies, batch, context, 3, _THREE, "cann-recipes", True
    )


def _h20(batch: float, dies: int = 16, drafts: int = 1, tokens: float = _MTP) -> SystemDecode:
    """Prompts of 4,096 and answers of 1,536 tokens."""
    return SystemDecode("h20", replace(DEEPSEEK_R1, formats=_FP8_KV), dies, batch, 4864, drafts, tokens)


_K = 1024
_OWN = Parallelism(prefill_attention="data-parallel")
_F = RowKind.FITTED
_OVERLAP = "its single-batch overlap hides part of the exchanges behind one batch's own products; ours needs two halves"
CANN_FITTED = (
    _row("V3.2, 256 at 64K, EP128", 19.84, CANN, _cann(DEEPSEEK_V32, _C8, 128, 4, 64 * _K), _F),
    _row("V3.2 W4A8, 32 at 64K, EP32", 22.51, CANN, _cann(DEEPSEEK_V32, _W4C8, 32, 2, 64 * _K), _F),
    _row(
        "R1 prefill, own prompts, half batches", 6522, R1_PREFILL,
        SystemPrefill("ascend-910c", DEEPSEEK_R1, 32, 8192, 4096, True, True, _OWN), _F,
    ),
)  # fmt: skip
CANN_SEEN = (_row("V3.2, 512 at 128K, EP128", 25.8, CANN, _cann(DEEPSEEK_V32, _C8, 128, 8, 128 * _K), _F),)
"""In view of it, scores were taken to run as core attention with one query row does."""
H20_FITTED = (
    _row("R1, 1 a GPU, EP16", 23.26, H20, _h20(1), _F),
    _row("R1, 32 a GPU, EP16", 47.41, H20, _h20(32), _F, _OVERLAP),
)
AFD_FITTED = (
    _row(
        "V3.2, 16 a die at 16K, EP64, no draft", 68.8, AFD,
        SystemDecode(
            "ascend-910c", replace(DEEPSEEK_V32, formats=_W8), 64, 32, 16_896, engine="vllm-ascend", balanced=True
        ), _F,
    ),
)  # fmt: skip
"""Decides `indexer_start_s` of the engine vllm-ascend."""
PREDICTED = (
    _row("V3.2, 512 at 64K, EP128", 22.78, CANN, _cann(DEEPSEEK_V32, _C8, 128, 8, 64 * _K)),
    _row("V3.2, 128 at 128K, EP128", 18.85, CANN, _cann(DEEPSEEK_V32, _C8, 128, 2, 128 * _K)),
    _row("V3.2, 64 at 64K, EP64", 20.81, CANN, _cann(DEEPSEEK_V32, _C8, 64, 2, 64 * _K)),
    _row("V3.2 W4A8, 64 at 64K, EP64", 20.18, CANN, _cann(DEEPSEEK_V32, _W4C8, 64, 2, 64 * _K)),
    _row("V3.2, 32 at 64K, EP32", 24.39, CANN, _cann(DEEPSEEK_V32, _C8, 32, 2, 64 * _K)),
    _row("GLM-5, 256 at 64K, EP128", 22.54, GLM, _cann(GLM_5, _W8, 128, 4, 64 * _K)),
    _row(
        "R1, 6,144 at 4K, EP128, INT8 cache", 44.9, R1_DECODE,
        SystemDecode(
            "ascend-910c", replace(DEEPSEEK_R1, formats=_C8), 128, 96, 4096, 1, 1.7, "cann-recipes", balanced=True
        ),
    ),
    _row(
        "R1 prefill, own prompts, whole batches", 5237, R1_PREFILL,
        SystemPrefill("ascend-910c", DEEPSEEK_R1, 32, 8192, 4096, False, True, _OWN),
    ),
    _row("R1, 8 a GPU, EP16", 28.78, H20, _h20(8)),
    _row("R1, 8 a GPU, EP32", 27.30, H20, _h20(8, 32)),
    _row("R1, 12 a GPU, EP16, two drafts", 28.37, H20, _h20(12, 16, 2, 2.55)),
    _row("R1, 32 a GPU, EP32", 54.70, H20, _h20(32, 32)),
    _row("R1, 48 a GPU, EP16", 67.23, H20, _h20(48)),
    _row(
        "R1 prefill, TP8, 4K", 2062, H20,
        SystemPrefill(
            "h20", replace(DEEPSEEK_R1, formats=_FP8_KV), 8, 2048, 4096, False, True, Parallelism(attention_tp=8)
        ),
    ),
    _row("Qwen3-30B-A3B BF16, 100 a GPU, EP4, 4K + 2K", 36.38, SIM,
         SystemDecode("h20", replace(QWEN3_30B, formats=_BF16), 4, 100, 5120)),
    _row("Qwen3-30B-A3B BF16 prefill, 4K", 16_594, SIM,
         SystemPrefill("h20", replace(QWEN3_30B, formats=_BF16), 1, 16_384, 4096, False)),
    _row("Qwen3-8B FP8, 64 a GPU, 4K + 2K", 23.86, SIM,
         SystemDecode("h20", replace(QWEN3_8B, formats=_FP8), 1, 64, 5120)),
    _row("Qwen3-8B FP8 prefill, 4K", 15_061, SIM,
         SystemPrefill("h20", replace(QWEN3_8B, formats=_FP8), 1, 16_384, 4096, False)),
    _row("Kimi-K2, 480 a GPU, EP96, 2K", 160, KIMI,
         SystemDecode("h200", replace(KIMI_K2, formats=_FP8), 96, 480, 2050)),
    _row("Kimi-K2 prefill, EP32, 2K", 7000, KIMI,
         SystemPrefill("h200", replace(KIMI_K2, formats=_FP8), 32, 16_384, 2000, True)),
    _row("R1 W4A8, 416 at 3.5K + 1.5K, EP16", 50, SGLANG,
         SystemDecode("ascend-910c", replace(DEEPSEEK_R1, formats=_W4), 16, 52, 4352, 2, 2.19, "sglang-ascend")),
    _row("V3.2, 8 at 128K, DP8 x TP4", 26, SGLANG,
         SystemDecode("ascend-910c", replace(DEEPSEEK_V32, formats=_W8), 32, 0.5, 131_584, 3, _THREE, "sglang-ascend",
                    division=Parallelism(attention_tp=4))),
    _row("V3.2, 17 at 64K + 3K, DP8 x TP4", 32, VLLM,
         SystemDecode("ascend-910c", replace(DEEPSEEK_V32, formats=_W8), 32, 1.06, 67_000, 2, 2.19, "vllm-ascend",
                    division=Parallelism(attention_tp=4))),
)  # fmt: skip
"""Kept back. Assumed where a source is silent: 70 % of drafts hold, as the CANN recipes say of one."""
