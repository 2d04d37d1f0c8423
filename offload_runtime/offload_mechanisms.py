"""What can offload, by the names of the fact `offload_mechanism`: what it moves, who trains with it, what follows.

Keys and switches are those of the versions that `offload_runtime/targets_data` was checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offload_runtime.predicates import AllOf, Comparison, Predicate, Scalar, evaluate

__all__ = ["MECHANISMS", "OffloadMechanism", "mechanisms_on", "mechanisms_possible"]


@dataclass(frozen=True, slots=True)
class OffloadMechanism:
    """One mechanism: ``moves`` is what leaves the device by it.

    ``frameworks`` are those that can train with it, empty where any can; ``native`` those that have no others, or
    whose others are in this table too. ``implies`` are facts that hold where it is on; ``on_when`` says that it is on
    where nobody named it. ``asks`` are facts that its fixes hang on. ``system`` is the system whose rules it follows in
    any loop, by the name of its export; None where the loop's own system says.
    """

    name: str
    moves: tuple[str, ...]
    frameworks: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    implies: Mapping[str, Scalar] = field(default_factory=dict)
    on_when: Predicate | None = None
    asks: tuple[str, ...] = ()
    system: str | None = None

    @property
    def moves_activations_alone(self) -> bool:
        """Tell whether the optimizer steps where it always did."""
        return self.moves == ("activations",)


_MEGATRON = "megatron-bridge"
_FSDP = ("optimizer_state", "gradients", "parameters")
_ZERO = ("optimizer_state", "parameters")
_DEEPSPEED = ("deepspeed", "pytorch", "accelerate", "transformers")
# Parameters that are offloaded take their gradients and the optimizer's state along.
_WHOLE = {"optimizer_offload": True, "gradient_offload": True, "parameter_offload": True}


def _of_megatron(name: str, moves: str, switch: str, asks: tuple[str, ...] = ()) -> OffloadMechanism:
    is_set = Comparison(switch, "is", True)
    return OffloadMechanism(
        name,
        (moves,),
        frameworks=(_MEGATRON,),
        native=(_MEGATRON,),
        implies={"framework": _MEGATRON, switch: True},
        # Other systems offload the optimizer's state as well; the switches of activations are Megatron's alone.
        on_when=is_set
        if moves == "activations"
        else AllOf((Comparison("framework", "is", _MEGATRON), is_set)),
        asks=asks,
    )


MECHANISMS: Mapping[str, OffloadMechanism] = {
    mechanism.name: mechanism
    for mechanism in (
        OffloadMechanism(
            "fsdp1", _FSDP, frameworks=("pytorch", "accelerate", "transformers"), implies=_WHOLE
        ),
        OffloadMechanism(
            "fsdp2",
            _FSDP,
            frameworks=("fsdp2", "pytorch", "torchtitan", "accelerate", "transformers"),
            native=("fsdp2",),
            implies=_WHOLE,
        ),
        OffloadMechanism(
            "zero_offload",
            _ZERO,
            frameworks=_DEEPSPEED,
            native=("deepspeed",),
            asks=("zero_stage", "optimizer_offload", "parameter_offload", "offload_fraction"),
            system="deepspeed",
        ),
        OffloadMechanism(
            "nvme",
            _ZERO,
            frameworks=_DEEPSPEED,
            on_when=AllOf(
                (Comparison("framework", "is", "deepspeed"), Comparison("offload_device", "is", "nvme"))
            ),
            implies={"offload_device": "nvme"},
            asks=("optimizer_offload", "parameter_offload"),
            system="deepspeed",
        ),
        OffloadMechanism("activation_hooks", ("activations",)),
        OffloadMechanism(
            "offload_runtime",
            ("activations",),
            frameworks=("pytorch", "torchtitan", "deepspeed", "fsdp2", "accelerate", "transformers"),
        ),
        _of_megatron("megatron_optimizer", "optimizer_state", "optimizer_offload", ("offload_fraction",)),
        _of_megatron("megatron_layers", "activations", "layer_activation_offload"),
        _of_megatron("megatron_fine_grained", "activations", "fine_grained_offload"),
    )
}


def mechanisms_on(facts: Mapping[str, Scalar]) -> tuple[OffloadMechanism, ...]:
    """Return what ``facts`` say is on, the mechanism that is named first."""
    named = MECHANISMS.get(str(facts.get("offload_mechanism")))
    others = (
        mechanism
        for mechanism in MECHANISMS.values()
        if mechanism is not named
        and mechanism.on_when is not None
        and evaluate(mechanism.on_when, facts) is True
    )
    return (*((named,) if named is not None else ()), *others)


def mechanisms_possible(facts: Mapping[str, Scalar]) -> tuple[OffloadMechanism, ...]:
    """Return what is on or, where nothing is known to be, what the framework has of its own and may be on."""
    on = mechanisms_on(facts)
    if on:
        return on
    framework = facts.get("framework")
    return tuple(
        mechanism
        for mechanism in MECHANISMS.values()
        if framework in mechanism.native
        and not any(facts.get(name, value) != value for name, value in mechanism.implies.items())
    )
