"""Hardware profiles: what a planner has to know about a machine, each figure with its unit and its source.

A profile is a strict YAML file of ``kind: HardwareProfile`` (schema: ``schemas/hardware.schema.json``)::

    link:
      d2h: {value: 55.3, unit: GB/s, source: "pinned copies measured on an H200"}

A figure that nobody measured or published is absent, and its property is None: nothing is guessed. A measuring
command writes the same form (:func:`hardware_document`); :mod:`offload_runtime.hardware` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from offload_runtime.step import LinkRates
from offload_runtime.units import UNIT_BYTES

__all__ = ["FIGURES", "UNITS", "Figure", "HardwareProfile", "PredictionError", "hardware_document"]

HOST_SHARE = 0.8
GIVEN = "given in place of what the profile says"

# What one unit is worth: bytes, bytes/ms, FLOP/ms, ms, parameters/ms. Shares and counts have none.
UNITS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "size": {unit: UNIT_BYTES[unit] for unit in ("MB", "MiB", "GB", "GiB", "TB", "TiB")},
        "rate": {"GB/s": 1e6, "TB/s": 1e9},
        "compute": {"TFLOP/s": 1e9},
        "time": {"us": 1e-3, "ms": 1.0},
        "updates": {"Gparam/s": 1e6},
        "share": {},
        "count": {},
    }
)

# Every figure of a profile, in the order of its file, and its quantity (a key of UNITS).
FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "device.memory": "size",
        "device.workspace": "size",
        "device.hbm_rate": "rate",
        "device.hbm_reachable_share": "share",
        "device.matmul_bfloat16": "compute",
        "device.matmul_float16": "compute",
        "device.matmul_float32": "compute",
        "device.matmul_tfloat32": "compute",
        "device.matmul_float8": "compute",
        "device.matmul_reachable_share": "share",
        "device.grouped_matmul_share": "share",
        "device.attention_forward_share": "share",
        "device.attention_backward_share": "share",
        "device.kernel_launch": "time",
        "link.d2h": "rate",
        "link.h2d": "rate",
        "link.duplex_share": "share",
        "link.copy_latency": "time",
        "link.contention_share": "share",
        "link.numa_share": "share",
        "link.ranks_per_root_complex": "count",
        "host.memory": "size",
        "host.num_ranks": "count",
        "host.num_cores": "count",
        "host.dram_rate": "rate",
        "host.adamw_rate": "updates",
        "prediction.ratio_error": "share",
        "prediction.step_error": "share",
        "prediction.num_runs": "count",
    }
)
REQUIRED_FIGURES = ("device.memory", "link.d2h", "link.h2d")
_ORDER = {key: position for position, key in enumerate(FIGURES)}
_ATTENTION_DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure as its file states it; ``key`` is its place there, such as ``link.d2h``.

    ``unit`` is None for shares and counts. Raises ValueError for a key or unit that does not exist.
    """

    key: str
    value: float
    unit: str | None
    source: str

    def __post_init__(self) -> None:
        if self.key not in FIGURES:
            raise ValueError(f"{self.key!r} is no figure of a hardware profile: {', '.join(FIGURES)}")
        units = UNITS[FIGURES[self.key]]
        if self.unit not in units and (units or self.unit is not None):
            raise ValueError(f"{self.key} has unit {self.unit!r}: {', '.join(units) or 'None'}")

    @property
    def amount(self) -> float:
        """The value in bytes, bytes/ms, FLOP/ms, ms or parameters/ms; a share or count as it is."""
        return self.value if self.unit is None else self.value * UNITS[FIGURES[self.key]][self.unit]

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}" if self.unit is not None else f"{self.value:g}"


@dataclass(frozen=True)
class PredictionError:
    """How far predicted times were off at worst, in ``num_runs`` runs that were measured, in mode ``inductor``.

    ``ratio`` is the distance of the predicted ratio of two steps, with a policy and without, from the measured one;
    ``step`` that of a predicted step time from the measured one, as a share of it.
    """

    ratio: float
    step: float
    num_runs: int


@dataclass(frozen=True)
class HardwareProfile:
    """What a planner has to know about one device, its link and its host.

    ``figures`` stand in the order of ``FIGURES``, however they were given. Raises ValueError where one stands
    twice, or the device's memory or a rate of the link is missing.
    """

    name: str
    summary: str
    figures: tuple[Figure, ...]

    def __post_init__(self) -> None:
        keys = [figure.key for figure in self.figures]
        missing = [key for key in REQUIRED_FIGURES if key not in keys]
        if missing or len(set(keys)) != len(keys):
            raise ValueError(
                f"profile {self.name!r}: {', '.join(missing) or 'a figure'} missing or given twice"
            )
        object.__setattr__(
            self, "figures", tuple(sorted(self.figures, key=lambda figure: _ORDER[figure.key]))
        )

    def figure(self, key: str) -> Figure | None:
        """Return the figure with its source, None where the profile has none; KeyError for no figure's key."""
        if key not in FIGURES:
            raise KeyError(key)
        return self._by_key.get(key)

    @cached_property
    def _by_key(self) -> Mapping[str, Figure]:
        return {figure.key: figure for figure in self.figures}

    def _amount(self, key: str) -> float | None:
        figure = self.figure(key)
        return None if figure is None else figure.amount

    def _required(self, key: str) -> float:
        return self._by_key[key].amount

    def _share(self, key: str) -> float:
        """Return a reachable share; a rate without one is a rate that was reached."""
        share = self._amount(key)
        return 1.0 if share is None else share

    def _count(self, key: str) -> int:
        return int(self._amount(key) or 1)

    # The device

    @property
    def device_memory_bytes(self) -> int:
        """Device memory that torch can hand out, in bytes."""
        return round(self._required("device.memory"))

    @property
    def has_given_memory(self) -> bool:
        """Tell whether the device's memory is not the profile's own, but what somebody gave instead."""
        return self._by_key["device.memory"].source == GIVEN

    def with_device_memory(self, num_bytes: int) -> HardwareProfile:
        """Return the profile of such a device with ``num_bytes`` of memory: a smaller one, or a part of this one."""
        memory = Figure("device.memory", num_bytes / UNIT_BYTES["MiB"], "MiB", GIVEN)
        others = (figure for figure in self.figures if figure.key != memory.key)
        return replace(self, figures=(memory, *others))

    @property
    def workspace_bytes(self) -> int:
        """Device memory that libraries (cuBLAS, cuDNN) hold throughout; 0 where nothing is known."""
        return round(self._amount("device.workspace") or 0)

    @property
    def hbm_bytes_per_ms(self) -> float | None:
        """Rate at which kernels reach device memory, in bytes per millisecond."""
        rate = self._amount("device.hbm_rate")
        return None if rate is None else rate * self._share("device.hbm_reachable_share")

    @property
    def launch_ms(self) -> float | None:
        """What one kernel launch adds on the compute stream, in milliseconds."""
        return self._amount("device.kernel_launch")

    def matmul_flops_per_ms(self, dtype: str) -> float | None:
        """Return the FLOP per millisecond that large matmuls reach in ``dtype``; None where nothing is known.

        ``dtype`` is torch's name without ``torch.``; ``float32`` means TF32 off, ``tfloat32`` float32 with TF32
        on; all ``float8_*`` share one figure.
        """
        rate = self._theoretical(dtype)
        return None if rate is None else rate * self._share("device.matmul_reachable_share")

    @property
    def grouped_matmul_share(self) -> float:
        """Rate of grouped matmuls (experts) as a share of that of large ones; 1 where nothing is known."""
        return self._amount("device.grouped_matmul_share") or 1.0

    def attention_flops_per_ms(self, dtype: str, *, backward: bool = False) -> float | None:
        """Return the FLOP per millisecond that fused attention reaches; None where nothing is known.

        Known for 16-bit dtypes only: other dtypes run on other kernels.
        """
        share = self._amount(f"device.attention_{'backward' if backward else 'forward'}_share")
        rate = self._theoretical(dtype) if dtype in _ATTENTION_DTYPES else None
        return None if rate is None or share is None else rate * share

    def _theoretical(self, dtype: str) -> float | None:
        key = f"device.matmul_{'float8' if dtype.startswith('float8') else dtype}"
        return self._amount(key) if key in FIGURES else None

    # The link

    def link(self, *, num_ranks: int = 1, crosses_numa: bool = False) -> LinkRates:
        """Return the rates of the link, for a rank that copies while ``num_ranks`` ranks of the host do.

        Ranks that share a root complex share its rates; ``crosses_numa`` is for pinned memory on another node
        than the device's. What the profile does not know is left at its ideal: full duplex, no latency, no contention.
        """
        share = 1 / min(max(num_ranks, 1), self._count("link.ranks_per_root_complex"))
        if crosses_numa:
            share *= self._share("link.numa_share")
        return LinkRates(
            d2h_bytes_per_ms=self._required("link.d2h") * share,
            h2d_bytes_per_ms=self._required("link.h2d") * share,
            latency_ms=self._amount("link.copy_latency") or 0.0,
            duplex_share=self._share("link.duplex_share"),
            contention=self._amount("link.contention_share") or 0.0,
        )

    # The host

    @property
    def num_ranks(self) -> int:
        """Ranks (devices) that share the host; 1 where the profile does not say."""
        return self._count("host.num_ranks")

    @property
    def num_cores(self) -> int | None:
        """Cores of the host."""
        cores = self._amount("host.num_cores")
        return None if cores is None else int(cores)

    @property
    def host_memory_bytes(self) -> int | None:
        """Memory of the host, in bytes."""
        memory = self._amount("host.memory")
        return None if memory is None else round(memory)

    @property
    def host_limit_bytes(self) -> int | None:
        """Host bytes that one rank may pin unless a policy says otherwise: 80 % of the memory, shared by the ranks."""
        memory = self.host_memory_bytes
        return None if memory is None else int(memory * HOST_SHARE / self.num_ranks)

    @property
    def host_dram_bytes_per_ms(self) -> float | None:
        """Rate of the host's memory, all sockets together, in bytes per millisecond."""
        return self._amount("host.dram_rate")

    @property
    def adamw_parameters_per_ms(self) -> float | None:
        """Parameters per millisecond that AdamW updates on one rank's share of the host's cores."""
        return self._amount("host.adamw_rate")

    # How far predictions with this profile were off

    @property
    def prediction_error(self) -> PredictionError | None:
        """The worst errors of predicted times against runs; None where no run was compared, or a figure is missing."""
        ratio, step = self._amount("prediction.ratio_error"), self._amount("prediction.step_error")
        number = self._amount("prediction.num_runs")
        if ratio is None or step is None or number is None:
            return None
        return PredictionError(ratio, step, int(number))


def hardware_document(profile: HardwareProfile) -> dict[str, Any]:
    """Return the profile as the plain data of its file; reading it gives an equal profile."""
    document: dict[str, Any] = {
        "apiVersion": "offload/v1",
        "kind": "HardwareProfile",
        "name": profile.name,
        "summary": profile.summary,
    }
    for figure in profile.figures:
        section, _, name = figure.key.partition(".")
        unit = {} if figure.unit is None else {"unit": figure.unit}
        document.setdefault(section, {})[name] = {"value": figure.value, **unit, "source": figure.source}
    return document
