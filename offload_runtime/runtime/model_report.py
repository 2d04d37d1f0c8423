"""The report of a model: which ``torch.compile`` call ran it, and what of it the compiled graphs left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.graph.names import normalise_fqn
from offload_runtime.record import Report
from offload_runtime.runtime.compiled import given_within, is_container_compiled_in_place
from offload_runtime.runtime.eager_parts import reasons_given
from offload_runtime.runtime.session import Session, living_sessions

__all__ = ["NothingCapturedError", "nothing_captured", "report", "report_of_session", "torchs_reasons"]

_SHOWN = 4


class NothingCapturedError(UsageError, ValueError):
    """A report was asked of a model of which no graph was compiled with this back end."""


def report(model: Any = None) -> Report:
    """Return the report of a compiled model: of its own ``torch.compile`` call, else the last that read its parameters.

    ``model`` is what ``torch.compile`` returned, or the module it was given; None is the last session. What torch runs
    by graphs that it compiled for another model is reported as such; so is what it runs outside of graphs.
    Raises NothingCapturedError, a ValueError, when nothing of the model has been compiled with this back end yet.
    """
    sessions = [session for session in reversed(living_sessions()) if session.graphs]
    if model is None:
        if not sessions:
            raise NothingCapturedError(nothing_captured())
        return report_of_session(sessions[0])
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"a {type(model).__name__} is no module, by whose parameters a report is found: "
            "report() without an argument is that of the last torch.compile call"
        )
    running = _sessions_of(model, sessions)
    if not running:
        raise NothingCapturedError(nothing_captured(model))
    found = running[0].report()
    return replace(
        found, diagnostics=_merged(found.diagnostics, _sharing(model, running), _left_out(model, running))
    )


def report_of_session(session: Session) -> Report:
    """Return a session's report with what is known of its model, where ``options["model"]`` named that."""
    found, model = session.report(), session.options.root()
    if model is None:
        return found
    return replace(found, diagnostics=_merged(found.diagnostics, _left_out(model, [session])))


def nothing_captured(model: nn.Module | None = None) -> Diagnostic:
    """Return the finding that no graph of ``model``, or none at all, was compiled with this back end."""
    if model is not None and is_container_compiled_in_place(model):
        name = type(model).__name__
        message = (
            f"{name}.compile() captured nothing: its forward is torch's own code, whose frames torch skips"
        )
        hint = "call the model that torch.compile(model, ...) returns, or put it into a module of your own"
        return Diagnostic("RUN541", "error", message, hint=hint)
    of = "" if model is None else " of this model"
    message = f"no graph{of} has been compiled with the offload backend{torchs_reasons()}"
    hint = (
        'run a forward and backward of what torch.compile(model, backend="offload", options={"policy": ...}) returned '
        "first; if you did, torch captured nothing to offload: fullgraph=True or TORCH_LOGS=graph_breaks says why"
    )
    return Diagnostic("RUN540", "error", message, hint=hint)


def _sessions_of(model: nn.Module, sessions: list[Session]) -> list[Session]:
    """Return the sessions that ran ``model``, the one of its own call first.

    torch runs the graphs of one call for another that was given the same. What was given something else never counts.
    """
    given = list(given_within(model))
    own = [
        session
        for session in sessions
        if any(options is not None and session.given.options is options for options in given)
    ]
    reading = [session for session in sessions if session.parameters.any_of(model) and session not in own]
    if given:
        reading = [
            session
            for session in reading
            if any(session.given.equals(options) or session.given.options is options for options in given)
        ]
    return [*own, *reading]


def _sharing(model: nn.Module, running: list[Session]) -> Iterable[Diagnostic]:
    """Say that graphs run for other modules too, or that this model runs by graphs of several calls."""
    num_others = running[0].parameters.num_outside(model)
    if num_others:
        message = (
            f"the graphs of this report also ran with {num_others} parameters that are not of this module: torch runs "
            "one compiled graph for all models of the same code and options; bytes are those of the last step, "
            "whichever of them it was of"
        )
        hint = 'options={"policy": ..., "model": model} gives each model graphs of its own'
        yield Diagnostic("RUN542", "note", message, hint=hint)
    equal = [session for session in running[1:] if session.given.equals(running[0].given.options)]
    if equal:
        message = (
            f"graphs of {len(equal)} more torch.compile calls with equal options ran with parameters of this module; "
            "what they moved is not counted here"
        )
        hint = 'options={"policy": ..., "model": model} gives each model graphs of its own'
        yield Diagnostic("RUN542", "note", message, hint=hint)


def _left_out(model: nn.Module, running: list[Session]) -> Iterable[Diagnostic]:
    """Name the modules whose parameters no graph reads, with torch's reasons if it gave any."""
    missing = running[0].parameters.missing_in(model)
    missing = {
        name: item
        for name, item in missing.items()
        if not any(item in session.parameters for session in running)
    }
    if not missing:
        return
    places = list(dict.fromkeys(_place(model, name, missing) for name in missing))
    shown = ", ".join(places[:_SHOWN]) + (", ..." if len(places) > _SHOWN else "")
    trained = any(item.grad is not None for item in missing.values())
    what = "they were used outside of them" if trained else "they were used outside of them, or not at all"
    num_all = sum(1 for _ in model.parameters())
    message = (
        f"no captured graph reads {len(missing)} of {num_all} parameters, {shown}: {what}, and nothing that is "
        f"saved there is offloaded{torchs_reasons()}"
    )
    yield Diagnostic("RUN543", "warning", message, hint="TORCH_LOGS=graph_breaks says where torch gave up")


def _place(model: nn.Module, name: str, missing: Mapping[str, nn.Parameter]) -> str:
    """Return what a missing parameter is said by: its module, if all of that is missing, else its own name."""
    path = name.rpartition(".")[0]
    inner = model.get_submodule(path).named_parameters(path)
    if all(own in missing for own, _ in inner):
        return f"{normalise_fqn(path)}.*" if path else "all of the root module"
    return normalise_fqn(name)


def torchs_reasons() -> str:
    """Return the reasons that torch gave in this process for breaking graphs, to end a sentence with; or nothing."""
    reasons = reasons_given()
    if not reasons:
        return ""
    more = f" and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    return f"; reasons that torch gave in this process: {'; '.join(reasons[:_SHOWN])}{more}"


def _merged(*findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    return tuple(dict.fromkeys(finding for group in findings for finding in group))
