"""Take pictures of the console: `python -m tests.night docs/pictures`. Needs Chromium.

Nothing of this machine is in the pictures.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from tests.night.playing import addresses, played

_IN_DOCUMENTS: Final = ("overview", "letters", "cause", "conversation", "approval", "agents", "group")
_LONGEST_PX: Final = 1_100


def take(folder: Path, options: argparse.Namespace) -> list[Path]:
    """Take the pictures; return their paths."""
    from playwright.sync_api import sync_playwright

    found, chromium = list[Path](), shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    with played(folder) as (night, url, token), sync_playwright() as playwright:
        time.sleep(options.settle)
        pages = addresses(night)
        if options.pages != ["all"]:
            pages = {name: pages[name] for name in options.pages}
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme in options.schemes:
            for width in options.widths:
                page = _logged_in(browser, url, token, width, scheme)
                for name, address in pages.items():
                    page.goto(url + address)
                    page.wait_for_timeout(600)
                    suffix = "" if len(options.schemes) * len(options.widths) == 1 else f"-{scheme}-{width}"
                    path = options.target / f"console-{name}{suffix}.png"
                    height = min(_LONGEST_PX, page.evaluate("document.documentElement.scrollHeight"))
                    page.set_viewport_size({"width": width, "height": max(600, height)})
                    page.screenshot(path=path)
                    found.append(path)
        browser.close()
    return found


def _logged_in(browser: Any, url: str, token: str, width: int, scheme: str) -> Any:
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    page.goto(url + "/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.locator("h1").wait_for()
    return page


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m tests.night", description=__doc__.splitlines()[0])
    parser.add_argument(
        "target", type=Path, nargs="?", help="where the pictures go; without it the night is only served"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[1280])
    parser.add_argument("--schemes", nargs="+", default=["light"], choices=["light", "dark"])
    parser.add_argument("--pages", nargs="+", default=list(_IN_DOCUMENTS), help="names of pages, or `all`")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds that pass before the first picture")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="night-") as folder:
        if options.target is None:
            with played(Path(folder)) as (_, url, token):
                print(f"{url}/  token {token}  (Ctrl-C ends it)", flush=True)
                try:
                    threading.Event().wait()
                except KeyboardInterrupt:
                    return
        options.target.mkdir(parents=True, exist_ok=True)
        for path in take(Path(folder), options):
            print(path)


if __name__ == "__main__":
    main()
