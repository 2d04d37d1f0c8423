"""Module names as a model's author knows them, out of the sources that Dynamo records."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import fx

__all__ = ["module_of_node", "normalise_fqn"]

# L['self'].model.layers.0 | L['args'][0].model | L['self'].__dict__['_modules']['down_blocks'].0 | G['net'].block
_TOKEN = re.compile(r"""\[['"](?P<key>[^'"]+)['"]\]|\[(?P<index>\d+)\]|(?P<name>[A-Za-z_0-9]+)""")
_WRAPPERS = frozenset(
    {
        "__dict__",
        "_modules",
        "_parameters",
        "_buffers",
        "_orig_mod",
        "_fsdp_wrapped_module",
        "_fpw_module",
        "_checkpoint_wrapped_module",
    }
)


def normalise_fqn(path: str) -> str:
    """Return the fully qualified module name for a path of ``nn_module_stack``; the root is the empty string.

    Drops Dynamo's source (``L['self']``, ``L['args'][0]``, ``G['model']``) and the wrappers of compile, FSDP and
    activation checkpointing. A bare name (``layers.0``) is returned as it is.
    """
    tokens = list(_tokens(path))
    if tokens and re.match(r"[LG]\[", path):
        source = tokens[1] if len(tokens) > 1 else ""
        tokens = tokens[2:]
        # Only a bound method's arguments hide the module behind an index; L['blocks'][3] is a real element.
        if source == "args" and tokens and tokens[0].isdigit():
            tokens = tokens[1:]
    return ".".join(token for token in tokens if token not in _WRAPPERS)


def module_of_node(node: fx.Node) -> str | None:
    """Return the module that a node was traced in, a backward node that of its forward node; None if unknown.

    Where nothing recorded a module stack, the name counts that torchtitan's ``annotate_module_fqns`` leaves.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if stack:
        return normalise_fqn(next(reversed(stack.values()))[0])
    annotated = (node.meta.get("custom") or {}).get("module_fqn")
    return normalise_fqn(annotated) if annotated is not None else None


def _tokens(path: str) -> Iterable[str]:
    for match in _TOKEN.finditer(path):
        yield match["key"] or match["index"] or match["name"]
