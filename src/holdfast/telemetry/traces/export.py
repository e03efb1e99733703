"""Whether spans are exported: only if a variable names a collector, and the library is installed."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from holdfast.settings.checks import install_extra

log = structlog.get_logger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def export_traces(variables: Mapping[str, str]) -> None:
    """Start the export if the standard variables ask for it."""
    is_off = (
        variables.get("OTEL_SDK_DISABLED", "").lower() == "true" or variables.get("OTEL_TRACES_EXPORTER") == "none"
    )
    if is_off or not any(variables.get(name) for name in _ENDPOINTS):
        return
    try:
        from holdfast.telemetry.traces.otel import start_exporting
    except ModuleNotFoundError as fault:
        if (fault.name or "").partition(".")[0] != "opentelemetry":
            raise
        log.warning(
            f"traces are not exported: the library is not installed (run {install_extra('otel')}, "
            "or install requirements/options.lock)"
        )
        return
    start_exporting(variables)
