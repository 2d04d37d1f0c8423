import torch
import torch.nn.functional as F
from torch import Tensor

from offload_runtime.passes.partition import read_partition
from tests.fuzz.programs import Program, Step
from tests.fuzz.rewriting import Treatment
from tests.fuzz.running import Case, capture_case
from tests.passes.pairs import policy, rewrite


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


# Backward reads nothing of forward, and a random operator that nobody reads stays in the graph with its
# arguments.
DEAD_DROPOUT = Program(
    inputs=((8, 6),),
    parameters=((4, 6),),
    steps=(
        Step("chunk", (1,), (("dim", 1),), 2, "layers.0"),
        Step("expand", (3,), (), 1, "layers.0"),
        Step("add_to_slice", (4,), (("dim", 2),), 1, "layers.0"),
        Step("unbind", (5,), (("dim", 2),), 3, "layers.1"),
        Step("batch_norm", (6,), (), 1, "layers.1"),
        Step("dropout", (8,), (), 1, "layers.1"),
        Step("detach", (9,), (), 1, "layers.1"),
    ),
    outputs=(11, 3, 4),
    graded=(0, 1, 2),
    updated=None,
    seed=1,
)


def test_a_value_that_backward_does_not_read_is_not_saved() -> None:
    capture = capture_case(Case(DEAD_DROPOUT, (Treatment(policy(), "tagged", "early", 0),)))
    assert capture is not None
    (rewritten,) = capture.rewritten
    inputs = rewritten.reference.backward.graph.find_nodes(op="placeholder")
    assert all(node.users for node in inputs if "tangents" not in node.name)
    assert rewritten.pair.plan.transfers == ()


def test_a_dead_attention_does_not_stop_the_baseline() -> None:
    def function(x: Tensor) -> Tensor:
        heads = x.view(1, 1, 4, 4)
        F.scaled_dot_product_attention(heads, heads, heads)
        return torch.sin(x)

    rewritten = rewrite(function, _leaf(4, 4), under=policy(), partitioning="save_everything")
    assert [saved.forward.op for saved in rewritten.reference.saved] == ["placeholder"]


def test_what_crosses_is_paired_by_name() -> None:
    rewritten = rewrite(lambda x: torch.tanh(torch.sin(x)), _leaf(4), under=policy("save"))
    reference = rewritten.reference
    again = read_partition(reference.forward, reference.backward, num_fwd_outputs=reference.num_fwd_outputs)
    assert all(saved.forward.name == saved.backward.name for saved in again.saved)
    assert {saved.forward.name for saved in again.saved} == {"primals_1", "tanh"}
