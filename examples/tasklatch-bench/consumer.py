#!/usr/bin/env python3
"""What one would write first in Python: nats-py, sqlite3, a transaction for each report, then the answer and the events.

`tasklatch-bench` runs it as the design `python`, on a database that it has made with respond/schema.sql.
"""

import argparse
import asyncio
import json
import sqlite3
from datetime import datetime, timezone

import nats


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the NATS server, as host:port")
    parser.add_argument("--database", required=True)
    arguments = parser.parse_args()
    asyncio.run(consume(arguments.server, arguments.database))


async def consume(server, path):
    database = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "busy_timeout = 30000"):
        database.execute(f"PRAGMA {pragma}")
    client = await nats.connect(f"nats://{server}")

    async def take(message):
        outcome, task = apply(database, message.data)
        body = json.dumps(task if task else {"error": {"code": "result_conflict"}}, separators=(",", ":")).encode()
        await client.publish(message.reply, body, headers={"Tasklatch-Outcome": outcome})
        if outcome == "accepted":
            await publish_events(client, task)

    await client.subscribe("tasklatch.report", queue="tasklatch", cb=take)
    await client.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()


def apply(database, payload):
    """Accept a report, or find that it was accepted, or that another one was."""
    report = json.loads(payload)
    task_id, now = report["task_id"], datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    database.execute("BEGIN IMMEDIATE")
    try:
        task = load(database, task_id)
        inserted = database.execute(
            "INSERT INTO results (task_id, report, reported_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (task_id, payload, now))
        if inserted.rowcount == 0:
            accepted, now = database.execute(
                "SELECT report, reported_at FROM results WHERE task_id = ?", (task_id,)).fetchone()
            outcome = "replayed" if accepted == payload else "conflict"
        else:
            outcome = "accepted"
            task.update(lifecycle=report["status"], revision=task["revision"] + 1, updated_at=now)
            database.execute("UPDATE tasks SET lifecycle = ?, revision = ?, updated_at = ? WHERE task_id = ?",
                             (task["lifecycle"], task["revision"], now, task_id))
            database.execute("INSERT INTO outbox (task_id, revision) VALUES (?, ?)", (task_id, task["revision"]))
        database.execute("COMMIT")
    except BaseException:
        database.execute("ROLLBACK")
        raise
    if outcome == "conflict":
        return outcome, None
    task["result"] = {key: report[key] for key in ("status", "summary", "artifacts", "evidence")} | {"reported_at": now}
    return outcome, task


def load(database, task_id):
    row = database.execute(
        "SELECT title, metadata, lifecycle, revision, created_at, updated_at FROM tasks WHERE task_id = ?",
        (task_id,)).fetchone()
    title, metadata, lifecycle, revision, created_at, updated_at = row
    return {
        "task_id": task_id,
        "pane_id": None,
        "title": title,
        "lifecycle": lifecycle,
        "metadata": json.loads(metadata),
        "deadline": None,
        "reason": None,
        "result": None,
        "disposition": None,
        "revision": revision,
        "created_at": created_at,
        "updated_at": updated_at,
    }


async def publish_events(client, task):
    """The two events of an accepted report, with the headers of docs/protocol.md."""
    task_id, revision = task["task_id"], task["revision"]
    result = {"task_id": task_id, "pane_id": None, "revision": revision, "result": task["result"]}
    for kind, kind_name, data in (("result", "tasklatch.result.accepted", result),
                                  ("task", "tasklatch.task.updated", task)):
        event_id = f"{task_id}.{revision}.{kind}"
        headers = {
            "ce-specversion": "1.0",
            # Any UUID has the length of a ledger's identity.
            "Nats-Msg-Id": f"{task_id}.{event_id}",
            "ce-id": event_id,
            "ce-source": f"tasklatch/{task_id}",
            "ce-type": kind_name,
            "ce-time": task["updated_at"],
            "ce-subject": task_id,
            "content-type": "application/json",
        }
        await client.publish(f"tasklatch.event.{kind}.{task_id}", json.dumps(data, separators=(",", ":")).encode(),
                             headers=headers)


if __name__ == "__main__":
    main()
