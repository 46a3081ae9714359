#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what finds more the longer it runs: every fuzz target, and the random tests with fresh seeds.

    scripts/soak.py [--seconds 600] [--only NAME ...] [--record FILE]

Every target gets that many seconds. A line a minute says how far it is; findings stay in build/soak/NAME, and the
last result of each target is kept in build/soak/results.json and, with --record, in a file of the repository
(docs/soak.json), each with the commit and the day it was seen on. Exit status 1 when there is a finding. The fuzz targets are
those of build-asan, the tests those of build (`make soak` builds both).
"""
import argparse
import fcntl
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import run_tests

PROGRESS_SECONDS = 60
# Of a run that should have ended by itself. A busy machine may take minutes for a fuzz target's last input and its corpus.
GRACE_SECONDS = 900
# Of the real engine, for each kind of device, when targets get that long; fewer in a shorter run. They are counted, not
# timed: on a busy machine they take a quarter of an hour.
CRASH_KILLS, CRASH_KILLS_FROM_SECONDS = 500, 600
CRASH_LIMIT_SECONDS = 5400
# Likewise, engines exchanged under load: with disks of all kinds, and with disks in Ceph.
UPGRADES, UPGRADES_IN_CEPH = 300, 100
# Likewise, kills and upgrades on NVMe drives, in a guest with emulated processors.
NVME_STEPS, NVME_STEPS_MIN = 200, 8
# Of a disk with writes in doubt, in a run: five seconds of a processor.
DOUBT_SEEDS = 100_000
# Of a target's queues over RDMA, in a run: 40 seconds of a processor.
RDMA_SEEDS = 100_000
# Of runs on Ceph disks, when targets get as long as above.
CEPH_OPERATIONS = 5000
CEPH_IMAGES = 500


def say(text):
    print(f"soak: {text}", flush=True)


class Runner:
    """One process at a time, its output in a file, a line now and then."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, name, command, limit_seconds, progress, environment=None):
        log_path = self.folder / f"{name}.log"
        begin = time.monotonic()
        told = begin
        with open(log_path, "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT,
                                       env={**run_tests.environment(), **(environment or {})})
            try:
                while True:
                    try:
                        status = process.wait(timeout=1)
                        break
                    except subprocess.TimeoutExpired:
                        now = time.monotonic()
                        if now - begin > limit_seconds + GRACE_SECONDS:
                            process.kill()
                            process.wait()
                            status = "did not end"
                            break
                        if now - told >= PROGRESS_SECONDS:
                            told = now
                            say(f"{name}: {now - begin:.0f} s, {progress(log_path)}")
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return status, time.monotonic() - begin, log_path


def tail_of(path, size=65536):
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode(errors="replace")


def fuzz_progress(path):
    lines = re.findall(r"^#(\d+)\s.*?cov: (\d+)", tail_of(path), re.M)
    return f"{lines[-1][0]} inputs, coverage {lines[-1][1]}" if lines else "starting"


def run_fuzz(runner, build, source, name, seconds):
    work = runner.folder / f"fuzz_{name}"
    (work / "corpus").mkdir(parents=True, exist_ok=True)
    seed = random.randrange(1, 2**31)
    say(f"fuzz_{name}: {seconds} s, seed {seed}")
    before = {path.name for path in work.iterdir()}
    command = [
        str(build / "tests" / f"fuzz_{name}"), f"-seed={seed}", "-detect_leaks=0", f"-max_total_time={seconds}",
        "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={work}/",
        str(work / "corpus"), str(source / "tests/fuzz/corpus" / name),
    ]
    status, took, log = runner.run(f"fuzz_{name}", command, seconds, fuzz_progress)
    executed = re.findall(r"stat::number_of_executed_units: (\d+)", tail_of(log))
    findings = sorted(str(work / path.name) for path in work.iterdir() if path.name not in before)
    if status != 0 and not findings:
        findings = [f"exit status {status}, see {log}"]
    return {"target": f"fuzz_{name}", "seed": seed, "seconds": round(took, 1),
            "executions": int(executed[-1]) if executed else 0, "findings": findings}


def test_commands(build):
    """How ctest runs each test of a build tree, by name."""
    run = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"], capture_output=True, text=True, check=True)
    return {test["name"]: test["command"] for test in json.loads(run.stdout)["tests"] if "command" in test}


def run_random(runner, name, command, variables, options, seconds, seeds=1):
    """A random test again and again, each time with another seed, until the time is over.

    `seeds`: how many one run goes through, from the one that it is given.
    """
    begin = time.monotonic()
    executions, findings, left_out = 0, [], set()
    while True:
        seed = random.randrange(1, 2**31)
        environment = dict(os.environ, **{key: value.format(seed=seed) for key, value in variables.items()})
        say(f"{name}: seed {seed}")
        status, _, log = runner.run(name, [*command, *(option.format(seed=seed) for option in options)],
                                    seconds, lambda _: f"seed {seed}", environment)
        executions += seeds
        left_out.update(run_tests.skipped(log.read_text(errors="replace")))
        if status != 0:
            kept = runner.folder / f"{name}-{seed}.log"
            log.rename(kept)
            findings.append(f"seed {seed}: {kept}")
        if time.monotonic() - begin >= seconds:
            break
    return {"target": name, "seconds": round(time.monotonic() - begin, 1), "executions": executions,
            "findings": findings} | ({"skipped": sorted(left_out)} if left_out else {})


def totals_of(devices):
    """What the devices of a run did, in all; the run's own JSON has each."""
    counts = ("requests", "writes_acknowledged", "blocks_compared", "in_flight_at_reconnects")
    return {"devices": len(devices)} | {key: sum(device[key] for device in devices) for key in counts}


def run_crash(runner, command, seconds):
    """Kills of the real engine under guests that check: the run's own JSON is build/soak/crash.json."""
    seed = random.randrange(1, 2**31)
    kills = min(CRASH_KILLS, max(12, CRASH_KILLS * seconds // CRASH_KILLS_FROM_SECONDS))
    say(f"system_crash_test: {kills} kills for each kind of device, seed {seed}")
    out = runner.folder / "crash.json"
    out.unlink(missing_ok=True)
    environment = dict(os.environ, CLEAT_TEST_SEED=str(seed), CLEAT_CRASH_KILLS=str(kills), CLEAT_CRASH_JSON=str(out))
    status, took, log = runner.run("system_crash_test", command, CRASH_LIMIT_SECONDS,
                                   lambda _: f"seed {seed}", environment)
    report = json.loads(out.read_text()) if out.exists() else {"engine_kills": 0}
    findings = []
    if status != 0:
        kept = runner.folder / f"system_crash_test-{seed}.log"
        log.rename(kept)
        findings.append(f"seed {seed}: {kept}")
    runs = [{key: value for key, value in one.items() if key != "devices"} | totals_of(one["devices"])
            for one in report.get("runs", [])]
    return {"target": "system_crash_test", "seed": seed, "seconds": round(took, 1),
            "executions": report["engine_kills"], "runs": runs, "findings": findings}


def run_upgrades(runner, command, name, most, seconds):
    """Engines exchanged under guests that check, a third of the times with a death: the run's own JSON is NAME.json."""
    seed = random.randrange(1, 2**31)
    upgrades = min(most, max(6, most * seconds // CRASH_KILLS_FROM_SECONDS))
    say(f"{name}: {upgrades} upgrades, seed {seed}")
    out = runner.folder / f"{name}.json"
    out.unlink(missing_ok=True)
    environment = dict(os.environ, CLEAT_TEST_SEED=str(seed), CLEAT_UPGRADES=str(upgrades), CLEAT_UPGRADE_JSON=str(out),
                       CLEAT_CEPH_LONG="1")
    status, took, log = runner.run(name, command, CRASH_LIMIT_SECONDS,
                                   lambda _: f"seed {seed}", environment)
    report = json.loads(out.read_text()) if out.exists() else {"upgrades": 0, "devices": []}
    findings = []
    if status != 0:
        kept = runner.folder / f"{name}-{seed}.log"
        log.rename(kept)
        findings.append(f"seed {seed}: {kept}")
    run = {key: report[key] for key in ("deaths", "events", "gap_ms", "finding_count") if key in report}
    return {"target": name, "seed": seed, "seconds": round(took, 1), "executions": report["upgrades"],
            "runs": [run | totals_of(report["devices"])], "findings": findings}


def run_nvme(runner, source, command, seconds):
    """Engines killed and exchanged on NVMe drives, in a guest: the run's own JSON is build/soak/nvme_soak.json."""
    seed = random.randrange(1, 2**31)
    steps = min(NVME_STEPS, max(NVME_STEPS_MIN, NVME_STEPS * seconds // CRASH_KILLS_FROM_SECONDS))
    say(f"nvme_soak: {steps} kills and upgrades, seed {seed}")
    build = source / "build"
    out = runner.folder / "nvme_soak.json"
    out.unlink(missing_ok=True)
    subprocess.run([source / "scripts/guest/make_image.sh", "nvme"], env=dict(os.environ, CLEAT_GUEST_DIR=str(build / "guest")), check=True)
    environment = dict(os.environ, PYTHONPATH=str(source / "scripts/guest"), CLEAT_BIN_DIR=str(build / "bin"),
                       CLEAT_LOG_DIR=str(build / "logs"), CLEAT_TEST_SEED=str(seed), CLEAT_SOAK_STEPS=str(steps), CLEAT_SOAK_JSON=str(out))
    status, took, log = runner.run("nvme_soak", command, CRASH_LIMIT_SECONDS,
                                   lambda path: (tail_of(path).strip().splitlines() or [f"seed {seed}"])[-1], environment)
    report = json.loads(out.read_text()) if out.exists() else {"kills": 0, "upgrades": 0, "devices": []}
    findings = []
    if status != 0:
        kept = runner.folder / f"nvme_soak-{seed}.log"
        log.rename(kept)
        findings.append(f"seed {seed}: {kept}")
    run = {key: report[key] for key in ("kills", "upgrades", "steps", "guest_resets", "buffers_given_back", "tenants", "gap_ms",
                                        "finding_count") if key in report}
    return {"target": "nvme_soak", "seed": seed, "seconds": round(took, 1), "executions": report["kills"] + report["upgrades"],
            "runs": [run | totals_of(report["devices"])], "findings": findings}


def commit_of(source):
    """What is tested: the commit, marked when the tree has changes on top of it."""
    run = subprocess.run(["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12"],
                         capture_output=True, text=True)
    return run.stdout.strip() or "unknown"


def record(path, result):
    """Puts the target's result in place of its last one. Two runs at a time may record in the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        known = json.loads(path.read_text())["targets"] if path.exists() else []
        kept = [old for old in known if old["target"] != result["target"]] + [result]
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({"targets": sorted(kept, key=lambda one: one["target"])}, indent=2) + "\n")
        fresh.replace(path)
    finally:
        os.close(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default 600)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="targets by name, e.g. fuzz_store")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the results there too (docs/soak.json)")
    arguments = parser.parse_args()
    source = Path(__file__).resolve().parent.parent
    build, fuzzers = source / "build", source / "build-asan"
    folder = build / "soak"
    folder.mkdir(exist_ok=True)
    runner = Runner(folder)
    listed = fuzzers / "tests/fuzz/fuzz_targets.txt"
    if not listed.exists():
        sys.exit(f"soak: {listed} is missing: `make soak` builds all that is needed")
    commands = test_commands(build)

    targets = [(f"fuzz_{name}", lambda name=name: run_fuzz(runner, fuzzers, source, name, arguments.seconds))
               for name in listed.read_text().split()]
    # Many operations where there is much time, so that a run is not mostly start and end.
    operations = str(max(2000, 100 * arguments.seconds))
    # 100,000 in the ten minutes, and what is left of them for more.
    crashes = max(1000, arguments.seconds * 100_000 // 600)
    # Those of a whole host take ten times as long.
    hosts = max(100, crashes // 10)
    tests = {
        "sim_operations": ({}, ["--seed", "{seed}", "--ops", operations], 1),
        "sim_crashes": ({}, ["--seed", "{seed}", "--seeds", str(crashes)], crashes),
        "sim_host": ({}, ["--seed", "{seed}", "--seeds", str(hosts)], hosts),
        "nvme_doubt_model_test": ({"CLEAT_DOUBT_SEED": "{seed}", "CLEAT_DOUBT_SEEDS": str(DOUBT_SEEDS)},
                                  ["--gtest_filter=DoubtModel.NoRandomScheduleIsWrong"], DOUBT_SEEDS),
        "sim_rdma_target": ({"CLEAT_RDMA_SEED": "{seed}", "CLEAT_RDMA_SEEDS": str(RDMA_SEEDS)},
                            ["--gtest_filter=RdmaTargetSeeds.AnySeed"], RDMA_SEEDS),
        "system_operations_test": ({"CLEAT_TEST_SEED": "{seed}", "CLEAT_TEST_OPERATIONS": operations}, [], 1),
    }
    ceph = {"CLEAT_CEPH_SEED": "{seed}",
            "CLEAT_CEPH_OPERATIONS": str(min(CEPH_OPERATIONS, max(200, CEPH_OPERATIONS * arguments.seconds // 600)))}
    for name in ("rbd_operations_test", "rbd_random_test"):
        if name in commands:
            tests[name] = (ceph, [], 1)
        else:
            say(f"{name} is LEFT OUT: it was not built (no Ceph here, or -DCLEAT_RBD=OFF)")
    # The control that lasts as long as an engine waits for a lock.
    tests["system_hand_over_control_test"] = ({"CLEAT_UPGRADES": "1"}, [], 1)
    # Without Ceph there are none.
    if "rbd_neighbour_test" in commands:
        tests["rbd_neighbour_test"] = ({"CLEAT_CEPH_LONG": "1"}, [], 1)
        tests["rbd_takeover_test"] = ({}, [], 1)
        images = min(CEPH_IMAGES, max(48, CEPH_IMAGES * arguments.seconds // 600))
        tests["rbd_scale_test"] = ({"CLEAT_CEPH_IMAGES": str(images), "CLEAT_CEPH_ROUNDS": "20"}, [], 1)
    for name, (variables, options, seeds) in tests.items():
        # With options of its own, a simulation's program runs no tests, and a test's program those that they name.
        command = commands[name][:1] if options else commands[name]
        targets.append((name, lambda n=name, c=command, v=variables, o=options, s=seeds: run_random(
            runner, n, c, v, o, arguments.seconds, s)))
    targets.append(("system_crash_test", lambda: run_crash(runner, commands["system_crash_test"], arguments.seconds)))
    for name, most in (("system_upgrade_test", UPGRADES), ("rbd_upgrade_test", UPGRADES_IN_CEPH)):
        if name in commands:
            targets.append((name, lambda n=name, m=most: run_upgrades(runner, commands[n], n, m, arguments.seconds)))
    targets.append(("nvme_soak", lambda: run_nvme(runner, source, commands["nvme_soak"], arguments.seconds)))
    if arguments.only:
        unknown = set(arguments.only) - {name for name, _ in targets}
        if unknown:
            sys.exit(f"soak: no target {', '.join(sorted(unknown))}; there are "
                     f"{', '.join(name for name, _ in targets)}")
        targets = [target for target in targets if target[0] in arguments.only]

    say(f"{len(targets)} targets, {arguments.seconds} s each")
    commit, day = commit_of(source), time.strftime("%Y-%m-%d")
    findings = 0
    for _, run in targets:
        last = dict(run(), commit=commit, day=day)
        findings += len(last["findings"])
        for file in [folder / "results.json", *([arguments.record.resolve()] if arguments.record else [])]:
            record(file, last)
        say(f"{last['target']}: {last['executions']} executions in {last['seconds']} s, "
            f"{len(last['findings'])} findings")
        for test in last.get("skipped", []):
            say(f"  skipped, although it counts as executed: {test}")
        for finding in last["findings"]:
            say(f"  {finding}")
    say(f"{findings} findings; the summary is in {folder / 'results.json'}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
