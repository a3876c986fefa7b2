"""Every limit: the last size that is accepted and the first that is refused."""

import json

from expect import equal, refused, same_bytes, task_of
from harness import encoded
from registry import check

KIB = 1024
REPORT_BYTES = 384 * KIB
SMALL_MAX_PAYLOAD = 64 * KIB


def object_of(size):
    """A JSON object whose compact text has this many bytes."""
    return {"k": "x" * (size - len('{"k":""}'))}


def object_of_depth(levels):
    """The text of an object with this many levels, itself the first."""
    return '{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


# (what, field of the report, value at the limit, value over it, pointer, limit, actual)
REPORT_LIMITS = [
    ("summary", "summary", "x" * 16 * KIB, "x" * (16 * KIB + 1), "/summary", 16 * KIB, 16 * KIB + 1),
    ("summary of two-byte characters", "summary", "é" * 8 * KIB, "é" * 8 * KIB + "x", "/summary", 16 * KIB, 16 * KIB + 1),
    ("number of artifacts", "artifacts", ["a"] * 256, ["a"] * 257, "/artifacts", 256, 257),
    ("artifact", "artifacts", ["a", "x" * 4 * KIB], ["a", "x" * (4 * KIB + 1)], "/artifacts/1", 4 * KIB, 4 * KIB + 1),
    ("evidence", "evidence", object_of(256 * KIB), object_of(256 * KIB + 1), "/evidence", 256 * KIB, 256 * KIB + 1),
]


def report_limit(what, field, at, over, pointer, limit, actual):
    @check(f"The {what} of a report may have {limit}, and {actual} is refused with limit and actual")
    async def _(wire):
        task = await wire.new_task()
        async with wire.unchanged(task["task_id"]):
            answer = await wire.report(task["task_id"], **{field: over})
            refused(answer, "invalid_report", field=pointer, limit=limit, actual=actual)
        done = task_of(await wire.report(task["task_id"], **{field: at}), outcome="accepted")
        equal(done["result"][field], at)


for each in REPORT_LIMITS:
    report_limit(*each)


def report_of_size(size):
    """A report, without a selector, whose compact text has this many bytes, every field within its own limit."""
    content = {"status": "completed", "summary": "x" * 16 * KIB, "artifacts": ["x" * 4 * KIB] * 27, "evidence": object_of(256 * KIB)}
    content["artifacts"].append("x" * (size - len(encoded(content)) - len(',""')))
    assert len(encoded(content)) == size and len(content["artifacts"][-1]) <= 4 * KIB
    return content


@check("The whole report may have 384 KiB, and a byte more is refused with limit and actual")
async def _(wire):
    task_id = (await wire.new_task())["task_id"]
    async with wire.unchanged(task_id):
        answer = await wire.ask(f"report.{task_id}", report_of_size(REPORT_BYTES + 1))
        refused(answer, "invalid_report", limit=REPORT_BYTES, actual=REPORT_BYTES + 1)
    report = report_of_size(REPORT_BYTES)
    first = await wire.ask(f"report.{task_id}", report)
    task_of(first, outcome="accepted")
    replay = await wire.ask(f"report.{task_id}", report)
    task_of(replay, outcome="replayed")
    same_bytes(replay, first)
    equal([event.kind for event in await wire.events(task_id)], ["task", "result", "task"])


@check("Evidence may have 64 levels, and 65 are refused")
async def _(wire):
    task_id = (await wire.new_task())["task_id"]

    def report(levels):
        return f'{{"task_id":"{task_id}","status":"completed","summary":"deep","evidence":{object_of_depth(levels)}}}'
    async with wire.unchanged(task_id):
        refused(await wire.ask("report", report(65)), "invalid_report")
    task_of(await wire.ask("report", report(64)), outcome="accepted")
    task_of(await wire.ask("report", report(64)), outcome="replayed")


@check("White space outside strings does not count: the size is that of the text as the service writes it")
async def _(wire):
    task_id = (await wire.new_task())["task_id"]
    spaced = '{ "a" :' + " " * 300 * KIB + "1 }"
    done = task_of(await wire.ask(f"report.{task_id}", f'{{"status":"completed","summary":"s","evidence":{spaced}}}'), outcome="accepted")
    equal(done["result"]["evidence"], {"a": 1})


@check("A summary of white space is refused, and one with a single other character is accepted as it is")
async def _(wire):
    task_id = (await wire.new_task())["task_id"]
    for blank in ("", " ", "\n\t\r ", "\u00a0\u2003\u3000"):
        refused(await wire.report(task_id, summary=blank), "invalid_report", field="/summary")
    equal(task_of(await wire.report(task_id, summary=" .\n"), outcome="accepted")["result"]["summary"], " .\n")


@check("An artifact may have one byte, and an empty one is refused")
async def _(wire):
    task_id = (await wire.new_task())["task_id"]
    refused(await wire.report(task_id, artifacts=["a", "b", ""]), "invalid_report", field="/artifacts/2")
    task_of(await wire.report(task_id, artifacts=["a"]), outcome="accepted")


# (what, value at the limit, value over it, limit, actual), each a field of tasklatch.task.create
CREATE_LIMITS = [
    ("title", "x" * KIB, "x" * (KIB + 1), KIB, KIB + 1),
    ("title", "é" * (KIB // 2), "é" * (KIB // 2) + "x", KIB, KIB + 1),
    ("title", "x", None, None, None),
    ("metadata", object_of(64 * KIB), object_of(64 * KIB + 1), 64 * KIB, 64 * KIB + 1),
]


@check("The title may have 1 byte to 1 KiB and the metadata 64 KiB of JSON, and a byte more is refused with limit and actual")
async def _(wire):
    for field, at, over, limit, actual in CREATE_LIMITS:
        equal((await wire.new_task(**{field: at}))[field], at)
        if over is not None:
            answer = await wire.ask("task.create", {"title": "Over", field: over})
            refused(answer, "invalid_request", field=f"/{field}", limit=limit, actual=actual)


@check("Metadata may have 32 levels, and 33 are refused")
async def _(wire):
    task_id = wire.new_id()

    def create(levels):
        return f'{{"task_id":"{task_id}","title":"deep","metadata":{object_of_depth(levels)}}}'
    refused(await wire.ask("task.create", create(33)), "invalid_request")
    task_of(await wire.ask("task.create", create(32)))


@check("Metadata keeps its numbers to the letter")
async def _(wire):
    task_id = wire.new_id()
    answer = await wire.ask("task.create", f'{{"task_id":"{task_id}","title":"n","metadata":{{"n":18446744073709551617,"m":1.50}}}}')
    task_of(answer)
    for spelt in (b"18446744073709551617", b"1.50"):
        assert spelt in answer.raw, answer


@check("The reason of a cancel may have 16 KiB, and a byte more is refused with limit and actual")
async def _(wire):
    task_id = (await wire.new_task())["task_id"]
    over = {"task_id": task_id, "reason": "x" * (16 * KIB + 1)}
    async with wire.unchanged(task_id):
        refused(await wire.ask("task.cancel", over), "invalid_request", field="/reason", limit=16 * KIB, actual=16 * KIB + 1)
    at = "é" * 8 * KIB
    equal(task_of(await wire.ask("task.cancel", {"task_id": task_id, "reason": at}))["reason"], at)


@check("The note of a review may have 16 KiB and the reviewer 256 bytes, and a byte more is refused with limit and actual")
async def _(wire):
    task_id = (await wire.reported_task()).body["task_id"]
    review = {"task_id": task_id, "verdict": "approved"}
    for field, limit in (("note", 16 * KIB), ("reviewer", 256)):
        answer = await wire.ask("task.review", {**review, field: "x" * (limit + 1)})
        refused(answer, "invalid_request", field=f"/{field}", limit=limit, actual=limit + 1)
        at = "é" * (limit // 2)
        equal(task_of(await wire.ask("task.review", {**review, field: at}))["disposition"][field], at)


@check("The largest task that the limits allow is answered, listed and published")
async def _(wire):
    pane = wire.new_id("pane").ljust(128, "é")
    task = await wire.new_task(pane_id=pane, title="x" * KIB, metadata=object_of(64 * KIB))
    await wire.ask(f"report.{task['task_id']}", report_of_size(REPORT_BYTES))
    review = {"task_id": task["task_id"], "verdict": "rework", "note": "x" * 16 * KIB, "reviewer": "x" * 256}
    largest = task_of(await wire.ask("task.review", review))
    equal((await wire.ask("task.list", {"pane_id": pane})).body, {"tasks": [largest], "cursor": None})
    equal((await wire.events(task["task_id"]))[-1].body, largest)


@check("With a small max_payload, what would not fit into an answer or an event is refused before anything is written")
async def _(wire):
    async with wire.another_stage(max_payload=SMALL_MAX_PAYLOAD) as small:
        task_id = (await small.new_task())["task_id"]
        bare = len(encoded({"status": "completed", "summary": "s", "evidence": {"k": ""}}))

        def report(size):
            return {"status": "completed", "summary": "s", "evidence": {"k": "x" * (size - bare)}}
        async with small.unchanged(task_id):
            refused(await small.ask(f"report.{task_id}", report(SMALL_MAX_PAYLOAD - 100)), "invalid_report")
        done = task_of(await small.ask(f"report.{task_id}", report(SMALL_MAX_PAYLOAD - 4 * KIB)), outcome="accepted")
        events = await small.events(task_id)
        equal([event.kind for event in events], ["task", "result", "task"])
        equal(json.loads(events[-1].raw), done)
        async with small.unchanged(task_id):
            review = {"task_id": task_id, "verdict": "approved", "note": "x" * 16 * KIB}
            refused(await small.ask("task.review", review), "invalid_request")


@check("With a small max_payload, a task that would not fit is not created")
async def _(wire):
    async with wire.another_stage(max_payload=SMALL_MAX_PAYLOAD) as small:
        create = {"task_id": "too-large", "title": "t", "metadata": object_of(SMALL_MAX_PAYLOAD - 100)}
        refused(await small.ask("task.create", create), "invalid_request")
        refused(await small.ask("task.get", {"task_id": "too-large"}), "task_not_found")
