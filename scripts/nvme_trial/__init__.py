# SPDX-License-Identifier: Apache-2.0
"""What `make test-nvme` (scripts/test_nvme_drive.py) is made of: the drive, who uses it, Cleat on it, and the trial."""
