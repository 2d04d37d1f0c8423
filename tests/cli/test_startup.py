"""What a command may load, and how long the ones that editors and agents call in loops may take."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VALIDATE = ["validate", "policies/balanced/policy.yaml"]
LIMIT_S = 0.5

_LOADED = """
import sys
from offload_runtime.cli import run
exit_code = run(sys.argv[1:])
sys.stdout.flush()
print(exit_code, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def _loaded(*args: str) -> tuple[int, set[str]]:
    """Run a command and return its exit code and the top-level modules that it loaded."""
    finished = subprocess.run(
        [sys.executable, "-c", _LOADED, *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=True,
    )
    exit_code, *modules = finished.stderr.splitlines()[-1].split()
    return int(exit_code), set(modules)


@pytest.mark.parametrize(
    "args",
    [
        VALIDATE,
        ["test", "policies/balanced"],
        ["codes", "CLI602"],
        ["list", "models"],
        ["list", "policies"],
        ["list", "op-classes"],
        ["list", "hardware"],
        ["apply", "--help"],
        ["explain", "--help"],
        ["export", "balanced", "--to", "torchtitan"],
    ],
    ids=" ".join,
)
def test_a_command_that_runs_no_model_loads_no_torch_and_nothing_to_draw_with(args: list[str]) -> None:
    exit_code, modules = _loaded(*args)
    assert exit_code == 0
    assert modules.isdisjoint({"torch", "numpy", "scipy", "rich", "jinja2", "matplotlib", "transformers"})


def test_a_mistake_in_a_policy_is_found_before_torch_is_loaded(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("apiVersion: offload/v1\nkind: Policy\nname: p\nactivations: {defalt: save}\n")
    for command in ("explain", "apply"):
        exit_code, modules = _loaded(command, str(policy), "--model", "builtin:llama-tiny")
        assert exit_code == 1
        assert "torch" not in modules


def test_validating_a_policy_starts_and_ends_within_half_a_second() -> None:
    """Take the best of five, the interpreter's own start included.

    Processor time is what is measured: the command waits for nothing, so on an idle machine it is the time
    on the clock. On a busy one it does not count what others do, but grows with what they take of a shared core
    and its caches, up to twice as much; the best is nearest to the command's own.
    """
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-c", "from offload_runtime.cli import main; main()", *VALIDATE],
            capture_output=True,
            cwd=ROOT,
            timeout=60,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < LIMIT_S
