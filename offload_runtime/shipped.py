"""Where shipped files are: policies by name, others by path, and the folder of the skills.

Findings name a shipped file ``policies/NAME/policy.yaml`` or ``skills/NAME/card.yaml`` wherever it is installed, so
that output does not depend on the machine.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from offload_runtime.errors import Diagnostic, UnreadableError
from offload_runtime.shape import did_you_mean

POLICY_FILE = "policy.yaml"
TEST_FILE = "cases.yaml"
_YAML_SUFFIXES = (".yaml", ".yml", ".json")


@lru_cache(maxsize=1)
def policies_directory() -> Path:
    """Return the folder of the shipped policies: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "policies"
    return installed if installed.is_dir() else package.parent / "policies"


@lru_cache(maxsize=1)
def skills_directory() -> Path:
    """Return the folder of the skills: in the installed package, where installers look, or beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / ".agents" / "skills"
    return installed if installed.is_dir() else package.parent / "skills"


def shipped_policies() -> tuple[str, ...]:
    """Return the names of the shipped policies, sorted."""
    directory = policies_directory()
    if not directory.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in directory.iterdir() if (entry / POLICY_FILE).is_file()))


def locate_policy(reference: str, *, beside: str | None = None) -> tuple[Path, str]:
    """Return the path of a policy, and the name by which findings call it.

    ``reference`` is a path (of a file, or of a folder with a policy.yaml) or the name of a shipped policy. A
    path is relative to the file ``beside``, if given. Raises UnreadableError when there is no such policy.
    """
    if not _is_path(reference):
        if reference in shipped_policies():
            return policies_directory() / reference / POLICY_FILE, f"policies/{reference}/{POLICY_FILE}"
        if not os.path.exists(reference):
            hint = did_you_mean(reference, shipped_policies())
            hint = (
                hint or f"shipped policies: {', '.join(shipped_policies())}; a path ends in .yaml or has a /"
            )
            raise UnreadableError(
                Diagnostic("YAML002", "error", f"there is no policy {reference!r}", hint=hint)
            )
    name = reference
    if beside is not None and not os.path.isabs(reference):
        name = os.path.normpath(os.path.join(os.path.dirname(beside), reference))
    path = find_source(name)
    if not os.path.isdir(path):
        return path, name
    if not os.path.exists(path / POLICY_FILE):
        hint = "a file of any other name is named itself"
        raise UnreadableError(
            Diagnostic("YAML002", "error", f"folder {name} has no {POLICY_FILE}", hint=hint)
        )
    return path / POLICY_FILE, os.path.join(name, POLICY_FILE)


def find_source(name: str) -> Path:
    """Return the path of the file that findings call ``name``."""
    path = Path(name)
    parts = path.parts
    shipped = {"policies": policies_directory, "skills": skills_directory}.get(parts[0]) if parts else None
    if len(parts) > 1 and shipped is not None and not os.path.exists(path):
        return shipped().joinpath(*parts[1:])
    return path


def shown_source(name: str) -> str:
    """Return what people are shown for the file that findings call ``name``.

    A shipped policy is ``policy NAME`` wherever no such path can be opened from here; all else is its path.
    """
    parts = Path(name).parts
    if len(parts) == 3 and (parts[0], parts[2]) == ("policies", POLICY_FILE) and not os.path.exists(name):
        return f"policy {parts[1]}"
    return name


def _is_path(reference: str) -> bool:
    return "/" in reference or os.sep in reference or reference.endswith(_YAML_SUFFIXES)
