"""A gateway's core in a hostile world: any event at any time, news late, doubled, out of order or lost.

Whatever happens, each job ends once, each token of a choice is delivered once and in order, and nothing waits for
longer than it may. A twin hears the events as a decision log keeps them, and must do the same.
"""

import math
from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.gateway.core import events as e
from serving.gateway.core.gateway import LOOK_PERIOD_S, Gateway
from serving.gateway.core.record import noted
from serving.gateway.core.settings import GatewaySettings
from serving.ids import NodeId, ReplicaId, RequestId, SequenceId
from serving.policy.deaths import TOGETHER_S
from serving.policy.decision_log import plain
from serving.policy.gateway_admission import AdmissionLimits
from serving.policy.journal_commands import LATER_S
from serving.values.jobs import Fail, GenerationJob, SequenceUpdate
from serving.values.news import FailKind, Lost, Prefilled, Refused, Tokens, ends
from serving.values.orders import Add, Adopt, Release, Send
from serving.values.sequence import FinishReason, SamplingParams, SequenceSpec
from tests.fakes.executor import STOP_TOKEN
from tests.gateway.client import Client
from tests.gateway.fleet import KV_BLOCKS, FakeInstance, Fleet

LIMITS = AdmissionLimits(4, 60, 4)
ROLE_WAIT_S, EMPTY_ROLE_S, MAX_AGE_S = 4.0, 1.0, 2.5
TRIAL_S = 4 * TOGETHER_S
"""How long a sequence that was near dying instances may wait until it is known what killed them."""


class GatewayMachine(RuleBasedStateMachine):
    """Time moves by rules only."""

    @initialize(
        split=st.booleans(),
        rule=st.sampled_from([None, "load", "locality", "round_robin", "power_of_two"]),
        history=st.sampled_from([0, 8]),
        shared=st.booleans(),
        ups=st.sampled_from([15, 15, 5, 1, 0]),
        jobs=st.integers(0, 3),
    )
    def build(self, split: bool, rule: str | None, history: int, shared: bool, ups: int, jobs: int) -> None:
        pools = ("prefill", "decode") if split else ("aggregated",)
        limits = AdmissionLimits(LIMITS.max_queued_requests, LIMITS.max_queued_tokens, 4, shared)
        self.settings = GatewaySettings(
            "g", pools, MAX_AGE_S, 4, history, rule, 3, 9.0, limits, 3, ROLE_WAIT_S, EMPTY_ROLE_S  # type: ignore[arg-type]
        )  # fmt: skip
        self.core, self.twin = Gateway(self.settings), Gateway(self.settings)
        self.fleet = Fleet(pools)
        self.now = 100.0
        self.empty_since = self.now
        """Since when there has been no instance, and the core was woken in time."""
        self.open_at = -math.inf
        """When the core last looked, and was open."""
        self.number = 0
        self.clients: dict[int, Client] = {}
        self.pending: deque[e.GatewayEvent] = deque()
        self.invalid: set[int] = set()
        self.last: dict[tuple[int, int], SequenceId] = {}
        """The newest submission of each choice."""
        self.cancelled: set[SequenceId] = set()
        self.offered: set[str] = set()
        self.released: set[str] = set()
        self.untold: set[str] = set()
        """Tickets of which the gateway was not told, or whose release was lost: their leases end by themselves."""
        self.oversized = 0
        self.losses = 0
        for index, instance in enumerate(self.fleet.instances):
            if ups >> index & 1:
                self.come(instance)
        for index in range(jobs):
            self.submit([5, 6, 7, 8, index], 6, 1 + index, 60.0, "", 0)

    # ---- the driver ------------------------------------------------------------------------------------------------

    def tell(self, event: e.GatewayEvent) -> None:
        """Deliver an event and what comes of it."""
        self.pending.append(event)
        while self.pending:
            event = self.pending.popleft()
            effects = self.core.on(event, self.now)
            assert plain(self.twin.on(noted(event), self.now)) == plain(effects), "another one does the same"
            for effect in effects:
                self.carry_out(effect)
            self.core.check()
            if isinstance(event, e.Look) and self.core.open(self.now):
                self.open_at = self.now
            self.is_heeded(event)
            self.waits_no_longer_than_it_may()

    def is_heeded(self, event: e.GatewayEvent) -> None:
        """Who speaks of a submission that is not wanted is told to stop; what was not sent is not waited for."""
        match event:
            case e.InstanceSays(replica=replica, news=news):
                reached = self.fleet.named[replica].up and not self.fleet.named[replica].cut
                self.offered.update([one.ticket.ticket_id for one in news if isinstance(one, Prefilled)])
                for one in news:
                    if ends(one) or self.is_live(name := one.sequence_id):
                        continue
                    assert name in self.cancelled or not self.fleet.works_on(name)
                    over = self.clients[self.whose(name)[0]].over
                    assert not over or not reached or name not in self.fleet.named[replica].works
            case e.Unsent(sequence_id=name) | e.TooLarge(sequence_id=name):
                assert not self.is_live(name)

    def is_live(self, name: SequenceId) -> bool:
        choice = self.core.choices.get(SequenceId(name.partition("@")[0]))
        return choice is not None and choice.journal.live_id == name

    def carry_out(self, effect: e.GatewayEffect) -> None:
        match effect:
            case Send(replica=replica):
                self.send(self.fleet.named[replica], effect)
            case SequenceUpdate():
                self.clients[effect.number].hear(effect)
            case e.JobFailed(number=number, failure=failure):
                client = self.clients[number]
                assert not client.over
                assert client.failure is None
                client.failure = failure
                self.judge(number, client, failure)
            case e.JobOver(number=number):
                assert not self.clients[number].over, "a job ends once"
                self.clients[number].over = True
                for index in range(len(self.clients[number].told)):
                    assert not self.fleet.works_on(self.last.get((number, index))), "it was told to stop"
            case e.Rejected(number=number):
                del self.clients[number]
            case e.Routed(decision=decision):
                chosen = self.fleet.named[decision.replica]
                assert chosen.up
                if not effect.decode and chosen.draining:
                    assert not self.fleet.sound(self.settings.pools[0], self.now - MAX_AGE_S)
            case e.Broken(trace=trace):
                raise AssertionError(trace)

    def send(self, instance: FakeInstance, effect: Send) -> None:
        order = effect.order
        if not isinstance(order, Add | Adopt):
            if isinstance(order, Release):
                self.released.add(order.ticket_id)
            else:
                self.cancelled.add(order.sequence_id)
            if instance.up and not instance.cut:
                instance.take(order)
            elif isinstance(order, Release):
                self.untold.add(order.ticket_id)
            return
        at_source = isinstance(order, Adopt) and order.ticket.source == instance.replica
        assert instance.up or at_source, "nobody is there"
        number, index = self.whose(order.spec.sequence_id)
        client = self.clients[number]
        assert not client.over, "work for a job that is over"
        assert list(order.spec.output) == client.told[index]
        assert index not in client.stopped
        assert order.spec.time_left_s <= client.deadline - self.now + 1e-6
        assert not self.fleet.works_on(self.last.get((number, index))), "two instances work on it"
        self.last[number, index] = order.spec.sequence_id
        if instance.cut or not instance.up:
            instance.sound_at = -math.inf
            self.pending.append(e.Unsent(instance.replica, order.spec.sequence_id))
        elif self.oversized:
            self.oversized -= 1
            self.invalid.add(number)
            self.pending.append(e.TooLarge(order.spec.sequence_id, "it is too long"))
        else:
            instance.take(order)

    def judge(self, number: int, client: Client, failure: Fail) -> None:
        """Nothing fails without a reason."""
        match failure.kind:
            case FailKind.DEADLINE:
                assert self.now >= client.deadline or "at the instance" in failure.reason
            case FailKind.INVALID:
                assert number in self.invalid
            case FailKind.POISON:
                assert self.losses >= 3
            case FailKind.UNAVAILABLE if "came up within" in failure.reason:
                assert self.now - client.submitted >= ROLE_WAIT_S
                assert self.now - self.open_at >= ROLE_WAIT_S or "no instance" not in failure.reason
            case FailKind.DRAINING:
                raise AssertionError("no request ends by it")

    @staticmethod
    def whose(name: SequenceId) -> tuple[int, int]:
        number, index = name.removeprefix("g-").partition("@")[0].split("/")
        return int(number), int(index)

    # ---- what must hold --------------------------------------------------------------------------------------------

    def alive(self) -> dict[int, Client]:
        return {number: client for number, client in self.clients.items() if not client.over}

    def waits_no_longer_than_it_may(self) -> None:
        alive = self.alive()
        assert sorted(self.core.numbers()) == sorted(alive)
        assert self.core.running + len(self.core.room) == len(alive)
        if self.pending:
            return
        wake = self.core.next_wake()
        assert wake <= min([client.deadline for client in alive.values()], default=math.inf)
        assert alive or wake == math.inf
        if self.core.starved(self.now):
            assert wake <= self.now + LATER_S

    def look(self) -> None:
        """The driver woke the core."""
        self.tell(e.Look())
        assert self.core.next_wake() > self.now, "else it would be woken again and again"
        for number, client in self.alive().items():
            assert client.deadline > self.now
            patience_s = ROLE_WAIT_S + 2 * LOOK_PERIOD_S + (TRIAL_S if self.suspected(number) else 0.0)
            waits = self.now - max(self.empty_since, client.submitted)
            assert client.begun or waits <= patience_s, "nobody is there, and nobody came"

    def suspected(self, number: int) -> bool:
        """Whether instances died with a sequence of a job."""
        choices = [choice for name, choice in self.core.choices.items() if self.whose(name)[0] == number]
        return any(choice.journal.attempts.losses for choice in choices)

    @invariant()
    def bounded(self) -> None:
        if not hasattr(self, "core"):
            return
        assert len(self.core.room) <= LIMITS.max_queued_requests
        most = max([len(self.clients[n].work.sequences) for n in self.core.numbers()], default=0)
        assert len(self.core.choices) <= max(LIMITS.max_running_sequences, most)
        for client in self.clients.values():
            if client.over and client.failure is None and not client.cancelled:
                ended = [reason is not None or i in client.stopped for i, reason in enumerate(client.finish)]
                assert all(ended)

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
        self.clients[self.number] = Client(job, self.now, [[] for _ in specs], [None] * choices)
        self.tell(e.Submit(self.number, job))

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 1000), how=st.sampled_from(["cancel", "cancel late", "stop", "end all"]))
    def clients_leave(self, which: int, how: str) -> None:
        """Perhaps when all is over anyway."""
        told = [(n, i) for n, client in self.clients.items() for i, tokens in enumerate(client.told) if tokens]
        if how.startswith("cancel"):
            numbers = list(self.clients if how == "cancel late" else self.alive() or self.clients)
            number = numbers[which % len(numbers)]
            client = self.clients[number]
            client.cancelled = client.cancelled or not client.over
            self.tell(e.CancelJob(number))
            assert client.over
        elif how == "stop" and told:
            number, index = told[which % len(told)]
            client = self.clients[number]
            if not client.over and client.finish[index] is None:
                client.stopped.add(index)
            self.tell(e.StopChoice(number, index))
            assert not self.fleet.works_on(self.last[number, index])
        elif how == "end all" and len(self.alive()) > 5:
            self.tell(e.EndAll("the gateway leaves"))
            assert not self.alive()

    # ---- instances that come and go --------------------------------------------------------------------------------

    def come(self, instance: FakeInstance, *, report: bool = True) -> None:
        instance.up, instance.sound_at = True, -math.inf
        self.tell(e.InstanceUp(instance.replica, instance.pool, NodeId("n"), KV_BLOCKS))
        if report:
            self.report(instance)

    def report(self, instance: FakeInstance, *, stuck: bool = False) -> None:
        instance.sound_at = -math.inf if stuck or instance.draining else self.now
        self.tell(e.InstanceStatus(instance.replica, instance.status(stuck=stuck)))
        self.empty_since = math.inf if not instance.draining and not stuck else self.empty_since

    def go(self, instance: FakeInstance, still_since: float | None = None, *, dies: bool = True) -> None:
        self.losses += still_since != 0.0
        instance.lose_link()
        if dies:
            instance.die()
        self.tell(e.InstanceDown(instance.replica, still_since))
        if not self.fleet.up():
            self.empty_since = self.now

    @rule(which=st.integers(0, 3), report=st.sampled_from([True, True, False]))
    def instance_comes(self, which: int, report: bool) -> None:
        down = [one for one in self.fleet.instances if not one.up]
        if down:
            self.come(down[which % len(down)], report=report)

    @precondition(lambda self: self.fleet.up())
    @rule(
        which=st.integers(0, 3),
        how=st.sampled_from(["drains", "drains", "dies", "loses news", "its link", "of a prompt", "with all"]),
        silent_s=st.sampled_from([None, None, 0.0, 1.0]),
    )
    def instance_goes(self, which: int, how: str, silent_s: float | None) -> None:
        """It drains, or dies: of a prompt perhaps, then a replacement comes at once; or it is only its link."""
        instance = self.fleet.up()[which % len(self.fleet.up())]
        still_since = None if silent_s is None else self.now - silent_s
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
        """What an instance is in, or what the gateway is told of instances."""
        instance = self.fleet.up()[which % len(self.fleet.up())]
        match how:
            case "fill" | "empty":
                instance.full = how == "fill"
            case "cut":
                instance.cut = True
            case "stuck":
                self.report(instance, stuck=True)
            case "unknown":
                self.tell(e.InstanceStatus(ReplicaId("nobody"), instance.status()))
            case "too large":
                self.oversized = 1
            case _:
                self.tell(e.Expect(how == "coming"))

    # ---- what they do ----------------------------------------------------------------------------------------------

    @rule(
        which=st.integers(0, 1000),
        count=st.integers(1, 3),
        how=st.sampled_from(["all", "all", "all, doubled", "all, unheard", "one", "one, unheard", "one, unheard"]),
    )
    def work(self, which: int, count: int, how: str) -> None:
        """One step, everywhere or for one sequence; its news arrive at once, or when `news_arrive` says so."""
        working = self.fleet.working()
        if working and how.startswith("one"):
            working = [working[which % len(working)]]
        for instance, work in working:
            if instance.works.get(work.spec.sequence_id) is work:
                instance.work(work, count)
        if how.endswith("doubled"):
            for instance in self.fleet.speaking():
                self.tell(e.InstanceSays(instance.replica, tuple(instance.frames)))
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
            self.untold.update([news.ticket.ticket_id] if isinstance(news, Prefilled) else [])
        else:
            news = instance.frames.pop() if how == "late" else instance.frames[0]
            self.tell(e.InstanceSays(instance.replica, (news,)))

    @precondition(lambda self: self.fleet.working() or any(one.held for one in self.fleet.instances))
    @rule(which=st.integers(0, 1000), how=st.sampled_from(["lost", "engine", "invalid", "abort", "deadline", "lease"]))
    def goes_wrong(self, which: int, how: str) -> None:
        """With a sequence; or a lease ends."""
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
                self.invalid.update([self.whose(name)[0]] * (kind is FailKind.INVALID))
                instance.fail(work, Refused(name, kind, "no"))
            case "abort" | "deadline":
                instance.fail(work, Tokens(name, len(work.output), finish_reason=FinishReason(how)))

    def deliver_all(self, instance: FakeInstance) -> None:
        frames, instance.frames = instance.frames, []
        if frames:
            self.tell(e.InstanceSays(instance.replica, tuple(frames)))

    def hear_all(self) -> None:
        for instance in self.fleet.speaking():
            self.deliver_all(instance)

    # ---- time ------------------------------------------------------------------------------------------------------

    @rule(
        seconds=st.sampled_from([0.05, 0.3, 0.7, 1.5, 6.0, 10.0]),
        how=st.sampled_from(["reports", "reports", "reports", "silence", "stopped"]),
    )
    def time_passes(self, seconds: float, how: str) -> None:
        """As a driver sees it: the core is woken when it asked for it, or late, after the process was stopped."""
        end, report_at = self.now + seconds, self.now
        while how != "stopped" and (wake := max(self.now, self.core.next_wake())) <= end:
            self.now = wake
            if how == "reports" and self.now >= report_at:
                self.all_report()
                report_at = self.now + 1.0
            self.look()
        self.now = end
        if how == "reports":
            self.all_report()
        elif how == "stopped":
            self.empty_since = max(self.empty_since, self.now)  # it looks for instances before it gives anything up
            if self.core.next_wake() <= self.now:
                self.look()

    def all_report(self) -> None:
        for instance in self.fleet.up():
            if not instance.cut:
                self.report(instance)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """With sound instances and a quiet network everything ends, and nothing is left."""
        if not hasattr(self, "core"):
            return
        self.oversized = 0
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
            if not self.alive() and not self.fleet.working() and not self.fleet.speaking():
                break
            self.time_passes(0.3, "reports")
        assert not self.alive()
        assert not self.fleet.working(), "who worked for nobody was told to stop"
        assert {ticket for one in self.fleet.instances for ticket in one.held} <= self.untold, "blocks were released"
        assert self.offered <= self.released
        core = self.core
        assert (core.running, len(core.room), len(core.choices)) == (0, 0, 0)
        assert (core.waiting(self.now), core.starved(self.now)) == ((0, 0, 0.0), False)
        assert core.next_wake() == math.inf
        assert [core.routes.promised(one.replica) for one in self.fleet.instances] == [0] * len(self.fleet.instances)
        assert self.core.open(self.now)


GatewayMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=80, deadline=None)
TestGatewayMachine = GatewayMachine.TestCase
