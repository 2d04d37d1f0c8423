"""Settings by hand: how they are read, what comes of useless and incomplete ones, and how a wrong one is named."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.export.exporter import Export, export_policy
from tests.export.policies import first_layers, policy

STATE = policy(optimizer_state={"offload_fraction": 0.5, "overlap": True})
FINE = "model.fine_grained_activation_offloading=true"
CORE = "model.offload_modules=[core_attn]"


def export(*given: str, **facts: Any) -> Export:
    return export_policy(STATE, "megatron-bridge", facts=facts, settings=given)


def notes(found: Export, code: str = "EXP910") -> str:
    return "\n".join(note.message for note in found.notes if note.code == code)


@pytest.mark.parametrize("written", ["False", "false", "FALSE"])
def test_both_spellings_of_false_are_read_and_yaml_s_is_written(written: str) -> None:
    found = export(f"optimizer.overlap_cpu_optimizer_d2h_h2d={written}")
    assert found.refusals == ()
    assert "d2h_h2d=false was given, and replaces true from the policy" in notes(found, "EXP912")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (("optimizer.optimizer_offload_fraction=0.0",), "moves nothing"),
        (("optimizer.optimizer_cpu_offload=false",), "moves no optimizer state"),
        (("model.cpu_offloading=true", "model.pipeline_model_parallel_size=1"), "moves nothing"),
        ((FINE, CORE, "model.activation_offload_fraction=0"), "moves nothing after the first step"),
        ((CORE,), "does nothing"),
    ],
)
def test_a_setting_that_makes_the_export_useless_is_noted(given: tuple[str, ...], what: str) -> None:
    assert what not in notes(export())
    found = export(*given)
    assert found.refusals == ()
    assert what in notes(found)


@pytest.mark.parametrize(
    ("modules", "code", "name"),
    [
        ((), "EXP902", "modules-to-offload"),
        (("model.offload_modules=[]",), "EXP902", "modules-to-offload"),
        (("model.offload_modules=[attn_proj]",), "EXP902", "attn-proj-with-core-attn"),
        (("model.offload_modules=[mlp]",), "EXP903", "Invalid choices for offload_modules: [mlp]"),
        (("model.offload_modules=[core_attn, attn_proj]",), None, ""),
    ],
)
def test_fine_grained_offload_says_which_modules_it_needs(
    modules: tuple[str, ...], code: str | None, name: str
) -> None:
    found = export(FINE, *modules)
    assert [refusal.code for refusal in found.refusals] == ([] if code is None else [code])
    assert all(name in refusal.message for refusal in found.refusals)
    assert all("core_attn" in f"{refusal.message} {refusal.hint}" for refusal in found.refusals)


FULL = (
    "model.recompute_granularity=full",
    "model.recompute_method=uniform",
    "model.recompute_num_layers=1",
)


@pytest.mark.parametrize(
    ("facts", "given", "word"),
    [
        ({"cuda_graphs": True}, (), "depends on the version"),
        ({}, ("model.cuda_graph_impl=transformer_engine",), "depends on the version"),
        ({"activation_recompute": True}, (), "is not known"),
        ({}, FULL, "is not known"),
    ],
)
def test_what_fine_grained_offload_goes_together_with_is_said_as_far_as_it_is_known(
    facts: dict[str, Any], given: tuple[str, ...], word: str
) -> None:
    assert word not in notes(export(FINE, CORE))
    assert word in notes(export(FINE, CORE, *given, **facts))


@pytest.mark.parametrize(
    ("given", "is_recomputed"),
    [
        (("model.recompute_granularity=selective",), True),
        (("model.recompute_granularity=selective", "model.recompute_modules=[core_attn]"), True),
        (("model.recompute_granularity=selective", "model.recompute_modules=[mlp]"), False),
        ((), False),
    ],
)
def test_attention_that_is_recomputed_and_offloaded_is_said_not_to_move(
    given: tuple[str, ...], is_recomputed: bool
) -> None:
    assert ("core_attn is recomputed and does not move" in notes(export(FINE, CORE, *given))) is is_recomputed


@pytest.mark.parametrize(
    ("facts", "word", "written"),
    [
        ({}, "is not written", None),
        ({"precision_aware_optimizer": False}, "AssertionError", False),
        ({"precision_aware_optimizer": True}, None, True),
    ],
    ids=str,
)
def test_not_known_and_off_are_two_things_for_the_precision_aware_optimizer(
    facts: dict[str, Any], word: str | None, written: bool | None
) -> None:
    found = export(**facts)
    values = {setting.key: setting.value for setting in found.settings}
    assert values.get("optimizer.use_precision_aware_optimizer") is written
    about = [line for line in notes(found).splitlines() if "precision_aware" in line]
    assert len(about) == (0 if word is None else 1)
    assert word is None or word in about[0]


def test_a_key_that_only_newer_versions_have_is_noted() -> None:
    assert "not in Megatron-Core 0.16.1" in notes(export(FINE, CORE, "model.activation_offload_fraction=0.5"))


@pytest.mark.parametrize(
    ("given", "close"),
    [
        ("optimizer.optimizer_cpu_ofload=true", "optimizer.optimizer_cpu_offload"),
        ("optimizer_offload_fraction=0.5", "optimizer.optimizer_offload_fraction"),
        ("cfg.model.offload_modules=[core_attn]", "model.offload_modules"),
    ],
)
def test_a_wrong_key_is_told_the_closest_one_and_all_of_them_by_section(given: str, close: str) -> None:
    (refusal,) = export(given).refusals
    assert refusal.code == "EXP920"
    assert refusal.hint is not None
    assert refusal.hint.startswith(f"did you mean {close}? ")
    assert "in optimizer: optimizer_cpu_offload, " in refusal.hint
    assert refusal.hint.count("optimizer.") <= 1


GRAPHS = "model.cuda_graph_impl="
MODULES = "model.offload_modules="


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        (("optimizer.decoupled_weight_decay=false",), {"decoupled-weight-decay"}),
        ((FINE, CORE, f"{GRAPHS}local"), {"local-graphs-take-experts-only"}),
        ((FINE, f"{MODULES}[expert_fc1]", f"{GRAPHS}local"), set()),
        ((FINE, CORE, f"{GRAPHS}transformer_engine"), set()),
        ((FINE, CORE, f"{GRAPHS}full_iteration"), {"in-flight-limit-for-full-iteration"}),
        (
            (FINE, CORE, f"{GRAPHS}full_iteration", "model.fine_grained_offloading_max_inflight_offloads=2"),
            set(),
        ),
        ((FINE, f"{MODULES}[moe_act]", "model.moe_paged_stash=true"), {"paged-stash-or-expert-modules"}),
        ((FINE, CORE, "model.moe_paged_stash=true"), set()),
        (
            (FINE, f"{MODULES}[fused_group_mlp,moe_act]"),
            {"fused-group-by-itself", "fused-group-needs-the-fuser"},
        ),
        (
            (
                FINE,
                f"{MODULES}[expert_fc1]",
                "model.recompute_granularity=selective",
                "model.recompute_modules=[moe]",
            ),
            {"recomputed-experts-or-expert-modules"},
        ),
        (
            (
                FINE,
                CORE,
                "model.recompute_granularity=selective",
                "model.recompute_modules=[moe_act,layernorm]",
            ),
            set(),
        ),
        (("model.virtual_pipeline_model_parallel_size=2",), set()),
    ],
)
def test_conditions_of_the_target_can_be_set_and_are_checked(
    given: tuple[str, ...], broken: set[str]
) -> None:
    found = export(*given, pipeline_parallel=2)
    assert {f.message.partition("[")[2].partition("]")[0] for f in found.refusals} == broken
    assert all(f.code == "EXP902" for f in found.refusals)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("given", [(), (FINE, CORE), ("model.recompute_granularity=full",)], ids=str)
def test_a_layer_count_alone_is_noted_as_a_switch_of_megatron_lm_s_own_command_line(
    stages: int, given: tuple[str, ...]
) -> None:
    count = "model.cpu_offloading_num_layers=16"
    found = export(count, *given, pipeline_parallel=stages, num_layers=32, cuda_graphs=False)
    assert found.refusals == ()
    assert "Megatron-LM's own command line switches it on with the count" in notes(found)
    assert "moves no activations: cpu_offloading_num_layers is set and cpu_offloading is off" in notes(found)


@pytest.mark.parametrize(("graphs", "refused"), [("full_iteration", False), ("local", True)])
def test_graphs_of_a_full_iteration_are_the_exception_for_layers(graphs: str, refused: bool) -> None:
    given = (f"{GRAPHS}{graphs}", "model.cpu_offloading=true", "model.cpu_offloading_num_layers=4")
    found = export(*given, pipeline_parallel=1, activation_recompute=False, num_layers=8)
    assert bool(found.refusals) is refused
    assert ("Megatron-Core 0.16.1 has no full_iteration" in notes(found)) is not refused


def test_both_findings_about_modules_advise_the_same() -> None:
    hints = {export(FINE, *given).refusals[0].hint for given in ((), (f"{MODULES}[mlp]",))}
    assert len(hints) == 1


FINE_FACTS = {"pipeline_parallel": 2, "fine_grained_offload": True}
EXPERTS = "model.offload_modules=[expert_fc1]"
RECOMPUTED = "model.recompute_modules=[moe]"


@pytest.mark.parametrize(
    ("given", "facts", "hangs_on"),
    [
        ((CORE,), {}, "cuda_graphs"),
        ((EXPERTS, RECOMPUTED), {"cuda_graphs": False}, "activation_recompute, model.recompute_granularity"),
        (
            (EXPERTS, RECOMPUTED),
            {"cuda_graphs": False, "activation_recompute": True},
            "model.recompute_granularity",
        ),
    ],
    ids=str,
)
def test_what_fine_grained_offload_hangs_on_is_not_verified_until_it_is_given(
    given: tuple[str, ...], facts: dict[str, bool], hangs_on: str
) -> None:
    found = export(*given, **FINE_FACTS, **facts)
    assert found.ok
    assert f"it hangs on {hangs_on}" in notes(found, "EXP911")
    settled = export(*given, f"{GRAPHS}none", "model.recompute_granularity=null", **FINE_FACTS)
    assert notes(settled, "EXP911") == ""


def test_recomputed_experts_are_refused_once_the_kind_of_recompute_is_known() -> None:
    selective = "model.recompute_granularity=selective"
    found = export(EXPERTS, RECOMPUTED, selective, **FINE_FACTS)
    assert "[recomputed-experts-or-expert-modules]" in found.refusals[0].message
    assert export(EXPERTS, "model.recompute_modules=[core_attn]", selective, **FINE_FACTS).ok


def test_fine_grained_offload_is_refused_on_other_layers_than_transformer_engine_s() -> None:
    assert export(CORE, "model.transformer_impl=transformer_engine", **FINE_FACTS).ok
    (refusal,) = export(CORE, "model.transformer_impl=local", **FINE_FACTS).refusals
    assert "[fine-grained-needs-transformer-engine]" in refusal.message


def test_an_export_that_moves_nothing_at_all_says_so() -> None:
    idle = policy(optimizer_state={"offload_fraction": 0.0})
    alone = export_policy(idle, "megatron-bridge", facts={"pipeline_parallel": 2})
    assert "nothing moves" in notes(alone)
    moving = export_policy(idle, "megatron-bridge", facts=FINE_FACTS, settings=[CORE])
    assert "nothing moves" not in notes(moving)


OPTIMIZERS = ["adam", "adamw", "sgd", "muon", "dist_muon", "lion"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_setting_that_names_the_optimizer_is_checked_like_the_fact(name: str) -> None:
    found = export(f"optimizer.optimizer={name}", pipeline_parallel=4, distributed_optimizer=True)
    broken = {f.message.partition("[")[2].partition("]")[0] for f in found.refusals}
    assert broken == (set() if name in ("adam", "sgd") else {"offloaded-is-adam-or-sgd"})


def test_the_precision_aware_optimizer_is_refused_beside_a_setting_that_names_another_than_adam() -> None:
    given = ("optimizer.use_precision_aware_optimizer=true", "optimizer.optimizer=sgd")
    (refusal,) = export(*given, distributed_optimizer=True).refusals
    assert "[precision-aware-is-adam]" in refusal.message


def test_sgd_without_momentum_keeps_no_state_whoever_says_it() -> None:
    by_hand = export("optimizer.optimizer=sgd", "optimizer.sgd_momentum=0")
    assert ["[offloaded-sgd-has-momentum]" in f.message for f in by_hand.refusals] == [True]
    assert [f.code for f in export(optimizer="sgd").refusals] == ["EXP908"]
    switched = export_policy(
        policy(optimizer_state={"offload_fraction": 0.0}),
        "megatron-bridge",
        facts={"optimizer": "sgd"},
        settings=["optimizer.optimizer_cpu_offload=true"],
    )
    assert [f.code for f in switched.refusals] == ["EXP908"]


def test_adamw_is_no_name_of_an_optimizer_there() -> None:
    idle = policy(optimizer_state={"offload_fraction": 0.0})
    found = export_policy(idle, "megatron-bridge", settings=["optimizer.optimizer=adamw"])
    assert ["[adamw-is-called-adam]" in f.message for f in found.refusals] == [True]


def test_a_default_that_nobody_stated_is_not_verified_and_not_refused() -> None:
    idle = policy(optimizer_state={"offload_fraction": 0.0})
    for given in ("optimizer.optimizer_cpu_offload=true", "optimizer.use_precision_aware_optimizer=true"):
        found = export_policy(idle, "megatron-bridge", settings=[given])
        assert found.refusals == ()
        assert "it hangs on distributed_optimizer" in notes(found, "EXP911")


@pytest.mark.parametrize(
    ("given", "facts", "unknown", "stays"),
    [
        ((CORE,), {}, True, False),
        ((CORE,), {"activation_recompute": False}, False, False),
        ((CORE,), {"activation_recompute": True}, False, True),
        ((CORE, "model.recompute_modules=[layernorm]"), {"activation_recompute": True}, False, False),
        ((CORE, "model.recompute_granularity=selective"), {}, False, True),
        ((EXPERTS,), {}, False, False),
    ],
    ids=str,
)
def test_whether_attention_that_is_offloaded_recomputes_has_to_be_known(
    given: tuple[str, ...], facts: dict[str, Any], unknown: bool, stays: bool
) -> None:
    found = export(*given, **FINE_FACTS, cuda_graphs=False, **facts)
    assert ("[recompute-has-to-be-known]" in notes(found, "EXP911")) is unknown
    assert ("core_attn does not move" in notes(found) or "core_attn is recomputed" in notes(found)) is stays


@pytest.mark.parametrize(
    ("modules", "noted"), [("[attn_norm]", True), ("[mlp_norm]", True), (CORE[-11:], False)]
)
def test_norms_beside_graphs_of_transformer_engine_are_noted(modules: str, noted: bool) -> None:
    found = export(f"{MODULES}{modules}", f"{GRAPHS}transformer_engine", **FINE_FACTS)
    assert found.refusals == ()
    assert ("are not to be offloaded with transformer_engine graphs" in notes(found)) is noted


def test_the_fused_group_needs_its_operators() -> None:
    given = (f"{MODULES}[fused_group_mlp]", "model.use_transformer_engine_op_fuser=")
    (refusal,) = export(given[0], **FINE_FACTS).refusals
    assert "[fused-group-needs-the-fuser]: 'fused_group_mlp requires use_" in refusal.message
    assert export(given[0], f"{given[1]}true", **FINE_FACTS).ok


DEVICE = "zero_optimization.offload_optimizer.device"
ON_DISK = (f"{DEVICE}=nvme", "zero_optimization.offload_optimizer.nvme_path=/local")
NVME = {"zero_stage": 3, "asynchronous_io": True}


@pytest.mark.parametrize(
    ("given", "facts", "broken"),
    [
        (("bf16.enabled=false",), {"dtype": "bfloat16"}, {"bfloat16-is-bf16"}),
        (("bf16.enabled=true",), {"dtype": "bfloat16"}, set()),
        (("fp16.enabled=false",), {"dtype": "float16"}, {"float16-is-fp16"}),
        (("bf16.enabled=true",), {"dtype": "float32"}, {"one-type"}),
        ((f"{DEVICE}=cpu",), {"offload_device": "nvme", **NVME}, {"one-place-for-the-optimizer"}),
        (ON_DISK, {"offload_device": "cpu", **NVME}, {"one-place-for-the-optimizer"}),
        (ON_DISK, {"offload_device": "nvme", **NVME}, set()),
    ],
    ids=str,
)
def test_a_setting_of_deepspeed_is_held_against_the_fact_that_says_the_same(
    given: tuple[str, ...], facts: dict[str, Any], broken: set[str]
) -> None:
    whole = policy(optimizer_state={"offload_fraction": 1.0})
    found = export_policy(whole, "deepspeed", facts=facts, settings=given)
    assert {f.message.partition("[")[2].partition("]")[0] for f in found.refusals} == broken


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        (("model.cuda_graph_impl=local", "model.recompute_granularity=selective"), True),
        (("model.cuda_graph_impl=local",), False),
        (("model.recompute_granularity=selective",), False),
    ],
)
def test_local_graphs_with_recomputation_are_said_to_end_in_the_bridge(
    given: tuple[str, ...], is_said: bool
) -> None:
    assert ("Cudagraphs not supported" in notes(export(*given))) is is_said


def test_offload_by_layer_of_other_layers_than_transformer_engines_is_said_to_be_unknown() -> None:
    facts = {"pipeline_parallel": 1, "num_layers": 32}
    found = export_policy(
        first_layers(), "megatron-bridge", facts=facts, settings=("model.transformer_impl=local",)
    )
    assert "CPU Offloading is enabled when TE is not present" in notes(found)
