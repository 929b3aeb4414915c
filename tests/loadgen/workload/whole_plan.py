"""A plan that uses every field."""

from loadgen.arrivals import Steady
from loadgen.plan import LoadJob
from loadgen.workload.lengths import lengths
from loadgen.workload.plan_jobs import Behaviours, plan_jobs
from loadgen.workload.sessions import Sessions
from loadgen.workload.source import RandomPrompts
from loadgen.workload.words import Words

WORDS = Words(tuple(f" w{number}" for number in range(50)))
WORK = Sessions(RandomPrompts(WORDS, lengths("uniform:5-20")), lengths("uniform:1-9"))


def whole_plan() -> list[LoadJob]:
    """A plan that uses every field."""
    talk = Sessions(WORK.source, WORK.output_tokens, lengths("uniform:1-3"))
    mix = Behaviours(disconnect_share=0.3, malformed_share=0.2)
    return list(plan_jobs(talk, seed=11, arrivals=Steady(5.0, 0.5), behaviours=mix, warmups=2, count=20))
