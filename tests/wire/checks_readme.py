"""The script in the README is a stranger's first: it must do what the README says, as it stands there."""

import asyncio
import re
import sys
from pathlib import Path

from expect import equal
from registry import check

README = Path(__file__).resolve().parents[2] / "README.md"
DEV_URL = "nats://127.0.0.1:4222"


@check("The first report from Python runs as the README has it, and prints accepted and replayed with one time")
async def _(wire):
    script = re.search(r"<!-- example: python -->\n```python\n(.*?)```", README.read_text(), re.DOTALL).group(1)
    equal(script.count(DEV_URL), 1)
    script = script.replace(DEV_URL, wire.broker.url)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    stdout, stderr = await process.communicate()
    equal((process.returncode, stderr.decode()), (0, ""))
    lines = [line.split() for line in stdout.decode().splitlines()]
    equal([words[0] for words in lines], ["accepted", "replayed"])
    equal(lines[0][1], lines[1][1])
