"""Cards for readers: figures and evidence in words."""

import pytest

from offload_runtime.card import (
    Assumption,
    Evidence,
    Expression,
    Figure,
    FileEvidence,
    SourceEvidence,
    Spread,
    SymbolEvidence,
)
from offload_runtime.docgen.skill_reference import describe_evidence, describe_figure


def test_a_figure_has_its_unit_and_what_is_known_of_its_spread() -> None:
    assert describe_figure(Figure(1.009, "ratio")) == "1.009 ratio"
    assert describe_figure(Figure(711, "ms", 12, Spread(710.2, 714))) == "711 ms (n = 12, 710.2 to 714)"


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        (
            FileEvidence("docs/evidence/x.json", Expression("ratio", ("/a", "/b"))),
            "[x.json](../../docs/evidence/x.json): `/a` / `/b`",
        ),
        (
            FileEvidence("docs/evidence/x.json", Expression("median", ("/a",)), scale=1e-3),
            "[x.json](../../docs/evidence/x.json): median of `/a`, × 0.001",
        ),
        (SymbolEvidence("a.py::b", "tests/c.py::d"), "`a.py::b`, held by `tests/c.py::d`"),
        (SourceEvidence("the article"), "the article"),
        (Assumption("nobody looked"), "not checked: nobody looked"),
    ],
)
def test_evidence_says_how_something_is_known(evidence: Evidence, text: str) -> None:
    assert describe_evidence(evidence) == text
