"""The torture harness in short: some faults, once each, by a fixed seed; ``make torture`` goes on for hours."""

from __future__ import annotations

from torture.campaign import Campaign, Options

FAULTS = ("kill", "cut", "postmaster", "media")


async def test_some_rounds_of_faults_lose_and_double_nothing() -> None:
    lines: list[str] = []
    options = Options(seed=20261121, faults=FAULTS, kinds=("embedded",), rounds=len(FAULTS), mixed=False)
    summary = await Campaign(options, lines.append).run()
    assert summary.differences == [], "\n".join([*lines, str(summary.folder), summary.repeat])
    assert summary.rounds == len(FAULTS)
    assert summary.kills >= 1
    assert set(summary.faults) == set(FAULTS)
    assert summary.creates > 0
    assert any("audit clean" in line for line in lines), lines
