"""The service as NATS tools find it: $SRV.PING, $SRV.INFO and $SRV.STATS."""

import asyncio
import json

from expect import equal
from registry import check

REQUEST_SUBJECTS = {
    "tasklatch.report",
    "tasklatch.report.*",
    "tasklatch.task.create",
    "tasklatch.task.get",
    "tasklatch.task.list",
    "tasklatch.task.start",
    "tasklatch.task.cancel",
    "tasklatch.task.review",
}


async def discover(wire, subject):
    message = await wire.connection.request(subject, b"", timeout=10)
    return json.loads(message.data)


def identity(said, kind):
    equal(said["type"], f"io.nats.micro.v1.{kind}_response")
    equal(said["name"], "tasklatch")
    assert said["id"] and said["version"], said
    equal(said["metadata"]["prefix"], "tasklatch")
    assert said["metadata"]["ledger_id"], said
    return said["id"], said["metadata"]["ledger_id"]


async def ledger_id(wire):
    return (await discover(wire, "$SRV.INFO.tasklatch"))["metadata"]["ledger_id"]


@check("A ping by any service, by the name and by the id is answered with ledger_id and prefix in the metadata")
async def _(wire):
    name, ledger = identity(await discover(wire, "$SRV.PING"), "ping")
    for subject in ("$SRV.PING.tasklatch", f"$SRV.PING.tasklatch.{name}"):
        equal(identity(await discover(wire, subject), "ping"), (name, ledger))


@check("The service info lists every request subject, each in the queue group tasklatch")
async def _(wire):
    for subject in ("$SRV.INFO", "$SRV.INFO.tasklatch"):
        info = await discover(wire, subject)
        identity(info, "info")
        assert info["description"], info
        missing = REQUEST_SUBJECTS - {endpoint["subject"] for endpoint in info["endpoints"]}
        assert not missing, f"not listed: {missing}"
        for endpoint in info["endpoints"]:
            equal((endpoint["subject"], endpoint["queue_group"]), (endpoint["subject"], "tasklatch"))


@check("The service statistics list every request subject, each in the queue group tasklatch, with the counters of NATS services")
async def _(wire):
    stats = await discover(wire, "$SRV.STATS.tasklatch")
    identity(stats, "stats")
    assert stats["started"], stats
    missing = REQUEST_SUBJECTS - {endpoint["subject"] for endpoint in stats["endpoints"]}
    assert not missing, f"not listed: {missing}"
    for endpoint in stats["endpoints"]:
        equal((endpoint["subject"], endpoint["queue_group"]), (endpoint["subject"], "tasklatch"))
        for counter in ("num_requests", "num_errors", "processing_time", "average_processing_time"):
            assert isinstance(endpoint[counter], int), endpoint


async def counters(wire, subject):
    stats = await discover(wire, "$SRV.STATS.tasklatch")
    found = next(endpoint for endpoint in stats["endpoints"] if endpoint["subject"] == subject)
    return found["num_requests"], found["num_errors"]


@check("The service statistics count requests, and refusals as errors")
async def _(wire):
    task = await wire.new_task()
    requests, errors = await counters(wire, "tasklatch.task.get")
    await wire.ask("task.get", {"task_id": task["task_id"]})
    await wire.ask("task.get", {"task_id": "no-such-task"})

    async def counted():
        while await counters(wire, "tasklatch.task.get") != (requests + 2, errors + 1):
            await asyncio.sleep(0.02)
    await asyncio.wait_for(counted(), 10)
