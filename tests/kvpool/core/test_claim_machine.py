"""Random lives of a memory manager with claims."""

from hypothesis import settings

from tests.kvpool.core.claim_machine import ClaimMachine, PinMachine

TestClaimMachine = ClaimMachine.TestCase
TestClaimMachine.settings = settings(max_examples=30, stateful_step_count=40)
TestPinMachine = PinMachine.TestCase
TestPinMachine.settings = settings(max_examples=10, stateful_step_count=40)
