#!/usr/bin/env python3
"""Measure how much memory and time the service takes for durable reports that wait, and that memory does not grow with them.

It fills a database with N open tasks and the report stream with a report of 1 KiB on each while no service runs, starts
one, and waits until the stream is empty; then the results are counted. The same is done for a tenth of N before. Run it
by `make measure-durable N=200000`.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nats

ROOT = Path(__file__).resolve().parent.parent
BINARY = Path(os.environ.get("TASKLATCH_BIN", ROOT / "target" / "release" / "tasklatch")).resolve()
NATS_SERVER = Path(os.environ.get("TASKLATCH_TEST_NATS_SERVER", ROOT / ".tools" / "bin" / "nats-server"))
REPORT_BYTES = 1024
UNANSWERED_MAX = 4096
STEP_WITHIN = 600


class MeasureFailed(Exception):
    """Something ended, or what came out is not what went in."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reports", type=int, default=200_000, metavar="N", help="how many reports (default: %(default)s)")
    reports = parser.parse_args().reports
    for program in (BINARY, NATS_SERVER):
        if not os.access(program, os.X_OK):
            print(f"measure: there is no program at {program}; run `make setup build`", file=sys.stderr)
            return 1
    print(f"{'reports':>9}  {'waiting MiB':>11}  {'idle MiB':>8}  {'peak MiB':>8}  {'seconds':>7}  {'reports/s':>9}", flush=True)
    try:
        for count in (max(1, reports // 10), reports):
            asyncio.run(measure(count))
    except MeasureFailed as failure:
        print(f"measure: {failure}", file=sys.stderr)
        return 1
    print("\nEach task has one result, the stream of dead letters is empty. Peak: the service's resident memory, by the kernel.")
    return 0


async def measure(count):
    with tempfile.TemporaryDirectory(prefix="tasklatch-measure-") as folder, contextlib.ExitStack() as stack:
        folder = Path(folder)
        url = start_server(folder, stack)
        database = folder / "tasklatch.db"
        restore_open_tasks(folder / "open.jsonl", database, count)
        connection = await nats.connect(url)
        streams = connection.jetstream()
        service = start_service(url, database, stack)
        idle_mib = resident_mib(service, "VmRSS")
        await until(lambda: held(streams, "TASKLATCH_REPORTS"), 0)
        stop(service)
        await fill(connection, count)
        info = await streams.stream_info("TASKLATCH_REPORTS")
        started = time.monotonic()
        service = start_service(url, database, stack)
        await until(lambda: held(streams, "TASKLATCH_REPORTS"), 0)
        seconds = time.monotonic() - started
        peak_mib = resident_mib(service, "VmHWM")
        dead = await held(streams, "TASKLATCH_DEAD")
        stop(service)
        await connection.close()
        with contextlib.closing(sqlite3.connect(database)) as ledger:
            results = ledger.execute("SELECT count(*) FROM results").fetchone()[0]
        if (results, dead) != (count, 0):
            raise MeasureFailed(f"{count} reports gave {results} results and {dead} dead letters")
        print(f"{count:>9}  {info.state.bytes / 1024 / 1024:>11.1f}  {idle_mib:>8.1f}  {peak_mib:>8.1f}  {seconds:>7.1f}  "
              f"{count / seconds:>9.0f}", flush=True)


def start_server(folder, stack):
    """A nats-server with JetStream on a free port; its address."""
    log = folder / "nats.log"
    server = subprocess.Popen([NATS_SERVER, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", folder / "js", "-l", log])
    stack.callback(server.wait)
    stack.callback(server.kill)
    for _ in range(STEP_WITHIN * 10):
        text = log.read_text() if log.exists() else ""
        found = re.search(r"Listening for client connections on 127\.0\.0\.1:(\d+)", text)
        if found and "Server is ready" in text:
            return f"nats://127.0.0.1:{found[1]}"
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise MeasureFailed("nats-server did not start")


def restore_open_tasks(snapshot, database, count):
    """Fill a database by way of a snapshot file, which is the fastest."""
    digest = hashlib.sha256()
    at = "2026-01-01T00:00:00.000000Z"
    with open(snapshot, "wb") as file:
        def write(value):
            line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
            file.write(line)
            digest.update(line)
        write({"tasklatch_snapshot": 1, "created_at": at, "ledger_id": "019b76da-a800-7000-8000-000000000000"})
        for number in range(count):
            write({"task_id": f"task-{number}", "pane_id": None, "title": f"Task number {number}", "lifecycle": "submitted",
                   "metadata": None, "deadline": None, "reason": None, "result": None, "disposition": None, "revision": 1,
                   "created_at": at, "updated_at": at})
        end = {"end": True, "tasks": count, "sha256": digest.hexdigest()}
        file.write(json.dumps(end, separators=(",", ":")).encode() + b"\n")
    done = subprocess.run([BINARY, "snapshot", "restore", snapshot, "--database", database], capture_output=True, text=True)
    if done.returncode != 0:
        raise MeasureFailed(f"the tasks cannot be restored: {done.stderr.strip()}")


def start_service(url, database, stack):
    service = subprocess.Popen(
        [BINARY, "serve", "--nats-url", url, "--database", database, "--http", "off", "--events", "core", "--durable-reports", "--log", "warn"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    stack.callback(service.wait)
    stack.callback(service.kill)
    if not service.stdout.readline().startswith("ready"):
        raise MeasureFailed("the service did not start")
    return service


def stop(service):
    service.send_signal(signal.SIGTERM)
    if service.wait(STEP_WITHIN) != 0:
        raise MeasureFailed(f"the service ended with {service.returncode}")


async def fill(connection, count):
    """Publish a report on each task, and see that the stream acknowledges each."""
    window = asyncio.Semaphore(UNANSWERED_MAX)
    refused = []

    async def acknowledged(message):
        if "seq" not in json.loads(message.data):
            refused.append(message.data)
        window.release()

    inbox = connection.new_inbox()
    acknowledgments = await connection.subscribe(inbox, cb=acknowledged)
    for number in range(count):
        await window.acquire()
        await connection.publish(f"tasklatch.queue.report.task-{number}", report(number), reply=inbox)
    for _ in range(UNANSWERED_MAX):
        await asyncio.wait_for(window.acquire(), STEP_WITHIN)
    await acknowledgments.unsubscribe()
    if refused:
        raise MeasureFailed(f"the stream refused reports: {refused[0]!r}")


def report(number):
    value = {"status": "completed", "summary": f"Number {number} is done", "evidence": {"log": ""}}
    value["evidence"]["log"] = "x" * (REPORT_BYTES - len(json.dumps(value)))
    return json.dumps(value).encode()


async def held(streams, name):
    try:
        return (await streams.stream_info(name)).state.messages
    except nats.js.errors.NotFoundError:
        return None


async def until(ask, wanted):
    end = time.monotonic() + STEP_WITHIN
    while await ask() != wanted:
        if time.monotonic() > end:
            raise MeasureFailed(f"not in {STEP_WITHIN} s")
        await asyncio.sleep(0.05)


def resident_mib(process, field):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
