import pytest

from offload_runtime.reporting.tables import Column, render_table

COLUMNS = [Column("name"), Column("bytes", "right")]


def test_cells_are_aligned_under_their_titles() -> None:
    assert render_table(COLUMNS, [["mm", "4"], ["convolution", "1024"]]) == (
        "  name         bytes\n  mm               4\n  convolution   1024"
    )


def test_an_empty_cell_is_a_dash_so_that_columns_can_be_counted() -> None:
    assert render_table(COLUMNS, [["", "1"]]).splitlines()[1].split() == ["-", "1"]


def test_no_line_ends_in_spaces() -> None:
    table = render_table([Column("a"), Column("b")], [["x", "long cell"], ["y", "z"]])
    assert all(line == line.rstrip() for line in table.splitlines())


def test_a_table_without_rows_is_its_titles() -> None:
    assert render_table(COLUMNS, []) == "  name  bytes"


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 columns, but a row of 1 cells"):
        render_table(COLUMNS, [["only"]])
