"""Nothing that is stored, sent or typed is ever unpickled, evaluated, imported or executed."""

import json
import os
import subprocess
import sys


def test_no_data_is_run_and_whoever_would_run_it_is_convicted(tmp_path):
    """Jobs, rows written past duly, webhooks, requests: through worker, ticker, API and pages."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.security.audited", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["hostile"] == []
    assert found["answers"]["200"] > 100, "pages and answers were really made"
    for offence, convictions in found["planted"].items():
        assert convictions, f"{offence} went unseen"
