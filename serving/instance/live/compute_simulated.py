"""Compute in predicted time, without model or tensors: steps and moves take the cost model's time, at a time scale.

Everything in the engine runs in simulated time (`clock`): step times, turns and handoff leases, queueing, throughput
and every statistic that an instance reports. Real time applies to clients and to process supervision: links, health
checks, the gateway with its timeouts, a request's deadline in every process, and the KV-cache pool's leases. A client
measures simulated time divided by the time scale.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from hardware.clock import ScaledClock
from hardware.device.instance import WEIGHTS, WORKSPACE, VirtualInstance
from hardware.device.npu import VirtualNpu
from hardware.spec.plane import Plane
from hardware.units import MIB
from hardware.variation import StepVariation
from serving.config.serve import ServeConfig
from serving.config.simulated_cost import AccountedKv, accounted_kv, npu_of, simulated_cost
from serving.config.simulation import SimulationConfig
from serving.errors import ConfigError
from serving.gateway.api.tokenizer import Tokenizer
from serving.grammar.compile import Grammars
from serving.grammar.matcher import Matchers
from serving.instance.core.ports import KvTransport
from serving.instance.core.settings import EngineRole
from serving.instance.executors.simulated_answers import GrammarAnswers, SimulatedAnswers
from serving.instance.executors.simulated_executor import BlockStamps, DecodeDies, SimulatedExecutor, StepTimes
from serving.instance.live.compute import Attached, InstanceCache, KvBlocks, blocks_in_ub
from serving.instance.live.timed_moves import Pace, TimedCache, TimedTransport
from serving.instance.live.ub_transport import UbTransport
from serving.kvpool.live.context_cache import PoolContextCache
from serving.model.dense_form import served_architecture
from serving.values.instances import InstancePlace

BUFFERS = "buffers"
PULLS_AT_ONCE = 64
"""Concurrent handoffs, each of which mostly sleeps. Far more than prefill finishes during one handoff."""
LEAST_STATUS_PERIOD_S = 0.05


class SimulatedCompute:
    """A `Compute` that only models durations.

    Raises: ConfigError for a setting that contradicts the simulated device; SpecError, ModelError for unreadable
        files; HbmExhaustedError if the model does not fit.
    """

    pulls_at_once = PULLS_AT_ONCE

    def __init__(self, config: ServeConfig, place: InstancePlace) -> None:
        self._config = config
        self._simulation = simulation = config.simulation
        self._role = EngineRole(place.pool)
        self._cost = simulated_cost(config)
        self.time_scale = simulation.time_scale
        self.clock = ScaledClock(simulation.time_scale)
        self._pace = Pace(simulation.time_scale)
        self.speculation = False
        self.forced_tokens = self.lookup_tokens = 0
        self.draft_tokens = simulation.drafts if self._role.decodes else 0
        self.status_period_s = max(LEAST_STATUS_PERIOD_S, simulation.status_period_s / simulation.time_scale)
        self.max_model_len = served_architecture(config).max_position_embeddings
        npu = npu_of(self._cost.device)
        self.npus = VirtualInstance(place.replica, [VirtualNpu(one, npu, self.clock) for one in place.npus])
        accounted = accounted_kv(config)
        assert accounted is not None, "a simulated executor has accounted KV"
        self._accounted: AccountedKv = accounted
        self._slowdown = slowdown_of(simulation, place.pool)
        self.kv = self._take_memory(config.pools[place.pool].ub_memory_mib * MIB)

    def attach(self, arena: memoryview) -> Attached:
        """Keep in the arena, for each block, a stamp of the sequence that computed it: moves are verified by it."""
        config, simulation = self._config, self._simulation
        pool, block_tokens, dies = config.pools[self._role.value], config.engine.block_tokens, len(self.npus.dies)
        times = StepTimes(
            self._cost,
            self._role,
            dies,
            self.draft_tokens,
            prefill_dies=config.prefill.dies_per_instance,
            perfect_balance=simulation.expert_balance == "perfect",
            slowdown=self._slowdown,
        )
        tokenizer = Tokenizer.from_folder(config.model.tokenizer_folder)
        words, grammars = plain_words(tokenizer), Grammars(lambda: tokenizer.vocabulary(tokenizer.vocab_size))
        answers = SimulatedAnswers(
            words,
            config.engine.max_model_len or self.max_model_len,
            simulation.output_tokens,
            self.draft_tokens,
            simulation.acceptance,
        )
        executor = SimulatedExecutor(
            times,
            answers,
            DecodeDies(self._groups(dies), pool.max_sequences, block_tokens),
            BlockStamps(arena, self.kv.real_bytes, block_tokens),
            self._pace,
            decodes=self._role.decodes,
            grammars=GrammarAnswers(Matchers(grammars), words),
        )
        kv, version = self._accounted, config.model.version or self._cost.shape.name
        layout = f"simulated-{self._cost.shape.name}-{block_tokens}x{kv.token_bytes}-{kv.real_bytes}"
        return Attached(executor, layout, f"{layout}-{version}", grammars=grammars)

    def on_moved(self, nbytes: int) -> None:
        """Ignore real bytes: `transport` counts accounted ones."""

    def transport(self, moves: UbTransport) -> KvTransport:
        """Moves in predicted time, counted in accounted bytes."""

        def moved(nbytes: int) -> None:
            self.npus.record_moved(Plane.RDMA, nbytes)

        return TimedTransport(moves, self._cost, self._accounted, self._config.engine.block_tokens, self._pace, moved)

    def cache(self, pool: PoolContextCache) -> InstanceCache:
        """Loads in predicted time."""
        rate = self._simulation.pool_gb_per_s or None
        seconds = partial(
            self._cost.pool_load_s, npus=len(self.npus.npus), gb_per_s=rate, plane=self._simulation.pool_plane
        )
        return TimedCache(pool, seconds, self._accounted, self._pace)

    def record_step(self, tokens: int, elapsed_s: float) -> None:
        """Count a step by its real time and the simulated time."""
        self.npus.record_step(tokens, elapsed_s / self.time_scale, elapsed_s)

    def facts(self) -> dict[str, Any]:
        """The time scale, and how often it could not be kept."""
        return {"time_scale": self.time_scale, "late_steps_total": self._pace.late_steps}

    def stop(self) -> None:
        """End all waits."""
        self._pace.stop()

    def close(self) -> None:
        """Do nothing: there is no memory to free."""

    def _groups(self, dies: int) -> int:
        """Number of dies, or groups of dies, that decode separate sequences; a prefill instance has none."""
        return self._cost.decode.parallelism.groups(dies) if self._role.decodes else dies

    def _take_memory(self, ub_bytes: int) -> KvBlocks:
        """Book the cost model's plan for a die's HBM; KV blocks get the rest."""
        npus, block_bytes = self.npus, self._accounted.block_bytes
        plan = self._cost.hbm_plan(self._role.value, len(npus.dies))
        other, without = plan.expert_die, 0 if plan.expert_die is None else self._cost.decode.parallelism.expert_dies
        npus.reserve_per_die(WEIGHTS, plan.weights, last=without, on_last=other.weights if other else 0)
        npus.reserve_per_die(BUFFERS, plan.buffers, last=without, on_last=other.buffers if other else 0)
        npus.reserve_per_die(WORKSPACE, plan.workspace)
        most = blocks_in_ub(ub_bytes, block_bytes)
        blocks = npus.reserve_kv_cache(
            block_bytes, max_blocks=most, groups=plan.groups, parts=plan.parts, without=without
        )
        return KvBlocks(blocks, self._accounted.real_bytes, block_bytes)


def plain_words(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids that decode to printable text on their own, so that each is visible immediately when streamed.

    Raises: ConfigError if there is none.
    """
    special = tokenizer.special_ids
    words = tuple(i for i in range(tokenizer.vocab_size) if i not in special and _is_plain(tokenizer.token_text(i)))
    if not words:
        raise ConfigError("[model] tokenizer has no token that decodes to text on its own")
    return words


def _is_plain(text: str) -> bool:
    return text.strip() != "" and text.isprintable() and "\ufffd" not in text


# Deviations of simulated steps from their prediction: jitter and spikes, by step, derived from the seed.


def slowdown_of(simulation: SimulationConfig, name: str) -> Callable[[int], float] | None:
    """The factor on the duration of each step of one instance.

    Returns: None if steps take exactly the predicted time.
    """
    if not simulation.jitter and not simulation.spike_share:
        return None
    return StepVariation(
        simulation.jitter, simulation.spike_share, simulation.spike_factor, simulation.seed, name
    ).factor
