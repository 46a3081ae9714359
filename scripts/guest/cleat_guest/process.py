# SPDX-License-Identifier: Apache-2.0
"""Child processes that never outlive the test."""

import atexit
import os
import signal
import subprocess

STOP_SECONDS = 120  # for what can only hang
_TAIL_BYTES = 4096


class BenchError(Exception):
    """Something the test relies on failed; the message names it, the cause and where to read more."""


def tail(path, lines=12):
    """The last lines of a log file, for error messages."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


class Process:
    """One child with its output in a log file.

    The kernel kills it when this process dies, however that happens; an ordinary exit stops it too.
    """

    def __init__(self, name, argv, log_path, pass_fds=(), user_id=None):
        self.name = name
        self.log_path = log_path
        become = [] if user_id is None else [f"--reuid={user_id}", f"--regid={user_id}", "--clear-groups"]
        with open(log_path, "ab") as log:
            log.write(f"$ {' '.join(argv)}\n".encode())
            log.flush()
            self._popen = subprocess.Popen(
                ["setpriv", *become, "--pdeathsig", "KILL", "--", *argv],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=pass_fds,
            )
        self.pid = self._popen.pid
        atexit.register(self.kill)

    def running(self):
        return self._popen.poll() is None

    def check_running(self):
        if not self.running():
            raise BenchError(f"{self.name} ended with status {self._popen.returncode}; the end of "
                             f"{self.log_path}:\n{tail(self.log_path)}")

    def wait(self, seconds):
        """Exit status; negative is the signal that ended it."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.name} (pid {self.pid}) has not ended after {seconds} s") from None

    def kill(self):
        """SIGKILL, and wait until it is gone."""
        if self.running():
            self._popen.kill()
        self._popen.wait()
        atexit.unregister(self.kill)

    def stop(self):
        """SIGTERM and the exit status; a process that does not go in time is killed and that is an error."""
        if self.running():
            self._popen.send_signal(signal.SIGTERM)
        try:
            return self.wait(STOP_SECONDS)
        finally:
            self.kill()
