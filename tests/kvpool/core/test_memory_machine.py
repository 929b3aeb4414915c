"""Random lives of a memory manager."""

from hypothesis import settings

from tests.kvpool.core.memory_machine import MemoryMachine

TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=20, stateful_step_count=40)
