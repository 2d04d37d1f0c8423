"""Write the generated parts of docs/published-results.md from docs/evidence/published-table.json.

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; everything else on the page is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["PARTS", "render", "write_page"]

Measured = Mapping[str, Any]
NAMES = {"llama3-8b": "Llama-3-8B", "qwen3-14b": "Qwen3-14B", "dsv3-16b": "DeepSeek-V3-16B"}
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write_page(page: Path, result: Mapping[str, Any]) -> None:
    """Replace the generated parts of ``page``."""
    page.write_text(render(page.read_text(), result))


def render(text: str, result: Mapping[str, Any]) -> str:
    """Return the page with its generated parts written anew; KeyError for a part that has no writer."""
    return _PART.sub(lambda part: f"{part[1]}{_WRITERS[part[2]](result)}\n{part[3]}", text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_table(result: Mapping[str, Any]) -> str:
    """Write the article's figures beside the published rule on our graphs, and beside our own policy."""
    runs, published = result["runs"], result["published"]

    def row(name: str, cell: Callable[[Measured], str]) -> list[str]:
        return [name, *map(cell, runs)]

    def section(name: str) -> list[str]:
        return [f"**{name}**", *[""] * len(runs)]

    def article(run: Measured) -> Mapping[str, float]:
        figures: Mapping[str, float] = published[run["model"]]
        return figures

    rows = [
        section("The article, 8 × H100"),
        row("tensors moved, of those marked", lambda run: _of(article(run), "num_moved", "num_marked")),
        row("“GB” moved", lambda run: _given(article(run), "moved_gb")),
        row("peak lower by", lambda run: _percent(article(run).get("saving_percent"))),
        row(
            "the same without view replay",
            lambda run: _percent(article(run).get("saving_percent_without_view_replay")),
        ),
        section("The article's rule, on our graphs"),
        row(
            "tensors moved, of those marked",
            lambda run: _of(run["published_rule"], "num_moved", "num_marked"),
        ),
        row("the same, model written as theirs", lambda run: _of(_as_theirs(run), "num_moved", "num_marked")),
        row("“GB” moved (MiB / 1000)", lambda run: f"{_as_theirs(run)['mib_over_1000']:.1f}"),
        row("GB moved (10⁹ bytes)", lambda run: f"{_as_theirs(run)['gb']:.2f}"),
        row("predicted peak lower by", lambda run: _percent(run["published_rule"]["saving_percent"])),
        row(
            "the same without view replay",
            lambda run: _percent(run["published_rule"]["saving_percent_without_view_replay"]),
        ),
        section(f"Our policy `{result['policies']['policy']}`"),
        row("forward storages that it decides on", lambda run: _ours(run, "num_activations")),
        row("saved for backward (candidates)", lambda run: _ours(run, "num_candidates")),
        row("of those, able to leave", lambda run: _ours(run, "num_eligible")),
        row("offloaded", lambda run: _ours(run, "num_offloaded")),
        row("GB moved (10⁹ bytes)", lambda run: f"{run['with_view_replay']['gb']:.2f}"),
        row("GiB moved", lambda run: f"{run['with_view_replay']['gib']:.2f}"),
        row("MiB / 1000 moved", lambda run: f"{run['with_view_replay']['mib_over_1000']:.2f}"),
        row(
            f"predicted peak under `{result['policies']['base']}`, GiB",
            lambda run: _gib(run["base_peak_bytes"]),
        ),
        row("where that is", lambda run: _site(run["base_peak_at"])),
        row("predicted peak, GiB", lambda run: _gib(run["with_view_replay"]["peak_bytes"])),
        row("where that is", lambda run: _site(run["with_view_replay"]["peak_at"])),
        row("peak lower by", lambda run: _percent(run["with_view_replay"]["saving_percent"])),
        section("Our policy, view replay off"),
        row("able to leave", lambda run: str(run["without_view_replay"]["num_eligible"])),
        row("offloaded", lambda run: str(run["without_view_replay"]["num_offloaded"])),
        row("GB moved (10⁹ bytes)", lambda run: f"{run['without_view_replay']['gb']:.2f}"),
        row("peak lower by", lambda run: _percent(run["without_view_replay"]["saving_percent"])),
    ]
    return table(["", *[f"{NAMES[run['model']]}, {run['batch']} × {run['seq']}" for run in runs]], rows)


def write_kept(result: Mapping[str, Any]) -> str:
    """Write why saved storages stay on the device."""
    rows = []
    for run in _one_of_each(result):
        for how in ("with_view_replay", "without_view_replay"):
            for reason, count in run[how]["kept"].items():
                rows.append([NAMES[run["model"]], how.partition("_")[0], reason, str(count)])
    head = "| model | view replay | why it stays | storages |\n| --- | --- | --- | ---: |"
    return "\n".join([head, *[f"| {' | '.join(row)} |" for row in rows]])


def write_steps(result: Mapping[str, Any]) -> str:
    """Write, for each model, the way from our selection to the article's."""
    parts = []
    for run in _one_of_each(result):
        lines = [
            f"{NAMES[run['model']]}, {run['batch']} × {run['seq']}:",
            "",
            "| filter of the article | change | what | left | GB left |",
            "| --- | ---: | --- | ---: | ---: |",
        ]
        for number, step in enumerate(run["published_rule"]["from_ours"]):
            sign = "" if not step["num_changed"] else "+" if step["step"].startswith("moved by") else "−"
            change = "" if number == 0 else f"{sign}{step['num_changed']}"
            cells = [
                step["step"],
                change,
                _places(step["changed"]),
                str(step["num_left"]),
                f"{step['left_gb']:.2f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def write_marked(result: Mapping[str, Any]) -> str:
    """Write what the article marks as saved and does not move."""
    lines = ["| model | marked | moved | marked, and not moved |", "| --- | ---: | ---: | --- |"]
    for run in _one_of_each(result):
        rule = run["published_rule"]
        cells = [
            NAMES[run["model"]],
            str(rule["num_marked"]),
            str(rule["num_moved"]),
            _places(rule["marked_and_not_moved"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_theirs(result: Mapping[str, Any]) -> str:
    """Write how the counts of DeepSeek-V3 go from our way of writing the model to the article's."""
    run = next(run for run in result["runs"] if run["published_model"] is not None)
    rule, theirs = run["published_rule"], run["published_model"]
    marked, moved, topk = theirs["attention_marked"], theirs["attention_moved"], theirs["topk_marked"]
    rows = [
        ["the article's rule, our model", str(rule["num_marked"]), str(rule["num_moved"])],
        ["without our attention's results", f"−{marked['here']}", f"−{moved['here']}"],
        ["with those of flex attention", f"+{marked['published']}", f"+{moved['published']}"],
        ["with the values of top-k that nobody reads", f"+{topk['published'] - topk['here']}", "+0"],
        ["the article's rule, their model", str(theirs["num_marked"]), str(theirs["num_moved"])],
    ]
    return table(["", "marked", "moved"], rows)


def write_peaks(result: Mapping[str, Any]) -> str:
    """Write by how much peaks fall: as published, and as predicted for one GPU and for one of eight."""
    rows = []
    for run in result["runs"]:
        if run["on_eight_gpus"] is None:
            continue
        article, rule = result["published"][run["model"]], run["published_rule"]
        eight = run["on_eight_gpus"]
        replays = (("on", "saving_percent", "published_rule"),)
        without = ("saving_percent_without_view_replay", "published_rule_without_view_replay")
        replays += (("off", *without),)
        for replay, key, name in replays:
            rows.append(
                [
                    f"{NAMES[run['model']]}, {run['batch']} × {run['seq']}, view replay {replay}",
                    _percent(article.get(key)),
                    _percent(rule[key]),
                    _percent(eight["saving_percent"][name]),
                    _gib(eight["peak_bytes"]["base"]),
                    _gib(eight["peak_bytes"][name]),
                ]
            )
    head = ["the article's rule", "article", "one GPU", "one of eight", "peak before, GiB", "peak after, GiB"]
    return table(head, rows)


def _one_of_each(result: Mapping[str, Any]) -> list[Measured]:
    """Return one run of each model: counts do not depend on the number of tokens."""
    found: dict[str, Measured] = {}
    for run in result["runs"]:
        found.setdefault(run["model"], run)
    return list(found.values())


def _as_theirs(run: Measured) -> Measured:
    figures: Measured = run["published_model"] or run["published_rule"]
    return figures


def _ours(run: Measured, key: str) -> str:
    return str(run["with_view_replay"][key])


def _of(figures: Measured, count: str, total: str) -> str:
    return f"{figures[count]} of {figures[total]}" if total in figures else str(figures[count])


def _given(figures: Measured, key: str) -> str:
    return str(figures.get(key, "not given"))


def _percent(value: float | None) -> str:
    return "not given" if value is None else f"{value} %"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f}"


def _site(peak_at: str) -> str:
    """Shorten ``backward, outside the layers, at NAME``: the name alone says which kernel it is."""
    side, layer, kernel = peak_at.split(", ")
    return f"{side}, `{kernel.removeprefix('at ')}`" + ("" if layer.startswith("outside") else f", {layer}")


def _places(places: Mapping[str, int]) -> str:
    """Name what was counted: ``31 × layers.*.attention.wq``, with the operator where a module runs several."""
    return "; ".join(
        f"{count} × `{place.partition(':')[0]}` ({_operator(place)})" for place, count in places.items()
    )


def _operator(place: str) -> str:
    return place.rpartition(": ")[2].removeprefix("aten.").partition(".")[0].strip("_")


_WRITERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "table": write_table,
    "kept": write_kept,
    "steps": write_steps,
    "marked": write_marked,
    "theirs": write_theirs,
    "peaks": write_peaks,
}
PARTS = tuple(_WRITERS)
