"""The ten lines of the library's README run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "accordion" / "README.md"


def test_the_script_in_the_readme_runs_under_torchrun_and_saves_bytes(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(README.parents[1])}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    sent, dense, fp16 = (
        int(n.replace(",", "")) for n in re.search(r"sent (\S+) bytes, dense (\S+), fp16 (\S+)", run.stdout).groups()
    )
    assert sent < fp16 / 2 < dense / 2
    assert "critical" in run.stdout
