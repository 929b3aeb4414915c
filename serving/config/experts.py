"""Experts of instances with several ranks: location of their weights, and timeouts between ranks."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key
from serving.config.upgrade_rules import ENGINES, restarts, upgrades

_MOST_RANKS = 64
"""Limit for any group: a set of ranks is one 64-bit word, see `hardware.ub.exchange_layout`."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """`[experts]`, of every pool whose instances have several ranks; in virtual time with `[simulation] routing`, of
    decode."""

    UPGRADE = upgrades(restarts(*ENGINES))
    LIVE_ONLY = "spares slots across_nodes deadline_s micro_batches shared gather_us"

    redundant: int = key(
        "redundant expert slots per rank and layer, in addition to its even share: for copies of busy experts",
        default=0,
        low=0,
        high=1024,
    )
    most_ranks: int = key(
        "ranks to which a group can grow while running (`cloudmatrix experts resize`); each takes 16 bytes x "
        "`max_step_tokens` x experts per token in every rank's window, 64 KiB with 512 and 8; 0 = 8, or twice `ep` "
        "if that is more; `ep` if less; of groups with attention ranks and expert ranks it is the most of each kind, "
        "at most 32",
        default=0,
        low=0,
        high=_MOST_RANKS,
    )
    spares: int = key(
        "spare ranks per group, started and loaded, that replace a lost rank without waiting for a process to start, "
        "of each kind where a group has attention ranks and expert ranks; "
        "each takes dies and UB memory like any other rank; at most what `most_ranks` leaves room for",
        default=0,
        low=0,
        high=_MOST_RANKS - 1,
    )
    policy: Literal["none", "static", "time_sliced", "hierarchical", "global"] = key(
        "when and where experts move: `time_sliced` = copies of experts that are hot at some time (xDeepServe), "
        "`global`, `hierarchical` = packed as by DeepSeek's EPLB, `static` = back to their initial placement, `none` "
        "= only on an operator's command; each needs spare slots: `redundant`, or ranks that have joined",
        default="time_sliced",
    )
    window_s: float = key(
        "time over which expert load is counted; a rebalance is followed by a pause of the same length [s]",
        default=10.0,
        low=0.5,
        high=86400.0,
    )
    slices: int = key(
        "slices of that time: every second one determines the placement, the others validate it",
        default=5,
        low=2,
        high=100,
    )
    min_gain: float = key(
        "least share of a layer's expert time that a move must save, after the cost of moving",
        default=0.05,
        low=0.001,
        high=1.0,
    )
    straggler: Literal["off", "balance", "drain"] = key(
        "what to do about a rank whose experts take longer than those of other ranks for the same work and delay "
        "them: `off` = report only; `balance` = assign it fewer of the experts' rows, as far as copies exist "
        "elsewhere (`redundant`), and if that does not help, fewer sequences; `drain` = if that does not help "
        "either, replace its process; only in groups of three or more ranks",
        default="off",
    )
    on_loss: Literal["reserve", "mask"] = key(
        "what happens to experts of which a lost rank had the only copy: `reserve` = the other ranks load them within "
        "the pause, and tokens stay those of a single process; `mask` = gates choose other experts until a replacement "
        "has joined: tokens may differ, and `usage.masked_tokens` of a response counts those concerned; no KV computed "
        "so is reused for another request; where too few experts of a layer would be left, it is `reserve`",
        default="reserve",
    )
    slots: Literal["copied", "mapped"] = key(
        "memory of expert slots: `copied` = each rank holds only its own experts; `mapped` = slots point into the "
        "whole model, shared by the ranks of a node where the KV-cache pool holds its image",
        default="copied",
    )
    micro_batches: Literal["auto", "1", "2"] = key(
        "parts of a rank's step with several sequences: with `2`, attention of one half is computed while the rows of "
        "the other are with their experts, but weights are read twice; `auto` = measured, the faster by size of step; "
        "tokens do not depend on it",
        default="auto",
    )
    shared: Literal["attention", "experts"] = key(
        "which ranks compute a model's shared experts, with `attention_ranks` and `expert_ranks`: `attention` = "
        "each for its own rows; `experts` = as one more choice of each row, the rows of a step divided evenly "
        "among expert ranks, each of which then holds shared experts, too; tokens do not depend on it; in virtual time "
        "dies with experts compute shared ones, too",
        default="attention",
    )
    gather_us: int = key(
        "longest wait of rows at their experts for those of other ranks, with which they share the reading of weights "
        "[us]; 0 = none; -1 = by a rule, in proportion to the time that such rows take",
        default=-1,
        low=-1,
        high=1_000_000,
    )
    move_mib_per_s: float = key(
        "rate at which experts move between ranks while tokens flow, all ranks of a group together [MiB/s]",
        default=100.0,
        low=0.1,
        high=1e6,
    )
    across_nodes: bool = key(
        "whether the ranks of one group may be spread over nodes, as few as possible; those of different nodes "
        "exchange rows over TCP, with TLS under `RAY_USE_TLS`",
        default=False,
    )
    deadline_s: float = key(
        "longest wait of a rank for another within a step, unless the failed rank was removed from the group before; "
        "then the group is re-formed [s]",
        default=30.0,
        low=0.1,
        high=600.0,
    )

    def most_ranks_of(self, *sides: int) -> int:
        """Most ranks of each kind to which a group can grow.

        Args:
            sides: initial ranks by kind, see `PoolConfig.sides`. Ranks of the second kind are numbered from this
                number on.
        """
        most = max(8, 2 * max(sides))
        return max(*sides, self.most_ranks or min(self.room_of(sides), most))

    @staticmethod
    def room_of(sides: tuple[int, ...]) -> int:
        """Most ranks of each kind that any group can have."""
        return _MOST_RANKS // len(sides)
