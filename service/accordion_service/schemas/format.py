"""Formats numbers, events and records as short texts for the terminal; pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.domain.jobs.statuses import Kind

if TYPE_CHECKING:
    from datetime import datetime

    from accordion_service.domain.performance.elasticity import ElasticityStats
    from accordion_service.schemas.jobs import JobView, ProgressView, RayRunView, StorageView
    from accordion_workers.spec.public_records import Bytes

_MAX_LAYERS_SHOWN = 6
"""Maximum number of layers to list; more are counted."""
_OVERRIDE = re.compile(r"override (\d+)\b")


def format_duration(seconds: float | None) -> str:
    """Format a duration in seconds, minutes or hours; a question mark if unknown."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return (
        f"{minutes} min {rest:02d} s"
        if minutes < 100
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )


def format_time(time: datetime | None) -> str:
    """Format a time in this machine's time zone; empty for None."""
    return "" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def format_number(value: float | None, digits: int = 4) -> str:
    """Format a measured value; a dash if there is none."""
    return "-" if value is None else f"{value:.{digits}g}"


def format_rounded(value: float, digits: int = 3) -> str:
    """Format a positive number with this many significant digits, without an exponent."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"


def format_milliseconds(seconds: float) -> str:
    """Format a short duration in milliseconds, from one second on in seconds."""
    return (
        f"{format_rounded(1e3 * seconds)} ms" if seconds < 1.0 else f"{format_rounded(seconds)} s"
    )


NOTHING_SENT = "one worker has no peers"
"""Why no byte was sent in steps that computed gradients."""


def format_sent_bytes(bytes_: Bytes) -> str:
    """Compare the bytes that each worker sent on the wire with those of uncompressed training."""
    sent, uncompressed = bytes_.wire, bytes_.dense_wire
    if not sent and bytes_.dense:
        return f"nothing is sent: {NOTHING_SENT}"
    own = f"each worker sent {format_bytes(sent)} (control {format_bytes(bytes_.control_wire)})"
    if not sent or not uncompressed:
        return own
    beside = f"({format_bytes(uncompressed)}, in fp16 {format_bytes(uncompressed / 2)})"
    return f"{own}, {_format_factor(uncompressed / sent)} uncompressed {beside}"


def _format_factor(ratio: float) -> str:
    if f"{ratio:.1f}" == "1.0":
        return "as much as"
    return f"{ratio:.1f}x less than" if ratio > 1 else f"{1 / ratio:.1f}x more than"


def format_savings(bytes_: Bytes) -> str:
    """Return uncompressed bytes divided by bytes sent, both on the wire; a dash if no gradients
    were sent, as of one worker or one replica.
    """
    return f"{bytes_.dense_wire / bytes_.wire:.1f}x" if bytes_.dense_wire and bytes_.wire else "-"


METHODS_COLUMNS = ("Method", "Payload", "Sent", "Share")
"""Columns of what `format_methods` lists."""


def format_methods(
    payload_by_method: Mapping[str, float], wire_by_method: Mapping[str, float]
) -> list[tuple[str, str, str, str]]:
    """List what each method sent, the most first: its name, payload, bytes on the wire and share of
    these.
    """
    whole = sum(wire_by_method.values())
    sent = {name: wire_by_method.get(name, 0) for name in payload_by_method}
    return [
        (
            name,
            format_bytes(payload_by_method[name]),
            format_bytes(wire),
            f"{100 * wire / whole:.3g} %" if whole else "-",
        )
        for name, wire in sorted(sent.items(), key=lambda item: -item[1])
    ]


def format_layers(
    regimes: Mapping[str, str], levels: Mapping[str, str], said_by: Mapping[str, str] | None = None
) -> str:
    """List regime and level of each layer, or count them; a star marks overridden layers."""
    by_hand = said_by or {}
    words = {
        name: f"{regimes.get(name, '?')} {level}{'*' if name in by_hand else ''}"
        for name, level in levels.items()
    }
    if len(words) > 1 and len(set(words.values())) == 1:
        return f"all {len(words)} {next(iter(words.values()))}"
    if len(words) <= _MAX_LAYERS_SHOWN:
        return "  ".join(f"{name} {word}" for name, word in words.items())
    return "  ".join(f"{count} x {word}" for word, count in Counter(words.values()).most_common())


def replace_override_numbers(text: str, names: Iterable[str]) -> str:
    """Replace numbers of overrides in a text by their names."""
    by_number = {name.split()[0].removeprefix("#"): name for name in names}
    return _OVERRIDE.sub(lambda found: f"override {by_number.get(found[1], found[1])}", text)


def name_override(number: int, user: str | None) -> str:
    """Name an override by its number, and by the user who requested it if known."""
    return f"#{number} by {user}" if user else f"#{number}"


def format_user(data: Mapping[str, Any]) -> str:
    """Name the user who caused an event, to follow what happened; empty if no user did."""
    return f" by {data['by']}" if data.get("by") else ""


def format_change(data: Mapping[str, Any]) -> str:
    """Describe a change of a job's name, labels or priority."""
    before, after = data["before"], data["after"]
    parts = [
        f"{name} {_format_listed(before[name])} → {_format_listed(after[name])}" for name in after
    ]
    return f"changed{format_user(data)}: {', '.join(parts)}"


def _format_listed(value: Any) -> str:
    """Format a name, a priority or labels."""
    if not isinstance(value, Mapping):
        return str(value)
    return " ".join(f"{key}:{label}" for key, label in value.items()) or "none"


_TARGETS = {
    "batch": "the batch",
    "local_steps": "local steps",
    "lr": "the learning rate",
    "weight_decay": "the weight decay",
    "clip_norm": "clip_norm",
}
"""Targets of overrides that have no layers."""


def format_override(override: Mapping[str, Any]) -> str:
    """Describe an override by number, request and state."""
    until = f" until epoch {override['until']}" if override["until"] is not None else ""
    start = override["apply_at"]
    start = (
        f" from epoch {start}"
        if isinstance(start, int)
        else ""
        if start == "next_step"
        else " from the next epoch"
    )
    about = _TARGETS.get(override.get("target", ""), ", ".join(override["layers"]))
    text = f"#{override['number']}: {format_level(override['level'])} for {about}{start}{until}"
    return f"{text}: {override['state']}{_how_far(override)}"


def _how_far(override: Mapping[str, Any]) -> str:
    """Describe where an override was applied and by how many ranks, or why not."""
    if override["state"] == "APPLIED":
        ranks = f"{override['acks']} of {override['world_size']} ranks"
        return f" in epoch {override['epoch']}, step {override['step']}, by {ranks}"
    return f" ({override['message']})" if override["message"] else ""


def format_level(value: Any) -> str:
    """Format a level as requested."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={option}" for name, option in value.items())
    return str(value)


def format_metric(name: str, value: float | None) -> str:
    """Format a metric: a fraction of correct answers in percent, others unchanged; a dash if there
    is none.
    """
    if value is not None and is_accuracy(name) and value <= 1:  # scripts may give percent
        return f"{100 * value:.1f} %"
    return format_number(value)


def is_accuracy(name: str) -> bool:
    """Whether a metric of this name is an accuracy, such as `top5_accuracy`."""
    return name == "accuracy" or name.endswith("_accuracy")


def format_metrics(metrics: Mapping[str, float]) -> str:
    """List the task's metrics by name, accuracy first; a dash if there is only the loss."""
    names = sorted(list_metric_names([metrics]), key=lambda name: not is_accuracy(name))
    return ", ".join(f"{name} {format_metric(name, metrics[name])}" for name in names) or "-"


def list_metric_names(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """List the names of all metrics besides the loss, in order of appearance."""
    return [
        name
        for name in dict.fromkeys(name for metrics in rows for name in metrics)
        if name != "loss"
    ]


_CAUSES = {
    "ordered": "allocation changed",
    "joined": "workers joined",
    "leaving": "node drained",
    "infrastructure": "workers lost",
    "job": "the job failed",
}
"""Labels for the causes of worker group changes."""


def format_workers(job: JobView) -> str:
    """Describe the current, allocated and allowed numbers of workers."""
    if job.kind == Kind.GUEST:
        size = f"{job.world_size} train now" if job.ended_at is None else "none, it has ended"
        return f"{size}; a guest run, started and stopped by its own script"
    allowed = f"{job.min_workers} to {job.max_workers} allowed"
    shards = (job.spec.get("parallelism") or {}).get("shard", 1)
    if shards > 1:
        allowed += f"; {shards} hold a replica of the model together"
    if job.ended_at is not None:
        return f"none, it has ended; {allowed}"
    return f"{job.world_size} train now, {job.workers} allocated, {allowed}"


def format_ray_run(run: RayRunView) -> str:
    """Describe what runs the newest worker group in Ray."""
    engine = {"ray-train": "Ray Train", "actors": "plain actors", None: "engine unknown"}[
        run.engine
    ]
    train_run = f", run {run.train_run}" if run.train_run else ""
    return f"{engine}{train_run}{f', Ray job {run.ray_job_id}' if run.ray_job_id else ''}"


def format_elasticity(cost: ElasticityStats) -> str:
    """Describe what worker group changes have cost so far."""
    parts = [
        f"{_format_count(sum(by.values()), *nouns)} "
        f"({', '.join(f'{_CAUSES.get(name, name)} {count}' for name, count in by.items())})"
        for by, nouns in (
            (cost.resizes, ("resize", "resizes")),
            (cost.recoveries, ("recovery", "recoveries")),
        )
        if by
    ]
    return ", ".join([*parts, _format_cost(cost.steps_rolled_back, cost.seconds_lost)])


def format_missed_checkpoints(count: int) -> str:
    """Describe the checkpoints since the newest complete one."""
    which = "newest checkpoint" if count == 1 else f"newest {count} checkpoints"
    return f"the {which} could not be saved; the log of the job has the cause"


def _format_count(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def format_worker_event(data: Mapping[str, Any]) -> str:
    """Describe the event of a worker group change."""
    match data["what"]:
        case "started" if data["cause"] == "start":
            resumed = f", resumed from {data['resumed_from']}" if data["resumed_from"] else ""
            count = (
                f"{data['world_size']} worker{' trains' if data['world_size'] == 1 else 's train'}"
            )
            return f"{count} from epoch {data['epoch']}{resumed}"
        case "started":
            cause = _CAUSES.get(data["why"], data["why"])
            cost = _format_cost(data["steps_rolled_back"], data["seconds_lost"])
            return f"{data['previous_world_size']} → {data['world_size']} workers: {cause}, {cost}"
        case "resizing":
            return f"at the next step {data['message']}"
        case "granted":
            return f"{data['old']} → {data['new']} workers allocated: {data['message']}"
        case "allowed":
            return f"{data['min']} to {data['max']} workers allowed{format_user(data)}"
    return f"workers ended: {data['message']}"


def _format_cost(steps: int, seconds: float) -> str:
    return f"{steps} step{'' if steps == 1 else 's'} rolled back, {seconds:.1f} s lost"


def format_epochs(progress: ProgressView) -> str:
    """Describe the finished epochs, and the planned ones if known."""
    if progress.epochs is None:
        return f"{progress.epoch} epoch{'' if progress.epoch == 1 else 's'} done"
    return f"{progress.epoch} of {progress.epochs} epochs done"


def format_step(progress: ProgressView) -> str:
    """Describe the newest step, and the planned ones if known."""
    return (
        f"step {progress.step}"
        if progress.steps is None
        else f"step {progress.step}/{progress.steps}"
    )


def format_storage(used: StorageView) -> str:
    """Describe where checkpoints are stored, and which workers verified access and when."""
    when = f"{used.seen_at.astimezone():%Y-%m-%d %H:%M}"
    if used.workers == 1:
        return f"{used.place}, used by one worker since {when}"
    hosts = f"{used.hosts} host{'' if used.hosts == 1 else 's'}"
    return f"{used.place}, shared: verified by {used.workers} workers on {hosts} at {when}"


def format_packages(found: Mapping[str, Any]) -> str:
    """List the packages that a job installs, from its view or its event."""
    names = ", ".join(f"{one['name']} {one['version']}" for one in found["packages"])
    if not names:
        return "none, because the workers have all that pip names"
    cost = f"{format_bytes(found['size_bytes'])}, resolved in {format_duration(found['seconds'])}"
    return f"{names} ({cost})"
