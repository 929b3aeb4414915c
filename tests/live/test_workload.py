"""The expected outputs that tests compare with, tested themselves."""

import random

from msgspec.structs import replace

from tests.live.workload import GREEDY, Reference, tokens


def test_an_answer_is_confirmed_unless_a_token_is_wrong(reference: Reference) -> None:
    prompt, sampling = tokens(random.Random(0), 40), replace(GREEDY, max_tokens=30)
    right = reference.output(prompt, sampling)
    assert reference.confirms(prompt, sampling, right)
    for place in (0, 17, 29):
        wrong = [*right[:place], (right[place] + 1) % 320, *right[place + 1 :]]
        assert not reference.confirms(prompt, sampling, wrong)
    assert not reference.confirms(prompt, sampling, right[:-1])
    assert not reference.confirms(prompt, sampling, [])
