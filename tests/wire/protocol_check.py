#!/usr/bin/env python3
"""A stranger's client: checks a running tasklatch with nats-py and the protocol alone.

It starts a real nats-server and `tasklatch serve` on a scratch database, and asks everything that the protocol promises
about requests, answers, refusals and events. Each check has a sentence as its name.

    TASKLATCH_TEST_NATS_SERVER   the nats-server to start
    TASKLATCH_BIN                the tasklatch to start (default: target/debug/tasklatch)

Run it by `make wire`, which sets these and the path of nats-py.
"""

import argparse
import asyncio
import sys
import tempfile
import traceback
from pathlib import Path

import harness
from registry import CHECKS

# Each module registers its checks when it is imported; they run in this order.
import checks_discovery  # noqa: F401
import checks_create  # noqa: F401
import checks_get  # noqa: F401
import checks_moves  # noqa: F401
import checks_report  # noqa: F401
import checks_cases  # noqa: F401
import checks_limits  # noqa: F401
import checks_panes  # noqa: F401
import checks_deadline  # noqa: F401
import checks_list  # noqa: F401
import checks_reply  # noqa: F401
import checks_events  # noqa: F401
import checks_restart  # noqa: F401
import checks_readme  # noqa: F401

CHECK_TIMEOUT_SECONDS = 90


def main():
    options = parse_arguments()
    chosen = [check for check in CHECKS if options.only.lower() in check.sentence.lower()]
    try:
        failed = asyncio.run(run_all(chosen, options.verbose))
    except harness.CannotStart as reason:
        print(f"wire: {reason}", file=sys.stderr)
        return 1
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed or not chosen else 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-v", "--verbose", action="store_true", help="one line for each check, not only for failures")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the checks whose sentence contains TEXT")
    return parser.parse_args()


async def run_all(chosen, verbose):
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tasklatch-wire-") as scratch:
        async with harness.stage(Path(scratch)) as wire:
            for check in chosen:
                trouble = await run_one(check, wire)
                failed += trouble is not None
                if trouble:
                    print(f"FAIL {check.sentence}\n{indented(trouble)}", flush=True)
                elif verbose:
                    print(f"ok   {check.sentence}", flush=True)
            if failed:
                print(f"the last words of the service:\n{indented(wire.service.last_words())}", flush=True)
    return failed


async def run_one(check, wire):
    """None when the check holds, and otherwise what was found instead."""
    try:
        await asyncio.wait_for(check.run(wire), CHECK_TIMEOUT_SECONDS)
    except AssertionError as wrong:
        return f"{wrong}\n{innermost_place(wrong)}"
    except asyncio.TimeoutError as late:
        return f"did not come in time\n{innermost_place(late)}"
    except Exception as fault:  # A check that breaks is a failed check; the others still run.
        return f"{type(fault).__name__}: {fault}\n{innermost_place(fault)}"
    return None


def innermost_place(error):
    """The lines of the checks that led to the error, without those of libraries."""
    here = str(Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(here)]
    return "\n".join(f"at {Path(frame.filename).name}:{frame.lineno}: {frame.line}" for frame in frames[1:])


def indented(text):
    return "\n".join("     " + line for line in text.splitlines())


if __name__ == "__main__":
    sys.exit(main())
