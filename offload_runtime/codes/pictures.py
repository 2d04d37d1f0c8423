"""CLI62x: what keeps a picture from being drawn or written."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "CLI620",
        "error",
        "matplotlib is not installed",
        "Pictures are drawn with matplotlib, which the package does not install by itself.",
        "pip install 'offload-runtime[plot]'",
        message_example="a picture needs matplotlib, and it is not installed",
    ),
    CodeEntry(
        "CLI621",
        "error",
        "an unknown picture format",
        "The suffix of a picture's file name says how it is written, and PNG and SVG are what there is.",
        "Let the file name end in .png or .svg.",
        bad_example=(
            "offload plan fit --frontier --plot frontier.jpg --model builtin:llama-tiny --hardware h200-pcie5"
        ),
        good_example=(
            "offload plan fit --frontier --plot frontier.png --model builtin:llama-tiny --hardware h200-pcie5"
        ),
    ),
    CodeEntry(
        "CLI622",
        "error",
        "a picture cannot be written",
        "The folder does not exist, or the file may not be written.",
        "Name a file in a folder that exists and may be written to.",
        message_example="pictures/frontier.png cannot be written: No such file or directory",
    ),
)
