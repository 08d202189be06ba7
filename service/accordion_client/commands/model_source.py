"""Names of jobs in `warm_start` of a spec, of which the service takes the IDs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accordion_client.commands.cli_support import find_to_read

if TYPE_CHECKING:
    from accordion_client import Client


def resolve_warm_start(client: Client, spec: dict[str, Any]) -> None:
    """Replace the name of the job whose model is taken, or the start of its ID, by its ID, in
    place. Other values stay as they are, and the service refuses them.

    Raises:
        AmbiguousJob: none matches, or several that have not ended.
    """
    section = spec.get("warm_start")
    reference = section.get("job") if isinstance(section, dict) else None
    if isinstance(section, dict) and isinstance(reference, str) and reference:
        section["job"] = find_to_read(client, reference).id
