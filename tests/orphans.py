"""A program that makes an orphan, and sees that it is reaped."""

from __future__ import annotations


def orphan_program(reaper: str) -> str:
    """Return the program. ``reaper`` is the expression of the process that must become the orphan's parent."""
    return f"""
import os, time

reaper = {reaper}
held, release = os.pipe()
named, name = os.pipe()
if (between := os.fork()) == 0:
    if (orphan := os.fork()) == 0:
        os.close(release)
        os.read(held, 1)
        os._exit(3)
    os.write(name, str(orphan).encode())
    os._exit(0)
os.waitpid(between, 0)
status = f"/proc/{{int(os.read(named, 100))}}/status"
with open(status) as file:
    assert f"\\nPPid:\\t{{reaper}}\\n" in file.read()
os.close(release)
deadline = time.monotonic() + 60
while os.path.exists(status):
    assert time.monotonic() < deadline, "the orphan was not reaped"
    time.sleep(0.01)
print("reaped", flush=True)
"""
