"""Find what is served at a path: by the whole path if it has no parameters, else by a tree of segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from holdfast.http.kit.extensions import ServedPage
from holdfast.http.kit.routes import Route

Served: TypeAlias = Route | ServedPage
"""An endpoint, or a page."""

SLASHED: Final = "model_id"
"""The one parameter whose value may contain slashes."""


class _Segment:
    """What may follow a segment of a path, and what is served if the path ends with it."""

    __slots__ = ("fixed", "name", "parameter", "served")

    def __init__(self) -> None:
        self.fixed: dict[str, _Segment] = {}
        self.name = ""
        self.parameter: _Segment | None = None
        self.served: dict[str, tuple[Served, str]] = {}

    def follow(self, segment: str) -> _Segment:
        """Return what a segment of a declared path leads to."""
        if not segment.startswith("{"):
            return self.fixed.setdefault(segment, _Segment())
        name = segment[1:-1]
        assert self.name in {"", name}, "a parameter has the same name in all paths"
        self.name, self.parameter = name, self.parameter or _Segment()
        return self.parameter


class Router:
    """What is served, and its name, by path and method.

    GET serves HEAD too, and OPTIONS is that of the path's first route. What is declared as it is requested, a path
    or the next segment, is no value of a parameter: ``GET /v2/task/create`` is no task.
    """

    def __init__(self, routes: Iterable[Served]) -> None:
        self._fixed: dict[str, dict[str, tuple[Served, str]]] = {}
        self._slashed: dict[tuple[str, str], dict[str, tuple[Served, str]]] = {}
        self._root = _Segment()
        for route in routes:
            served, named = self._declared_at(route.path), (route, route.name)
            assert route.method not in served, f"{route.name} is declared once"
            served[route.method] = named
            if route.method == "GET":
                served["HEAD"] = named
            served.setdefault("OPTIONS", named)

    def find(self, path: str) -> tuple[Mapping[str, tuple[Served, str]], dict[str, str]]:
        """Return what is served at a path by method, nothing if it does not exist, and the values of parameters."""
        served = self._fixed.get(path)
        if served is not None:
            return served, {}
        values = {}
        at = self._root
        for segment in path.split("/"):
            following = at.fixed.get(segment)
            if following is None:
                following = at.parameter
                if following is None or not segment:
                    return self._find_slashed(path)
                values[at.name] = segment
            at = following
        return at.served, values

    def _find_slashed(self, path: str) -> tuple[Mapping[str, tuple[Served, str]], dict[str, str]]:
        for (before, after), served in self._slashed.items():
            value = path[len(before) : len(path) - len(after)]
            if value and path == f"{before}{value}{after}":
                return served, {SLASHED: value}
        return {}, {}

    def _declared_at(self, path: str) -> dict[str, tuple[Served, str]]:
        if "{" not in path:
            return self._fixed.setdefault(path, {})
        before, slashed, after = path.partition(f"{{{SLASHED}}}")
        if slashed:
            return self._slashed.setdefault((before, after), {})
        at = self._root
        for segment in path.split("/"):
            at = at.follow(segment)
        return at.served
