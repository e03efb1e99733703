"""A short run of the torture harness: some faults, once each, with a fixed seed."""

from __future__ import annotations

import os

import pytest
from tests.tools import needs
from torture.campaign import Campaign, Options, Summary
from torture.deployment import DeploymentKind
from torture.faults import FAULTS
from torture.patroni import missing

LACKING = missing()
PAIRS = [(fault.name, kind) for fault in FAULTS.values() for kind in fault.kinds]


async def rounds_of(kind: DeploymentKind, *faults: str) -> Summary:
    """Run one round of each fault; no difference is allowed."""
    lines: list[str] = []
    options = Options(seed=8, faults=faults, kinds=(kind,), rounds=len(faults), mixed=False)
    summary = await Campaign(options, lines.append).run()
    assert summary.differences == [], "\n".join([*lines, str(summary.folder), summary.repeat])
    assert set(summary.faults) == set(faults)
    assert summary.witness.creates > 0
    assert any("audit clean" in line for line in lines), lines
    return summary


@pytest.mark.slow
async def test_a_kill_cuts_and_a_failover_lose_and_duplicate_nothing() -> None:
    summary = await rounds_of("pair", "kill", "cut", "failover")
    assert summary.kills >= 1
    assert summary.database_faults == 2


@pytest.mark.skipif(LACKING != "", reason=LACKING)
@needs("etcd")
@needs("patroni")
@needs("ip")
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["machine-kill", "machine-part"])
async def test_failovers_by_patroni_lose_and_duplicate_nothing(fault: str) -> None:
    await rounds_of("patroni", fault)


@pytest.mark.skipif("TORTURE" not in os.environ, reason="TORTURE=1 tries every fault on every deployment")
@pytest.mark.parametrize(("fault", "kind"), PAIRS)
async def test_each_fault_on_each_deployment_loses_nothing(fault: str, kind: DeploymentKind) -> None:
    await rounds_of(kind, fault)
