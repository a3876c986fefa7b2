"""The cases of tests/cases/, each a check of its own with a fresh task."""

import base64
import json

from expect import equal, refused, same_bytes, task_of
from harness import ROOT
from registry import check

CASES = ROOT / "tests" / "cases"


def cases(name):
    with open(CASES / name, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def payload_for(task_id, text):
    return text.replace("{ID}", task_id).encode()


def same_content(case):
    verdict = "replayed" if case["same"] else "refused, naming " + " and ".join(case["differs"])

    @check(f"Same content, {case['name']}: the second report is {verdict}")
    async def _(wire):
        task_id = (await wire.new_task())["task_id"]
        first = await wire.ask("report", payload_for(task_id, case["first"]))
        task_of(first, outcome="accepted")
        async with wire.unchanged(task_id):
            second = await wire.ask("report", payload_for(task_id, case["second"]))
            if case["same"]:
                task_of(second, outcome="replayed")
                same_bytes(second, first)
            else:
                refused(second, "result_conflict", task_id=task_id, lifecycle=first.body["lifecycle"], differs=case["differs"])


def refused_report(case):
    @check(f"Refused report, {case['name']}: {case['code']}")
    async def _(wire):
        task_id = (await wire.new_task())["task_id"]
        if "payload_base64" in case:
            payload = base64.b64decode(case["payload_base64"]).replace(b"{ID}", task_id.encode())
        else:
            payload = payload_for(task_id, case["payload"])
        async with wire.unchanged(task_id):
            error = refused(await wire.ask("report", payload), case["code"])
            if "field" in case:
                equal(error.get("field"), case["field"])


for each in cases("same-content.jsonl"):
    same_content(each)
for each in cases("refused-reports.jsonl"):
    refused_report(each)
