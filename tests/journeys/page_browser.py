"""A browser for the pages, and pictures of those of operators.

``python tests/journeys/page_browser.py URL TOKEN FOLDER [PATH…]`` takes a picture of each page of a running
service, on a phone and on a desktop, in light and in dark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.tools import CLIENTS, CLIENTS_NODE, path_of

from holdfast.http.kit.calls import Auth
from holdfast_console.operators.site import SITE

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 60_000
Scheme = Literal["light", "dark"]
SCREENS = {"phone": (390, 844), "desktop": (1280, 900)}
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
PAGES = tuple(
    view.path
    for view in SITE.views
    if view.method == "GET" and view.auth is Auth.OPERATOR_READ and "{" not in view.path
)

TOO_WIDE = """() => {
  const faults = [];
  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) faults.push(`${over} pixels too wide`);
  for (const box of document.querySelectorAll(".card, .scroll")) {
    const hidden = box.scrollWidth - box.clientWidth;
    if (hidden > 0) faults.push(`${hidden} pixels of a ${box.className} are clipped or outside it`);
  }
  for (const cell of document.querySelectorAll("table.stack td")) {
    if (getComputedStyle(cell).display !== "grid" || cell.matches(".span")) continue;
    for (const part of cell.childNodes) {
      if (part.nodeType !== Node.TEXT_NODE || !part.data.trim()) continue;
      const text = document.createRange();
      text.selectNodeContents(part);
      const {left} = text.getBoundingClientRect();
      if (left < cell.getBoundingClientRect().left + 100) faults.push(`"${part.data.trim()}" is below its label`);
    }
  }
  return faults;
}"""
FINDINGS = """async (rules) => {
  const runOnly = rules.length ? {runOnly: {type: "rule", values: rules}} : {};
  const {violations} = await axe.run({resultTypes: ["violations"], ...runOnly});
  return violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 120)}`));
}"""
VIEWER_RULES = ("aria-command-name", "button-name", "color-contrast", "input-button-name", "label", "link-name")
"""What is checked of the API reference, whose ids and headings are those of a viewer of others."""


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run chromium with a profile of its own, which is deleted afterwards."""
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path_of("chromium"), args=FLAGS)
        yield browser
        browser.close()


def new_context(
    browser: Browser, url: str, *, screen: str = "desktop", scheme: Scheme = "light", has_script: bool = True
) -> BrowserContext:
    """Return a browser without cookies, on a screen."""
    width, height = SCREENS[screen]
    return browser.new_context(
        base_url=url,
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        java_script_enabled=has_script,
        device_scale_factor=1,
    )


def faults_of(page: Page, *rules: str) -> list[str]:
    """Return what a reader would stumble over: what does not fit the screen, and the findings of axe-core.

    By default of all its rules.
    """
    path_of(CLIENTS_NODE)
    page.evaluate((CLIENTS / "node_modules/axe-core/axe.min.js").read_text())
    return [*page.evaluate(TOO_WIDE), *page.evaluate(FINDINGS, rules)]


def faults_on_screens(page: Page) -> dict[str, list[str]]:
    """Return what :func:`faults_of` finds of a page on each screen in each colour scheme."""
    found = {}
    for (name, (width, height)), scheme in product(SCREENS.items(), SCHEMES):
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        if faults := faults_of(page):
            found[f"{name}, {scheme}"] = faults
    return found


def sign_in(page: Page, token: str, path: str = "/ops") -> None:
    """Open a page, which asks to sign in first, and do."""
    page.goto(path)
    page.get_by_label("Operator token").fill(token)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(f"**{path}")


def take_pictures(url: str, token: str, folder: Path, paths: tuple[str, ...]) -> None:
    """Take a picture of each page on each screen in each colour scheme."""
    folder.mkdir(parents=True, exist_ok=True)
    with running_browser() as browser:
        for screen in SCREENS:
            for scheme in SCHEMES:
                with new_context(browser, url, screen=screen, scheme=scheme) as context:
                    page = context.new_page()
                    page.goto("/ops/sign-in")
                    page.screenshot(path=folder / f"sign-in-{screen}-{scheme}.png")
                    sign_in(page, token)
                    for path in paths:
                        page.goto(path)
                        name = path.removeprefix("/ops").strip("/").replace("/", "-")[:40] or "overview"
                        page.screenshot(path=folder / f"{name}-{screen}-{scheme}.png", full_page=True)
                        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                        if over > 0:
                            sys.stdout.write(f"{path} on a {screen} is {over} pixels too wide\n")


if __name__ == "__main__":
    take_pictures(sys.argv[1], sys.argv[2], Path(sys.argv[3]), tuple(sys.argv[4:]) or PAGES)
