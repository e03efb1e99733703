"""A profile of what one thread computes: where it is, looked up a hundred times a second from another thread.

The interpreter hands the samples out between two instructions, so that what runs outside of it, as in zlib, counts
for the function that called it. What a greenlet or a task waits for is not on the thread's stack, and not seen.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Final, TypeAlias

import msgspec

EVERY_S: Final = 0.01
DEPTH_MAX: Final = 80
NODES_MAX: Final = 1_500
OWN_MAX: Final = 20
_BELOW: Final = "unrolled_run"
"""The function of trio that runs tasks: what called it is the same for all of them."""
_IDLE: Final = "get_events"
"""The function of trio that waits for something to do."""

Stack: TypeAlias = tuple[str, ...]
"""The functions on a thread's stack, ``module.function``, the outermost first; without any the thread was idle."""


class ProfileNode(msgspec.Struct, frozen=True):
    """A function as another one has called it."""

    depth: int
    """How many functions have called it, one the other."""
    name: str
    """Its module and name."""
    samples: int
    """How often it ran, or what it called."""


class OwnTime(msgspec.Struct, frozen=True):
    """A function that was at work itself."""

    name: str
    """Its module and name."""
    samples: int
    """How often it ran, and nothing that it called."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a process's event loop did."""

    duration_s: float
    """For how long it was watched, in seconds."""
    samples: int
    """How often it was looked up."""
    idle: int
    """How often it had nothing to do; the other samples are in the tree."""
    nodes: list[ProfileNode]
    """The tree of calls: each function before what it called, the most frequent first. Rare ones are left out."""
    own: list[OwnTime]
    """The functions that were at work themselves most often, at most twenty."""


def sample_thread(thread_id: int, for_s: float) -> tuple[Counter[Stack], float]:
    """Look a thread up for so long; return how often each stack was found, and how long it took. Blocks."""
    found: Counter[Stack] = Counter()
    began_at = time.perf_counter()
    while (passed_s := time.perf_counter() - began_at) < for_s:
        frame = sys._current_frames().get(thread_id)
        if frame is not None:
            found[_stack_of(frame)] += 1
        del frame
        time.sleep(EVERY_S)
    return found, passed_s


def _stack_of(frame: FrameType) -> Stack:
    if frame.f_code.co_name == _IDLE:
        return ()
    names: list[str] = []
    above: FrameType | None = frame
    while above is not None and above.f_code.co_name != _BELOW:
        names.append(f"{above.f_globals.get('__name__', '?')}.{above.f_code.co_qualname}")
        above = above.f_back
    return tuple(names[::-1][:DEPTH_MAX]) or (_BELOW,)


def profile_of(found: Mapping[Stack, int], duration_s: float) -> Profile:
    """Return the profile of the stacks that were found, with the most frequent functions."""
    calls: Counter[Stack] = Counter()
    own: Counter[str] = Counter()
    for stack, samples in found.items():
        for depth in range(1, len(stack) + 1):
            calls[stack[:depth]] += samples
        if stack:
            own[stack[-1]] += samples
    # Who calls is found at least as often as who is called, so that no node is without the one above it.
    kept = sorted(calls, key=lambda each: (-calls[each], len(each)))[:NODES_MAX]

    def rank(stack: Stack) -> list[tuple[int, str]]:
        return [(-calls[stack[: depth + 1]], name) for depth, name in enumerate(stack)]

    return Profile(
        duration_s=round(duration_s, 3),
        samples=sum(found.values()),
        idle=found.get((), 0),
        nodes=[ProfileNode(len(each) - 1, each[-1], calls[each]) for each in sorted(kept, key=rank)],
        own=[OwnTime(*each) for each in own.most_common(OWN_MAX)],
    )
