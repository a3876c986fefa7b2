#!/usr/bin/env python3
"""Measure how much memory `snapshot restore` and `snapshot save` take, and that it does not grow with the tasks.

It writes a snapshot of N tasks with a result of 1 KiB each, restores it into a fresh database, saves that again, and
compares the task lines byte for byte; then the same for a tenth of N. Run it by `make measure-snapshot N=300000`.
"""

import argparse
import hashlib
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BINARY = Path(os.environ.get("TASKLATCH_BIN", ROOT / "target" / "release" / "tasklatch")).resolve()
RESULT_BYTES = 1024
MIB = 1024 * 1024
FIRST_TIME = datetime(2026, 1, 1, tzinfo=timezone.utc)


class MeasureFailed(Exception):
    """A command failed, or what came back is not what went in."""


class Measured(NamedTuple):
    peak_mib: float
    seconds: float


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=300_000, metavar="N", help="how many tasks (default: %(default)s)")
    tasks = parser.parse_args().tasks
    if not os.access(BINARY, os.X_OK):
        print(f"measure: there is no program at {BINARY}; run `make build`", file=sys.stderr)
        return 1
    print(f"{'tasks':>9}  {'file MiB':>8}  {'restore peak MiB':>16}  {'seconds':>7}  {'save peak MiB':>13}  {'seconds':>7}", flush=True)
    try:
        for count in (max(1, tasks // 10), tasks):
            measure(count)
    except MeasureFailed as failure:
        print(f"measure: {failure}", file=sys.stderr)
        return 1
    print("\nThe saved task lines are byte for byte those that were restored.")
    print(f"No peak can read below {peak_mib(resource.RUSAGE_SELF):.1f} MiB, what this script itself has taken.")
    return 0


def measure(count):
    with tempfile.TemporaryDirectory(prefix="tasklatch-measure-") as folder:
        given, database, saved = (Path(folder) / name for name in ("given.jsonl", "tasklatch.db", "saved.jsonl"))
        write_snapshot(given, count)
        restore = run_measured("snapshot", "restore", str(given), "--database", str(database))
        save = run_measured("snapshot", "save", str(saved), "--database", str(database))
        compare_task_lines(given, saved, count)
        print(f"{count:>9}  {given.stat().st_size / MIB:>8.1f}  {restore.peak_mib:>16.1f}  {restore.seconds:>7.1f}  "
              f"{save.peak_mib:>13.1f}  {save.seconds:>7.1f}", flush=True)


def write_snapshot(path, count):
    """A snapshot file as the protocol has it: a head, a task a line, and an end with the hash of all before it."""
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        def write(line):
            file.write(line)
            digest.update(line)
        write(line_of({"tasklatch_snapshot": 1, "created_at": time_of(count + 2),
                       "ledger_id": "019b76da-a800-7000-8000-000000000000"}))
        for number in range(count):
            write(line_of(task_of(number)))
        file.write(line_of({"end": True, "tasks": count, "sha256": digest.hexdigest()}))


def task_of(number):
    result = {
        "status": "completed",
        "summary": f"Number {number} is done",
        "artifacts": [f"branch:task/{number}"],
        "evidence": {"log": "", "tests": {"failed": 0, "passed": number}},
        "reported_at": time_of(number + 1),
    }
    result["evidence"]["log"] = "x" * (RESULT_BYTES - len(line_of(result)) + 1)
    return {
        "task_id": f"task-{number}",
        "pane_id": None,
        "title": f"Task number {number}",
        "lifecycle": "completed",
        "metadata": None,
        "deadline": None,
        "reason": None,
        "result": result,
        "disposition": None,
        "revision": 2,
        "created_at": time_of(number),
        "updated_at": time_of(number + 1),
    }


def time_of(number):
    return (FIRST_TIME + timedelta(milliseconds=number)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def line_of(value):
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def run_measured(*arguments):
    """Run tasklatch to its end; its peak of resident memory and the time it took."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen([BINARY, *arguments], stdin=subprocess.DEVNULL, stdout=printed, stderr=printed)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            printed.seek(0)
            said = printed.read().decode(errors="replace").strip()
            raise MeasureFailed(f"`tasklatch {' '.join(arguments)}` ended with {process.returncode}: {said}")
    return Measured(in_mib(usage.ru_maxrss), time.monotonic() - started)


def peak_mib(who):
    return in_mib(resource.getrusage(who).ru_maxrss)


def in_mib(ru_maxrss):
    return ru_maxrss / (MIB if sys.platform == "darwin" else 1024)


def compare_task_lines(given, saved, count):
    """All lines but the head and the end must be the same, in the same order."""
    with open(given, "rb") as one, open(saved, "rb") as other:
        one.readline()
        other.readline()
        pairs = itertools.zip_longest(itertools.islice(one, count), itertools.islice(other, count))
        for number, (was, now) in enumerate(pairs, 1):
            if was != now:
                raise MeasureFailed(f"task line {number} came back as\n{now!r}\nand was\n{was!r}")
        if json.loads(other.readline()).get("end") is not True:
            raise MeasureFailed(f"the saved snapshot does not end after {count} tasks")


if __name__ == "__main__":
    sys.exit(main())
