"""`accordion`: the command line.

Exit codes: 0 done, 1 the job or a check failed, 2 usage (a refused request, a wrong setting, a
taken port and a second `accordion up` on one home directory count as such), 3 the service is
unreachable or failed, 130 Ctrl-C.
"""

from __future__ import annotations

import sys

from accordion_client.commands.missing_packages import missing_package


def main() -> None:
    """Run the command line; a missing package is reported in one line."""
    try:
        from accordion_client.commands.cli_app import run_command
    except ModuleNotFoundError as error:
        package = missing_package(error)
        if not package:
            raise
        sys.stderr.write(
            f"accordion: the command line needs the package {package!r}; pip install"
            " accordion-train\n"
        )
        sys.exit(2)
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
