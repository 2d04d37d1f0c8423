"""What the rows of the diagnosis are: a check, a finding, and a fix that hangs on facts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from offload_runtime.fact_sheet import format_fact
from offload_runtime.facts import FACTS
from offload_runtime.predicates import Predicate, Scalar, evaluate

__all__ = ["Check", "Finding", "Fix"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the diagnosis, and the facts that it leads to; done where all are known.

    It is done, too, where one of ``settled_by`` holds, which makes the facts that are still unknown needless. One with
    ``only_for`` is made only of runs for which that holds; where that is not known, it is made unless ``not_for``
    holds, and not at all where there is no ``not_for``.
    """

    name: str
    facts: tuple[str, ...]
    settled_by: tuple[Predicate, ...] = ()
    only_for: Predicate | None = None
    not_for: Predicate | None = None


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to change; where ``unless`` holds it is done already or there is nothing to change.

    With ``when`` it is named only where that is known to hold. ``{name}`` in the text stands for the value of a fact.
    """

    text: str
    unless: Predicate | None = None
    when: Predicate | None = None

    def text_for(self, facts: Mapping[str, Scalar]) -> str | None:
        """Return what to do where ``facts`` hold; None where they leave nothing to do."""
        if self.unless is not None and evaluate(self.unless, facts) is True:
            return None
        if self.when is not None and evaluate(self.when, facts) is not True:
            return None

        def written(match: re.Match[str]) -> str:
            name = match[1]
            return format_fact(FACTS[name], facts[name]) if name in facts else name

        return re.sub(r"\{([a-z_]+)\}", written, self.text)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check can find: the sign of it in facts, and the fixes, each before the next.

    ``fixes`` hold for any mechanism; those in ``by_mechanism`` go before them, by the value of ``offload_mechanism``.
    Whatever is known, at least one fix is left. Where ``unless`` holds, the sign does not count. A symptom is what
    other findings may be the cause of: it has no fixes that one of them has named. What ``settles_first`` is cheap to
    fix and changes what all other checks show; ``slows_any_run`` is what slows a step that offloads nothing as well.
    """

    name: str
    sign: Predicate
    fixes: tuple[str | Fix, ...]
    by_mechanism: Mapping[str, tuple[str | Fix, ...]] = field(default_factory=dict)
    unless: Predicate | None = None
    is_symptom: bool = False
    settles_first: bool = False
    slows_any_run: bool = False

    def is_in(self, facts: Mapping[str, Scalar]) -> bool:
        """Tell whether ``facts`` show it."""
        return self._shown_by(facts) is True

    def may_be_in(self, facts: Mapping[str, Scalar]) -> bool:
        """Tell whether more facts may show it."""
        return self._shown_by(facts) is None

    def _shown_by(self, facts: Mapping[str, Scalar]) -> bool | None:
        is_off = self.unless is not None and evaluate(self.unless, facts) is True
        return False if is_off else evaluate(self.sign, facts)

    def fixes_for(self, mechanisms: Sequence[str], facts: Mapping[str, Scalar]) -> tuple[str, ...]:
        """Return the fixes that ``facts`` leave for a run that ``mechanisms`` offload; none: not known which do."""
        own = [fix for mechanism in mechanisms for fix in self.by_mechanism.get(mechanism, ())]
        every = (fix if isinstance(fix, Fix) else Fix(fix) for fix in (*own, *self.fixes))
        texts = (fix.text_for(facts) for fix in every)
        return tuple(dict.fromkeys(text for text in texts if text is not None))
