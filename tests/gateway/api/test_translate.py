"""Request fields translated to the backend's job."""

from dataclasses import replace
from typing import Any

import pytest

from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.values.pool_view import namespace_salt, request_salt
from serving.values.sequence import SamplingParams
from tests.gateway.api.support import EOS, MAX_MODEL_LEN, Harness, chat, complete


def sampling(harness: Harness, **fields: Any) -> SamplingParams:
    reply = chat(harness.app, **fields)
    assert reply.status_code == 200, reply.text
    return harness.backend.jobs[-1].sequences[0].sampling


def test_defaults_come_from_the_model_folder(harness: Harness) -> None:
    params = sampling(harness)
    prompt = len(harness.backend.jobs[0].sequences[0].prompt)
    assert params == SamplingParams(
        max_tokens=MAX_MODEL_LEN - prompt, temperature=0.7, top_k=20, seed=params.seed, stop_token_ids=(EOS,)
    )


def test_own_values_win(harness: Harness) -> None:
    same: dict[str, Any] = {
        "temperature": 0, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": -1,
        "frequency_penalty": 1.5, "seed": 42, "min_tokens": 2,
    }  # fmt: skip
    params = sampling(
        harness, **same, top_k=-1, logit_bias={"7": -100, "3": 5.5}, max_completion_tokens=9, max_tokens=5,
        stop_token_ids=[8, 7, 8],
    )  # fmt: skip
    assert params == SamplingParams(
        **same, top_k=0, logit_bias=((3, 5.5), (7, -100.0)), max_tokens=9, stop_token_ids=(EOS, 7, 8)
    )


def test_some_values_alone(harness: Harness) -> None:
    assert sampling(harness, ignore_eos=True, stop_token_ids=[9]).stop_token_ids == (9,)
    assert sampling(harness, **dict.fromkeys(OPTIONAL)).temperature == 0.7, "null means absent"
    assert [sampling(harness, temperature=t).temperature for t in (1e-310, 1e-8, 1e-5, 0.1)] == [0, 0, 1e-5, 0.1]
    sampling(harness, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")
    assert chat(harness.app, model="org/tiny").json()["model"] == "org/tiny"
    assert complete(harness.app, model=None).json()["model"] == "tiny"


OPTIONAL = """
    temperature top_p top_k min_p n stop stream stream_options seed logprobs top_logprobs logit_bias
    presence_penalty frequency_penalty max_tokens max_completion_tokens min_tokens ignore_eos stop_token_ids
    response_format tools tool_choice user priority cache_salt guided_json echo add_generation_prompt
    continue_final_message chat_template_kwargs request_id truncate_prompt_tokens metadata store service_tier
    reasoning_effort parallel_tool_calls model
""".split()


def test_unknown_and_harmless_fields_change_nothing(harness: Harness) -> None:
    plain = sampling(harness, seed=1)
    assert plain == sampling(
        harness, seed=1, verbosity="medium", metadata={"a": "b"}, store=True, service_tier="auto", prompt_cache_key="k",
        made_up_by_a_client=[1, {"x": None}], tools=[], tool_choice="none", response_format={"type": "text"},
        length_penalty=1.0, use_beam_search=False, bad_words=[], user="me", stream_interval=1,
    )  # fmt: skip


def test_salt_priority_and_deadline_reach_the_sequence(harness: Harness) -> None:
    chat(harness.app, cache_salt="tenant", priority=-3)
    spec = harness.backend.jobs[0].sequences[0]
    assert (spec.priority, spec.time_left_s) == (-3, 600.0)
    assert spec.salt == request_salt(namespace_salt(b"", "default"), "tenant")


def test_template_variables(harness: Harness) -> None:
    reply = chat(harness.app, chat_template_kwargs={"bos_token": "X"}, reasoning_effort="low")
    assert reply.status_code == 200
    prompt = harness.backend.jobs[0].sequences[0].prompt
    assert harness.model.tokenizer.decode(prompt, skip_special_tokens=False).startswith("X<|user|>")


@pytest.mark.parametrize("room", [1, 5])
def test_prompt_may_fill_the_context_but_for_the_output(harness: Harness, room: int) -> None:
    prompt = [9] * (MAX_MODEL_LEN - room)
    assert complete(harness.app, prompt=prompt, max_tokens=room).status_code == 200
    assert complete(harness.app, prompt=prompt, max_tokens=room + 1).status_code == 400


def test_equal_prompts_have_chance_of_their_own(harness: Harness) -> None:
    prompts = ["Once upon a time"] * 3
    assert complete(harness.app, prompt=prompts, n=2).status_code == 200
    assert len({one.sampling.seed for one in harness.backend.jobs[-1].sequences}) == 6
    assert complete(harness.app, prompt=prompts, n=2, seed=5).status_code == 200
    assert [one.sampling.seed for one in harness.backend.jobs[-1].sequences] == [5, 6] * 3


def test_end_tokens_beyond_the_vocabulary_are_none(served: ServedModel) -> None:
    harness = Harness(replace(served, eos_ids=(EOS, 10**6)), ApiSettings())
    assert sampling(harness).stop_token_ids == (EOS,)
