"""The command that keeps HAProxy's map of places to servers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.commands.common import database, fail, refuse_old_tables, report_faults, until_interrupted
from holdfast.settings.settings import environment, load_locations
from holdfast.start.exit_codes import BAD_CONFIGURATION, GAVE_UP


def places_command(
    servers: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of HAProxy's servers; without any, the addresses of the members in the database."
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Write the map here, not to standard output.")] = None,
    socket: Annotated[
        Path | None, typer.Option(help="Also replace the map of a running HAProxy: its socket, of level admin.")
    ] = None,
    every: Annotated[
        float | None, typer.Option(min=0.1, help="Go on for each change of the members; seconds between reads.")
    ] = None,
) -> None:
    """Generate HAProxy's map of places to servers, of this cell if there are cells."""
    from holdfast.cluster import place_map

    if file is None and (socket is not None or every is not None):
        fail("--socket and --every need --file.", BAD_CONFIGURATION)
    publish = partial(place_map.publish_map, file, socket) if file is not None else partial(typer.echo, nl=False)
    with report_faults():
        try:
            locations = load_locations(environment())
            if servers:
                publish(place_map.place_map({server: server for server in servers}, locations.places))
                return
            with database(locations, create=False) as url:
                if every is None:
                    refuse_old_tables(url)
                    publish(place_map.members_map(url, locations.places))
                else:
                    with until_interrupted():
                        place_map.follow_members(
                            url,
                            publish,
                            every_s=every,
                            report=partial(typer.echo, err=True),
                            places=locations.places,
                        )
        except place_map.PlaceMapFault as exc:
            fail(str(exc), GAVE_UP)
