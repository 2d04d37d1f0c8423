"""The ways in which a graph can misuse the runtime, as errors that name the transfer."""

from __future__ import annotations

import torch

from offload_runtime.errors import Diagnostic, RunError
from offload_runtime.runtime.slot import Slot, slot_of
from offload_runtime.runtime.transfer import TransferRecord, transfer_record


def broken_order(record: TransferRecord, what: str) -> RunError:
    """Return the error for a transfer whose starts and waits do not pair up (RUN502)."""
    message = f"transfer {record.name!r}: {what}"
    hint = "the graph was changed after it was verified; please report it with the model and the policy"
    return RunError(Diagnostic("RUN502", "error", message, hint=hint))


def slot_for(host: torch.Tensor, transfer: int) -> Slot:
    """Return the slot under a host buffer. Raises RunError (RUN503) for any other tensor."""
    slot = slot_of(host)
    if slot is None:
        message = (
            f"transfer {transfer_record(transfer).name!r}: the host buffer that the forward saved is not the "
            f"tensor that came back for the backward ({tuple(host.shape)}, {host.dtype}, {host.device})"
        )
        hint = (
            "something outside replaced a saved tensor (saved_tensors_hooks, save_on_cpu, pickling): take "
            "it off the compiled region"
        )
        raise RunError(Diagnostic("RUN503", "error", message, hint=hint))
    return slot


def record_in_flight(started: TransferRecord, transfer: int) -> TransferRecord:
    """Return the record of ``transfer`` given the record its buffer was started with.

    A backward may run after its graph was dropped and the table forgot the key. Raises RunError (RUN501).
    """
    return started if started.key == transfer else transfer_record(transfer)
