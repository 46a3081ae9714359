# SPDX-License-Identifier: Apache-2.0
"""What has to be reached: one table, for the end of a run and for the page."""

from __future__ import annotations

from dataclasses import dataclass

from cleat_bench.stats import Figure


@dataclass(frozen=True)
class Bar:
    limit: float
    at_most: bool  # or at least
    meaning: str

    def held_by(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:g}"


def _at_most(limit: float, meaning: str) -> Bar:
    return Bar(limit, True, meaning)


def _at_least(limit: float, meaning: str) -> Bar:
    return Bar(limit, False, meaning)


BARS: dict[str, Bar] = {
    "blk_null_qd32_ns": _at_most(150, "blk, 32 in flight: the engine's core, a request"),
    "scsi_null_qd32_ns": _at_most(170, "scsi, 32 in flight: the engine's core, a request"),
    "blk_null_qd1_us": _at_most(0.38, "blk, one in flight: round trip, both sides polling"),
    "scsi_null_qd1_us": _at_most(0.55, "scsi, one in flight: round trip, both sides polling"),
    "sight_cost_percent": _at_most(5, "counters and stage stamps on, against compiled out"),
    "hardening_cost_percent": _at_most(1, "instructions a request with hardening, against compiled without: the worst of the counted loads"),
    "nvme_passthrough_vs_uring_instructions":
        _at_most(0.85, "instructions of engine and kernel a read, by an NVMe drive's own commands, over those through its block device"),
    "nvme_upgrade_gap_ratio":
        _at_most(1.5, "an upgrade under one VM with an NVMe drive: the longest silence, over that of windows without an upgrade"),
    "tcp_initiator_vs_spdk_qd32":
        _at_least(1.1, "requests a second over NVMe/TCP over those of spdk_nvme_perf with the same SPDK target, 32 in flight"),
    "tcp_initiator_vs_spdk_qd128": _at_least(1.1, "likewise, 128 in flight"),
    "tcp_initiator_qd1_p50_vs_spdk": _at_most(1.0, "likewise, one in flight: median latency over spdk_nvme_perf's"),
    "tcp_failover_ms_p99":
        _at_most(20, "one of two paths closed: the longest wait of each request meanwhile that overlaps nothing in doubt, 99th percentile"),
    "tcp_failover_silent_vs_limit_p99": _at_most(1.2, "likewise one that swallows what is sent, over the keep alive timeout"),
    "tcp_target_vs_spdk_qd32":
        _at_least(1.25, "requests a second that spdk_nvme_perf gets of an exported disk over those of SPDK's target: the median of reads and writes, "
                        "memory and null, 32 in flight"),
    "tcp_target_vs_spdk_qd128": _at_least(1.25, "likewise, 128 in flight"),
    "tcp_qd1_p50_vs_spdk": _at_most(0.95, "likewise, one read from memory in flight: median latency over SPDK's"),
    "tcp_target_floor_percent":
        _at_least(70, "requests a second that spdk_nvme_perf gets of an exported disk, of those of a bare loop that answers the same PDUs: the median of "
                      "reads and writes, memory and null, 32 and 128 in flight"),
    "tcp_tls_floor_percent":
        _at_least(70, "likewise over TLS, of those of a bare loop with the same TLS: the worse of reads and writes, memory, 32 in flight"),
    "tcp_digest_cost_percent":
        _at_most(15, "what a request of an exported memory disk costs the target's core more with both digests: the worse of reads and writes, "
                     "32 in flight"),
    "rdma_credit_use_percent":
        _at_least(99, "RDMA READs outstanding, of those that may be, while writes wait for data: the least, in the model of an adapter"),
    "rdma_read_throughput_vs_spdk_policy":
        _at_least(1.3, "READs a second over those by SPDK 26.05's order, in that model, where READs complete as they come: the median over loads, "
                       "by the worse law of latency"),
    "rdma_write_p99_vs_spdk_policy": _at_most(0.75, "likewise: the 99th percentile of a write's wait for its data, over that by SPDK's order"),
    "rdma_target_instructions":
        _at_most(1.15, "instructions of the target's own code a read by RDMA, over those by TCP without its system calls: the worst of 1, 8 and 32 a turn"),
    "malloc_extra_ns": _at_most(0, "memory disk minus null disk, over 1.05 x the same copies in a bare loop"),
    "crypto_write_4k_excess": _at_most(1.05, "encrypted writes, 4 KiB data units: what they cost more, over the bare cipher"),
    "crypto_read_4k_excess": _at_most(1.05, "encrypted reads, 4 KiB data units: likewise"),
    "crypto_write_512_excess": _at_most(1.05, "encrypted writes of 4 KiB in data units of 512 bytes: likewise"),
    "active_64_ratio": _at_least(0.90, "64 active controllers against one"),
    "active_256_ratio": _at_least(0.75, "256 active controllers against one"),
    "active_64_of_3072_ratio": _at_least(0.95, "64 active disks of 3,072 attached, against only those attached"),
    "idle_3072_cpu_percent": _at_most(2, "CPU of engine and cleatd with 3,072 idle disks"),
    "idle_disk_kib": _at_most(48, "the engine's private dirty memory, an idle disk"),
    "idle_wake_us_p50": _at_most(100, "first request after idling, among 3,072 disks"),
    "attach_3072_serial_s": _at_most(6, "3,072 disks attached one after the other, until all are READY"),
    "attach_3072_parallel_s": _at_most(3, "3,072 disks attached in parallel, until all are READY"),
    "pool_create_ms_p50": _at_most(5, "CreateDisk of a disk of a pool on a sparse file: median"),
    "pool_3072_attach_s": _at_most(3, "3,072 disks of a pool attached in parallel, until all are READY"),
    "get_p99_ms_while_creating": _at_most(2, "a Get while others create, on a store that takes 20 ms to sync: 99th percentile"),
    "restart_100_disks_ms": _at_most(2000, "a killed engine started again, until 100 disks are served again"),
    "upgrade_gap_ms_p99": _at_most(10, "an upgrade under one VM: the longest silence its guest sees, 99th percentile"),
    "upgrade_gap_ms_max": _at_most(25, "likewise, the longest of all"),
    "tcp_upgrade_gap_ms_p99":
        _at_most(10, "an upgrade under a host over NVMe/TCP: the longest silence that it sees, 99th percentile; its connections stay"),
    "upgrade_384_gap_ms_p99": _at_most(20, "384 controllers upgraded, 64 under load: likewise, 99th percentile"),
    "upgrade_384_total_s": _at_most(30, "384 controllers with 3,072 disks upgraded: from the call to the last one"),
    "flooded_upgrade_ratio": _at_most(1.2, "50 controllers upgraded beside four whose front ends flood and read nothing, against the 50 alone"),
    "standby_gap_ms_p99": _at_most(50, "an engine killed that has a standby: the longest silence, 99th percentile"),
    "stopped_engine_seen_ms": _at_most(1000, "an engine stopped (SIGSTOP): until cleatd shows that it does not answer, the longest"),
    "stopped_engine_standby_gap_ms_p99":
        _at_most(1500, "... killed after 1 s, with a standby: the longest silence, 99th percentile"),
    "rbd_upgrade_gap_ms_p99": _at_most(20, "an upgrade under one VM with a disk in Ceph: likewise"),
    "qos_cost_ns_active_10_of_3072": _at_most(15, "limits that do not bind, 10 disks of 3,072 active: a request"),
    "qos_cost_ns_active_all_of_3072": _at_most(15, "limits that do not bind, all of 3,072 disks active: a request"),
    "qos_error_percent_max": _at_most(1, "delivered against promised, 1 to 1,000,000 requests a second, disks and groups"),
    "qos_jain_min": _at_least(0.99, "Jain's index of a group's disks that all want more"),
    "qos_3072_delivered_percent": _at_least(99, "48 groups of 64 disks: delivered of the groups' limits"),
    "qsd_null_qd32_ratio": _at_least(4, "IOPS of a null disk over qemu-storage-daemon's, 32 in flight"),
    "qsd_null_qd1_ratio": _at_least(4, "IOPS of a null disk over qemu-storage-daemon's, one in flight"),
    "rbd_pipeline_vs_fio_qd16_ratio": _at_least(0.95, "IOPS in Ceph over those of fio's rbd engine, 16 in flight"),
    "rbd_vhost_vs_fio_qd1_ratio": _at_least(0.80, "likewise through vhost-user, one in flight"),
    "rbd_vhost_vs_fio_qd16_ratio": _at_least(0.80, "likewise through vhost-user, 16 in flight"),
    "qsd_file_cpu_ratio": _at_least(2, "qemu-storage-daemon's CPU a request on a file, over ours"),
}


@dataclass(frozen=True)
class Verdict:
    name: str
    bar: Bar
    figure: Figure | None  # None: not measured

    @property
    def word(self) -> str:
        if self.figure is None:
            return "not measured"
        return "held" if self.bar.held_by(self.figure.value) else "missed"


def judge(figures: dict[str, Figure]) -> list[Verdict]:
    return [Verdict(name, bar, figures.get(name)) for name, bar in BARS.items()]


def table(verdicts: list[Verdict]) -> str:
    """For a terminal."""
    lines = [f"{'bar':26} {'wanted':>8}  {'value':>9} {'spread':>9}  verdict"]
    for verdict in verdicts:
        value = spread = "-"
        if verdict.figure is not None:
            value, spread = f"{verdict.figure.value:.4g}", f"{verdict.figure.spread:.2g}"
        lines.append(f"{verdict.name:26} {str(verdict.bar):>8}  {value:>9} {spread:>9}  {verdict.word}")
    return "\n".join(lines)
