"""The colours of one picture differ for every kind of sight."""

from __future__ import annotations

import itertools

import pytest

from offload_runtime.reporting.plots import (
    style,
)

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as it looks without one kind of cone.
SEEN = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "trichromacy": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
}
TOGETHER = {
    "fates": tuple(style.FATES.values()),
    "timeline": (style.COMPUTE[0], style.OUTSIDE, style.D2H, style.H2D, style.WARNING),
    "memory": (style.BEFORE, style.AFTER, style.WARNING),
    "frontier": (style.AFTER, style.INK, style.WARNING, *style.RIVALS),
}


def lab(colour: str, matrix) -> tuple[float, float, float]:
    """Return CIE L*a*b* of an sRGB colour seen through ``matrix``."""
    srgb = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in srgb]
    seen = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True)))) for row in matrix]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(a * b for a, b in zip(row, seen, strict=True)) for row in to_xyz]
    x, y, z = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116
        for part in (part / white for part, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sight", SEEN)
@pytest.mark.parametrize("picture", TOGETHER)
def test_colours_of_one_picture_are_told_apart_by_every_kind_of_sight(picture: str, sight: str) -> None:
    pairs = itertools.combinations(TOGETHER[picture], 2)
    distances = {
        (one, other): sum(
            (a - b) ** 2 for a, b in zip(lab(one, SEEN[sight]), lab(other, SEEN[sight]), strict=True)
        )
        ** 0.5
        for one, other in pairs
    }
    assert {pair: round(distance) for pair, distance in distances.items() if distance < 15} == {}
