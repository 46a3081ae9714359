# SPDX-License-Identifier: Apache-2.0
"""What scripts/guest/cleat_guest makes of paths, targets and engines that die, with a target and a disk in place of real ones."""

import contextlib
import io
import os
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../scripts/guest"))
from cleat_guest import nvmf_events  # noqa: E402
from cleat_guest.kernel_target import KernelTarget  # noqa: E402
from cleat_guest.nvmf_events import NvmfEvents  # noqa: E402
from cleat_guest.rdma_guest import Adapters, RdmaTarget  # noqa: E402

PATHS = 2
LOOKS_UNTIL_LOST = 3
LISTENER = "   0: 0F02000A:1144 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 597 1 0000000081fd527d 100 0 0 10 0\n"


def connection(port, peer, state="01", inode=638):
    """A line of /proc/net/tcp, as Linux 6.12 writes it."""
    return (f"   2: 0F02000A:{port:04X} 0202000A:{peer:04X} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 "
            "0000000050768304 20 0 0 10 -1\n")


class Sockets:
    """A guest that has these sockets."""

    def __init__(self, *lines):
        self.lines = lines

    def run(self, command):
        assert command == "cat /proc/net/tcp"
        return "  sl  local_address rem_address   st\n" + "".join(self.lines)


class Identifiers:
    """A guest that has these identifiers of the RDMA connection manager, as `rdma` of Debian 12 shows them."""

    def __init__(self):
        self.lines = []

    def run(self, command):
        return "".join(self.lines) if command == "rdma resource show cm_id" else ""


def identifier(adapter, peer, queue_pair, owner="comm [nvmet_rdma]"):
    return f"link {adapter}/1 cm-idn 2 lqpn {queue_pair} qp-type RC state CONNECT ps TCP {owner} src-addr 192.0.2.1:4420 dst-addr {peer} \n"


class ConnectionsOverRdma(unittest.TestCase):
    def setUp(self):
        self.guest = Identifiers()
        self.adapters = Adapters(self.guest)
        self.target = RdmaTarget(self.adapters, "nvmet_rdma", 4420)
        self.first, self.second = ([identifier(self.adapters.name(path), f"192.0.2.1:{port}", port) for port in (1, 2)] for path in (0, 1))
        self.guest.lines = self.first + self.second
        self.before = self.target.lives()

    def test_what_has_no_peer_or_another_owner_is_none(self):
        self.assertEqual(len(self.before), 4)
        name = self.adapters.name(0)
        self.guest.lines += [f"link {name}/1 cm-idn 0 state LISTEN ps TCP comm [nvmet_rdma] src-addr 192.0.2.1:4420 dst-addr 0.0.0.0:0 \n",
                             f"link {name}/1 cm-idn 4 state ADDR_BOUND ps TCP pid 509 comm target_loop src-addr 192.0.2.1:5 dst-addr 0.0.0.0:0 \n",
                             identifier(name, "192.0.2.1:3", 3, "comm [nvme_rdma]"), identifier(name, "192.0.2.1:4", 4, "pid 509 comm target_loop")]
        self.assertEqual(self.target.lives(), self.before)
        self.assertEqual(self.adapters.connections("target_loop"), {(0, "192.0.2.1:4", "4")})

    def test_an_adapter_that_takes_the_place_of_another_one_has_none_of_its_connections(self):
        self.adapters.add(1)
        self.assertTrue(self.target.has_lost(self.before, [1]))
        self.assertFalse(self.target.has_lost(self.before, [0]))

    def test_a_target_is_settled_with_queues_at_each_adapter_and_none_of_before(self):
        self.assertFalse(self.target.is_settled(self.before, [1]))
        self.assertTrue(self.target.is_settled(set(), [1]))
        self.guest.lines = self.first + [identifier(self.adapters.name(1), "192.0.2.1:7", 7)]
        self.assertFalse(self.target.is_settled(self.before, [1]))
        self.guest.lines.append(identifier(self.adapters.name(1), "192.0.2.1:8", 8))
        self.assertTrue(self.target.is_settled(self.before, [1]))
        self.assertFalse(self.target.is_settled(self.before, [0, 1]))


class KernelTargetsConnections(unittest.TestCase):
    def setUp(self):
        bench = mock.Mock()
        self.target = KernelTarget(bench, "image", "nqn", "uuid")
        self.first, self.second = ([connection(port, peer) for peer in (1, 2)] for port in (4420, 4421))
        self.has(*self.first, *self.second)
        self.before = self.target.lives()

    def has(self, *lines):
        self.target._guest = Sockets(LISTENER, *lines)

    def test_a_listener_is_none(self):
        self.assertEqual(len(self.before), 4)

    def test_one_that_is_closed_is_there_until_the_target_lets_go_of_it(self):
        self.has(connection(4420, 1, state="04"), *self.second)
        self.assertFalse(self.target.has_lost(self.before, [0]))
        self.has(connection(4420, 1, state="04", inode=0), *self.second)
        self.assertTrue(self.target.has_lost(self.before, [0]))

    def test_those_of_other_paths_do_not_count_as_lost(self):
        self.assertFalse(self.target.has_lost(self.before, [1]))
        self.has(*self.first)
        self.assertTrue(self.target.has_lost(self.before, [1]))
        self.assertFalse(self.target.has_lost(self.before, [0, 1]))

    def test_it_is_settled_when_a_path_has_new_ones_and_none_of_the_old(self):
        new = [connection(4420, peer) for peer in (3, 4)]
        self.has(*new, self.first[0], *self.second)
        self.assertFalse(self.target.is_settled(self.before, [0]))
        self.has(new[0], *self.second)
        self.assertFalse(self.target.is_settled(self.before, [0]))
        self.has(*new, *self.second)
        self.assertTrue(self.target.is_settled(self.before, [0]))


class Target:
    """Loses what dies only when it was looked at a few times, and writes all the while."""

    def __init__(self):
        self.addresses = ["a", "b"]
        self.ill = set()  # what is not as it was
        self.told = []
        self._life = 0
        self._now = {(path, 0) for path in range(PATHS)}
        self._dying = {}  # life -> looks
        self._written = 0
        self.size_bytes = 1

    def writes(self):
        self._written += 60
        return self._written

    def lives(self):
        for life in list(self._dying):
            self._dying[life] -= 1
            if self._dying[life] == 0:
                del self._dying[life]
        return self._now | set(self._dying)

    def has_lost(self, before, paths):
        return not {life for life in before & self.lives() if life[0] in paths}

    def is_settled(self, before, paths):
        return not self.ill and self.has_lost(before, paths)

    def renew(self, *paths):
        self._life += 1
        for life in [life for life in self._now if life[0] in paths]:
            self._now.remove(life)
            self._dying[life] = LOOKS_UNTIL_LOST
        self._now |= {(path, self._life) for path in paths}

    def _do(self, what, path, well):
        self.told.append(what)
        if well:
            self.ill.discard((what, path))
        else:
            self.ill.add((what, path))

    def cut(self, path):
        self._do("cut", path, False)
        self.renew(path)

    def mend(self, path):
        self._do("cut", path, True)

    def swallow(self, path, yes):
        self._do("swallow", path, not yes)
        if yes:
            self.renew(path)

    def set_ana(self, path, state):
        self._do("set_ana", path, state == "optimized")

    def stop_still(self):
        self._do("stop_still", None, False)
        self.renew(*range(PATHS))

    def go_on(self):
        self._do("stop_still", None, True)

    def restart(self):
        self._do("restart", None, True)
        self.renew(*range(PATHS))
        self._dying.clear()

    def resize(self, size_bytes):
        self._do("resize", None, True)
        self.size_bytes = size_bytes

    def remove_namespace(self):
        self._do("namespace", None, False)

    def add_namespace(self):
        self._do("namespace", None, True)


class Disk:
    """Notes what the target had when the operator's word was said."""

    def __init__(self, target):
        self._target = target
        self.cleat = mock.Mock()
        self.cleat.restart_engine = lambda: target.renew(*range(PATHS))
        self.cleat.upgrade.return_value = 1.0
        self.confirmed = []

    def size_bytes(self):
        return self._target.size_bytes

    def attachment(self):
        missed = ("namespace", None) in self._target.ill
        return {"storage_state": "STORAGE_STATE_NOT_ANSWERING" if missed else "STORAGE_STATE_OK"}

    def usable_paths(self):
        return PATHS - len({path for what, path in self._target.ill if what == "swallow"})

    def confirm_dead(self):
        self.confirmed.append((set(self._target._dying), set(self._target.ill)))


class Events(unittest.TestCase):
    def setUp(self):
        self.enterContext(mock.patch.object(nvmf_events, "_POLL_SECONDS", 0))
        self.target = Target()
        self.disk = Disk(self.target)
        self.events = NvmfEvents(self.disk, self.target, 0)

    def test_nobody_says_that_commands_are_dead_before_the_target_has_let_go_of_their_connections(self):
        for step, words in ((self.events.cut, PATHS), (self.events.swallow, PATHS), (self.events.stop_still, 1), (self.events.kill_target, 1),
                            (self.events.remove, 1), (self.events.kill_engine, 1)):
            with self.subTest(step=step.__name__):
                self.disk.confirmed.clear()
                step()
                self.assertEqual(self.disk.confirmed, [(set(), set())] * words)

    def test_a_load_sees_all_of_them_and_the_target_is_left_as_it_was(self):
        bench = mock.Mock()
        with mock.patch.object(nvmf_events, "HostLoad") as load, contextlib.redirect_stderr(io.StringIO()):
            load.return_value.end_well.return_value = {"verified_blocks": 1, "latency_ns": {"max": 1}}
            self.events.under_load(bench)
        self.assertEqual(set(self.target.told), {"cut", "swallow", "set_ana", "stop_still", "restart", "resize", "namespace"})
        self.assertEqual(self.target.ill, set())
        self.assertEqual(self.target.size_bytes, 2)
        self.disk.cleat.upgrade.assert_called_once_with("engine-0", "engine-1")


if __name__ == "__main__":
    unittest.main(verbosity=2)
