# SPDX-License-Identifier: Apache-2.0
"""What all parts of the trial share: how they end, and files of /proc and /sys."""

WAIT_SECONDS = 120  # for what can only hang
MIB = 1 << 20


class Refused(Exception):
    """Nothing was done to the drive; the message says why, and what to do."""


class Failed(Exception):
    """A check that did not go well."""


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def words(path):
    return " ".join(read_text(path).split())
