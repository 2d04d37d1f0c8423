"""CLI6xx: the command, or the call, was put wrongly."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "CLI601",
        "error",
        "a usage error",
        "The command line could not be understood.",
        "See the command's --help.",
        bad_example="offload codes POL104 POL105",
        good_example="offload codes POL104",
    ),
    CodeEntry(
        "CLI602",
        "error",
        "an unknown option",
        "The command has no such option.",
        "See the command's --help; the finding names the closest one.",
        "offload explain balanced --modle builtin:llama-tiny",
        "offload explain balanced --model builtin:llama-tiny",
    ),
    CodeEntry(
        "CLI603",
        "error",
        "a missing argument",
        "The command needs an argument or option that is not there.",
        "See the command's --help.",
        "offload explain balanced",
        "offload explain balanced --model builtin:llama-tiny",
    ),
    CodeEntry(
        "CLI604",
        "error",
        "a bad value",
        "An option was given a value that it does not take.",
        "See the command's --help.",
        "offload apply balanced --model builtin:llama-tiny --steps many",
        "offload apply balanced --model builtin:llama-tiny --steps 3",
    ),
    CodeEntry(
        "CLI605",
        "error",
        "an unknown command",
        "offload has no such command.",
        "`offload --help` lists the commands.",
        bad_example="offload lst policies",
        good_example="offload list policies",
    ),
    CodeEntry(
        "CLI606",
        "error",
        "an unknown code",
        "No diagnostic has this code.",
        "`offload codes` lists them all.",
        "offload codes POL999",
        "offload codes POL104",
    ),
    CodeEntry(
        "CLI607",
        "error",
        "there is nothing to test",
        "No policy and no test file was found where the command looked.",
        "Name a policy, or write a cases.yaml beside it.",
        bad_example="offload test .",
        good_example="offload test balanced",
    ),
    CodeEntry(
        "CLI610",
        "error",
        "an unknown backend option",
        "torch.compile's options for this backend are policy, mode, hardware, verify and model.",
        "Correct the option; the finding names the closest one.",
        'torch.compile(model, backend="offload", options={"polcy": "balanced"})',
        'torch.compile(model, backend="offload", options={"policy": "balanced"})',
    ),
    CodeEntry(
        "CLI611",
        "error",
        "no policy",
        "The backend never runs without a policy: that would be a silent no-op.",
        'Pass options={"policy": ...}, or set OFFLOAD_POLICY.',
        'torch.compile(model, backend="offload")',
        'torch.compile(model, backend="offload", options={"policy": "balanced"})',
    ),
    CodeEntry(
        "CLI612",
        "error",
        "a bad backend option",
        "An option of the backend has a value that it does not take.",
        "Choose one that the finding names.",
        'torch.compile(model, backend="offload", options={"policy": "balanced", "mode": "fast"})',
        'torch.compile(model, backend="offload", options={"policy": "balanced", "mode": "graph"})',
    ),
    CodeEntry(
        "CLI614",
        "error",
        "not a fact",
        "--fact takes NAME=VALUE. The name is one of the table of facts, and the value one that the fact can have.",
        "Correct it; `offload list facts` lists names, types and units.",
        bad_example="offload facts --fact pipeline=2",
        good_example="offload facts --fact pipeline_parallel=2",
    ),
    CodeEntry(
        "CLI615",
        "error",
        "a form that the target does not read",
        "Each target of an export reads one or two forms: flags, overrides, YAML, JSON or Python.",
        "Choose one that the finding names, or leave --as out.",
        bad_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed --as python"
        ),
        good_example=(
            "# optimizer.yaml\n"
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "optimizer_state: {offload_fraction: 0.5}\n"
            "offload export optimizer.yaml --to deepspeed --as json"
        ),
    ),
    CodeEntry(
        "CLI616",
        "error",
        "a setting of no other system",
        "validate takes --setting where --for names a training system that a policy is exported to.",
        "Name the system with --for; a value of the policy itself is changed by --set.",
        bad_example="offload validate balanced --setting model.cpu_offloading_double_buffering=true",
        good_example="offload validate balanced --set limits.budget=4GiB",
    ),
    CodeEntry(
        "CLI690",
        "error",
        "interrupted",
        "The command was stopped from outside.",
        "Run it again.",
        message_example="interrupted",
    ),
    CodeEntry(
        "CLI691",
        "error",
        "stdout that cannot be written",
        "The command did its work, but stdout took no data: the disk is full, or the stream was closed.",
        "Make room, or send stdout where it can be written.",
        message_example="stdout cannot be written: No space left on device",
    ),
    CodeEntry(
        "CLI699",
        "error",
        "a bug in this package",
        "The command failed in a way that was not foreseen.",
        "Report it with the command and the traceback that OFFLOAD_DEBUG=1 prints.",
        message_example="internal error: KeyError: 'mm_7'",
    ),
)
