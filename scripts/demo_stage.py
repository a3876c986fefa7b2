"""What the demo plays on: commands as a person types them, programs in the background, and a spy on the wire.

Every wait here has a deadline and ends as soon as what it waits for is seen.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

WAIT_SECONDS = 60
COMMAND_SECONDS = 60
STOP_SECONDS = 20


class DemoFailed(Exception):
    """The story cannot go on; says what was waited for and what came instead."""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self):
        """The JSON that the command printed on standard output."""
        try:
            return json.loads(self.out)
        except json.JSONDecodeError:
            raise DemoFailed(f"standard output is not one JSON value, but: {self.out!r}") from None


class Lines:
    """The lines that a program prints, collected as they come by a thread of their own."""

    def __init__(self, stream, echo=None):
        self.seen = []
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._collect, args=(stream, echo), daemon=True)
        self._thread.start()

    def _collect(self, stream, echo):
        for line in stream:
            if echo:
                print(f"{echo}{line.rstrip()}", flush=True)
            with self._news:
                self.seen.append(line.rstrip("\n"))
                self._news.notify_all()

    def wait_until(self, enough, what, seconds=WAIT_SECONDS):
        """Wait until the lines are enough; returns what `enough` gave."""
        with self._news:
            if not self._news.wait_for(lambda: enough(self.seen), seconds):
                raise DemoFailed(f"waited {seconds} s for {what}; seen so far:\n" + "\n".join(self.seen))
            return enough(self.seen)


class Stage:
    """A scratch folder in which the command line is run, and all the programs that were started there."""

    def __init__(self, folder, binary, nats_server):
        self.folder = Path(folder)
        self._binary = binary
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TASKLATCH_")}
        clean["NO_COLOR"] = "1"
        clean["TASKLATCH_NATS_SERVER"] = str(nats_server)
        self._service_environment = clean
        self._client_environment = clean
        self._programs = []

    def use_server(self, url):
        """From now on the commands speak to this server."""
        say_command(f"export TASKLATCH_NATS_URL={url}")
        self._client_environment = {**self._service_environment, "TASKLATCH_NATS_URL": url}

    def run(self, *arguments, show=True):
        """Run a command to its end and show what it printed."""
        if show:
            say_command(shlex.join(("tasklatch", *arguments)))
        try:
            done = subprocess.run([self._binary, *arguments], cwd=self.folder, env=self._client_environment,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"`tasklatch {shlex.join(arguments)}` did not end within {COMMAND_SECONDS} s") from None
        if show:
            say_output(done)
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments, echo=None, service=False, ending=" &"):
        """Start a program in the background; its standard output is collected, its standard error goes to a file."""
        say_command(shlex.join(("tasklatch", *arguments)) + ending)
        log = self.folder / f"{arguments[0]}-{len(self._programs)}.log"
        with open(log, "w") as errors:
            process = subprocess.Popen(
                [self._binary, *arguments], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                text=True, bufsize=1, env=self._service_environment if service else self._client_environment)
        program = Program(process, Lines(process.stdout, echo), log)
        self._programs.append(program)
        return program

    def end_all(self):
        for program in reversed(self._programs):
            program.end()

    def logs(self):
        """The last lines that each program still has to say, for a story that went wrong."""
        for program in self._programs:
            lines = program.log.read_text(errors="replace").splitlines()[-20:]
            yield from (f"{program.log.stem} | {line}" for line in lines)


class Program:
    """A program in the background, ended by its process id and with all the children that it had."""

    def __init__(self, process, lines, log):
        self.process = process
        self.lines = lines
        self.log = log
        self._children = []

    def remember_children(self):
        """Note which processes it started, so that they can be ended also when it cannot do so itself."""
        self._children = children_of(self.process.pid)

    def freeze(self):
        """Stop it where it is, and come back when it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise DemoFailed(f"{self.log.stem} ended before it could be stopped for a moment")

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        return self.process.wait(STOP_SECONDS)

    def interrupt(self):
        """Ctrl-C; its exit code, or None when it does not end."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        if self.process.poll() is None:
            self.thaw()
            if self.interrupt() is None:
                self.kill()
        for child, name in self._children:
            if command_of(child) == name:
                os.kill(child, signal.SIGKILL)
        self._children = []


def children_of(parent):
    """The (id, command) of each child of a process."""
    rows = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    found = [row.split(None, 2) for row in rows.splitlines()]
    return [(int(pid), command.strip()) for pid, ppid, command in found if int(ppid) == parent]


def command_of(pid):
    return subprocess.run(["ps", "-p", str(pid), "-o", "comm="], capture_output=True, text=True).stdout.strip()


class Heard(NamedTuple):
    subject: str
    headers: dict
    payload: bytes


class Spy:
    """Hears what goes over the wire, by the text protocol of NATS on a plain TCP connection."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
        self._received = b""
        self._pongs = 0
        self._subscriptions = 0
        self.heard = []
        self._send('CONNECT {"verbose":false,"pedantic":false,"headers":true,"name":"demo"}')

    def listen(self, *subjects):
        """Subscribe, and come back when the server has done so."""
        for subject in subjects:
            self._subscriptions += 1
            self._send(f"SUB {subject} {self._subscriptions}")
        answered = self._pongs + 1
        self._send("PING")
        self.wait_until(lambda _: self._pongs == answered, "the server's PONG")

    def publish(self, subject, payload):
        body = json.dumps(payload)
        self._send(f"PUB {subject} {len(body)}\r\n{body}")

    def wait_until(self, enough, what, seconds=WAIT_SECONDS):
        """Wait until what was heard is enough; returns what `enough` gave."""
        deadline = time.monotonic() + seconds
        while True:
            while self._take_operation():
                pass
            if enough(self.heard):
                return enough(self.heard)
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                received = self._socket.recv(65536)
            except socket.timeout:
                raise DemoFailed(f"waited {seconds} s for {what} on the wire") from None
            if not received:
                raise DemoFailed("nats-server closed the connection")
            self._received += received

    def close(self):
        self._socket.close()

    def _send(self, line):
        self._socket.sendall(line.encode() + b"\r\n")

    def _take_operation(self):
        """Take one operation of the server out of what was received; false when there is no whole one."""
        line, end, rest = self._received.partition(b"\r\n")
        if not end:
            return False
        operation, *words = line.split()
        if operation in (b"MSG", b"HMSG"):
            size = int(words[-1])
            if len(rest) < size + len(end):
                return False
            self._hear(words[0], int(words[-2]) if operation == b"HMSG" else 0, rest[:size])
            rest = rest[size + len(end):]
        elif operation == b"PING":
            self._send("PONG")
        elif operation == b"PONG":
            self._pongs += 1
        elif operation == b"-ERR":
            raise DemoFailed(f"nats-server says {line.decode()}")
        self._received = rest
        return True

    def _hear(self, subject, header_bytes, message):
        pairs = (line.split(":", 1) for line in message[:header_bytes].decode().split("\r\n")[1:] if ":" in line)
        headers = {name.strip(): value.strip() for name, value in pairs}
        self.heard.append(Heard(subject.decode(), headers, message[header_bytes:]))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def port_is_open(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def say(text=""):
    print(text, flush=True)


def say_command(line):
    print(f"\n$ {line}", flush=True)


def say_output(done):
    for text in (done.stdout, done.stderr):
        if text.strip():
            print(text.rstrip(), flush=True)
    if done.returncode:
        print(f"(exit code {done.returncode})", flush=True)
