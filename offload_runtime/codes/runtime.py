"""RUN5xx: transfers, host memory, and what this runtime does not carry out."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "RUN501",
        "error",
        "an unknown transfer",
        "A compiled graph asks for a transfer that this process does not know: the graph was compiled "
        "elsewhere, or "
        "its transfers were forgotten.",
        "Compile it again, after torch.compiler.reset().",
        message_example="transfer 3 is not known in this process",
    ),
    CodeEntry(
        "RUN502",
        "error",
        "a transfer out of order",
        "The starts and waits of a transfer do not pair up: the graph was changed after it was verified.",
        "Report it with the model and the policy.",
        message_example="transfer 'mm_7': a wait without a start",
    ),
    CodeEntry(
        "RUN503",
        "error",
        "a saved host buffer was replaced",
        "What backward received is not the buffer that forward filled: saved-tensor hooks, save_on_cpu "
        "or pickling "
        "around the compiled region put another tensor in its place.",
        "Take them off the compiled region.",
        message_example=(
            "transfer 3: the host buffer that the forward saved is not the tensor that came back for "
            "the backward (torch.float32, (4096, 4096), cpu)"
        ),
    ),
    CodeEntry(
        "RUN504",
        "error",
        "a CUDA graph captures a transfer",
        "A replay of the CUDA graph would copy into host memory that belongs to somebody else by then.",
        "Turn CUDA graphs off for this region.",
        message_example=(
            "transfer 3 runs while its stream is captured into a CUDA graph, but its host buffer is "
            "not static: a replay would copy into memory that belongs to somebody else"
        ),
    ),
    CodeEntry(
        "RUN505",
        "error",
        "too little host memory for the plan",
        "The pinned bytes that the plan needs, rounding included, exceed limits.host, or what the "
        "cgroup, the "
        "machine or memlock allows. This is found before the first step.",
        "Lower limits.budget, or give the job more memory.",
        message_example=(
            "graph 0 needs 12 GiB (12884901888 bytes) of pinned host memory, rounding included, beside "
            "0 B reserved already, but the policy's limits.host is 8 GiB per rank (host 125 GiB)"
        ),
    ),
    CodeEntry(
        "RUN506",
        "error",
        "the host arena cannot grow",
        "More forwards are in flight, or shapes are larger, than was planned for, and host memory does "
        "not suffice.",
        "Run fewer forwards before their backward, or give the job more memory.",
        message_example="the host arena cannot grow: one more host buffer than planned needs 64 MiB",
    ),
    CodeEntry(
        "RUN507",
        "error",
        "host memory cannot be had",
        "The operating system refused to map or to pin host memory.",
        "Raise the memlock limit (ulimit -l), lower limits.budget, or give the job more memory.",
        message_example="graph 0: 1073741824 bytes of host memory cannot be had: out of memory",
    ),
    CodeEntry(
        "RUN508",
        "error",
        "no transfer engine for this device",
        "Offloading works on CUDA devices, and on the CPU with the simulated engine.",
        "Move the model to a device that the finding names.",
        message_example="there is no transfer engine for device type 'mps'",
    ),
    CodeEntry(
        "RUN520",
        "error",
        "the policy's 'requires' does not hold here",
        "A policy may name facts that must hold before anything runs; a fact that nobody can establish counts as not "
        "holding.",
        "Change the run so that the facts hold, or change `requires`.",
        bad_example=(
            "# policy.yaml\n"
            "requires: {fact: host_cores, ge: 100000}\n"
            "offload explain policy.yaml --model builtin:llama-tiny"
        ),
        good_example=(
            "# policy.yaml\n"
            "requires: {fact: host_cores, ge: 1}\n"
            "offload explain policy.yaml --model builtin:llama-tiny"
        ),
    ),
    CodeEntry(
        "RUN521",
        "error",
        "an option that is no hardware profile",
        "The option hardware takes the name of a shipped profile, the path of one, a mapping or a HardwareProfile.",
        "Give one of these; `offload list hardware` names the shipped ones.",
        bad_example=(
            'torch.compile(model, backend="offload", options={"policy": "max-savings", "hardware": 3})'
        ),
        good_example=(
            'torch.compile(model, backend="offload", options={"policy": "max-savings", "hardware": '
            '"h200-pcie5"})'
        ),
    ),
    CodeEntry(
        "RUN522",
        "error",
        "a reentrant checkpoint around the compiled region",
        "Reentrant checkpointing runs the region without gradients and again inside backward: nothing is saved "
        "between the two that a policy could move.",
        "Put the checkpoint inside the region, or drop it and let the policy recompute.",
        "checkpoint(compiled_model, x, use_reentrant=True)",
        "compiled_model(x)",
    ),
    CodeEntry(
        "RUN523",
        "warning",
        "a checkpoint around the compiled region",
        "The checkpoint throws away what the region saved and runs it again inside backward: the copies of the "
        "first run were for nothing.",
        "Put the checkpoint inside the region, or drop it and let the policy recompute.",
        message_example=(
            "a checkpoint around the compiled region runs graph 0 inside backward again; what policy "
            "'balanced' moved in forward is thrown away"
        ),
    ),
    CodeEntry(
        "RUN524",
        "error",
        "planning by time on unknown hardware",
        "select: planned, defer: auto and prefetch: auto place copies by predicted times, which come from a hardware "
        "profile; the device in use has none.",
        'Name a profile (options={"hardware": ...} or --hardware), or write largest_first with numbers of layers, '
        "which takes neither limits.device_peak nor limits.step_overhead.",
        bad_example=(
            "# policy.yaml\n"
            "schedule: {select: planned}\n"
            "activations: {default: auto}\n"
            "offload explain policy.yaml --model builtin:llama-tiny"
        ),
        good_example=(
            "# policy.yaml\n"
            "schedule: {select: largest_first, defer: 8, prefetch: 2}\n"
            "activations: {default: offload}\n"
            "offload explain policy.yaml --model builtin:llama-tiny"
        ),
    ),
    CodeEntry(
        "RUN530",
        "error",
        "ranks made different plans",
        "Ranks that run one graph have to offload the same tensors at the same places, or each waits for the slowest "
        "of the others at the next collective.",
        "Give every rank the same policy, torch version, hardware profile and input shapes; the finding names the "
        "ranks and the hashes of their plans.",
        message_example="8 ranks made 2 different plans for one graph",
    ),
    CodeEntry(
        "RUN540",
        "error",
        "nothing was captured",
        "Torch compiled no graph of the model with this back end, so that nothing is offloaded. Either the "
        "compiled model did not run yet, or torch runs all of it as plain Python.",
        "Run a forward and backward of the compiled model first; fullgraph=True or TORCH_LOGS=graph_breaks "
        "says what torch cannot capture.",
        message_example=("no graph of this model has been compiled with the offload backend"),
    ),
    CodeEntry(
        "RUN541",
        "error",
        "a container of torch compiled in place",
        "Torch's tracer skips the frames of torch itself. A bare torch.nn.Sequential consists of them "
        "alone, and compile() in place adds no frame that is traced: the model runs eagerly.",
        "Call what torch.compile(model, ...) returns, or put the container into a module of your own.",
        message_example=(
            "Sequential.compile() captured nothing: its forward is torch's own code, whose frames torch skips"
        ),
    ),
    CodeEntry(
        "RUN542",
        "note",
        "graphs that several models share",
        "Torch runs what it compiled once for all models of the same code, if their options are equal. The "
        "policy is the same; the bytes of a report are those of the last step, whichever model it was of.",
        'Give each model options of its own, options={"policy": ..., "model": model}, where each needs its '
        "own numbers.",
        message_example=(
            "the graphs of this report also ran with 4 parameters that are not of this module: torch runs one "
            "compiled graph for all models of the same code and options; bytes are those of the last step, "
            "whichever of them it was of"
        ),
    ),
    CodeEntry(
        "RUN543",
        "warning",
        "parameters that no captured graph reads",
        "The modules that hold them run outside of captured graphs, where no policy reaches them, or do not"
        " run at all. With weights that are sharded or replaced nothing is said.",
        "Look for the graph breaks around these modules with TORCH_LOGS=graph_breaks.",
        message_example=(
            "no captured graph reads 6 of 10 parameters, layers.0.*, layers.1.*, layers.2.*: they were used outside of "
            "them, and nothing that is saved there is offloaded"
        ),
    ),
    CodeEntry(
        "RUN544",
        "note",
        "graph breaks",
        "Torch split the model into several graphs, which are planned one by one. What runs between them is"
        " not offloaded.",
        "Remove the breaks that the finding names; fullgraph=True makes them errors.",
        message_example=(
            "graph breaks split the model: Call to `torch._dynamo.graph_break()` at model.py:12"
        ),
    ),
    CodeEntry(
        "RUN545",
        "warning",
        "torch stopped compiling",
        "Torch compiles a function only so many times (torch._dynamo.config.recompile_limit). Calls that "
        "would need one more graph run as plain Python from then on, and nothing of them is offloaded.",
        "Keep shapes steady, mark what changes with torch._dynamo.mark_dynamic, or raise the limit.",
        message_example=(
            "since the first graph of this report, torch hit its recompile limit in this process: calls that "
            "need another graph run without one, nothing of them is offloaded, and no step of theirs is counted"
            " here"
        ),
    ),
    CodeEntry(
        "RUN546",
        "warning",
        "other bytes moved than planned",
        "The copies of the last step do not add up to the plan: a forward was broken off or is not over, or"
        " a tensor has another size than torch traced.",
        "Ask for the report after a whole step; if they still differ, report it with the model.",
        message_example=("the last step moved 480 bytes to the host, and 464 were planned"),
    ),
    CodeEntry(
        "RUN547",
        "warning",
        "options that changed between compilations",
        "The options of a torch.compile call say something else than when its first graphs were compiled: a"
        " policy file, the environment or a mapping was changed. Graphs that exist keep their policy, new "
        "ones follow the new.",
        "Call torch.compiler.reset() before the change, and torch.compile after it.",
        message_example=(
            "the options, the environment or a file that they name changed after graphs were compiled by them: "
            "those keep policy 'first' (cb055887dbb8), these follow 'second' (6ab475fa294a)"
        ),
    ),
)
