# SPDX-License-Identifier: Apache-2.0
"""cleatd with an engine whose one reactor has a core to itself, and disks made as users make them: through cleatctl."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from typing import Any

from cleat_guest import Cleat

from cleat_bench.lab import Lab

DISK_BYTES = 512 << 20

Backend = dict[str, Any]
NULL: Backend = {"null": {"skipReads": True}}  # the way to the storage, without the writing of zeroes
MEMORY: Backend = {"memory": {}}


def file_backend(path: str) -> Backend:
    return {"file": {"path": path}}


class Engine:
    """Ended by leaving the `with`. Idle engines sleep, so that several may share a core while one is measured. Not `pinned`: for
    storage that takes most of the time and shares the machine."""

    def __init__(self, lab: Lab, name: str, engine_bin_dir: str | None = None, pinned: bool = True) -> None:
        self._lab = lab
        self._dir = tempfile.mkdtemp(prefix=f"{name}-", dir=lab.dir)
        log_dir = os.path.join(lab.log_dir, name)
        os.makedirs(log_dir, exist_ok=True)
        cpus = ("--cpus", str(lab.engine_core)) if pinned else ()
        self._cleat = Cleat(lab.bin_dir, self._dir, log_dir, engine_bin_dir=engine_bin_dir,
                            engine_options=(*cpus, "--log-level", "warn"))

    def __enter__(self) -> Engine:
        try:
            self._cleat.start()
        except BaseException:
            self._cleat.kill()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self._cleat.kill()

    @property
    def pid(self) -> int:
        return self._cleat.engine.pid

    def socket(self, controller: str) -> str:
        return os.path.join(self._dir, f"{controller}.sock")

    def add(self, controllers: Iterable[str], kind: str, backend: Backend, size_bytes: int = DISK_BYTES) -> None:
        """Controllers with one queue and one disk each, which wait for a guest at socket(controller)."""
        names = list(controllers)
        self._apply({
            "disks": [{"name": f"disks/{name}", "spec": {"size_bytes": str(size_bytes), **backend}} for name in names],
            "controllers": [{"name": f"controllers/{name}",
                             "spec": {"type": kind.upper(), "socket_path": self.socket(name), "queues": 1}}
                            for name in names],
            "attachments": [{"name": f"controllers/{name}/attachments/{name}", "spec": {"disk": f"disks/{name}"}}
                            for name in names],
        })

    def ctl(self, *arguments: str) -> None:
        """cleatctl, for what add() doesn't make."""
        self._cleat.ctl(*arguments)

    def load(self, subject: str, controller: str, kind: str, *options: str, **more: Any) -> dict[str, Any]:
        """A run on one controller."""
        target = ("--targets", "0") if kind == "scsi" else ()
        return self._lab.load(subject, "--listen", self.socket(controller), "--type", kind, *target, *options, **more)

    def _apply(self, host: dict[str, Any]) -> None:
        path = os.path.join(self._dir, "host.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(host, file)
        self._cleat.ctl_text("apply", "-f", path)
