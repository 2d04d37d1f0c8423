"""EXP9xx: policies for other training systems."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "EXP901",
        "error",
        "a clause that the target cannot honour",
        "What is accepted is done: an export refuses each clause that the other system has no means for, with its "
        "line, and writes nothing.",
        "Do what the finding says, or choose another target.",
        bad_example=(
            "# parameters.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            'parameters: {offload: true, layers: ":8"}\n'
            "offload export parameters.yaml --to deepspeed"
        ),
        good_example=(
            "# parameters.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "parameters: {offload: true}\n"
            "offload export parameters.yaml --to deepspeed"
        ),
    ),
    CodeEntry(
        "EXP902",
        "error",
        "a constraint of the target does not hold",
        "The target would refuse these settings, or fail, given what is known of the run; where it has a text of its "
        "own for that, the finding quotes it. `offload advise` says the same of a configuration that facts state.",
        "Change the policy, or the run, as the finding says; correct --fact where it is wrong.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed --setting "
            "zero_optimization.offload_optimizer.device=nvme"
        ),
        good_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed --setting "
            "zero_optimization.offload_optimizer.device=cpu"
        ),
    ),
    CodeEntry(
        "EXP903",
        "error",
        "a setting out of its range",
        "The value that the policy (or --setting) gives is one that the target does not take.",
        "Choose a value in the range that the finding names.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to megatron-bridge --setting "
            "optimizer.optimizer_offload_fraction=1.5"
        ),
        good_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to megatron-bridge --setting "
            "optimizer.optimizer_offload_fraction=0.5"
        ),
    ),
    CodeEntry(
        "EXP904",
        "error",
        "what the policy requires does not hold",
        "The section requires names facts, and those that were given with --fact do not satisfy it.",
        "Correct --fact, or use the policy where it holds.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "requires: {fact: num_gpus, ge: 8}\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to megatron-bridge --fact num_gpus=1"
        ),
        good_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "requires: {fact: num_gpus, ge: 8}\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to megatron-bridge --fact num_gpus=8"
        ),
    ),
    CodeEntry(
        "EXP905",
        "error",
        "a setting needs something that is not known",
        "The policy counts layers from the end, or means all of them, and the target wants their number.",
        "Give what the finding names with --fact.",
        bad_example=(
            "# layers.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "activations:\n"
            "  default: save\n"
            "  rules:\n"
            '    - {name: early, match: {layers: ":50%"}, action: offload}\n'
            "offload export layers.yaml --to megatron-bridge --fact pipeline_parallel=1"
        ),
        good_example=(
            "# layers.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "activations:\n"
            "  default: save\n"
            "  rules:\n"
            '    - {name: early, match: {layers: ":50%"}, action: offload}\n'
            "offload export layers.yaml --to megatron-bridge --fact pipeline_parallel=1 --fact "
            "num_layers=32"
        ),
    ),
    CodeEntry(
        "EXP906",
        "error",
        "a Python callable cannot be exported",
        "What a callable decides is in its code; there is nothing to write down for another system.",
        "Write the policy as YAML.",
        message_example="a Python callable cannot be written down",
    ),
    CodeEntry(
        "EXP907",
        "error",
        "a setting and a fact contradict each other",
        "--setting, or the policy, makes the export write what --fact says is otherwise; the constraints would be "
        "checked against a run that is not the one that is configured.",
        "Leave one of them out, or give both the same value; change the clause of the policy that the finding names.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to megatron-bridge --fact pipeline_parallel=1 "
            "--setting model.pipeline_model_parallel_size=2"
        ),
        good_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to megatron-bridge --fact pipeline_parallel=2 "
            "--setting model.pipeline_model_parallel_size=2"
        ),
    ),
    CodeEntry(
        "EXP908",
        "error",
        "facts that no run can have together",
        "The degrees of parallelism do not divide world_size, another system is said to run the "
        "training, or an optimizer without state has its state offloaded.",
        "Correct the facts, or the policy.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to megatron-bridge --fact world_size=6 --fact pipeline_parallel=4"
        ),
        good_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to megatron-bridge --fact world_size=8 --fact pipeline_parallel=4"
        ),
    ),
    CodeEntry(
        "EXP910",
        "note",
        "honoured approximately, or worth knowing",
        "The target does nearly what the clause says, or the export as a whole has a consequence or a condition that "
        "no fact was given for; the note names it. Some of these are errors in another version or launcher.",
        "Read it. Where it says that something is refused, needed or moves nothing, change the "
        "policy or the setting.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed"
        ),
        good_example=(
            "# save.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "activations: {default: save}\n"
            "offload export save.yaml --to deepspeed --fact dtype=bfloat16"
        ),
    ),
    CodeEntry(
        "EXP911",
        "note",
        "it hangs on something that is not known",
        "A constraint of the target, or the policy's own requires, compares a fact that was not given. The export is "
        "written, and the target may refuse it.",
        "Give it with --fact NAME=VALUE, or a setting of the target with --setting KEY=VALUE, and it is checked.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "requires: {fact: num_gpus, ge: 8}\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed"
        ),
        good_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "requires: {fact: num_gpus, ge: 8}\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed --fact num_gpus=8"
        ),
    ),
    CodeEntry(
        "EXP912",
        "note",
        "a setting was given by hand",
        "--setting replaces what the policy would have given.",
        "Nothing, where that is meant; else change the policy, so that both say the same.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed --setting "
            "zero_optimization.offload_optimizer.ratio=0.7"
        ),
        good_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed"
        ),
    ),
    CodeEntry(
        "EXP913",
        "note",
        "the version that an export is about",
        "Keys, ranges and constraints of a target change with its releases; what is known of it is "
        "about one version.",
        "With another version, try the export as the note says.",
        message_example="deepspeed: what is known is about DeepSpeed 0.19.8, compared with it on 2026-11-29",
    ),
    CodeEntry(
        "EXP914",
        "note",
        "facts that are not written",
        "Facts about the configuration for which no setting of the target is known, or which leave its value open, "
        "are not set by the export. They are compared with the constraints where one names them; the note says "
        "which are neither checked nor written.",
        "Set them where the run is configured or launched, or give the --setting that the hint names.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to megatron-bridge --fact world_size=8"
        ),
        good_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to megatron-bridge --fact pipeline_parallel=2"
        ),
    ),
    CodeEntry(
        "EXP915",
        "note",
        "fewer layers are offloaded than the rule names",
        "The model has fewer layers, or schedule.keep_last keeps the last ones, of which one by default.",
        "Name as many layers as are offloaded, or change schedule.keep_last.",
        bad_example=(
            "# layers.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "activations:\n"
            "  default: save\n"
            "  rules:\n"
            '    - {name: early, match: {layers: ":16"}, action: offload}\n'
            "offload export layers.yaml --to megatron-bridge --fact pipeline_parallel=1 "
            "--fact num_layers=16"
        ),
        good_example=(
            "# layers.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "activations:\n"
            "  default: save\n"
            "  rules:\n"
            '    - {name: early, match: {layers: ":16"}, action: offload}\n'
            "offload export layers.yaml --to megatron-bridge --fact pipeline_parallel=1 "
            "--fact num_layers=32"
        ),
    ),
    CodeEntry(
        "EXP920",
        "error",
        "not a setting of the target",
        "--setting takes KEY=VALUE, and KEY is one that is known of the target.",
        "Correct the key; the finding lists them.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed --setting offload_optimizer.device=cpu"
        ),
        good_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed --setting "
            "zero_optimization.offload_optimizer.device=cpu"
        ),
    ),
)
