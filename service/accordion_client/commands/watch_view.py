"""Renders a watched job: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from accordion_client.commands.watch_state import StreamItem, WatchState
from accordion_service.domain.jobs.status_table import ENDED, STATUS_TABLE, Tone
from accordion_service.schemas.format import (
    format_change,
    format_duration,
    format_epochs,
    format_layers,
    format_metrics,
    format_number,
    format_override,
    format_packages,
    format_savings,
    format_sent_bytes,
    format_step,
    format_user,
    format_worker_event,
    name_override,
    replace_override_numbers,
)
from accordion_service.schemas.history import GapView
from accordion_service.schemas.jobs import ProgressView
from accordion_workers.spec.public_records import Bytes

_COLOUR_BY_TONE: Mapping[Tone, str] = {
    "good": "green",
    "bad": "red",
    "idle": "yellow",
    "run": "cyan",
    "wait": "white",
}
_COLOURS: Mapping[str, str] = {
    status: _COLOUR_BY_TONE[traits.tone] for status, traits in STATUS_TABLE.items()
}


def render_panel(state: WatchState) -> RenderableType:
    """Render the state as one frame."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in _panel_rows(state):
        grid.add_row(name, value)
    status = Text(state.status, style=f"bold {_COLOURS.get(state.status, 'white')}")
    title = Text.assemble(state.name, "  ", status)
    return Panel(
        Group(_progress_bar(state), grid),
        title=title,
        subtitle=state.id,
        title_align="left",
        subtitle_align="left",
    )


def describe_event(state: WatchState, event: StreamItem) -> Iterator[str]:
    """Return the line for an event, given the state after it; empty for most."""
    if isinstance(event, GapView):
        yield f"events {event.from_seq} to {event.to_seq} are missing: {event.why}"
        return
    if isinstance(event, ProgressView) or event.type not in _DESCRIBE_BY_TYPE:
        return
    text = _DESCRIBE_BY_TYPE[event.type](state, event.data)
    if text:
        yield text


def describe_epoch(state: WatchState) -> str:
    """Describe a finished epoch in one line."""
    epoch = state.epoch
    sent = Bytes.model_validate(epoch["bytes"])
    parts = [
        f"epoch {epoch['epoch']:>3}{'' if state.epochs is None else f' of 0-{state.epochs - 1}'}",
        f"loss {format_number(epoch['loss']):<8}",
        f"{format_metrics(epoch['metrics']):<16}",
        f"lr {format_number(epoch['lr'], 3):<6}",
        f"saved {format_savings(sent):<6}",
        format_layers(epoch["regime_by_layer"], epoch["level_by_layer"]),
    ]
    return "  ".join(parts).rstrip()


def _describe_status(state: WatchState, data: Mapping[str, Any]) -> str:
    if state.status in ENDED:
        return ""
    return f"{state.status}{format_user(data)}: {state.message or state.reason}"


def _describe_end(state: WatchState, data: Mapping[str, Any]) -> str:
    return f"{state.status}{format_user(data)}{f': {state.message}' if state.message else ''}"


def _describe_override(_: WatchState, data: Mapping[str, Any]) -> str:
    """Return the line for an override, with who requested it; the message of a cancelled one names
    who cancelled it.
    """
    user = data.get("requested_by")
    return f"override {format_override(data)}{f', requested by {user}' if user else ''}"


def _describe_archive(_: WatchState, data: Mapping[str, Any]) -> str:
    return f"{'archived' if data['archived'] else 'unarchived'}{format_user(data)}"


def _describe_decision(state: WatchState, data: Mapping[str, Any]) -> str:
    """Return the line for a decision that changes something; the panel and `show` list all."""
    decision, (before, after) = data["decision"], state.rounds
    told = [_decision_reason(state, decision)] if state.switched else []
    told += [f"rounds {before} → {after} local steps"] if before != after else []
    return f"decision for epoch {decision['epoch']}: {'; '.join(told)}" if told else ""


def _decision_reason(state: WatchState, decision: Mapping[str, Any]) -> str:
    names = {
        override_id: name_override(row["number"], row.get("requested_by"))
        for override_id, row in state.overrides.items()
    }
    return replace_override_numbers(decision["reason"], names.values())


def _is_status_told(data: Mapping[str, Any]) -> bool:
    """Return whether the status that comes with this event, RUNNING or FAILED, says the same."""
    match data:
        case {"what": "started", "cause": "start"} | {"what": "failed", "final": True}:
            return True
    return False


_DESCRIBE_BY_TYPE: Mapping[str, Callable[[WatchState, Mapping[str, Any]], str]] = {
    "status": _describe_status,
    "workers": lambda _, data: "" if _is_status_told(data) else format_worker_event(data),
    "epoch": lambda state, _: describe_epoch(state),
    "decision": _describe_decision,
    "override": _describe_override,
    "packages": lambda _, data: f"packages: {format_packages(data)}",
    "end": _describe_end,
    "archive": _describe_archive,
    "change": lambda _, data: format_change(data),
}


def _describe_workers(state: WatchState) -> str:
    """Describe the number of training workers, and the allocated number if it differs."""
    allocated = f" of {state.workers}" if state.workers not in {0, state.world_size} else ""
    return (
        f"{state.world_size}{allocated}"
        f" worker{'' if (state.workers or state.world_size) == 1 else 's'}"
    )


def _progress_bar(state: WatchState) -> RenderableType:
    progress = state.progress
    if progress is not None and progress.steps is None:
        return Text(f"{format_epochs(progress)}  {format_step(progress)}")
    if progress is None or not progress.steps:
        return Text(state.message or state.reason, style="italic")
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    is_known = state.world_size and progress.eta_s is not None
    eta = f"  {format_duration(progress.eta_s)} left" if is_known else ""
    step = format_step(progress)
    grid.add_row(
        ProgressBar(total=progress.steps, completed=progress.step),
        f"{format_epochs(progress)}  {step}{eta}",
    )
    return grid


def _describe_rate(progress: ProgressView) -> str:
    return "" if progress.samples_per_s is None else f"{progress.samples_per_s:.0f} samples/s "


def _panel_rows(state: WatchState) -> Iterator[tuple[str, RenderableType]]:
    progress, epoch = state.progress, state.epoch
    if progress is not None:
        quality = format_metrics(epoch["metrics"] if epoch else {})
        rate = (
            f"  {_describe_rate(progress)}on {_describe_workers(state)}" if state.world_size else ""
        )
        loss = format_number(progress.loss)
        yield "training", Text(f"loss {loss}  {quality}  lr {format_number(progress.lr, 3)}{rate}")
        yield "bytes", Text(format_sent_bytes(progress.bytes))
    if state.decision:
        decision = state.decision
        levels = {name: level["name"] for name, level in decision["level_by_layer"].items()}
        yield (
            "layers",
            Text(format_layers(decision["regime_by_layer"], levels, decision["override_by_layer"])),
        )
        yield "decision", Text(f"epoch {decision['epoch']}: {_decision_reason(state, decision)}")
    for override in state.overrides.values():
        yield "override", Text(format_override(override))
    if state.message:
        yield "state", Text(f"{state.reason}: {state.message}")
