"""CLI63x: what keeps a first version of a policy or of an adapter from being written."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "CLI631",
        "error",
        "a training script cannot be read",
        "An adapter is written from the script's text, which has to be there and to be Python. It is not run for that.",
        "Name a script and a function in it, such as train.py:main.",
        bad_example="offload init --model-adapter no_such_script.py:main",
        good_example=(
            "# train.py\ndef main():\n    loss.backward()\noffload init --model-adapter train.py:main"
        ),
    ),
    CodeEntry(
        "CLI632",
        "error",
        "the script has no such name",
        "An adapter calls a function at the top level of the script.",
        "Correct the name; the finding names the closest one, or all that there are.",
        bad_example=(
            "# train.py\ndef main():\n    loss.backward()\noffload init --model-adapter train.py:mian"
        ),
        good_example=(
            "# train.py\ndef main():\n    loss.backward()\noffload init --model-adapter train.py:main"
        ),
    ),
    CodeEntry(
        "CLI633",
        "error",
        "the script's function needs arguments",
        "An adapter calls it without any.",
        "Give its parameters defaults, or name a function that calls it with what it needs.",
        bad_example=(
            "# train.py\ndef main(width):\n    loss.backward()\noffload init --model-adapter train.py:main"
        ),
        good_example=(
            "# train.py\ndef main(width=32):\n    loss.backward()\noffload init --model-adapter train.py:main"
        ),
    ),
    CodeEntry(
        "CLI634",
        "warning",
        "the script trains when it is imported",
        "An adapter imports the script, and what stands at its top level runs then.",
        'Put it into a function, and call that under if __name__ == "__main__":.',
        bad_example=(
            "# train.py\n"
            "def main():\n"
            "    loss.backward()\n"
            "\n"
            "main()\n"
            "offload init --model-adapter train.py:main"
        ),
        good_example=(
            "# train.py\n"
            "def main():\n"
            "    loss.backward()\n"
            "\n"
            'if __name__ == "__main__":\n'
            "    main()\n"
            "offload init --model-adapter train.py:main"
        ),
    ),
    CodeEntry(
        "CLI635",
        "error",
        "options of init that do not go together",
        "One call writes either a policy or an adapter, and each has its own options.",
        "Leave out the options that the finding names, or make two calls.",
        bad_example=(
            "# train.py\n"
            "def main():\n"
            "    loss.backward()\n"
            "offload init --model-adapter train.py:main --budget 8GiB"
        ),
        good_example=(
            "# train.py\ndef main():\n    loss.backward()\noffload init --model-adapter train.py:main"
        ),
    ),
    CodeEntry(
        "CLI636",
        "error",
        "the file is there already",
        "Nothing is overwritten unasked.",
        "Name another file, or add --force.",
        bad_example=("# policy.yaml\nname: mine\noffload init --output policy.yaml"),
        good_example=("# policy.yaml\nname: mine\noffload init --output policy.yaml --force"),
    ),
    CodeEntry(
        "CLI637",
        "error",
        "the file cannot be written",
        "The folder is not there, or may not be written to, or the name is that of something else than a file.",
        "Name a file in a folder that exists and may be written to.",
        bad_example="offload init --output no/such/folder/policy.yaml",
        good_example="offload init --output policy.yaml",
    ),
    CodeEntry(
        "CLI638",
        "note",
        "a batch is left to be written",
        "A function that returns a model does not say what the model is called with.",
        "Edit one_batch in the adapter, or name a function of the script that returns a batch: --batch.",
        bad_example=(
            "# train.py\n"
            "def make_model():\n"
            "    return Model()\n"
            "\n"
            "def make_batch():\n"
            "    return (torch.randn(2, 8),)\n"
            "offload init --model-adapter train.py:make_model"
        ),
        good_example=(
            "# train.py\n"
            "def make_model():\n"
            "    return Model()\n"
            "\n"
            "def make_batch():\n"
            "    return (torch.randn(2, 8),)\n"
            "offload init --model-adapter train.py:make_model --batch make_batch"
        ),
    ),
)
