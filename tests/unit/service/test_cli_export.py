"""`accordion export`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from accordion.base.messages import Decision
from accordion_client import Client
from accordion_client.commands.job_rows import RowTable
from accordion_client.commands.output_file import open_folder
from accordion_client.commands.table_files import choose_writer
from accordion_service.schemas.jobs import DecisionView
from tests.api.conftest import Live
from tests.unit.service.conftest import Accordion

EPOCHS = 4
TABLES = [
    "attempts",
    "checkpoints",
    "decided_layers",
    "decisions",
    "epochs",
    "layers",
    "overrides",
]


@pytest.fixture(scope="module")
def ended(service: Live) -> str:
    """ID of a job that has ended."""
    spec = {"name": "rows", "task": {"name": "digits-mlp"}, "training": {"epochs": EPOCHS}}
    with Client(service.url) as client:
        job_id = client.submit(spec).id
        assert list(client.events(job_id))
    return job_id


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_all_rows_are_in_files_of_both_formats(
    accordion: Accordion, service: Live, ended: str, tmp_path: Path
) -> None:
    for kind in ("csv", "parquet"):
        said = accordion("export", ended, "--to", tmp_path / kind, "--format", kind, "--json")
        assert said.code == 0, said.err
        files = sorted((tmp_path / kind).iterdir())
        assert [file.name for file in files] == [f"{name}.{kind}" for name in TABLES]
        rows = said.json()["rows"]
        assert (rows["epochs"], rows["attempts"], rows["overrides"]) == (EPOCHS, 1, 0)
    with Client(service.url) as client:
        epochs = client.epochs(ended).items
        decisions = client.decisions(ended).items
    written = read_csv(tmp_path / "csv" / "epochs.csv")
    assert [float(row["loss"]) for row in written] == [epoch.loss for epoch in epochs]
    assert [int(row["bytes.payload"]) for row in written] == [row.bytes.payload for row in epochs]
    by_layer = [
        {"epoch": str(epoch.epoch), "layer": layer, "level": level}
        for epoch in epochs
        for layer, level in epoch.level_by_layer.items()
    ]
    layers = read_csv(tmp_path / "csv" / "layers.csv")
    assert [{name: row[name] for name in by_layer[0]} for row in layers] == by_layer
    typed = {
        name: pyarrow.parquet.read_table(tmp_path / "parquet" / f"{name}.parquet")
        for name in TABLES
    }
    assert typed["epochs"]["loss"].to_pylist() == [epoch.loss for epoch in epochs]
    assert typed["decisions"]["time"].to_pylist() == [row.time for row in decisions]
    assert typed["layers"].num_rows == len(by_layer)
    assert typed["decided_layers"].num_rows == sum(
        len(row.decision.regime_by_layer) for row in decisions
    )


def test_files_of_two_jobs_fit_together(
    accordion: Accordion, ended: str, running: str, tmp_path: Path
) -> None:
    for job_id in (ended, running):
        command = ("export", job_id, "--to", tmp_path / job_id, "--format", "parquet")
        assert accordion(*command).code == 0
    for name in TABLES:
        parts = [
            pyarrow.parquet.read_table(tmp_path / one / f"{name}.parquet")
            for one in (ended, running)
        ]
        shared = [one for one in parts[0].column_names if one in parts[1].column_names]
        assert shared[0] == "job_id"
        pyarrow.concat_tables(part.select(shared) for part in parts)  # of the same types


def test_a_file_without_rows_has_a_header(accordion: Accordion, ended: str, tmp_path: Path) -> None:
    assert accordion("export", ended, "--to", tmp_path / "rows").code == 0
    header = (tmp_path / "rows" / "overrides.csv").read_text().split(",")
    assert header[0] == "job_id"
    assert {"target", "level", "state", "applied_at\n"} <= set(header)


def test_a_column_without_values_has_its_type(
    accordion: Accordion, ended: str, tmp_path: Path
) -> None:
    said = accordion("export", ended, "--to", tmp_path / "rows", "--format", "parquet")
    assert said.code == 0, said.err
    schemas = {
        name: pyarrow.parquet.read_schema(tmp_path / "rows" / f"{name}.parquet") for name in TABLES
    }
    for name, schema in schemas.items():
        assert pyarrow.null() not in schema.types, (name, schema)
    types = {field.name: str(field.type) for field in schemas["overrides"]}
    assert (types["until"], types["level"], types["layers"]) == ("int64", "string", "string")


def test_a_job_without_decisions_has_their_columns() -> None:
    columns = RowTable.of(Decision, DecisionView).columns
    assert {"epoch", "cause", "batch_level", "exchange_plan", "attempt"} <= columns.keys()
    assert not {"decision", "optimizer", "level_by_layer"} & columns.keys()


def test_levels_of_overrides_are_texts_in_one_column(
    accordion: Accordion, running: str, tmp_path: Path
) -> None:
    assert accordion("override", running, "--level", "rank=2", "--wait").code == 0
    assert accordion("override", running, "--level", "low", "--apply-at", "1999").code == 0
    for kind in ("csv", "parquet"):
        said = accordion("export", running, "--to", tmp_path / kind, "--format", kind)
        assert said.code == 0, said.err
    rows = read_csv(tmp_path / "csv" / "overrides.csv")
    assert [row["level"] for row in rows] == ['{"rank": 2}', "low"]
    assert [row["apply_at"] for row in rows] == ["next_step", "1999"]
    assert json.loads(rows[0]["layers"]) == ["*"]
    users = [row["user_by_override"] for row in read_csv(tmp_path / "csv" / "decisions.csv")]
    assert rows[0]["id"] in {name for text in users for name in json.loads(text)}


def test_no_text_of_a_csv_file_is_a_formula(tmp_path: Path) -> None:
    table = RowTable()
    table.add({"reason": "=HYPERLINK(1)", "change": -0.5})
    table.add({"reason": "by hand", "change": 1.0})
    choose_writer("csv")(table, tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines == ["reason,change", "'=HYPERLINK(1),-0.5", "by hand,1.0"]


def test_an_existing_folder_is_kept_unless_forced(
    accordion: Accordion, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert accordion("export", ended).out.startswith("wrote rows-rows with the rows of epochs (4),")
    mine = tmp_path / "rows-rows" / "mine.txt"
    mine.write_text("kept")
    again = accordion("export", ended)
    assert (again.code, "exists; give another folder with --to" in again.err) == (2, True)
    assert accordion("export", ended, "--force").code == 0
    assert mine.read_text() == "kept"
    refused = accordion("export", ended, "--to", mine)
    assert (refused.code, "is a file; give a folder with --to" in refused.err) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows-rows"]


def test_an_existing_folder_may_be_on_another_file_system(tmp_path: Path) -> None:
    with open_folder(tmp_path, force=True) as folder:
        assert folder.new.parent == tmp_path  # so that files are moved within one
        (folder.new / "rows.csv").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("command", ["export", "download"])
def test_a_path_that_cannot_be_looked_at_is_told(
    accordion: Accordion, ended: str, tmp_path: Path, command: str
) -> None:
    said = accordion(command, ended, "--to", tmp_path / ("a" * 300))
    assert (said.code, "cannot be written (File name too long)" in said.err) == (2, True), said.err


def test_nothing_is_left_where_reading_fails(
    accordion: Accordion, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "checkpoints", None)
    assert accordion("export", ended, "--to", tmp_path / "rows").code != 0
    assert list(tmp_path.iterdir()) == []


def test_a_column_that_some_rows_lack_is_empty_there() -> None:
    table = RowTable()
    table.add({"a": 1})
    table.add({"b": 2})
    assert table.columns == {"a": [1, None], "b": [None, 2]}
