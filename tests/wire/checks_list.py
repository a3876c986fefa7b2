"""tasklatch.task.list: pages and filters."""

import asyncio
from datetime import datetime, timedelta, timezone

from expect import accepted_request, equal, refused, well_formed_task
from registry import check

KIB = 1024
PAGES_AT_MOST = 50


async def page_of(wire, **query):
    page = accepted_request(await wire.ask("task.list", query))
    equal(set(page), {"tasks", "cursor"})
    for task in page["tasks"]:
        well_formed_task(task)
    return page["tasks"], page["cursor"]


async def all_pages(wire, **query):
    """The pages of a query, from the first to the one without a cursor."""
    pages, cursor = [], None
    for _ in range(PAGES_AT_MOST):
        tasks, cursor = await page_of(wire, **query, **({"cursor": cursor} if cursor else {}))
        pages.append(tasks)
        if cursor is None:
            return pages
        assert isinstance(cursor, str) and cursor, cursor
    raise AssertionError(f"no end after {PAGES_AT_MOST} pages")


def ids(tasks):
    return [task["task_id"] for task in tasks]


async def ids_of(wire, **query):
    return ids(task for page in await all_pages(wire, **query) for task in page)


async def tasks_of_a_pane(wire, count):
    pane = wire.new_id("pane")
    return pane, [(await wire.new_task(pane_id=pane))["task_id"] for _ in range(count)]


@check("A list has the tasks as they are answered, newest created first")
async def _(wire):
    pane, made = await tasks_of_a_pane(wire, 3)
    await wire.report(made[0])
    tasks, cursor = await page_of(wire, pane_id=pane)
    equal((ids(tasks), cursor), (made[::-1], None))
    for task in tasks:
        equal(task, (await wire.get(task["task_id"])).body)


@check("A list of nothing is an empty list without a cursor")
async def _(wire):
    equal(await page_of(wire, pane_id=wire.new_id("pane")), ([], None))


@check("A list without filters starts with the newest task of all")
async def _(wire):
    newest = await wire.new_task()
    tasks, _ = await page_of(wire, limit=1)
    equal(tasks, [newest])


@check("Pages of every size give each task once, in order")
async def _(wire):
    pane, made = await tasks_of_a_pane(wire, 5)
    for limit in (1, 2, 3, 4, 5, 6):
        pages = await all_pages(wire, pane_id=pane, limit=limit)
        equal(ids(task for page in pages for task in page), made[::-1])
        assert all(len(page) <= limit for page in pages), pages


@check("A task that is made between two pages moves none of the others")
async def _(wire):
    pane, made = await tasks_of_a_pane(wire, 4)
    tasks, cursor = await page_of(wire, pane_id=pane, limit=2)
    await wire.new_task(pane_id=pane)
    await wire.report(made[0])
    more, _ = await page_of(wire, pane_id=pane, limit=2, cursor=cursor)
    equal(ids(tasks + more), made[::-1])


@check("A page has 100 tasks by default and 1000 at most")
async def _(wire):
    pane = wire.new_id("pane")
    made = await asyncio.gather(*(wire.new_task(pane_id=pane) for _ in range(101)))
    tasks, cursor = await page_of(wire, pane_id=pane)
    equal(len(tasks), 100)
    assert cursor, "no cursor after the first page"
    tasks, cursor = await page_of(wire, pane_id=pane, limit=1000)
    equal((len(tasks), cursor), (101, None))
    equal(set(ids(tasks)), set(ids(made)))


@check("A limit below 1, over 1000 or not whole is refused")
async def _(wire):
    for bad in (0, -1, 1001, 1.5, "10", 10**30):
        refused(await wire.ask("task.list", {"limit": bad}), "invalid_request", field="/limit")


@check("A page ends early rather than outgrow the server's max_payload, and misses nothing")
async def _(wire):
    pane, made = await tasks_of_a_pane(wire, 10)
    for task_id in made:
        await wire.report(task_id, evidence={"log": "x" * 200 * KIB})
    pages = await all_pages(wire, pane_id=pane, limit=10)
    assert len(pages) > 1, "one answer held 2 MB"
    equal(ids(task for page in pages for task in page), made[::-1])


@check("The filter lifecycle gives the tasks that are in one of the named states")
async def _(wire):
    pane, made = await tasks_of_a_pane(wire, 6)
    submitted, working, completed, failed, rejected, canceled = made
    await wire.ask("task.start", {"task_id": working})
    for task_id, status in ((completed, "completed"), (failed, "failed"), (rejected, "rejected")):
        await wire.report(task_id, status=status)
    await wire.ask("task.cancel", {"task_id": canceled})
    names = ("submitted", "working", "completed", "failed", "rejected", "canceled")
    for name, task_id in zip(names, made):
        equal(await ids_of(wire, pane_id=pane, lifecycle=[name]), [task_id])
    equal(await ids_of(wire, pane_id=pane, lifecycle=["expired"]), [])
    equal(await ids_of(wire, pane_id=pane, lifecycle=["failed", "submitted"], limit=1), [failed, submitted])


@check("The filter disposition gives the tasks with one of the verdicts, and none means without a disposition")
async def _(wire):
    pane, made = await tasks_of_a_pane(wire, 5)
    submitted, reported, *reviewed = made
    for task_id in made[1:]:
        await wire.report(task_id)
    for task_id, verdict in zip(reviewed, ("approved", "rework", "blocked")):
        await wire.ask("task.review", {"task_id": task_id, "verdict": verdict})
        equal(await ids_of(wire, pane_id=pane, disposition=[verdict]), [task_id])
    approved, rework, _ = reviewed
    equal(await ids_of(wire, pane_id=pane, disposition=["none"]), [reported, submitted])
    equal(await ids_of(wire, pane_id=pane, disposition=["none", "approved"]), [approved, reported, submitted])
    equal(await ids_of(wire, pane_id=pane, disposition=["rework", "approved"]), [rework, approved])


@check("The filter updated_since gives the tasks that changed at that instant or later, whatever its offset")
async def _(wire):
    pane, [first, second, third] = await tasks_of_a_pane(wire, 3)
    await wire.report(third)
    changed = (await wire.report(first)).body["updated_at"]
    instant = datetime.strptime(changed, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    offset = instant.astimezone(timezone(timedelta(hours=-5, minutes=-30))).isoformat()
    later = (instant + timedelta(microseconds=1)).isoformat()
    for since in (changed, offset):
        equal(await ids_of(wire, pane_id=pane, updated_since=since), [first])
    equal(await ids_of(wire, pane_id=pane, updated_since=later), [])
    equal(await ids_of(wire, pane_id=pane, updated_since="1970-01-01T00:00:00Z"), [third, second, first])


@check("Filters together give the tasks that all of them give")
async def _(wire):
    pane, [first, second, third] = await tasks_of_a_pane(wire, 3)
    for task_id, status in ((first, "completed"), (second, "failed"), (third, "completed")):
        await wire.report(task_id, status=status)
    await wire.ask("task.review", {"task_id": first, "verdict": "approved"})
    query = {"pane_id": pane, "lifecycle": ["completed"], "disposition": ["none"], "updated_since": "1970-01-01T00:00:00Z"}
    equal(await ids_of(wire, **query), [third])


@check("An unknown state or verdict, an empty filter, a wrong type and an unknown key are refused")
async def _(wire):
    for field in ("lifecycle", "disposition"):
        for bad in ([], "completed", [1], {}):
            error = refused(await wire.ask("task.list", {field: bad}), "invalid_request")
            assert error.get("field", "").startswith(f"/{field}"), error
        refused(await wire.ask("task.list", {field: ["no-such-word"]}), "invalid_request")
    for bad in ("yesterday", "2026-01-01", 7):
        refused(await wire.ask("task.list", {"updated_since": bad}), "invalid_request", field="/updated_since")
    refused(await wire.ask("task.list", {"pane_id": 7}), "invalid_request", field="/pane_id")
    refused(await wire.ask("task.list", {"pane": "x"}), "invalid_request")


@check("A cursor that the service did not make is refused")
async def _(wire):
    for bad in ("", "x", "-1", "é", "99999999999999999999999999", 7):
        refused(await wire.ask("task.list", {"cursor": bad}), "invalid_request", field="/cursor")
