"""Panes as selectors: which task one names, and when it is not safe to take."""

from expect import equal, refused, same_bytes, task_of
from harness import report_of
from registry import check

DONE = {"status": "completed", "summary": "Done"}


async def tasks_of_one_pane(wire, count):
    pane = wire.new_id("pane")
    return pane, [await wire.new_task(pane_id=pane, title=f"Task {number}") for number in range(count)]


async def by_pane(wire, pane, **content):
    return await wire.ask("report", {"pane_id": pane, **DONE, **content})


def says_to_send_the_task_id(error):
    assert "task id" in error["message"].lower().replace("_", " "), error


@check("A report by pane is accepted for the pane's only open task, and its retry is replayed")
async def _(wire):
    pane, [task] = await tasks_of_one_pane(wire, 1)
    first = await by_pane(wire, pane)
    equal(task_of(first, outcome="accepted")["task_id"], task["task_id"])
    async with wire.unchanged(task["task_id"]):
        for replay in (await by_pane(wire, pane), await wire.report(task["task_id"]),
                       await wire.report(task["task_id"], pane_id=pane)):
            task_of(replay, outcome="replayed")
            same_bytes(replay, first)


@check("Start, cancel and review work by pane")
async def _(wire):
    pane, [task] = await tasks_of_one_pane(wire, 1)
    equal(task_of(await wire.ask("task.start", {"pane_id": pane}))["task_id"], task["task_id"])
    await by_pane(wire, pane)
    equal(task_of(await wire.ask("task.review", {"pane_id": pane, "verdict": "approved"}))["revision"], 4)
    pane, [task] = await tasks_of_one_pane(wire, 1)
    equal(task_of(await wire.ask("task.cancel", {"pane_id": pane}))["lifecycle"], "canceled")


@check("A pane names its newest task, finished or not")
async def _(wire):
    pane, [first, second] = await tasks_of_one_pane(wire, 2)
    await wire.report(first["task_id"])
    equal(task_of(await wire.ask("task.get", {"pane_id": pane}))["task_id"], second["task_id"])
    await wire.report(second["task_id"], summary="Second")
    equal(task_of(await wire.ask("task.get", {"pane_id": pane}))["task_id"], second["task_id"])


@check("A pane with two open tasks is refused as ambiguous_pane by every request, and says to send the task id")
async def _(wire):
    pane, tasks = await tasks_of_one_pane(wire, 2)
    async with wire.unchanged(*(task["task_id"] for task in tasks)):
        says_to_send_the_task_id(refused(await by_pane(wire, pane), "ambiguous_pane"))
        for subject, more in (("get", {}), ("start", {}), ("cancel", {}), ("review", {"verdict": "approved"})):
            answer = await wire.ask(f"task.{subject}", {"pane_id": pane, **more})
            says_to_send_the_task_id(refused(answer, "ambiguous_pane"))


@check("A pane with two open tasks is ambiguous also when one works and a third, newer one has ended")
async def _(wire):
    pane, [submitted, working, newest] = await tasks_of_one_pane(wire, 3)
    await wire.ask("task.start", {"task_id": working["task_id"]})
    await wire.ask("task.cancel", {"task_id": newest["task_id"]})
    async with wire.unchanged(submitted["task_id"], working["task_id"], newest["task_id"]):
        refused(await by_pane(wire, pane), "ambiguous_pane")


@check("Of two open tasks of a pane each takes its report by task id, and then the pane is safe again")
async def _(wire):
    pane, [first, second] = await tasks_of_one_pane(wire, 2)
    task_of(await wire.report(first["task_id"], summary="First"), outcome="accepted")
    equal(task_of(await by_pane(wire, pane, summary="Second"), outcome="accepted")["task_id"], second["task_id"])


@check("The retry of a worker whose pane was given on is refused as ambiguous_pane and does not settle the next task")
async def _(wire):
    pane, [first] = await tasks_of_one_pane(wire, 1)
    task_of(await by_pane(wire, pane, artifacts=["a"], evidence={"n": 1}), outcome="accepted")
    second = await wire.new_task(pane_id=pane)
    async with wire.unchanged(first["task_id"], second["task_id"]):
        error = refused(await by_pane(wire, pane, evidence={"n": 1.0}, artifacts=["a"]), "ambiguous_pane")
        says_to_send_the_task_id(error)
    task_of(await wire.report(first["task_id"], artifacts=["a"], evidence={"n": 1}), outcome="replayed")


@check("A report by pane with other content than the previous task's result is accepted for the newest task")
async def _(wire):
    pane, [first] = await tasks_of_one_pane(wire, 1)
    accepted = await by_pane(wire, pane)
    second = await wire.new_task(pane_id=pane)
    equal(task_of(await by_pane(wire, pane, summary="Another"), outcome="accepted")["task_id"], second["task_id"])
    same_bytes(await wire.get(first["task_id"]), accepted)


@check("The retry rule looks past a pane's tasks without a result to the last one with a result")
async def _(wire):
    pane, [first] = await tasks_of_one_pane(wire, 1)
    task_of(await by_pane(wire, pane), outcome="accepted")
    canceled = await wire.new_task(pane_id=pane)
    await wire.ask("task.cancel", {"task_id": canceled["task_id"]})
    newest = await wire.new_task(pane_id=pane)
    async with wire.unchanged(first["task_id"], canceled["task_id"], newest["task_id"]):
        refused(await by_pane(wire, pane), "ambiguous_pane")


@check("The retry rule compares with the most recent result of the pane only")
async def _(wire):
    pane, [first] = await tasks_of_one_pane(wire, 1)
    task_of(await by_pane(wire, pane, summary="First"), outcome="accepted")
    second = await wire.new_task(pane_id=pane)
    task_of(await by_pane(wire, pane, summary="Second"), outcome="accepted")
    third = await wire.new_task(pane_id=pane)
    async with wire.unchanged(first["task_id"], second["task_id"], third["task_id"]):
        refused(await by_pane(wire, pane, summary="Second"), "ambiguous_pane")
    equal(task_of(await by_pane(wire, pane, summary="First"), outcome="accepted")["task_id"], third["task_id"])


@check("When the pane's newest task has a result, a report by pane is compared with that one")
async def _(wire):
    pane, [first] = await tasks_of_one_pane(wire, 1)
    task_of(await by_pane(wire, pane, summary="First"), outcome="accepted")
    second = await wire.new_task(pane_id=pane)
    task_of(await by_pane(wire, pane, summary="Second"), outcome="accepted")
    async with wire.unchanged(first["task_id"], second["task_id"]):
        task_of(await by_pane(wire, pane, summary="Second"), outcome="replayed")
        refused(await by_pane(wire, pane, summary="First"), "result_conflict", task_id=second["task_id"], differs=["summary"])


@check("When the pane's newest task was canceled, a report by pane is refused as task_terminal")
async def _(wire):
    pane, [task] = await tasks_of_one_pane(wire, 1)
    await wire.ask("task.cancel", {"task_id": task["task_id"]})
    refused(await by_pane(wire, pane), "task_terminal", task_id=task["task_id"], lifecycle="canceled")


@check("Both selectors must name the same task: a task of another pane, of no pane, or no longer the newest is selector_mismatch")
async def _(wire):
    pane, [task] = await tasks_of_one_pane(wire, 1)
    of_another, of_none = await wire.new_task(pane_id=wire.new_id("pane")), await wire.new_task()
    async with wire.unchanged(task["task_id"], of_another["task_id"], of_none["task_id"]):
        for other in (of_another, of_none):
            refused(await wire.report(other["task_id"], pane_id=pane), "selector_mismatch")
    newest = await wire.new_task(pane_id=pane)
    await wire.ask("task.cancel", {"task_id": task["task_id"]})
    async with wire.unchanged(task["task_id"], newest["task_id"]):
        refused(await wire.report(task["task_id"], pane_id=pane), "selector_mismatch")
        for subject, more in (("get", {}), ("start", {}), ("cancel", {}), ("review", {"verdict": "approved"})):
            answer = await wire.ask(f"task.{subject}", {"task_id": task["task_id"], "pane_id": pane, **more})
            refused(answer, "selector_mismatch")


@check("A retry with both selectors is compared with the task's result first, also when the pane was given on")
async def _(wire):
    pane, [task] = await tasks_of_one_pane(wire, 1)
    both = report_of(task["task_id"], pane_id=pane)
    first = await wire.ask("report", both)
    task_of(first, outcome="accepted")
    newest = await wire.new_task(pane_id=pane)
    async with wire.unchanged(task["task_id"], newest["task_id"]):
        replay = await wire.ask("report", both)
        task_of(replay, outcome="replayed")
        same_bytes(replay, first)
        refused(await wire.ask("report", {**both, "summary": "Other"}), "result_conflict", differs=["summary"])


@check("A retry with both selectors of an accepted result is selector_mismatch when the task never had that pane")
async def _(wire):
    pane, [of_pane] = await tasks_of_one_pane(wire, 1)
    task = (await wire.reported_task()).body
    async with wire.unchanged(task["task_id"], of_pane["task_id"]):
        refused(await wire.report(task["task_id"], pane_id=pane), "selector_mismatch")
