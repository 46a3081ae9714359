# SPDX-License-Identifier: Apache-2.0
"""The page's plots, drawn by gnuplot from figures alone. Middle tones on no background, so that they read on white and on
black. The same figures give the same bytes."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from cleat_guest import BenchError

from cleat_bench.stats import Figure

Figures = dict[str, Figure]
Point = tuple[float, float, float, float]  # x, y, from, to

INK = "#808080"
COLORS = ("#3b82f6", "#e8710a", "#16a34a", "#a855f7", "#dc2626", "#808080")
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)
PERCENTILES = ("p50", "p90", "p99", "p99.9", "p99.99")
DRAW_S = 60


@dataclass(frozen=True)
class Line:
    title: str
    points: list[Point]


def with_spread(x: float, figure: Figure, scale: float = 1) -> Point:
    return x, figure.value * scale, (figure.value - figure.spread) * scale, (figure.value + figure.spread) * scale


def ns_at(figures: Figures, name: str, depth: int) -> Figure | None:
    """Whatever unit the figure at that depth is in: those at depth 1 may be in microseconds."""
    found = figures.get(f"{name}_qd{depth}_ns")
    if found is None and (found := figures.get(f"{name}_qd{depth}_us")):
        return Figure(found.value * 1e3, "ns", found.spread * 1e3, tuple(run * 1e3 for run in found.runs))
    return found


CURVES = {"blk_null": "blk, null disk", "scsi_null": "scsi, null disk", "blk_malloc": "blk, memory disk",
          "qsd_null": "qemu-storage-daemon, null disk", "ring_split": "bare ring loop"}


def depth_ns(figures: Figures) -> str:
    lines = []
    for name, title in CURVES.items():
        points = [with_spread(depth, figure) for depth in DEPTHS if (figure := ns_at(figures, name, depth))]
        lines.append(Line(title, points))
    return _script(lines, "requests in flight", "nanoseconds a request",
                   "set logscale x 2; set logscale y 10; set xrange [0.9:142]; set yrange [10:*]")


def depth_iops(figures: Figures) -> str:
    lines = []
    for name, title in CURVES.items():
        if name == "ring_split":
            continue  # several times as many: the others would lie on the ground
        points = []
        for depth in DEPTHS:
            if figure := ns_at(figures, name, depth):
                low, high = figure.value - figure.spread, figure.value + figure.spread
                points.append((depth, 1e3 / figure.value, 1e3 / high, 1e3 / max(low, 1)))
        lines.append(Line(title, points))
    return _script(lines, "requests in flight", "million requests a second",
                   "set logscale x 2; set xrange [0.9:142]; set yrange [0:*]")


def active(figures: Figures) -> str:
    counts = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    points = [with_spread(count, figure) for count in counts if (figure := figures.get(f"active_{count}_ratio"))]
    return _script([Line("requests a second, against one controller alone", points)], "active controllers, 256 connected",
                   "ratio", "set logscale x 2; set xrange [0.9:290]; set yrange [0:*]")


def latency(figures: Figures) -> str:
    lines = []
    for kind in ("blk", "scsi"):
        points = [with_spread(index, figure) for index, percentile in enumerate(PERCENTILES)
                  if (figure := figures.get(f"{kind}_null_qd1_{percentile}_us"))]
        lines.append(Line(f"{kind}, null disk", points))
    tics = ", ".join(f'"{percentile}" {index}' for index, percentile in enumerate(PERCENTILES))
    return _script(lines, "percentile, one request in flight", "microseconds",
                   f"set xtics ({tics}); set xrange [-0.3:{len(PERCENTILES) - 0.7}]; set logscale y 10")


COSTS = {"ring_split_qd32_ns": "bare ring loop", "blk_null_nosight_qd32_ns": "blk null, not counted",
         "blk_null_qd32_ns": "blk null", "blk_packed_null_qd32_ns": "blk null, packed", "scsi_null_qd32_ns": "scsi null",
         "blk_malloc_qd32_ns": "blk memory", "scsi_malloc_qd32_ns": "scsi memory", "qsd_null_qd32_ns": "qemu-s.-d. null"}


def costs(figures: Figures) -> str:
    """Side by side what a request takes with 32 in flight."""
    there = [(title, figures[name]) for name, title in COSTS.items() if name in figures]
    return _boxes(there, "nanoseconds a request, 32 in flight",
                  "set yrange [0:*]; set xtics rotate by -25 scale 0; set bmargin 6; set rmargin 8") if there else ""


def _boxes(there: list[tuple[str, Figure]], y_label: str, settings: str) -> str:
    """Side by side, with their spread."""
    data = "\n".join(f'"{title}" {_number(figure.value)} {_number(figure.value - figure.spread)} '
                     f"{_number(figure.value + figure.spread)}" for title, figure in there)
    return (f"{_head('', y_label)}\n$data << EOD\n{data}\nEOD\n"
            f"unset key; set style fill solid 0.8 noborder; set boxwidth 0.6; set grid noxtics\n{settings}\n"
            f"plot $data using 0:2:xtic(1) with boxes lc rgb '{COLORS[0]}', "
            f"$data using 0:3:(0):($4-$3) with vectors nohead lc rgb '{INK}' lw 2, "
            f"$data using 0:4:(sprintf('%.0f', $2)) with labels offset 0,0.7 tc rgb '{INK}'")


TARGET_STEPS = {"tcp_target_kept_data": "data stays\\nwhere it came", "tcp_target_look_ahead": "looks\\nahead",
                "tcp_target_left_epoll": "leaves epoll\\nwhile busy", "tcp_target_folded_digests": "digests\\nfolded",
                "tcp_target_eager_reads": "reads without\\nan event"}


def target_steps(figures: Figures) -> str:
    """What each step saves the NVMe/TCP target. One system call a poll is not among them: it would be a tower beside the others."""
    there = []
    for name, title in TARGET_STEPS.items():
        if ratio := figures.get(f"{name}_off_cpu_ratio"):
            there.append((title, Figure(100 * (ratio.value - 1), "%", 100 * ratio.spread, tuple(100 * (run - 1) for run in ratio.runs))))
    return _boxes(there, "% more of the core without it", "set yrange [*:*]; set xzeroaxis lc rgb '#808080'; set bmargin 4") if there else ""


READ_ORDERS = {"cleat": "Cleat", "whole": "whole writes (SPDK before 23.09)", "reorders": "parts that others overtake (23.09 to 24.05)",
               "spdk": "parts that others wait for (24.09 to 26.05)"}


def read_orders(figures: Figures) -> str:
    """How long a write waits for its data, by the order of READs."""
    lines = []
    for name, title in READ_ORDERS.items():
        points = [with_spread(reads, figure) for reads in range(2, 17, 2)
                  if (figure := figures.get(f"rdma_reads_in_order_write_p99_{name}_of_{reads}"))]
        lines.append(Line(title, points))
    return _script(lines, "READs a write", "99th percentile, in times of a READ",
                   "set xrange [1:17]; set yrange [0:*]")


# File name -> (script, what it shows).
PLOTS = {
    "costs.svg": (costs, "What a request takes with 32 in flight"),
    "depth-ns.svg": (depth_ns, "Time a request over requests in flight"),
    "depth-iops.svg": (depth_iops, "Requests a second over requests in flight"),
    "latency.svg": (latency, "Latency percentiles with one request in flight"),
    "tcp-target-steps.svg": (target_steps, "What each step of its tuning saves the NVMe/TCP target"),
    "rdma-reads.svg": (read_orders, "How long a write waits for its data, by the order of RDMA READs"),
    "active.svg": (active, "Throughput over the number of active controllers"),
}


def _number(value: float) -> str:
    return f"{value:.5g}"


def _head(x_label: str, y_label: str) -> str:
    return (f"set terminal svg size 720,420 font 'sans-serif,14'\nset border 3 lc rgb '{INK}'\n"
            f"set tics nomirror tc rgb '{INK}'\nset grid lc rgb '{INK}' lw 0.3\n"
            f"set key above left Left reverse tc rgb '{INK}' samplen 2\nset xlabel '{x_label}' tc rgb '{INK}'\n"
            f"set ylabel '{y_label}' tc rgb '{INK}'")


def _script(lines: list[Line], x_label: str, y_label: str, settings: str) -> str:
    """A line with error bars each; what was not measured is left out."""
    blocks, plots = [], []
    for number, line in enumerate(lines):
        if not line.points:
            continue
        rows = "\n".join(" ".join(_number(value) for value in point) for point in line.points)
        blocks.append(f"$line{number} << EOD\n{rows}\nEOD")
        plots.append(f"$line{number} using 1:2:3:4 with yerrorlines title '{line.title}' lc rgb '{COLORS[number]}' "
                     "lw 2 pt 7 ps 0.5")
    if not plots:
        return ""
    return "\n".join([_head(x_label, y_label), settings, *blocks, "plot " + ", ".join(plots)])


def draw(figures: Figures) -> dict[str, str]:
    """File name -> SVG, of the plots for which there are figures."""
    scripts = {name: script(figures) for name, (script, _) in PLOTS.items()}
    return {name: _gnuplot(script, PLOTS[name][1]) for name, script in scripts.items() if script}


def _gnuplot(script: str, title: str) -> str:
    try:
        done = subprocess.run(["gnuplot", "-"], input=script, capture_output=True, text=True, timeout=DRAW_S, check=False)
    except FileNotFoundError:
        raise BenchError("gnuplot is missing: 'make setup' installs it (gnuplot-nox)") from None
    if done.returncode != 0 or not done.stdout:
        raise BenchError(f"gnuplot could not draw '{title}': {done.stderr.strip()}")
    return tidy(done.stdout, title)


def tidy(svg: str, title: str) -> str:
    """With a title for readers that show none of it, and without the version of what drew it."""
    lines = [line.rstrip() for line in svg.splitlines()]
    lines = [f"<title>{title}</title>" if line == "<title>Gnuplot</title>" else line
             for line in lines if line and not line.startswith("<desc>")]
    lines.insert(1, "<!-- SPDX-License-Identifier: Apache-2.0 -->")
    return "\n".join(lines) + "\n"
