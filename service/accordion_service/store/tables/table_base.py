"""The root of all tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Double, MetaData
from sqlalchemy.orm import DeclarativeBase

_JSON = JSON(none_as_null=True)


class Base(DeclarativeBase):
    """Root of the tables; constraint names are fixed so that migrations can speak of them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {float: Double, dict[str, Any]: _JSON, list[Any]: _JSON, Any: _JSON}  # noqa: RUF012
