"""Whether the operator that a rule names exists, and what was probably meant if it does not."""

from __future__ import annotations

from offload_runtime.document import Node
from offload_runtime.findings import Findings
from offload_runtime.op_classes import OP_CLASSES, TABLE_NAMESPACES, overload_table
from offload_runtime.shape import did_you_mean


def check_op(node: Node, name: str, findings: Findings) -> None:
    """Report ``name`` when it is neither an op class nor an overload that a supported torch has."""
    namespace, *rest = name.split(".")
    if name in OP_CLASSES:
        return
    if not rest:
        hint = did_you_mean(name, OP_CLASSES) or f"op classes: {', '.join(OP_CLASSES)}"
        findings.add(node, "POL120", f"there is no op class {name!r}", hint)
    elif namespace in TABLE_NAMESPACES and name not in overload_table():
        findings.add(node, "POL121", f"torch 2.11 and 2.13 have no overload {name!r}", _overload_hint(name))
    elif len(rest) == 1 and namespace != "higher_order":
        hint = f"name the overload too, such as {name}.default"
        findings.add(node, "POL121", f"{name!r} is an operator without its overload", hint)


def op_hint(value: object) -> str | None:
    """Suggest an op class or overload for something that is neither."""
    if not isinstance(value, str):
        return None
    if "::" in value:
        return f"write {value.replace('::', '.')}{'' if '.' in value.split('::')[-1] else '.default'}"
    if value.startswith("torch.ops."):
        return f"write {value.removeprefix('torch.ops.')}"
    return did_you_mean(value, OP_CLASSES)


def _overload_hint(name: str) -> str | None:
    namespace, stem, *_ = name.split(".")
    siblings = [known for known in overload_table() if known.startswith(f"{namespace}.{stem}.")]
    usable = [known for known in siblings if not known.split(".")[2].endswith("out")]
    if usable:
        return f"overloads of {namespace}.{stem}: {', '.join(usable[:8])}"
    return did_you_mean(
        name, (known for known in overload_table() if known.startswith(f"{namespace}.{stem[:3]}"))
    )
