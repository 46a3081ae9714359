#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Includes go one way: engine -> vhost -> virtio -> (scsi, observe) -> block -> reactor -> base.

Modules know block, keys and what is below; cleatd and cleatctl share with the engine base, proto, keys (cleatd) and the
counters' format and reader alone; perf knows base alone. Some folders have rooms with an order of their own (ROOMS). Libraries that belong to one layer are kept there too. Prints
every include that breaks this."""

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
    "observe-reader": ["base"],
    "observe": ["observe-reader", "block", "reactor", "base"],
    "virtio": ["scsi", "observe", "observe-reader", "block", "reactor", "base"],
    "vhost": ["virtio", "scsi", "block", "reactor", "base"],
    "engine": ["vhost", "virtio", "scsi", "observe", "qos", "keys", "block", "reactor", "base", "modules", "engine-proto"],
    "modules": ["keys", "block", "reactor", "base"],
    "stats": ["observe-reader", "base", "public-proto"],
    "control": ["stats", "keys", "base", "observe-reader", "engine-proto", "public-proto"],
    "ctl": ["stats", "base", "observe-reader", "public-proto"],
    "perf": ["base"],
}

# Rooms of a folder: room -> the rooms of the same folder that it may include, itself aside. A room is a folder, or, until its files are
# in one, the names in NAMES_OF_ROOM. Rooms that are not a key here are not checked.
ROOMS = {
    "control": {
        "reconcile": ["link", "observe", "state", "model"],
    },
}
NAMES_OF_ROOM = {
    "control": {
        "daemon": ["daemon"],
        "link": ["engine_link", "seqpacket", "translate"],
        "observe": ["counters", "slow_watch", "metrics", "metrics_server"],
        "state": ["host_state", "memory_keeper", "watch_hub"],
        "model": ["model", "intent", "names", "page", "reasons", "refusals"],
    },
}
# Room -> the rooms of its folder that may include it; of other folders none may.
ROOM_ONLY_FOR = {("control", "reconcile"): ["daemon"]}

# Prefix of an include -> the folders that may use it.
ONLY_IN = {
    "rte_": ["vhost", "engine"],
    "openssl/": ["keys", "modules", "control"],
    "grpc": ["control", "ctl"],
    "google/protobuf": ["stats", "control", "ctl"],
    "sqlite3": ["control"],
    "prometheus/": ["control"],
    "civetweb": ["control"],
    "rbd/": ["modules"],
    "rados/": ["modules"],
    "CLI/": ["control", "ctl", "engine", "perf"],
}

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


def room_of(path):
    """Folder and room of an include, or of a file below src; no room: it lies in none of them."""
    parts = path.split("/")
    if len(parts) > 2:
        return parts[0], parts[1]
    name = parts[-1].split(".")[0]
    for room, names in NAMES_OF_ROOM.get(parts[0], {}).items():
        if name in names:
            return parts[0], room
    return parts[0], None


def room_problem(path, include):
    """What is wrong between rooms; empty when nothing is."""
    parts = path.split(os.sep)
    folder, room = room_of("/".join(parts[1:]))
    target_folder, target = room_of(include)
    if folder == target_folder and room == target:
        return ""
    only = ROOM_ONLY_FOR.get((target_folder, target))
    if only is not None and (folder != target_folder or room not in only):
        return f"only {', '.join(only)} may include {target_folder}/{target} ({include})"
    allowed = ROOMS.get(folder, {}).get(room)
    if allowed is not None and folder == target_folder and target not in allowed:
        return f"{folder}/{room} must not include {target_folder}/{target or '...'} ({include})"
    return ""


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
            if target and (problem := room_problem(path, include)):
                yield number, problem
            if match[1] == '"' and (target is None or "/" not in include):
                yield number, f'"{include}" is not "folder/file.h" of ours; use <> for what is not'
            for prefix, layers in ONLY_IN.items():
                if include.startswith(prefix) and layer not in layers:
                    yield number, f"<{include}> belongs to {', '.join(layers)}"


def main():
    found = 0
    for top in ("src", "modules"):
        for folder, folders, files in os.walk(os.path.join(ROOT, top)):
            folders.sort()
            for name in sorted(files):
                if name.endswith((".h", ".cc", ".c")):
                    path = os.path.relpath(os.path.join(folder, name), ROOT)
                    for number, problem in problems_of(path):
                        print(f"{path}:{number}: {problem}")
                        found += 1
    return 1 if found else 0


sys.exit(main())
