"""A gateway's core under arbitrary events: at any time, late, duplicated, out of order or lost.

In all cases each job ends once, each token of a choice is delivered once and in order, and no wait exceeds its limit.
A twin receives the events as a decision log stores them, and must act identically.
"""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from serving.gateway.core import events as e
from serving.gateway.core.gateway_admission import AdmissionLimits
from serving.gateway.core.settings import GatewaySettings
from serving.ids import NodeId, ReplicaId, RequestId, SequenceId
from serving.values.jobs import GenerationJob
from serving.values.news import FailKind, Lost, Prefilled, Refused, Tokens
from serving.values.sequence import FinishReason, SamplingParams, SequenceSpec
from tests.fakes.executor import STOP_TOKEN
from tests.gateway.core.client import Client
from tests.gateway.core.fleet import KV_BLOCKS, FakeInstance, Fleet
from tests.gateway.core.watched import WatchedGateway

LIMITS = AdmissionLimits(4, 60, 4)
ROLE_WAIT_S, EMPTY_ROLE_S, MAX_AGE_S = 4.0, 1.0, 2.5


class GatewayMachine(RuleBasedStateMachine):
    """State machine; only its rules advance the time."""

    @initialize(
        split=st.booleans(),
        rule=st.sampled_from([None, "load", "locality", "round_robin", "power_of_two"]),
        history=st.sampled_from([0, 8]),
        shared=st.booleans(),
        ups=st.sampled_from([15, 15, 5, 1, 0]),
        jobs=st.integers(1, 4),
    )
    def build(self, split: bool, rule: str | None, history: int, shared: bool, ups: int, jobs: int) -> None:
        pools = ("prefill", "decode") if split else ("aggregated",)
        limits = AdmissionLimits(LIMITS.max_queued_requests, LIMITS.max_queued_tokens, 4, shared)
        built = GatewaySettings(
            "g", pools, MAX_AGE_S, 4, history, rule, 3, 9.0, limits, 3, ROLE_WAIT_S, EMPTY_ROLE_S  # type: ignore[arg-type]
        )  # fmt: skip
        self.fleet = Fleet(pools)
        self.gateway = WatchedGateway(built, self.fleet)
        self.number = 0
        for index, instance in enumerate(self.fleet.instances):
            if ups >> index & 1:
                self.come(instance)
        for index in range(jobs):
            self.submit([5, 6, 7, 8, index], 6, 1 + index, 60.0, "", 0)

    # ---- clients ---------------------------------------------------------------------------------------------------

    @rule(
        prompt=st.lists(st.integers(0, 63), min_size=1, max_size=9),
        max_tokens=st.integers(1, 6),
        choices=st.sampled_from([1, 1, 1, 2, 3, 5]),
        time_left_s=st.sampled_from([60.0, 60.0, 60.0, 6.0, 0.5]),
        key=st.sampled_from(["", "a", "b"]),
        priority=st.integers(0, 1),
    )
    def submit(
        self, prompt: list[int], max_tokens: int, choices: int, time_left_s: float, key: str, priority: int
    ) -> None:
        self.number += 1
        specs = tuple(
            SequenceSpec(
                SequenceId(f"r/{index}"),
                tuple(prompt),
                SamplingParams(max_tokens=max_tokens, seed=index, stop_token_ids=(STOP_TOKEN,), logprobs=0),
                time_left_s=time_left_s,
                priority=priority,
            )
            for index in range(choices)
        )
        job = GenerationJob(RequestId("r"), specs, key, 1.0 + (key == "a"))
        self.gateway.clients[self.number] = Client(job, self.gateway.now, [[] for _ in specs], [None] * choices)
        self.gateway.tell(e.Submit(self.number, job))

    @precondition(lambda self: self.gateway.clients)
    @rule(which=st.integers(0, 1000), how=st.sampled_from(["cancel", "cancel late", "stop", "end all"]))
    def clients_leave(self, which: int, how: str) -> None:
        """Clients disconnect, possibly after the end."""
        told = [(n, i) for n, client in self.gateway.clients.items() for i, tokens in enumerate(client.told) if tokens]
        if how.startswith("cancel"):
            numbers = list(
                self.gateway.clients if how == "cancel late" else self.gateway.alive() or self.gateway.clients
            )
            number = numbers[which % len(numbers)]
            client = self.gateway.clients[number]
            client.cancelled = client.cancelled or not client.over
            self.gateway.tell(e.CancelJob(number))
            assert client.over
        elif how == "stop" and told:
            number, index = told[which % len(told)]
            client = self.gateway.clients[number]
            if not client.over and client.finish[index] is None:
                client.stopped.add(index)
            self.gateway.tell(e.StopChoice(number, index))
            assert not self.fleet.works_on(self.gateway.last[number, index])
        elif how == "end all" and len(self.gateway.alive()) > 5:
            self.gateway.tell(e.EndAll("the gateway leaves"))
            assert not self.gateway.alive()

    # ---- instances that come and go --------------------------------------------------------------------------------

    def come(self, instance: FakeInstance, *, report: bool = True) -> None:
        instance.up, instance.sound_at = True, -math.inf
        self.gateway.tell(e.InstanceUp(instance.replica, instance.pool, NodeId("n"), KV_BLOCKS))
        if report:
            self.report(instance)

    def report(self, instance: FakeInstance, *, stuck: bool = False) -> None:
        instance.sound_at = -math.inf if stuck or instance.draining else self.gateway.now
        self.gateway.tell(e.InstanceStatus(instance.replica, instance.status(stuck=stuck)))
        self.gateway.empty_since = math.inf if not instance.draining and not stuck else self.gateway.empty_since

    def go(self, instance: FakeInstance, still_since: float | None = None, *, dies: bool = True) -> None:
        self.gateway.losses += still_since != 0.0
        instance.lose_link()
        if dies:
            instance.die()
        self.gateway.tell(e.InstanceDown(instance.replica, still_since))
        if not self.fleet.up():
            self.gateway.empty_since = self.gateway.now

    @rule(which=st.integers(0, 3), report=st.sampled_from([True, True, False]))
    def instance_comes(self, which: int, report: bool) -> None:
        down = [one for one in self.fleet.instances if not one.up]
        if down:
            self.come(down[which % len(down)], report=report)

    @precondition(lambda self: self.fleet.up())
    @rule(
        which=st.integers(0, 3),
        how=st.sampled_from(
            ["drains", "drains", "dies", "loses news", "its link", "its link", "of a prompt", "with all", "pool"]
        ),
        silent_s=st.sampled_from([None, None, 0.0, 1.0]),
    )
    def instance_goes(self, which: int, how: str, silent_s: float | None) -> None:
        """An instance drains, dies (perhaps of a prompt, with an immediate replacement), loses its pool, or loses only
        its link.
        """
        instance = self.fleet.up()[which % len(self.fleet.up())]
        still_since = None if silent_s is None else self.gateway.now - silent_s
        match how:
            case "drains":
                instance.drain()
                self.report(instance)
                self.deliver_all(instance)
            case "of a prompt" | "with all":
                fresh = [one for one, work in self.fleet.working() if not work.begun and one.up]
                instance = fresh[which % len(fresh)] if fresh else instance
                for one in self.fleet.up() if how == "with all" else [instance]:
                    self.go(one)
                    self.come(one)
            case "pool":
                for one in [one for one in self.fleet.up() if one.pool == instance.pool]:
                    self.go(one, 0.0)
                self.time_passes(ROLE_WAIT_S + 1.0, "reports")
            case _:
                if how == "loses news":
                    instance.frames.clear()
                self.go(instance, still_since, dies=how != "its link")

    @precondition(lambda self: self.fleet.up())
    @rule(
        which=st.integers(0, 3),
        how=st.sampled_from(["fill", "empty", "cut", "stuck", "unknown", "too large", "coming", "not coming"]),
    )
    def trouble(self, which: int, how: str) -> None:
        """Faults of an instance, or false reports about instances."""
        instance = self.fleet.up()[which % len(self.fleet.up())]
        match how:
            case "fill" | "empty":
                instance.full = how == "fill"
            case "cut":
                instance.cut = True
            case "stuck":
                self.report(instance, stuck=True)
            case "unknown":
                self.gateway.tell(e.InstanceStatus(ReplicaId("nobody"), instance.status()))
            case "too large":
                self.gateway.oversized = 1
            case _:
                self.gateway.tell(e.Expect(how == "coming"))

    # ---- what they do ----------------------------------------------------------------------------------------------

    @rule(
        which=st.integers(0, 1000),
        count=st.integers(1, 3),
        how=st.sampled_from(["all", "all", "all, doubled", "all, unheard", "one", "one, unheard", "one, unheard"]),
    )
    def work(self, which: int, count: int, how: str) -> None:
        """One step, for all or for one sequence; its events arrive at once, or with the rule `news_arrive`."""
        working = self.fleet.working()
        if working and how.startswith("one"):
            working = [working[which % len(working)]]
        for instance, work in working:
            if instance.works.get(work.spec.sequence_id) is work:
                instance.work(work, count)
        if how.endswith("doubled"):
            for instance in self.fleet.speaking():
                self.gateway.tell(e.InstanceSays(instance.replica, tuple(instance.frames)))
        if not how.endswith("unheard"):
            self.hear_all()

    @precondition(lambda self: self.fleet.speaking())
    @rule(which=st.integers(0, 3), how=st.sampled_from(["as sent", "late", "late", "double", "double", "lost"]))
    def news_arrive(self, which: int, how: str) -> None:
        instance = self.fleet.speaking()[which % len(self.fleet.speaking())]
        if how == "as sent":
            self.deliver_all(instance)
        elif how == "lost":
            news = instance.frames.pop(0)
            self.gateway.untold.update([news.ticket.ticket_id] if isinstance(news, Prefilled) else [])
        else:
            news = instance.frames.pop() if how == "late" else instance.frames[0]
            self.gateway.tell(e.InstanceSays(instance.replica, (news,)))

    @precondition(lambda self: self.fleet.working() or any(one.held for one in self.fleet.instances))
    @rule(which=st.integers(0, 1000), how=st.sampled_from(["lost", "engine", "invalid", "abort", "deadline", "lease"]))
    def goes_wrong(self, which: int, how: str) -> None:
        """A sequence fails, or a lease expires."""
        held = [(one, ticket) for one in self.fleet.instances for ticket in one.held]
        if how == "lease" and held:
            instance, ticket = held[which % len(held)]
            instance.expire(ticket)
        if not self.fleet.working():
            return
        instance, work = self.fleet.working()[which % len(self.fleet.working())]
        name = work.spec.sequence_id
        match how:
            case "lost":
                instance.fail(work, Lost(name, "device lost"))
            case "engine" | "invalid" if not work.begun:
                kind = FailKind(how)
                self.gateway.invalid.update([self.gateway.whose(name)[0]] * (kind is FailKind.INVALID))
                instance.fail(work, Refused(name, kind, "no"))
            case "abort" | "deadline":
                instance.fail(work, Tokens(name, len(work.output), finish_reason=FinishReason(how)))

    def deliver_all(self, instance: FakeInstance) -> None:
        frames, instance.frames = instance.frames, []
        if frames:
            self.gateway.tell(e.InstanceSays(instance.replica, tuple(frames)))

    def hear_all(self) -> None:
        for instance in self.fleet.speaking():
            self.deliver_all(instance)

    # ---- time ------------------------------------------------------------------------------------------------------

    @rule(
        seconds=st.sampled_from([0.05, 0.3, 0.7, 1.5, 6.0, 10.0]),
        how=st.sampled_from(["reports", "reports", "work", "work", "silence", "stopped"]),
    )
    def time_passes(self, seconds: float, how: str) -> None:
        """The core is woken when requested, or late, as after a pause of the process."""
        gateway = self.gateway
        end, report_at = gateway.now + seconds, gateway.now
        while how != "stopped" and (wake := max(gateway.now, gateway.core.next_wake())) <= end:
            gateway.now = wake
            if how in ("reports", "work") and wake >= report_at:
                self.all_report()
                report_at = wake + 1.0
            gateway.look()
        gateway.now = end
        if how in ("reports", "work"):
            self.all_report()
        if how == "work":
            self.work(0, 1, "all")
        if how == "stopped":
            gateway.empty_since = max(gateway.empty_since, end)  # it looks for instances before it gives up a job
            if gateway.core.next_wake() <= end:
                gateway.look()

    def all_report(self) -> None:
        for instance in self.fleet.up():
            if not instance.cut:
                self.report(instance)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """With healthy instances and a quiet network all jobs end, and all ledgers are empty."""
        if not hasattr(self, "gateway"):
            return
        self.gateway.oversized = 0
        for number in list(self.gateway.alive())[::2]:
            self.gateway.clients[number].cancelled = True
            self.gateway.tell(e.CancelJob(number))
        for instance in self.fleet.instances:
            if instance.cut or instance.draining:
                self.go(instance, 0.0)
            instance.full = False
            if not instance.up:
                self.come(instance)
        self.all_report()
        for _ in range(300):
            self.work(0, 2, "all")
            self.hear_all()
            if not self.gateway.alive() and not self.fleet.working() and not self.fleet.speaking():
                break
            self.time_passes(0.3, "reports")
        assert not self.gateway.alive()
        assert not self.fleet.working(), "who worked for nobody was told to stop"
        assert {ticket for one in self.fleet.instances for ticket in one.held} <= self.gateway.untold, (
            "blocks were released"
        )
        assert self.gateway.offered <= self.gateway.released
        core = self.gateway.core
        assert (core.running, len(core.room), len(core.choices)) == (0, 0, 0)
        assert (core.waiting(self.gateway.now), core.starved(self.gateway.now)) == ((0, 0, 0.0), False)
        assert core.next_wake() == math.inf
        assert [core.routes.promised(one.replica) for one in self.fleet.instances] == [0] * len(self.fleet.instances)
        assert self.gateway.core.open(self.gateway.now)


GatewayMachine.TestCase.settings = settings(stateful_step_count=60)
TestGatewayMachine = GatewayMachine.TestCase
