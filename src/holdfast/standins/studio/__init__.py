"""The studio: an in-tree media provider that really renders, with Pillow and the standard library alone.

It stands outside: its own HTTP server, its own secret, and nothing shared with the house but the signature scheme
and the guard of outgoing calls. It speaks the prediction protocol that self-hosted model containers speak, so what
is tried against it holds for them.
"""
