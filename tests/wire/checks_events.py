"""Events: one task event for each change, and before it one result event for a newly accepted report."""

import re
from datetime import datetime

from checks_discovery import ledger_id
from expect import equal, task_of, well_formed_task
from registry import check


async def whole_life(wire):
    """A task through all that can happen to one with a result; the answers of each step."""
    task = await wire.new_task(pane_id=wire.new_id("pane"), metadata={"repo": "web"})
    selector = {"task_id": task["task_id"]}
    return [
        task,
        task_of(await wire.ask("task.start", selector)),
        task_of(await wire.report(task["task_id"], artifacts=["a"], evidence={"n": 1}), outcome="accepted"),
        task_of(await wire.ask("task.review", {**selector, "verdict": "rework", "note": "Again"})),
        task_of(await wire.ask("task.review", {**selector, "verdict": "approved"})),
    ]


@check("Each change of a task has one task event, in order, with the task as of that revision")
async def _(wire):
    steps = await whole_life(wire)
    task_events = [event for event in await wire.events(steps[0]["task_id"]) if event.kind == "task"]
    equal([event.body for event in task_events], steps)
    for event in task_events:
        well_formed_task(event.body)


@check("The result event comes once, right before the task event of its revision, with the result alone")
async def _(wire):
    steps = await whole_life(wire)
    events = await wire.events(steps[0]["task_id"])
    equal([event.kind for event in events], ["task", "task", "result", "task", "task", "task"])
    done = steps[2]
    equal(events[2].body, {key: done[key] for key in ("task_id", "pane_id", "revision", "result")})


@check("Events carry the CloudEvents headers, with an id of task, revision and kind, and a message id with the ledger")
async def _(wire):
    steps = await whole_life(wire)
    task_id, ledger = steps[0]["task_id"], await ledger_id(wire)
    for event in await wire.events(task_id):
        revision = event.body["revision"]
        wanted = {
            "ce-specversion": "1.0",
            "ce-id": f"{task_id}.{revision}.{event.kind}",
            "ce-source": f"tasklatch/{ledger}",
            "ce-type": {"result": "tasklatch.result.accepted", "task": "tasklatch.task.updated"}[event.kind],
            "ce-subject": task_id,
            "content-type": "application/json",
            "Nats-Msg-Id": f"{ledger}.{task_id}.{revision}.{event.kind}",
        }
        equal({name: event.headers.get(name) for name in wanted}, wanted)
        equal(event.subject, f"tasklatch.event.{event.kind}.{task_id}")


@check("The time of an event is a time of RFC 3339 in UTC, and never before the task was made")
async def _(wire):
    steps = await whole_life(wire)
    for event in await wire.events(steps[0]["task_id"]):
        said = event.headers["ce-time"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", said), said
        instant = datetime.fromisoformat(said[:26].rstrip("Z"))
        assert instant >= datetime.fromisoformat(steps[0]["created_at"].rstrip("Z")), said


@check("Events of different tasks come in the order in which their changes were answered")
async def _(wire):
    order = []

    async def note(message):
        order.append(message.subject.split(".")[-1])
    subscription = await wire.connection.subscribe("tasklatch.event.task.>", cb=note)
    await wire.connection.flush()
    tasks = [(await wire.new_task())["task_id"] for _ in range(20)]
    for task_id in reversed(tasks):
        await wire.report(task_id)
    await wire.events(tasks[0])
    await subscription.unsubscribe()
    equal([task_id for task_id in order if task_id in tasks], tasks + tasks[::-1])


@check("Events have no reply subject")
async def _(wire):
    task = (await wire.reported_task()).body
    equal([event.reply for event in await wire.events(task["task_id"])], ["", "", ""])
