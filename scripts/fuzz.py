#!/usr/bin/env python3
"""Fuzz the decoding of requests and the equality of content: each target of fuzz/ for so many seconds.

Starts from the seeds in fuzz/corpus/ and from what earlier runs found, which is kept in fuzz/target/corpus/. Fails where
a target does, and where it cannot be run. Without a sanitizer, as there is no unsafe code of ours to watch, so that the
stable toolchain will do."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
CARGO = os.environ.get("CARGO", "cargo")
CARGO_FUZZ = TOOLS / "bin" / "cargo-fuzz"
VERSION = "0.13.2"
TARGETS = ["decode", "equality"]
# Short ones are tried oftener; sizes near the limits are for the tests.
MAX_INPUT_BYTES = 4096
INPUT_TIMEOUT_SECONDS = 10


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=60, help="for each target, once it is built")
    options.add_argument("--only", choices=TARGETS, help="this target alone")
    asked = options.parse_args()
    if asked.seconds < 1:
        options.error("--seconds must be 1 or more; 0 would fuzz for ever")
    problem = cannot_run()
    if problem:
        print(f"fuzz: cannot run, so nothing was fuzzed: {problem}", file=sys.stderr)
        return 1
    failed = [target for target in TARGETS if asked.only in (None, target) and not fuzz(target, asked.seconds)]
    if failed:
        print(f"\nfuzz: failed: {', '.join(failed)}. If an input was found, it is in fuzz/artifacts/; run it again with\n"
              f"fuzz:   .tools/bin/cargo-fuzz run --sanitizer none {failed[0]} fuzz/artifacts/{failed[0]}/NAME\n"
              "fuzz: Once it is understood, put it into fuzz/corpus/ and a test beside the code.", file=sys.stderr)
        return 1
    return 0


def cannot_run():
    """What is missing, and what to do about it; None when all is there and built."""
    compiler = os.environ.get("CXX", "c++").split()[0]
    if not shutil.which(compiler):
        return (f"there is no C++ compiler {compiler!r}, which libFuzzer is built with. Install one (the package g++ of "
                "Debian, gcc-c++ of Fedora, the command line tools of Xcode), or name yours in CXX.")
    if installed_version() != VERSION and not install():
        return f"cargo-fuzz {VERSION} could not be installed; see the messages of cargo above."
    # cargo-fuzz has no --locked of its own.
    if run([CARGO, "fetch", "--quiet", "--locked", "--manifest-path", "fuzz/Cargo.toml"]) != 0:
        return "what fuzz/Cargo.lock names could not be fetched; see the messages of cargo above."
    if run([CARGO_FUZZ, "build", "--sanitizer", "none"]) != 0:
        return "the targets could not be built; see the messages above."
    return None


def installed_version():
    try:
        said = subprocess.run([CARGO_FUZZ, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.split()[-1]


def install():
    print(f"fuzz: installing cargo-fuzz {VERSION} into .tools (a minute, once)", flush=True)
    return run([CARGO, "install", "--quiet", "--locked", "--version", VERSION, "--root", TOOLS, "cargo-fuzz"]) == 0


def fuzz(target, seconds):
    """Whether nothing was found."""
    print(f"\nfuzz: {target}, for {seconds} s", flush=True)
    found = ROOT / "fuzz" / "target" / "corpus" / target
    found.mkdir(parents=True, exist_ok=True)
    # libFuzzer writes into the first folder alone.
    command = [CARGO_FUZZ, "run", "--sanitizer", "none", target, found, f"fuzz/corpus/{target}", "--",
               f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", f"-timeout={INPUT_TIMEOUT_SECONDS}",
               "-dict=fuzz/json.dict", "-verbosity=0", "-print_final_stats=1"]
    fuzzing = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace")
    # What libFuzzer would add to the dictionary is of no use to people.
    recommended = False
    for line in fuzzing.stderr:
        recommended |= line.startswith("###### Recommended dictionary")
        if not recommended:
            print(line, end="", file=sys.stderr, flush=True)
        recommended &= not line.startswith("###### End of recommended dictionary")
    return fuzzing.wait() == 0


def run(command):
    try:
        return subprocess.run(command, cwd=ROOT).returncode
    except OSError as error:
        print(f"fuzz: {command[0]}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
