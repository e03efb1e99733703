"""The studio's gallery: a page of recent jobs, for development.

Plain HTML without script. All text of callers is escaped, links are the files' own, and the content security policy
allows nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from html import escape
from typing import Final

from holdfast.ledger.clock import format_time
from holdfast.standins.studio.jobs import Job, OutputFile

JOBS_SHOWN_MAX_COUNT = 60
PROMPT_SHOWN_MAX_CHARS = 240

_STYLE: Final = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent); }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1.5rem; }
header { display: flex; gap: 1rem; align-items: baseline; flex-wrap: wrap; }
h1 { font-size: 1.4rem; margin: 0; }
header p { margin: 0; opacity: .7; }
main { display: grid; gap: 1rem; margin-top: 1.25rem; align-items: start; }
main { grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); }
article { border: 1px solid var(--line); border-radius: .6rem; overflow: hidden; }
.files { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); }
img, video { width: 100%; height: auto; display: block; }
audio { width: 100%; margin: 1rem 0; }
.none { height: 12rem; display: grid; place-items: center; opacity: .6; }
.details { padding: .7rem .9rem .9rem; }
h2 { font-size: 1rem; margin: 0; display: flex; justify-content: space-between; }
h2 span { font-weight: 400; opacity: .7; }
p { margin: .3rem 0; overflow-wrap: anywhere; }
small { opacity: .65; overflow-wrap: anywhere; }
progress { width: 100%; }
"""

GALLERY_CSP: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "img-src 'self'; media-src 'self'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)


def gallery_page(jobs: Iterable[Job], link: Callable[[OutputFile], str]) -> str:
    """Return the page for ``jobs``. ``link`` returns the path of a file."""
    articles = [_article(job, link) for job in jobs]
    shown = "\n".join(articles) or "<p>Nothing yet. Create a task for one of the studio's models, and reload.</p>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Studio</title>'
        f"<style>{_STYLE}</style></head>\n"
        "<body><header><h1>Studio</h1><p>Recent jobs, newest first. Files expire after a few hours.</p></header>\n"
        f"<main>\n{shown}\n</main></body></html>\n"
    )


def _article(job: Job, link: Callable[[OutputFile], str]) -> str:
    files = "".join(_element(file, link(file)) for file in job.results)
    body = f'<div class="files">{files}</div>' if files else f'<div class="none">{escape(job.stage)}</div>'
    prompt = job.order.input.get("prompt")
    lines = [f"<h2>{escape(job.order.model)} <span>{escape(job.status)}</span></h2>"]
    if not job.is_over:
        lines.append(f'<progress max="100" value="{job.percent}"></progress>')
    if isinstance(prompt, str):
        cut = prompt if len(prompt) <= PROMPT_SHOWN_MAX_CHARS else prompt[: PROMPT_SHOWN_MAX_CHARS - 1] + "…"
        lines.append(f"<p>{escape(cut)}</p>")
    if job.error is not None:
        lines.append(f"<p>{escape(job.error)}</p>")
    lines.append(f"<small>{escape(job.id)} · {escape(format_time(job.created_at))}</small>")
    return f'<article>{body}<div class="details">{"".join(lines)}</div></article>'


def _element(file: OutputFile, url: str) -> str:
    """Return the element that shows a file; a plain link for other types."""
    src = escape(url)
    kind = file.content_type.partition("/")[0]
    if kind == "image":
        return f'<a href="{src}"><img src="{src}" alt="" loading="lazy"></a>'
    if kind == "video":
        return f'<video src="{src}" controls preload="metadata" muted></video>'
    if kind == "audio":
        return f'<audio src="{src}" controls preload="metadata"></audio>'
    return f'<p><a href="{src}">{escape(file.name)}</a></p>'
