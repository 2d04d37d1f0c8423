"""PLN4xx: what a plan cannot do."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "PLN401",
        "error",
        "a must rule cannot hold",
        "must: true fixes the fate of a tensor, and something stands in the way: it leaves the graph, it "
        "is a "
        "parameter, a limit is spent.",
        "Drop must, exclude the tensor from the rule, or raise the limit; the finding names the reason.",
        bad_example=(
            "# policy.yaml\n"
            "limits: {budget: 1KiB}\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: offload, must: true}\n"
            "offload explain policy.yaml --model my_model:build"
        ),
        good_example=(
            "# policy.yaml\n"
            "limits: {budget: 1KiB}\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: offload}\n"
            "offload explain policy.yaml --model my_model:build"
        ),
    ),
    CodeEntry(
        "PLN402",
        "warning",
        "offloading does not lower the peak",
        "The device memory of this graph peaks where what was offloaded is not alive anyway, or is back already.",
        "Offload or recompute what is alive at the place that the finding names, or drop the offloads.",
        message_example=(
            "offloading 4 MiB does not lower the peak of device memory, 62.1 MiB: it sits in backward, "
            "layer 3"
        ),
    ),
    CodeEntry(
        "PLN403",
        "note",
        "nothing is offloaded",
        "The policy asks for offloading, and a limit, the schedule or the tensors themselves stand in the way; "
        "nothing is wrong where memory suffices.",
        "Raise limits.budget or lower schedule.keep_last, if more is to be offloaded.",
        message_example="nothing is offloaded; 27 saved tensors stay on the device: 27 x budget",
    ),
    CodeEntry(
        "PLN404",
        "warning",
        "a limit is planned without the optimizer's state",
        "A graph is compiled, and planned, in the first forward. Most optimizers allocate their state in their first "
        "step, after that: a plan that uses the limit up exceeds it from the second step on, by that state.",
        "Say what the optimizer will keep: options={'optimizer_state_bytes': N}, or OFFLOAD_OPTIMIZER_STATE_BYTES; 0 "
        "for one that keeps nothing. Gradients that accumulate over several batches are held like it: add their bytes.",
        message_example=(
            "limits.device_peak is planned without the optimizer's state, which is not there in the first step: the "
            "peak of later steps will be higher by it"
        ),
    ),
    CodeEntry(
        "PLN411",
        "error",
        "a hardware profile lacks a figure that planning needs",
        "Predicted times come from the rates of the device; without that of its memory there is none.",
        "Add the figure to the profile, with its source, or choose another profile (offload list hardware).",
        bad_example=(
            "# hardware.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: HardwareProfile\n"
            "name: mine\n"
            "summary: One GPU.\n"
            "device:\n"
            "  memory: {value: 24, unit: GiB, source: datasheet}\n"
            "link:\n"
            "  d2h: {value: 25, unit: GB/s, source: measured}\n"
            "  h2d: {value: 25, unit: GB/s, source: measured}\n"
            "host:\n"
            "  memory: {value: 128, unit: GiB, source: /proc/meminfo}\n"
            "  num_ranks: {value: 1, source: one GPU}\n"
            "offload plan sac-default --model my_model:build --hardware hardware.yaml"
        ),
        good_example=(
            "# hardware.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: HardwareProfile\n"
            "name: mine\n"
            "summary: One GPU.\n"
            "device:\n"
            "  memory: {value: 24, unit: GiB, source: datasheet}\n"
            "  hbm_rate: {value: 930, unit: GB/s, source: measured}\n"
            "link:\n"
            "  d2h: {value: 25, unit: GB/s, source: measured}\n"
            "  h2d: {value: 25, unit: GB/s, source: measured}\n"
            "host:\n"
            "  memory: {value: 128, unit: GiB, source: /proc/meminfo}\n"
            "  num_ranks: {value: 1, source: one GPU}\n"
            "offload plan sac-default --model my_model:build --hardware hardware.yaml"
        ),
    ),
    CodeEntry(
        "PLN412",
        "error",
        "no plan keeps to the limits",
        "Whatever is recomputed or offloaded, device memory stays above limits.device_peak, or the step takes longer "
        "than limits.step_overhead allows. The finding names the floor, where it sits and what holds it there.",
        "Raise the limit, let more tensors be recomputed or offloaded, or shorten batch or sequence.",
        bad_example=(
            "offload plan fit --model my_model:build --hardware h200-pcie5 --set limits.device_peak=69MiB"
        ),
        good_example=(
            "offload plan fit --model my_model:build --hardware h200-pcie5 --set limits.device_peak=60GiB"
        ),
    ),
    CodeEntry(
        "PLN413",
        "error",
        "the optimizer's step alone exceeds the limit",
        "When the optimizer steps, activations are gone, and parameters, gradients, optimizer state and what the step "
        "allocates remain: no fate of activations brings the peak below that.",
        "Raise limits.device_peak, or choose an optimizer that keeps less.",
        message_example=(
            "no plan keeps to device_peak 74.4 GiB: the step of adamw alone takes 106 GiB: parameters 21.2 GiB, "
            "gradients 21.2 GiB, optimizer state 42.4 GiB, temporaries of the step 21.2 GiB"
        ),
    ),
    CodeEntry(
        "PLN414",
        "error",
        "a limit on device memory cannot be planned over several graphs",
        "A graph break cuts the model into graphs that are planned one by one, and none knows what the others hold.",
        "Remove the graph breaks (TORCH_LOGS=graph_breaks names them), or bound what is offloaded by limits.budget.",
        message_example=(
            "limits.device_peak cannot be planned over 3 graphs: each is planned by itself, and what "
            "the others hold is not known to it"
        ),
    ),
    CodeEntry(
        "PLN415",
        "error",
        "a plan pins more host memory than it may",
        "Offloaded tensors lie in pinned host memory, rounded up to whole pages, for each rank of a host. The finding "
        "names the bytes, the rounding, and what is allowed: limits.host, or 80 % of the host shared by its ranks.",
        "Lower limits.budget, raise limits.host where the host has more, or let more be recomputed.",
        message_example=(
            "the plan pins 24 GiB of host memory on each rank (2 KiB of it rounding), and limits.host "
            "is 16 GiB"
        ),
    ),
    CodeEntry(
        "PLN416",
        "error",
        "a plan takes more than its target",
        "The planner found fates within limits.device_peak, and the graphs that carry them out take more.",
        "Raise limits.device_peak by what the finding names, or let more tensors be recomputed or offloaded.",
        message_example=(
            "the plan takes 40.2 GiB, 205 MiB more than limits.device_peak 40 GiB: its peak sits in backward"
        ),
    ),
    CodeEntry(
        "PLN417",
        "note",
        "the loss is not part of the prediction",
        "The module returns its output, and the loss that is taken of it outside could not be traced.",
        "Let the module return its loss.",
        message_example="the loss of train:build is not part of the prediction: it could not be traced",
    ),
    CodeEntry(
        "PLN418",
        "warning",
        "a plan takes longer than its limit",
        "The planner found fates within limits.step_overhead, and the graphs that carry them out are predicted to add "
        "more.",
        "Measure it with `offload bench`; or lower limits.step_overhead by what the finding names.",
        message_example=(
            "the plan adds 5.6 % to forward and backward, more than limits.step_overhead 5 %: 190.1 ms, not 180.0 ms"
        ),
    ),
    CodeEntry(
        "PLN421",
        "error",
        "planning needs a hardware profile",
        "Without --hardware the profile of this machine's CUDA device is taken, and there is none.",
        "Name a profile (offload list hardware), or the file of one.",
        bad_example="offload plan sac-default --model my_model:build",
        good_example="offload plan sac-default --model my_model:build --hardware h200-pcie5",
    ),
    CodeEntry(
        "PLN422",
        "error",
        "targets without a frontier",
        "Sizes after POLICY are targets of --frontier; without it there is one target, limits.device_peak.",
        "Add --frontier, or give the one target as --set limits.device_peak=SIZE.",
        bad_example="offload plan fit 40GiB --model builtin:llama-tiny --hardware h200-pcie5",
        good_example="offload plan fit 40GiB --frontier --model builtin:llama-tiny --hardware h200-pcie5",
    ),
    CodeEntry(
        "PLN423",
        "error",
        "a target is no size",
        "Targets of --frontier are sizes with their units.",
        "Write a number and a unit, such as 40GiB.",
        bad_example="offload plan fit 40 --frontier --model builtin:llama-tiny --hardware h200-pcie5",
        good_example="offload plan fit 40GiB --frontier --model builtin:llama-tiny --hardware h200-pcie5",
    ),
    CodeEntry(
        "PLN424",
        "error",
        "a file of a plan cannot be written",
        "The folder does not exist, or may not be written to.",
        "Name a file in a folder that exists and may be written to.",
        bad_example=(
            "offload plan fit --model builtin:llama-tiny --hardware h200-pcie5 --trace-out "
            "no/such/folder/trace.json"
        ),
        good_example=(
            "offload plan fit --model builtin:llama-tiny --hardware h200-pcie5 --trace-out trace.json"
        ),
    ),
)
