#!/usr/bin/env python3
"""Check the dependencies with cargo-deny, as deny.toml says: bans, licences and sources always; advisories where their
database can be reached. Where it cannot, that is the last line, and a failure, unless --without-advisories says that
they are not to be checked."""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
CARGO = os.environ.get("CARGO", "cargo")
CARGO_DENY = TOOLS / "bin" / "cargo-deny"
VERSION = "0.20.2"
FETCH_TIMEOUT_SECONDS = 120


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-advisories", action="store_true", help="do not check advisories")
    options = parser.parse_args()
    if installed_version() != VERSION and not install():
        print(f"deny: cargo-deny {VERSION} could not be installed; see the messages of cargo above.", file=sys.stderr)
        return 1
    failed = deny("check", "bans", "licenses", "sources") != 0
    if options.without_advisories:
        unchecked = "deny: advisories were NOT checked, as asked."
    elif fetch_advisories():
        failed |= deny("check", "--disable-fetch", "advisories") != 0
        unchecked = None
    else:
        failed = True
        unchecked = (
            "deny: the advisory database could not be reached: advisories were NOT checked. Go where it can be reached, "
            "or do without them: make deny ADVISORIES=skip"
        )
    print("deny: bans, licences and sources were checked.", flush=True)
    if unchecked:
        print(unchecked, file=sys.stderr)
    return 1 if failed else 0


def installed_version():
    try:
        said = subprocess.run([CARGO_DENY, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.split()[-1]


def install():
    print(f"deny: installing cargo-deny {VERSION} into .tools (some minutes, once)", flush=True)
    command = [CARGO, "install", "--locked", "--version", VERSION, "--root", str(TOOLS), "cargo-deny"]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def deny(*arguments):
    print(f"\n$ cargo deny {' '.join(arguments)}", flush=True)
    return subprocess.run([CARGO_DENY, "--locked", *arguments], cwd=ROOT).returncode


def fetch_advisories():
    """Whether the advisory database is here and fresh. A fetch that hangs is ended with all that it started."""
    print("\n$ cargo deny fetch db", flush=True)
    fetch = subprocess.Popen([CARGO_DENY, "--locked", "fetch", "db"], cwd=ROOT, start_new_session=True)
    try:
        return fetch.wait(FETCH_TIMEOUT_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if fetch.poll() is None:
            os.killpg(fetch.pid, signal.SIGKILL)
            fetch.wait()


if __name__ == "__main__":
    sys.exit(main())
