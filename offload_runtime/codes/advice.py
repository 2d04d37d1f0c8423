"""ADV9xx: facts that are read, and advice that nothing here can be done."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "ADV901",
        "error",
        "a file of facts cannot be read",
        "`offload advise --from` takes what `offload facts --format json` printed, a JSON mapping of names and values, "
        "what a training wrote to `OFFLOAD_REPORT`, or a result of `offload bench` or `offload apply` in which one "
        "side that offloads was timed against one that does not: on an accelerator, as nothing is timed without one.",
        "Write the file with `offload facts --format json > facts.json`, or measure where the accelerator is.",
        bad_example=("# policy.yaml\nname: mine\noffload advise --from policy.yaml"),
        good_example=('# facts.json\n{"pipeline_parallel": 1}\noffload advise --from facts.json'),
    ),
    CodeEntry(
        "ADV902",
        "error",
        "a file of facts says something that is no fact",
        "Names and values are those of one table, so that nothing is compared that was misspelt.",
        "`offload list facts` lists them; the finding names the closest one.",
        bad_example=('# facts.json\n{"pipeline_paralel": 1}\noffload advise --from facts.json'),
        good_example=('# facts.json\n{"pipeline_parallel": 1}\noffload advise --from facts.json'),
    ),
    CodeEntry(
        "ADV903",
        "error",
        "files of facts that do not belong together",
        "Several --from are facts of one run. The files are results of different models, inputs or devices, or give "
        "one fact different values; which of them is meant, nobody can know. Of bench and apply of one run, what bench "
        "timed stands.",
        "Leave one of the files out.",
        bad_example=(
            '# one.json\n{"num_gpus": 8}\n# other.json\n{"num_gpus": 4}\n'
            "offload advise --from one.json --from other.json"
        ),
        good_example=(
            '# one.json\n{"num_gpus": 8}\n# other.json\n{"pipeline_parallel": 1}\n'
            "offload advise --from one.json --from other.json"
        ),
    ),
    CodeEntry(
        "ADV910",
        "error",
        "no policy makes the training fit",
        "What offloading and recomputing activations leaves on the device is still more than it holds: parameters, "
        "gradients and the optimizer's state stay, and so does what one step needs at once. The finding names the "
        "floor, what holds it and what lowers it.",
        "Do one of what the finding names: offload the optimizer's state with a system that can, share the state "
        "among ranks, train fewer parameters, or take a smaller batch or sequence.",
        message_example=(
            "no policy on activations makes this fit: the floor is 106 GiB, in the optimizer's step, when activations "
            "are gone (parameters 21.2 GiB, gradients 21.2 GiB, optimizer state 42.4 GiB, temporaries of the "
            "optimizer's step 21.2 GiB); the device has 79.1 GiB"
        ),
    ),
    CodeEntry(
        "ADV911",
        "note",
        "the model could not be traced or planned for facts about it",
        "Facts that follow from tracing and planning are left unknown; the finding says why.",
        "Make `offload plan` work with the same arguments, or give the facts with --fact.",
        message_example="facts about the model stay unknown: my_model:build cannot be traced with fake tensors",
    ),
    CodeEntry(
        "ADV912",
        "note",
        "a result speaks of a machine, which is not taken for this one",
        "A result of bench or apply names the device that it was measured on, and facts of two machines are not mixed: "
        "what the result leaves open of its machine stays unknown.",
        "On the machine that it was measured on, take the rest from `offload facts`, and give it with --fact.",
        message_example=(
            "the machine of result.json is taken for another one than this, as a result does not say that it was "
            "measured here; of the machine it gives pcie_link_width, and this one is not asked for the rest"
        ),
    ),
    CodeEntry(
        "ADV913",
        "warning",
        "the training fits under a raised limit alone",
        "The least peak is over what a plan takes of a device by itself, 94 % of it, and within the device. Under a "
        "limit as high as that a plan succeeds, and leaves less than usual for what no plan counts: the CUDA context, "
        "libraries, fragmentation.",
        "Plan under the limit that the finding names, and measure whether it holds; or do what leaves more room.",
        message_example=(
            "the floor of 74.8 GiB is over the 74.4 GiB that a plan takes of 79.1 GiB by itself: "
            "limits.device_peak=76591MiB leaves 4.3 GiB for what no plan counts (CUDA context, fragmentation)"
        ),
    ),
    CodeEntry(
        "ADV914",
        "warning",
        "the step fits, and leaves less than a plan would",
        "The peak without a policy is within the device, and over the 94 % of it that a plan takes by itself: less "
        "than usual is left for what no plan counts, the CUDA context, libraries and fragmentation.",
        "Try the step. If it runs out of memory, say so with --fact out_of_memory=true: what is suggested then plans "
        "as far below the predicted peak as that run needs.",
        message_example=(
            "the peak of 78 GiB is over the 75.2 GiB that a plan takes of 80 GiB by itself: 2 GiB are left for what no "
            "plan counts (CUDA context, fragmentation)"
        ),
    ),
)
