"""What a changed key requires: an update of replicas in place, their replacement, or no action."""

from dataclasses import fields, replace
from pathlib import Path

from serving.config import ModelConfig, NamespaceConfig, ServeConfig
from serving.config.effects import all_keys
from serving.config.upgrade import NEW_CODE, live_values, rules_by_key, upgrade_plan, values_of, version_of, with_live

PARTIES = ("kvcache", "prefill", "decode", "gateway", "autoscaler")
CONFIG = ServeConfig(ModelConfig(Path("model")), namespaces=(NamespaceConfig("blue", ("digest",), 5),))
VALUES = values_of(CONFIG)


def changed(**keys: object) -> dict[str, object]:
    """The configuration with some keys changed; `__` replaces the dot."""
    return VALUES | {key.replace("__", "."): value for key, value in keys.items()}


def test_sections_declare_rules_for_keys_that_they_have() -> None:
    for kind in set(all_keys().values()):
        names = {one.name for one in fields(kind)}
        assert kind.UPGRADE.exceptions.keys() <= names
        assert set(getattr(kind, "LIVE_ONLY", "").split()) - {"*"} <= names


def test_limits_and_slos_restart_nobody() -> None:
    plan = upgrade_plan(VALUES, changed(gateway__max_n=3, slo__ttft_s=9.0, namespaces__quota_mib=[7]), PARTIES)
    assert not plan.restarts
    assert plan.in_place["gateway"] == ("gateway.max_n", "slo.ttft_s", "namespaces.quota_mib")
    assert plan.in_place["scaling board"] == ("slo.ttft_s",)
    assert plan.in_place["pool control"] == ("namespaces.quota_mib",)


def test_a_pool_restarts_alone_for_its_own_key() -> None:
    after = changed(decode__max_sequences=3, gateway__max_n=3)
    plan = upgrade_plan(VALUES, after, PARTIES)
    assert plan.restarts == {"decode": ("decode.max_sequences",)}
    assert plan.lines() == [
        "decode restarts: decode.max_sequences",
        "gateway keeps running with new values of: gateway.max_n",
    ]
    moved = [party for party in PARTIES if version_of(party, VALUES, "c") != version_of(party, after, "c")]
    assert moved == ["decode"]


def test_plan_and_versions_agree() -> None:
    """The version changes exactly where the plan replaces replicas."""
    versions = {party: version_of(party, VALUES, "c") for party in PARTIES}
    for key in all_keys():
        after = VALUES | {key: 7 if isinstance(VALUES[key], int) else "another value"}
        plan = upgrade_plan(VALUES, after, PARTIES)
        assert {one for one in PARTIES if versions[one] != version_of(one, after, "c")} == set(plan.restarts), key
        changes = plan.restarts or plan.in_place or plan.idle
        assert changes or rules_by_key()[key].restarts == ("aggregated",) or key == "aggregated.replicas", key


def test_a_pool_of_memory_that_ends_restarts_who_uses_it() -> None:
    before, after = changed(kvcache__replicas=2), changed(kvcache__replicas=0)
    assert set(upgrade_plan(before, after, PARTIES).restarts) == {"prefill", "decode", "gateway", "autoscaler"}
    assert not upgrade_plan(before, changed(kvcache__replicas=3), PARTIES).restarts


def test_new_code_restarts_all() -> None:
    plan = upgrade_plan(VALUES, VALUES, PARTIES, new_code=True)
    assert plan.restarts == dict.fromkeys(PARTIES, (NEW_CODE,))
    assert version_of("gateway", VALUES, "a") != version_of("gateway", VALUES, "b")


def test_a_key_that_only_one_version_knows_is_a_change() -> None:
    older = {key: value for key, value in VALUES.items() if key != "decode.max_waiting"}
    assert set(upgrade_plan(older, VALUES, PARTIES).restarts) == {"decode"}
    assert set(upgrade_plan(VALUES | {"gone.key": 1}, VALUES, PARTIES).restarts) == set(PARTIES)


def test_nothing_changes() -> None:
    assert upgrade_plan(VALUES, VALUES, PARTIES).lines() == ["nothing changes"]


def test_ranks_of_a_group_are_replaced_for_what_instances_take_in_place() -> None:
    assert not upgrade_plan(VALUES, changed(engine__drain_s=1.0), PARTIES).restarts
    grouped = changed(decode__ep=2)
    assert set(upgrade_plan(grouped, grouped | {"engine.drain_s": 1.0}, PARTIES).restarts) == {"decode"}


def test_a_gateway_takes_its_keys_and_no_others() -> None:
    new = replace(
        CONFIG,
        gateway=replace(CONFIG.gateway, max_n=2, allowed_origins=("https://a.example",), routing="locality"),
        slo=replace(CONFIG.slo, ttft_s=9.0),
        namespaces=(NamespaceConfig("red", ("other",), 6, 2.0), NamespaceConfig("blue")),
    )
    taken = with_live(CONFIG, live_values("gateway", new))
    assert taken == replace(new, gateway=replace(new.gateway, routing=CONFIG.gateway.routing))
    assert with_live(CONFIG, {"a.key": "of a later version"}) == CONFIG


def test_secrets_are_not_among_the_values() -> None:
    values = values_of(replace(CONFIG, kvcache=replace(CONFIG.kvcache, directory="redis://:secret@there")))
    assert "secret" not in str(values)
