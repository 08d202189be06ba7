"""Scripts under torchrun: the library's README's, that of deploy/jobs without a job, and how a
process ends.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
README = HERE.parents[1] / "accordion" / "README.md"
OWN_SCRIPT = HERE.parents[1] / "deploy" / "jobs" / "own-script"
TIMEOUT_S = 200


def torchrun(*script: str, folder: Path = HERE) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        *script,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    run = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run


def test_the_script_in_the_readme_runs_and_saves_bytes(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    run = torchrun("train.py", folder=tmp_path)
    sent, dense = (
        int(n.replace(",", ""))
        for n in re.search(r"sent (\S+) bytes, dense (\S+)", run.stdout).groups()
    )
    assert sent < dense / 4
    assert "critical" in run.stdout


@pytest.mark.parametrize(
    "script", [("ends_later.py", f"{OWN_SCRIPT}/plain.py"), (f"{OWN_SCRIPT}/code/train.py",)]
)
def test_the_example_of_a_script_runs_before_it_was_a_job_and_after(script):
    assert re.fullmatch(r"epoch 0: accuracy 0\.\d+\n", torchrun(*script, "--epochs=1").stdout)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="threads are made late by Linux's scheduler"
)
@pytest.mark.parametrize("method", ["none", "powersgd"])
def test_a_script_may_end_right_after_its_last_step(method):
    assert torchrun("ends_at_once.py", method).stdout == "trained\n"
