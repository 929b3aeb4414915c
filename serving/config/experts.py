"""Experts of instances with several ranks: location of their weights, and timeouts between ranks."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key

_MOST_RANKS = 64
"""Limit for any group: a set of ranks is one 64-bit word, see `hardware.ub.exchange_layout`."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """`[experts]`, of every pool whose `ep` is above 1; in virtual time with `[simulation] routing`, of decode."""

    redundant: int = key(
        "expert slots of a rank in each layer, beside its even share of the experts: for second copies of busy ones",
        default=0,
        low=0,
        high=1024,
    )
    most_ranks: int = key(
        "ranks that a group can grow to while it runs (`cloudmatrix experts resize`); each one takes 8 bytes x"
        " `max_step_tokens` x experts of a token in every rank's window, 32 KiB with 512 and 8; 0 = 8, or twice `ep`"
        " where that is more; `ep` where it is less",
        default=0,
        low=0,
        high=_MOST_RANKS,
    )
    spares: int = key(
        "ranks of each group that wait, loaded, to take the place of one that is lost: then nobody waits for a process"
        " to start; each takes dies and UB memory as any other rank does; at most what `most_ranks` leaves room for",
        default=0,
        low=0,
        high=_MOST_RANKS - 1,
    )
    policy: Literal["none", "static", "time_sliced", "hierarchical", "global"] = key(
        "when experts move and where to: `time_sliced` = copies of experts that are hot at some time (xDeepServe),"
        " `global`, `hierarchical` = as DeepSeek's EPLB packs them, `static` = back to where they began, `none` = only"
        " when an operator says so; each needs slots to spare: `redundant`, or ranks that have joined",
        default="time_sliced",
    )
    window_s: float = key(
        "time over which the load of experts is counted; after a rebalance there is a pause of the same length [s]",
        default=10.0,
        low=0.5,
        high=86400.0,
    )
    slices: int = key(
        "slices of that time: experts are placed by every other one, and the placement is judged by the rest",
        default=5,
        low=2,
        high=100,
    )
    min_gain: float = key(
        "least share of a layer's expert time that a move must save, the time of moving deducted",
        default=0.05,
        low=0.001,
        high=1.0,
    )
    straggler: Literal["off", "balance", "drain"] = key(
        "what is done about a rank whose experts take longer for the same work than those of other ranks, and which"
        " keeps those waiting: `off` = it is only shown; `balance` = it gets less of the experts' rows, as far as they"
        " have copies elsewhere (`redundant`), and if that does not help, fewer sequences; `drain` = if that does not"
        " help either, another process takes its place; only in groups of three ranks and more",
        default="off",
    )
    slots: Literal["copied", "mapped"] = key(
        "memory of expert slots: `copied` = each rank holds its own experts and no others; `mapped` = slots point into"
        " the whole model, which the ranks of a node share where the KV-cache pool keeps its image",
        default="copied",
    )
    move_mib_per_s: float = key(
        "rate at which experts move between ranks while tokens flow, all ranks of a group together [MiB/s]",
        default=100.0,
        low=0.1,
        high=1e6,
    )
    deadline_s: float = key(
        "longest wait of a rank for another one within a step, if no shell has put that one out of the group before;"
        " then the group is begun anew [s]",
        default=30.0,
        low=0.1,
        high=600.0,
    )

    def most_ranks_of(self, ep: int) -> int:
        """Most ranks to which a group of initially `ep` ranks can grow."""
        return max(ep, self.most_ranks or min(_MOST_RANKS, max(8, 2 * ep)))
