"""Training data: real text bytes and smooth images, the same for the same seed and step on every machine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from importlib import resources

import torch
from torch import Tensor

from offload_runtime.models.construction import refuse_if_short


@cache
def corpus() -> bytes:
    """Return the English text that the byte-level models read: the project's licence."""
    return resources.files("offload_runtime.models").joinpath("data", "corpus.txt").read_bytes()


def text_rows(step: int, *, batch: int, length: int, seed: int) -> list[bytes]:
    """Return ``batch`` passages of ``length`` bytes, drawn by ``seed`` and ``step``; the text is a ring."""
    text = corpus()
    draw = random.Random(f"{seed}/{step}")
    starts = [draw.randrange(len(text)) for _ in range(batch)]
    repeats = length // len(text) + 2
    return [(text * repeats)[start : start + length] for start in starts]


@dataclass(frozen=True)
class TextBatches:
    """Batches ``(tokens, targets)``, both int64 ``[batch, seq]``; targets are the tokens one place later."""

    batch: int
    seq: int
    vocab_size: int
    device: torch.device
    seed: int

    def __post_init__(self) -> None:
        """Refuse a batch whose tokens alone do not fit on this host, before anything builds them."""
        refuse_if_short(f"a batch of {self.batch} x {self.seq} tokens", 2 * 8 * self.batch * (self.seq + 1))

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the batch of ``step``."""
        rows = text_rows(step, batch=self.batch, length=self.seq + 1, seed=self.seed)
        return self.tokens([row[:-1] for row in rows]), self.tokens([row[1:] for row in rows])

    def tokens(self, rows: list[bytes]) -> Tensor:
        """Return one token for each byte; a vocabulary below 256 folds the bytes into it."""
        ids = [[byte % self.vocab_size for byte in row] for row in rows]
        return torch.tensor(ids, dtype=torch.int64, device=self.device)


def smooth_images(
    step: int, *, batch: int, channels: int, size: int, dtype: torch.dtype, device: torch.device, seed: int
) -> Tensor:
    """Return random images of soft blobs, ``[batch, channels, size, size]``, about unit variance."""
    coarse = normal(
        (batch, channels, 4, 4), step=step, stream="images", dtype=dtype, device=device, seed=seed
    )
    images = torch.nn.functional.interpolate(coarse.float(), size=(size, size), mode="bilinear")
    return images.to(dtype)


def normal(
    shape: tuple[int, ...],
    *,
    step: int,
    stream: str,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
) -> Tensor:
    """Return normal random numbers that depend on ``seed``, ``step`` and the name ``stream`` only.

    They are drawn on the CPU, so that every device sees the same, except on the meta device, which holds
    none.
    """
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random.Random(f"{seed}/{step}/{stream}").getrandbits(63))
        return torch.randn(shape).to(device=device, dtype=dtype)


@dataclass(frozen=True)
class DenoisingBatches:
    """Batches ``(noisy images, timesteps, noise)`` for a U-Net: images mixed with noise by the timestep."""

    batch: int
    channels: int
    size: int
    dtype: torch.dtype
    device: torch.device
    seed: int

    def __call__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the batch of ``step``."""
        images = smooth_images(
            step,
            batch=self.batch,
            channels=self.channels,
            size=self.size,
            dtype=self.dtype,
            device=self.device,
            seed=self.seed,
        )
        shape = (self.batch, self.channels, self.size, self.size)
        noise = normal(shape, step=step, stream="noise", dtype=self.dtype, device=self.device, seed=self.seed)
        draw = random.Random(f"{self.seed}/{step}/timesteps")
        timesteps = torch.tensor(
            [draw.random() for _ in range(self.batch)], dtype=torch.float32, device=self.device
        )
        share = timesteps.to(self.dtype)[:, None, None, None]
        return (1 - share) * images + share * noise, timesteps, noise


@dataclass(frozen=True)
class SameLabels:
    """Batches ``(tokens, tokens)`` for a model that shifts its labels itself."""

    text: TextBatches

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the batch of ``step``."""
        tokens, _ = self.text(step)
        return tokens, tokens.clone()


@dataclass(frozen=True)
class ImageBatches:
    """Batches ``(images, labels)`` for a classifier; labels are int64 ``[batch]``."""

    batch: int
    channels: int
    size: int
    num_classes: int
    dtype: torch.dtype
    device: torch.device
    seed: int

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the batch of ``step``."""
        images = smooth_images(
            step,
            batch=self.batch,
            channels=self.channels,
            size=self.size,
            dtype=self.dtype,
            device=self.device,
            seed=self.seed,
        )
        draw = random.Random(f"{self.seed}/{step}/labels")
        labels = [draw.randrange(self.num_classes) for _ in range(self.batch)]
        return images, torch.tensor(labels, dtype=torch.int64, device=self.device)
