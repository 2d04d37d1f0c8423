"""The row of the code table."""

from __future__ import annotations

from dataclasses import dataclass

from offload_runtime.errors import Severity


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """One diagnostic code: what it means, and how it is cured.

    ``bad_example`` provokes it and ``good_example`` is the same without the fault. Each is files and a command that
    reads them, a command alone, or the few lines of YAML or Python that matter::

        # policy.yaml
        gradients: {offload: true}
        offload validate policy.yaml --for graph

    ``message_example`` is a message as it is printed, for a code that no file and no command causes by itself.
    """

    code: str
    severity: Severity
    title: str
    explanation: str
    cure: str
    bad_example: str | None = None
    good_example: str | None = None
    message_example: str | None = None
