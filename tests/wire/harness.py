"""The stage that checks play on: a nats-server, a tasklatch, and a client of both, all on scratch files and free ports."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import uuid
from pathlib import Path

import nats

from expect import Answer, Event, task_of

ROOT = Path(__file__).resolve().parent.parent.parent
PREFIX = "tasklatch"

START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 20
ANSWER_TIMEOUT_SECONDS = 15
EVENT_TIMEOUT_SECONDS = 30
LOG_TAIL_LINES = 30
POLL_SECONDS = 0.02


class CannotStart(Exception):
    """The stage could not be set; says why and what to do."""


class Broker:
    """A nats-server as a child process on a port that it picks itself."""

    def __init__(self, process, url):
        self.process = process
        self.url = url

    @classmethod
    async def start(cls, scratch, max_payload):
        config = scratch / "nats-server.conf"
        config.write_text(f"listen: 127.0.0.1:-1\nmax_payload: {max_payload}\nports_file_dir: {json.dumps(str(scratch))}\n")
        with open(scratch / "nats-server.log", "w") as log:
            process = await asyncio.create_subprocess_exec(
                nats_server(), "--config", str(config), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            ports = await cls._ports(process, scratch)
        except BaseException:
            await stop(process, signal.SIGKILL)
            raise
        return cls(process, ports["nats"][0])

    @staticmethod
    async def _ports(process, scratch):
        for _ in range(int(START_TIMEOUT_SECONDS / POLL_SECONDS)):
            if process.returncode is not None:
                raise CannotStart(f"nats-server ended at once:\n{tail(scratch / 'nats-server.log')}")
            for ports_file in scratch.glob("*.ports"):
                with contextlib.suppress(json.JSONDecodeError):
                    return json.loads(ports_file.read_text())
            await asyncio.sleep(POLL_SECONDS)
        raise CannotStart(f"nats-server did not say its port within {START_TIMEOUT_SECONDS} s")


class Service:
    """`tasklatch serve` as a child process. It can be stopped and started again on the same database."""

    def __init__(self, scratch, url):
        self.log = scratch / "tasklatch.log"
        self.command = [tasklatch(), "serve", "--nats-url", url, "--database", str(scratch / "tasklatch.db"), "--http", "off", "--events", "core"]
        self.process = None
        self._drain = None

    async def start(self):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKLATCH_")}
        with open(self.log, "a") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment)
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), START_TIMEOUT_SECONDS)
        except asyncio.TimeoutError:
            raise CannotStart(f"tasklatch serve did not say that it is ready:\n{self.last_words()}") from None
        if not line:
            raise CannotStart(f"tasklatch serve ended before it was ready:\n{self.last_words()}")
        self._drain = asyncio.ensure_future(self.process.stdout.read())

    async def stop(self, how=signal.SIGTERM):
        """End it and return its exit code."""
        code = await stop(self.process, how) if self.process else None
        if self._drain:
            await self._drain
        self.process = self._drain = None
        return code

    def last_words(self):
        return tail(self.log)


class Wire:
    """A client of the protocol. It knows subjects, payloads, headers and answers, and hears all events."""

    def __init__(self, connection, broker, service, scratch):
        self.connection = connection
        self.broker = broker
        self.service = service
        self.scratch = scratch
        self._numbers = itertools.count(1)
        self._run = uuid.uuid4().hex[:8]
        self._events = {}
        self._arrived = asyncio.Event()

    async def listen(self):
        await self.connection.subscribe(f"{PREFIX}.event.>", cb=self._hear)
        await self.connection.flush()

    async def _hear(self, message):
        event = Event.of(message)
        self._events.setdefault(event.task_id, []).append(event)
        self._arrived.set()

    def new_id(self, stem="w"):
        return f"{stem}-{self._run}-{next(self._numbers)}"

    async def ask(self, subject, payload, timeout=ANSWER_TIMEOUT_SECONDS):
        """A request below the prefix, with a JSON value, a text or bytes as payload."""
        message = await self.connection.request(f"{PREFIX}.{subject}", encoded(payload), timeout=timeout)
        return Answer(f"{PREFIX}.{subject}", message.headers or {}, message.data)

    async def new_task(self, **content):
        """Create a task and return it, with an id and a title of its own unless they are given."""
        content.setdefault("task_id", self.new_id())
        content.setdefault("title", "A task of the wire check")
        return task_of(await self.ask("task.create", content))

    async def report(self, task_id, **content):
        """The answer to a report for a task, completed and with a summary unless they are given."""
        return await self.ask("report", report_of(task_id, **content))

    async def reported_task(self, status="completed", **content):
        """Create a task, report on it, and return the accepted answer."""
        task = await self.new_task(**content)
        answer = await self.report(task["task_id"], status=status)
        task_of(answer, outcome="accepted")
        return answer

    async def get(self, task_id):
        """The answer that has the task as it is now."""
        answer = await self.ask("task.get", {"task_id": task_id})
        task_of(answer)
        return answer

    async def events(self, task_id):
        """All events of a task, also those that were committed just now: events come in commit order, so that all of
        them are here when the event of a task made after them is."""
        marker = (await self.new_task(task_id=self.new_id("marker")))["task_id"]
        await self.heard(marker, lambda events: events)
        return list(self._events.get(task_id, []))

    async def heard(self, task_id, enough, timeout=EVENT_TIMEOUT_SECONDS):
        """Wait until the events of a task are enough, and return them."""
        async def wait():
            while not enough(self._events.get(task_id, [])):
                self._arrived.clear()
                await self._arrived.wait()
        await asyncio.wait_for(wait(), timeout)
        return list(self._events[task_id])

    @contextlib.asynccontextmanager
    async def unchanged(self, *task_ids):
        """Nothing in here may change one of these tasks or tell observers anything about it."""
        before = [await self._all_of(task_id) for task_id in task_ids]
        yield
        for task_id, was in zip(task_ids, before):
            now = await self._all_of(task_id)
            assert now[0] == was[0], f"the task changed from {was[0]} to {now[0]}"
            assert now[1] == was[1], f"events were published: {now[1][len(was[1]):]}"

    async def _all_of(self, task_id):
        return (await self.get(task_id)).raw, [event.id for event in await self.events(task_id)]

    def another_stage(self, **options):
        """A broker, a service and a client of their own, for a check that must end or configure them."""
        scratch = self.scratch / self.new_id("stage")
        scratch.mkdir()
        return stage(scratch, **options)


@contextlib.asynccontextmanager
async def stage(scratch, max_payload=1024 * 1024):
    """A broker, a service and a client, all ended again whatever happens."""
    async with contextlib.AsyncExitStack() as ending:
        broker = await Broker.start(scratch, max_payload)
        ending.push_async_callback(stop, broker.process)
        service = Service(scratch, broker.url)
        ending.push_async_callback(service.stop)
        await service.start()
        connection = await nats.connect(broker.url, name="wire check", allow_reconnect=False)
        ending.push_async_callback(connection.close)
        wire = Wire(connection, broker, service, scratch)
        await wire.listen()
        yield wire


async def stop(process, how=signal.SIGTERM):
    """End a child process by its id and return its exit code; by force when it does not end in time."""
    if process.returncode is None:
        process.send_signal(how)
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_SECONDS)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
    return process.returncode


def report_of(task_id, **content):
    """A report as a worker would send it: what is given, over a plain completed one."""
    return {"task_id": task_id, "status": "completed", "summary": "Done", **content}


def encoded(payload):
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def nats_server():
    path = os.environ.get("TASKLATCH_TEST_NATS_SERVER")
    if not path or not os.access(path, os.X_OK):
        raise CannotStart("TASKLATCH_TEST_NATS_SERVER names no program; run `make setup`, or `make wire`, which sets it")
    return path


def tasklatch():
    path = os.environ.get("TASKLATCH_BIN", str(ROOT / "target" / "debug" / "tasklatch"))
    if not os.access(path, os.X_OK):
        raise CannotStart(f"there is no program at {path}; run `cargo build`, or name one by TASKLATCH_BIN")
    return path


def tail(log):
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-LOG_TAIL_LINES:]) or "(nothing)"
