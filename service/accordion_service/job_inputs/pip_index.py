"""Whether jobs may name packages in `pip`, and the index that these come from."""

from __future__ import annotations

from pydantic import SecretStr

from accordion_service.errors import Invalid
from accordion_service.settings.settings import Settings
from accordion_workers.records.contract import JobSpec, PipIndex


def check_packages(settings: Settings, spec: JobSpec, pointer: str = "") -> None:
    """Check that the service installs packages, if the spec names some.

    Raises:
        Invalid: it does not.
    """
    if spec.pip and not settings.pip_enabled:
        raise Invalid(
            f"pip names {len(spec.pip)} package{'' if len(spec.pip) == 1 else 's'}, but this"
            " service does not install packages (ACCORDION_PIP_ENABLED is false); leave pip out,"
            " and ask the operator to install them where the workers run",
            pointer,
        )


def find_pip_index(settings: Settings, spec: JobSpec, *, is_resolved: bool) -> PipIndex | None:
    """Return the index of a job's packages; None if it names none. A job whose packages are
    resolved keeps them, whatever the settings are now.

    Raises:
        Invalid: the service installs no packages, and those of the job are not resolved.
    """
    if not spec.pip:
        return None
    if not is_resolved:
        check_packages(settings, spec)
    return PipIndex(
        url=_reveal(settings.pip_index_url), extra_urls=_reveal(settings.pip_extra_index_url)
    )


def _reveal(url: SecretStr | None) -> str:
    return "" if url is None else url.get_secret_value()


__all__ = ["check_packages", "find_pip_index"]
