"""Deadlines: a task past its deadline is expired at that moment for a report, and by a sweep for observers."""

import asyncio
from datetime import datetime, timedelta, timezone

from expect import equal, refused, same_bytes, task_of
from registry import check

SHORT = timedelta(seconds=1)
STATUSES = ("completed", "failed", "rejected")


async def task_with_short_deadline(wire, **content):
    deadline = datetime.now(timezone.utc) + SHORT
    task = await wire.new_task(deadline=deadline.isoformat(), **content)
    return task, deadline


async def past(deadline):
    """The moment just after a deadline, which no message tells."""
    while datetime.now(timezone.utc) <= deadline:
        await asyncio.sleep((deadline - datetime.now(timezone.utc)).total_seconds() + 0.001)


async def expired(wire, task):
    """The task as the sweep left it, when its event has come."""
    events = await wire.heard(task["task_id"], lambda heard: heard and heard[-1].body["lifecycle"] == "expired")
    return events[-1].body


@check("A report just past the deadline, also before any sweep, is refused as task_terminal with lifecycle expired")
async def _(wire):
    task, deadline = await task_with_short_deadline(wire)
    await past(deadline)
    answer = await wire.report(task["task_id"])
    refused(answer, "task_terminal", task_id=task["task_id"], lifecycle="expired")
    swept = await expired(wire, task)
    equal(swept, {**task, "lifecycle": "expired", "revision": 2, "updated_at": swept["updated_at"]})


@check("The sweep expires submitted and working tasks with one task event each and no result event")
async def _(wire):
    submitted, _ = await task_with_short_deadline(wire)
    working, _ = await task_with_short_deadline(wire)
    await wire.ask("task.start", {"task_id": working["task_id"]})
    for task, revision in ((submitted, 2), (working, 3)):
        swept = await expired(wire, task)
        equal((swept["revision"], swept["result"], swept["disposition"]), (revision, None, None))
        equal([event.kind for event in await wire.events(task["task_id"])], ["task"] * revision)
        equal((await wire.get(task["task_id"])).body, swept)


@check("After the sweep a report, a start, a cancel and a review of the expired task are refused and change nothing")
async def _(wire):
    task, _ = await task_with_short_deadline(wire)
    await expired(wire, task)
    selector = {"task_id": task["task_id"]}
    async with wire.unchanged(task["task_id"]):
        for status in STATUSES:
            refused(await wire.report(task["task_id"], status=status), "task_terminal", lifecycle="expired", **selector)
        refused(await wire.ask("task.start", selector), "task_terminal", lifecycle="expired", **selector)
        refused(await wire.ask("task.cancel", selector), "task_terminal", lifecycle="expired", **selector)
        refused(await wire.ask("task.review", {**selector, "verdict": "approved"}), "no_result", **selector)


@check("A retry past the deadline of a report accepted before it is replayed, and no sweep touches that task")
async def _(wire):
    reported, _ = await task_with_short_deadline(wire)
    first = await wire.report(reported["task_id"])
    task_of(first, outcome="accepted")
    left_open, deadline = await task_with_short_deadline(wire)
    await past(deadline)
    replay = await wire.report(reported["task_id"])
    task_of(replay, outcome="replayed")
    same_bytes(replay, first)
    await expired(wire, left_open)
    same_bytes(await wire.get(reported["task_id"]), first)
    refused(await wire.report(reported["task_id"], summary="Other"), "result_conflict", differs=["summary"])
    equal(len(await wire.events(reported["task_id"])), 3)


@check("A canceled task stays canceled past its deadline")
async def _(wire):
    canceled, _ = await task_with_short_deadline(wire)
    first = await wire.ask("task.cancel", {"task_id": canceled["task_id"]})
    left_open, _ = await task_with_short_deadline(wire)
    await expired(wire, left_open)
    same_bytes(await wire.get(canceled["task_id"]), first)


@check("Creating the same task again answers it also when its deadline has passed")
async def _(wire):
    deadline = (datetime.now(timezone.utc) + SHORT).isoformat()
    content = {"task_id": wire.new_id(), "title": "Short", "deadline": deadline}
    task = task_of(await wire.ask("task.create", content))
    swept = await expired(wire, task)
    async with wire.unchanged(task["task_id"]):
        equal(task_of(await wire.ask("task.create", content)), swept)


@check("An expired task no longer makes its pane ambiguous")
async def _(wire):
    pane = wire.new_id("pane")
    first, deadline = await task_with_short_deadline(wire, pane_id=pane)
    second = await wire.new_task(pane_id=pane)
    await past(deadline)
    answer = await wire.ask("report", {"pane_id": pane, "status": "completed", "summary": "Done"})
    equal(task_of(answer, outcome="accepted")["task_id"], second["task_id"])
    equal((await expired(wire, first))["lifecycle"], "expired")
