"""A plan in words and rows: common to the console, Markdown and the page."""

import math
from dataclasses import dataclass

from loadgen.report import numbers
from loadgen.report.table import Table, TableRow, Tone, columns, table_of
from serving.tools.planning.margins import MOST
from serving.tools.planning.plan import ORDERS, CapacityPlan, Option, ShapeBound

HEADS = (
    "prefill + decode", "tokens/NPU", "batch/die", "NPUs", "servers", "TTFT p99", "TPOT p99", "attained", "goodput/s",
    "hit rate", "verdict",
)  # fmt: skip
LEGEND = (
    "prefill + decode: instances x NPUs of each. tokens/NPU: limit of a prefill step. batch/die: limit of sequences on "
    "a decode die. servers: memory servers of the KV-cache pool. A run ends early once its "
    "target is out of reach; its figures are of the requests until then."
)


BOUNDS = (
    "By the cost model alone, at an idle moment and with a cache without limits: fewer cannot do it, so fewer are not "
    "simulated. How many it takes with queues, bursts and a real cache is what the plans say."
)

AGGREGATED = (
    " 4 x 16 aggregated: instances that prefill and decode; tokens/NPU is then the limit of a step, of prompts and "
    "answers together."
)
AGGREGATED_COST = " Aggregated: what a million tokens cost, in and out alike, since one pool computes both."
COST_NOTE = (
    "Over the time in which requests arrive, for tokens of requests within both limits. In: the prefill pool's cost "
    "for a million prompt tokens, cached ones included; out: the decode pool's for a million output tokens; "
    "hosts by NPUs."
)
LOSS_NOTE = (
    "Lost in the middle of the busiest minute. Kept: requests within both limits, of those that arrived in the ten "
    "minutes after, on which the verdict is, and of all. Hit: sequences that lost their instance or its memory."
)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One plan as text; `cells` as `HEADS`."""

    cells: tuple[str, ...]
    limits: str
    why: str
    best: bool
    holds: bool

    @property
    def tone(self) -> Tone:
        """Style of its row."""
        return "best" if self.best else "" if self.holds else "soft"


def headline(plan: CapacityPlan) -> str:
    """The answer in one sentence."""
    best, target = plan.best, plan.target.text
    if plan.load_factor != 1:
        target += f" at {plan.load_factor:g} x the given {'concurrency' if plan.closed else 'arrival rate'}"
    if best is None:
        return f"No plan with up to {plan.budget} NPUs keeps {target}."
    split, npus, together = best.candidate.label, best.candidate.npus, best.candidate.one_pool
    kinds, pools = ("", "") if together else (" (prefill + decode)", "prefill + decode, ")
    cache = f"{best.cache_nodes} memory servers"
    if plan.question == "least":
        return f"{npus} NPUs are the fewest that keep {target}: {split}{kinds}, {cache}."
    if plan.question == "compare":
        kept = numbers.share(best.verdict.attainment)
        split = f"{split} ({pools}{npus} NPUs), {cache}"
        return f"{best.name} comes first: {split}; {kept} keep {plan.target.limits}."
    if plan.question == "rate":
        rate = f"{plan.rate:.3g} x the given {'concurrency' if plan.closed else 'rate'}"
        return f"{split} ({pools}{npus} NPUs), {cache}, keeps {target} up to {rate}."
    share = numbers.share(best.verdict.attainment)
    return (
        f"{split} ({pools}{npus} NPUs), {cache}, gives the highest goodput: "
        f"{numbers.significant(best.verdict.goodput_per_s)} requests/s, {share} of all."
    )


def facts(plan: CapacityPlan) -> list[tuple[str, str]]:
    """Facts of the question, and of the effort."""
    found = [
        ("model", plan.name),
        ("workload", plan.workload),
        ("requests", numbers.count(plan.requests)),
        ("to keep", plan.target.text),
        ("NPUs at most", "" if plan.question == "compare" else numbers.count(plan.budget)),
        ("order", ORDERS[plan.question]),
        ("headroom", _headroom_fact(plan)),
        ("simulations", numbers.count(plan.simulations)),
        ("screened first", numbers.count(len(plan.screened)) if plan.screened else ""),
    ]
    if plan.quick:
        found.append(("quick", "the busiest third of the trace stands for the whole"))
    if plan.accuracy:
        found.append(("accuracy", plan.accuracy))
    return [(name, text) for name, text in found if text]


def rows(plan: CapacityPlan) -> list[PlanRow]:
    """The best plan first, then the others in the order that `facts` states."""
    best = [] if plan.best is None else [_row(plan.best, best=True)]
    return best + [_row(one, best=False) for one in plan.options]


def plan_table(plan: CapacityPlan) -> Table:
    """Every plan with its figures."""
    return Table(columns(*HEADS), [TableRow(row.cells, row.tone) for row in rows(plan)], _legend(plan))


def _legend(plan: CapacityPlan) -> str:
    """The table's legend, with the marks of divided decode instances where there are any."""
    options = [*plan.options, *([plan.best] if plan.best else [])]
    shapes = [one.candidate.decode for one in options]
    marks = (
        (any(one.candidate.one_pool for one in options), AGGREGATED),
        (any(one.attention_tp > 1 for one in shapes), " TP4: four dies share their sequences."),
        (any(one.expert_dies for one in shapes), " E32: 32 dies hold experts only."),
        (
            any(one.redundant >= 0 for one in shapes),
            " R32: 32 copies of experts beyond one of each; with routing, slots of each rank.",
        ),
    )
    return LEGEND + "".join(text for is_there, text in marks if is_there)


def why_table(plan: CapacityPlan) -> Table:
    """A table of each plan's limit, and why it is the best or not."""
    cells = [TableRow([f"{row.cells[0]} ({row.limits})", row.why], row.tone) for row in rows(plan)]
    return Table(columns("plan", "what limits it", long=("plan", "what limits it")), cells)


def demand_table(plan: CapacityPlan) -> Table:
    """A table of the load that was planned for."""
    asked = plan.demand
    heads = columns("what is asked for", "mean", "99 % at most", "per second")
    uncached = numbers.significant(asked.uncached_tokens_per_s)
    rows = [
        ("requests", "", "", numbers.significant(asked.requests_per_s)),
        (
            "prompt tokens", numbers.significant(asked.mean_prompt), numbers.significant(asked.p99_prompt),
            numbers.significant(asked.prompt_tokens_per_s),
        ),
        ("prompt tokens that an ideal cache leaves to compute", "", "", uncached),
        (
            "output tokens", numbers.significant(asked.mean_output), numbers.significant(asked.p99_output),
            numbers.significant(asked.output_tokens_per_s),
        ),
    ]  # fmt: skip
    return table_of(heads, rows, f"Over {numbers.clock(asked.duration_s)} in which requests arrive.")


def bounds_table(plan: CapacityPlan) -> Table:
    """A table of each kind of instance by the cost model: its best rate, and the fewest that the load allows."""
    asked = {"prefill": plan.demand.uncached_tokens_per_s, "decode": plan.demand.output_tokens_per_s}
    asked["aggregated"] = sum(asked.values())
    heads = columns(
        "instance", "batch limit", "tokens/s at its best", "tokens/s asked for", "at least", "NPUs at least",
    )  # fmt: skip
    rows = [
        (
            _instances(one), _batch_limit(one), numbers.significant(one.tokens_per_s),
            numbers.significant(asked[one.pool]), numbers.count(one.least), numbers.count(one.least * one.npus),
        )
        for one in plan.bounds
    ]  # fmt: skip
    return table_of(heads, rows, BOUNDS)


def _batch_limit(one: ShapeBound) -> str:
    chunk = f"{one.chunk:,} tokens/NPU, " if one.chunk else ""
    return f"{chunk}{one.limit:,} {'tokens/NPU' if one.pool == 'prefill' else 'sequences/die'}"


def _instances(one: ShapeBound) -> str:
    return f"{one.pool}, {one.npus} NPUs{one.division.replace(' ', ', ')}"


def headroom_text(plan: CapacityPlan) -> str:
    """How much more load the best plan carries; empty if not requested."""
    room = plan.headroom
    if room is None or plan.best is None:
        return ""
    parts = [f"{name} {_factor(factor)}" for name, factor in (("TTFT", room.ttft), ("TPOT", room.tpot))]
    share = f"{100 * plan.target.attainment:.4g} %"
    text = f"{plan.best.label} keeps, for {share} of requests, {' and '.join(parts)}."
    if room.ttft < room.tpot:
        text += " Where prompts wait for prefill, decode gets no more load."
    return text


def cost_table(plan: CapacityPlan) -> Table:
    """Money and energy of every plan, by its reader's prices; without rows if there are none."""
    prices, best = plan.prices, plan.best
    if prices is None:
        return Table([], [])
    currency = prices.money.currency
    heads = columns(
        "prefill + decode", "NPUs", f"{currency}/h", f"{currency} per 1M in", f"{currency} per 1M out", "kW",
        "tokens/J", "out tokens/J",
    )  # fmt: skip
    rows = [
        TableRow([
            one.label, numbers.count(one.candidate.npus), numbers.significant(cost.per_hour),
            numbers.significant(cost.in_per_million), numbers.significant(cost.out_per_million),
            numbers.significant(cost.watts / 1e3), numbers.significant(cost.tokens_per_joule),
            numbers.significant(cost.out_tokens_per_joule),
        ], "best" if one is best else "" if one.holds else "soft")
        for one in ([] if best is None else [best]) + plan.options
        if (cost := one.cost) is not None
    ]  # fmt: skip
    options = [*plan.options, *([] if best is None else [best])]
    note = COST_NOTE + AGGREGATED_COST * any(one.candidate.one_pool for one in options)
    return Table(heads, rows, f"{note} Your prices: {prices.text}.")


def losses_table(plan: CapacityPlan) -> Table:
    """Every loss in the middle of the busiest minute, with what the best plan keeps then."""
    heads = columns(
        "lost", "kept after", "kept in all", "TTFT p99", "TPOT p99", "hit", "verdict",
        long=("lost",),
    )  # fmt: skip
    rows = [
        TableRow(
            [
                one.what, numbers.share(one.attainment), numbers.share(one.whole_attainment),
                numbers.duration(one.ttft_p99_s), numbers.duration(one.tpot_p99_s), numbers.count(one.hit),
                "holds" if one.holds else "misses",
            ],
            "" if one.holds else "soft",
        )
        for one in plan.losses
    ]  # fmt: skip
    return Table(heads, rows, LOSS_NOTE if rows else "")


HELD_BACK = (
    "DeepSeek's own service on H800 computed 4,026 of the 7,839 prompt tokens/s per GPU and 1,850 of the 2,325 output "
    "tokens/s that its profile data show at saturation, and its peak took 278 nodes where the mean took 227: 1.9 to "
    "2.4 x for prefill, 1.3 to 1.5 x for decode"
)
"""Reserve of a production service: saturated over served rates, and that times peak over mean nodes.

Source: arXiv 2506.12708, Tables 3 and 4, rows "blog" and "profile"; DeepSeek, open-source week, day 6.
"""


def _headroom_fact(plan: CapacityPlan) -> str:
    """The plan's reserve, and what services of the kind hold back; empty where no plan was searched for."""
    if plan.question != "least" or plan.best is None:
        return ""
    if plan.load_factor != 1:
        return f"the load is {plan.load_factor:g} x the given one. {HELD_BACK}."
    npus = plan.best.candidate.npus
    twice = "" if plan.twice is None else f" ({plan.twice.npus} NPUs by screening: {plan.twice.label})"
    return f"none: {npus} NPUs hold the load as it is given. {HELD_BACK}; --headroom 2 plans for twice the load{twice}."


TPOT_APART = 0.1
TTFT_APART = 0.3
"""Differences of 99th percentiles from which on screening and simulation are said to disagree."""


def screened_table(plan: CapacityPlan) -> Table:
    """Every screened plan, next to its simulation if it was a finalist; without rows if nothing was screened."""
    heads = columns(
        "screened", "batch limits", "NPUs", "TTFT p99", "simulated", "TPOT p99", "simulated", "verdict", "simulated"
    )
    rows = []
    for one in plan.screened:
        both = (one.screened, one.simulated)
        cells = [one.candidate.label, one.candidate.limits, numbers.count(one.candidate.npus)]
        cells += ["" if verdict is None else numbers.duration(verdict.ttft_p99_s) for verdict in both]
        cells += ["" if verdict is None else numbers.duration(verdict.tpot_p99_s) for verdict in both]
        cells += ["" if verdict is None else _holds(verdict.holds(plan.target)) for verdict in both]
        rows.append(cells)
    return table_of(heads, rows, agreement(plan)) if rows else Table([], [])


def _holds(holds: bool) -> str:
    return "holds" if holds else "misses"


def agreement(plan: CapacityPlan) -> str:
    """How far screening is from the simulations of the same plans; names those where it is far."""
    pairs = [(one, one.simulated) for one in plan.screened if one.simulated is not None]
    apart: list[str] = []
    worst = [0.0, 0.0]
    for one, simulated in pairs:
        if one.screened.holds(plan.target) != simulated.holds(plan.target):
            words = [_holds(verdict.holds(plan.target)) for verdict in (one.screened, simulated)]
            apart.append(f"{one.candidate.label} {words[0]} screened and {words[1]} simulated")
        if simulated.stopped_s is not None:
            continue  # its figures are of a part of the requests
        for place, (name, most) in enumerate((("ttft_p99_s", TTFT_APART), ("tpot_p99_s", TPOT_APART))):
            values: list[float] = [getattr(verdict, name) for verdict in (one.screened, simulated)]
            off = values[0] / values[1] - 1 if values[1] > 0 else 0.0
            if not abs(off) <= most and not math.isnan(off):
                what = f"{name[:4].upper()} p99 {numbers.duration(values[0])} screened, "
                apart.append(f"{one.candidate.label}: {what}{numbers.duration(values[1])} simulated")
            worst[place] = max(worst[place], 0.0 if math.isnan(off) else abs(off))
    if not pairs:
        return ""
    if apart:
        return f"Screening and simulation disagree, so trust the simulation: {'; '.join(apart)}."
    return (
        f"Screening and simulation agree on {len(pairs)} of {len(pairs)} plans: TTFT p99 within "
        f"{numbers.share(worst[0])}, TPOT p99 within {numbers.share(worst[1])}."
    )


def _factor(factor: float) -> str:
    if not factor:
        return f"not even at {1 / MOST:g} x this load"
    if factor >= MOST:
        return f"up to {MOST:g} x this load (the most that was tried)"
    return f"up to {factor:.3g} x this load"


def dropped_table(plan: CapacityPlan) -> Table:
    """A table of the candidates that were not simulated on the whole trace, with the reasons."""
    return table_of(columns("what", "why", long=("what", "why")), [(one.what, one.why) for one in plan.dropped])


def _row(one: Option, *, best: bool) -> PlanRow:
    verdict, candidate = one.verdict, one.candidate
    word = "best" if best else "holds" if one.holds else "misses"
    cells = (
        one.label, numbers.count(candidate.prefill.limit), numbers.count(candidate.decode.limit),
        numbers.count(candidate.npus), numbers.count(one.cache_nodes),
        numbers.duration(verdict.ttft_p99_s), numbers.duration(verdict.tpot_p99_s), numbers.share(verdict.attainment),
        numbers.significant(verdict.goodput_per_s), numbers.share(verdict.hit_share), word,
    )  # fmt: skip
    limits = f"{candidate.label}; {candidate.limits}" if one.name else candidate.limits
    return PlanRow(cells, limits, one.why, best, one.holds)
