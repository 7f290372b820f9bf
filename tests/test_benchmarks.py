"""Each benchmark measures what it says: our candidates step, and return the floor's values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, harness, records
from benchmarks.candidates import GPT, TRAINING
from benchmarks.suites import SUITES
from benchmarks.work import Worker
from zoo.cost import flops

CASES = [(name, measure) for name, suite in SUITES.items() for measure in suite.measures]


@pytest.mark.parametrize(("name", "measure"), CASES)
def test_our_candidates_return_the_values_of_the_floor(
    name: str, measure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "SWEEP_STEPS", 4)
    suite = SUITES[name]
    shape = next(iter(suite.shapes.values())).tiny()
    floor = suite.candidates["floor"](measure, shape)
    wanted = [floor().double() for _ in range(2)]
    for candidate in suite.same_weights:
        step = suite.candidates[candidate](measure, shape)
        for value in wanted:
            torch.testing.assert_close(step().double(), value, rtol=1e-5, atol=1e-6)


def test_gpu_benchmark_derives_its_figures_from_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, at a toy's size and eager; the clock of the test says how long each step takes."""
    clock = iter(range(10**6))
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: float(next(clock)))
    shape = SUITES["gpt"].shapes["micro"].tiny()
    told = gpu.measured(shape, torch.device("cpu"), compiled=False, repeats=2, times=4, size=16)
    found = told["candidates"]
    assert found.keys() >= {"floor", "zoo"}
    tokens = shape.batch * shape.length
    for row in found.values():
        assert row["ms"] == 250
        assert row["ratio"] == 1
        assert row["tokens_per_second"] == 4 * tokens
        assert row["flops_per_second"] == 4 * tokens * 3 * flops(GPT.model(shape), shape.length)
    assert told["ceiling"] == 10 * 2 * 16**3


def test_gpu_benchmark_refuses_losses_that_differ_from_the_floor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu.floor, "loss", lambda logits, batch: logits.square().mean())
    with pytest.raises(ValueError, match="the zoo's loss is"):
        gpu.measured(SUITES["gpt"].shapes["micro"].tiny(), torch.device("cpu"), compiled=False)


def test_worker_takes_as_many_steps_as_asked() -> None:
    worker = Worker(
        "lightning", TRAINING, "lightning", SUITES["lightning"].shapes["micro"].tiny(), False
    )
    worker.ready()
    assert worker.refused is None
    assert 0 < worker.seconds(1) < worker.seconds(200)
    worker.stop()
    assert worker.process.exitcode == 0


def test_recording_a_suite_keeps_the_other_suites(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    readme, results = tmp_path / "README.md", tmp_path / "results.json"
    readme.write_text(f"before\n{records.MARKS[0]}\nold\n{records.MARKS[1]}\nafter\n")
    monkeypatch.setattr(records, "README", readme)
    monkeypatch.setattr(records, "RESULTS", results)

    def measured(suite: str, zoo: list[float]) -> dict[str, records.Record]:
        rows = records.rows(suite, "small", "forward", "ms", {"floor": [2.0, 4.0, 8.0], "zoo": zoo})
        return {
            suite: {
                "about": "about",
                "machine": {"cores": 2},
                "missing": {"litgpt": "is not here"},
                "results": rows,
            }
        }

    records.record(measured("long", [1.0, 1.0, 1.0]))
    records.record(measured("gpt", [1.0, 3.0, 8.0]))
    records.record(measured("long", [4.0, 4.0, 4.0]))
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.index("### gpt") < text.index("### long")
    assert (
        "| small | forward | zoo | 3 ms | 0.750 | 0.50–1.00 |" in text
    )  # medians of the times, and of the ratios
    assert "| small | forward | zoo | 4 ms | 1.000 | 0.50–2.00 |" in text
    assert "litgpt: is not here" in text
    assert list(json.loads(results.read_text())) == ["gpt", "long"]
    assert (tmp_path / "results.svg").stat().st_size > 1000
