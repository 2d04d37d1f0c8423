"""GRF3xx: capture and analysis of graphs."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES: tuple[CodeEntry, ...] = (
    CodeEntry(
        "GRF310",
        "error",
        "eager checkpointing cannot offload",
        "Eager torch.utils.checkpoint recomputes, without a word, what a policy tells it to offload. So a policy that "
        "offloads is refused there.",
        'Compile the model with torch.compile(model, backend="offload"), or change the action to save.',
        bad_example=(
            'checkpoint(block, x, use_reentrant=False, context_fn=load_policy("max-savings").context_fn)'
        ),
        good_example=(
            'checkpoint(block, x, use_reentrant=False, context_fn=load_policy("sac-default").context_fn)'
        ),
    ),
    CodeEntry(
        "GRF311",
        "error",
        "eager checkpointing does not tell what a rule asks for",
        "Eager torch.utils.checkpoint names the operator that runs, and neither its module, its layer nor its size.",
        'Match on op alone, or compile the model with torch.compile(model, backend="offload").',
        bad_example=(
            'checkpoint(block, x, use_reentrant=False, context_fn=load_policy({"apiVersion": '
            '"offload/v1", "kind": "Policy", "name": "mine", "activations": {"default": "recompute", '
            '"rules": [\n'
            '    {"name": "products", "match": {"op": "matmul", "layers": ":4"}, "action": '
            '"save"}]}}).context_fn)'
        ),
        good_example=(
            'checkpoint(block, x, use_reentrant=False, context_fn=load_policy({"apiVersion": '
            '"offload/v1", "kind": "Policy", "name": "mine", "activations": {"default": "recompute", '
            '"rules": [\n'
            '    {"name": "products", "match": {"op": "matmul"}, "action": "save"}]}}).context_fn)'
        ),
    ),
    CodeEntry(
        "GRF312",
        "error",
        "layers_of names no module",
        "layers_of says which modules are the layers; where none of them is in the model, layer ranges, defer, "
        "prefetch and keep_last would count nothing.",
        "Correct the globs after the names that the hint shows, or write layers_of: auto.",
        bad_example=(
            "# policy.yaml\n"
            "activations: {default: recompute, layers_of: [blocks.*]}\n"
            "offload explain policy.yaml --model my_model:build"
        ),
        good_example=(
            "# policy.yaml\n"
            "activations: {default: recompute, layers_of: [layers.*]}\n"
            "offload explain policy.yaml --model my_model:build"
        ),
    ),
)
