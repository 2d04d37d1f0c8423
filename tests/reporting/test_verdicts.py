from offload_runtime.reporting.verdicts import Tally, by_fate, by_layer, by_rule, tally
from tests.reporting.records import KIB, verdict


def test_tally_counts_moved_bytes_of_offloaded_tensors_only() -> None:
    assert tally([verdict(fate="offload"), verdict(fate="save")]) == Tally(2, 8 * KIB, 4 * KIB)


def test_every_fate_has_its_row_even_with_no_tensor() -> None:
    rows = by_fate([verdict(fate="skip")])
    assert [(fate, group.num_tensors) for fate, group in rows] == [
        ("save", 0),
        ("recompute", 0),
        ("offload", 0),
        ("skip", 1),
    ]


def test_rules_keep_the_order_of_first_decision_and_the_rest_comes_last() -> None:
    rows = by_rule([verdict(rule=None), verdict(rule="late"), verdict(rule="early"), verdict(rule="late")])
    assert [(row.label, row.tally.num_tensors) for row in rows] == [
        ("late", 2),
        ("early", 1),
        ("(no rule)", 1),
    ]


def test_a_rule_whose_tensors_fare_differently_has_a_row_for_each_fate() -> None:
    rows = by_rule([verdict(rule="heavy", fate="offload"), verdict(rule="heavy", fate="save")])
    assert [(row.label, row.fate) for row in rows] == [("heavy", "save"), ("heavy", "offload")]


def test_layers_are_ordered_as_numbers_with_outside_last() -> None:
    rows = by_layer([verdict(layer=10), verdict(layer=None), verdict(layer=2)])
    assert [row.label for row in rows] == ["2", "10", "outside"]


def test_groups_add_up_to_the_whole() -> None:
    verdicts = [verdict(layer=i % 3, rule="r" if i % 2 else None, num_bytes=i) for i in range(20)]
    for rows in (by_rule(verdicts), by_layer(verdicts)):
        assert sum(row.tally.num_tensors for row in rows) == 20
        assert sum(row.tally.num_bytes for row in rows) == sum(range(20))
