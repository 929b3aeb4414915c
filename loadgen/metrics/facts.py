"""Facts that a summary needs besides the records: settings of the run, and how the generator itself did."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Fields of `RunResult` that are handed through."""

    version: str = ""
    started_at: str = ""
    command: str = ""
    label: str = ""
    url: str = ""
    model: str = ""
    endpoint: str = ""
    seed: int = 0
    settings: dict[str, object] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GeneratorFacts:
    """Performance of the load generator, as measured by its driver.

    Attributes:
        workers: processes. cpu_share: the busiest one's CPU time / wall time. loop_lag_p99_s: the laggiest one's.
        starved_s: time for which a worker could have sent and had no job, summed over slots.
        late_s: lateness of the workers' late timers, summed. denied_s: part of it for which they had no core to run on.
        drawing_cpu_s, drawing_waited_s: for making prompts: CPU time, and time without a core.
        cores, others_cores, stolen_cores: of the machine; busy with other programs and taken by the host of a virtual
            machine, as averages. None where the system does not report it.
        late_digests: answers interpreted at once because too many were waiting, at the cost of later stamps.
        offered_per_s: rate of the schedule; None in a closed loop.
        clocks: (monotonic, realtime, boottime or None) during the run [s].
        problems: of the driver, one line each. cap: slots of a closed loop, or cap of an open one.
    """

    workers: int = 1
    cpu_share: float = 0.0
    loop_lag_p99_s: float = 0.0
    starved_s: float = 0.0
    late_s: float = 0.0
    denied_s: float = 0.0
    drawing_cpu_s: float = 0.0
    drawing_waited_s: float = 0.0
    cores: int | None = None
    others_cores: float | None = None
    stolen_cores: float | None = None
    late_digests: int = 0
    offered_per_s: float | None = None
    clocks: list[tuple[float, float, float | None]] = field(default_factory=list)
    interrupted: bool = False
    lost_workers: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    cap: int | None = None
    mode_closed: bool = False
