"""tasklatch.task.get: selectors, and how a request is decoded."""

from expect import equal, refused, same_bytes, task_of
from registry import check

# The requests that take a selector, each with what else it needs.
WITH_SELECTOR = {
    "task.get": {},
    "task.start": {},
    "task.cancel": {},
    "task.review": {"verdict": "approved"},
}

NOT_UNDERSTOOD = {
    "nothing": b"",
    "no JSON": b"hello",
    "an array": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "text after the object": b'{"task_id":"x"} x',
    "a second object": b'{"task_id":"x"}{}',
    "a repeated key": b'{"task_id":"x","task_id":"x"}',
    "a repeated key, escaped": b'{"task_id":"x","task\\u005fid":"x"}',
    "invalid UTF-8": b'{"task_id":"\xff"}',
    "a lone surrogate": b'{"pane_id":"\\ud83d"}',
    "a byte order mark": b'\xef\xbb\xbf{"task_id":"x"}',
    "a comment": b'{"task_id":"x"/**/}',
    "a trailing comma": b'{"task_id":"x",}',
}


@check("A task is found by its id, by its pane, and by both")
async def _(wire):
    task = await wire.new_task(pane_id=wire.new_id("pane"))
    by_id = await wire.get(task["task_id"])
    equal(by_id.body, task)
    same_bytes(await wire.ask("task.get", {"pane_id": task["pane_id"]}), by_id)
    same_bytes(await wire.ask("task.get", {"task_id": task["task_id"], "pane_id": task["pane_id"]}), by_id)


@check("Every request with a selector says task_not_found for a task or a pane that is not there")
async def _(wire):
    for subject, more in WITH_SELECTOR.items():
        refused(await wire.ask(subject, {"task_id": "no-such-task", **more}), "task_not_found")
        refused(await wire.ask(subject, {"pane_id": "no-such-pane", **more}), "task_not_found")


@check("Every request with a selector says selector_mismatch for a task and a pane of two tasks")
async def _(wire):
    one, other = [await wire.new_task(pane_id=wire.new_id("pane")) for _ in range(2)]
    async with wire.unchanged(one["task_id"], other["task_id"]):
        for subject, more in WITH_SELECTOR.items():
            both = {"task_id": one["task_id"], "pane_id": other["pane_id"]}
            refused(await wire.ask(subject, {**both, **more}), "selector_mismatch")


@check("Every request with a selector refuses none at all, a wrong type, a bad id and a key that it does not know")
async def _(wire):
    for subject, more in WITH_SELECTOR.items():
        refused(await wire.ask(subject, more), "invalid_request")
        for bad in (7, ["x"], "a.b", "", "x" * 129):
            refused(await wire.ask(subject, {"task_id": bad, **more}), "invalid_request", field="/task_id")
        for bad in (7, {}, "", "a\nb", "x" * 129):
            refused(await wire.ask(subject, {"pane_id": bad, **more}), "invalid_request", field="/pane_id")
        refused(await wire.ask(subject, {"task_id": "x", "id": "x", **more}), "invalid_request")


@check("Every request but a report says invalid_request for what is not one whole, strict JSON object")
async def _(wire):
    for subject in (*WITH_SELECTOR, "task.create", "task.list"):
        for name, payload in NOT_UNDERSTOOD.items():
            if subject == "task.list" and name == "nothing":
                continue  # What an empty payload lists is left open.
            refused(await wire.ask(subject, payload), "invalid_request")


@check("The error header stays one line when the message speaks of a key with line breaks")
async def _(wire):
    for subject, code in (("task.get", "invalid_request"), ("report", "invalid_report")):
        answer = await wire.ask(subject, {"a\r\nInjected: yes\n\nb": 1})
        refused(answer, code)
        assert "Injected" not in answer.headers, answer


@check("A refusal by a task that is there names it")
async def _(wire):
    task = await wire.new_task()
    error = refused(await wire.ask("task.review", {"task_id": task["task_id"], "verdict": "approved"}), "no_result")
    equal(error.get("task_id"), task["task_id"])


@check("Escapes in a request are the characters that they stand for")
async def _(wire):
    task = await wire.new_task(title="A")
    spelt = "".join(f"\\u{ord(character):04x}" for character in task["task_id"])
    equal(task_of(await wire.ask("task.get", f'{{"task\\u005fid":"{spelt}"}}')), task)
