"""Where an answer goes, and where it never goes."""

import asyncio

from expect import Event, equal, same_bytes, task_of
from harness import encoded, report_of
from registry import check

# Reply subjects that would have the service speak for somebody else, each with what hears them.
HOSTILE = {
    "tasklatch.hostile": "tasklatch.hostile",
    "tasklatch.event.hostile.x": "tasklatch.event.hostile.x",
    "tasklatch.task.hostile": "tasklatch.task.hostile",
    "$HOSTILE.reply": "$HOSTILE.>",
    "$SRV.HOSTILE": "$SRV.HOSTILE",
    "hostile.*": "hostile.>",
    "hostile.>": "hostile.>",
    "*": "*",
}


class Ear:
    """Hears what is published on a subject."""

    def __init__(self):
        self.heard = []

    async def hear(self, message):
        self.heard.append(Event.of(message))


async def listening(wire, subject):
    ear = Ear()
    subscription = await wire.connection.subscribe(subject, cb=ear.hear)
    await wire.connection.flush()
    return ear, subscription


async def settled(wire, task_id):
    """All that the service does for requests sent before now is done: each endpoint has answered a later one."""
    await asyncio.gather(
        wire.ask("task.get", {"task_id": task_id}), wire.ask("task.list", {"limit": 1}), wire.report("no-such-task"),
        wire.connection.request("$SRV.PING.tasklatch", b"", timeout=10))
    await wire.events(task_id)


def hostile_reply(reply, observed):
    @check(f"A report with the reply subject {reply} is applied and answered nowhere")
    async def _(wire):
        task = await wire.new_task()
        ear, subscription = await listening(wire, observed)
        await wire.connection.publish("tasklatch.report", encoded(report_of(task["task_id"])), reply=reply)
        events = await wire.heard(task["task_id"], lambda events: len(events) == 3)
        await settled(wire, task["task_id"])
        equal(ear.heard, [])
        equal((await wire.get(task["task_id"])).body, events[-1].body)
        await subscription.unsubscribe()


for each in HOSTILE.items():
    hostile_reply(*each)


@check("Every request and every discovery question with a hostile reply subject is answered nowhere")
async def _(wire):
    task = (await wire.reported_task()).body
    selector = {"task_id": task["task_id"]}
    ear, subscription = await listening(wire, "tasklatch.hostile.>")
    requests = {"tasklatch.task.create": {"title": "Hostile"}, "tasklatch.task.get": selector, "tasklatch.task.list": {},
                "tasklatch.task.start": selector, "tasklatch.task.cancel": selector, "tasklatch.report": {"not": "valid"},
                "tasklatch.task.review": {**selector, "verdict": "approved"}, f"tasklatch.report.{task['task_id']}": {},
                "$SRV.PING": {}, "$SRV.INFO.tasklatch": {}, "$SRV.STATS.tasklatch": {}}
    for number, (subject, payload) in enumerate(requests.items()):
        await wire.connection.publish(subject, encoded(payload), reply=f"tasklatch.hostile.{number}")
    await wire.heard(task["task_id"], lambda events: len(events) == 4)  # The review is a request without a reply subject.
    await settled(wire, task["task_id"])
    equal(ear.heard, [])
    await subscription.unsubscribe()


@check("A reply subject that only begins like the prefix is answered")
async def _(wire):
    task = await wire.new_task()
    for reply in ("tasklatches.reply", "tasklatch-reply", "TASKLATCH.reply"):
        ear, subscription = await listening(wire, reply)
        await wire.connection.publish("tasklatch.task.get", encoded({"task_id": task["task_id"]}), reply=reply)

        async def answered():
            while not ear.heard:
                await asyncio.sleep(0.01)
        await asyncio.wait_for(answered(), 10)
        equal(ear.heard[0].body, task)
        await subscription.unsubscribe()


@check("A report with no reply subject is applied all the same, with both events")
async def _(wire):
    task = await wire.new_task()
    await wire.connection.publish("tasklatch.report", encoded(report_of(task["task_id"], summary="Unheard")))
    events = await wire.heard(task["task_id"], lambda events: len(events) == 3)
    equal([event.kind for event in events], ["task", "result", "task"])
    retry = await wire.report(task["task_id"], summary="Unheard")
    task_of(retry, outcome="replayed")
    same_bytes(retry, await wire.get(task["task_id"]))


@check("A create, a start, a cancel and a review with no reply subject are applied all the same")
async def _(wire):
    first, second = wire.new_id(), (await wire.reported_task()).body["task_id"]
    for subject, payload, wanted in (
            ("create", {"task_id": first, "title": "Unheard"}, (first, "submitted", 1)),
            ("start", {"task_id": first}, (first, "working", 2)),
            ("cancel", {"task_id": first}, (first, "canceled", 3)),
            ("review", {"task_id": second, "verdict": "approved"}, (second, "completed", 3))):
        await wire.connection.publish(f"tasklatch.task.{subject}", encoded(payload))
        task_id, lifecycle, revision = wanted
        events = await wire.heard(task_id, lambda events: events and events[-1].body.get("revision") == revision)
        equal(events[-1].body["lifecycle"], lifecycle)
