"""Words of each experiment's section: what it shows, in a sentence or two."""

SHOWN: dict[str, str] = {
    "table1": (
        "The simulated fabric keeps to the published bandwidth and latency of every path. The figures are its "
        "inputs, so this is a check of the simulator, not of a prediction."
    ),
    "table2": (
        "A pool that loads a model once for all instances makes a cold start of eight as quick as one alone, and "
        "every switch a warm one; a cache in each node's own DRAM hits one time in eight."
    ),
    "table3": (
        "One fitted efficiency gives both published prefill rates, with the default and with the ideal balance of "
        "experts."
    ),
    "table4": (
        "Decode engines that are kept full reach the published rate at the published batch. The other systems' "
        "figures are repeated, not run."
    ),
    "table5": (
        "The published batch keeps its limit here, too, at nearly the published rate. How large a batch could be "
        "follows from the fitted TPOT: published batches are not always the largest that the limit allows."
    ),
    "table7": (
        "Dispatch and combine take longer with more ranks, but little beyond 64. `line alone` is the cost model's "
        "formula, which it uses between and beyond the published degrees."
    ),
    "table8": (
        "Core attention uses two thirds of the compute peak or most of the memory rate, whichever binds. Both are "
        "inputs of the cost model."
    ),
    "table10": ("One utilisation for all matrix products is within 4 % of each of the six that were measured."),
    "table11": (
        "Counting ports over nodes, sub-planes and switches gives every published number: how many switches a "
        "size of supernode needs, and which sizes use them fully."
    ),
    "fig20": (
        "Two microbatches that share the cores hide communication behind computation; the gain is a few per cent "
        "in decode, and largest at a batch of 96."
    ),
    "fig21": (
        "In prefill the same idea saves about a quarter of a layer's time; the gain shrinks with longer prompts."
    ),
    "fig22": (
        "One drafted token a step is worth half again as much throughput at small batches and little at large "
        "ones, since a step with drafts costs more."
    ),
    "fig23": (
        "Reused blocks cut the time to the first token and raise throughput. The published gains disagree with "
        "each other, so that one load rate cannot meet them all."
    ),
    "fig24": (
        "A large supernode wastes fewer NPUs on blocks that do not fit than a small one. The distribution of "
        "block sizes is not published; the one that comes closest was chosen."
    ),
    "xds-peak": (
        "Predicted from CloudMatrix-Infer's operators, the time per token is a few per cent too long; given "
        "xDeepServe's own core attention it is right. Every kernel's share of an iteration is wrong: how a profiler "
        "shares the time among kernels is not modelled."
    ),
    "xds-split": (
        "Attention and experts on different dies: given xDeepServe's times of sending, the iteration by our operators "
        "is slower; the experts' stage alone is a prediction, and wrong."
    ),
    "xds-production": (
        "The whole simulated system, from gateway to decode, at the request rate that meets the published TTFT. Rate, "
        "lengths and acceptance are unpublished and were chosen, the last in view of the time per token."
    ),
}
"""By the experiment's name."""
