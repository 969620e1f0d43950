"""A hunt of releases on Spark: the same result by any number of tasks, and nothing is played twice or lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dispatch_core.hunt import zoo
from dispatch_core.hunt.campaign import Campaign, campaign
from spark_jobs.hunt import hunt_releases as stage
from spark_jobs.hunt.hunt_releases import hunt_releases, kept_hunt, main
from spark_jobs.location import Location
from spark_jobs.one_process import one_process

#: The first hunt of an installation compiles for more than a minute.
pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE = "subscriptionKeySharedUseConsistentHashing=false"


@pytest.fixture(scope="module")
def asked() -> Campaign:
    return campaign(
        ["4.0.0", "4.2.4"], assignments=[RANGE], promises=["stuck"], schedules=60_000, first_seed=3, seeds=3,
        watched=60,
    )  # fmt: skip


@pytest.fixture(scope="module")
def here(asked: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one process."""
    out = tmp_path_factory.mktemp("hunt") / "out"
    hunt_releases(one_process(), asked, Location.of(out), 1)
    return out


def files_of(out: Path) -> dict[str, str]:
    """Return the results, without those of the chunks."""
    return {
        str(path.relative_to(out)): path.read_text(encoding="utf-8")
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.parent.name != "chunks"
    }


@pytest.mark.spark
def test_tasks_find_what_one_process_finds(
    spark: SparkSession, asked: Campaign, here: Path, tmp_path: Path
) -> None:
    """One release is watched by a task; the other's functions are there already."""
    (tmp_path / "out" / "chunks").mkdir(parents=True)
    shutil.copy(here / "chunks" / "4.0.0-watched.json", tmp_path / "out" / "chunks")
    summary = hunt_releases(spark, asked, Location.of(tmp_path / "out"), 2)
    assert files_of(tmp_path / "out") == files_of(here)
    assert (summary["releases"], summary["schedules"], summary["played_now"]) == (2, 120_000, 7)
    assert (summary["finds"], summary["known"], summary["new"]) == (6, 6, [])


def test_a_release_breaks_a_promise_that_another_one_keeps(here: Path) -> None:
    result = json.loads((here / "hunt.json").read_text(encoding="utf-8"))
    draining = next(row for row in result["finds"] if row["cause"] == "draining_hash")
    assert draining["releases"]["4.0.0"]["known"]["exhibit"] == "24736-hash-never-free"
    assert draining["releases"]["4.2.4"] == {
        "found": False, "schedules": 60_000, "shortest_played": zoo.KEPT,
    }  # fmt: skip
    coverage = result["releases"][0]["coverage"]
    assert coverage["schedules"] == 60
    assert coverage["modules"]["gates"]["called"] > 5
    for row in result["finds"]:
        for release, cell in row["releases"].items():
            if cell["found"]:
                text = (here / cell["file"]).read_text(encoding="utf-8")
                assert zoo.verdict(zoo.parse("find", text), release) == row["verdict"]
    page = (here / "index.html").read_text(encoding="utf-8")
    assert "not found in 60,000 schedules" in page
    assert "24736-hash-never-free" in page
    assert "Rules and branches" in page
    assert "<script" not in page


def test_a_killed_run_goes_on_from_what_it_has_played(
    asked: Campaign, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Location.of(tmp_path / "out")
    played: list[str] = []
    play = Campaign.play

    def dies_at_the_third(campaign: Campaign, chunk: Any) -> Any:
        if len(played) == 2:
            raise KeyboardInterrupt
        played.append(chunk.name)
        return play(campaign, chunk)

    monkeypatch.setattr(Campaign, "play", dies_at_the_third)
    monkeypatch.setattr(stage, "watch", lambda _asked, release: functions_of(here, release))
    with pytest.raises(KeyboardInterrupt):
        hunt_releases(one_process(), asked, out, 1)
    assert not (out / "hunt.json").exists()
    monkeypatch.setattr(Campaign, "play", lambda self, chunk: played.append(chunk.name) or play(self, chunk))
    (out / "chunks" / "4.2.4-4.json").write_text('{"of": "half a')  # of a store that lost the rest
    assert hunt_releases(one_process(), asked, out, 1)["played_now"] == 6
    assert sorted(played) == sorted(chunk.name for chunk in asked.chunks())
    assert hunt_releases(one_process(), asked, out, 1)["played_now"] == 0
    assert len(played) == 6
    assert files_of(tmp_path / "out") == files_of(here)


def functions_of(out: Path, release: str) -> list[dict[str, Any]]:
    result = json.loads((out / "hunt.json").read_text(encoding="utf-8"))
    (found,) = (row for row in result["releases"] if row["release"] == release)
    return list(found["coverage"]["functions"])


def test_what_other_code_or_another_hunt_has_played_does_not_count(
    asked: Campaign, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = asked.chunks()[0]
    assert kept_hunt(Location.of(here), asked, chunk) is not None
    other = campaign(
        ["4.0.0"], assignments=[RANGE], promises=["stuck"], schedules=60_000, seeds=3, states=True
    )
    assert kept_hunt(Location.of(here), other, chunk) is None
    monkeypatch.setattr(stage, "core_digest", lambda: "newer")
    assert kept_hunt(Location.of(here), asked, chunk) is None


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPATCH_AUDIT_SPARK_MASTER", raising=False)
    arguments = ["--release=4.2.4", "--promise=order", "--schedules=1000", "--seeds=2", "--watched=0"]
    out = tmp_path / "out"
    (out / "finds").mkdir(parents=True)
    (out / "finds" / "of-an-earlier-attempt.toml").write_text("", encoding="utf-8")
    assert main([*arguments, "--out", str(out)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["schedules"], summary["finds"], summary["new"]) == (1000, 0, [])
    assert sorted(files_of(out)) == ["hunt.json", "index.html"]
    assert "No promise was broken" in (out / "index.html").read_text(encoding="utf-8")
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main([*arguments, "--out", str(tmp_path / "file" / "out")]) == 2
    assert f"error: home {tmp_path}/file/out: " in capsys.readouterr().err
    assert main(["--release=nine", "--out", str(tmp_path / "other")]) == 2
    assert "error: releases: 'nine'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
