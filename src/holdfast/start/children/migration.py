"""The migration before the workers start and before each roll: ``python -m holdfast.start.children.migration``."""

from __future__ import annotations

import sys

import structlog

from holdfast.persistence.server.database_faults import DatabaseAway, DatabaseTooOld
from holdfast.persistence.server.migrate import MigrationBlocked, MigrationRefused, migrate_when_reachable
from holdfast.settings.settings import environment, load_settings
from holdfast.start.exit_codes import BAD_CONFIGURATION, CLEAN, GAVE_UP
from holdfast.telemetry.logs import configure_logging
from holdfast.telemetry.scrubbing import register_secrets

log = structlog.get_logger("holdfast.migration")


def main() -> int:
    """Migrate the configured database and return the exit code; faults are printed to standard error."""
    settings = load_settings(environment())
    configure_logging(settings.log_format, level=settings.log_level)
    register_secrets(settings.secret_values())
    assert settings.database_url is not None, "the parent names its embedded database"
    try:
        report = migrate_when_reachable(settings.database_url)
    except (MigrationRefused, DatabaseTooOld) as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return BAD_CONFIGURATION
    except MigrationBlocked as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return GAVE_UP
    except DatabaseAway as away:
        print(f"The database cannot be reached: {away.reason}", file=sys.stderr)  # noqa: T201
        return GAVE_UP
    if report.applied:
        log.info("database migrated", applied=", ".join(report.applied))
    return CLEAN


if __name__ == "__main__":
    sys.exit(main())
