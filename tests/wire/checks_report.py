"""tasklatch.report: every row of the table of outcomes."""

import asyncio

from expect import equal, refused, same_bytes, task_of
from harness import report_of
from registry import check

STATUSES = ("completed", "failed", "rejected")

FULL = {
    "status": "completed",
    "summary": "Fixed; the clock was read twice",
    "artifacts": ["branch:fix/login", "pr:118"],
    "evidence": {"tests": {"passed": 214, "failed": 0}},
}

# Each field of FULL changed, alone and together, with the names that `differs` must give.
CHANGES = [
    ({"status": "failed"}, ["status"]),
    ({"summary": "Fixed; the clock was read once"}, ["summary"]),
    ({"summary": "Fixed; the clock was read twice "}, ["summary"]),
    ({"artifacts": ["pr:118", "branch:fix/login"]}, ["artifacts"]),
    ({"artifacts": ["branch:fix/login"]}, ["artifacts"]),
    ({"artifacts": []}, ["artifacts"]),
    ({"artifacts": None}, ["artifacts"]),
    ({"evidence": {"tests": {"passed": 213, "failed": 0}}}, ["evidence"]),
    ({"evidence": {"tests": {"passed": 214, "failed": 0, "skipped": None}}}, ["evidence"]),
    ({"evidence": {}}, ["evidence"]),
    ({"summary": "Other", "evidence": {}}, ["summary", "evidence"]),
    ({"status": "rejected", "summary": "Other", "artifacts": [], "evidence": {}}, ["status", "summary", "artifacts", "evidence"]),
]


@check("A first report of each status is accepted and answered with the task and its result")
async def _(wire):
    for status in STATUSES:
        task = await wire.new_task(pane_id=wire.new_id("pane"), metadata={"a": 1})
        report = report_of(task["task_id"], **{**FULL, "status": status})
        done = task_of(await wire.ask("report", report), outcome="accepted")
        result = {key: report[key] for key in FULL}
        equal(done, {**task, "lifecycle": status, "revision": 2, "updated_at": done["updated_at"],
                     "result": {**result, "reported_at": done["result"]["reported_at"]}})


@check("A first report of a working task is accepted")
async def _(wire):
    task = await wire.new_task()
    await wire.ask("task.start", {"task_id": task["task_id"]})
    done = task_of(await wire.report(task["task_id"]), outcome="accepted")
    equal((done["lifecycle"], done["revision"]), ("completed", 3))


@check("A first report publishes the result event and then the task event, and no more")
async def _(wire):
    task = (await wire.reported_task()).body
    events = (await wire.events(task["task_id"]))[1:]
    equal([event.kind for event in events], ["result", "task"])
    equal(events[1].body, task)


@check("Optional content that is omitted or null is an empty list and an empty object")
async def _(wire):
    for content in ({}, {"artifacts": None, "evidence": None}):
        task = await wire.new_task()
        result = task_of(await wire.report(task["task_id"], **content), outcome="accepted")["result"]
        equal((result["artifacts"], result["evidence"]), ([], {}))


@check("Ten replays of each status answer the accepted answer byte for byte, and publish nothing")
async def _(wire):
    for status in STATUSES:
        task = await wire.new_task()
        report = report_of(task["task_id"], **{**FULL, "status": status})
        first = await wire.ask("report", report)
        task_of(first, outcome="accepted")
        async with wire.unchanged(task["task_id"]):
            for _ in range(10):
                replay = await wire.ask("report", report)
                task_of(replay, outcome="replayed")
                same_bytes(replay, first)
        same_bytes(await wire.get(task["task_id"]), first)


@check("A report may come on the subject of its task, with no selector or with that task in it")
async def _(wire):
    for selector in ({}, {"task_id"}, {"pane_id"}, {"task_id", "pane_id"}):
        task = await wire.new_task(pane_id=wire.new_id("pane"))
        report = {**FULL, **{key: task[key] for key in selector}}
        first = await wire.ask(f"report.{task['task_id']}", report)
        task_of(first, outcome="accepted")
        for subject, payload in ((f"report.{task['task_id']}", report), ("report", report_of(task["task_id"], **FULL))):
            replay = await wire.ask(subject, payload)
            task_of(replay, outcome="replayed")
            same_bytes(replay, first)


@check("A report whose subject and body name different tasks is refused as selector_mismatch")
async def _(wire):
    one, other = [await wire.new_task(pane_id=wire.new_id("pane")) for _ in range(2)]
    async with wire.unchanged(one["task_id"], other["task_id"]):
        for selector in ({"task_id": other["task_id"]}, {"pane_id": other["pane_id"]}):
            refused(await wire.ask(f"report.{one['task_id']}", {**FULL, **selector}), "selector_mismatch")


@check("A report on a subject that names no task is answered all the same")
async def _(wire):
    refused(await wire.ask("report.no-such-task", FULL), "task_not_found")
    answer = await wire.ask("report.a:b", FULL)
    refused(answer, answer.body["error"]["code"])
    assert answer.body["error"]["code"] in ("invalid_report", "task_not_found"), answer


@check("A report with other content in any field is refused as result_conflict, names each field, and changes nothing")
async def _(wire):
    task = await wire.new_task()
    task_of(await wire.report(task["task_id"], **FULL), outcome="accepted")
    async with wire.unchanged(task["task_id"]):
        for change, differs in CHANGES:
            answer = await wire.report(task["task_id"], **{**FULL, **change})
            refused(answer, "result_conflict", task_id=task["task_id"], lifecycle="completed", differs=differs)


@check("A result conflict gives the lifecycle of the accepted result")
async def _(wire):
    for status in STATUSES:
        task = (await wire.reported_task(status)).body
        answer = await wire.report(task["task_id"], status=status, summary="Other")
        refused(answer, "result_conflict", lifecycle=status, differs=["summary"])


@check("A report for a canceled task is refused as task_terminal and changes nothing")
async def _(wire):
    task = await wire.new_task()
    await wire.ask("task.cancel", {"task_id": task["task_id"], "reason": "Enough"})
    async with wire.unchanged(task["task_id"]):
        for status in STATUSES:
            answer = await wire.report(task["task_id"], status=status)
            refused(answer, "task_terminal", task_id=task["task_id"], lifecycle="canceled")


@check("A report for a task that is not there is refused as task_not_found, and another error than a lost result")
async def _(wire):
    refused(await wire.report("no-such-task"), "task_not_found")
    refused(await wire.ask("report", {"pane_id": "no-such-pane", **FULL}), "task_not_found")


@check("An invalid report is refused as invalid_report whatever the task is, also with a result")
async def _(wire):
    open_task, reported = await wire.new_task(), (await wire.reported_task()).body
    canceled = await wire.new_task()
    await wire.ask("task.cancel", {"task_id": canceled["task_id"]})
    for task in (open_task, reported, canceled):
        async with wire.unchanged(task["task_id"]):
            refused(await wire.report(task["task_id"], status="done"), "invalid_report", field="/status")
            refused(await wire.report(task["task_id"], note="unknown"), "invalid_report")


@check("A retry after a review is replayed, with the disposition as it is now")
async def _(wire):
    task = (await wire.reported_task()).body
    reviewed = await wire.ask("task.review", {"task_id": task["task_id"], "verdict": "rework", "note": "Again"})
    async with wire.unchanged(task["task_id"]):
        replay = await wire.report(task["task_id"])
        task_of(replay, outcome="replayed")
        same_bytes(replay, reviewed)
        equal(replay.body["result"], task["result"])


@check("The accepted content is answered as it was first written, numbers to the letter, also to a respelt retry")
async def _(wire):
    task = await wire.new_task()
    numbers = ("1.50", "1e2", "-0", "18446744073709551617", "6.477856523538338e55", "1e400", "0.1000")
    evidence = "{" + ",".join(f'"n{index}":{number}' for index, number in enumerate(numbers)) + "}"
    first = await wire.ask("report", f'{{"task_id":"{task["task_id"]}","status":"completed","summary":"n","evidence":{evidence}}}')
    task_of(first, outcome="accepted")
    for index, number in enumerate(numbers):
        spelt = first.raw.split(f'"n{index}":'.encode())[1]
        assert spelt.startswith((f"{number},".encode(), f"{number}}}".encode())), f"{number} became {spelt[:60]}"
    respelt = evidence.replace("1.50", "15e-1").replace("1e2", "100.0").replace("-0", "0")
    replay = await wire.ask("report", f'{{"evidence":{respelt},"summary":"\\u006e","status":"completed","task_id":"{task["task_id"]}"}}')
    task_of(replay, outcome="replayed")
    same_bytes(replay, first)


@check("Strings keep every code point: emoji, combining marks, quotes, control characters and U+0000")
async def _(wire):
    text = "a\u0000b \u001f \"\\/ é e\u0301 \u2028 😀 \uffff"
    task = await wire.new_task(title="Every code point 😀")
    content = {"summary": text, "artifacts": [text, " "], "evidence": {text: text}}
    first = await wire.report(task["task_id"], **content)
    result = task_of(first, outcome="accepted")["result"]
    equal({key: result[key] for key in content}, content)
    task_of(await wire.report(task["task_id"], **content), outcome="replayed")


@check("Twenty identical reports at once give one accepted, nineteen replayed, one result event and one task event")
async def _(wire):
    task = await wire.new_task()
    answers = await asyncio.gather(*(wire.report(task["task_id"], **FULL) for _ in range(20)))
    outcomes = [answer.headers.get("Tasklatch-Outcome") for answer in answers]
    equal((outcomes.count("accepted"), outcomes.count("replayed")), (1, 19))
    for answer in answers:
        same_bytes(answer, answers[0])
    equal([event.kind for event in await wire.events(task["task_id"])], ["task", "result", "task"])


@check("Twenty different reports at once give one accepted, nineteen result_conflict, one result event and one task event")
async def _(wire):
    task = await wire.new_task()
    answers = await asyncio.gather(*(wire.report(task["task_id"], summary=f"Number {number}") for number in range(20)))
    accepted = [answer for answer in answers if answer.headers.get("Tasklatch-Outcome") == "accepted"]
    equal(len(accepted), 1)
    for answer in answers:
        if answer is not accepted[0]:
            refused(answer, "result_conflict", differs=["summary"])
    same_bytes(await wire.get(task["task_id"]), accepted[0])
    equal([event.kind for event in await wire.events(task["task_id"])], ["task", "result", "task"])
