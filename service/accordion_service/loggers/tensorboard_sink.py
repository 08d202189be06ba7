"""Writes event files of TensorBoard."""

from __future__ import annotations

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import text

from accordion_service.loggers.sink import Batch, SentRun, SinkSetup


class TensorboardSink:
    """One event file, and a new one whenever the logger is served by a new process or after an
    error. The step is the epoch.

    Files are named in the order in which they were made, since TensorBoard reads them in the order
    of their names. Each begins with a mark that hides what older files have of the same epochs.
    """

    def __init__(self, setup: SinkSetup) -> None:
        self._folder = setup.folder / f"tensorboard-{setup.number}"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._prefix = self._folder / f"{setup.version:08d}"
        self._writer: EventsWriter | None = None
        self._next_epoch = -1
        """First epoch that this file does not have; -1 before the first."""

    def send(self, batch: Batch) -> SentRun:
        """Write the points to the disk."""
        if batch.points:
            writer = self._writer = self._writer or EventsWriter(str(self._prefix))
            self._write(writer, batch)
            writer.flush()
        return SentRun(location=str(self._folder))

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, writer: EventsWriter, batch: Batch) -> None:
        for point in batch.points:
            is_repeated = point.epoch < self._next_epoch
            if self._next_epoch < 0 or is_repeated:
                hide = SessionLog(status=SessionLog.START)
                writer.write_event(Event(wall_time=point.time, step=point.epoch, session_log=hide))
            if batch.is_first and self._next_epoch < 0:
                summary = text("spec", _format_table(batch))
                writer.write_event(Event(wall_time=point.time, step=point.epoch, summary=summary))
            values = [
                Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()
            ]
            summary = Summary(value=values)
            writer.write_event(Event(wall_time=point.time, step=point.epoch, summary=summary))
            self._next_epoch = point.epoch + 1


def _format_table(batch: Batch) -> str:
    """Return tags and hyperparameters as a table in Markdown."""
    rows = [("name", batch.name), *batch.tags.items(), *batch.params.items()]
    lines = (f"| {name} | {value.replace('|', ' ')} |" for name, value in rows)
    return "\n".join(["| | |", "| --- | --- |", *lines])
