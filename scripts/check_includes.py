#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Includes go one way: engine -> vhost -> virtio -> (scsi, observe) -> block -> reactor -> base.

Modules know block, keys and what is below; nvme knows keys for the rooms in which hosts authenticate and encrypt; nvmf is what both ends of NVMe-oF
share outside of their protocol; cleatd and cleatctl share with the engine base, proto, keys (cleatd) and the counters' format and reader alone; perf knows base alone. Libraries
that belong to one layer are kept there too. Prints every include that breaks this. Large folders have rooms (ROOMS) whose includes go one way too, and of which none holds more
than FILES_MAX files: more are two concepts. So are longer files than LINES_MAX."""

import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))

# Folder of ours -> the folders it may include, itself aside. "modules" stands for every back end and filter.
MAY_INCLUDE = {
    "base": [],
    "reactor": ["base"],
    "block": ["reactor", "base"],
    "keys": ["base"],
    "qos": ["block", "reactor", "base"],
    "scsi": ["block", "reactor", "base"],
    "rdma": ["base"],
    "nvme": ["keys", "rdma", "block", "base"],  # keys: the rooms auth and tls; rdma: rdma_target and rdma_host
    "pool": ["base"],
    "observe-reader": ["base"],
    "observe": ["observe-reader", "block", "reactor", "base"],
    "virtio": ["scsi", "observe", "observe-reader", "block", "reactor", "base"],
    "vhost": ["virtio", "scsi", "block", "reactor", "base"],
    "nvmf": ["rdma", "nvme", "keys", "block", "reactor", "base"],
    "nvmf_target": ["rdma", "nvmf", "nvme", "observe", "observe-reader", "block", "reactor", "base"],
    "engine": ["vhost", "nvmf_target", "nvmf", "virtio", "scsi", "observe", "qos", "keys", "nvme", "pool", "block", "reactor", "base", "modules", "engine-proto"],
    "modules": ["nvmf", "nvme", "rdma", "pool", "keys", "block", "reactor", "base"],
    "stats": ["observe-reader", "base", "public-proto"],
    "control": ["stats", "keys", "nvme", "pool", "base", "observe-reader", "engine-proto", "public-proto"],
    "ctl": ["stats", "base", "observe-reader", "public-proto"],
    "perf": ["base"],
}

# Prefix of an include -> the folders that may use it.
ONLY_IN = {
    "rte_": ["vhost", "engine"],
    "openssl/": ["keys", "nvme", "modules", "control"],
    "grpc": ["control", "ctl"],
    "google/protobuf": ["stats", "control", "ctl"],
    "sqlite3": ["control"],
    "blkid/": ["control"],
    "infiniband/": ["rdma"],
    "rdma/rdma_": ["rdma"],  # librdmacm's; our own folder has no such file
    "prometheus/": ["control"],
    "civetweb": ["control"],
    "rbd/": ["modules"],
    "rados/": ["modules"],
    "CLI/": ["control", "ctl", "engine", "perf"],
}

# A folder's rooms -> those beside them that they may include. "" are the files that lie in the folder itself, which may include
# every room.
ROOMS = {
    "control": {
        "model": [],
        "validate": ["model"],
        "paths": ["validate", "model"],
        "pools": [],
        "store": ["validate", "model"],
        "backup": ["store", "validate", "model"],
        "state": ["backup", "store", "pools", "paths", "validate", "model"],
        "observe": ["state", "validate", "model"],
        "link": ["observe", "validate", "model"],
        "reconcile": ["link", "observe", "state", "validate", "model"],
        "callers": ["model"],
        "api": ["callers", "observe", "backup", "state", "validate", "model"],
    },
    "control/state": {
        "tables": [],
        "writes": ["tables"],
        "publish": ["writes", "tables"],
        "keys": [],
        "settings": ["keys", "publish", "writes", "tables"],
        "engines": ["settings", "publish", "writes", "tables"],
        "pools": ["publish", "writes", "tables"],
        "disks": ["pools", "settings", "keys", "publish", "writes", "tables"],
        "discovery": ["settings", "keys", "publish", "writes", "tables"],
        "doubt": ["disks"],
        "found": ["disks", "pools", "publish", "writes", "tables"],
        "controllers": ["disks", "engines", "settings", "keys", "publish", "writes", "tables"],
        "moves": ["controllers", "disks", "engines", "publish", "writes", "tables"],
    },
    "control/reconcile": {
        "engines": [],
        "context": ["engines"],
        "health": ["context", "engines"],
        "moves": ["context", "engines"],
        "controllers": ["moves", "context", "engines"],
        "disks": ["moves", "context", "engines"],
        "discovery": ["context", "engines"],
        "settings": ["context", "engines"],
    },
    "engine": {
        "protocol": [],
        "stores": ["protocol"],
        "secrets": ["protocol"],
        "disks": ["stores", "secrets", "protocol"],
        "discovery": ["secrets", "protocol"],
        "attached": ["disks", "protocol"],
        "hand_over": ["protocol"],
        "guest_devices": ["hand_over", "attached", "secrets", "protocol"],
        "controller": ["guest_devices", "attached", "protocol"],
        "link": ["", "disks", "protocol"],
        "process": ["", "link", "guest_devices", "discovery", "disks", "stores", "protocol"],
    },
    "rdma": {
        "ibverbs": [""],
        "rdmacm": ["ibverbs", ""],
    },
    "nvme": {
        "fabrics": [""],
        "tcp": ["fabrics", ""],
        "tcp_host": ["tcp", "fabrics", ""],
        "tcp_target": ["tcp", "fabrics", ""],
        "rdma": ["fabrics", ""],
        "rdma_target": ["rdma", "fabrics", ""],
        "rdma_host": ["rdma", "fabrics", ""],
        "auth": ["fabrics", ""],
        "tls": ["auth", "fabrics", ""],
        "target": ["tls", "auth", "fabrics", ""],
        "host": ["auth", "fabrics", ""],
    },
    "nvme/target": {
        "access": [],
        "hand_over": [],
        "reservations": ["hand_over"],
        "cross_reset": ["hand_over"],
    },
    "nvmf": {
        "socket": [],
        "rdma": ["socket"],
        "login": [],
    },
    "nvmf_target": {
        "hand_over": [],
        "transport": ["hand_over"],
        "socket": ["transport", "hand_over"],
        "login": [],
        "memory": [],
        "io": ["memory", "transport", "hand_over"],
        "reservations": ["io"],
        "rdma": ["io", "memory", "transport", "hand_over"],
    },
    "nvme/auth": {
        "controller": [""],
    },
    "nvme/host": {
        "doubt": [],
        "requests": ["doubt"],
        "reservation": ["doubt"],
    },
    "modules/nvmf": {
        "transport": [],
        "socket": ["transport"],
        "rdma": ["transport"],
        "connect": ["socket", "rdma", "transport"],
        "login": [],
        "doubt": [],
        "channel": ["connect", "transport", "login", "doubt"],
        "path": ["channel", "connect", "transport", "login", ""],
        "reservation": ["path", "channel"],
        "disk": ["reservation", "path", "channel", "doubt", ""],
    },
    "perf": {
        "wire": [],
        "vhost_user": ["wire"],
        "workload": ["vhost_user", "wire"],
        "ring": ["vhost_user", "wire"],
        "driver": ["ring", "vhost_user", "wire"],
        "nvme_tcp": ["ring", "vhost_user", "wire"],
        "nvme_hostile": ["nvme_tcp", "vhost_user", "wire", "workload"],
        "hostile": ["driver", "ring", "vhost_user", "wire"],
        "crash": ["driver", "workload", "wire"],
        "load": ["driver", "nvme_tcp", "ring", "vhost_user", "wire", "workload"],
        "bare_loops": ["load", "vhost_user", "wire"],
        "report": ["load", "workload"],
        "tool": ["report", "bare_loops", "load", "nvme_hostile", "nvme_tcp", "vhost_user", "wire"],
    },
}
# Folder -> the only files outside of it that may include it.
ONLY_BY = {"control/reconcile": ("src/control/daemon.cc", "src/control/daemon.h")}
FILES_MAX = 12
LINES_MAX = {".h": 250, ".cc": 600, ".c": 600}

# What other processes need of observe.
READER = re.compile(r"observe/(reader|layout|histogram)\.")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def layer_of_file(path):
    if READER.search(path):
        return "observe-reader"
    parts = path.split(os.sep)
    return "modules" if parts[0] == "modules" else parts[1]


def layer_of_include(include):
    if include.startswith("cleat/engine/"):
        return "engine-proto"
    if READER.match(include):
        return "observe-reader"
    if include.startswith("cleat/"):
        return "public-proto"
    head = include.split("/")[0]
    return head if head in MAY_INCLUDE else None


def room_in(folder, path):
    """The room of `folder` in which a file below src or modules lies, "" for the folder itself; None where it lies elsewhere."""
    path = path.removeprefix("src/")
    if not path.startswith(folder + "/"):
        return None
    return path.removeprefix(folder + "/").partition("/")[0] if "/" in path.removeprefix(folder + "/") else ""


def problem_of_rooms(path, include):
    for folder, by in ONLY_BY.items():
        if include.startswith(folder + "/") and not path.startswith(f"src/{folder}/") and path not in by:
            return f"only {' and '.join(by)} may include {folder} ({include})"
    for folder, rooms in ROOMS.items():
        here, there = room_in(folder, path), room_in(folder, include)
        if not here or there is None or here == there or there in rooms.get(here, []):
            continue
        return f"{folder}/{here} must not include {folder}/{there} ({include})"
    return None


def problems_of_rooms():
    for folder, rooms in ROOMS.items():
        root = folder if folder.startswith("modules/") else f"src/{folder}"
        for path, _, files in sorted(os.walk(os.path.join(ROOT, root))):
            room = os.path.relpath(path, os.path.join(ROOT, root)).partition(os.sep)[0]
            if room not in [*rooms, "."]:
                yield f"{root}/{room} has no place in the order: add it to ROOMS"
            files = [name for name in files if name.endswith(tuple(LINES_MAX))]
            if len(files) > FILES_MAX:
                yield f"{os.path.relpath(path, ROOT)} has {len(files)} files, {FILES_MAX} may be: more are two concepts"


def problem_of_length(path):
    most = LINES_MAX[os.path.splitext(path)[1]]
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        lines = sum(1 for _ in file)
    return f"{lines} lines, {most} may be: more are two concepts" if lines > most else None


def problems_of(path):
    layer = layer_of_file(path)
    if layer not in MAY_INCLUDE:
        yield 0, f"folder '{layer}' has no place in the order: add it to scripts/check_includes.py"
        return
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            include = match[2]
            target = layer_of_include(include)
            if target and target != layer and target not in MAY_INCLUDE[layer]:
                yield number, f"{layer} must not include {target} ({include})"
            problem = problem_of_rooms(path, include)
            if problem:
                yield number, problem
            if match[1] == '"' and (target is None or "/" not in include):
                yield number, f'"{include}" is not "folder/file.h" of ours; use <> for what is not'
            for prefix, layers in ONLY_IN.items():
                if include.startswith(prefix) and layer not in layers:
                    yield number, f"<{include}> belongs to {', '.join(layers)}"


def main():
    found = 0
    for problem in problems_of_rooms():
        print(problem)
        found += 1
    for top in ("src", "modules"):
        for folder, folders, files in os.walk(os.path.join(ROOT, top)):
            folders.sort()
            for name in sorted(files):
                if not name.endswith(tuple(LINES_MAX)):
                    continue
                path = os.path.relpath(os.path.join(folder, name), ROOT)
                problem = problem_of_length(path)
                if problem:
                    print(f"{path}: {problem}")
                    found += 1
                if not name.endswith("_test.cc"):  # tests may include anything
                    for number, problem in problems_of(path):
                        print(f"{path}:{number}: {problem}")
                        found += 1
    return 1 if found else 0


sys.exit(main())
