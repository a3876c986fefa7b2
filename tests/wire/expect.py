"""What the protocol says an answer and an event look like, as assertions."""

import json
import re
from typing import NamedTuple

TASK_KEYS = {"task_id", "pane_id", "title", "lifecycle", "metadata", "deadline", "reason", "result", "disposition",
             "revision", "created_at", "updated_at"}
RESULT_KEYS = {"status", "summary", "artifacts", "evidence", "reported_at"}
DISPOSITION_KEYS = {"verdict", "note", "reviewer", "reviewed_at"}
LIFECYCLES = {"submitted", "working", "completed", "failed", "rejected", "canceled", "expired"}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

# code: (number in the header, action)
REFUSALS = {
    "invalid_report": ("400", "fix"),
    "invalid_request": ("400", "fix"),
    "task_not_found": ("404", "fix"),
    "selector_mismatch": ("409", "fix"),
    "ambiguous_pane": ("409", "fix"),
    "task_conflict": ("409", "stop"),
    "result_conflict": ("409", "stop"),
    "task_terminal": ("409", "stop"),
    "no_result": ("409", "stop"),
}


class Answer(NamedTuple):
    subject: str
    headers: dict
    raw: bytes

    @property
    def body(self):
        return json.loads(self.raw)

    def __str__(self):
        return f"the answer of {self.subject}: {self.headers} {self.raw[:600].decode(errors='replace')}"


class Event(NamedTuple):
    subject: str
    reply: str
    headers: dict
    raw: bytes

    @classmethod
    def of(cls, message):
        return cls(message.subject, message.reply, message.headers or {}, message.data)

    @property
    def kind(self):
        return self.subject.split(".")[-2]

    @property
    def task_id(self):
        return self.subject.split(".")[-1]

    @property
    def id(self):
        return self.headers.get("ce-id")

    @property
    def body(self):
        return json.loads(self.raw)


def answered(answer):
    """What every answer has, good or bad."""
    assert answer.headers.get("Tasklatch-Protocol") == "1", f"no Tasklatch-Protocol: 1 in {answer}"


def accepted_request(answer):
    """An answer that is no refusal; its body."""
    answered(answer)
    for header in ("Nats-Service-Error-Code", "Nats-Service-Error"):
        assert header not in answer.headers, f"refused: {answer}"
    assert "error" not in answer.body, f"refused: {answer}"
    return answer.body


def task_of(answer, outcome=None):
    """The task that a good answer carries; for a report, with the outcome that the header must say."""
    task = accepted_request(answer)
    well_formed_task(task)
    said = answer.headers.get("Tasklatch-Outcome")
    assert said == outcome, f"the outcome is {said} and not {outcome}: {answer}"
    return task


def well_formed_task(task):
    assert set(task) == TASK_KEYS, f"the keys of the task are {sorted(task)}"
    assert TASK_ID.fullmatch(task["task_id"]), task["task_id"]
    assert task["lifecycle"] in LIFECYCLES, task["lifecycle"]
    assert isinstance(task["revision"], int) and task["revision"] >= 1, task["revision"]
    for key in ("created_at", "updated_at"):
        well_formed_time(task[key])
    if task["deadline"] is not None:
        well_formed_time(task["deadline"])
    assert task["created_at"] <= task["updated_at"], task
    if task["result"] is None:
        assert task["lifecycle"] not in ("completed", "failed", "rejected"), task
        assert task["disposition"] is None, task
    else:
        well_formed_result(task["result"])
        assert task["lifecycle"] == task["result"]["status"], task
    if task["disposition"] is not None:
        well_formed_disposition(task["disposition"])


def well_formed_result(result):
    assert set(result) == RESULT_KEYS, f"the keys of the result are {sorted(result)}"
    assert isinstance(result["artifacts"], list) and isinstance(result["evidence"], dict), result
    well_formed_time(result["reported_at"])


def well_formed_disposition(disposition):
    assert set(disposition) == DISPOSITION_KEYS, f"the keys of the disposition are {sorted(disposition)}"
    assert disposition["verdict"] in ("approved", "rework", "blocked"), disposition
    well_formed_time(disposition["reviewed_at"])


def well_formed_time(text):
    assert isinstance(text, str) and TIME.fullmatch(text), f"{text!r} is no UTC time with microseconds and Z"


def refused(answer, code, **fields):
    """A refusal with this code, its number, action, headers and body, and these fields in the body."""
    answered(answer)
    number, action = REFUSALS[code]
    assert "error" in answer.body, f"not refused: {answer}"
    error = answer.body["error"]
    assert error.get("code") == code, f"the code is not {code}: {answer}"
    assert error.get("action") == action, f"the action of {code} is not {action}: {answer}"
    assert isinstance(error.get("message"), str) and error["message"].strip(), f"no message: {answer}"
    assert answer.headers.get("Nats-Service-Error-Code") == number, f"the header code is not {number}: {answer}"
    line = answer.headers.get("Nats-Service-Error", "")
    assert line.startswith(f"{code}: ") and len(line) > len(f"{code}: "), f"the error header is {line!r}: {answer}"
    assert "\n" not in line and "\r" not in line, f"the error header has more than one line: {line!r}"
    assert "Tasklatch-Outcome" not in answer.headers, f"a refusal with an outcome: {answer}"
    for field, value in fields.items():
        assert error.get(field) == value, f"{field} is {error.get(field)!r} and not {value!r}: {answer}"
    return error


def same_bytes(one, other):
    assert one.raw == other.raw, f"the bodies differ:\n{one}\n{other}"


def equal(actual, wanted):
    assert actual == wanted, f"{actual!r} is not {wanted!r}"
