"""Print what the api needs: the `service` and `postgresql` extras of pyproject.toml without what
only workers and the scheduler use.

python service_requirements.py pyproject.toml
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

NOT_OF_THE_API = frozenset({"numpy", "pip", "ray", "scikit-learn", "tensorboardx"})


def requirements(pyproject: Path) -> list[str]:
    """Requirements of the api, one a line."""
    extras = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    return [
        text
        for text in (*extras["service"], *extras["postgresql"])
        if _name(text) not in NOT_OF_THE_API
    ]


def _name(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower()


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path(sys.argv[1]))) + "\n")
