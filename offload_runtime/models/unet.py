"""A denoising U-Net in plain PyTorch: convolutions, group norm, skips from down blocks to up blocks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offload_runtime.models.configs import UNetConfig


class ResidualBlock(nn.Module):
    """Two normalised convolutions around the time embedding, beside a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, config: UNetConfig) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(config.num_groups, in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.time_proj = nn.Linear(config.time_dim, out_channels)
        self.norm2 = nn.GroupNorm(config.num_groups, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return ``[batch, out_channels, height, width]``; ``time`` is ``[batch, time_dim]``."""
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = hidden + self.time_proj(time)[:, :, None, None]
        output: Tensor = self.conv2(F.silu(self.norm2(hidden))) + self.shortcut(x)
        return output


class DownBlock(nn.Module):
    """A residual block, then half the resolution; the block's output is the skip."""

    def __init__(self, in_channels: int, out_channels: int, config: UNetConfig) -> None:
        super().__init__()
        self.residual = ResidualBlock(in_channels, out_channels, config)
        self.downsample = nn.Conv2d(out_channels, out_channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return the halved output and the skip."""
        skip = self.residual(x, time)
        return self.downsample(skip), skip


class UpBlock(nn.Module):
    """Twice the resolution, then a residual block over the input beside the skip."""

    def __init__(self, in_channels: int, skip_channels: int, out_channels: int, config: UNetConfig) -> None:
        super().__init__()
        self.residual = ResidualBlock(in_channels + skip_channels, out_channels, config)

    def forward(self, x: Tensor, skip: Tensor, time: Tensor) -> Tensor:
        """Return a tensor of the resolution of ``skip``."""
        output: Tensor = self.residual(torch.cat((_double(x), skip), dim=1), time)
        return output


def _double(x: Tensor) -> Tensor:
    """Repeat each pixel to a square of four; its backward is a sum, bitwise repeatable on every device."""
    batch, channels, height, width = x.shape
    wide = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
    return wide.reshape(batch, channels, 2 * height, 2 * width)


class UNet(nn.Module):
    """A U-Net whose layers are ``down_blocks.0`` ..., then ``up_blocks.0`` ...

    Its loss is part of the module: the mean squared error of the noise that was added.
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        widths = config.channels
        self.time_mlp = nn.Linear(config.time_dim, config.time_dim)
        self.conv_in = nn.Conv2d(config.image_channels, widths[0], 3, padding=1)
        self.down_blocks = nn.ModuleList(
            DownBlock(before, width, config)
            for before, width in zip((widths[0], *widths), widths, strict=False)
        )
        self.mid_block = ResidualBlock(widths[-1], widths[-1], config)
        backwards = widths[::-1]
        self.up_blocks = nn.ModuleList(
            UpBlock(before, width, width, config)
            for before, width in zip((backwards[0], *backwards), backwards, strict=False)
        )
        self.norm_out = nn.GroupNorm(config.num_groups, widths[0])
        self.conv_out = nn.Conv2d(widths[0], config.image_channels, 3, padding=1)

    def forward(self, images: Tensor, timesteps: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the loss of predicting ``noise``, or the prediction where there is none.

        ``images`` and ``noise`` are ``[batch, channels, size, size]``, ``timesteps`` is ``[batch]`` in [0,
        1].
        """
        time = F.silu(self.time_mlp(_time_embedding(timesteps, self.config.time_dim).to(images.dtype)))
        x = self.conv_in(images)
        skips: list[Tensor] = []
        for down in self.down_blocks:
            x, skip = down(x, time)
            skips.append(skip)
        x = self.mid_block(x, time)
        for up in self.up_blocks:
            x = up(x, skips.pop(), time)
        predicted: Tensor = self.conv_out(F.silu(self.norm_out(x)))
        if noise is None:
            return predicted
        return F.mse_loss(predicted.float(), noise.float())

    def init_weights(self) -> None:
        """Fill every parameter in place from torch's default generator, as the layers themselves would."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear | nn.GroupNorm):
                module.reset_parameters()


def _time_embedding(timesteps: Tensor, dim: int) -> Tensor:
    half = dim // 2
    index = torch.arange(half, dtype=torch.float32, device=timesteps.device)
    angle = 1000 * timesteps.float()[:, None] * torch.exp(-math.log(10_000) / half * index)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)
