"""`nodes` and `node`: which nodes take workers, why others do not, and changing that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    create_table,
    print_json,
)
from accordion_client.commands.completion import complete_node
from accordion_service.schemas.format import format_time

if TYPE_CHECKING:
    from accordion_service.schemas.nodes import NodeStatus

_SHOWN_FAILURES = 20
"""Failures to list, the newest of all nodes; `--json` has up to 20 of each node."""
_NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="name, address or ID of the node", autocompletion=complete_node
    ),
]


def list_nodes(*, url: UrlOption = "", json: JsonOption = False) -> None:
    """List the nodes of the cluster, why some take no workers, and their failures of the last 24
    hours.
    """
    with connect_client(url) as client:
        found = client.nodes()
    if json:
        print_json(found)
        return
    if not found.items:
        typer.echo("the scheduler has not found a node yet; 'accordion doctor' may say why")
        return
    columns = ("NODE", "ADDRESS", "STATE", "UNTIL", "BY", "CPUS", "GPUS", "FAILURES", "LABELS")
    table = create_table(*columns, "WHY")
    for node in found.items:
        labels = ", ".join(f"{key}={value}" for key, value in _list_labels(node))
        table.add_row(
            node.name,
            node.address or "",
            _describe_state(node),
            format_time(node.until),
            "scheduler" if node.until else node.by or "",
            f"{node.cpus:g}",
            f"{node.gpus:g}",
            str(node.num_failures),
            labels,
            node.reason,
        )
    create_console().print(table)
    _print_failures(found.items)


def cordon(
    name: _NameArgument,
    *,
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="reason, shown to users whose jobs wait for the node"
        ),
    ] = "",
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Place no more workers on a node until it is restored; those that run there stay."""
    with connect_client(url) as client:
        node = client.cordon_node(name, reason)
    if json:
        print_json(node)
    else:
        typer.echo(node.message)


def restore(name: _NameArgument, *, url: UrlOption = "", json: JsonOption = False) -> None:
    """Place workers on a node again that is cordoned or avoided."""
    with connect_client(url) as client:
        node = client.restore_node(name)
    if json:
        print_json(node)
    else:
        typer.echo(_describe_restored(node))


def _describe_restored(node: NodeStatus) -> str:
    if node.alive and not node.draining:
        return f"node {node.name} takes workers"
    return f"node {node.name} is restored, but takes no workers: it is {_describe_state(node)}"


def _describe_state(node: NodeStatus) -> str:
    if not node.alive:
        return f"dead, {node.state.lower()}" if node.message else "dead"
    return "draining" if node.draining else node.state.lower()


def _list_labels(node: NodeStatus) -> list[tuple[str, str]]:
    """List the labels of a node without the ID that Ray adds."""
    return [(key, value) for key, value in sorted(node.labels.items()) if "node-id" not in key]


def _print_failures(nodes: list[NodeStatus]) -> None:
    found = [(one, node.name) for node in nodes for one in node.failures]
    if not found:
        return
    table = create_table("TIME", "NODE", "JOB", "OWNER", "WHAT HAPPENED")
    newest = sorted(found, key=lambda pair: pair[0].time, reverse=True)[:_SHOWN_FAILURES]
    for failure, name in newest:
        time, owner = format_time(failure.time), failure.owner or ""
        table.add_row(time, name, failure.job_id, owner, failure.reason or "")
    typer.echo("")
    create_console().print(table)
