"""Supervision: the supervisor and its reports, the directory of virtual actors, and the application's tree.

Terms are those of OTP (strategies, restart types, intensity and period, reverse-order shutdown), with backoff,
ordered drain under cancellation, and reports scrubbed of secrets added.
"""
