"""Cost breakdown of a step: each operator with its bottleneck and its formula, for people and reports.

The numbers are those of the fast formulas: the parts of both streams sum to the results of `DecodeStep` and
`PrefillStep`.
"""

from hardware.cost.attention import LatentAttentionSizes
from hardware.cost.decode_step import DecodeStep, HalfBatch
from hardware.cost.device_model import Calibration
from hardware.cost.disaggregated import MTP_LAYER_S, SCHEDULING_S, ApartDecodeStep, DisaggregatedStep
from hardware.cost.kernels import INDEXER_STARTS, Kernel, attention_kernels, expert_kernels, small, starts
from hardware.cost.loads import CostPart, DecodeLoad, PredictedStep, PrefillLoad
from hardware.cost.parallelism import die_attention_weights
from hardware.cost.prefill_step import PrefillLayer, PrefillStep
from hardware.units import Seconds

ATTENTION, EXPERTS, OUTSIDE = 0, 1, -1
_PAIR = "reduce-scatter and all-gather"


def decode_cost(step: DecodeStep, load: DecodeLoad) -> PredictedStep:
    """Breakdown of one decode step."""
    microbatch = step.uses_microbatch(load)
    halves = 2 if microbatch else 1
    half = step.half_batch(load, halves)
    shared = microbatch and step.device.layout.decode_overlap == "split-cores"
    share = step.best_share(half) if shared else 1.0
    rest = 1 - share if shared else 1.0
    drafts = load.drafts if step.drafter is None else 0
    runs = (step.shape.moe_layers + drafts) * halves
    parts = attention_parts(step, load, half, share, (step.shape.layers + drafts) * halves)
    if runs:
        parts += _expert_parts(step, load, half, rest, runs)
    if step.shape.dense_layers:
        parts.append(_dense_part(step, half, rest, step.shape.dense_layers * halves))
    layer, dense = step.layers_s(load, microbatch=microbatch)
    second = step.expert_s(half, rest) if runs else step.dense_s(half, rest)
    return PredictedStep(
        total_s=step.seconds(load),
        layer_s=Seconds(layer if runs else dense),
        streams_s=(Seconds(step.attention_s(half, share)), Seconds(second)),
        cube_split=share,
        microbatch=microbatch,
        parts=(*parts, *_outside_parts(step, load)),
    )


def _vector_text(kernels: tuple[Kernel, ...], calibration: Calibration, tokens: float, share: float) -> str:
    """Element-wise work by kernel, with its times for one token."""
    each = (f"{one.name} {one.values * calibration.vector_value_s * 1e6:.2f}" for one in kernels if one.values)
    return f"{tokens:g} tokens x us of ({', '.join(each)}) / {share:.3f} of the cores"


def _floor(step: DecodeStep, *names: str) -> float:
    """Least time of some kernels of attention [s]."""
    return small(attention_kernels(step.shape), *names) * step.device.calibration.kernel_floor_s


def _starts_text(step: DecodeStep) -> str:
    """Kernels that the attention stream starts."""
    own = f"{starts(attention_kernels(step.shape))} kernels"
    return own if step.terms.indexer is None else f"{own}, and {INDEXER_STARTS} small ones of the indexer"


def _part(name: str, stream: int, once: float, runs: int, bound: str, formula: str) -> CostPart:
    return CostPart(name, stream, Seconds(once * runs), runs, bound, formula)


def _product(
    name: str, stream: int, runs: int, compute: float, memory: float, share: float, what: str, floor: float = 0.0
) -> CostPart:
    """An operator that is the slower of its products and its reads, and takes at least `floor` [s]."""
    slower, least = compute / share, 0 < memory <= floor
    bound = "compute" if slower > memory else "latency" if least else "memory"
    reads = "of kernels that wait for their starts" if least else "of reads"
    formula = f"max({compute * 1e6:.1f} us of products / {share:.3f} of the cores, {memory * 1e6:.1f} us {reads})"
    formula = f"{formula}: {what}"
    return _part(name, stream, max(slower, memory), runs, bound, formula)


def attention_parts(step: DecodeStep, load: DecodeLoad, half: HalfBatch, share: float, runs: int) -> list[CostPart]:
    """Operators of the attention stream.

    Args:
        half: of a part of the batch; runs: of each operator in the step.
        share: of the cores that the stream has.
    """
    shape, cal, c = step.shape, step.device.calibration, step.terms
    halves = 2 if step.uses_microbatch(load) else 1
    tokens = load.requests * (1 + load.drafts) / halves
    context = load.context_tokens / halves
    absorption = ", absorption in BF16" if shape.absorbed_weights else ""
    read = step.read_tokens(load) / halves
    tp = step.parallelism.attention_tp
    prolog = shape.attention.die_prolog_weights(shape.hidden, tp)
    cached = f"{context:,.0f}" if read == context else f"{read:,.0f} of {context:,.0f}"
    return [
        _product(
            "prolog",
            ATTENTION,
            runs,
            half.prolog_c,
            c.prolog_w,
            share,
            f"{tokens:g} tokens x 2 x {prolog / 1e6:.1f} M weights{absorption}",
            _floor(step, "prolog"),
        ),
        _product(
            "core attention",
            ATTENTION,
            runs,
            half.core_c,
            half.core_w,
            share,
            f"{1 + load.drafts} rows x {cached} cached tokens x {shape.attention.decode_core_flops / tp:,.0f} flop",
            c.core_floor,
        ),
        *_indexer_parts(step, load, half, share, runs),
        _product(
            "output projection",
            ATTENTION,
            runs,
            half.output_c,
            c.output_w,
            share,
            f"{tokens:g} tokens x 2 x {shape.output_weights / tp / 1e6:.1f} M weights{absorption}",
            _floor(step, "value", "output"),
        ),
        _part(
            "attention vector work",
            ATTENTION,
            half.attention_vector / share,
            runs,
            "vector",
            _vector_text(attention_kernels(shape), cal, step.own(tokens), share),
        ),
        _part("attention start-up", ATTENTION, c.attention_start, runs, "latency", _starts_text(step)),
        *([_part(_PAIR, ATTENTION, half.collective, runs, "network", f"{tokens:g} tokens, TP{tp}")] if tp > 1 else []),
    ]


def _indexer_parts(step: DecodeStep, load: DecodeLoad, half: HalfBatch, share: float, runs: int) -> list[CostPart]:
    """Sparse attention's indexer; empty without one."""
    index, indexer = step.terms.indexer, step.shape.indexer
    if index is None or indexer is None:
        return []
    layers = f"{indexer.layers} of {step.shape.layers} layers"
    products = f"{step.shape.indexer_weights / 1e6:.1f} M weights in BF16, {layers}"
    scores = f"{1 + load.drafts} rows, every cached token x {indexer.score_flops:,.0f} flop, {layers}"
    vector = f"ReLU, weights of {indexer.heads} heads, the best {indexer.top_k:,}"
    return [
        _product("indexer", ATTENTION, runs, half.index_c, index.product_w, share, products),
        _product("indexer scores", ATTENTION, runs, half.score_c, half.score_w, share, scores),
        _part("choice of tokens", ATTENTION, half.score_vector / share, runs, "vector", vector),
    ]


def _expert_parts(step: DecodeStep, load: DecodeLoad, half: HalfBatch, share: float, runs: int) -> list[CostPart]:
    cal, group = step.device.calibration, step.group(load.dies)
    halves = 2 if step.uses_microbatch(load) else 1
    tokens = step.own(load.requests * (1 + load.drafts) / halves)
    requests = load.requests if load.mean_requests is None else load.mean_requests
    mean = requests * (1 + load.drafts) / halves / step.parallelism.attention_tp
    etp = step.parallelism.expert_tp
    between = f"EP{load.dies // etp}{f' x TP{etp}' * (etp > 1)}"
    floor, read = cal.exchange_floor_s, group.read(mean * load.dies)

    def exchange(name: str, per_token: float) -> CostPart:
        text = f"{floor * 1e6:.0f} us + {tokens:g} tokens x {per_token * 1e6:.2f} us, {between}, with stragglers"
        text += f"; at least {group.least * 1e6:.0f} us" if group.least else ""
        return _part(name, EXPERTS, max(floor + per_token * tokens, group.least), runs, "network", text)

    return [
        exchange("dispatch", group.dispatch_t),
        _product(
            "expert products",
            EXPERTS,
            runs,
            half.expert_c,
            half.expert_w,
            share,
            f"busiest die: {group.busiest(mean, load.imbalance):,.4g} tokens, {read:.3g} of {group.experts} experts x "
            f"{step.shape.expert_weights / etp / 1e6:.1f} M weights",
            step.terms.expert_floor,
        ),
        exchange("combine", group.combine_t),
        _part(
            "expert vector work",
            EXPERTS,
            half.expert_vector / share,
            runs,
            "vector",
            _vector_text(expert_kernels(step.shape), cal, tokens, share),
        ),
        _part("expert start-up", EXPERTS, step.terms.expert_start, runs, "latency", "gate, products, activation"),
    ]


def _dense_part(step: DecodeStep, half: HalfBatch, share: float, runs: int) -> CostPart:
    once = step.dense_s(half, share)
    bound = "compute" if half.dense_c / share > step.terms.dense_w else "memory"
    instead = "; in place of experts" if step.shape.experts else ""
    weights = step.shape.dense_weights / step.parallelism.attention_tp
    text = f"{weights / 1e6:.0f} M weights, vector work and start-up{instead}"
    return _part("dense feed-forward", EXPERTS, once, runs, bound, text)


def _outside_parts(step: DecodeStep, load: DecodeLoad) -> list[CostPart]:
    c, cal, requests = step.terms, step.device.calibration, step.own(load.requests)
    tokens = step.own(load.requests * (1 + load.drafts))
    head, weights = step.head_s(tokens), step.shape.head_weights / step.parallelism.head_tp
    bound = "compute" if c.head_t * tokens > c.head_w else "memory"
    parts = [
        _part("LM head", OUTSIDE, head, 1, bound, f"{weights / 1e6:.0f} M weights, {tokens:g} tokens"),
        _part(
            "sampling",
            OUTSIDE,
            cal.sampling_s * tokens,
            1,
            "vector",
            f"{tokens:g} tokens x {cal.sampling_s * 1e6:.0f} us",
        ),
        _part("step start", OUTSIDE, cal.step_start_s, 1, "latency", "what the graph launch does not hide"),
    ]
    if step.drafter is not None and load.drafts:
        parts.append(_drafter_part(step, load))
    elif load.drafts:
        draft = step.head_s(requests) + max(c.merge_t * tokens, c.merge_w)
        text = "LM head and merging product of each MTP module; its layer is among the layers"
        if cal.draft_start_s:
            waits = "host between passes"
            parts.append(_part("draft start", OUTSIDE, cal.draft_start_s, load.drafts, "latency", waits))
        parts.append(_part("MTP head", OUTSIDE, draft, load.drafts, "memory", text))
    return parts


def _drafter_part(step: DecodeStep, load: DecodeLoad) -> CostPart:
    """All passes of a separate draft model."""
    assert step.drafter is not None
    shape = step.drafter.shape
    text = f"{shape.name}: {shape.layers} layer{'s' * (shape.layers != 1)}, LM head of {shape.vocab:,} tokens"
    return _part("draft model", OUTSIDE, step.drafts_s(load) / load.drafts, load.drafts, "memory", text)


def prefill_cost(step: PrefillStep, load: PrefillLoad) -> PredictedStep:
    """Breakdown of one prefill step: stream 0 has the matrix products, stream 1 the work that can overlap with them."""
    microbatch = step.uses_microbatch(load)
    halves = 2 if microbatch else 1
    dense = step.layer(load, halves=step.dense_halves(load), dense=True)
    only_dense = not step.shape.moe_layers
    layer = dense if only_dense else step.layer(load, halves=halves)
    parts = _prefill_parts(step, load, layer, dense)
    outside = CostPart(
        "LM head and fixed part", OUTSIDE, Seconds(step.outside_s(load)), 1, "memory", "last tokens only"
    )
    return PredictedStep(
        total_s=step.seconds(load),
        layer_s=Seconds(step.layer_s(load, microbatch=microbatch, dense=only_dense)),
        streams_s=(Seconds(layer.main / halves), Seconds(layer.hidden / halves)),
        cube_split=1.0,
        microbatch=microbatch,
        parts=(*parts, outside),
    )


def _attended(step: PrefillStep, load: PrefillLoad, n: float) -> str:
    shape, mean = step.shape, load.attended_tokens / max(load.tokens, 1.0)
    read = shape.attention.reach(shape.layers).prompt_tokens(mean, load.first)
    plain = f"{n:,.0f} tokens x {mean:,.0f} attended x {shape.attention.prefill_core_flops:,.0f} flop"
    if shape.indexer:
        return f"{plain}, or {read:,.0f} chosen x {shape.attention.decode_core_flops:,.0f} flop if that is less"
    return plain if read == mean else plain.replace("attended", f"attended, of which {read:,.0f} in reach,")


_INDEXER = "its products, scores of all attended tokens, and the choice"


def _prefill_parts(step: PrefillStep, load: PrefillLoad, layer: PrefillLayer, dense: PrefillLayer) -> list[CostPart]:
    shape, cal = step.shape, step.device.calibration
    n, tp = load.tokens / load.dies, step.parallelism.attention_tp
    moe, few = shape.moe_layers, shape.dense_layers

    def part(name: str, stream: int, pick: str, bound: str, formula: str) -> CostPart:
        time = moe * getattr(layer, pick) + few * getattr(dense, pick)
        return CostPart(name, stream, Seconds(time), shape.layers, bound, formula)

    bound = "memory" if layer.weights > layer.products + layer.experts else "compute"
    weights = max(0.0, layer.weights - layer.products - layer.experts) * moe
    weights += max(0.0, dense.weights - dense.products - dense.experts) * few
    rate = f"{cal.collective_bytes_per_s / 1e9:.0f} GB/s"
    rows = "latents" if isinstance(shape.attention, LatentAttentionSizes) else "keys and values"
    imbalance = cal.prefill_imbalance if load.imbalance is None else load.imbalance
    balance = "ideal balance" if imbalance == 1 else f"busiest die {imbalance:.2f} x the mean"
    feed = f"{n:,.0f} tokens, {balance}" if moe else f"{n:,.0f} tokens x {shape.dense_weights / 1e6:.1f} M"
    parts = [
        part(
            "attention products",
            ATTENTION,
            "products",
            bound,
            f"{n:,.0f} tokens x {tp * die_attention_weights(shape, tp) / 1e6:.1f} M",
        ),
        part(
            "core attention",
            ATTENTION,
            "core",
            "compute",
            _attended(step, load, n),
        ),
        *([part("indexer", ATTENTION, "indexer", "compute", _INDEXER)] if step.shape.indexer else []),
        part(f"{'expert' if moe else 'feed-forward'} products", ATTENTION, "experts", bound, feed),
        part(f"all-gather of {rows}", ATTENTION, "gather", "network", rate),
        part("all-to-all of heads", ATTENTION, "exchange_heads", "network", rate),
        *([part(_PAIR, ATTENTION, "collective", "network", rate)] if tp > 1 else []),
        part("vector work", ATTENTION, "vector", "vector", f"{n:,.0f} tokens"),
        part("kernel starts", ATTENTION, "launch", "latency", "per layer and half batch"),
    ]
    if moe:
        sent = f"{shape.active_experts} destinations, {cal.bulk_exchange_bytes_per_s / 1e9:.0f} GB/s"
        parts.append(part("dispatch and combine", EXPERTS, "exchange", "network", sent))
    beside = "reordering and weighted sum" if moe else "vector work of the feed-forward"
    parts.append(part(beside, EXPERTS, "hidden_vector", "vector", f"{n:,.0f} tokens"))
    if weights:
        text = "reads of weights that the products do not cover"
        parts.append(CostPart("waiting for weights", ATTENTION, Seconds(weights), shape.layers, "memory", text))
    return parts


# Breakdown of a decode step with attention and experts on different dies: the bottleneck, and the parts that wait
# for it.

HIDDEN = "experts' turn"


def apart_cost(step: ApartDecodeStep, load: DecodeLoad) -> PredictedStep:
    """Breakdown of one decode step; the parts add up to it."""
    stages = step.iteration(load)
    runs = stages.halves * step.shape.layers
    return PredictedStep(
        total_s=stages.total_s,
        layer_s=Seconds(stages.halves * stages.pace_s),
        streams_s=(stages.attention_s, stages.turn_s),
        cube_split=1.0,
        microbatch=stages.halves > 1,
        parts=(
            *attention_parts(step, load, step.half_batch(load, stages.halves), 1.0, runs),
            *_stage_parts(step, stages, runs),
            *_apart_outside_parts(step, load, stages),
        ),
    )


def _stage_parts(step: ApartDecodeStep, stages: DisaggregatedStep, runs: int) -> list[CostPart]:
    """Sending, and the wait of attention; the experts' turn, as long as it is hidden, takes no additional time."""
    domains, dies = step.parallelism.domains, step.parallelism.expert_dies
    turn = f"{domains} domains x the longest of: {stages_text(stages)}"
    wait = stages.pace_s - stages.attention_s
    why = f"{HIDDEN} comes every {stages.turn_s * 1e6:,.0f} us: {turn}" if stages.bound == "experts" else _ROUND
    bound = "latency" if stages.bound == "round trip" else "network"
    if stages.bound == "experts" and stages.experts_s >= max(stages.send_s, stages.return_s):
        bound = "compute"
    text = why if wait > 0 else f"hidden: every {stages.turn_s * 1e6:,.0f} us, {turn}"
    return [
        CostPart(
            "send to experts", ATTENTION, Seconds(runs * stages.exchange.first), runs, "network", f"to {dies} dies"
        ),
        CostPart(f"waiting for {HIDDEN}" if wait > 0 else HIDDEN, EXPERTS, Seconds(runs * wait), runs, bound, text),
    ]


def _apart_outside_parts(step: ApartDecodeStep, load: DecodeLoad, stages: DisaggregatedStep) -> list[CostPart]:
    parts = [("scheduling", SCHEDULING_S, 1, "latency", "as published for xDeepServe")]
    if step.drafter is not None and load.drafts:
        once = step.drafts_s(load) / load.drafts
        parts.append(("draft model", once, load.drafts, "memory", step.drafter.shape.name))
    elif load.drafts:
        parts.append(("MTP layer", MTP_LAYER_S, load.drafts, "latency", "as published for xDeepServe; not split"))
    if stages.last_s:
        parts += [
            ("last send", stages.send_s, 1, "network", "no other half hides it"),
            ("last experts", stages.experts_s, 1, "compute", "the same"),
            ("last return", stages.return_s, 1, "network", "the same"),
        ]
    return [CostPart(name, OUTSIDE, Seconds(n * one), n, bound, text) for name, one, n, bound, text in parts]


def stages_text(stages: DisaggregatedStep) -> str:
    """Stages of a part of the batch, as text."""
    times = (("A2E", stages.send_s), ("experts", stages.experts_s), ("E2A", stages.return_s))
    return ", ".join(f"{name} {seconds * 1e6:,.0f} us" for name, seconds in times)


_ROUND = "a part of the batch is not back yet"
