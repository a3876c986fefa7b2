#!/usr/bin/env python3
"""The story of tasklatch, told by driving its command line, and checked while it is told.

A worker reports and dies before it reads the answer. It reports again and gets the original. Another report is refused.
Observers hear of the result once. The same holds in a new ledger restored from a snapshot. At the end stands a table of
what was promised and what was seen; the exit code is 0 only when every promise was kept.

`make demo` sets up all that it needs. TASKLATCH_BIN names another binary than target/release/tasklatch.
"""

import json
import os
import secrets
import signal
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from demo_stage import DemoFailed, Spy, Stage, free_port, port_is_open, say, say_command

ROOT = Path(__file__).resolve().parent.parent
BINARY = Path(os.environ.get("TASKLATCH_BIN", ROOT / "target" / "release" / "tasklatch")).resolve()
NATS_SERVER = Path(os.environ.get("TASKLATCH_TEST_NATS_SERVER", ROOT / ".tools" / "bin" / "nats-server"))

TASK = "login-fix"
REPORT = ("report", TASK, "--status", "completed", "--summary", "Fixed; the clock was read twice",
          "--artifact", "branch:fix/login", "--artifact", "pr:118", "--evidence", '{"tests":{"passed":214,"failed":0}}')
CHANGED_REPORT = tuple(word.replace("read twice", "read once") for word in REPORT)
EXIT_REFUSED_FOR_GOOD = 4
MARK_SECONDS = 60


class Promises:
    """What was promised and what was seen, row by row."""

    def __init__(self):
        self._rows = []

    def check(self, promise, seen, kept):
        self._rows.append((promise, str(seen), bool(kept)))

    def all_kept(self):
        return bool(self._rows) and all(kept for _, _, kept in self._rows)

    def table(self):
        widths = (58, 44)
        yield f"{'promise':<{widths[0]}}  {'seen':<{widths[1]}}  ok"
        yield f"{'-' * widths[0]}  {'-' * widths[1]}  --"
        for promise, seen, kept in self._rows:
            left, right = textwrap.wrap(promise, widths[0]), textwrap.wrap(seen, widths[1]) or [""]
            for number in range(max(len(left), len(right))):
                cells = [column[number] if number < len(column) else "" for column in (left, right)]
                mark = ("yes" if kept else "NO") if number == 0 else ""
                yield f"{cells[0]:<{widths[0]}}  {cells[1]:<{widths[1]}}  {mark}".rstrip()


class Observer:
    """`tasklatch watch` in the background, and a spy on the wire that counts the same events for itself."""

    def __init__(self, stage, spy):
        self._spy = spy
        self.watch = stage.start("watch", "--json", echo="    watch | ")
        self.mark()

    def events(self):
        """The events that `watch` has printed."""
        return [parsed for parsed in map(event_of, self.watch.lines.seen) if parsed]

    def of_task(self, kind, revision=None):
        return [task for found, task in self.events() if (found, task["task_id"]) == (kind, TASK)
                and revision in (None, task["revision"])]

    def ids_on_the_wire(self):
        """The ce-id of each event of the task that went over the wire."""
        return [message.headers.get("ce-id") for message in self._spy.heard
                if message.subject.startswith("tasklatch.event.") and message.subject.endswith(f".{TASK}")]

    def source_on_the_wire(self):
        return next(message.headers["ce-source"] for message in self._spy.heard if "ce-source" in message.headers)

    def mark(self):
        """Make another task and wait until it is seen on the wire and in `watch`: events come in order, so all earlier
        ones are here then. Another is made while one of the two is still starting and does not listen yet."""
        deadline = time.monotonic() + MARK_SECONDS
        while time.monotonic() < deadline:
            marker = f"marker-{secrets.token_hex(4)}"
            self._spy.publish("tasklatch.task.create", {"task_id": marker, "title": "Another task"})
            try:
                self._spy.wait_until(lambda heard: any(message.subject.endswith(marker) for message in heard), "an event", 1)
                self.watch.lines.wait_until(lambda lines: any(marker in line for line in lines), "an event", 1)
                return
            except DemoFailed:
                continue
        raise DemoFailed(f"`tasklatch watch` did not show a new task within {MARK_SECONDS} s")


def event_of(line):
    """('result' or 'task', what the event carries) of a line of `watch --json`; None for a line that is none."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return None
    candidates = [value, *value.values()] if isinstance(value, dict) else []
    for carried in candidates:
        if isinstance(carried, dict) and {"task_id", "revision", "result"} <= set(carried):
            return ("task" if "lifecycle" in carried else "result"), carried
    return None


def main():
    for program, remedy in ((BINARY, "cargo build --release --locked"), (NATS_SERVER, "make setup")):
        if not os.access(program, os.X_OK):
            print(f"demo: there is no program at {program}; run `{remedy}`, or `make demo`, which does", file=sys.stderr)
            return 1
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    promises = Promises()
    with tempfile.TemporaryDirectory(prefix="tasklatch-demo-") as folder:
        told = play(Stage(folder, BINARY, NATS_SERVER), promises)
    say("\nWhat was promised, and what was seen:\n")
    for line in promises.table():
        say(line)
    if told and promises.all_kept():
        say("\nEvery promise was kept.")
        return 0
    say("\nNot every promise was kept.")
    return 1


def play(stage, promises):
    """The whole story; false when it could not be told to its end."""
    try:
        original, source = tell_first_ledger(stage, promises)
        tell_restored_ledger(stage, promises, original, source)
        return True
    except (DemoFailed, KeyError, TypeError) as reason:
        missing = "" if isinstance(reason, DemoFailed) else "what a command printed lacks something: "
        say(f"\ndemo: {missing}{reason}")
        for line in stage.logs():
            say(line)
        return False
    finally:
        stage.end_all()


def tell_first_ledger(stage, promises):
    say("One command starts a nats-server and tasklatch on a database in a folder.")
    dev, port = start_dev(stage, ".tasklatch")
    spy = Spy(port)
    spy.listen("tasklatch.report", "tasklatch.report.>", "tasklatch.event.>")
    say("\nSomebody watches. (The watch prints its events here as they come.)")
    observer = Observer(stage, spy)

    tell_creation(stage, promises)
    tell_lost_answer(stage, promises, dev, spy, observer)
    original = tell_events_once(promises, observer, "The first report is announced by one result event and one task event")
    say("\nThe worker does not know whether it was heard, and reports again. That is always safe.")
    tell_retry(stage, promises, original)
    tell_refusal(stage, promises)
    observer.mark()
    tell_events_once(promises, observer, "The retries and the refusals announced nothing more")
    tell_unchanged(stage, promises, original)
    tell_snapshot(stage, promises)

    observer.watch.interrupt()
    spy.close()
    tell_ctrl_c(promises, dev, port)
    return original, observer.source_on_the_wire()


def tell_restored_ledger(stage, promises, original, first_source):
    say("\nThe snapshot is restored into a new ledger, and tasklatch starts on that.")
    (stage.folder / "restored").mkdir()
    restore = stage.run("snapshot", "restore", "tasks.jsonl", "--database", "restored/tasklatch.db")
    promises.check("A snapshot is restored into a new ledger", f"exit code {restore.code}", restore.code == 0)
    _, port = start_dev(stage, "restored")
    spy = Spy(port)
    spy.listen("tasklatch.event.>")
    observer = Observer(stage, spy)
    say("\nThe worker, who knows nothing of all this, reports once more.")
    tell_retry(stage, promises, original, when=" after the restore")
    observer.mark()
    wire, watch = observer.ids_on_the_wire(), observer.of_task("result") + observer.of_task("task")
    promises.check("The restore and the retry after it announce nothing",
                   f"{len(watch)} events in watch, {len(wire)} on the wire", not watch and not wire)
    source = observer.source_on_the_wire()
    promises.check("A restored ledger has an id of its own, so that its events are never taken for older ones",
                   f"{first_source}, then {source}", source != first_source)
    spy.close()


def start_dev(stage, folder):
    port = free_port()
    dev = stage.start("dev", "--dir", folder, "--port", str(port), "--http", "off", echo="      dev | ", service=True)
    dev.lines.wait_until(lambda lines: any("nats://" in line for line in lines) or dev.process.poll() is not None,
                         "the line of `dev` with the address")
    if dev.process.poll() is not None:
        raise DemoFailed(f"`tasklatch dev` ended at once with exit code {dev.process.returncode}")
    dev.remember_children()
    stage.use_server(f"nats://127.0.0.1:{port}")
    return dev, port


def tell_creation(stage, promises):
    say("\nA coordinator makes a task.")
    create = stage.run("task", "create", "--task-id", TASK, "--title", "Fix the flaky login test", "--json")
    promises.check("A task is made, submitted, at revision 1", f"{create.json['lifecycle']}, revision {create.json['revision']}",
                   create.code == 0 and (create.json["lifecycle"], create.json["revision"]) == ("submitted", 1))


def tell_lost_answer(stage, promises, dev, spy, observer):
    say("\nA worker reports, and is killed after its report is out and before its answer is in. So that this happens every "
        "\ntime, tasklatch stands still meanwhile; the report waits in its connection.")
    dev.freeze()
    try:
        client = stage.start(*REPORT)
        spy.wait_until(lambda heard: any(message.subject.startswith("tasklatch.report") for message in heard), "the report")
        code = client.kill()
    finally:
        dev.thaw()
    answer = client.lines.seen
    say("(killed; tasklatch goes on, and has nobody left to answer)")
    promises.check("The worker died without its answer", f"killed by signal {-code}, {len(answer)} lines printed",
                   code == -signal.SIGKILL and not answer)
    observer.watch.lines.wait_until(lambda _: observer.of_task("result") and observer.of_task("task", revision=2),
                                    "the events of the report in `watch`")
    observer.mark()


def tell_events_once(promises, observer, promise):
    """Check that there is one pair of events for the report; returns the task that the task event carries."""
    results, tasks = observer.of_task("result"), observer.of_task("task", revision=2)
    wire = observer.ids_on_the_wire()
    wanted = [f"{TASK}.1.task", f"{TASK}.2.result", f"{TASK}.2.task"]
    promises.check(promise, f"{len(results)} result and {len(tasks)} task event in watch; on the wire {', '.join(wire[1:])}",
                   len(results) == len(tasks) == 1 and wire == wanted)
    return tasks[0]


def tell_retry(stage, promises, original, when=""):
    retry = stage.run(*REPORT)
    promises.check(f"The same report again succeeds{when} and says that it was a replay",
                   f"exit code {retry.code}, {'replayed' if 'replayed' in retry.err else retry.err.strip()!r}",
                   retry.code == 0 and "replayed" in retry.err)
    answer = stage.run(*REPORT, "--json").json
    promises.check(f"The answer{when} is the original task, with its first times and revision",
                   f"reported_at {answer['result']['reported_at']}, revision {answer['revision']}", answer == original)


def tell_refusal(stage, promises):
    say("\nAnother report for the same task is refused for good, and says what differs.")
    refusal = stage.run(*CHANGED_REPORT)
    promises.check("A changed report is refused with exit code 4, and the message names the field",
                   f"exit code {refusal.code}, {'summary named' if 'summary' in refusal.err else 'no field named'}",
                   refusal.code == EXIT_REFUSED_FOR_GOOD and "result_conflict" in refusal.err and "summary" in refusal.err)
    error = stage.run(*CHANGED_REPORT, "--json").json["error"]
    promises.check("With --json the refusal is the error of the protocol",
                   f"{error['code']}, action {error['action']}, differs {error.get('differs')}",
                   (error["code"], error["action"], error.get("differs")) == ("result_conflict", "stop", ["summary"]))


def tell_unchanged(stage, promises, original):
    say("\nAfter all that the task is what the first report made of it.")
    task = stage.run("task", "get", TASK, "--json").json
    promises.check("Nothing that came after the first report changed the task",
                   f"revision {task['revision']}, updated_at {task['updated_at']}", task == original)


def tell_snapshot(stage, promises):
    say("\nA snapshot is saved while tasklatch runs.")
    save = stage.run("snapshot", "save", "tasks.jsonl", "--database", ".tasklatch/tasklatch.db")
    verify = stage.run("snapshot", "verify", "tasks.jsonl")
    promises.check("A snapshot is saved from the running ledger, and verified", f"exit codes {save.code} and {verify.code}",
                   save.code == verify.code == 0)


def tell_ctrl_c(promises, dev, port):
    say_command("# Ctrl-C in the terminal of `tasklatch dev`")
    code = dev.interrupt()
    promises.check("Ctrl-C ends tasklatch and then its nats-server", f"exit code {code}, port {'open' if port_is_open(port) else 'closed'}",
                   code in (0, 128 + signal.SIGINT) and not port_is_open(port))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
