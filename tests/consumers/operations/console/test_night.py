"""Every page of the console in a real Chromium, over a namespace in which much happens and some of it goes wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.night.agents import Quote, Stock, Survey
from tests.night.playing import Night, addresses, played

sync_api = pytest.importorskip("playwright.sync_api")
axe_core = pytest.importorskip("axe_playwright_python.base")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WIDTHS = (1440, 390)
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e\u200b{{7*7}}\" onmouseover=alert(3) x='"
LONG = "w" * 500


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Night, str, str]]:
    with played(tmp_path_factory.mktemp("night")) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        if os.environ.get("REQUIRE_BROWSER"):
            pytest.fail("there is no Chromium: apt-get install chromium")
        pytest.skip("there is no Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Visitor:
    """A browser that is logged in, and notes everything that a page must not do."""

    def __init__(self, chromium: Any, url: str, token: str, width: int, **options: Any) -> None:
        self.url, self.troubles = url, list[str]()
        viewport = {"width": width, "height": 900}
        self.page = chromium.new_context(viewport=viewport, **options).new_page()
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: self.troubles.append(f"dialog {dialog.message}"))
        self.page.on("console", lambda said: said.type != "debug" and self.troubles.append(said.text))
        self.page.on("request", self._asked)
        self.page.goto(url + "/login")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Log in").click()
        self.page.locator("h1").wait_for()

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.troubles.append(f"foreign request {request.url}")

    def visit(self, address: str) -> Any:
        answer = self.page.goto(self.url + address)
        assert answer.status == 200, (address, answer.status)
        self.page.locator("h1").first.wait_for()
        return self.page

    def scrolls_sideways(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))

    def outside(self) -> list[str]:
        """Return the buttons, marks and times that lie outside the window."""
        found: list[str] = self.page.evaluate(
            """() => [...document.querySelectorAll('main .button, main button, main .state, main time, main .id')]
            .filter(each => each.offsetParent && !each.classList.contains('hidden'))
            .filter(each => { const box = each.getBoundingClientRect();
                return box.width > 1 && (box.right > innerWidth + 1 || box.left < -1); })
            .map(each => each.outerHTML.slice(0, 120))"""
        )
        return found


def violations(page: Any) -> list[str]:
    page.evaluate(axe_core.AXE_SCRIPT)
    found = page.evaluate("axe.run().then(found => found.violations)")
    return [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_accessible_and_fits(night: Any, chromium: Any, width: int, scheme: str) -> None:
    played_night, url, token = night
    visitor = Visitor(chromium, url, token, width, color_scheme=scheme, bypass_csp=True)
    found = dict[str, list[str]]()
    for name, address in addresses(played_night).items():
        page = visitor.visit(address)
        if broken := violations(page):
            found.setdefault(name, []).extend(broken)
        if visitor.scrolls_sideways():
            found.setdefault(name, []).append("scrolls sideways")
        if outside := visitor.outside():
            found.setdefault(name, []).append(f"outside: {outside}")
    assert found == {}, json.dumps(found, indent=1)
    assert visitor.troubles == []


def test_the_menu_and_the_shortcuts_are_accessible_and_need_no_script(night: Any, chromium: Any) -> None:
    _, url, token = night
    visitor = Visitor(chromium, url, token, 390, bypass_csp=True)
    visitor.page.get_by_role("button", name="Menu").click()
    visitor.page.locator("#menu").get_by_role("link", name="Dead letters").wait_for()
    assert violations(visitor.page) == []
    visitor.page.get_by_role("button", name="Keyboard shortcuts").click()
    assert violations(visitor.page) == []
    without = chromium.new_context(java_script_enabled=False, viewport={"width": 390, "height": 844}).new_page()
    without.goto(url + "/")
    without.get_by_role("button", name="Menu").click()
    without.locator("#menu").get_by_role("link", name="Conversations").click()
    without.get_by_role("heading", name="Conversations", exact=True).wait_for()


def test_keys_move_through_rows_open_them_and_go_to_pages(night: Any, chromium: Any) -> None:
    _, url, token = night
    visitor = Visitor(chromium, url, token, 1440)
    page = visitor.visit("/conversations")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/conversations?id=*")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url("**/letters")
    page.keyboard.press("/")
    page.keyboard.type("reader@svc")
    page.keyboard.press("Enter")
    page.wait_for_url("**/agents/show?id=*")
    page.get_by_role("heading", name="reader@svc").wait_for()


def test_an_agent_tells_how_fast_it_is(night: Any, chromium: Any) -> None:
    played_night, url, token = night
    played_night.publish("ada@acme", Survey(goal="Read a page once more", sites=("cells.example/21700",)))
    page = Visitor(chromium, url, token, 1440).visit("/agents/show?id=reader@svc")
    for label in ("Half of them within", "19 of 20 within"):
        figure = page.locator(".figure", has=page.get_by_text(label, exact=True)).locator("b")
        # The next heartbeat tells it.
        figure.filter(has_text=re.compile(r"^<?[\d.]+ (ms|s|min)( \d+ s)?$")).wait_for(timeout=45_000)


def test_a_person_decides_on_a_phone_after_all_that_will_run(night: Any, chromium: Any) -> None:
    played_night, url, token = night
    visitor = Visitor(chromium, url, token, 390)
    before = len(played_night.rows("approval", "list"))
    page = visitor.visit("/approvals")
    page.locator(".ask h2 a").first.click()
    page.get_by_role("heading", name="Send a report to 1,240 readers").wait_for()
    packet, decision = page.evaluate(
        "['pre.data', '#decide'].map(each => document.querySelector(each).getBoundingClientRect().top)"
    )
    assert packet < decision
    # What the run had read is there, down to the pages.
    page.locator("ol.steps", has_text="page.content").wait_for()
    page.get_by_role("link", name="To the decision").click()
    digits = re.sub(r"\s", "", page.locator("#decide .hash").inner_text().split("action")[-1])[:8]
    page.get_by_label("Its first 8 digits, to approve").fill(digits)
    # Enter decides nothing.
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Approve").click()
    page.wait_for_url("**/approvals")
    played_night.wait_for(lambda: len(played_night.rows("approval", "list")) == before - 1, "it is decided")
    assert visitor.troubles == []


def test_a_decided_approval_stays_readable_and_cannot_be_decided_again(night: Any, chromium: Any) -> None:
    played_night, url, token = night
    played_night.publish("ada@acme", Survey(goal="Print the report", sites=(), publish=True))
    played_night.wait_for(lambda: bool(played_night.rows("approval", "list")), "it waits for a person")
    visitor = Visitor(chromium, url, token, 1440)
    page = visitor.visit("/approvals")
    page.locator(".ask h2 a").first.click()
    page.get_by_label("Why not, to reject").fill("not tonight")
    page.get_by_role("button", name="Reject").click()
    page.wait_for_url("**/approvals")
    played_night.wait_for(lambda: page.goto(url + "/approvals") and page.locator("a.row").count() > 0, "it has ended")
    page.locator("a.row").first.click()
    page.locator(".title .state", has_text="bo@acme").wait_for()
    assert page.get_by_role("button", name="Approve").count() == 0
    page.locator("pre.data", has_text="customers-eu").first.wait_for()


def test_a_conversation_that_waits_tells_for_what(night: Any, chromium: Any) -> None:
    _, url, token = night
    visitor = Visitor(chromium, url, token, 1440)
    page = visitor.visit("/conversations?q=kestrel.example")
    page.locator("a.row").last.click()
    page.locator("#waits", has_text="kestrel.example").wait_for()
    assert page.locator(".title .state").first.inner_text().strip() == "waits"


def test_no_page_scrolls_sideways_at_any_width(night: Any, chromium: Any) -> None:
    played_night, url, token = night
    visitor, wide = Visitor(chromium, url, token, 1440), []
    for name, address in addresses(played_night).items():
        visitor.visit(address)
        for width in range(320, 1921, 160):
            visitor.page.set_viewport_size({"width": width, "height": 900})
            if visitor.scrolls_sideways() or visitor.outside():
                wide.append((width, name, visitor.outside()))
    assert wide == []


def test_a_redrive_is_not_queued_twice_and_those_behind_it_say_so(night: Any, chromium: Any) -> None:
    played_night, url, token = night
    visitor = Visitor(chromium, url, token, 1440)
    causes = played_night.rows("dlq", "list", "--by", "cause")
    numbers = []
    for _ in range(2):
        page = visitor.visit(f"/letters/redrive?cause={causes[0]['value']}")
        page.get_by_role("button", name="Dry run: only count").click()
        page.wait_for_url("**/runs/*")
        numbers.append(page.url.rsplit("/", 1)[1])
    page.locator("#run .lead", has_text="would be sent back").wait_for()
    assert len(set(numbers)) <= 2


def test_nothing_that_agents_write_moves_widens_or_runs_anything(night: Any, chromium: Any) -> None:
    played_night, url, token = night

    before = len(played_night.rows("dlq", "list", "--limit", "1000"))
    waiting = len(played_night.rows("approval", "list"))
    played_night.publish("ada@acme", Survey(goal=HOSTILE + LONG, sites=(), publish=True), Survey(goal=LONG, sites=()))
    played_night.publish("planner@lab", Stock(warehouse=LONG), Stock(warehouse=HOSTILE))
    played_night.publish("scout@lab", Quote(supplier=HOSTILE, unit_price=LONG, lead_time_days=-1, portal_token=LONG))
    played_night.wait_for(
        lambda: len(played_night.rows("dlq", "list", "--limit", "1000")) >= before + 3, "the letters have come"
    )
    played_night.wait_for(lambda: len(played_night.rows("approval", "list")) > waiting, "it waits for a person")
    letters = played_night.rows("dlq", "list", "--limit", "1000")
    visitor = Visitor(chromium, url, token, 1440)
    pages = list(addresses(played_night).values())
    pages += [f"/letters/show?place={each['location']}" for each in letters[:8]]
    pages += [
        "/conversations?q=%3Cscript%3E%22'%00*()%20NEAR",
        "/conversations?agent=%27;drop%20table",
        "/letters?type=%3Cscript%3E&reason=" + LONG,
        "/costs?by=%3Cimg%3E",
        "/tail?type=%3Cimg%20src=x%3E",
        "/processes?saga=" + LONG,
    ]
    for address in pages:
        page = visitor.visit(address)
        text = page.content()
        assert "the console has failed" not in text, address
        assert not {"\u202e", "\u200b", "\x1b"} & set(text), address
        assert page.locator("main script, main img").count() == 0, address
        assert " style=" not in text, address
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert not visitor.scrolls_sideways(), (width, address)
            assert visitor.outside() == [], (width, address)
    assert visitor.troubles == []


def test_tabs_out_of_sight_hold_no_stream(night: Any, chromium: Any) -> None:
    _, url, token = night
    visitor = Visitor(chromium, url, token, 1440)
    hide = """Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});
        document.dispatchEvent(new Event('visibilitychange'))"""
    # A browser has six connections for one host: ten tabs must load, the tail among them.
    for path in (
        "/",
        "/tail",
        "/groups",
        "/agents",
        "/letters",
        "/conversations",
        "/costs",
        "/approvals",
        "/tail",
        "/",
    ):
        page = visitor.page.context.new_page()
        page.goto(url + path, timeout=20_000)
        page.locator("h1").first.wait_for()
        page.evaluate(hide)


def test_what_is_spent_stands_beside_the_budget(night: Any, chromium: Any) -> None:
    played_night, url, token = night
    visitor = Visitor(chromium, url, token, 1440)
    page = visitor.visit("/costs")
    page.locator("h1", has_text=re.compile(r"^\s*\d+\.\d+ today")).wait_for(timeout=60_000)
    assert "of 5.00 a day" in page.locator("#spent").inner_text()
    assert page.locator(".bars .event").count() == 1
    assert page.locator("#sums .figure").count() == 4
    page.locator("#sums a").click()
    page.locator("h1").first.wait_for()
    assert "/conversations?id=" in page.url
    played_night.wait_for(lambda: "as spent today, of 5.00" in visitor.visit("/").content(), "the check of costs")
    assert visitor.troubles == []


def test_the_search_finds_a_conversation_by_its_id(night: Any, chromium: Any) -> None:
    played_night, url, token = night
    played_night.call(
        "publish", "stock.ask", "--app", "tests.night.agents:catalogue", "--as", "planner@lab",
        "--conversation", "order 7/b", stdin='{"warehouse": "by-name"}\n',
    )  # fmt: skip
    visitor = Visitor(chromium, url, token, 1440)
    address = "/search?q=order%207/b"
    played_night.wait_for(lambda: "/conversations?id=order" in visitor.visit(address).url, "the audit has it")
    assert "by-name" in visitor.page.content()
    assert visitor.troubles == []


def test_what_is_new_comes_by_itself_and_nothing_else_moves(night: Any, chromium: Any) -> None:
    played_night, url, token = night
    visitor = Visitor(chromium, url, token, 1440)
    page = visitor.visit("/")
    figure = page.locator("#figures .figure", has_text="Dead letters, open").locator("b")

    def shown() -> int:
        return int(figure.inner_text().replace(",", ""))

    def is_up_to_date() -> bool:
        return shown() == len(played_night.rows("dlq", "list", "--limit", "1000"))

    played_night.wait_for(is_up_to_date, "the page shows all dead letters")
    figure.evaluate("element => { element.isTheFirst = true }")
    before = shown()

    played_night.publish("planner@lab", Stock(warehouse="a-late-one"))
    played_night.wait_for(lambda: shown() > before and is_up_to_date(), "the page shows the late one, too")
    # The element was changed where it stands, and not replaced: nothing blinks.
    assert figure.evaluate("element => element.isTheFirst")
    both = "element => [element.innerText, document.querySelector('#count-letters').innerText.trim().split(/\\s/)[0]]"
    assert len(set(figure.evaluate(both))) == 1
    assert visitor.troubles == []
