# SPDX-License-Identifier: Apache-2.0
"""The ways in which a host may speak to an NVMe/TCP target: digests, DH-HMAC-CHAP, TLS. Each has a subsystem of its own, whose disk a guest's
fio writes and verifies, once all secrets but the right ones were refused and said why.

A target (KernelWays, SpdkWays) obeys
  show(way)           the way's subsystem, with one namespace, for the way's host alone; the address
and says
  uuid(way)           the namespace's
  words(way, what)    what is said where a host comes with what is wrong, or None: what _refusals has
  authenticates(way)  whether the host has authenticated on all of its connections"""

import dataclasses
import os

from cleat_guest.cleat import WAIT, CtlError
from cleat_guest.guest_tls import GuestTls, tls_programs
from cleat_guest.kernel_target import Nvmet, own_loopback
from cleat_guest.nvmf_events import wait_for
from cleat_guest.nvmf_secrets import FORMS, HOST, SUBSYSTEM, TLS, secret_options, tls_psk, write_secret
from cleat_guest.process import BenchError
from cleat_guest.programs import pack
from cleat_guest.spdk_target import nguid
from cleat_guest.verified_load import VerifiedLoad

DISK_BYTES = 16 << 20
_KEEP_ALIVE_MS = 60000  # nothing dies here, and what it would leave in doubt waits for an operator
_PORT = 4420  # of the ways without TLS; those with it have the next one
_CONTROLLER = "vm"
_LOAD = {"size": "8M", "io_size": "4M", "sizes": "4k-256k"}
_NEIGHBOUR = {"size": "4M", "io_size": "4M", "rate": 100}


@dataclasses.dataclass(frozen=True)
class Way:
    """`number`: from 0, of all ways of one target; `digests`: options of cleatctl's; `secrets`: what the target asks for."""

    number: int
    name: str
    digests: tuple = ()
    secrets: tuple = ()

    @property
    def nqn(self):
        return f"nqn.2026-11.example:{self.name}"

    @property
    def uuid(self):
        """Of the namespace."""
        return f"5d0c6e0a-1b52-4d43-9a55-6f3e2c8d71{self.number:02x}"

    @property
    def host_id(self):
        """Each way is used by a host of its own, as Linux' target has one set of secrets for a host, whatever the subsystem."""
        return f"5d0c6e0a-1b52-4d43-9a55-6f3e2c8d72{self.number:02x}"

    @property
    def host_nqn(self):
        return f"nqn.2014-08.org.nvmexpress:uuid:{self.host_id}"

    @property
    def dhchap(self):
        """The host's secret, or None."""
        return self._secret(HOST)

    @property
    def dhchap_ctrl(self):
        return self._secret(SUBSYSTEM)

    @property
    def psk(self):
        return self._secret(TLS)

    @property
    def psk_name(self):
        """What the pre-shared key is made of."""
        return self._name_of(TLS)

    def right(self):
        return {kind: self._secret(kind) for kind in self.secrets}

    def _name_of(self, kind):
        return f"{kind} of {self.name}"

    def _secret(self, kind):
        return FORMS[kind](self._name_of(kind)) if kind in self.secrets else None


_CHAP = (Way(4, "chap", secrets=(HOST,)), Way(5, "chap-both", secrets=(HOST, SUBSYSTEM)))
PLAIN = Way(0, "plain")
TLS_WAYS = (Way(6, "tls", secrets=(TLS,)), Way(7, "tls-chap", secrets=(HOST, SUBSYSTEM, TLS)))
CLEAR_WAYS = (PLAIN, Way(1, "header-digest", ("--header-digest",)), Way(2, "data-digest", ("--data-digest",)),
              Way(3, "digests", ("--header-digest", "--data-digest")), *_CHAP)


def _refusals(way):
    """What is wrong, the secrets that are given then, and what has to be said."""
    right = way.right()
    wrong = {kind: FORMS[kind]("somebody else's") for kind in right}
    if TLS in right:
        yield "another key", right | {TLS: wrong[TLS]}, "the same pre-shared key for this host's NQN and the subsystem's"
    # What comes without an answer has all the time that a disk has to be opened: once for each.
    if way.secrets == (TLS,):
        yield "no key", {}, "connection lost"
    if way == PLAIN:
        yield "a key that the target does not use", {TLS: tls_psk("nobody's")}, "see that its listener has a secure channel"
    if HOST in right:
        yield "another secret", right | {HOST: wrong[HOST]}, "the target does not accept the host's secret"
        yield "no secret", {kind: right[kind] for kind in right if kind == TLS}, "no secret is configured"
    if SUBSYSTEM in right:
        yield "another subsystem's secret", right | {SUBSYSTEM: wrong[SUBSYSTEM]}, f"the target does not have the secret of subsystem {way.nqn}"


class Walk:
    """All of `ways` of one target, with one guest, whose disks are those of one SCSI controller: what comes costs no boot."""

    def __init__(self, bench, target):
        self._bench = bench
        self._target = target
        self._cleat = bench.cleat(engine_options=("--kek-file", bench.path("state/kek")))  # which cleatd makes
        self._folder = bench.path("secrets")
        os.makedirs(self._folder)
        socket = bench.path(f"{_CONTROLLER}.sock")
        self._cleat.create_controller(_CONTROLLER, socket, kind="scsi")
        self._guest = bench.guest(scsi={_CONTROLLER: socket}, tools="fio")
        self.refused = 0  # attachments

    def go(self, ways):
        """The first way's fio goes on until the end, whatever is refused beside it."""
        self._guest.wait_ready()
        neighbour = None
        for way in ways:
            self._create(way)
            for what, secrets, words in _refusals(way):
                self._is_refused(way, what, secrets, self._target.words(way, what) or words, neighbour)
            load = self._load(way, _LOAD if neighbour else _NEIGHBOUR)
            if neighbour:
                load.wait()
            else:
                neighbour = load
                neighbour.wait_begun()
            if self._target.authenticates(way) != bool(way.dhchap):
                raise BenchError(f"{way.name}: its target says that the host's connections were {'not ' if way.dhchap else ''}authenticated")
        neighbour.wait()

    def _create(self, way):
        address = self._target.show(way)
        self._cleat.ctl("subsystem", "create", way.name, "--nqn", way.nqn, "--address", address, "--host-nqn", way.host_nqn, "--host-id", way.host_id,
                        "--keep-alive-ms", str(_KEEP_ALIVE_MS), *way.digests)
        self._cleat.ctl("disk", "create", way.name, "--size", str(DISK_BYTES), "--nvme-tcp", way.name, "--namespace", self._target.uuid(way))

    def _give(self, way, secrets):
        """These secrets and no others."""
        words = secret_options(self._folder, secrets, removes_others=True)
        self._cleat.ctl("subsystem", "update", way.name, *words)

    def _is_refused(self, way, what, secrets, words, neighbour):
        self._give(way, secrets)
        # More than once where a target is too busy to answer, and that is the reason.
        wait_for(f"{way.name}, with {what}, to be refused: \"{words}\"", lambda: self._refusal(way, neighbour), lambda said: words in said)
        self._is_logged(way, words)
        self.refused += 1

    def _refusal(self, way, neighbour):
        """The attachment's message when it has failed; it is gone then."""
        try:
            self._cleat.ctl("attach", way.name, _CONTROLLER, WAIT)
        except CtlError as error:
            if neighbour:
                neighbour.goes_on()  # while the engine tries again and again
            self._cleat.detach_scsi(way.name, _CONTROLLER)
            return error.message
        raise BenchError(f"{way.name}: attached with secrets that are not the right ones")

    def _is_logged(self, way, words):
        with open(self._cleat.cleatd.log_path, encoding="utf-8") as log:
            if not any(words in line and f"disks/{way.name}:" in line for line in log):
                raise BenchError(f"cleatd's log has no line of {way.name} with \"{words}\"")

    def _load(self, way, options):
        self._give(way, way.right())
        place = self._cleat.attach_scsi(way.name, _CONTROLLER)
        return VerifiedLoad(self._guest, self._guest.scsi_device(_CONTROLLER, place), name=way.name, seed=way.number + 1, **options)


class ShownAsWished:
    """What targets have in common that show a namespace by any UUID."""

    @staticmethod
    def uuid(way):
        return way.uuid

    @staticmethod
    def words(_way, _what):
        return None


class SpdkWays(ShownAsWished):
    """SPDK's target, with a file for each way. As root."""

    def __init__(self, bench):
        self._bench = bench
        self._target = bench.spdk()
        self._host = own_loopback()

    def show(self, way):
        image = self._bench.path(f"{way.name}.img")
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        self._target.add_file(way.name, image, way.uuid)
        self._target.add_subsystem(way.nqn, way.name, way.uuid, nguid(way.uuid), any_host=False)
        keys = {"dhchap_key": way.dhchap, "dhchap_ctrlr_key": way.dhchap_ctrl, "psk": way.psk}
        self._target.allow_host(way.nqn, way.host_nqn, **{kind: self._add_key(f"{way.name}-{kind}", key) for kind, key in keys.items() if key})
        address = f"{self._host}:{_PORT + bool(way.psk)}"
        self._target.listen(way.nqn, address, tls=bool(way.psk))
        return address

    def authenticates(self, way):
        queues = self._target.rpc("nvmf_subsystem_get_qpairs", nqn=way.nqn)
        return bool(queues) and all(queue.get("auth", {}).get("state") == "completed" for queue in queues)

    def _add_key(self, name, key):
        self._target.add_key(name, write_secret(self._bench.path(name), key))
        return name


class KernelWays(ShownAsWished):
    """Linux' target, in a guest with a drive for each of `ways` and two network cards, the second one for those with TLS."""

    def __init__(self, bench, ways):
        files = {way.name: bench.path(f"{way.name}.img") for way in ways}
        for path in files.values():
            with open(path, "wb") as file:
                file.truncate(DISK_BYTES)
        with_tls = any(way.psk for way in ways)
        if with_tls:
            files["programs"] = pack(bench.path("programs.tar"), tls_programs())
        self._ports = [_PORT, _PORT + 1]
        self._addresses = [f"{own_loopback()}:{port}" for port in self._ports]
        self._guest = bench.guest("target", tools="nvme", files=files, cpus=1, memory_mb=384, forwards=zip(self._addresses, self._ports))
        self._guest.wait_ready()
        self._guest.cards_up()
        if with_tls:
            self._guest.run(f"tar x -f {self._guest.device('programs')} -C /")
            self._tls = GuestTls(self._guest)

    def show(self, way):
        nvmet = Nvmet(self._guest, way.nqn)
        nvmet.add_namespace(1, self._guest.device(way.name), way.uuid)
        # Without a group for one of the two that authenticate, and with one for the other.
        nvmet.allow_host(way.host_nqn, way.dhchap, way.dhchap_ctrl, "ffdhe2048" if way.dhchap_ctrl else "null")
        if way.psk:
            self._tls.add_psk(way.psk_name, way.host_nqn, way.nqn)
        card = int(bool(way.psk))
        nvmet.listen(card + 1, self._guest.card_address(card), self._ports[card], tls=bool(way.psk))
        return self._addresses[card]

    def authenticates(self, way):
        """The kernel says so of the controller, whose queues it asks all or none."""
        said = self._guest.run(f"dmesg | grep 'creating.* for NQN {way.host_nqn}' | tail -n 1")
        return "with DH-HMAC-CHAP" in said
