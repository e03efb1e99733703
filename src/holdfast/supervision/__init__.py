"""Who keeps the house alive: the supervisor and its reports, the directory of virtual actors, this house's tree.

Words and meanings are those of OTP (strategies, restart types, intensity and period, reverse-order shutdown), with
back-off, ordered drain under cancellation, and reports scrubbed of secrets added.
"""
