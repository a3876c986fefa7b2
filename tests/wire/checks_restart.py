"""What was answered stays answered: the service ended, by force or in order, and started again on its database."""

import signal

from checks_discovery import ledger_id
from expect import equal, refused, same_bytes, task_of
from registry import check


async def restarted_after(wire, how, exit_code):
    """Accept a report, end the service, start it again and retry."""
    async with wire.another_stage() as other:
        ledger = await ledger_id(other)
        task = (await other.new_task())["task_id"]
        first = await other.report(task, evidence={"n": 1.50}, artifacts=["a", "b"])
        task_of(first, outcome="accepted")
        equal(await other.service.stop(how), exit_code)
        await other.service.start()
        equal(await ledger_id(other), ledger)
        for _ in range(10):
            replay = await other.report(task, evidence={"n": 1.5}, artifacts=["a", "b"])
            task_of(replay, outcome="replayed")
            same_bytes(replay, first)
        refused(await other.report(task, status="failed"), "result_conflict", differs=["status", "artifacts", "evidence"])
        return task, [event.id for event in await other.events(task)]


@check("A report accepted before SIGTERM is replayed byte for byte after the restart, and its events came once")
async def _(wire):
    task, ids = await restarted_after(wire, signal.SIGTERM, 0)
    equal(ids, [f"{task}.1.task", f"{task}.2.result", f"{task}.2.task"])


@check("A report accepted before kill -9 is replayed byte for byte after the restart, and no event has a second id")
async def _(wire):
    task, ids = await restarted_after(wire, signal.SIGKILL, -signal.SIGKILL)
    equal(sorted(set(ids)), [f"{task}.1.task", f"{task}.2.result", f"{task}.2.task"])
