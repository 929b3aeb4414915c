"""Division of an instance's work over its dies: degrees of attention and LM head."""

from hypothesis import given
from hypothesis import strategies as st

from hardware.cost import CostModel, DecodeLoad, PrefillLoad, load_device
from hardware.cost.memory_plan import Role
from hardware.cost.parallelism import Parallelism
from tests.hardware.cost.known import known

NAMES = ("deepseek-r1", "qwen3-30b-a3b", "llama-3.1-8b", "gpt-oss-20b")


@given(st.sampled_from(["ascend-910c", "h800"]), st.sampled_from(NAMES), st.integers(1, 64), st.booleans())
def test_degrees_of_one_change_nothing_to_the_last_bit(device: str, name: str, batch: int, apart: bool) -> None:
    plain = CostModel(load_device(device), known(name))
    one = CostModel(load_device(device), known(name), decode=Parallelism(1, 1), prefill=Parallelism(1, 1))
    load = DecodeLoad(batch, batch * 4096.0, batch / 2 if apart else None, 64, drafts=0)
    assert one.decode_step(load) == plain.decode_step(load)
    prompts = PrefillLoad(batch * 1000.0, batch * 1e6, 32)
    assert one.prefill_step(prompts) == plain.prefill_step(prompts)
    roles: tuple[Role, ...] = ("decode", "prefill", "aggregated")
    for role in roles:
        assert one.hbm_plan(role, 64) == plain.hbm_plan(role, 64)
