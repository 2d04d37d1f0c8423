from offload_runtime.errors import Diagnostic
from offload_runtime.reporting import github


def test_a_finding_is_one_workflow_command() -> None:
    finding = Diagnostic(
        "POL104", "error", "unknown op class 'matmull'", "p.yaml", 12, 11, hint="did you mean matmul?"
    )
    assert github.render([finding]) == (
        "::error file=p.yaml,line=12,col=11,title=POL104::unknown op class 'matmull'%0Adid you mean matmul?"
    )


def test_a_note_is_a_notice_and_a_missing_place_is_left_out() -> None:
    assert github.render([Diagnostic("POL190", "note", "fine")]) == "::notice title=POL190::fine"


def test_what_would_end_a_command_or_a_property_early_is_escaped() -> None:
    finding = Diagnostic("YAML001", "warning", "50%\r\nnext", "a,b:c.yaml", 1)
    assert github.render([finding]) == "::warning file=a%2Cb%3Ac.yaml,line=1,title=YAML001::50%25%0D%0Anext"


def test_an_override_is_no_file_to_annotate() -> None:
    finding = Diagnostic("POL104", "error", "5 is not a size", "--set", 1, 15)
    assert github.render([finding]) == "::error title=POL104::5 is not a size"


def test_every_finding_has_a_line() -> None:
    assert github.render([Diagnostic("A", "error", "x"), Diagnostic("B", "error", "y")]).count("\n") == 1
    assert github.render([]) == ""
