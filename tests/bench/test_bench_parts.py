#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmark suite that measure nothing: statistics, bars, plan, files, page, plots."""

import json
import os
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from unittest import mock

from cleat_bench import bars, machine, measure_crypto, measure_malloc, measure_qsd, measure_rbd, measure_rbd_images, measure_rdma_target, measure_tcp_failover, measure_tcp_initiator, measure_tcp_target, page, plan, plots, results, stats, target_loads
from cleat_bench.lab import FULL, QUICK
from cleat_bench.stats import Figure, figure
from cleat_guest import BenchError

SUITE_SECONDS_MAX = 14.65 * 60  # of the fifteen minutes; the rest is for the build


def every_figure():
    """Something for every name that a plot or a table of the page asks for."""
    names = list(bars.BARS) + [f"active_{count}_ratio" for count in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    for prefix in plots.CURVES:
        names += [f"{prefix}_qd{depth}_ns" for depth in plots.DEPTHS]
    for kind in ("blk", "scsi"):
        names += [f"{kind}_null_qd1_{percentile}_us" for percentile in plots.PERCENTILES]
    for order in plots.READ_ORDERS:
        names += [f"rdma_reads_in_order_write_p99_{order}_of_{reads}" for reads in range(2, 17, 2)]
    return {name: figure([100.0, 200.0, 300.0], "ns") for name in [*names, *plots.COSTS, *(f"{step}_off_cpu_ratio" for step in plots.TARGET_STEPS), "instructions_blk_split_qd32"]}


class Statistics(unittest.TestCase):
    def test_a_figure_is_the_median_and_one_disturbed_run_does_not_move_it(self):
        calm = figure([10, 11, 10, 11, 10.5], "ns")
        disturbed = figure([10, 11, 10, 900, 10.5], "ns")
        self.assertEqual(calm.value, 10.5)
        self.assertEqual(disturbed.value, 10.5)
        self.assertLess(disturbed.spread, 1)

    def test_spread_is_half_of_what_lies_between_the_quartiles(self):
        self.assertEqual(stats.spread([1, 2, 3, 4, 5]), 1)
        self.assertEqual(stats.spread([1, 4]), 1.5)
        self.assertEqual(stats.spread([7]), 0)

    def test_rounds_alternate_and_turn_round(self):
        order = []
        runs = stats.interleave({name: lambda name=name: order.append(name) or name for name in "ab"}, 3)
        self.assertEqual("".join(order), "abbaab")
        self.assertEqual(runs, {"a": ["a"] * 3, "b": ["b"] * 3})

    def test_a_ratio_is_of_each_round_by_itself(self):
        # The machine halves its speed in the second round: both see it, the ratio does not.
        self.assertEqual(stats.ratio([100, 50, 100], [50, 25, 50]).runs, (2, 2, 2))
        with self.assertRaises(ValueError):
            stats.ratio([1, 2], [1])

    def test_no_figure_comes_of_no_runs(self):
        with self.assertRaises(ValueError):
            figure([], "ns")


class Bars(unittest.TestCase):
    def test_a_bar_is_held_up_to_its_limit(self):
        self.assertEqual(self.word("blk_null_qd32_ns", 150), "held")
        self.assertEqual(self.word("blk_null_qd32_ns", 150.1), "missed")
        self.assertEqual(self.word("active_64_ratio", 0.9), "held")
        self.assertEqual(self.word("active_64_ratio", 0.89), "missed")

    def test_reads_over_rdma_are_judged_by_the_worst_of_the_depths(self):
        counts = {name: 1000.0 for name in target_loads.LOADS} | {"rdma_target_qd8": 1160.0, "rdma_target_qd1": 900.0}
        self.assertEqual(target_loads.rdma_over_tcp(counts), 1.16)
        self.assertFalse(bars.BARS["rdma_target_instructions"].held_by(1.16))

    def test_what_was_not_measured_is_not_held(self):
        self.assertEqual({verdict.word for verdict in bars.judge({})}, {"not measured"})
        self.assertIn("not measured", bars.table(bars.judge({})))

    @staticmethod
    def word(name, value):
        return next(verdict for verdict in bars.judge({name: figure([value], "")}) if verdict.name == name).word


class Plan(unittest.TestCase):
    def test_every_bar_is_given_a_value_by_one_measurement(self):
        given = [bar for measurement in plan.MEASUREMENTS for bar in measurement.bars]
        self.assertEqual(sorted(given), sorted(bars.BARS))

    def test_all_of_it_takes_less_than_fifteen_minutes(self):
        self.assertLess(sum(measurement.seconds(FULL) for measurement in plan.choose(None)), SUITE_SECONDS_MAX)
        self.assertLess(sum(measurement.seconds(QUICK) for measurement in plan.choose(None)), SUITE_SECONDS_MAX / 3)

    def test_a_part_is_chosen_by_name_or_by_part_of_a_bar(self):
        self.assertEqual(self.names("null"), ["null"])
        self.assertEqual(self.names("qsd"), ["qsd-null", "qsd-file"])
        self.assertEqual(self.names("sight_cost, idle"), ["sight", "host"])
        alone = [measurement.name for measurement in plan.MEASUREMENTS if measurement not in plan.choose(None)]
        self.assertEqual(alone, ["nvme", "nvme-upgrade", "tcp-initiator", "tcp-failover", "tcp-target", "rdma", "rdma-target", "pool", "stopped",
                                 "export-upgrade", "rbd-clients"])
        for name in alone:
            self.assertEqual(self.names(name), [name])
        for wrong in ("nothing", "null,,", "qsd,nothing"):
            with self.assertRaisesRegex(ValueError, "there is no such measurement"):
                plan.choose(wrong)

    @staticmethod
    def names(only):
        return [measurement.name for measurement in plan.choose(only)]


class TcpInitiator(unittest.TestCase):
    PRINTED = """TCP transport:
	polls:              1000
	idle_polls:         900
======
TCP (addr:127.0.0.1 subnqn:a) NSID 1 from core  0:   10537.95      41.16      94.87      18.01   16024.31
Total                                            :   10537.95      41.16      94.87      18.01   16024.31
 25.00000% :    22.612us
 50.00000% :    23.659us
"""

    def test_what_spdks_initiator_prints_is_read(self):
        self.assertEqual(measure_tcp_initiator.read_perf(self.PRINTED, 3),
                         {"kiops": 10.53795, "p50_us": 23.659, "idle_polls": 900, "seconds": 3})
        for lacks in ("Total", "50.00000%", "idle_polls"):
            with self.assertRaises(BenchError):
                measure_tcp_initiator.read_perf(self.PRINTED.replace(lacks, "-"), 3)

    def test_what_polls_in_vain_cost_is_told_apart_from_requests(self):
        # A request costs 8,000 ns, a poll in vain 200; half of the second run's time the target stood still.
        def run(requests, seconds):
            return {"kiops": requests / seconds / 1e3, "seconds": seconds, "idle_polls": (seconds * 1e9 - requests * 8000) / 200}

        busy, still = run(150_000, 2), run(75_000, 2)
        idle_ns = measure_tcp_initiator.solve_idle_ns(busy, still)
        self.assertAlmostEqual(idle_ns, 200)
        self.assertAlmostEqual(measure_tcp_initiator.spdk_busy_ns(run(40_000, 1), idle_ns), 8000)
        with self.assertRaises(BenchError):
            measure_tcp_initiator.solve_idle_ns(busy, busy)

    def test_the_bars_are_measured_also_where_polls_in_vain_can_not_be_told(self):
        ours = [{"kiops": 100.0, "p50_us": 9.0, "busy_ns": 1000.0}]
        spdk = [{"kiops": 50.0, "p50_us": 10.0, "idle_polls": 1e6, "seconds": 1.0}]
        known, unknown, starved = (measure_tcp_initiator.compare(32, ours, spdk, idle_ns) for idle_ns in (200.0, None, 2000.0))
        self.assertEqual(set(unknown), set(starved))
        self.assertEqual(known["tcp_initiator_qd32_cpu_vs_spdk"].value, 1000 / 16000)
        self.assertEqual(unknown["tcp_initiator_vs_spdk_qd32"].value, 2)
        self.assertEqual(set(known) - set(unknown), {"tcp_initiator_qd32_cpu_vs_spdk", "tcp_initiator_spdk_qd32_cpu_ns"})
        self.assertEqual(measure_tcp_initiator.compare(1, ours, spdk, None)["tcp_initiator_qd1_p50_vs_spdk"].value, 0.9)

    def test_it_needs_a_built_spdk(self):
        with mock.patch.dict(os.environ, {"PEER_SPDK": ""}), self.assertRaisesRegex(BenchError, "PEER_SPDK"):
            measure_tcp_initiator.measure(None)


class TcpFailover(unittest.TestCase):
    def test_of_all_cuts_the_99th_percentile_counts_and_its_runs_are_the_longest(self):
        quiet = [[1.0] * 98 + [2.0, 3.0]] * 4
        self.assertEqual(measure_tcp_failover.p99(quiet, "ms"), Figure(2.0, "ms", 0.0, (3.0,) * 4))
        self.assertEqual(measure_tcp_failover.p99([*quiet[:3], [1.0] * 90 + [50.0] * 10], "ms").value, 50.0)

    def test_a_silent_path_that_nobody_waited_for_was_not_measured(self):
        lab, target, load = mock.Mock(quick=True), mock.Mock(addresses=["a", "b"]), mock.Mock()
        load.longest_ms.return_value = [measure_tcp_failover.KEEP_ALIVE_MS / 2 - 1]
        target.queues.return_value = 4
        with mock.patch.object(measure_tcp_failover.time, "sleep"), self.assertRaisesRegex(BenchError, "none was on that path"):
            measure_tcp_failover.measure_against(lab, target, load)

    def test_it_needs_a_built_spdk(self):
        with mock.patch.dict(os.environ, {"PEER_SPDK": ""}), self.assertRaisesRegex(BenchError, "PEER_SPDK"):
            measure_tcp_failover.measure(None)


class TcpTarget(unittest.TestCase):
    PRINTED = TcpInitiator.PRINTED

    def test_what_the_host_prints_is_read(self):
        self.assertEqual(measure_tcp_target.read_perf(self.PRINTED), {"kiops": 10.53795, "p50_us": 23.659})
        for lacks in ("Total", "50.00000%"):
            with self.assertRaises(BenchError):
                measure_tcp_target.read_perf(self.PRINTED.replace(lacks, "-"))
        with self.assertRaisesRegex(BenchError, "nothing of its load"):
            measure_tcp_target.read_perf(self.PRINTED.replace("10537.95", "0.00"))

    def test_the_median_is_of_each_round_and_the_worst_is_named(self):
        # Ours over SPDK's: 3, 2, 1 and 0.5 of the four loads, in each of two rounds.
        kiops = {("memory", "randread"): 300.0, ("memory", "randwrite"): 200.0, ("null", "randread"): 100.0, ("null", "randwrite"): 50.0}
        lab, spdk = mock.Mock(pace=mock.Mock(rounds=2)), mock.Mock()
        ours, floor = ({disk: mock.Mock() for disk in measure_tcp_target.DISKS} for _ in range(2))

        def perf(_lab, target, disk, pattern, _depth):
            mine = target in ours.values()
            rate = kiops[disk, pattern] if mine else 100.0 if target is spdk else 2 * kiops[disk, pattern]
            return {"kiops": rate, "p50_us": 1.0, "busy_ns": 3.0 if mine else 4.0}

        with mock.patch.object(measure_tcp_target, "perf", perf):
            figures = measure_tcp_target.measure_rates(lab, spdk, ours, floor)
        for depth in measure_tcp_target.DEPTHS:
            self.assertEqual(figures[f"tcp_target_vs_spdk_qd{depth}"], Figure(1.5, "ratio", 0.0, (1.5, 1.5)))
            self.assertEqual(figures[f"tcp_target_floor_vs_spdk_qd{depth}"].value, 3.0)
            self.assertEqual(figures[f"tcp_target_cpu_vs_spdk_qd{depth}"].value, 0.75)
        self.assertEqual(figures["tcp_target_floor_percent"].value, 50)
        self.assertIn("null randwrite: 0.50", lab.note.call_args.args[1])

    def test_digests_cost_what_the_targets_core_takes_more(self):
        def perf(_lab, _target, _disk, pattern, _depth, *options):
            return {"kiops": 100.0, "busy_ns": (1100.0 if pattern == "randread" else 1200.0) if options else 1000.0}

        with mock.patch.object(measure_tcp_target, "perf", perf):
            figures = measure_tcp_target.measure_digests(mock.Mock(pace=mock.Mock(rounds=1)), mock.Mock())
        self.assertAlmostEqual(figures["tcp_digest_cost_percent"].value, 20)

    def test_it_needs_a_built_spdk(self):
        with mock.patch.dict(os.environ, {"PEER_SPDK": ""}), self.assertRaisesRegex(BenchError, "PEER_SPDK"):
            measure_tcp_target.measure(None)


class RdmaTarget(unittest.TestCase):

    def test_a_request_costs_more_where_fewer_end_in_a_second(self):
        runs = {name: [{load.name: rate for load in measure_rdma_target.LOADS}] for name, rate in (("linux", 2000.0), ("own", 1000.0), ("spdk", 500.0))}
        figures = measure_rdma_target.figures_of(runs)
        for load in measure_rdma_target.LOADS:
            self.assertEqual(figures[f"rdma_target_own_{load.name}_instructions"].value, 1e6)
            self.assertEqual(figures[f"rdma_target_vs_linux_{load.name}"].value, 2)
            self.assertEqual(figures[f"rdma_target_vs_spdk_{load.name}"].value, 0.5)

    def test_it_needs_a_built_spdk(self):
        with mock.patch.dict(os.environ, {"PEER_SPDK": ""}), self.assertRaisesRegex(BenchError, "PEER_SPDK"):
            measure_rdma_target.measure(None)


class Machine(unittest.TestCase):
    def test_one_core_is_refused(self):
        with mock.patch.object(os, "sched_getaffinity", return_value={3}):
            with self.assertRaisesRegex(BenchError, "need 2"):
                machine.choose_cores(None)

    def test_cores_are_the_first_two_or_those_asked_for(self):
        with mock.patch.object(os, "sched_getaffinity", return_value={2, 3, 5}):
            self.assertEqual(machine.choose_cores(None), (2, 3))
            self.assertEqual(machine.choose_cores("5,2"), (5, 2))
            for wrong in ("2,2", "2,4", "2", "a,b"):
                with self.assertRaises(BenchError):
                    machine.choose_cores(wrong)

    def test_a_process_time_is_not_of_this_one(self):
        child = os.fork()
        if child == 0:
            signal_end = os.times().user + 0.05
            while os.times().user < signal_end:
                pass
            os.kill(os.getpid(), 19)  # stopped, so that its time can still be read
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        used = measure_qsd.cpu_ns(child)
        os.kill(child, 9)
        os.waitpid(child, 0)
        self.assertGreaterEqual(used, 40_000_000)


class Malloc(unittest.TestCase):
    def test_the_excess_is_what_the_copy_does_not_explain(self):
        bare = [{"ns_per_copy": 100.0}]
        self.assertAlmostEqual(measure_malloc.excess([150.0], [255.0], bare)["malloc_extra_ns"].value, 0)
        self.assertAlmostEqual(measure_malloc.excess([150.0], [260.0], bare)["malloc_extra_ns"].value, 5)


class Crypto(unittest.TestCase):
    def test_the_excess_is_over_the_bare_cipher_of_the_same_round(self):
        rounds = [{"plain_ns": 10.0, "encrypted_ns": 680.0, "bare_ns": 650.0},
                  {"plain_ns": 20.0, "encrypted_ns": 1360.0, "bare_ns": 1300.0}]
        figures = measure_crypto.excess("crypto_write_4k", rounds)
        self.assertAlmostEqual(figures["crypto_write_4k_excess"].value, 670 / 650)
        self.assertAlmostEqual(figures["crypto_write_4k_excess"].spread, 0)
        self.assertEqual(figures["crypto_write_4k_bare_ns"].runs, (650, 1300))


class Rbd(unittest.TestCase):
    def test_ratios_are_ours_over_fios_of_the_same_round(self):
        fio = [{"iops": 1000.0, "cpu_us": 100.0}, {"iops": 2000.0, "cpu_us": 50.0}]
        half = [{"iops": one["iops"] / 2, "cpu_us": one["cpu_us"] * 3} for one in fio]
        figures = measure_rbd.figures_of(16, {"vhost": half, "pipeline": fio, "fio": fio})
        self.assertEqual(figures["rbd_vhost_vs_fio_qd16_ratio"].runs, (0.5, 0.5))
        self.assertEqual(figures["rbd_vhost_cpu_per_io_ratio"].runs, (3, 3))
        self.assertEqual(figures["rbd_pipeline_vs_fio_qd16_ratio"].value, 1)
        self.assertEqual(figures["rbd_cpu_per_io_ratio"].value, 1)
        self.assertEqual(figures["rbd_fio_qd16_iops"].value, 1500)
        self.assertNotIn("rbd_vhost_cpu_per_io_ratio", measure_rbd.figures_of(1, {"vhost": half, "fio": fio}))

    def test_memory_is_what_is_given_back(self):
        said = ("round 0: 500 images on 32 clients, 6000 ms, 448 threads, 160 descriptors, 300 MiB (20 before), "
                "heap 215040 KiB (2048 after)\n")
        figures = measure_rbd_images.figures_of(said)
        self.assertEqual(figures["rbd_500_images_mib"].value, 208)
        self.assertEqual(figures["rbd_500_images_resident_mib"].value, 280)
        self.assertEqual(figures["rbd_500_images_s"].value, 6)
        with self.assertRaisesRegex(BenchError, "nothing of 500 images"):
            measure_rbd_images.figures_of(said.replace("500", "48"))

    def test_sharing_a_client_is_compared_with_having_one(self):
        run = {"iops": 1000.0, "cpu_us_per_io": 50.0}
        figures = measure_rbd_images.load_figures(4, {"1": [run, run], "4": [run | {"iops": 900.0}, run | {"iops": 500.0}]})
        self.assertEqual(figures["rbd_4_loaded_4_a_client_iops_ratio"].runs, (0.9, 0.5))
        self.assertEqual(figures["rbd_4_loaded_4_a_client_cpu_us_ratio"].value, 1)
        self.assertNotIn("rbd_4_loaded_1_a_client_iops_ratio", figures)
        opened = {"open_s": 1.5, "close_s": 1, "threads": 112, "descriptors": 40, "heap_kib": 2048, "resident_kib": 4096}
        figures = measure_rbd_images.open_figures({"16": [opened]})
        self.assertEqual(figures["rbd_128_images_16_a_client_heap_mib"].value, 2)
        self.assertEqual(figures["rbd_128_images_16_a_client_threads"].value, 112)


class Files(unittest.TestCase):
    def test_results_have_the_shape_that_others_read(self):
        text = results.results_json({"b": Figure(1.23456789, "ns", 0.1, (1.0, 1.5)), "a": figure([2], "ratio")})
        self.assertEqual(json.loads(text)["b"], {"value": 1.2346, "unit": "ns", "spread": 0.1, "runs": [1.0, 1.5]})
        self.assertEqual(list(json.loads(text)), ["a", "b"])
        self.assertEqual(results.read_figures(text)["a"], figure([2.0], "ratio"))

    def test_other_shapes_are_refused(self):
        for wrong in ('{"a": 1}', '{"a": {"value": 1}}', '{"a": {"value": 1, "unit": "", "spread": 0, "runs": 3}}'):
            with self.assertRaises(ValueError):
                results.read_figures(wrong)

    def test_a_file_is_replaced_as_a_whole(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "below" / "f"
            results.write_whole(path, "old")
            results.write_whole(path, "new")
            self.assertEqual(path.read_text(encoding="utf-8"), "new")
            self.assertEqual(os.listdir(path.parent), ["f"])


class Page(unittest.TestCase):
    def test_all_bars_are_on_it_with_their_verdict(self):
        text = page.write(every_figure(), {"cores": "2"}, {}, set())
        for name in bars.BARS:
            self.assertEqual(text.count(f"| `{name}` | {bars.BARS[name].meaning}"), 1, name)
        self.assertNotIn("not measured", text)
        self.assertIn("| cores | 2 |", text)

    def test_what_was_not_measured_is_said_and_not_drawn(self):
        text = page.write({}, {}, {}, set())
        self.assertEqual(text.count("not measured"), len(bars.BARS))
        self.assertNotIn(".svg", text)

    def test_plots_are_drawn_and_linked(self):
        drawn = plots.draw(every_figure())
        self.assertEqual(set(drawn), set(plots.PLOTS))
        text = page.write(every_figure(), {}, {}, set(drawn))
        for name, svg in drawn.items():
            self.assertIn(f"({page.PLOT_DIR}/{name})", text)
            self.assertTrue(ElementTree.fromstring(svg).tag.endswith("svg"))
            self.assertIn("SPDX-License-Identifier", svg.splitlines()[1])
        self.assertEqual(drawn, plots.draw(every_figure()))

    def test_without_figures_nothing_is_drawn(self):
        self.assertEqual(plots.draw({}), {})


if __name__ == "__main__":
    unittest.main()
