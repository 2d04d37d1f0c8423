import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from offload_runtime.graph.storages import find_storages
from offload_runtime.passes.tag import recompute_obstacle
from tests.passes.pairs import names_of, policy, rewrite, verdict_of

SMALL = {"bytes": {"max": "64B"}}


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_a_policy_that_recomputes_saves_nothing_that_forward_made() -> None:
    rewritten = rewrite(lambda x: torch.tanh(torch.sin(x @ x)), _leaf(6, 6), under=policy("recompute"))
    assert all(saved.forward.op == "placeholder" for saved in rewritten.reference.saved)
    assert "mm" in names_of(rewritten.reference.backward.graph)


def test_a_policy_that_saves_recomputes_nothing() -> None:
    rewritten = rewrite(lambda x: torch.tanh(torch.sin(x @ x)), _leaf(6, 6), under=policy("save"))
    assert not {"sin", "tanh"} & set(names_of(rewritten.reference.backward.graph))


def _deep(x: Tensor) -> Tensor:
    for _ in range(4):
        x = torch.sin(x * 0.5)
    return x.sum()


def test_what_backward_computes_from_forward_values_is_never_saved_in_their_place() -> None:
    rewritten = rewrite(_deep, _leaf(4, 4), under=policy("offload"))
    assert "cos" not in names_of(rewritten.reference.forward.graph)
    assert [verdict.fate for verdict in rewritten.pair.plan.verdicts] == ["offload"] * 4


def test_what_hangs_on_a_value_left_to_torch_is_left_to_torch() -> None:
    marked = {
        default: any(
            "recompute" in node.meta
            for node in rewrite(_deep, _leaf(4, 4), under=policy(default)).pair.joint.module.graph.nodes
            if node.name.startswith("cos")
        )
        for default in ("auto", "save")
    }
    assert marked == {"auto": False, "save": True}


def test_one_saved_storage_crosses_once_and_whole() -> None:
    def gated(x: Tensor, w: Tensor) -> Tensor:
        value, gate = (x @ w).chunk(2, -1)
        return value * torch.sigmoid(gate)

    rules = [{"name": "heavy", "match": {"op": "matmul"}, "action": "offload"}]
    rewritten = rewrite(gated, _leaf(4, 6), _leaf(6, 8), under=policy("recompute", rules=rules))
    fates = {(v.activation.op, v.fate) for v in rewritten.pair.plan.verdicts if v.fate != "skip"}
    assert fates == {("aten.mm.default", "offload"), ("aten.sigmoid.default", "recompute")}
    assert verdict_of(rewritten, "aten.mm.default").moved_bytes == 4 * 8 * 4


@pytest.mark.parametrize("others", ["recompute", "auto", "save"])
@pytest.mark.parametrize("small", ["recompute", "auto", "save"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(torch.sin(x), (6,)) * 2,
        lambda x: F.scaled_dot_product_attention(*(torch.sin(x).view(1, 1, 6, 6),) * 3),
        lambda x: torch.sin(torch.var_mean(x * x, 1)[0]) * torch.var_mean(x * x, 1)[1],
        lambda x: torch.topk(torch.sin(x), 2)[0] * 2,
    ],
    ids=["layer_norm", "attention", "var_mean", "topk"],
)
def test_outputs_of_one_call_may_be_decided_differently(function: object, small: str, others: str) -> None:
    rules = [{"name": "small", "match": SMALL, "action": small}]
    rewritten = rewrite(function, _leaf(6, 6), under=policy(others, rules=rules))  # type: ignore[arg-type]
    assert {verdict.fate for verdict in rewritten.pair.plan.verdicts} <= {"save", "recompute", "skip"}


def test_an_output_goes_with_its_saved_sibling_and_says_that_it_was_not_recomputed() -> None:
    rules = [{"name": "small", "match": SMALL, "action": "recompute"}]
    rewritten = rewrite(
        lambda x: F.scaled_dot_product_attention(*(torch.sin(x).view(1, 1, 6, 6),) * 3),
        _leaf(6, 6),
        under=policy("save", rules=rules),
    )
    attention = [v for v in rewritten.pair.plan.verdicts if v.activation.op_class == "attention"]
    (kept,) = [verdict for verdict in attention if verdict.rule == "small"]
    assert (kept.fate, kept.reason.partition(":")[0]) == ("save", "not recomputed")


def test_a_collective_is_not_computed_a_second_time() -> None:
    graph = fx.Graph()
    given = graph.placeholder("x")
    reduced = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (given, "sum", "0"))
    waited = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (reduced,))
    for node in (given, reduced, waited):
        node.meta["val"] = torch.empty(4, device="meta")
    storages = [s for s in find_storages(list(graph.nodes)) if not s.is_input]
    assert all("collective" in str(recompute_obstacle(storage)) for storage in storages)
