"""HWP8xx: hardware profiles. What their shape has in common with other files is POL1xx."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "HWP801",
        "error",
        "there is no such hardware profile",
        "A name without / and without .yaml is that of a shipped profile, and none is called so.",
        "`offload list hardware` lists the names; write a path for a file of your own.",
        "offload plan balanced --model builtin:llama3-8b --hardware h200",
        "offload plan balanced --model builtin:llama3-8b --hardware h200-pcie5",
    ),
    CodeEntry(
        "HWP802",
        "error",
        "a figure that cannot be",
        "Sizes, rates and durations are greater than 0, shares lie between 0 and 1, counts are whole numbers from 1.",
        "Correct the value; where it is not known, leave the figure out.",
        "duplex_share: {value: 92, source: measured}",
        "duplex_share: {value: 0.92, source: measured}",
    ),
    CodeEntry(
        "HWP803",
        "error",
        "not a unit of this figure",
        "Each size, rate and duration names its unit, and only units that cannot be misread are taken: rates are in "
        "bytes per second.",
        "Write one of the units that the finding lists.",
        "d2h: {value: 440, unit: Gbps, source: measured}",
        "d2h: {value: 55, unit: GB/s, source: measured}",
    ),
    CodeEntry(
        "HWP804",
        "error",
        "a share of nothing",
        "A reachable share is a part of a rate, and the profile does not give that rate.",
        "Give the rate, or leave the share out.",
        bad_example="hbm_reachable_share: {value: 0.9, source: measured}",
        good_example=(
            "hbm_rate: {value: 4.8, unit: TB/s, source: datasheet}\n"
            "hbm_reachable_share: {value: 0.9, source: measured}"
        ),
    ),
)
