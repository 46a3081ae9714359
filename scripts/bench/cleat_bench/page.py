# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks.md: a pure function of figures, machine and notes."""

from __future__ import annotations

from cleat_bench.bars import judge
from cleat_bench.plots import PERCENTILES, PLOTS, ns_at
from cleat_bench.stats import Figure

Figures = dict[str, Figure]

PLOT_DIR = "benchmarks"  # beside the page
NOT_MEASURED = "-"

HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Written by `make bench`: change scripts/bench, not this page. -->
# Benchmarks

Cleat against its bars, against a bare ring loop and against qemu-storage-daemon: measured and written by `make bench`
(under fifteen minutes), on this machine:
"""

METHOD = """## How it is measured

- One reactor of the engine has a core, the load generator (`cleat-perf`) another. Both poll while there is work. Requests
  are 4 KiB random reads unless it says otherwise; every request goes through vhost-user, virtqueue, pipeline and
  back end, with counters, stage stamps and the in-flight log on.
- Disks are made as users make them: cleatd, gRPC, `cleatctl apply`.
- A figure is the median of several runs of about a second, each after a warm-up. Its spread is half the distance between
  the quartiles: half of the runs are about this near to the median.
- What is compared ran in turns (A B, B A, A B, ...), and a ratio is the median of each round's own.
- *ns a request* is the run's time divided by its requests. With 32 and more in flight the engine is the slower side, so that it
  is the time of the engine's core: compare the bare ring loop, where the generator faces a device that does nothing, and
  `*_generator_idle_percent`, the part of the generator's looks at its rings that found nothing (near 0 the generator would be
  what limits). With one in flight it is the round trip.
- The bare ring loop is the generator with its own rings in memory and a loop on the other core that takes each chain, reads
  its header and writes its status: what the machine and its caches allow. Divide by it to compare machines.
- *taken by its host* is time in which a virtual machine's core did not run. What polls loses that much; what sleeps and is woken,
  as in an upgrade, waits for its core at each step.

The bars in nanoseconds were set for a machine like the one of [an earlier page](benchmarks/epyc.md), whose bare ring loop takes 26 ns
a request with 32 in flight.
"""

COMPARE = """## Again, and compared

```sh
make bench                                        # all of it: this page, build/bench/results.json, build/bench/raw.json
make bench BENCH_ARGS='--only null,qsd --quick'   # a part of it, shorter; writes no page
make bench BENCH_ARGS='--cores 2,3'               # the engine's core, the generator's
build/bin/cleat-perf compare before.json build/bench/results.json   # two result files as ratios
```

`results.json` is an object name -> {value, unit, spread, runs}. `raw.json` has the report of every single run with the
command that made it.
"""


def number(value: float) -> str:
    """Four digits are more than the spread deserves."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join([row(*head), row(*["---"] * len(head)), *(row(*cells) for cells in rows)]) + "\n"


def value_of(figures: Figures, name: str, unit: bool = False) -> str:
    figure = figures.get(name)
    if figure is None:
        return NOT_MEASURED
    text = f"{number(figure.value)} ± {number(figure.spread)}"
    return f"{text} {figure.unit}" if unit and figure.unit != "ratio" else text


def plot(figures_drawn: set[str], name: str) -> str:
    return f"![{PLOTS[name][1]}]({PLOT_DIR}/{name})\n" if name in figures_drawn else ""


def bars_section(figures: Figures) -> str:
    rows = []
    for verdict in judge(figures):
        value = value_of(figures, verdict.name, unit=True)
        rows.append([f"`{verdict.name}`", verdict.bar.meaning, str(verdict.bar), value, verdict.word])
    return "## Bars\n\n" + table(["name", "what", "bar", "value ± spread", ""], rows)


def depth_section(figures: Figures, drawn: set[str]) -> str:
    depths = (1, 2, 4, 8, 16, 32, 64, 128)
    columns = {"blk null": "blk_null", "scsi null": "scsi_null", "blk packed": "blk_packed_null",
               "scsi packed": "scsi_packed_null", "ring split": "ring_split", "ring packed": "ring_packed"}
    rows = []
    for depth in depths:
        found = [ns_at(figures, name, depth) for name in columns.values()]
        rows.append([str(depth), *(NOT_MEASURED if figure is None else f"{number(figure.value)} ± {number(figure.spread)}"
                                   for figure in found)])
    over_ring = [[kind, *(value_of(figures, f"{kind}_null_qd{depth}_over_ring") for depth in (1, 32, 128))]
                 for kind in ("blk", "scsi")]
    percentiles = [[kind, *(value_of(figures, f"{kind}_null_qd1_{percentile}_us") for percentile in PERCENTILES)]
                   for kind in ("blk", "scsi")]
    return ("## Null disks, and the bare ring loop\n\nNanoseconds a request:\n\n"
            + table(["in flight", *columns], rows) + "\n" + plot(drawn, "costs.svg") + "\n" + plot(drawn, "depth-ns.svg")
            + "\n" + plot(drawn, "depth-iops.svg")
            + "\nOver the bare ring loop of the same round, which says more than nanoseconds when the cores' distance changes, as a\n"
            "virtual machine's may from one minute to the next (`ring_split_qd1_ns` is about two transfers of a cache line):\n\n"
            + table(["", "1 in flight", "32", "128"], over_ring) + "\nLatency with one in flight, microseconds:\n\n"
            + table(["", *PERCENTILES], percentiles) + "\n" + plot(drawn, "latency.svg"))


def list_section(title: str, text: str, figures: Figures, names: dict[str, str]) -> str:
    rows = [[what, f"`{name}`", value_of(figures, name, unit=True)] for name, what in names.items()]
    return f"## {title}\n\n{text}\n\n" + table(["", "name", "value ± spread"], rows)


def sight_section(figures: Figures) -> str:
    return list_section(
        "What counting and timing costs",
        "The engine against one that has counters and stage stamps compiled out (`-DCLEAT_COUNTERS=OFF`), in turns.", figures,
        {"sight_cost_percent": "32 in flight", "sight_cost_qd1_percent": "one in flight",
         "blk_null_nosight_qd32_ns": "without, 32 in flight", "blk_null_nosight_qd1_ns": "without, one in flight"})


def active_section(figures: Figures, drawn: set[str]) -> str:
    return list_section(
        "Many active controllers",
        "Null disks behind blk controllers with one queue, 32 in flight on each active one, 256 connected; against one\n"
        "controller alone on an engine of its own, 32 in flight.", figures,
        {f"active_{count}_ratio": f"{count} active" for count in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
        | {"active_alone_iops": "the one alone",
           "active_64_generator_idle_percent": "64 active: looks of the generator that found nothing",
           "active_256_generator_idle_percent": "256 active: looks of the generator that found nothing"}
    ) + "\n" + plot(drawn, "active.svg")


def export_section(figures: Figures, drawn: set[str]) -> str:
    return list_section(
        "Exports over NVMe/TCP",
        "`tests/bench/target_loop` with `spdk_nvme_perf` as its host, beside SPDK's target and a bare loop; see docs/nvmeof.md. What a step gives\n"
        "is measured by switching it off, in turns.", figures,
        {"tcp_batching_gain_percent": "the answers of a poll in one system call",
         "tcp_target_kept_data_gain_percent": "data of writes stays where it was received",
         "tcp_target_look_ahead_gain_percent": "the next command's blocks are brought into the cache",
         "tcp_target_left_epoll_gain_percent": "a busy connection leaves epoll, one in flight",
         "tcp_target_folded_digests_gain_percent": "digests folded by 512 bits, both on",
         "tcp_target_eager_reads_gain_percent": "reads without waiting for an event",
         "tcp_target_cpu_vs_spdk_qd32": "time of the core a request over SPDK's, 32 in flight",
         "tcp_target_cpu_vs_spdk_qd128": "... 128 in flight",
         "tcp_target_floor_vs_spdk_qd32": "the bare loop's requests over SPDK's, 32 in flight",
         "tcp_target_floor_vs_spdk_qd128": "... 128 in flight",
         "tcp_target_floor_qd1_p50_vs_spdk": "the bare loop's median latency over SPDK's, one in flight"}) + "\n" + plot(drawn, "tcp-target-steps.svg")


RDMA_SETTINGS = {"rdma_reads_as_they_come": "as they come", "rdma_reads_in_order": "in order",
                 "rdma_reads_polled": "in order, seen each tenth of a READ's time", "rdma_reads_full_link": "in order, over a link that four READs fill",
                 "rdma_reads_mixed": "in order, every other write has one READ"}
RDMA_POLICIES = {"whole": "SPDK before 23.09", "reorders": "23.09 to 24.05", "spdk": "24.09 to 26.05", "oracle": "an oracle"}


def read_orders_table(figures: Figures) -> str:
    rows = []
    for setting, what in RDMA_SETTINGS.items():
        for law in ("even", "exponential"):
            rows.append([f"{what}, {law}", *("; ".join(
                NOT_MEASURED if figure is None else f"{figure.value:.2f}" for figure in
                (figures.get(f"{setting}_{kind}_vs_{policy}_policy_{law}") for kind in ("throughput", "write_p99"))) for policy in RDMA_POLICIES)])
    return table(["READs complete; latency", *RDMA_POLICIES.values()], rows)


def rdma_section(figures: Figures, drawn: set[str]) -> str:
    return ("## The order of RDMA READs\n\nA model of an adapter in virtual time, medians over its loads; see docs/nvmeof.md. Cleat's READs a second over those by\n"
            "another order, and the 99th percentile of a write likewise:\n\n" + read_orders_table(figures) + "\n" + plot(drawn, "rdma-reads.svg"))


def malloc_section(figures: Figures) -> str:
    return list_section(
        "Memory disks",
        "512 MiB in a memfd. The excess is (memory disk - null disk) - 1.05 x bare copy, of each round: `cleat-perf copy-loop`\n"
        "does the same copies over equal memory with nothing around them.", figures,
        {"malloc_extra_ns": "excess", "blk_malloc_qd32_ns": "blk, 32 in flight", "bare_copy_ns": "a bare copy",
         "blk_malloc_qd1_ns": "blk, one in flight",
         "blk_malloc_qd128_ns": "blk, 128 in flight", "scsi_malloc_qd32_ns": "scsi, 32 in flight"})


def crypto_section(figures: Figures) -> str:
    names = {}
    for subject, what in {"crypto_write_4k": "write, 4 KiB data units", "crypto_read_4k": "read, 4 KiB data units",
                          "crypto_write_512": "write, 512-byte data units",
                          "crypto_read_512": "read, 512-byte data units"}.items():
        names |= {f"{subject}_excess": f"{what}: excess", f"{subject}_ns": f"{what}: a request",
                  f"{subject}_bare_ns": f"{what}: the bare cipher"}
    return list_section(
        "Encryption",
        "AES-256-XTS by OpenSSL, requests of 4 KiB on null disks. The excess is (encrypted - plain) / bare, of each round: the\n"
        "bare loop makes the same calls on the same memory, in turns of half a millisecond.", figures, names)


def qos_section(figures: Figures) -> str:
    return list_section(
        "Limits",
        "LimitedDevices on one reactor over storage that answers at once (with 1 us a request for the 48 groups of 64 disks,\n"
        "32 in flight each), no virtqueues; see docs/qos.md. The cost is the difference of runs in turns, one request a visit.",
        figures,
        {"qos_cost_ns_active_10_of_3072": "limits that do not bind, 10 active disks: a request",
         "qos_cost_ns_active_all_of_3072": "... all active",
         "qos_cost_ns_active_10_of_3072_whole": "a limited request as a whole, 10 active",
         "qos_cost_ns_active_all_of_3072_whole": "... all active",
         "qos_error_percent_max": "delivered against promised, the worst of all",
         "qos_jain_min": "Jain's index of a group, the worst",
         "qos_3072_delivered_percent": "48 groups of 64 disks: delivered",
         "qos_3072_jain_min": "... Jain's index, the worst of 48"})


def peer_section(figures: Figures, notes: dict[str, str]) -> str:
    chosen = "\n".join(f"- {what}: `{text}`" for what, text in sorted(notes.items()))
    return list_section(
        "Against qemu-storage-daemon",
        "Its vhost-user-blk export on the same core, under the same generator, in the configuration that does best in short\n"
        "trials: main loop or iothread with `poll-max-ns` 0, 32768 or 1000000; null-co with `read-zeroes=off`; a file with\n"
        "`aio` threads, io_uring or native. Of a file, CPU time a request (the process's, all threads) with 32 reads in\n"
        "flight. Our engine reads files with O_DIRECT; its bar is against the peer's best with O_DIRECT. The peer through the\n"
        "page cache, with the whole file in memory, does no I/O at all.\n\n" + chosen, figures,
        {"qsd_null_qd32_ratio": "null disk, 32 in flight: our IOPS over its",
         "qsd_null_qd1_ratio": "null disk, one in flight: our IOPS over its",
         "qsd_null_qd32_ns": "its time a request, 32 in flight", "qsd_null_qd1_ns": "its round trip, one in flight",
         "qsd_file_cpu_ratio": "file: its CPU a request over ours, both O_DIRECT",
         "qsd_file_cached_cpu_ratio": "file: its CPU a request through the page cache, over ours with O_DIRECT",
         "file_cpu_ns": "our CPU a request", "qsd_file_cpu_ns": "its, O_DIRECT",
         "qsd_file_cached_cpu_ns": "its, page cache", "file_iops": "our IOPS", "qsd_file_iops": "its IOPS, O_DIRECT",
         "qsd_file_cached_iops": "its IOPS, page cache"})


def prefix_section(title: str, text: str, figures: Figures, chosen: list[str]) -> str:
    rows = [[f"`{name}`", value_of(figures, name, unit=True)] for name in chosen]
    return f"## {title}\n\n{text}\n\n" + (table(["name", "value ± spread"], rows) if rows else "Not measured.\n")


def instructions_section(figures: Figures) -> str:
    rows = []
    for name in sorted(figures):
        if name.startswith("instructions_"):
            load = name.removeprefix("instructions_")
            rows.append([load.replace("_", " "), number(figures[name].value), value_of(figures, f"hardening_{load}_percent", unit=True)])
    text = ("Counted by valgrind in turns of the reactor on a null disk; they repeat, where nanoseconds do not. A test\n"
            "compares them with docs/instructions.json. Of them, hardening: against a build without (CMake's CLEAT_HARDENING=OFF).\n\n"
            "*rdma target*, *tcp target*: what a read of 4 KiB costs the target that hosts reach over the network, in its own code alone\n"
            "(tests/bench/target_cost). Counted are whole turns of the I/O reactor, each of which takes 1, 8 or 32 commands and answers them: its\n"
            "own work, the transport's, the queue's, the disk's pipeline, counters and stamps. Not counted are the host, the clock's reading,\n"
            "and what is not our code: the adapter's posting and polling (its library and its driver), recv and sendmsg. These are played by\n"
            "functions that do next to nothing, for both in the same way. The disk is a null disk, so neither has a copy of the data: the\n"
            "disk's own would be the same for both, what TCP has beside it is the kernel's, and an adapter needs none. Hosts do without flow\n"
            "control, so that TCP answers a read with one PDU and not two; completions of what was posted come with the next commands.")
    return f"## Instructions a request\n\n{text}\n\n" + (table(["", "instructions", "hardening"], rows) if rows else "Not measured.\n")


def host_section(figures: Figures) -> str:
    names = sorted(name for name in figures if "3072" in name or name.startswith(("idle_", "attach_", "connect_", "host_")))
    return prefix_section("A host with 3,072 disks", "384 scsi controllers with 8 disks each on one engine.", figures, names)


def crash_section(figures: Figures) -> str:
    return list_section(
        "A killed engine",
        "SIGKILL, and a new one at once; about 0.15 s of its start is DPDK's. 100 guests whose request waits in the ring; and 4\n"
        "guests with verified load on memory disks, the longest silence that each saw around each of 48 kills, percentiles of a\n"
        "round of 12.", figures,
        {"restart_100_disks_ms": "start until 100 disks are served again", "crash_gap_ms_p50": "silence, median",
         "crash_gap_ms_p99": "silence, 99th percentile", "crash_gap_ms_max": "silence, longest"})


def upgrade_section(figures: Figures) -> str:
    names = {}
    for subject, what in {"upgrade": "one VM", "upgrade_384": "384 controllers", "standby": "standby",
                          "stopped_engine_standby": "stopped",
                          "rbd_upgrade": "one VM, a disk in Ceph"}.items():
        names |= {f"{subject}_gap_ms_p50": f"{what}: silence, median", f"{subject}_gap_ms_p99": "... 99th percentile",
                  f"{subject}_gap_ms_max": "... the longest of all",
                  f"{subject}_quiet_ms_p99": "... without an event, 99th percentile"}
        if subject == "stopped_engine_standby":
            names["stopped_engine_seen_ms"] = "... until it is shown as NOT_ANSWERING, the longest"
        elif subject != "standby":
            names[f"{subject}_total_s"] = "... the whole upgrade"
    names |= {"flooded_upgrade_ratio": "50 controllers beside four peers that flood, against the 50 alone",
              "flooded_upgrade_total_s": "... the whole upgrade"}
    return list_section(
        "Engines exchanged",
        "Guests with verified load; the longest silence that each saw over an upgrade, there and back: one VM with a memory disk;\n"
        "384 scsi controllers with 8 disks each, 64 of them under load; one VM with a disk in Ceph (one monitor, one OSD in memory\n"
        "on the same cores). *standby*: 4 guests, SIGKILL to the engine whose controllers stand by on another one. *Stopped*: likewise\n"
        "SIGSTOP, and a limit of 1 s, after which cleatd kills that engine (`--kill-silent-engine-seconds`). *Without an\n"
        "event*: the same in windows as long as the upgrade, which is what the machine does by itself.", figures, names)


def rbd_section(figures: Figures) -> str:
    names = {"rbd_pipeline_vs_fio_qd16_ratio": "pipeline, 16 in flight: our IOPS over fio's",
             "rbd_vhost_vs_fio_qd16_ratio": "vhost-user, 16 in flight: our IOPS over fio's",
             "rbd_vhost_vs_fio_qd1_ratio": "vhost-user, one in flight: our IOPS over fio's",
             "rbd_cpu_per_io_ratio": "pipeline, 16 in flight: our CPU a request over fio's",
             "rbd_vhost_cpu_per_io_ratio": "vhost-user, 16 in flight: our CPU a request over fio's"}
    for depth, who in ((16, "pipeline"), (16, "vhost"), (16, "fio"), (1, "vhost"), (1, "fio")):
        names |= {f"rbd_{who}_qd{depth}_iops": f"{who}, {depth} in flight: IOPS",
                  f"rbd_{who}_qd{depth}_cpu_us": f"{who}, {depth} in flight: CPU a request"}
    names |= {"rbd_500_images_mib": "500 images, open and owned: heap in use",
              "rbd_500_images_resident_mib": "... resident memory", "rbd_500_images_threads": "... threads",
              "rbd_500_images_descriptors": "... descriptors", "rbd_500_images_s": "... opened, written and closed"}
    return list_section(
        "Disks in Ceph",
        "One monitor and one OSD in memory on the same cores, half random reads and half random writes of 4 KiB, without a cache,\n"
        "against fio's rbd engine. *pipeline* is driven inside one process, *vhost* is the engine under the load generator, which\n"
        "sleeps as a guest does. Nothing is pinned; CPU is that of the whole process but for its start.", figures, names)


def write(figures: Figures, machine: dict[str, str], notes: dict[str, str], drawn: set[str]) -> str:
    sections = [HEAD, table(["", ""], [[name, value] for name, value in machine.items()]), bars_section(figures), METHOD,
                depth_section(figures, drawn), sight_section(figures), active_section(figures, drawn),
                malloc_section(figures), crypto_section(figures), qos_section(figures), peer_section(figures, notes),
                export_section(figures, drawn), rdma_section(figures, drawn), host_section(figures),
                crash_section(figures), upgrade_section(figures), rbd_section(figures), instructions_section(figures), COMPARE]
    return "\n".join(section.rstrip("\n") + "\n" for section in sections)
