"""After the warm-up no function is left to compile, for replay, verify, audit and simulation under any rule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data"

#: Program: simulated logs and recordings as a whole, then recordings in batches with a window that is cut at once; it
#: prints the compiled functions.
USE = """
import json, sys
from datetime import UTC, datetime
from pathlib import Path
from dispatch_core.arrays import jit
from dispatch_core.cli import warmup
from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.replay_log import replay
from dispatch_core.replay.assembler import Replay
from dispatch_core.verify.trace.runner import is_trace
from tests.dispatch_core.logs_without_trace import stripped

SPAN = {"interval_start": datetime(2020, 1, 1, tzinfo=UTC), "interval_end": datetime(2040, 1, 1, tzinfo=UTC)}
AuditFold.__init__.__kwdefaults__["trim_above"] = 0

def in_batches(log):
    fold, size = Replay(log, **SPAN), 50
    fold.feed(log.messages, log.events.slice(0, 0))
    for at in range(0, log.events.num_rows, size):
        fold.feed(log.messages.slice(0, 0), log.events.slice(at, size))

warmup.use_everything()
for folder in sys.argv[1:]:
    for log in read_recording(find_recordings([Path(folder)])[0]).logs:
        for each in (log, stripped(log)):
            replay(each, **SPAN)
            if each.events.num_rows and not is_trace(each):
                in_batches(each)
print(json.dumps({"loaded": jit.loaded(), "compiled": jit.compiled_here()}))
"""
RECORDINGS = [
    "recordings/4.2.4/designed-rolling-restart-ch",
    "recordings/4.2.4/designed-rolling-restart-classic-ch",
    "recordings/4.2.4/designed-negative-acks-ch",
    "recordings/4.2.4/designed-failover-modulo-p1",
    "verify/4.0.0-preview.1/random-0024-range-quiet",
    "operations/4.2.4/shared-0014-quiet",
]


@pytest.mark.slow
def test_nothing_is_left_to_compile() -> None:
    """Run a fresh process on simulated logs and on recordings of real brokers."""
    env = {**os.environ, "NUMBA_DISABLE_JIT": "0"}
    subprocess.run(
        [sys.executable, "-m", "dispatch_core.cli.warmup"], cwd=ROOT, env=env, check=True, capture_output=True
    )
    done = subprocess.run(
        [sys.executable, "-c", USE, *(str(DATA / name) for name in RECORDINGS)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert said["compiled"] == []
    assert len(said["loaded"]) > 50
