"""A browser for the pages, and pictures of those of operators.

``python tests/journeys/page_browser.py URL TOKEN FOLDER [PATH…]`` takes a picture of each page of a running
service, on a phone and on a desktop, in light and in dark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.tools import path_of

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

FAULTS_ON_A_SCREEN = """() => {
  const faults = [];
  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) faults.push(`${over} pixels too wide`);
  for (const box of document.querySelectorAll(".card, .scroll")) {
    const hidden = box.scrollWidth - box.clientWidth;
    if (hidden > 0) faults.push(`${hidden} pixels of a ${box.className} are clipped or outside it`);
  }
  const channel = (value) => (value /= 255, value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const colour = (text) => {
    const context = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d");
    context.fillStyle = text;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = ([red, green, blue]) => 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const found = colour(getComputedStyle(each).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || !element.checkVisibility() || element.closest("noscript, template")) continue;
    const [front, back] = [light(colour(getComputedStyle(element).color)), light(behind(element))];
    const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(2)}: ${text.data.trim().slice(0, 40)}`);
  }
  const controls = "a, button, input:not([type=hidden]), select, textarea, summary";
  for (const control of document.querySelectorAll(controls)) {
    if (!control.checkVisibility()) continue;
    const said = (element) => (element.ariaLabel ?? "") + element.textContent.trim();
    const ids = (control.getAttribute("aria-labelledby") ?? "").split(" ");
    const labels = ids.map((id) => document.getElementById(id));
    const named = [control, ...control.querySelectorAll("[aria-label]"), ...labels, ...(control.labels ?? [])];
    const name = named.some((element) => element && said(element));
    if (!name) faults.push(`no name: ${control.outerHTML.slice(0, 80)}`);
  }
  return faults;
}"""
"""What a reader would stumble over: a page that is too wide, text that is too pale, controls without a name."""
FAULTS_OF_A_PAGE = (
    f"() => {{ const faults = ({FAULTS_ON_A_SCREEN})();"
    + """
  const count = (selector) => document.querySelectorAll(selector).length;
  for (const [what, selector] of [["h1", "h1"], ["main", "main"]]) {
    if (count(selector) !== 1) faults.push(`${count(selector)} of ${what}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  for (const id of new Set(ids.filter((each, place) => ids.indexOf(each) !== place))) faults.push(`two of #${id}`);
  for (const each of document.querySelectorAll("table")) {
    if (!each.querySelector("th[scope]")) faults.push("a table without headers");
  }
  return faults;
}"""
)
"""These, and what a screen reader needs: one heading of the page and one main part, ids that are unique, and
headers of tables.
"""


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
