import json
import math

from offload_runtime.cli.outcome import Outcome, envelope, to_json
from offload_runtime.errors import Diagnostic


def test_the_envelope_has_its_keys_in_order_and_each_diagnostic_all_of_its_own() -> None:
    finding = Diagnostic("POL104", "error", "unknown", "p.yaml", 3, 5, "name", "did you mean")
    document = envelope("validate", Outcome({"files": []}, "", (finding,), 1, ("offload codes POL104",)))
    assert document == {
        "schema_version": 1,
        "command": "validate",
        "ok": False,
        "exit_code": 1,
        "data": {"files": []},
        "diagnostics": [
            {
                "code": "POL104",
                "severity": "error",
                "message": "unknown",
                "file": "p.yaml",
                "line": 3,
                "column": 5,
                "path": "name",
                "hint": "did you mean",
            }
        ],
        "next": ["offload codes POL104"],
    }
    assert list(document) == ["schema_version", "command", "ok", "exit_code", "data", "diagnostics", "next"]


def test_a_warning_alone_leaves_the_outcome_ok() -> None:
    warned = Outcome(diagnostics=(Diagnostic("POL170", "warning", "shadowed"),))
    assert envelope("validate", warned)["ok"] is True


def test_numbers_that_json_lacks_become_null_wherever_they_stand() -> None:
    data = {"losses": {"policy": (1.5, math.nan, math.inf)}, "rows": [{"step_ms": -math.inf}]}
    parsed = json.loads(to_json("apply", Outcome(data)))
    assert parsed["data"] == {"losses": {"policy": [1.5, None, None]}, "rows": [{"step_ms": None}]}
