"""Copy the skills of the package to where an agent looks for skills.

What is copied is what an agent reads: SKILL.md, card.yaml and references; evals stay behind, since they hold wrong
answers on purpose. A file of other contents in the way is never overwritten unasked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from errno import ENOTDIR
from pathlib import Path
from types import MappingProxyType

from offload_runtime.errors import Diagnostic, RefusedError, UsageError
from offload_runtime.skills_catalog import Skill

__all__ = ["CLIENT_FOLDERS", "InstalledSkill", "install_skills"]

# Folders of a project in which each client looks for skills, as the table of the npm package skills 1.5.0 has them.
CLIENT_FOLDERS: Mapping[str, str] = MappingProxyType(
    {
        "amp": ".agents/skills",
        "claude": ".claude/skills",
        "cline": ".agents/skills",
        "codex": ".agents/skills",
        "cursor": ".agents/skills",
        "gemini": ".agents/skills",
        "github-copilot": ".agents/skills",
        "goose": ".goose/skills",
        "junie": ".junie/skills",
        "opencode": ".agents/skills",
        "openhands": ".openhands/skills",
        "windsurf": ".windsurf/skills",
    }
)
_LEFT_BEHIND = "evals/"


@dataclass(frozen=True, slots=True)
class InstalledSkill:
    """One skill and what became of its files: how many were written, and how many were there already."""

    name: str
    folder: str
    num_written: int
    num_unchanged: int


def install_skills(
    skills: Sequence[Skill], target: Path, *, force: bool = False
) -> tuple[InstalledSkill, ...]:
    """Copy ``skills`` below ``target``, which is made where it does not exist; a second time changes nothing.

    Nothing is written unless everything can be: raises RefusedError (CRD602) for files of other contents in the
    way, unless ``force`` replaces them, and UsageError (CRD604) where the folder cannot be written.
    """
    files = {skill.name: _contents(skill) for skill in skills}
    for name in files:
        _refuse_what_is_no_folder(target / name)
    in_the_way = [
        Path(name, file).as_posix()
        for name, contents in files.items()
        for file, content in contents.items()
        if _is_other(target / name / file, content)
    ]
    if in_the_way and not force:
        raise RefusedError(
            *(
                Diagnostic(
                    "CRD602",
                    "error",
                    f"{(target / file).as_posix()} has other contents",
                    hint="look at it; --force replaces it",
                )
                for file in in_the_way
            )
        )
    return tuple(_install(name, contents, target) for name, contents in files.items())


def _refuse_what_is_no_folder(folder: Path) -> None:
    for path in (*reversed(folder.parents), folder):
        if os.path.lexists(path) and not os.path.isdir(path):
            raise _unwritable(path, NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR)))


def _contents(skill: Skill) -> dict[str, bytes]:
    files = (file for file in skill.files() if not file.startswith(_LEFT_BEHIND))
    return {file: skill.path(file).read_bytes() for file in files}


def _is_other(path: Path, content: bytes) -> bool:
    try:
        return os.path.lexists(path) and (not os.path.isfile(path) or path.read_bytes() != content)
    except OSError:
        return True  # there, and not to be read: whatever it holds, it is not seen to be the same


def _install(name: str, contents: Mapping[str, bytes], target: Path) -> InstalledSkill:
    num_written = 0
    for file, content in contents.items():
        path = target / name / file
        try:
            if os.path.isfile(path) and path.read_bytes() == content:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise _unwritable(path, error) from error
        num_written += 1
    return InstalledSkill(name, (target / name).as_posix(), num_written, len(contents) - num_written)


def _unwritable(path: Path, error: OSError) -> UsageError:
    message = f"{path.as_posix()} cannot be written: {error.strerror or error}"
    return UsageError(Diagnostic("CRD604", "error", message, hint="name a folder that may be written to"))
