"""The cost model of one model on one device: single interface for the queries of serving and simulation."""

import math
from bisect import bisect_left
from itertools import accumulate
from operator import mul

from hardware.cost import transfers
from hardware.cost.decode_step import DecodeStep
from hardware.cost.device_model import DeviceModel
from hardware.cost.disaggregated import ApartDecodeStep
from hardware.cost.engine_kernels import with_kernels
from hardware.cost.engine_profile import EngineProfile
from hardware.cost.engine_step import decode_step_with, prefill_step_with
from hardware.cost.explain import apart_cost, decode_cost, prefill_cost
from hardware.cost.loads import DecodeLoad, PredictedStep, PrefillLoad
from hardware.cost.memory_plan import HbmPlan, Role, hbm_plan
from hardware.cost.model_shape import DEEPSEEK_R1, ModelShape, check_formats
from hardware.cost.parallelism import WHOLE, Parallelism
from hardware.cost.prefill_step import PrefillStep
from hardware.cost.step_tables import DecodeTable, PrefillTable
from hardware.cost.transfers import PoolPlane, WeightSource
from hardware.errors import SpecError
from hardware.units import Seconds

MAX_BATCH = 4_096
"""Sequences per NPU beyond which `max_batch` stops looking."""


def mtp_tokens_per_step(drafts: int, acceptance: float | tuple[float, ...]) -> float:
    """Tokens that a sequence gains per step: 1 + a + ... + a^drafts, as a draft counts only if all before it held.

    Args:
        acceptance: share of drafts that hold, or by position: of those whose predecessors held.
    Raises: SpecError for a negative number of drafts, an acceptance outside of 0 .. 1, or too few positions.
    Source: CloudMatrix384 paper 5.4.2: 1.7 for one draft at 70 %.
    """
    if isinstance(acceptance, tuple):
        if drafts < 0 or not all(0 <= share <= 1 for share in acceptance):
            raise SpecError(f"drafts {drafts}, accepted shares {acceptance}: not possible; 0 or more, shares of 0 to 1")
        if len(acceptance) < drafts:
            raise SpecError(
                f"acceptance names {len(acceptance)} positions for {drafts} drafts: give one for each, or one for all"
            )
        return 1.0 + math.fsum(accumulate(acceptance[:drafts], mul))
    if drafts < 0 or not 0 <= acceptance <= 1:
        raise SpecError(f"drafts {drafts}, accepted share {acceptance:g}: not possible; 0 or more, a share of 0 to 1")
    return sum(acceptance**n for n in range(drafts + 1))


class CostModel:
    """Predicted times of one model on one device. Immutable but for tables that it keeps.

    Args:
        engine: whose steps these are; None = of the engine that the device file was fitted to.
        decode, prefill: how an instance of each role divides its work.
    Raises: SpecError for formats of weights or KV that the device cannot be priced with, and for a division of the work
        that the model or the device does not allow.
    """

    def __init__(
        self,
        device: DeviceModel,
        shape: ModelShape = DEEPSEEK_R1,
        engine: EngineProfile | None = None,
        *,
        decode: Parallelism = WHOLE,
        prefill: Parallelism = WHOLE,
    ) -> None:
        self.device = device
        self.shape = shape
        self.engine = engine
        self._decode_phase = None if engine is None else engine.decode
        self._prefill_phase = None if engine is None else engine.prefill
        check_formats(shape, device)
        if shape.drafter is not None:
            check_formats(shape.drafter, device)
            Parallelism(decode.attention_tp, decode.head_tp).check(device, shape.drafter)
        decode.check(device, shape)
        prefill.check(device, shape)
        if prefill.expert_dies:
            raise SpecError("expert_dies is of decode: no prefill with experts on dies of their own is priced")
        priced = device if engine is None else with_kernels(device, engine.kernels, shape)
        self.decode = (ApartDecodeStep if decode.expert_dies else DecodeStep)(priced, shape, decode)
        self.prefill = PrefillStep(priced, shape, prefill)

    # --- steps -------------------------------------------------------------------------------------------------
    def decode_step_s(self, load: DecodeLoad) -> Seconds:
        """Duration of one decode step [s].

        Raises: SpecError for drafts of a model without MTP modules.
        Effects: fills a cache.
        """
        self.shape.check_drafts(load.drafts)
        return self._decode_s(load)

    def _decode_s(self, load: DecodeLoad) -> Seconds:
        phase = self._decode_phase
        if phase is None:
            return self.decode.seconds(load)
        return Seconds(phase.seconds(self.decode.seconds(phase.padded(load)), self._die_tokens(load), load.requests))

    def _die_tokens(self, load: DecodeLoad) -> float:
        return load.requests * (1 + load.drafts) / self.decode.parallelism.attention_tp

    def prefill_step_s(self, load: PrefillLoad) -> Seconds:
        """Duration of one prefill step [s]."""
        step_s, phase = self.prefill.seconds(load), self._prefill_phase
        return step_s if phase is None else Seconds(phase.seconds(step_s, load.tokens / load.dies))

    def decode_step(self, load: DecodeLoad) -> PredictedStep:
        """Operators of one decode step.

        Raises: SpecError as `decode_step_s`.
        Effects: fills a cache.
        """
        self.shape.check_drafts(load.drafts)
        step, phase = self.decode, self._decode_phase
        cost = apart_cost(step, load) if isinstance(step, ApartDecodeStep) else decode_cost(step, load)
        if phase is None:
            return cost
        padded = phase.padded(load)
        padding_s = step.seconds(padded) - cost.total_s if padded is not load else 0.0
        return decode_step_with(phase, cost, load, tokens=self._die_tokens(load), padding_s=padding_s)

    def prefill_step(self, load: PrefillLoad) -> PredictedStep:
        """Operators of one prefill step."""
        return prefill_step_with(self._prefill_phase, prefill_cost(self.prefill, load), load)

    def decode_table(
        self, *, dies: int = 320, drafts: int = 1, microbatch: bool | None = None, imbalance: float | None = None
    ) -> DecodeTable:
        """A fast table of decode steps, empty at first.

        Args:
            imbalance: see `DecodeLoad`.
        Raises: SpecError as `decode_step_s`, and for groups that do not divide the dies.
        """
        self.shape.check_drafts(drafts)
        self.decode.parallelism.check_dies(self.device, dies)
        return DecodeTable(
            self.decode, dies=dies, drafts=drafts, microbatch=microbatch, engine=self._decode_phase, imbalance=imbalance
        )

    def prefill_table(self, *, dies: int = 32, perfect_balance: bool = False, microbatch: bool = True) -> PrefillTable:
        """A fast table of prefill steps, empty at first.

        Raises: SpecError for groups that do not divide the dies.
        """
        self.prefill.parallelism.check_dies(self.device, dies)
        return PrefillTable(
            self.prefill,
            dies=dies,
            perfect_balance=perfect_balance,
            microbatch=microbatch,
            engine=self._prefill_phase,
        )

    def tpot_s(
        self,
        batch: float,
        context: float,
        *,
        dies: int = 320,
        drafts: int = 1,
        acceptance: float | tuple[float, ...] = 0.7,
        microbatch: bool | None = None,
    ) -> Seconds:
        """Time per output token with a full, even batch.

        Args:
            batch: sequences per NPU.
            context: of each sequence [tokens].
        Raises: SpecError as `mtp_tokens_per_step` and `decode_step_s`.
        Effects: fills a cache.
        """
        self.shape.check_drafts(drafts)
        load = self.even_load(batch, context, dies=dies, drafts=drafts, microbatch=microbatch)
        return Seconds(self._decode_s(load) / mtp_tokens_per_step(drafts, acceptance))

    def even_load(
        self, batch: float, context: float, *, dies: int = 320, drafts: int = 1, microbatch: bool | None = None
    ) -> DecodeLoad:
        """An even batch as a load.

        Args:
            batch: sequences per NPU. With fewer sequences than dies, or than groups of dies that share their sequences,
                those that have one set the pace.
            context: of each sequence [tokens].
        Raises: SpecError for groups that do not divide the dies.
        """
        self.decode.parallelism.check_dies(self.device, dies)
        mean = batch / self.device.die.per_npu * (dies / self.decode.parallelism.groups(dies))
        fullest = max(1.0, mean)
        return DecodeLoad(fullest, fullest * context, None if mean == fullest else mean, dies, drafts, microbatch)

    def max_batch(
        self,
        tpot_s: float,
        context: float,
        *,
        dies: int = 320,
        drafts: int = 1,
        acceptance: float | tuple[float, ...] = 0.7,
        microbatch: bool | None = None,
    ) -> int:
        """Largest whole number of sequences per NPU whose time per output token holds and whose cache fits.

        Args:
            tpot_s: target [s].
            context: of each sequence [tokens].
        Returns: 0 if not even one sequence holds it.
        Raises: SpecError as `tpot_s` and `hbm_plan`.
        Effects: fills a cache.
        """

        def holds(batch: int) -> bool:
            tpot = self.tpot_s(batch, context, dies=dies, drafts=drafts, acceptance=acceptance, microbatch=microbatch)
            return tpot <= tpot_s

        most = min(MAX_BATCH, self.batch_that_fits(context, dies=dies))
        return bisect_left(range(1, most + 1), True, key=lambda batch: not holds(batch))

    def batch_that_fits(self, context: float, *, dies: int = 320) -> int:
        """Sequences per NPU whose cache fits; each is stored on one die or in one group of dies.

        Raises: SpecError as `hbm_plan`.
        """
        in_a_group = self.hbm_plan("decode", dies).kv_tokens / max(context, 1.0)
        return int(in_a_group) * self.decode.parallelism.groups(dies) * round(self.device.die.per_npu) // dies

    # --- transfers, loading, memory ----------------------------------------------------------------------------
    def handoff_s(self, nbytes: float, links: int = 1) -> Seconds:
        """KV from prefill to decode over RDMA; see `transfers.handoff_s`. Raises: SpecError."""
        return transfers.handoff_s(self.device, nbytes, links)

    def pool_load_s(
        self, nbytes: float, npus: float, gb_per_s: float | None = None, plane: PoolPlane = "ub"
    ) -> Seconds:
        """Cached blocks from the pool; see `transfers.pool_load_s`. Raises: SpecError."""
        return transfers.pool_load_s(self.device, nbytes, npus, gb_per_s, plane)

    def ub_read_s(self, nbytes: float, *, pooled: bool = True) -> Seconds:
        """One die reads over the scale-up fabric."""
        return transfers.ub_read_s(self.device, nbytes, pooled=pooled)

    def ub_write_s(self, nbytes: float, *, pooled: bool = True) -> Seconds:
        """One die writes over the scale-up fabric."""
        return transfers.ub_write_s(self.device, nbytes, pooled=pooled)

    def vpc_s(self, nbytes: float, dies: float = 1) -> Seconds:
        """Bytes over the datacentre network."""
        return transfers.vpc_s(self.device, nbytes, dies)

    def model_load_s(self, source: WeightSource, loaders: int = 1) -> Seconds:
        """Time until an instance has its weights; see `transfers.model_load_s`. Raises: SpecError."""
        return transfers.model_load_s(self.device, self.shape, source, loaders)

    def regroup_s(self, before: int, after: int) -> Seconds:
        """Time until each die of a decode group holds its part in a group of another size.

        Weights arrive over the scale-up fabric from dies that have them, at all dies at once.

        Args:
            before, after: dies of the group.
        Raises: SpecError as `hbm_plan`.
        """
        more = self.hbm_plan("decode", after).weights - self.hbm_plan("decode", before).weights
        return transfers.ub_read_s(self.device, max(0, more), pooled=False)

    def model_switch_s(self, hit_rate: float) -> Seconds:
        """Mean time to switch to another model; see `transfers.model_switch_s`. Raises: SpecError."""
        return transfers.model_switch_s(self.device, self.shape, hit_rate)

    def hbm_plan(self, role: Role, dies: int) -> HbmPlan:
        """Contents of a die's HBM; see `memory_plan.hbm_plan`. Raises: SpecError."""
        step = self.prefill if role == "prefill" else self.decode
        return hbm_plan(self.device, self.shape, role, dies, step.parallelism)

    def kv_bytes(self, tokens: float) -> float:
        """Bytes of the cache of some tokens, all layers."""
        return tokens * self.shape.kv_token_bytes()
