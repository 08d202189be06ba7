"""Runs a script without us: FILE ARGUMENTS. Of torch's own fault at the end of a process see
`accordion.compress.executors`.
"""

from __future__ import annotations

import runpy
import sys

from accordion.compress.executors import register_exit_delay

register_exit_delay()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
