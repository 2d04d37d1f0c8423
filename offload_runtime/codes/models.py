"""MOD7xx: models, and what a comparison of training runs found."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

_MODELS = (
    CodeEntry(
        "MOD701",
        "error",
        "no such model",
        "A model is builtin:NAME, hf:PATH of a local config.json, or package.module:function.",
        "`offload list models` lists the built-in ones.",
        bad_example="offload explain balanced --model builtin:lama-tiny",
        good_example="offload explain balanced --model builtin:llama-tiny",
    ),
    CodeEntry(
        "MOD702",
        "error",
        "an option that cannot shape this model",
        "--batch, --seq, --layers and --dtype shape built-in and hf: models, each within what the model "
        "allows.",
        "Leave the option out, or shape the model in its function.",
        bad_example="offload explain balanced --model my_model:build --layers 2",
        good_example="offload explain balanced --model builtin:llama-tiny --layers 2",
    ),
    CodeEntry(
        "MOD703",
        "error",
        "the model does not fit this host",
        "Its parameters and gradients need more memory than this host has free.",
        "Give fewer --layers, or run it on an accelerator.",
        message_example="builtin:llama3-8b needs 30 GiB, and this host has 12 GiB free",
    ),
    CodeEntry(
        "MOD704",
        "error",
        "the model's configuration cannot be read",
        "hf: takes the path of a local config.json or of its folder; nothing is downloaded.",
        "Correct the path, or the file.",
        bad_example="offload explain sac-default --model hf:no/such/folder",
        good_example=(
            "# config.json\n"
            '{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 128}\n'
            "offload explain sac-default --model hf:config.json"
        ),
    ),
    CodeEntry(
        "MOD705",
        "error",
        "an extra is not installed",
        "hf: models need transformers or diffusers.",
        "pip install 'offload-runtime[hf]'",
        message_example="hf:config.json needs the package transformers, and transformers is not installed",
    ),
    CodeEntry(
        "MOD706",
        "error",
        "a kind of model that is not supported",
        "The configuration is of a model that cannot be built here.",
        "Write a function that builds it, and name it package.module:function.",
        message_example=(
            "hf:config.json is not supported: its model_type whisper is neither a decoder nor a U-Net"
        ),
    ),
    CodeEntry(
        "MOD707",
        "error",
        "the device is not there",
        "--device cuda was asked for, and this torch or this machine has none.",
        "Use --device cpu, where the simulated engine runs.",
        "offload apply balanced --model builtin:llama-tiny --device cuda",
        "offload apply balanced --model builtin:llama-tiny --device cpu",
    ),
    CodeEntry(
        "MOD708",
        "error",
        "more device memory than there is",
        "--device-memory caps what this process may allocate, and was given more than the device has.",
        "Give less, or leave it out. `offload plan --hardware NAME --device-memory SIZE` predicts for another device.",
        message_example="--device-memory 200GB is more than the 140 GiB of NVIDIA H200",
    ),
    CodeEntry(
        "MOD711",
        "error",
        "the model's function cannot be found",
        "package.module:function names a module that can be imported here and a function in it.",
        "Correct the name; the current folder is searched too.",
        bad_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build():\n"
            "    return torch.nn.Linear(8, 8), (torch.randn(2, 8),)\n"
            "offload explain sac-default --model my_model:biuld"
        ),
        good_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build():\n"
            "    return torch.nn.Linear(8, 8), (torch.randn(2, 8),)\n"
            "offload explain sac-default --model my_model:build"
        ),
    ),
    CodeEntry(
        "MOD712",
        "error",
        "the model's function takes arguments",
        "It is called without any.",
        "Give its parameters defaults.",
        bad_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build(width):\n"
            "    return torch.nn.Linear(width, 8), (torch.randn(2, 8),)\n"
            "offload explain sac-default --model my_model:build"
        ),
        good_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build(width=8):\n"
            "    return torch.nn.Linear(width, 8), (torch.randn(2, 8),)\n"
            "offload explain sac-default --model my_model:build"
        ),
    ),
    CodeEntry(
        "MOD713",
        "error",
        "the model's function returned something else",
        "It returns (module, example_args) or (module, example_args, loss_fn).",
        "Return one of the two.",
        bad_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build():\n"
            "    return torch.nn.Linear(8, 8)\n"
            "offload explain sac-default --model my_model:build"
        ),
        good_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build():\n"
            "    return torch.nn.Linear(8, 8), (torch.randn(2, 8),)\n"
            "offload explain sac-default --model my_model:build"
        ),
    ),
    CodeEntry(
        "MOD714",
        "error",
        "the model has nothing to train",
        "No parameter requires a gradient, so nothing is saved for backward.",
        "Leave requires_grad on for what is to be trained.",
        bad_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build():\n"
            "    return torch.nn.Linear(8, 8).requires_grad_(False), (torch.randn(2, 8),)\n"
            "offload explain sac-default --model my_model:build"
        ),
        good_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build():\n"
            "    return torch.nn.Linear(8, 8), (torch.randn(2, 8),)\n"
            "offload explain sac-default --model my_model:build"
        ),
    ),
    CodeEntry(
        "MOD715",
        "error",
        "the model's function raised",
        "Importing its module, or calling it, raised an exception of its own.",
        "Make the call work by itself first; the finding shows it.",
        bad_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build():\n"
            '    return torch.load("no-such-file.pt"), (torch.randn(2, 8),)\n'
            "offload explain sac-default --model my_model:build"
        ),
        good_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build():\n"
            "    return torch.nn.Linear(8, 8), (torch.randn(2, 8),)\n"
            "offload explain sac-default --model my_model:build"
        ),
    ),
    CodeEntry(
        "MOD721",
        "error",
        "there is nothing to take a loss of",
        "The output of the model holds no floating-point tensor.",
        "Return a loss_fn as the third value of the function.",
        message_example="the output of my_model:build holds no floating-point tensor to take a loss of: dict",
    ),
)

_RUNS = (
    CodeEntry(
        "MOD731",
        "error",
        "no graph was captured",
        "All of the model runs outside torch.compile.",
        "Look for what breaks the graph with TORCH_LOGS=graph_breaks.",
        message_example="no graph of my_model:build could be captured: all of it runs outside torch.compile",
    ),
    CodeEntry(
        "MOD732",
        "error",
        "the model cannot be traced",
        "torch.compile cannot trace it.",
        "Make torch.compile(module)(*example_args) work first.",
        message_example="my_model:build cannot be traced by torch.compile: Unsupported: Data-dependent branching",
    ),
    CodeEntry(
        "MOD733",
        "error",
        "training failed",
        "The model, its loss, its backward or the optimizer's step raised an exception.",
        "Make loss_fn(module(*example_args)).backward() work first, or give another --optimizer, as the finding says.",
        bad_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build():\n"
            "    raise SystemExit(3)\n"
            "offload explain sac-default --model my_model:build"
        ),
        good_example=(
            "# my_model.py\n"
            "import torch\n"
            "\n"
            "def build():\n"
            "    return torch.nn.Linear(8, 8), (torch.randn(2, 8),)\n"
            "offload explain sac-default --model my_model:build"
        ),
    ),
    CodeEntry(
        "MOD734",
        "error",
        "out of device memory with the policy",
        "The policy does not free enough for this model, batch and device.",
        "Offload or recompute more, or give fewer --layers, a smaller --batch or --seq.",
        message_example="builtin:llama3-8b runs out of device memory with policy balanced, as it does without",
    ),
    CodeEntry(
        "MOD735",
        "error",
        "the model starts differently each time",
        "Two runs can be compared only from the same weights and data; this model is built from "
        "something else than "
        "torch's generator.",
        "Draw all that is random from torch's generator, which is seeded before the function is called.",
        message_example="my_model:build starts from other weights or data each time it is built",
    ),
    CodeEntry(
        "MOD736",
        "note",
        "explained by a real training step",
        "`offload explain` traces a model with fake tensors. They hold no values, so that code outside the "
        "compiled graphs that computes with values cannot run on them; nor do they show where the parts of a "
        "broken graph stand in the model. One real step was run instead, on the device.",
        "Let the module be one graph: TORCH_LOGS=graph_breaks shows what breaks it.",
        message_example=(
            "explained my_model:build by a real training step: where the parts of a broken graph stand "
            "in the model shows only when they run"
        ),
    ),
    CodeEntry(
        "MOD737",
        "note",
        "the step is not predicted",
        "`offload apply` shows what was predicted beside what was measured. The prediction traces the model with fake "
        "tensors and plans it; the finding says why that did not work here.",
        "Make `offload plan` work with the same arguments.",
        message_example="the step is not predicted: there is no hardware profile of this device",
    ),
    CodeEntry(
        "MOD741",
        "warning",
        "compared without deterministic kernels",
        "An operator has no deterministic kernel, so a difference may be its own.",
        "Replace the operator to be sure.",
        message_example="the numbers were compared without deterministic kernels: aten::_scatter has none",
    ),
    CodeEntry(
        "MOD742",
        "warning",
        "the numbers could not be compared",
        "The run whose offloads are saves does not fit the device.",
        "Compare at fewer --layers, a smaller --batch or --seq.",
        message_example=(
            "the numbers could not be compared: the run whose offloads are saves does not fit the device"
        ),
    ),
    CodeEntry(
        "MOD743",
        "warning",
        "the loss is not finite",
        "Where the loss is infinite or not a number, so are the gradients: that they are equal proves little.",
        "Choose a model, data and a --dtype whose loss stays finite, or fewer --steps.",
        message_example=(
            "the loss is not finite from step 7 on, with every offload a save: equal numbers prove "
            "little there"
        ),
    ),
    CodeEntry(
        "MOD744",
        "warning",
        "a limit could not be judged",
        "The baseline runs out of memory, so there is no step to compare with; or there is no accelerator to measure "
        "on, and the step could not be predicted.",
        "Compare at fewer layers, or with what does fit: `offload bench --baseline eager-checkpoint`. Without an "
        "accelerator give --hardware.",
        message_example="limits.step_overhead is not judged: the baseline does not fit, and no step of it is timed",
    ),
    CodeEntry(
        "MOD751",
        "error",
        "the policy changed the numbers",
        "A loss, gradient, parameter or buffer differs from the same run with each offload replaced by a "
        "save; "
        "offloading must never do that.",
        "Run again, and report it with the model and the policy if it stays.",
        message_example="the policy changed the numbers, first in the loss of step 2",
    ),
    CodeEntry(
        "MOD752",
        "error",
        "planned and moved bytes differ",
        "Some compiled graph did not run, or ran more than once, in the last step.",
        "Look at the graphs with `offload explain`.",
        message_example="4 MiB were planned and 2 MiB moved",
    ),
    CodeEntry(
        "MOD753",
        "error",
        "expect.moved was missed",
        "The bytes moved per step are outside the policy's expectation.",
        "Raise limits.budget or widen the rules that offload, or correct the expectation.",
        message_example="expect.moved asks for at least 1 TiB, and 4 MiB moved a step",
    ),
    CodeEntry(
        "MOD754",
        "warning",
        "the policy offloads, and nothing was offloaded",
        "Each tensor that a clause would offload fell back to a save, as PLN403 says of each graph. Nothing is wrong "
        "where memory suffices.",
        "`offload explain` says what became of each tensor, and why. Write expect.moved.min into a policy that has to "
        "move something: then MOD753 fails the run.",
        message_example="policy mine offloads, and nothing was offloaded",
    ),
    CodeEntry(
        "MOD755",
        "error",
        "the peak was over limits.device_peak",
        "The run held more than the plan counted on: tensors of others, an optimizer whose state was not given, or a "
        "graph that is not planned.",
        "Set the limit lower by what is over. `offload plan --optimizer` counts the optimizer's state.",
        message_example="limits.device_peak is 40 GiB, and a peak of 41 GiB was measured",
    ),
    CodeEntry(
        "MOD757",
        "error",
        "apply keeps no float32 master weights",
        "`offload apply` trains parameters in their own type with torch.optim, which keeps no float32 copy of them.",
        "Leave --master-weights out, train in float32 (--dtype float32), or count them with `offload plan "
        "--master-weights`.",
        "offload apply balanced --model builtin:llama-tiny --master-weights",
        "offload plan balanced --model builtin:llama-tiny --hardware h200-pcie5 --master-weights",
    ),
    CodeEntry(
        "MOD756",
        "error",
        "the step took longer than limits.step_overhead allows",
        "The plan is made from a profile of the hardware; a slower link, or other work on it, makes transfers stall.",
        "Measure in turns with `offload bench`, which tells what is noise; or allow more memory or more time.",
        message_example="limits.step_overhead is 5.0 %, and the step took 7.2 % longer than the baseline's",
    ),
)

CODES = _MODELS + _RUNS
