"""Take the picture of a run's page that stands in the README: python docs/take_picture.py [RUN].

Needs a Chromium on the path and playwright (the extra `dev`).
"""

import sys
import tempfile
from pathlib import Path
from shutil import which

from playwright.sync_api import sync_playwright

from profiling.report.render import PAGE_FILE, run_report
from profiling.report.run_data import load_run

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "docs" / "results" / "h200_main"
PICTURE = ROOT / "docs" / "report.png"
#: As wide as the window of a laptop.
WIDTH = 1400


def take_picture(run: Path, picture: Path) -> None:
    """Render the page of a run and write its answer, with the chart of where the time goes, as a PNG."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page_file = Path(folder) / PAGE_FILE
        page_file.write_text(run_report(load_run(run)).page(), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": WIDTH}, color_scheme="light")
        page.goto(page_file.as_uri())
        chart = page.locator("#chart-time").bounding_box()
        assert chart is not None
        page.set_viewport_size({"width": WIDTH, "height": round(chart["y"] + chart["height"]) + 16})
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]) if len(sys.argv) > 1 else RUN, PICTURE)
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1024:.0f} KiB")
