"""Pictures as files: PNG or SVG by the suffix, the same bytes for the same figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.reporting.plots.style import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PictureFormat", "picture_format", "write_figure"]

PictureFormat = Literal["png", "svg"]


def picture_format(path: Path) -> PictureFormat:
    """Return the format that the suffix of ``path`` asks for; raises UsageError (CLI621) for any other suffix."""
    match path.suffix.lower():
        case ".png":
            return "png"
        case ".svg":
            return "svg"
    raise UsageError(
        Diagnostic(
            "CLI621",
            "error",
            f"{path.name} is no picture that can be written: pictures are .png or .svg",
            hint=f"name it {path.stem}.png or {path.stem}.svg",
        )
    )


def write_figure(figure: Figure, path: Path | str, *, source: str = "") -> None:
    """Write ``figure`` as PNG or SVG, by the suffix of ``path``; the same figure gives the same bytes.

    ``source`` says in the file what it was drawn from.

    Raises UsageError for another suffix (CLI621), and where the file cannot be written (CLI622).
    """
    path = Path(path)
    kind = picture_format(path)
    title = next((axes.get_title(loc="left") for axes in figure.axes), "").replace("\n", " ")
    metadata: dict[str, Any] = {"Title": title or None, "Source": source or None}
    metadata |= (
        {"Creator": "offload-runtime", "Date": None} if kind == "svg" else {"Software": "offload-runtime"}
    )
    with drawing():
        try:
            figure.savefig(
                path, format=kind, metadata={k: v for k, v in metadata.items() if v or k == "Date"}
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(
                Diagnostic(
                    "CLI622",
                    "error",
                    f"{path} cannot be written: {reason}",
                    hint="name a file in a folder that exists and may be written to",
                )
            ) from error
