"""tasklatch.task.create: insert or compare."""

import asyncio
import re
from datetime import datetime, timedelta, timezone

from expect import equal, refused, same_bytes, task_of
from registry import check

IN_AN_HOUR = datetime.now(timezone.utc).replace(microsecond=250000) + timedelta(hours=1)


def in_offset(instant, hours):
    return instant.astimezone(timezone(timedelta(hours=hours))).isoformat()


def in_utc(instant):
    return instant.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def full_content(wire):
    return {
        "task_id": wire.new_id(),
        "pane_id": wire.new_id("pane"),
        "title": "Fix the flaky login test",
        "metadata": {"repo": "web", "weight": 1, "labels": ["a", "b"]},
        "deadline": in_offset(IN_AN_HOUR, 2),
    }


@check("Creating with every field answers the task with them, submitted, at revision 1")
async def _(wire):
    content = full_content(wire)
    task = task_of(await wire.ask("task.create", content))
    for key in ("task_id", "pane_id", "title", "metadata"):
        equal(task[key], content[key])
    equal((task["lifecycle"], task["revision"]), ("submitted", 1))
    equal((task["result"], task["disposition"], task["reason"]), (None, None, None))
    equal(task["created_at"], task["updated_at"])


@check("A deadline with an offset is answered as the same instant in UTC with microseconds")
async def _(wire):
    task = await wire.new_task(deadline=in_offset(IN_AN_HOUR, -7))
    equal(task["deadline"], in_utc(IN_AN_HOUR))


@check("Creating with a title alone makes an id of t- and a UUIDv7, and everything else null")
async def _(wire):
    task = task_of(await wire.ask("task.create", {"title": "Only a title"}))
    wanted = r"t-[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert re.fullmatch(wanted, task["task_id"]), task["task_id"]
    for key in ("pane_id", "metadata", "deadline", "reason", "result", "disposition"):
        equal(task[key], None)


@check("Creating twice without an id makes two tasks")
async def _(wire):
    one, other = [task_of(await wire.ask("task.create", {"title": "Twin"})) for _ in range(2)]
    assert one["task_id"] != other["task_id"], one


@check("Optional fields that are null are the same as omitted ones")
async def _(wire):
    content = {"task_id": wire.new_id(), "title": "Nulls"}
    first = await wire.ask("task.create", content)
    task_of(first)
    nulls = {**content, "pane_id": None, "metadata": None, "deadline": None}
    same_bytes(await wire.ask("task.create", nulls), first)


@check("Creating the same task again answers the existing one, byte for byte, and publishes nothing")
async def _(wire):
    content = full_content(wire)
    first = await wire.ask("task.create", content)
    task_of(first)
    respelt = {**content, "metadata": {"labels": ["a", "b"], "weight": 1.0, "repo": "web"}, "deadline": in_utc(IN_AN_HOUR)}
    async with wire.unchanged(content["task_id"]):
        same_bytes(await wire.ask("task.create", content), first)
        same_bytes(await wire.ask("task.create", respelt), first)


@check("Creating the same task again answers it as it has become: working, reported, reviewed, canceled")
async def _(wire):
    content = full_content(wire)
    selector = {"task_id": content["task_id"]}
    task_of(await wire.ask("task.create", content))
    steps = (("task.start", selector), ("report", {**selector, "status": "failed", "summary": "No"}),
             ("task.review", {**selector, "verdict": "rework"}))
    for subject, payload in steps:
        changed = await wire.ask(subject, payload)
        same_bytes(await wire.ask("task.create", content), changed)
    other = {"task_id": wire.new_id(), "title": "To be canceled"}
    task_of(await wire.ask("task.create", other))
    canceled = await wire.ask("task.cancel", {"task_id": other["task_id"]})
    same_bytes(await wire.ask("task.create", other), canceled)


def other_content():
    """Each field of a full content, changed, removed or given another type of value that is still allowed."""
    yield "title", "Fix the other login test"
    yield "title", "Fix the flaky login test "
    yield "pane_id", "another-pane"
    yield "pane_id", None
    yield "metadata", {"repo": "web", "weight": 2, "labels": ["a", "b"]}
    yield "metadata", {"repo": "web", "weight": 1, "labels": ["b", "a"]}
    yield "metadata", {}
    yield "metadata", None
    yield "deadline", in_utc(IN_AN_HOUR + timedelta(microseconds=1))
    yield "deadline", None


@check("Creating an existing id with any field of other content is refused as task_conflict and changes nothing")
async def _(wire):
    content = full_content(wire)
    task_of(await wire.ask("task.create", content))
    async with wire.unchanged(content["task_id"]):
        for field, value in other_content():
            refused(await wire.ask("task.create", {**content, field: value}), "task_conflict")


@check("A task id may have 1 to 128 of the letters, digits, _ and -, and nothing else")
async def _(wire):
    for good in (wire.new_id("A_z-9"), wire.new_id().ljust(128, "x"), "_", "-"):
        equal((await wire.new_task(task_id=good, title="Good id"))["task_id"], good)
    for bad in ("", "x" * 129, "a.b", "a b", ">", "*", "a/b", "é", "a\n"):
        refused(await wire.ask("task.create", {"task_id": bad, "title": "Bad id"}), "invalid_request", field="/task_id")


@check("A pane id may have 1 to 128 characters of any kind but control characters")
async def _(wire):
    for good in (wire.new_id("é日> *.").ljust(128, "é"), wire.new_id("w1:p2")):
        equal((await wire.new_task(pane_id=good))["pane_id"], good)
    for bad in ("", "é" * 129, "a\tb", "a\u0000b", "a\u007fb", "a\u0085b"):
        refused(await wire.ask("task.create", {"pane_id": bad, "title": "Bad pane"}), "invalid_request", field="/pane_id")


@check("A task without a title, or with one that is null, empty or no string, is refused")
async def _(wire):
    refused(await wire.ask("task.create", {"task_id": wire.new_id()}), "invalid_request")
    for bad in (None, "", 7, ["a"]):
        refused(await wire.ask("task.create", {"title": bad}), "invalid_request", field="/title")


@check("A deadline that is past, no time, or no string is refused")
async def _(wire):
    past = in_utc(datetime.now(timezone.utc) - timedelta(seconds=1))
    for bad in (past, "tomorrow", "2099-01-01", "2099-01-01T00:00:00", "2099-13-01T00:00:00Z", "", 4070908800):
        refused(await wire.ask("task.create", {"title": "Late", "deadline": bad}), "invalid_request", field="/deadline")


@check("Creating publishes one task event")
async def _(wire):
    task = await wire.new_task()
    events = await wire.events(task["task_id"])
    equal([(event.kind, event.body) for event in events], [("task", task)])


@check("Twenty creations of one task at once make one task with one event")
async def _(wire):
    content = full_content(wire)
    answers = await asyncio.gather(*(wire.ask("task.create", content) for _ in range(20)))
    for answer in answers:
        task_of(answer)
        same_bytes(answer, answers[0])
    equal(len(await wire.events(content["task_id"])), 1)
