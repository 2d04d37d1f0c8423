from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from offload_runtime.errors import OffloadError, PolicyError, UnreadableError
from offload_runtime.hardware import (
    Figure,
    HardwareProfile,
    hardware_document,
    hardware_names,
    list_hardware,
    load_hardware,
)
from offload_runtime.hardware_profile import FIGURES, REQUIRED_FIGURES, UNITS
from offload_runtime.shape import load_schema
from offload_runtime.step import LinkRates

ROOT = Path(__file__).parent.parent
SHIPPED = (
    "a100-pcie4",
    "gb200",
    "gh200",
    "h100-pcie5",
    "h100-sxm",
    "h200-pcie5",
    "rtx4090-pcie4",
)


def document(**sections: Any) -> dict[str, Any]:
    """The smallest document, and more figures in its sections: ``link={"duplex_share": (0.9, None)}``."""
    figures: dict[str, dict[str, Any]] = {
        "device": {"memory": (80, "GB")},
        "link": {"d2h": (32, "GB/s"), "h2d": (30, "GB/s")},
    }
    for section, members in sections.items():
        figures.setdefault(section, {}).update(members)
    data: dict[str, Any] = {
        "apiVersion": "offload/v1",
        "kind": "HardwareProfile",
        "name": "bench",
        "summary": "A machine.",
    }
    for section, members in figures.items():
        data[section] = {
            key: {"value": value, **({"unit": unit} if unit else {}), "source": "measured"}
            for key, (value, unit) in members.items()
        }
    return data


def findings(source: Any) -> list[tuple[str, str | None, str | None]]:
    with pytest.raises(OffloadError) as caught:
        load_hardware(source)
    return [(finding.code, finding.path, finding.hint) for finding in caught.value.diagnostics]


# The shipped profiles


def test_the_promised_profiles_are_shipped_under_the_names_of_their_files() -> None:
    assert hardware_names() == SHIPPED
    assert tuple(profile.name for profile in list_hardware()) == SHIPPED


@pytest.mark.parametrize("profile", list_hardware(), ids=lambda profile: profile.name)
def test_every_figure_of_a_shipped_profile_says_where_it_comes_from(profile: HardwareProfile) -> None:
    assert profile.summary.endswith(".")
    assert [figure.key for figure in profile.figures if len(figure.source) < 10] == []


@pytest.mark.parametrize("profile", list_hardware(), ids=lambda profile: profile.name)
def test_a_shipped_profile_has_what_a_plan_needs(profile: HardwareProfile) -> None:
    # Wide enough for any accelerator, tight enough to catch a wrong unit.
    assert 10e9 < profile.device_memory_bytes < 1e12
    link = profile.link()
    assert 10e6 < link.d2h_bytes_per_ms < 500e6
    assert 10e6 < link.h2d_bytes_per_ms < 500e6
    assert profile.hbm_bytes_per_ms is not None
    assert link.h2d_bytes_per_ms < profile.hbm_bytes_per_ms < 10e9
    rates = [profile.matmul_flops_per_ms(dtype) for dtype in ("bfloat16", "tfloat32", "float32")]
    known = [rate for rate in rates if rate is not None]
    assert len(known) == 3
    assert known == sorted(known, reverse=True)
    assert 10e9 < known[-1] < known[0] < 10e12


def test_the_link_of_the_h200_is_the_measured_one() -> None:
    link = load_hardware("h200-pcie5").link()
    assert link.d2h_bytes_per_ms == pytest.approx(55.3e6)
    assert link.h2d_bytes_per_ms == pytest.approx(55.5e6)
    both = (link.d2h_bytes_per_ms + link.h2d_bytes_per_ms) * link.duplex_share
    assert both == pytest.approx(101.8e6, rel=0.005)


@pytest.mark.parametrize(
    ("num_bytes", "measured_gbps"),
    [(64 << 10, 16), (1 << 20, 50), (4 << 20, 54)],
    ids=["64KiB", "1MiB", "4MiB"],
)
def test_small_copies_on_the_h200_are_as_slow_as_measured(num_bytes: int, measured_gbps: float) -> None:
    link = load_hardware("h200-pcie5").link()
    took_ms = link.latency_ms + num_bytes / link.d2h_bytes_per_ms
    assert num_bytes / took_ms / 1e6 == pytest.approx(measured_gbps, rel=0.05)


def test_c2c_of_the_gh200_is_asymmetric() -> None:
    link = load_hardware("gh200").link()
    assert link.h2d_bytes_per_ms > 2 * link.d2h_bytes_per_ms


def test_profiles_ship_in_the_wheel() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert wheel["packages"] == ["offload_runtime"]
    assert (ROOT / "offload_runtime/profiles/h200-pcie5.yaml").is_file()


# Reading


@pytest.mark.parametrize("profile", list_hardware(), ids=lambda profile: profile.name)
def test_a_profile_written_out_reads_back_as_itself(profile: HardwareProfile, tmp_path: Path) -> None:
    path = tmp_path / "measured.yaml"
    path.write_text(json.dumps(hardware_document(profile)))
    assert load_hardware(path) == profile
    assert load_hardware(str(path)) == profile
    assert load_hardware(hardware_document(profile)) == profile
    assert hash(load_hardware(path)) == hash(profile)


def test_a_name_that_does_not_exist_is_told_the_closest_one() -> None:
    assert findings("h200-pcie4") == [("HWP801", None, "did you mean h200-pcie5?")]
    ((_, _, hint),) = findings("mainframe")
    assert hint is not None
    assert hint.startswith("shipped profiles: a100-pcie4, ")


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        load_hardware(tmp_path / "none.yaml")


def test_what_a_file_says_wrong_is_found_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "apiVersion: offload/v1\n"
        "kind: HardwareProfile\n"
        "name: mine\n"
        "summary: Mine.\n"
        "device: {memory: {value: 80, unit: GB, source: datasheet}}\n"
        "link:\n"
        "  d2h: {value: 25, unit: GB/s, source: measured}\n"
        "  h2d: {value: 25, unit: Gbps, source: measured}\n"
        "  duplexshare: {value: 0.9, source: measured}\n"
    )
    with pytest.raises(PolicyError) as caught:
        load_hardware(path)
    assert [(d.code, d.line, d.column, d.hint) for d in caught.value.diagnostics] == [
        ("HWP803", 8, 26, "did you mean GB/s?"),
        ("POL100", 9, 3, "did you mean duplex_share?"),
    ]


@pytest.mark.parametrize(
    ("section", "figure", "code", "path", "hint"),
    [
        ("link", {"duplex_share": (92, None)}, "HWP802", "link.duplex_share.value", "write 0.92"),
        (
            "link",
            {"duplex_share": (0, None)},
            "HWP802",
            "link.duplex_share.value",
            "write a share between 0 and 1",
        ),
        (
            "link",
            {"d2h": (0, "GB/s")},
            "HWP802",
            "link.d2h.value",
            "write a number greater than 0, without its unit",
        ),
        ("link", {"d2h": (55, None)}, "POL101", "link.d2h", "add unit: ..."),
        ("link", {"d2h": (55, "gb/s")}, "HWP803", "link.d2h.unit", "did you mean GB/s?"),
        ("host", {"num_cores": (1.5, None)}, "HWP802", "host.num_cores.value", "write a whole number from 1"),
        ("host", {"num_cores": (16, "GB")}, "POL100", "host.num_cores.unit", "keys here: value, source"),
        (
            "device",
            {"matmul_bfloat16": (989, "TFLOPS")},
            "HWP803",
            "device.matmul_bfloat16.unit",
            "did you mean TFLOP/s?",
        ),
        (
            "device",
            {"hbm_reachable_share": (0.9, None)},
            "HWP804",
            "device.hbm_reachable_share",
            "give hbm_rate, or leave the share out",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_figure_that_cannot_be_is_refused_with_a_hint(
    section: str, figure: dict[str, Any], code: str, path: str, hint: str
) -> None:
    assert findings(document(**{section: figure})) == [(code, path, hint)]


@pytest.mark.parametrize("key", REQUIRED_FIGURES)
def test_memory_and_both_rates_of_the_link_are_required(key: str) -> None:
    section, _, name = key.partition(".")
    data = document()
    del data[section][name]
    assert [finding[0] for finding in findings(data)] == ["POL101"]
    figures = tuple(f for f in load_hardware(document()).figures if f.key != key)
    with pytest.raises(ValueError, match=key):
        HardwareProfile("mine", "Mine.", figures)


def test_the_schema_names_the_figures_and_units_of_the_code() -> None:
    schema = load_schema("hardware")
    stated: dict[str, list[str]] = {}
    for section in ("device", "link", "host", "prediction"):
        for name, member in schema["properties"][section]["properties"].items():
            definition = schema["definitions"][member["$ref"].rpartition("/")[2]]
            stated[f"{section}.{name}"] = definition["properties"].get("unit", {}).get("enum", [])
    assert stated == {key: list(UNITS[quantity]) for key, quantity in FIGURES.items()}
    assert list(stated) == list(FIGURES)


@pytest.mark.parametrize(
    "data", [document(), document(host={"memory": (2, "TB")}), document(link={"d2h": (0, "GB/s")})]
)
def test_the_schema_and_the_reader_agree(data: dict[str, Any]) -> None:
    valid = jsonschema.Draft7Validator(load_schema("hardware")).is_valid(data)
    try:
        load_hardware(data)
    except PolicyError:
        assert not valid
    else:
        assert valid


# What a planner asks


def test_units_are_converted_to_bytes_and_milliseconds() -> None:
    profile = load_hardware(
        document(
            device={"hbm_rate": (2, "TB/s"), "kernel_launch": (4, "us"), "matmul_bfloat16": (300, "TFLOP/s")},
            link={"copy_latency": (10, "us")},
            host={
                "memory": (1, "TiB"),
                "num_ranks": (4, None),
                "adamw_rate": (4.6, "Gparam/s"),
                "dram_rate": (200, "GB/s"),
            },
        )
    )
    assert profile.device_memory_bytes == 80 * 10**9
    assert profile.hbm_bytes_per_ms == pytest.approx(2e9)
    assert profile.launch_ms == pytest.approx(0.004)
    assert profile.matmul_flops_per_ms("bfloat16") == pytest.approx(300e9)
    assert profile.link() == LinkRates(32e6, 30e6, latency_ms=0.01)
    assert profile.host_memory_bytes == 1 << 40
    assert profile.host_limit_bytes == int((1 << 40) * 0.8 / 4)
    assert profile.adamw_parameters_per_ms == pytest.approx(4.6e6)
    assert profile.host_dram_bytes_per_ms == pytest.approx(200e6)


def test_what_nobody_knows_is_none() -> None:
    profile = load_hardware(document())
    assert profile.hbm_bytes_per_ms is None
    assert profile.launch_ms is None
    assert profile.host_limit_bytes is None
    assert profile.num_cores is None
    assert profile.adamw_parameters_per_ms is None
    assert profile.host_dram_bytes_per_ms is None
    assert profile.matmul_flops_per_ms("bfloat16") is None
    assert profile.attention_flops_per_ms("bfloat16") is None
    assert profile.figure("host.memory") is None
    assert profile.link() == LinkRates(32e6, 30e6)


def test_a_reachable_share_scales_the_rate_and_its_absence_means_that_the_rate_was_reached() -> None:
    theory = document(device={"matmul_bfloat16": (1000, "TFLOP/s"), "matmul_reachable_share": (0.75, None)})
    measured = document(device={"matmul_bfloat16": (750, "TFLOP/s")})
    for data in (theory, measured):
        assert load_hardware(data).matmul_flops_per_ms("bfloat16") == pytest.approx(750e9)


def test_attention_is_a_share_of_the_theoretical_rate_in_16_bits_only() -> None:
    profile = load_hardware(
        document(
            device={
                "matmul_bfloat16": (1000, "TFLOP/s"),
                "matmul_float32": (60, "TFLOP/s"),
                "matmul_reachable_share": (0.75, None),
                "attention_forward_share": (0.7, None),
                "attention_backward_share": (0.5, None),
            }
        )
    )
    assert profile.attention_flops_per_ms("bfloat16") == pytest.approx(700e9)
    assert profile.attention_flops_per_ms("bfloat16", backward=True) == pytest.approx(500e9)
    assert profile.attention_flops_per_ms("float32") is None
    assert profile.attention_flops_per_ms("float16") is None


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8"])
def test_all_float8_dtypes_share_one_rate(dtype: str) -> None:
    profile = load_hardware(document(device={"matmul_float8": (2000, "TFLOP/s")}))
    assert profile.matmul_flops_per_ms(dtype) == pytest.approx(2000e9)


def test_ranks_that_share_a_root_complex_share_its_rates() -> None:
    profile = load_hardware(document(link={"ranks_per_root_complex": (2, None)}))
    assert [profile.link(num_ranks=n).d2h_bytes_per_ms for n in (1, 2, 8)] == [32e6, 16e6, 16e6]


def test_a_link_that_crosses_numa_nodes_keeps_its_share_of_the_rates() -> None:
    profile = load_hardware(document(link={"numa_share": (0.5, None)}))
    assert profile.link(crosses_numa=True) == dataclasses.replace(
        profile.link(), d2h_bytes_per_ms=16e6, h2d_bytes_per_ms=15e6
    )


def test_figures_stand_in_one_order_so_that_equal_profiles_are_equal() -> None:
    profile = load_hardware("h200-pcie5")
    assert HardwareProfile(profile.name, profile.summary, profile.figures[::-1]) == profile


def test_a_figure_built_wrongly_is_refused() -> None:
    with pytest.raises(ValueError, match="is no figure"):
        Figure("device.weight", 1, None, "measured")
    with pytest.raises(ValueError, match="has unit 'GB'"):
        Figure("link.d2h", 1, "GB", "measured")
    with pytest.raises(ValueError, match="has unit 'GB'"):
        Figure("link.duplex_share", 1, "GB", "measured")
    with pytest.raises(KeyError):
        load_hardware("gh200").figure("device.weight")


@pytest.mark.parametrize("num_bytes", [80_000_000_000, 80 << 30, 1, 12_345_678_901])
def test_the_memory_of_a_profile_can_be_replaced_exactly(num_bytes: int) -> None:
    profile = load_hardware("h200-pcie5")
    smaller = profile.with_device_memory(num_bytes)
    assert smaller.device_memory_bytes == num_bytes
    assert (profile.has_given_memory, smaller.has_given_memory) == (False, True)
    assert smaller.figures[1:] == profile.figures[1:]
