"""The pictures of a report, and the whole page as a browser shows it."""

from __future__ import annotations

import base64
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from ablations import report, results
from ablations.report import figures, sections
from ablations.report.figures.style import empty_figure, svg
from ablations.report.html import Picture
from tests.helpers.studies import judged, study


def test_training_is_drawn_also_where_there_is_one_evaluation(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.1})
    with_loss = sections.training(judged(folder)[0])
    for path in folder.glob("*/*/metrics.csv"):
        path.write_text(path.read_text().replace("train/loss", "train/other"))
    without = sections.training(judged(folder)[0])
    assert with_loss is not None
    assert without is not None
    lines = [
        len(re.findall(r'stroke: #[^"]*stroke-width: 0\.8', part.svg))
        for section in (with_loss, without)
        for part in section.parts
        if isinstance(part, Picture)
    ]
    assert lines[0] == lines[1] + 2, "a line an arm"
    for path in folder.glob("*/*/metrics.csv"):
        path.write_text("")
    assert sections.training(judged(folder)[0]) is None


def test_a_curve_is_the_mean_of_all_seeds_and_ends_where_one_diverges() -> None:
    """Of the seeds that are left the mean would fall as the worst leave it."""
    runs = [
        np.array([[1, 2.0], [2, 4.0], [3, 3.0]]),
        np.array([[1, 4.0], [2, 6.0], [3, np.nan]]),
        np.empty((0, 2)),
    ]
    steps, mean, spread = figures.over_seeds(runs)
    assert (steps.tolist(), mean.tolist(), spread.tolist()) == ([1, 2], [3, 5], [1, 1])
    assert figures.over_seeds([runs[0], runs[1][:1]])[0].tolist() == [1]
    values = np.arange(300.0)
    assert figures.smooth(values)[10:-10] == pytest.approx(values[10:-10])
    assert figures.smooth(values)[0] == pytest.approx(values[:6].mean())
    assert figures.smooth(np.array([3.0, 1.0])).tolist() == [3, 1]


def test_every_letter_of_a_picture_is_in_the_page_s_own_ink(tmp_path: Path) -> None:
    found, compared = judged(study(tmp_path / "s", {"a": 0.1, "b$_{c}": 0.2}, design="ladder"))
    below = sections.sections(found, compared)
    pictures = [
        part.svg for section in below for part in section.parts if isinstance(part, Picture)
    ]
    pictures.append(figures.forest(found, compared))
    letters = [style for svg in pictures for style in re.findall(r"<text ([^>]*)>", svg)]
    assert len(letters) > 40
    assert [style for style in letters if "currentColor" not in style] == []


def test_a_name_in_any_script_is_drawn_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    figure, axes = empty_figure(1.0)
    axes.set_title("norm=日本")
    assert "norm=日本" in svg(figure, "a title")
    assert not recwarn.list


def test_of_many_arms_the_baseline_and_the_best_have_colours(tmp_path: Path) -> None:
    folder = study(
        tmp_path / "s", {f"arm{number}": number / 10 for number in range(1, 12)}, seeds=2
    )
    found = results.load(folder)
    assert list(figures.colours(found)) == ["base", *(f"arm{number}" for number in range(1, 7))]
    assert figures.REST not in figures.colours(found).values()
    assert "Of the 12 arms, the baseline and the best are in colours" in str(
        sections.training(found)
    )


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
PROBE = """<!doctype html><body style="margin:0">
<iframe id="page" width="390" height="800" style="border:0"></iframe><script>
const page = document.getElementById("page");
const bytes = Uint8Array.from(atob("%s"), letter => letter.charCodeAt(0));
page.onload = () => { const inner = page.contentWindow; document.body.append(
  `overflow=${inner.document.documentElement.scrollWidth - inner.innerWidth} fetched=${
  inner.performance.getEntriesByType("resource").length} pictures=${
  inner.document.querySelectorAll("svg").length}`) };
page.srcdoc = new TextDecoder().decode(bytes);
</script></body>"""


def browse(*flags: str) -> str:
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser on PATH ({', '.join(BROWSERS)})")
    done = subprocess.run(
        [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_browser_shows_the_page_on_a_phone_without_overflow_or_a_request(tmp_path: Path) -> None:
    arms = {"a_long_name.of.an_option=and_its_long_value": 0.1, "x" * 80: -0.1, "c": 0.0}
    folder = study(tmp_path / "s", arms, design="ladder")
    report.write(folder)
    probe = tmp_path / "probe.html"
    probe.write_text(
        PROBE % base64.b64encode((folder / "report.html").read_bytes()).decode(), encoding="utf-8"
    )
    told = re.search(
        r"overflow=(\S+) fetched=(\d+) pictures=(\d+)",
        browse("--virtual-time-budget=5000", "--dump-dom", probe.as_uri()),
    )
    assert told is not None
    assert (float(told[1]), int(told[2])) == (0, 0)
    assert int(told[3]) >= 4
    shot = tmp_path / "shot.png"
    browse(
        "--window-size=1000,1400",
        "--force-dark-mode",
        f"--screenshot={shot}",
        (folder / "report.html").as_uri(),
    )
    pixels = rows_of(shot)
    assert len(pixels) > 1000
    assert sum(len(set(row)) > 8 for row in pixels) > len(pixels) / 4, (
        "most rows hold letters or lines"
    )


def rows_of(path: Path) -> list[bytes]:
    """The filtered rows of a PNG: of a blank picture each is the same few bytes."""
    content, data, at = path.read_bytes(), b"", 8
    width, height, depth, colour = struct.unpack(">IIBB", content[16:26])
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at : at + 8])
        data += content[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    rows, stride = zlib.decompress(data), 1 + width * depth // 8 * {2: 3, 6: 4}[colour]
    return [rows[row * stride : (row + 1) * stride] for row in range(height)]
