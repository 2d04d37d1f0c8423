"""BEN9xx: paired measurements, their result files, and the comparison of two of them."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

_USAGE = (
    CodeEntry(
        "BEN901",
        "error",
        "no such peer",
        "--peer takes the name of another way to run a step, and an argument where it has one.",
        "`offload bench --help` lists the peers; the finding names the closest one.",
        "offload bench --peer eagr --model builtin:llama-tiny",
        "offload bench --peer eager --model builtin:llama-tiny",
    ),
    CodeEntry(
        "BEN902",
        "error",
        "a bad argument of a peer",
        "What stands behind the colon is not what this peer takes.",
        "Write it as the finding shows.",
        "offload bench --peer activation-budget:60 --model builtin:llama-tiny",
        "offload bench --peer activation-budget:0.6 --model builtin:llama-tiny",
    ),
    CodeEntry(
        "BEN903",
        "error",
        "two sides of one name",
        "Sides are known by the name of their policy, or by the peer as it is written.",
        "List each side once, and give policies that differ a name of their own each.",
        "offload bench balanced balanced --model builtin:llama-tiny",
        "offload bench balanced conservative --model builtin:llama-tiny",
    ),
    CodeEntry(
        "BEN904",
        "error",
        "no such baseline",
        "--baseline names a side, a peer or a policy.",
        "Name one of those that the finding lists.",
        bad_example="offload bench balanced --baseline egaer --model builtin:llama-tiny",
        good_example="offload bench balanced --baseline balanced --model builtin:llama-tiny",
    ),
    CodeEntry(
        "BEN905",
        "error",
        "nothing to resume from",
        "--resume goes on from the rounds in the result file, and none is named.",
        "Name it with --output.",
        "offload bench balanced --model builtin:llama-tiny --resume",
        "offload bench balanced --model builtin:llama-tiny --output result.json --resume",
    ),
)

_FILES = (
    CodeEntry(
        "BEN911",
        "error",
        "a result file cannot be read",
        "The file is not there, or is no result of `offload bench`.",
        "Name a file that `offload bench --output` wrote.",
        message_example="a.json cannot be read: No such file or directory",
    ),
    CodeEntry(
        "BEN912",
        "error",
        "the result file is of another measurement",
        "Rounds are added only to rounds of the same model and shape, sides with the same policies, steps, "
        "accelerator and software; the finding names what is not the same.",
        "Measure the same again, or leave out --resume, which replaces the file.",
        message_example="result.json holds another measurement: seq 4096, not 8192",
    ),
    CodeEntry(
        "BEN913",
        "error",
        "two results that cannot be compared",
        "They are of different models, shapes, front ends, kinds of device or baselines, or share no side.",
        "Compare results of one model and shape against one baseline.",
        message_example=(
            "before.json and after.json measured different things: model builtin:llama3-8b and "
            "builtin:qwen3-14b"
        ),
    ),
    CodeEntry(
        "BEN914",
        "error",
        "a result file cannot be written",
        "The folder is not there or cannot be written to, or the name is that of something else than a file.",
        "Name a file in a folder that exists and can be written to.",
        bad_example="offload bench balanced --model builtin:llama-tiny --output no/such/folder/result.json",
        good_example="offload bench balanced --model builtin:llama-tiny --output result.json",
    ),
)

_RUNS = (
    CodeEntry(
        "BEN921",
        "error",
        "the time limit came before the first round",
        "Not one round of all sides was measured, so there is nothing to compare and no file is written. Compiling "
        "counts; the finding names the sides for which no time was left.",
        "Run the same again: it finds code that torch has kept compiled. Or list fewer sides, or raise --time-limit.",
        message_example="the time limit of 60 s came before one round of all sides",
    ),
    CodeEntry(
        "BEN922",
        "warning",
        "rounds are missing",
        "The next round would have ended after the time limit. What was measured stands.",
        "Run the same command with --resume.",
        message_example="the time limit of 60 s came first: 3 of 5 rounds are missing",
    ),
    CodeEntry(
        "BEN923",
        "warning",
        "a side runs out of device memory",
        "It is recorded as not fitting, and the others were measured without it.",
        "Give fewer --layers, a smaller --batch or --seq to measure it.",
        message_example="side eager runs out of device memory",
    ),
    CodeEntry(
        "BEN924",
        "error",
        "a policy cannot run here",
        "The policy was refused or failed on this model; the others were measured without it.",
        "See the finding; `offload explain` shows the same policy alone.",
        message_example="side mine cannot run here: POL180 rule heavy matches nothing",
    ),
    CodeEntry(
        "BEN925",
        "warning",
        "a peer cannot run here",
        "The peer was refused or failed on this model or with this torch; the others were measured without it.",
        "Leave it out, or see the finding for what it lacks.",
        message_example=(
            "side activation-budget:0.6 cannot run here: BEN931 torch 2.11.0 has no setting "
            "activation_memory_budget"
        ),
    ),
    CodeEntry(
        "BEN926",
        "error",
        "no side runs",
        "The model alone, or every side of it, runs out of device memory or is refused.",
        "Give fewer --layers, a smaller --batch or --seq.",
        message_example="no side runs here",
    ),
    CodeEntry(
        "BEN927",
        "warning",
        "there is no picture to draw",
        "A picture shows memory against time, and nothing was timed: that takes an accelerator.",
        "Run it on an accelerator, or leave out --plot.",
        message_example="frontier.png was not drawn: nothing was timed",
    ),
    CodeEntry(
        "BEN931",
        "error",
        "a peer that is not to be had",
        "This torch has no such setting, or the model has no repeated layers to checkpoint.",
        "Leave the peer out.",
        message_example="torch 2.11.0 has no setting activation_memory_budget",
    ),
)

_COMPARISONS = (
    CodeEntry(
        "BEN941",
        "error",
        "a side is worse than before",
        "Its step time over the baseline's, or its peak, grew by more than the noise of the two measurements, or it no "
        "longer fits or runs.",
        "Look at what changed; measure again with more --rounds if the change is close to the noise.",
        message_example="side balanced is worse: 1.052 of the baseline's time, 1.009 before",
    ),
    CodeEntry(
        "BEN942",
        "warning",
        "the results were measured differently",
        "Machine, software, seed or a policy is not the same in both, and may be why they differ.",
        "Measure both on one machine to see what one change does.",
        message_example="measured under different conditions: torch 2.11.0 and 2.13.0",
    ),
)

CODES = _USAGE + _FILES + _RUNS + _COMPARISONS
