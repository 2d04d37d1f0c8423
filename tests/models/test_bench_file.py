"""Result files: written whole, read back as they were, refused by name where they are none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from offload_runtime.errors import RunError, UnreadableError
from offload_runtime.models.bench_file import (
    check_output,
    read_result,
    result_data,
    result_from_data,
    write_result,
)
from offload_runtime.models.bench_result import BenchResult
from offload_runtime.shape import load_schema
from tests.models.bench_results import bench_result, with_rounds

MEASURED = with_rounds(
    bench_result("base", "one", "two", num_rounds=5),
    {"base": ([10.0, 12.5], 100), "one": ([11.0, 11.25], 50), "base again": ([11.0, 11.0], 100)},
    {"base": ([10.0, 12.0], 100), "base again": ([11.0, 11.0], 100)},
).with_side(replace(bench_result("two").side("two"), refused="BEN931 not to be had"))
SIMULATED = replace(
    with_rounds(bench_result("base", num_rounds=1), {"base": (None, 100), "base again": (None, None)}),
    device="cpu",
    environment=replace(
        MEASURED.environment, gpu=None, gpu_bytes=None, driver=None, link_gen=None, link_width=None
    ),
)


@pytest.mark.parametrize("result", [MEASURED, SIMULATED, bench_result("base")])
def test_a_result_is_read_back_as_it_was_written(result: BenchResult, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(path, result)
    assert read_result(path) == result
    assert result_from_data(result_data(result)) == result


@pytest.mark.parametrize("result", [MEASURED, SIMULATED, bench_result("base")])
def test_what_is_written_has_the_shape_of_the_schema(result: BenchResult) -> None:
    data = json.loads(json.dumps(result_data(result)))
    jsonschema.Draft7Validator(load_schema("result")).validate(data)


def test_the_file_holds_what_follows_from_the_rounds() -> None:
    data = result_data(MEASURED)
    assert data["complete"] is False
    (one,) = [side for side in data["sides"] if side["name"] == "one"]
    assert one["summary"]["ratio"] == pytest.approx(11.125 / 11.25)
    assert one["summary"]["ratio_by_round"][1] is None
    assert data["noise"]["step_fraction"] == pytest.approx(1 - 11 / 11.25)


def test_what_follows_from_the_rounds_is_not_believed_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    data = result_data(MEASURED)
    data["complete"] = True
    data["sides"][1]["summary"]["ratio"] = 0.5
    path.write_text(json.dumps(data))
    assert result_data(read_result(path)) == result_data(MEASURED)


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema within ``schema``."""
    yield schema
    for group in ("properties", "definitions"):
        for member in schema.get(group, {}).values():
            yield from subschemas(member)
    if "items" in schema:
        yield from subschemas(schema["items"])


def test_the_schema_is_draft_07_describes_every_property_and_closes_every_mapping() -> None:
    schema = load_schema("result")
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    found = list(subschemas(schema))
    assert all(member["description"].endswith(".") for member in found)
    mappings = [member for member in found if member.get("type") == "object"]
    assert all(mapping["additionalProperties"] is False for mapping in mappings)
    # Files from before a property was there are still read.
    optional = [set(mapping["properties"]) - set(mapping["required"]) for mapping in mappings]
    assert set().union(*optional) == {"device_memory_bytes"}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    write_result(path, MEASURED)

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match=r"BEN914 .*result\.json cannot be written: No space left on device"):
        write_result(path, SIMULATED)
    assert read_result(path) == MEASURED
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_a_name_that_is_too_long_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"BEN914 .* cannot be written: File name too long"):
        write_result(tmp_path / ("x" * 300), MEASURED)


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    write_result(link, MEASURED)
    assert link.is_symlink()
    assert read_result(target) == MEASURED


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no/such/folder/result.json", "there is no folder"),
        (f"{'x' * 300}/result.json", "there is no folder"),
        ("/dev/null", "it is no regular file"),
        (".", "it is no regular file"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_named_beforehand(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"BEN914 .*{said}"):
        check_output(tmp_path / name)


def changed(path: str, value: object) -> str:
    """Return a good file in which the value at ``path`` is another."""
    data: Any = json.loads(json.dumps(result_data(MEASURED)))
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = data
    for part in parents:
        place = place[part]
    place[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[]", "no result of `offload bench`: the document"),
        ("{}", "is a required property"),
        ("null", "no result"),
        (changed("steps", float("nan")), "NaN is no number"),
        (changed("rounds.0.turns.0.step_ms", [1e300]), "rounds.0.turns.0.step_ms.0"),
        ('{"steps": ' + "9" * 5000 + "}", "digits"),
        ("[" * 100_000, "nested too deeply"),
        (changed("schema_version", 2), "schema_version"),
        (changed("kind", "Policy"), "kind"),
        (changed("mode", "eager"), "mode"),
        (changed("more", 1), "Additional properties"),
        (changed("rounds.0.turns.0.step_ms", [-1]), "rounds.0.turns.0.step_ms.0"),
        (changed("rounds.0.turns.0.peak_device_bytes", 1.5), "rounds.0.turns.0.peak_device_bytes"),
        (changed("rounds.0.turns.0.side", "nobody"), "there is no side 'nobody'"),
        (changed("baseline", "nobody"), "there is no side 'nobody'"),
        (changed("sides", []), "sides"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_file_that_is_no_result_is_refused_with_the_place(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UnreadableError) as caught:
        read_result(path)
    (found,) = caught.value.diagnostics
    assert found.code == "BEN911"
    assert said in found.message
    assert found.file == str(path)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_is_not_there_or_no_text_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableError, match="BEN911"):
        read_result(path)


def test_a_file_from_before_memory_could_be_given_is_read(tmp_path: Path) -> None:
    data = result_data(bench_result("a", "b"))
    assert "device_memory_bytes" not in data["environment"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    assert read_result(path).environment.device_memory_bytes is None
