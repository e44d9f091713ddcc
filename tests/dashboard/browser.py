"""A headless Chromium on the dashboard: the page, what must never happen on it, axe-core, and pictures to look at."""

import os
import re
import shutil
import sys

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

# Without these a Chromium without network looks up hosts of its maker at every start.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]
WIDE, NARROW = {"width": 1360, "height": 900}, {"width": 400, "height": 860}
# A busy machine takes its time; what is waited for is a condition.
expect.set_options(timeout=20_000)


class Browser:
    """The pages of one run; it counts what none of them may do."""

    def __init__(self, pictures):
        self.pictures = pictures
        os.makedirs(pictures, exist_ok=True)
        self.playwright = sync_playwright().start()
        path = os.environ.get("EXACTMQ_CHROMIUM") or shutil.which("chromium")
        assert path, "chromium is not installed: tests/setup.sh installs it"
        self.chromium = self.playwright.chromium.launch(executable_path=path, args=FLAGS)
        self.faults = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind and self.page and not self.page.is_closed():
            self.page.screenshot(path=f"{self.pictures}/failed.png", full_page=True)
        self.chromium.close()
        self.playwright.stop()

    def open(self, url, scheme="light", size=WIDE):
        """A page of its own, with nothing kept from another."""
        context = self.chromium.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        self.page = page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", self.listen)
        page.on("request", lambda request: self.requested(url, request))
        page.goto(url)
        return page

    def listen(self, message):
        # A status that is an error is told by Chromium itself; a test that wants one asserts what the page says of it.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.faults.append(f"console: {message.text}")

    def requested(self, url, request):
        if not request.url.startswith(url + "/"):
            self.faults.append(f"asked elsewhere: {request.url}")

    def check(self):
        """No script error, nothing that the policy stopped, nothing asked for elsewhere."""
        assert not self.faults, self.faults

    def axe(self, name):
        """axe-core finds nothing serious or critical."""
        found = [one for one in Axe().run(self.page).response["violations"] if one["impact"] in ("serious", "critical")]
        lines = [f"{one['id']} ({one['impact']}): {[node['target'] for node in one['nodes']][:5]}" for one in found]
        assert not lines, f"{name}: {lines}"

    def picture(self, name):
        self.page.screenshot(path=f"{self.pictures}/{name}.png")


def sign_in(page, token):
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()


def visit(page, view):
    page.get_by_role("navigation", name="Views").get_by_role("link", name=view).click()
    expect(page.get_by_role("heading", name=view, level=1)).to_be_visible()


def column(page, label):
    """The texts of one column, top down."""
    return page.locator(f'tbody td[data-label="{label}"]').all_inner_texts()


def number(text):
    return int(re.sub(r"\D", "", text) or -1)


def wait(page, script, argument=None):
    """Until the page says yes. The policy of the page allows no eval, so it is asked again and again."""
    for _ in range(400):
        if page.evaluate(script, argument):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {script}")


def run(steps):
    """Runs the steps in order, and says which one it was."""
    for step in steps:
        print(f"step {step.__name__}", flush=True)
        step()
    sys.stdout.flush()
