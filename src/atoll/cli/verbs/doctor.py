"""`atoll doctor`: what this machine has, what it lacks, and what to do about it.

Here answers are collected and printed; what is asked is decided by the part that needs to know.
"""

from __future__ import annotations

import os
import sys
from itertools import groupby
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from atoll import __version__
from atoll.cli.tables import open_console, print_document
from atoll.client_sync.plumbing.local_server import STATE_DIRECTORY, check_system
from atoll.telemetry.findings import Area, Finding, Status, examine

MARKS = {Status.OK: "✓", Status.WARNING: "!", Status.MISSING: "✗", Status.UNKNOWN: "?"}
PLAIN = str.maketrans({"✓": "+", "✗": "x", "→": ">"})  # where the terminal has no more than ASCII
STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.MISSING: "bold red", Status.UNKNOWN: "dim"}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `--json` prints. Fields are added, never changed."""

    version: str
    state_directory: str
    fit: bool
    summary: str
    findings: list[Finding]


@click.command(short_help="Say what this machine has and what it lacks.")
@click.option("--json", "as_json", is_flag=True, help="Print a document for programs.")
@click.option("--no-trial", is_flag=True, help="Do not make a sandbox at the end.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, readable=False),  # whether it can be used is for the checks to say
    default=STATE_DIRECTORY,
    envvar="ATOLL_STATE_DIR",
    show_default=True,
    show_envvar=True,
    help="Where sandboxes are, or will be, kept.",
)
@click.pass_context
def doctor(context: click.Context, as_json: bool, no_trial: bool, state_dir: Path) -> None:
    """Say what this machine has, what it lacks, and what to do about it.

    Each thing is tried, not guessed from a version, and nothing of the trials remains. Ends with 0 if sandboxes can be
    made here, with 1 if something they need is missing; warnings do not count.
    """
    check_system("`atoll doctor`")
    report = examine_machine(state_dir.absolute(), with_trial=not no_trial)
    if as_json:
        print_document(report)
    else:
        print_report(report, open_console())
    context.exit(0 if report.fit else 1)


def examine_machine(state: Path, *, with_trial: bool) -> Report:
    from atoll.engine.choose import chosen_engine  # where the server is, and nowhere else
    from atoll.images import examination as images
    from atoll.storage import examination as storage
    from atoll.store import choose as store
    from atoll.supervisor import estate, trial

    ground, is_root = storage.nearest_directory(state), sys.platform == "linux" and os.geteuid() == 0
    checks = [
        *chosen_engine().checks(ground),
        *storage.checks(state),
        *store.checks(state),
        *estate.checks(state),
        *images.checks(),
    ]
    findings = [examine(check, is_root=is_root) for check in checks]
    if with_trial and is_fit(findings):
        findings.append(examine(trial.check(ground), is_root=is_root))
    return Report(
        version=__version__,
        state_directory=os.fsencode(state).decode(errors="replace"),
        fit=is_fit(findings),
        summary=summarise(findings),
        findings=findings,
    )


def is_fit(findings: list[Finding]) -> bool:
    return all(finding.status != Status.MISSING for finding in findings)


def summarise(findings: list[Finding]) -> str:
    names = {status: [finding.name for finding in findings if finding.status == status] for status in Status}
    if lacking := names[Status.MISSING]:
        rest = f" Then: {', '.join(lacking[1:])}." if lacking[1:] else ""
        return f"This machine cannot run sandboxes yet. See to this first: {lacking[0]}.{rest}"
    advice = f" Worth a look: {', '.join(names[Status.WARNING])}." if names[Status.WARNING] else ""
    was_tried = any(finding.area == Area.TRIAL for finding in findings)
    if names[Status.UNKNOWN] and not was_tried:
        return f"Nothing is known to be missing. Not examined: {', '.join(names[Status.UNKNOWN])}.{advice}"
    return f"This machine can run sandboxes.{advice}"


def print_report(report: Report, console: Console) -> None:
    plain = {} if console.encoding.startswith("utf") else PLAIN
    width = max(len(finding.name) for finding in report.findings)
    for area, findings in groupby(report.findings, key=lambda finding: finding.area):
        table = Table.grid(Column(width=2), Column(width=width), Column(overflow="fold"), padding=(0, 1))
        for finding in findings:
            mark = Text(MARKS[finding.status].translate(plain), STYLES[finding.status], justify="right")
            table.add_row(mark, Text(finding.name), found(finding))
            if finding.remedy:
                table.add_row("", Text("→".translate(plain), "cyan", justify="right"), Text(finding.remedy, "cyan"))
        console.print(Text(area.capitalize(), "bold"))
        console.print(table)
        console.print()
    console.print(Text(report.summary, "bold green" if report.fit else "bold red"))


def found(finding: Finding) -> Text:
    return Text(finding.found, "dim" if finding.status == Status.UNKNOWN else "")
