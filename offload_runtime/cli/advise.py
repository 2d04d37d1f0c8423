"""`offload advise`: which mechanism, why, and the next command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Unpack

import click

from offload_runtime.advice import Advice, advise
from offload_runtime.advice_diagnosis import DIAGNOSIS_CARD, PRICE_CARD, is_slow, is_to_be_fixed_now
from offload_runtime.advice_speed import asks_of_speed
from offload_runtime.advice_systems import OWN_MECHANISM
from offload_runtime.card_reading import load_card
from offload_runtime.card_verdicts import CardVerdict, judge_card
from offload_runtime.cli.command_lookup import command_problem
from offload_runtime.cli.gathered_facts import FactOptions, Gathered, fact_options, gather
from offload_runtime.cli.options import format_option, hardware_arguments
from offload_runtime.cli.outcome import EXIT_OK, Outcome
from offload_runtime.diagnosis_table import FITS
from offload_runtime.errors import RefusedError
from offload_runtime.export.fact_refusals import chosen_settings, fact_refusals
from offload_runtime.fact_sheet import typed_value
from offload_runtime.facts import FACTS
from offload_runtime.predicates import Scalar
from offload_runtime.skills_catalog import list_skills
from offload_runtime.state_facts import MIB, is_state_elsewhere, limit_bytes
from offload_runtime.targets import EXPORT_TARGETS

# Facts that the fixes of a slow run may change: what a run has of them after one is asked again.
_CHANGED_BY_FIXES = (
    "budget_bytes",
    "defer",
    "mode",
    "num_graphs",
    "num_offloaded_layers",
    "offload_device",
    "offload_fraction",
    "offload_overlap",
    "parameter_offload",
    "prefetch",
    "zero_stage",
)
# Facts beside the run's configuration that a fix leaves as they are, unless it is about them.
_KEPT_BY_FIXES = ("fits", "mode", "num_graphs", "numa_local", "pcie_generation", "pcie_link_width")
# Commands that speak of what this package's back end would do.
_THIS_BACK_END = ("apply", "bench", "explain", "plan")


@click.command(short_help="Say which mechanism fits a model and a machine, why, and what to do next.")
@fact_options
@click.option("--all", "all_unknown", is_flag=True, help="List every unknown fact that something hangs on.")
@format_option()
def command(all_unknown: bool, **options: Unpack[FactOptions]) -> Outcome:
    """Say whether anything has to leave the device, what first and why, which skill cards apply, and what to do next.

    Facts come from this machine or --hardware, from --model (traced and planned, never run), from --from, and from
    --fact. What hangs on a fact that is not known is said to, with the way to give it. Where no policy can make the
    training fit, the floor is named with what lowers it, and the exit code is 4; so it is where the system that trains
    refuses the configuration (`--fact framework=`), as `offload export` says it.

    \b
    Example:
      offload advise --model builtin:llama3-8b-lora --hardware h100-pcie5
      offload advise --model builtin:llama3-8b --batch 2 --optimizer adamw --hardware h100-pcie5
      offload advise --model builtin:llama3-8b-lora --batch 2 --mode inductor --hardware h100-sxm \\
        --fact max_step_overhead=0.05
      offload advise --fact framework=megatron-bridge --fact pipeline_parallel=4 --fact out_of_memory=true

    \b
    Offloading made training slow, by the step time with over that without:
      offload advise --fact slowdown=3 --fact offload_mechanism=zero_offload
    """
    from offload_runtime.reporting.advice import advice_data, render_advice

    gathered = gather(options)
    advice = advise(gathered.result)
    facts = gathered.result.sheet.values
    cards = tuple(judge_card(load_card(skill.card), facts) for skill in list_skills())
    is_planned = bool(gathered.model_arguments) and gathered.hardware is not None
    return Outcome(
        data=advice_data(advice, cards, gathered.result, is_planned=is_planned),
        text=render_advice(
            advice, cards, gathered.result.sheet, is_planned=is_planned, all_unknown=all_unknown
        ),
        diagnostics=(*gathered.result.notes, *advice.warnings, *advice.refusals),
        exit_code=RefusedError.exit_code if advice.refusals else EXIT_OK,
        next=tuple(_once_each(_next(gathered, advice, cards, _given(options), _new_files(options)))),
    )


def _given(options: FactOptions) -> str:
    """Return the facts given as they were typed, for a command that asks again with more."""
    words = [word for fact in options["facts"] for word in ("--fact", fact)]
    words = ["--side", options["side"], *words] if options["side"] is not None else words
    words = [word for file in options["files"] for word in ("--from", str(file))] + words
    return "".join(f" {shlex.quote(word)}" for word in words)


def _new_files(options: FactOptions) -> str | None:
    """Return the command that reads files of the same names again, which a new run writes; None where none was read."""
    if not options["files"]:
        return None
    words = [word for file in options["files"] for word in ("--from", str(file))]
    words += ["--side", options["side"]] if options["side"] is not None else []
    asked = any(fact.startswith("slowdown=") for fact in options["facts"])
    words += ["--fact", "slowdown=SLOWDOWN"] if asked else []
    return shlex.join(["offload", "advise", *words])


def _next(
    gathered: Gathered,
    advice: Advice,
    cards: tuple[CardVerdict, ...],
    given: str,
    new_files: str | None,
) -> Iterator[str]:
    """Yield the commands that follow, the most telling first; only commands that exist.

    A run that is to be diagnosed is sent there first. What is measured again is read from ``new_files``, if from any.
    """
    sheet = gathered.result.sheet
    measured_again = new_files or _measured_again(gathered, advice)
    if advice.conclusion == "ask" or (asks_of_speed(sheet) and not gathered.model_arguments):
        yield f"offload skills show {DIAGNOSIS_CARD} --file references/measuring.md"
        yield f"offload advise --fact slowdown=SLOWDOWN{given}{_measured_well(gathered)}"
        return
    if advice.findings and advice.findings[0].finding == FITS:
        # Switched off there is no pair to measure: the step fits, as was said, or runs out of memory.
        yield "offload advise --fact offload_mechanism=none --fact out_of_memory=OUT_OF_MEMORY"
        return
    if advice.findings and is_to_be_fixed_now(sheet):
        yield measured_again
    elif is_slow(sheet):
        cards = tuple(sorted(cards, key=lambda verdict: verdict.card.name != DIAGNOSIS_CARD))
        yield from _card_commands(gathered, advice, cards[:1])
    if advice.conclusion == "diagnose":
        if f"offload skills show {PRICE_CARD}" in advice.summary:
            yield f"offload skills show {PRICE_CARD}"
        return  # whatever else applies would offload more
    if _asks_of_graphs(gathered, advice):
        yield f"{_line(replace(gathered, mode='inductor'), 'advise')}{given}"
    if advice.conclusion == "activations" and gathered.model_arguments:
        yield _line(gathered, "plan", "fit", *_limits(gathered, advice))
    asks_of_model = not gathered.model_arguments and advice.conclusion in ("unknown", "activations")
    if asks_of_model and not advice.impossible:
        named = shlex.join(hardware_arguments(gathered.hardware or "HARDWARE", gathered.device_memory))
        # The optimizer's state is most of what is resident where all parameters are trained.
        optimizer = "" if sheet.get("optimizer") is not None else " --optimizer OPTIMIZER"
        yield f"offload advise --model MODEL {named}{optimizer}{given}"
    if advice.conclusion == "refused" and gathered.model_arguments:
        yield _line(gathered, "plan", "fit", "--why", *_limits(gathered, advice))
    yield from _card_commands(gathered, advice, cards)


def _asks_of_graphs(gathered: Gathered, advice: Advice) -> bool:
    """Tell whether a step that does not fit was predicted as mode graph runs it, which is not how torch compiles it."""
    is_predicted = bool(gathered.model_arguments) and gathered.result.sheet.get("fits") is False
    return is_predicted and gathered.mode == "graph" and advice.conclusion == "activations"


def _once_each(lines: Iterator[str]) -> Iterator[str]:
    """Yield the commands, of those that plan one policy only the first: it says more than a card's."""
    seen = set()
    for line in lines:
        words = shlex.split(line)
        key = tuple(words[:3]) if words[1] == "plan" else tuple(words)
        if key not in seen:
            seen.add(key)
            yield line


def _card_commands(gathered: Gathered, advice: Advice, cards: tuple[CardVerdict, ...]) -> Iterator[str]:
    for verdict in cards:
        if verdict.applies is True:
            yield f"offload skills show {verdict.card.name}"
            line = _filled(verdict.card.next_command, gathered, advice)
            if line is not None and command_problem(line) is None:
                yield line


def _limits(gathered: Gathered, advice: Advice) -> list[str]:
    """Return what a plan has to keep to: less than was predicted, or what the facts given say."""
    sheet = gathered.result.sheet
    capacity, overhead = sheet.size("gpu_total_bytes"), sheet.number("max_step_overhead")
    limit = advice.device_peak_bytes
    is_given = gathered.device_memory is None and sheet.origin("gpu_total_bytes") == "given"
    if limit is None and capacity is not None and is_given:
        limit = limit_bytes(capacity)
    limits = [] if limit is None else ["--set", f"limits.device_peak={limit // MIB}MiB"]
    if overhead is not None:
        limits += ["--set", f"limits.step_overhead={overhead * 100:g}%"]
    return limits


def _line(gathered: Gathered, *words: str) -> str:
    """Return a command with its first words, the model and hardware at hand, and its last words."""
    model = gathered.model_arguments if words[0] == "advise" else _model_arguments(gathered)
    line = ["offload", *words[:2], *model]
    line += gathered.hardware_arguments
    line += _master_weights(gathered) if words[0] == "plan" else []
    if gathered.mode != "graph":
        line += ["--mode", gathered.mode]
    return shlex.join([*line, *words[2:]])


def _filled(line: str | None, gathered: Gathered, advice: Advice) -> str | None:
    """Return a card's command with the model, the hardware and the target at hand in it.

    None where the card has none, where it plans for a step that fits, and where it asks this package's back end about a
    run that another system carries out.
    """
    framework = gathered.result.sheet.get("framework")
    if line is None or (framework in OWN_MECHANISM and line.split()[1] in _THIS_BACK_END):
        return None
    if framework in EXPORT_TARGETS and "TARGET" in line:
        given = _accepted(str(framework), gathered, advice)
        if given is None:
            return None
        line = f"{line.replace('TARGET', str(framework))}{given}"
    if gathered.model_arguments and "--model MODEL" in line:
        before, _, after = line.partition("--model MODEL")
        for option in gathered.model_arguments[::2]:
            # What was said of the model here goes before what the card says of any.
            after = re.sub(rf" {option} \S+", "", after)
        mode = "" if gathered.mode == "graph" or "--mode" in after else f" --mode {gathered.mode}"
        line = f"{before}{shlex.join(_model_arguments(gathered))}{after}{mode}"
    if gathered.hardware is not None:
        line = line.replace("--hardware HARDWARE", shlex.join(gathered.hardware_arguments))
    if line.split()[1:3] == ["explain", "sac-default"] and advice.conclusion == "activations":
        # What is advised is another policy, which may fit where that one does not.
        named = shlex.join(gathered.hardware_arguments) or "--hardware HARDWARE"
        line = " ".join([line.replace("sac-default", "fit", 1), named, *_limits(gathered, advice)])
    if line.split()[1:3] == ["plan", "fit"]:
        if gathered.result.sheet.get("fits") is True and advice.device_peak_bytes is None:
            return None  # nothing would be left to do
        line = " ".join([line, *_limits(gathered, advice)])
    if line.split()[1] == "plan":
        line = " ".join([line, *_master_weights(gathered)])
    return line


def _of_the_run(gathered: Gathered) -> dict[str, Scalar]:
    """Return the facts given about the configuration, which an export hangs on."""
    sheet = gathered.result.sheet
    named = (name for name, fact in FACTS.items() if fact.source == "configuration")
    return {name: sheet.values[name] for name in named if sheet.origin(name) == "given"}


def _accepted(target: str, gathered: Gathered, advice: Advice) -> str | None:
    """Return those facts as options for an export; of what the system refuses together the mechanism is left out.

    None where no one mechanism less is accepted: the export would be refused again.
    """
    given = {name: value for name, value in _of_the_run(gathered).items() if name != "framework"}
    if advice.impossible:
        less = ({**given, name: False} for name, value in given.items() if value is True)
        accepted = next((facts for facts in less if not fact_refusals(target, facts)), None)
        if accepted is None:
            return None
        given = {name: value for name, value in given.items() if accepted[name] == value}
    return _as_options(given) + "".join(f" --setting '{key}=[...]'" for key in chosen_settings(target, given))


def _as_options(facts: Mapping[str, Scalar]) -> str:
    return "".join(f" --fact {name}={shlex.quote(typed_value(value))}" for name, value in facts.items())


def _measured_well(gathered: Gathered) -> str:
    """Return what is to hold of a ratio that is measured now, where it was not said."""
    names = ("paired_baseline", "warm_steps_only")
    return _as_options({name: True for name in names if gathered.result.sheet.get(name) is None})


def _measured_again(gathered: Gathered, advice: Advice) -> str:
    """Return the command that takes a new measurement, a pair: without what was measured, and asking what was fixed."""
    found = advice.findings[0].because if advice.findings else ""
    sheet = gathered.result.sheet
    of_run = _of_the_run(gathered) | {
        name: sheet.values[name] for name in _KEPT_BY_FIXES if sheet.origin(name) == "given"
    }
    named = found.replace("offload_mechanism", "")  # it stays what it is, unless it is taken off
    changed = {name for name in of_run if name in _CHANGED_BY_FIXES or name in named}
    stays = {name: name.upper() if name in changed else value for name, value in of_run.items()}
    known: dict[str, Scalar] = {**stays, "paired_baseline": True, "warm_steps_only": True}
    mechanism = sheet.get("offload_mechanism")
    if mechanism is not None:
        known = {"offload_mechanism": mechanism, **known}
    return f"offload advise --fact slowdown=SLOWDOWN{_as_options(known)}"


def _master_weights(gathered: Gathered) -> list[str]:
    """Return what tells `plan` of float32 master weights: a fact that no trace shows."""
    sheet = gathered.result.sheet
    is_told = sheet.get("master_weights") is True and not is_state_elsewhere(sheet)
    return ["--master-weights"] if is_told else []


def _model_arguments(gathered: Gathered) -> list[str]:
    """Return the arguments of the model for a plan: without an optimizer where another system keeps its state."""
    arguments = list(gathered.model_arguments)
    if is_state_elsewhere(gathered.result.sheet) and "--optimizer" in arguments:
        arguments[arguments.index("--optimizer") + 1] = "none"
    return arguments
