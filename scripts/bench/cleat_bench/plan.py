# SPDX-License-Identifier: Apache-2.0
"""All measurements, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cleat_bench import (measure_active, measure_crash, measure_crypto, measure_host, measure_instructions,
                         measure_malloc, measure_null, measure_nvme, measure_nvme_upgrade, measure_qos, measure_qsd, measure_rbd,
                         measure_rbd_images, measure_rdma, measure_rdma_target, measure_sight, measure_tcp_failover, measure_tcp_initiator,
                         measure_tcp_target, measure_upgrade)
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure


@dataclass(frozen=True)
class Measurement:
    name: str
    title: str
    bars: tuple[str, ...]  # of bars.BARS, that it gives a value to
    seconds: Callable[[Pace], float]  # about how long it takes
    run: Callable[[Lab], dict[str, Figure]]
    by_name_only: bool = False  # not a part of the whole suite: what a default was chosen by, say

    def matches(self, wanted: str) -> bool:
        return wanted in self.name or any(wanted in bar for bar in self.bars)


MEASUREMENTS: tuple[Measurement, ...] = (
    Measurement("null", "null disks behind blk and scsi, and the bare ring loop",
                ("blk_null_qd32_ns", "scsi_null_qd32_ns", "blk_null_qd1_us", "scsi_null_qd1_us"),
                lambda pace: pace.seconds(measure_null.bar_runs(pace)), measure_null.measure_bars),
    Measurement("null-curves", "the same at other depths, and on packed rings", (),
                lambda pace: pace.seconds(measure_null.other_runs(pace)), measure_null.measure_others),
    Measurement("active", "1 to 256 active controllers on one reactor", ("active_64_ratio", "active_256_ratio"),
                lambda pace: pace.seconds(measure_active.runs(pace)), measure_active.measure),
    Measurement("sight", "with counters and stage stamps, and with none compiled in", ("sight_cost_percent",),
                lambda pace: pace.seconds(measure_sight.runs(pace)), measure_sight.measure),
    Measurement("malloc", "memory disks, and the same copies in a bare loop", ("malloc_extra_ns",),
                lambda pace: pace.seconds(measure_malloc.runs(pace)), measure_malloc.measure),
    Measurement("crypto", "encrypted null disks, and the same OpenSSL in a bare loop", measure_crypto.BARS,
                lambda pace: pace.seconds(measure_crypto.runs(pace)), measure_crypto.measure),
    Measurement("qos", "what limits cost, and how well they are kept", measure_qos.BARS,
                measure_qos.seconds, measure_qos.measure),
    Measurement("qsd-null", "against qemu-storage-daemon, null disks", ("qsd_null_qd32_ratio", "qsd_null_qd1_ratio"),
                lambda pace: pace.seconds(measure_qsd.null_runs(pace)), measure_qsd.measure_null),
    Measurement("qsd-file", "against qemu-storage-daemon, CPU a request on a file", ("qsd_file_cpu_ratio",),
                lambda pace: pace.seconds(measure_qsd.file_runs(pace)), measure_qsd.measure_file),
    Measurement("instructions", "instructions a request, under valgrind, and what hardening costs of them",
                ("hardening_cost_percent", "rdma_target_instructions"),
                lambda pace: measure_instructions.SECONDS, measure_instructions.measure),
    Measurement("nvme", "instructions a read from an NVMe drive, by its commands and through its block device (only when it is named)",
                measure_nvme.BARS, measure_nvme.seconds, measure_nvme.measure, by_name_only=True),
    Measurement("nvme-upgrade", "engines exchanged under one VM with an NVMe drive (only when it is named)",
                measure_nvme_upgrade.BARS, measure_nvme_upgrade.seconds, measure_nvme_upgrade.measure, by_name_only=True),
    Measurement("tcp-initiator", "NVMe/TCP against SPDK's initiator, both with SPDK's target, where PEER_SPDK is set (only when it is named)",
                measure_tcp_initiator.BARS, measure_tcp_initiator.seconds, measure_tcp_initiator.measure, by_name_only=True),
    Measurement("tcp-failover", "NVMe/TCP while one of two paths breaks, with SPDK's target, where PEER_SPDK is set (only when it is named)",
                measure_tcp_failover.BARS, measure_tcp_failover.seconds, measure_tcp_failover.measure, by_name_only=True),
    Measurement("tcp-target", "disks shown over NVMe/TCP against SPDK's target, both with SPDK's host, where PEER_SPDK is set (only when it is named)",
                measure_tcp_target.BARS, measure_tcp_target.seconds, measure_tcp_target.measure, by_name_only=True),
    Measurement("rdma", "the order of RDMA READs against others', in a model (only when it is named)", measure_rdma.BARS, measure_rdma.seconds,
                measure_rdma.measure, by_name_only=True),
    Measurement("rdma-target", "instructions a request over NVMe/RDMA by Cleat's target, Linux' and SPDK's, where PEER_SPDK is set (only when it is named)", (),
                measure_rdma_target.seconds, measure_rdma_target.measure, by_name_only=True),
    Measurement("host", "3,072 disks: attaching, idling, waking, 64 of them active", measure_host.BARS,
                measure_host.seconds, measure_host.measure),
    Measurement("pool", "disks of a pool on a sparse file: making them, attaching 3,072 (only when it is named)", measure_host.POOL_BARS,
                measure_host.pool_seconds, measure_host.measure_pool, by_name_only=True),
    Measurement("crash", "the engine killed under 100 disks, and under load", measure_crash.BARS,
                measure_crash.seconds, measure_crash.measure),
    Measurement("upgrade", "engines exchanged under one VM", measure_upgrade.ONE_BARS, measure_upgrade.lasts(18),
                measure_upgrade.measure_one),
    Measurement("upgrade-384", "engines exchanged under 384 controllers", measure_upgrade.CROWD_BARS, measure_upgrade.lasts(28),
                measure_upgrade.measure_crowd),
    Measurement("upgrade-flooded", "engines exchanged beside peers that flood", measure_upgrade.FLOODED_BARS,
                measure_upgrade.lasts(9), measure_upgrade.measure_flooded),
    Measurement("standby", "an engine killed beside its standby", measure_upgrade.STANDBY_BARS, measure_upgrade.lasts(14),
                measure_upgrade.measure_standby),
    Measurement("stopped", "an engine stopped beside its standby (only when it is named)", measure_upgrade.STOPPED_BARS,
                measure_upgrade.lasts(60), measure_upgrade.measure_stopped, by_name_only=True),
    Measurement("export-upgrade", "engines exchanged under a host over NVMe/TCP (only when it is named)", measure_upgrade.EXPORT_BARS,
                measure_upgrade.lasts(14), measure_upgrade.measure_export, by_name_only=True),
    Measurement("rbd-upgrade", "engines exchanged under a disk in Ceph", measure_upgrade.RBD_BARS, measure_upgrade.lasts(13),
                measure_upgrade.measure_rbd),
    Measurement("rbd-load", "disks in Ceph against fio's rbd engine", measure_rbd.BARS, measure_rbd.seconds,
                measure_rbd.measure),
    Measurement("rbd-images", "500 images of a Ceph cluster, open and owned: memory, threads", (),
                measure_rbd_images.seconds, measure_rbd_images.measure),
    Measurement("rbd-clients", "images of a Ceph cluster that share a client, or have their own (only when it is named)", (),
                measure_rbd_images.seconds_sharing, measure_rbd_images.measure_sharing, by_name_only=True),
)


def choose(only: str | None) -> list[Measurement]:
    """Comma-separated: names of measurements, or parts of their names and of those of their bars."""
    if not only:
        return [measurement for measurement in MEASUREMENTS if not measurement.by_name_only]
    chosen: set[str] = set()
    for part in (word.strip() for word in only.split(",")):
        exact = {measurement.name for measurement in MEASUREMENTS if measurement.name == part}
        found = exact or {measurement.name for measurement in MEASUREMENTS if part and measurement.matches(part)}
        if not found:
            names = ", ".join(measurement.name for measurement in MEASUREMENTS)
            raise ValueError(f"--only {part}: there is no such measurement. There are {names}")
        chosen |= found
    return [measurement for measurement in MEASUREMENTS if measurement.name in chosen]
