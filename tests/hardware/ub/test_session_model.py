"""Sessions over every order of their words, with a death anywhere; each planted mistake is found."""

import pytest

from tests.cases.nightly import mostly_nightly
from tests.hardware.ub import bell_model
from tests.hardware.ub.bell_model import BellMistake, LostWakeup
from tests.hardware.ub.session_model import Search
from tests.hardware.ub.session_state import Mistake, ProtocolError, Setting

SETTINGS = {
    "one": Setting(sessions=1, rounds=3),
    "two": Setting(rounds=3),
    "colocated": Setting(colocated=True, rounds=3),
    "attention dies": Setting(dies="attention"),
    "joins": Setting(joins=True),
    "attention dies and comes again": Setting(dies="attention", again=True),
    "two micro-batches die and come again": Setting(dies="attention", again=True, halves=True),
    "expert dies": Setting(dies="expert"),
    "joins, expert dies": Setting(joins=True, dies="expert"),
    "colocated dies": Setting(colocated=True, dies="expert"),
    "three experts, one dies": Setting(experts=3, rounds=1, dies="expert"),
    "three sessions, expert dies": Setting(sessions=3, rounds=1, dies="expert"),
    "an idle rank dies": Setting(sessions=3, experts=3, rounds=1, colocated=True, dies="expert", idle=True),
}
QUICK = list(SETTINGS)[:10]


@pytest.mark.parametrize(
    "name",
    mostly_nightly(list(SETTINGS), QUICK, "tests/hardware/ub/test_session_model.py::test_every_order_is_safe_and_ends"),
)
def test_every_order_is_safe_and_ends(name: str) -> None:
    """Whoever lives ends its rounds, in the first epoch, or redone in the next if an expert rank died."""
    setting = SETTINGS[name]
    assert Search(setting).run().endings == ({1, 2} if setting.dies == "expert" else {1})


FOUND = {
    Mistake.ASK_BEFORE_ROWS: "is just writing|is at work for it",
    Mistake.DONE_BEFORE_RESULTS: "is at work for it",
    Mistake.WORD_WITHOUT_EPOCH: "waits for ever in epoch 2",
    Mistake.WORD_WITHOUT_ROUND: "reads result",
    Mistake.NO_HELLO: "is at work for it",
    Mistake.HELLO_IN_SERVICE: "waits for ever in epoch 2",
    Mistake.HELLO_OF_THE_DEAD: "waits for ever in epoch 2, at 0",
    Mistake.FIRST_DONE_IS_ENOUGH: "reads result",
    Mistake.RESULTS_BY_ROUND: "write the same result",
    Mistake.SAME_MAP: "waits for ever in epoch 2",
    Mistake.EPOCH_UNSEEN: "waits for ever in epoch 1",
    Mistake.WAIT_WITHOUT_SERVICE: "waits for ever",
    Mistake.OLD_ASK_STAYS: "is just writing|is at work for it|reads rows|waits for ever|reads result",
    Mistake.OLD_ANSWER_COUNTS: "waits for ever",
    Mistake.ADMIT_IN_SERVICE: "is at work for it|waits for ever|is just writing|reads result",
}


@pytest.mark.parametrize("mistake", list(Mistake), ids=lambda mistake: mistake.name)
def test_each_mistake_is_found(mistake: Mistake) -> None:
    again = mistake in (Mistake.OLD_ASK_STAYS, Mistake.OLD_ANSWER_COUNTS, Mistake.ADMIT_IN_SERVICE)
    colocated = mistake is Mistake.WAIT_WITHOUT_SERVICE
    setting = Setting(dies="attention" if again else "expert", again=again, colocated=colocated, mistake=mistake)
    with pytest.raises(ProtocolError, match=FOUND[mistake]):
        Search(setting).run()


@pytest.mark.parametrize(("answers", "questions"), bell_model.CASES)
def test_no_wakeup_is_lost(answers: int, questions: int) -> None:
    assert bell_model.search(answers, questions) > 1


@pytest.mark.parametrize("mistake", list(BellMistake), ids=lambda mistake: mistake.name)
def test_each_lost_wakeup_is_found(mistake: BellMistake) -> None:
    answers, questions = (2, 0) if mistake is BellMistake.EARLY_ONES_STAY else (0, 1)
    with pytest.raises(LostWakeup):
        bell_model.search(answers, questions, mistake)
