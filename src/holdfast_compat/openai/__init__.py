"""OpenAI's images, speech and videos for its unmodified clients, at the base address ``…/v1``.

Each call is translated to a native command and its reply back; the tasks are the same as those of ``/v2/task``.
"""
