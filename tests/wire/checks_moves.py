"""tasklatch.task.start, cancel and review."""

import asyncio

from expect import equal, refused, same_bytes, task_of
from harness import report_of
from registry import check


async def ask_of(wire, subject, task, **more):
    return await wire.ask(f"task.{subject}", {"task_id": task["task_id"], **more})


async def canceled_task(wire):
    return task_of(await ask_of(wire, "cancel", await wire.new_task()))


@check("Starting makes a submitted task working, with one event")
async def _(wire):
    task = await wire.new_task(metadata={"kept": True})
    started = task_of(await ask_of(wire, "start", task))
    equal(started, {**task, "lifecycle": "working", "revision": 2, "updated_at": started["updated_at"]})
    events = await wire.events(task["task_id"])
    equal([event.body for event in events], [task, started])


@check("Starting a working task again answers the same bytes and publishes nothing")
async def _(wire):
    task = await wire.new_task()
    first = await ask_of(wire, "start", task)
    task_of(first)
    async with wire.unchanged(task["task_id"]):
        same_bytes(await ask_of(wire, "start", task), first)


@check("Starting a task that has ended is refused as task_terminal with its lifecycle")
async def _(wire):
    ended = [(await wire.reported_task(status)).body for status in ("completed", "failed", "rejected")]
    for task in [*ended, await canceled_task(wire)]:
        async with wire.unchanged(task["task_id"]):
            answer = await ask_of(wire, "start", task)
            refused(answer, "task_terminal", task_id=task["task_id"], lifecycle=task["lifecycle"])


@check("Canceling a submitted or a working task ends it with the reason, with one event")
async def _(wire):
    submitted, working = await wire.new_task(), await wire.new_task()
    working = task_of(await ask_of(wire, "start", working))
    for task in (submitted, working):
        canceled = task_of(await ask_of(wire, "cancel", task, reason="No longer needed"))
        equal(canceled, {**task, "lifecycle": "canceled", "reason": "No longer needed",
                         "revision": task["revision"] + 1, "updated_at": canceled["updated_at"]})
        equal((await wire.events(task["task_id"]))[-1].body, canceled)


@check("Canceling without a reason leaves the reason null")
async def _(wire):
    for more in ({}, {"reason": None}):
        equal(task_of(await ask_of(wire, "cancel", await wire.new_task(), **more))["reason"], None)


@check("Canceling a canceled task again answers the same bytes, whatever the reason, and publishes nothing")
async def _(wire):
    task = await wire.new_task()
    first = await ask_of(wire, "cancel", task, reason="The first")
    task_of(first)
    async with wire.unchanged(task["task_id"]):
        for more in ({"reason": "The first"}, {}, {"reason": "Another"}):
            same_bytes(await ask_of(wire, "cancel", task, **more), first)


@check("Canceling a task with a result is refused as task_terminal with its lifecycle")
async def _(wire):
    for status in ("completed", "failed", "rejected"):
        task = (await wire.reported_task(status)).body
        async with wire.unchanged(task["task_id"]):
            answer = await ask_of(wire, "cancel", task, reason="Too late")
            refused(answer, "task_terminal", task_id=task["task_id"], lifecycle=status)


@check("A cancel reason that is no string is refused")
async def _(wire):
    task = await wire.new_task()
    async with wire.unchanged(task["task_id"]):
        refused(await ask_of(wire, "cancel", task, reason=7), "invalid_request", field="/reason")


@check("Reviewing a result sets the disposition and nothing else, with one event")
async def _(wire):
    for verdict in ("approved", "rework", "blocked"):
        task = (await wire.reported_task()).body
        reviewed = task_of(await ask_of(wire, "review", task, verdict=verdict, note="Seen", reviewer="ada"))
        disposition = reviewed["disposition"]
        equal(disposition, {"verdict": verdict, "note": "Seen", "reviewer": "ada", "reviewed_at": disposition["reviewed_at"]})
        equal(reviewed, {**task, "disposition": disposition, "revision": 3, "updated_at": reviewed["updated_at"]})
        equal([event.body for event in await wire.events(task["task_id"])][2:], [task, reviewed])


@check("A review without note and reviewer has them as null")
async def _(wire):
    for more in ({}, {"note": None, "reviewer": None}):
        task = (await wire.reported_task()).body
        disposition = task_of(await ask_of(wire, "review", task, verdict="approved", **more))["disposition"]
        equal((disposition["note"], disposition["reviewer"]), (None, None))


@check("The same review again answers the same bytes and publishes nothing")
async def _(wire):
    task = (await wire.reported_task()).body
    review = {"verdict": "blocked", "note": "Waits for the release", "reviewer": "ada"}
    first = await ask_of(wire, "review", task, **review)
    task_of(first)
    async with wire.unchanged(task["task_id"]):
        same_bytes(await ask_of(wire, "review", task, **review), first)


@check("Another review replaces the first, in verdict, note or reviewer")
async def _(wire):
    task = (await wire.reported_task()).body
    reviews = [{"verdict": "rework"}, {"verdict": "approved"}, {"verdict": "approved", "note": "n"},
               {"verdict": "approved", "note": "n", "reviewer": "ada"}, {"verdict": "approved"}]
    for number, review in enumerate(reviews):
        reviewed = task_of(await ask_of(wire, "review", task, **review))
        equal(reviewed["revision"], 3 + number)
        equal({key: reviewed["disposition"][key] for key in ("verdict", "note", "reviewer")},
              {"note": None, "reviewer": None, **review})
    equal(len(await wire.events(task["task_id"])), 3 + len(reviews))


@check("A review of a task without a result is refused as no_result, open or canceled")
async def _(wire):
    working = task_of(await ask_of(wire, "start", await wire.new_task()))
    for task in (await wire.new_task(), working, await canceled_task(wire)):
        async with wire.unchanged(task["task_id"]):
            answer = await ask_of(wire, "review", task, verdict="approved")
            refused(answer, "no_result", task_id=task["task_id"])


@check("A review with no verdict, an unknown one, or a note or a reviewer that is no string is refused")
async def _(wire):
    task = (await wire.reported_task()).body
    async with wire.unchanged(task["task_id"]):
        refused(await ask_of(wire, "review", task), "invalid_request")
        for bad in ("accepted", "Approved", "", None, 1):
            refused(await ask_of(wire, "review", task, verdict=bad), "invalid_request", field="/verdict")
        refused(await ask_of(wire, "review", task, verdict="approved", note=1), "invalid_request", field="/note")
        refused(await ask_of(wire, "review", task, verdict="approved", reviewer=[]), "invalid_request", field="/reviewer")


@check("Of a cancel and a report at once one ends the task, and the other is refused")
async def _(wire):
    for _ in range(10):
        task = await wire.new_task()
        cancel, report = await asyncio.gather(ask_of(wire, "cancel", task), wire.ask("report", report_of(task["task_id"])))
        end = (await wire.get(task["task_id"])).body
        if end["lifecycle"] == "canceled":
            equal(task_of(cancel), end)
            refused(report, "task_terminal", lifecycle="canceled")
        else:
            equal(task_of(report, outcome="accepted"), end)
            refused(cancel, "task_terminal", lifecycle="completed")
        equal((await wire.events(task["task_id"]))[-1].body, end)
