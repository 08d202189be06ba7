"""Runs a script without us: FILE ARGUMENTS. Of torch's own fault at the end of a process see
`accordion.background`.
"""

from __future__ import annotations

import runpy
import sys

from accordion.background import wait_at_exit

wait_at_exit()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
