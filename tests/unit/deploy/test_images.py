"""What the images leave out is not needed by what they start."""

from __future__ import annotations

import subprocess
import sys

LEFT_OUT = ("torch", "ray", "numpy", "sklearn", "pandas")
BLOCK = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {LEFT_OUT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def test_the_api_is_made_without_what_its_image_leaves_out(tmp_path):
    imports = "from service.app import create_app; from service.settings import load_settings; "
    start = f"{imports} create_app(load_settings(home={str(tmp_path)!r}))"
    said = subprocess.run(
        [sys.executable, "-c", BLOCK + start], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr


def test_the_blocker_blocks():
    said = subprocess.run(
        [sys.executable, "-c", BLOCK + "import numpy"], capture_output=True, text=True, check=False
    )
    assert "No module named 'numpy'" in said.stderr
