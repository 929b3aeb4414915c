"""Engines live at random: every ledger balances after every event, every token is right."""

from tests.instance.engine_machine import EngineMachine

TestEngineMachine = EngineMachine.TestCase
