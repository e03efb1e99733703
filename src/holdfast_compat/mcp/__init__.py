"""The Model Context Protocol for agents, over streamable HTTP at ``/mcp``: tools for what ``/v2`` does with a key.

Revisions 2025-11-25, 2025-06-18 and 2025-03-26. Without sessions: any process answers any request, and no process
remembers one.
"""
