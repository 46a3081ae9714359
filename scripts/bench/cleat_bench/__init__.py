# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite: see scripts/bench/run.py for what it does and how to run it.

    machine     what it is measured on, and whether it is quiet
    stats       runs become a figure with its spread; interleaving
    bars        what has to be reached
    lab         what measurements share: programs, cores, pace, the raw record
    engines     cleatd and engines with disks, to be measured
    storage_daemon  the peer: qemu-storage-daemon
    measure_*   what is measured, a file for each question
    plan        all measurements in their order
    results, page, plots  what is written
"""
